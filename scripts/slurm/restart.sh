# Sourced by train.sbatch and sweep.sbatch: decides at the end of a start whether the job is queued again.

say() { echo "swep-ds: $*"; }

restarts=${SLURM_RESTART_COUNT:-0}
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
say "job $job, start $((restarts + 1)), on $SLURM_JOB_NODELIST"
if ((restarts > SWEP_DS_MAX_RESTARTS)); then # includes Slurm's own restarts after a lost node
    say "$SWEP_DS_MAX_RESTARTS restarts are used up: not started; submit again to resume"
    exit 1
fi
# sbatch passes on its environment. If that is a rank's, every task would believe that it is that rank.
unset RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SWEP_DS_LOCAL_ID
# When a rank ends, the others end by themselves; one that is left after a minute hangs. Killing them at the first exit
# code would hide that code behind the signal.
export SLURM_KILL_BAD_EXIT=0 SLURM_WAIT=60
# srun does not inherit the job's number of cores per task
[[ -n $SLURM_CPUS_PER_TASK ]] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
# The file gets a line for each start and each saved checkpoint (swep_ds/ranks/environment.py), so that a job whose starts save
# nothing can be ended.
[[ -n $SWEP_DS_LOGS ]] && export SWEP_DS_PROGRESS=$SWEP_DS_LOGS/.slurm-$job.progress
[[ -n $SWEP_DS_PROGRESS ]] && echo start >>"$SWEP_DS_PROGRESS"
trap : TERM USR1 # at a pre-emption: the ranks get the signal as well, and their exit code decides

FRUITLESS=3 # starts in a row without a checkpoint

# Succeeds if the last FRUITLESS starts saved no checkpoint.
fruitless() {
    local starts
    starts=$(for ((i = 0; i < FRUITLESS; i++)); do echo start; done)
    [[ -n $SWEP_DS_PROGRESS && $(tail -n "$FRUITLESS" "$SWEP_DS_PROGRESS") == "$starts" ]]
}

# Ends the job for good: quit EXIT_CODE MESSAGE
quit() {
    [[ -n $SWEP_DS_PROGRESS ]] && rm -f "$SWEP_DS_PROGRESS"
    say "$2"
    exit "$1"
}

# Requeues the job if Slurm says that it runs. A cancelled job ends as one that was asked to stop does, but must not come
# back; one that lost a node comes back by itself. A controller that is busy or fails over gives no answer, or an error:
# that says nothing about the job, so it is asked again.
requeue() {
    local code=$1 why=$2 state pause problem="squeue gives no answer"
    for pause in 0 2 5 10 20 30 60 60 60 60 60 60 60 60 60; do
        sleep "$pause"
        state=$(squeue --noheader --jobs="$job" --format=%T) || state=
        read -r state _ <<<"$state"
        case $state in
        RUNNING)
            say "$why: restart $((restarts + 1)) of at most $SWEP_DS_MAX_RESTARTS"
            scontrol requeue "$job" && exit "$code"
            problem="scontrol requeue failed"
            ;;
        COMPLETING | COMPLETED | CANCELLED | FAILED | TIMEOUT | DEADLINE | PREEMPTED | NODE_FAIL | BOOT_FAIL | \
            OUT_OF_MEMORY | REVOKED | STOPPED | PENDING | REQUEUED | REQUEUE_HOLD | REQUEUE_FED | SPECIAL_EXIT)
            say "$why; Slurm has ended the job: not restarted from here"
            exit "$code"
            ;;
        esac
        say "$problem: asking again"
    done
    quit "$code" "$why; $problem: not restarted; submit again to resume"
}

# Ends or requeues the job according to the exit code of its ranks.
finish() {
    local code=$1 why
    case $code in
    0) quit 0 "done" ;;
    2) quit 2 "exit code 2: bad input, see the line above: not restarted" ;;
    75) why="exit code 75: stopped on request" ;;
    76) why="exit code 76: a rank or its node was lost" ;;
    *)
        if ((code < 128)); then
            quit "$code" "exit code $code: a fault, or a training that diverged, see above: not restarted"
        fi
        why="exit code $code: a rank died of signal $((code - 128))"
        ;;
    esac
    if ((restarts >= SWEP_DS_MAX_RESTARTS)); then
        quit "$code" "$why; $SWEP_DS_MAX_RESTARTS restarts are used up: not restarted; submit again to resume"
    elif fruitless; then
        quit "$code" "$why; $FRUITLESS starts in a row saved no checkpoint: not restarted; submit again with more --time"
    fi
    requeue "$code" "$why"
}
