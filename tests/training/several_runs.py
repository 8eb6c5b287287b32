"""Started under a launcher: makes the runs that a JSON file lists, one after the other in one process group."""

import json
import sys
from pathlib import Path

from swep_ds.distributed import process_group
from swep_ds.recipe import Recipe
from swep_ds.run import run

if __name__ == "__main__":
    runs = json.loads(Path(sys.argv[-1]).read_text())
    with process_group():
        for one in runs:
            recipe = Recipe.load(one["recipe"], one["set"])
            run(recipe, one["ds_config"], Path(one["output_dir"]), one.get("resume", "auto"))
