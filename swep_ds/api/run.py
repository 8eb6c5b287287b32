"""Runs from Python: `train` makes one, `Run` reads one."""

from pathlib import Path
from typing import Any

from swep_ds.common.files import DEFAULT_DS_CONFIG, user_path
from swep_ds.evaluation.results import Results, Scores, read_results
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.recipe import Recipe


class Run:
    """The folder of a run. Nothing is kept in memory: each attribute reads its file."""

    def __init__(self, path: Path | str):
        self.path = user_path(path)
        self._folder = RunFolder(self.path)
        self.model_dir = self._folder.model  # which `from_pretrained` loads, with its tokenizer
        self.report = self._folder.report  # a page

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def results(self) -> Results:
        """`results.json`. Raises InputError: the run is not done, or the file is damaged."""
        self._folder.check_finished()
        return read_results(self._folder.results)

    @property
    def scores(self) -> Scores:
        """Scores in percent by data set, the source domain first: "exact_match", "f1", "total" (questions) ..."""
        return self.results.scores

    @property
    def recipe(self) -> Recipe:
        return self._folder.read_recipe()


def train(
    recipe: str | Path | Recipe,
    *,
    output_dir: Path | str,
    ds_config: str | Path = DEFAULT_DS_CONFIG,
    resume: str | Path = "auto",
    **sections: Any,
) -> Run:
    """Trains, evaluates and exports a model, as `scripts/train.py` does, and returns its run.

        run = sd.train("quickstart", method=sd.Swep(beta=1e-4), train={"epochs": 1}, output_dir="runs/mine")

    In a script that `deepspeed`, `torchrun` or `srun` started, all ranks call it together; otherwise it trains in
    this process. Leaves no process group, log level, environment variable or random state behind.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, or a recipe.
        output_dir: the run's folder. A run that it holds is resumed.
        ds_config: name of a shipped configuration of DeepSpeed (`ds_configs/`), or path of a file.
        resume: "auto", "never" (a folder with a run is refused), or the folder of a checkpoint.
        sections: laid over the recipe, as `Recipe.make` does.

    Raises InputError, TrainingDiverged or WriteFailed, on all ranks.
    """
    whole = Recipe.make(recipe, **sections)  # before the imports, which take seconds
    import torch

    from swep_ds.analysis.report import write_report
    from swep_ds.pipeline.run import run
    from swep_ds.ranks.accelerator import device_count
    from swep_ds.ranks.group import process_group

    folder = user_path(output_dir)
    with torch.random.fork_rng(range(device_count())), process_group():
        run(whole, str(ds_config), folder, str(resume), write_report)
    return Run(folder)
