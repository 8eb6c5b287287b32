"""What a cell says of itself, and that a sweep compares runs of the same data."""

import json
import re

import pytest

from swep_ds.common.errors import InputError
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.prepare import resolve_ds_config
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps import conditions
from swep_ds.sweeps.conditions import check_conditions, check_data
from swep_ds.sweeps.sweep import exit_code_of, read_sweep
from tests.support import tiny_run
from tests.support.sweep_files import MINIMAL, finish, write


def test_a_sweep_is_not_continued_under_other_conditions_than_its_finished_runs(tmp_path):
    _, cells = read_sweep(write(tmp_path, **MINIMAL, seeds=[0, 1]), tmp_path / "runs")
    check_conditions(cells, "zero2", 1)  # nothing is done
    folder, recipe = cells[0].folder, cells[0].recipe
    finish(cells[0])
    resolved = resolve_ds_config("zero2", recipe, world_size=1, micro_steps=2, hidden_size=128, on_cpu=True)
    (folder / "ds_config.json").write_text(json.dumps(resolved))
    check_conditions(cells, "zero2", 1)
    check_conditions(cells, "zero2", None)
    batch = recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps
    for ds_config, ranks, said in (
        ("zero1", 1, "ds_config zero_optimization.stage 2 .*1 "),
        ("zero2", 2, f"global batch {batch} .*{2 * batch} "),
    ):
        with pytest.raises(InputError, match=f"^{folder}: is done, under other conditions than .*{said}.*: start with"):
            check_conditions(cells, ds_config, ranks)


def test_a_cell_has_results_only_of_its_own_settings(tmp_path):
    path = write(tmp_path, **MINIMAL)
    _, [cell] = read_sweep(path, tmp_path)
    assert (cell.results(), cell.fault()) == (None, "not run")
    for content in ("", "\n", "unrelated notes\n"):
        cell.log.write_text(content)
        assert cell.fault() == "not run"
    cell.folder.mkdir()
    (cell.folder / "recipe.yaml").write_text(cell.recipe.dump())
    cell.log.write_text("$ python train.py\nworking\n")
    assert (cell.results(), cell.fault(), exit_code_of(cell.folder)) == (None, "not finished", None)
    (cell.folder / "results.json").write_text('{"eval": {')
    assert cell.results() is None
    (cell.folder / "results.json").write_text('{"eval": {}}')
    assert cell.results() == {"eval": {}}
    cell.log.write_text("$ python train.py\nmodel in there\n# exit code 0\n")
    _, [other] = read_sweep(path, tmp_path, ["train.epochs=3", "eval.batch_size=7"])
    assert other.results() is None
    epochs, size = cell.recipe.train.epochs, cell.recipe.eval.batch_size
    differing = rf"train.epochs {epochs} .*3\.0 .*; eval.batch_size {size} .*7 "
    assert re.match(rf"holds a run with other settings \({differing}", other.fault())
    cell.log.write_text("$ python train.py\nerror: no room\nkilled\n# exit code 2\n")
    assert (other.fault(), exit_code_of(other.folder)) == ("exit code 2: error: no room", 2)
    (cell.folder / "recipe.yaml").write_text("{")
    cell.log.unlink()
    assert other.fault().startswith(f"{cell.folder / 'recipe.yaml'}: not YAML")


def test_the_data_of_every_cell_that_is_not_done_are_read_once_before_the_first_run(tmp_path, monkeypatch):
    good, excel, generated = tmp_path / "good.json", tmp_path / "excel.csv", tmp_path / "generated.json"
    for file in (good, generated):
        file.write_text(json.dumps(tiny_run.squad(9)))
    excel.write_text("Name;Text\nWho?;Ann did.\n")
    data = {"data.train": str(good), "data.eval": {"a": str(good)}, "pretrain.train": str(generated)}
    fields = {
        "variants": {"MLE": {"method.name": "mle"}, "SWEP": {}, "wrong": {"data.augmented": str(excel)}},
        "across": {"share": {"10 %": {"data.train_fraction": 0.1}, "all": {}}},
        "seeds": [0, 1],
        "set": data,
    }
    _, cells = read_sweep(write(tmp_path, **fields), tmp_path / "runs")
    read = []
    noted = "load_examples", lambda recipe: read.append(recipe.training_source) or load_examples(recipe)
    monkeypatch.setattr(conditions, *noted)
    with pytest.raises(InputError, match=rf"^wrong-10-seed0: data\.augmented: {excel}: "):
        check_data(cells)
    assert read == ["data.train", "pretrain.train", "data.train"]
    for cell in cells:
        if cell.variant == "wrong":
            finish(cell)
    check_data(cells)
    generated.write_text("[]")
    with pytest.raises(InputError, match=rf"^mle-10-seed0: pretrain\.train: {generated}: "):
        check_data(cells)


def test_conditions_are_what_the_recipe_does_not_decide(tmp_path):
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)))

    def decided(stage: int, recipe: Recipe, ranks: int, **how) -> dict:
        source = str(tiny_run.ds_config(tmp_path, stage))
        resolved = resolve_ds_config(source, recipe, world_size=ranks, on_cpu=True, **how)
        (tmp_path / "ds_config.json").write_text(json.dumps(resolved))
        return conditions.conditions(tmp_path)

    usual = decided(2, recipe, 1, micro_steps=2, hidden_size=32)
    assert usual["ds_config zero_optimization.stage"] == 2
    train = recipe.train.model_copy(
        update={"micro_batch_size": 4, "learning_rate": 1.0, "precision": "bf16", "max_grad_norm": 0.0}
    )
    assert decided(2, recipe.model_copy(update={"train": train}), 1, micro_steps=1, hidden_size=64) == usual
    assert decided(0, recipe, 1, micro_steps=2, hidden_size=32) != usual
    assert decided(2, recipe, 2, micro_steps=2, hidden_size=32) == usual
