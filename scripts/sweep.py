"""Trains all variants of a sweep, each with all its seeds, and prints one table of their scores.

    python scripts/sweep.py quickstart_methods            # all methods on the embedded corpus, for a short budget
    python scripts/sweep.py SWEEP.yaml --output_dir runs/mine --jobs 2 --set data.train=train-v1.1.json

A sweep file names a recipe, the variants (rows) with their settings, and the seeds: swep_ds/sweep.py. Each cell is an
ordinary run in a folder of its own, beside its log. Start it again and it skips what is done and goes on with the rest;
--table makes the table of what is there and runs nothing. The table stays as table.md and table.json.
Exit codes: 0 done; 1 a run failed or is missing from the table, the others went on; 2 bad input (one line says what and
how to mend it); 75 stopped by SIGINT, SIGTERM or SIGHUP together with its runs.
"""

import argparse
import sys
from pathlib import Path

from swep_ds.command import main
from swep_ds.errors import EXIT_FAULT, EXIT_STOPPED, InputError
from swep_ds.sweep import read_sweep

TRAIN = Path(__file__).with_name("train.py")


def sweep() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="name of a shipped sweep, or a YAML file")
    parser.add_argument("--ds_config", help="DeepSpeed configuration (default: the sweep's)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    parser.add_argument("--output_dir", type=Path, help="for the runs and the table (default: runs/SWEEP)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--num_accelerators", type=int, default=1, help="processes of each run (default: 1)")
    parser.add_argument("--table", action="store_true", help="of what is there; run nothing")
    arguments = parser.parse_args()
    if min(arguments.jobs, arguments.num_accelerators) < 1:
        raise InputError("--jobs and --num_accelerators must be at least 1")
    folder = arguments.output_dir or Path("runs") / Path(arguments.sweep).stem
    chosen, cells = read_sweep(arguments.sweep, folder, arguments.set)
    if arguments.table and not folder.is_dir():
        raise InputError(f"--output_dir {folder}: no such folder: name the one that the sweep ran in")
    ds_config = arguments.ds_config or chosen.ds_config
    if not arguments.table:
        if not ds_config:
            raise InputError("the sweep names no ds_config: give --ds_config")
        if not Path(ds_config).is_file():
            raise InputError(f"ds_config {ds_config}: no such file: name one in the sweep or with --ds_config")

    from swep_ds.analysis import table  # after the settings: these imports take seconds

    failed, stopped = [], False
    if not arguments.table:
        from swep_ds.local_queue import work_off

        command = [str(TRAIN), "--recipe", chosen.recipe, "--ds_config", ds_config]
        failed, stopped = work_off(cells, command, folder, jobs=arguments.jobs, ranks=arguments.num_accelerators)
    scores = table.of_sweep(cells)
    if scores["columns"]:
        table.write(scores, folder)
    table.show(scores)
    if failed or stopped or (scores["missing"] and not arguments.table):
        sys.exit(EXIT_STOPPED if stopped else EXIT_FAULT)


if __name__ == "__main__":
    main(sweep)
