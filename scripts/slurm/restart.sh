# Read by train.sbatch and sweep.sbatch: how a start ends, and whether another one follows.

say() { echo "swep-ds: $*"; }

restarts=${SLURM_RESTART_COUNT:-0}
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
say "job $job, start $((restarts + 1)), on $SLURM_JOB_NODELIST"
if ((restarts > SWEP_DS_MAX_RESTARTS)); then # Slurm's own, of a lost node, are counted as well
    say "$SWEP_DS_MAX_RESTARTS restarts are used up: not started; submit again to go on"
    exit 1
fi
# sbatch hands on the environment it was called in, which may be that of a rank: every task would take itself for that one
unset RANK LOCAL_RANK WORLD_SIZE MASTER_PORT SWEP_DS_LOCAL_ID
# All ranks end by themselves when one does: who is left after a minute would hang. Killing them at the first exit code
# would hide that code behind the signal.
export SLURM_KILL_BAD_EXIT=0 SLURM_WAIT=60
# srun does not take the number of cores per task from the job by itself
[[ -n $SLURM_CPUS_PER_TASK ]] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
trap : TERM USR1 # of a pre-emption: the ranks get it as well, and what they do with it decides

# Ends the job by the exit code of its ranks.
finish() {
    local code=$1 why
    case $code in
    0) say "done"; exit 0 ;;
    2) say "exit code 2: bad input, see the line above: not restarted"; exit 2 ;;
    75) why="exit code 75: stopped on request" ;;
    76) why="exit code 76: a rank or its node was lost" ;;
    *)
        if ((code < 128)); then
            say "exit code $code: a fault, or a training that diverged, see above: not restarted"
            exit "$code"
        fi
        why="exit code $code: a rank died of signal $((code - 128))"
        ;;
    esac
    # a job that was cancelled ends in the same way, and must not come back; one that lost a node does by itself
    if [[ $(squeue --noheader --jobs="$job" --format=%T) != RUNNING ]]; then
        say "$why; Slurm has ended the job: not restarted from here"
    elif ((restarts >= SWEP_DS_MAX_RESTARTS)); then
        say "$why; $SWEP_DS_MAX_RESTARTS restarts are used up: not restarted; submit again to go on"
    else
        say "$why: restart $((restarts + 1)) of at most $SWEP_DS_MAX_RESTARTS"
        scontrol requeue "$job" || say "scontrol requeue failed: submit again to go on"
    fi
    exit "$code"
}
