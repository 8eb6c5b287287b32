"""Calibrates the confidences of a finished run."""

from pathlib import Path

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import write_atomically
from swep_ds.data.example import Example
from swep_ds.pipeline.examples import validation_examples
from swep_ds.pipeline.folder import READING, RunFolder
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import ReadingSettings, SavedModel, load_saved, validation_half
from swep_ds.ranks.writing import write_on_rank0


def calibrate_run(run: Path, batch_size: int) -> None:
    """Fits a calibrator as the run itself would, and writes it into its model's `READING`. Collective.

    Raises:
        InputError: no finished run, or it held out no half of its source domain.
        WriteFailed: a full disk or the like.
    """
    say, folder = Console(quiet=not ranks.is_main()).print, RunFolder(run)

    def load() -> tuple[Recipe, list[Example], SavedModel]:
        folder.check_finished()
        recipe = folder.read_recipe()
        source = next(iter(recipe.test_sets), None)
        if recipe.validation_set is None or recipe.validation_set != source:
            raise InputError(
                f"{run}: held out no half of its source domain to calibrate on: train it with eval.select_on "
                f"{source or 'held_out'}"
            )
        return recipe, validation_examples(recipe, run), load_saved(str(folder.model))

    recipe, examples, saved = ranks.on_all_ranks(load)
    evaluation, validation = validation_half(saved, recipe, examples, batch_size)
    say(f"half of {validation.name}: {len(examples)} questions in {len(validation.features.dataset)} windows")
    evaluation, line = evaluation.with_calibrator(evaluation.predict(saved.qa.predict, validation), validation)
    say(line)
    file = folder.model / READING
    reading = ReadingSettings.load(file).model_copy(update={"calibrator": evaluation.calibrator})
    write_on_rank0(lambda: write_atomically(file, reading.text()), file)
