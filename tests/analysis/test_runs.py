"""Which runs go into a table, and how the others are named."""

import shutil

import pytest

from swep_ds.analysis import runs, table
from swep_ds.pipeline.folder import batch_of_rank
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps.sweep import describe
from tests.support import fake_runs
from tests.support.bad_input import change_json, refused


@pytest.fixture
def cells(tmp_path):
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    return fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 10}, 3, variants=variants, seeds=[0, 1, 2])


def reasons(tmp_path) -> dict[str, str]:
    _, missing = runs.read_runs(runs.find_runs([tmp_path / "runs"]))
    return {run.folder.name: run.reason for run in missing}


def test_a_sweeps_folder_says_by_itself_what_its_runs_are(cells, tmp_path, caplog):
    places = runs.find_runs([tmp_path / "runs"])
    assert [(p.folder, p.variant, p.seed, p.model) for p in places] == [
        (cell.folder, cell.variant, cell.seed, "google/electra-small-discriminator") for cell in cells
    ]
    assert reasons(tmp_path) == {}
    describe(cells[1:], tmp_path / "runs")
    runs.find_runs([tmp_path / "runs"])
    said = f"{tmp_path / 'runs'}: holds runs that the sweep does not name, and its table leaves out: {cells[0].name}"
    assert [record.message for record in caplog.records] == [said, said]
    fake_runs.finish(tmp_path / "all" / "alone", cells[0].recipe, {"squad": 3, "nyt": 3})
    shutil.move(tmp_path / "runs", tmp_path / "all" / "sweep")
    assert len(runs.find_runs([tmp_path / "all"])) == len(cells)
    for folder, fault in ((tmp_path / "none", "no such folder"), (tmp_path / "all/alone/predictions", "holds no run")):
        assert fault in refused(runs.find_runs, [folder])


def test_failed_and_unfinished_runs_are_named(cells, tmp_path):
    for cell in cells[1:3]:
        (cell.folder / "results.json").unlink()
    cells[1].log.write_text("$ train.py\nerror: no room\n# exit code 2\n")
    results = [cell.folder / "results.json" for cell in cells]
    results[3].write_text(results[3].read_text()[:50])
    change_json(cells[4].folder / "results.json", "eval", "nyt", f1=None)  # as of another version
    faults = {"swep-seed1": f"{results[3]}: not JSON: ", "mle-seed2": f"{results[4]}: not of this version (eval.nyt.f1"}
    faults |= {"swep-seed0": "exit code 2: error: no room", "mle-seed1": "not finished"}
    _, missing = runs.read_runs(runs.find_runs([tmp_path / "runs"]))
    assert {run.folder.name for run in missing} == faults.keys()
    assert all(run.reason.startswith(faults[run.folder.name]) for run in missing)
    assert missing[0].line == f"SWEP, seed 0: exit code 2: error: no room ({cells[1].log})"
    assert missing[1].line == f"MLE, seed 1: not finished ({cells[2].folder})"
    (cells[5].folder / "recipe.yaml").write_text(cells[4].recipe.dump())
    *_, other = runs.read_runs(runs.runs_of_cells(cells))[1]
    assert other.reason.startswith("holds a run with other settings (method.name 'mle' there, 'swep' here")


def test_runs_tested_or_trained_differently_are_left_out(cells, tmp_path):
    change_json(cells[0].folder / "results.json", "eval", "nyt", total=9)
    change_json(cells[1].folder / "results.json", eval={"squad": {"exact_match": 30.0, "f1": 30.0, "total": 10}})
    change_json(cells[4].folder / "results.json", world_size=2)
    (cells[3].folder / "ds_config.json").write_text('{"zero_optimization": {"stage": 3}}')
    batch = batch_of_rank(cells[4].recipe)
    differing = {
        "mle-seed0": "questions of nyt 9 there, 10 here",
        "swep-seed0": "data sets 'squad' there, 'squad, nyt' here; questions of nyt None there, 10 here",
        "mle-seed2": f"global batch {2 * batch} there, {batch} here",
        "swep-seed1": "ds_config zero_optimization.stage 3 there, 2 here",
    }
    assert reasons(tmp_path) == {name: f"made differently from the others ({said})" for name, said in differing.items()}


def test_rows_that_are_decoded_in_two_ways_are_not_compared(cells, tmp_path):
    for cell in cells[1::2]:  # all of SWEP
        fake_runs.finish(cell.folder, Recipe.make(cell.recipe, eval={"max_answer_tokens": 9}), {"squad": 3, "nyt": 3})
    reason = "made differently from the others (eval.max_answer_tokens 9 there, 30 here)"
    assert reasons(tmp_path) == {f"swep-seed{seed}": reason for seed in range(3)}


def test_runs_that_read_other_files_are_left_out_and_different_versions_named(cells, tmp_path):
    change_json(cells[1].folder / "results.json", "versions", torch="2.9")
    notes = table.make(runs.find_runs([tmp_path / "runs"])).notes
    assert "The runs were made by different versions: torch 1.0, 2.9." in notes
    for cell, train, squad in zip(cells, "aaabaa", "dccccc", strict=True):
        change_json(cell.folder / "results.json", inputs={"data.train": train, "data.eval.squad": squad})
    assert reasons(tmp_path) == {
        "mle-seed0": "read other files than the others (data.eval.squad)",
        "swep-seed1": "read other files than the others (data.train)",
    }


@pytest.mark.parametrize(("held_out", "left_out"), [(0.0, [1]), (0.1, [0, 1, 2, 3])])
def test_rows_may_train_on_other_data_unless_articles_of_it_are_the_test(tmp_path, held_out, left_out):
    """Each row reads one file. Runs without a checksum, from an older version, are compared with others without."""
    variants = {"MLE": {}, "Same": {"method.name": "swep"}, "More": {"data.train": "more.json"}}
    set_ = {"data.holdout_fraction": held_out, "data.eval": {"nyt": str(tmp_path / "nyt.json")}}
    sizes = {"squad": 10, "nyt": 10}
    for cell in fake_runs.sweep(tmp_path, sizes, variants=variants, seeds=[0, 1, 2, 3], set=set_):
        inputs = {"data.train": "more" if cell.variant == "More" and cell.seed > 1 else "usual"}
        fake_runs.finish(cell.folder, cell.recipe, {"nyt": 3}, inputs=inputs if cell.seed else {})
    reason = "read other files than the others (data.train)"
    assert reasons(tmp_path) == {f"more-seed{seed}": reason for seed in left_out}


def test_rows_of_one_source_and_of_mixes_with_it_are_compared_and_a_row_has_one_mix(tmp_path):
    def mix(weight: int, *names: str) -> dict:
        sources = [{"source": name, "weight": weight**place} for place, name in enumerate(names)]
        return {"data.train": sources, "data.home": next(name for name in names if name.endswith("usual.json"))}

    reversed_ = mix(2, "usual.json", "more.json")
    variants = {"MLE": {"data.train": "usual.json"}, "Mix": mix(1, "more.json", "usual.json")}
    variants |= {"Heavy": mix(9, "more.json", "usual.json"), "Reversed": reversed_}
    set_ = {"data.holdout_fraction": 0.1, "data.eval": {"nyt": str(tmp_path / "nyt.json")}}
    cells = fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 10}, variants=variants, seeds=[0, 1, 2], set=set_)
    for cell in cells:
        recipe = cell.recipe
        inputs = dict(recipe.data.sources)
        if cell.name == "heavy-seed2":
            inputs["data.train.1.source"] = "other articles"
        if cell.name == "mix-seed2":
            inputs["data.train.0.source"] = "changed"
        if cell.variant == "Reversed":
            inputs["data.train.1.source"] = "changed"
        if cell.name == "mix-seed1":  # the same bytes elsewhere
            data = mix(1, "away/more.json", "away/usual.json")
            recipe = Recipe.make(recipe, data={name.removeprefix("data."): value for name, value in data.items()})
        if cell.name == "mix-seed0":
            recipe = Recipe.make(recipe, data={"home": "more.json"})
        fake_runs.finish(cell.folder, recipe, {"nyt": 3}, inputs=inputs)
    reason = "read other files than the others ({})"
    left_out = {
        "heavy-seed2": reason.format("data.train"),
        "mix-seed2": reason.format("data.train.0.source, data.train"),
    }
    left_out |= dict.fromkeys((f"reversed-seed{seed}" for seed in range(3)), reason.format("data.train"))
    home = "home of data.train 'data.train.0.source' there, 'data.train.1.source' here"
    left_out["mix-seed0"] = f"made differently from the others ({home})"
    assert reasons(tmp_path) == left_out


@pytest.mark.parametrize(
    ("set_", "reason"),
    [
        ({"train.epochs": 8.0}, "made differently from the others (train.epochs 8.0 there, 2.0 here)"),
        ({"data.train": "other/hub-id"}, "read other files than the others (data.train)"),
        ({"data.eval": {"squad": "other.json"}}, "read other files than the others (data.eval.squad)"),
        ({"train.log_every": 7, "eval.batch_size": 3}, None),
    ],
)
def test_a_row_holds_one_setting_of_all_that_counts(tmp_path, monkeypatch, set_, reason):
    """A user changed a setting in the sweep and added seeds: sweep.json gives both the same name."""
    monkeypatch.chdir(tmp_path)
    fake_runs.data_set(tmp_path, "other", 10)
    for seeds, settings in (([0, 1, 2], {}), ([0, 1, 2, 3, 4], set_)):
        variants = {"MLE": {}, "SWEP": {"method.name": "swep", "method.beta": 1e-2 if settings else 1e-4}}
        for cell in fake_runs.sweep(tmp_path, {"squad": 10}, variants=variants, seeds=seeds, set=settings):
            if not (cell.folder / "results.json").exists():
                fake_runs.finish(cell.folder, cell.recipe, {"squad": 3})
    by_folder = reasons(tmp_path)
    for seed in (3, 4):
        assert "method.beta 0.01 there, 0.0001 here" in by_folder.pop(f"swep-seed{seed}")
    assert by_folder == (dict.fromkeys(("mle-seed3", "mle-seed4"), reason) if reason else {})


@pytest.mark.parametrize("how", ["cells", "sweep.json", "folders"])
def test_a_run_that_averages_its_weights_is_followed_by_itself_without(tmp_path, how):
    settings = {"train.average": "ema", "train.average_decay": 0.9}
    cells = fake_runs.sweep(tmp_path, {"squad": 10}, 3, variants={"MLE": settings, "plain": {}})
    fake_runs.finish(cells[0].folder / "unaveraged", cells[0].recipe.unaveraged(), {"squad": 5})
    if how == "folders":
        (tmp_path / "runs" / "sweep.json").unlink()
    places = runs.runs_of_cells(cells) if how == "cells" else runs.find_runs([tmp_path / "runs"])
    done, missing = runs.read_runs(places)
    assert not missing
    assert [round(run.results.eval["squad"]["exact_match"]) for run in done] == [30, 50, 30]
    first, second, _ = done
    assert second.variant == f"{first.variant}, unaveraged"
    assert second.folder == first.folder / "unaveraged"
    by_row = {run.variant: [run] for run in done}
    assert list(runs.differing_settings(by_row)) == ["train.average", "train.average_decay"]
    assert runs.differing_settings(dict([*by_row.items()][:2])) == {}  # its row's name says it


def test_settings_beside_the_method_in_which_rows_differ_are_noted(tmp_path):
    variants = {
        "MLE": {},
        "SWEP": {"method.name": "swep", "method.beta": 0.5},
        "Long": {"method.name": "swep", "train.epochs": 9, "data.train": "more.json", "train.log_every": 3},
    }
    cells = fake_runs.sweep(tmp_path, {"squad": 10}, 3, variants=variants)
    done, _ = runs.read_runs(runs.runs_of_cells(cells))
    assert runs.differing_settings({run.variant: [run] for run in done[:2]} | {"none": []}) == {}
    notes = table.make(runs.runs_of_cells(cells)).notes
    assert notes[:2] == [
        'Rows differ in more than the method: data.train is "squad.json" in MLE, SWEP; "more.json" in Long.',
        "Rows differ in more than the method: train.epochs is 2.0 in MLE, SWEP; 9.0 in Long.",
    ]


def test_runs_without_a_sweep_are_named_by_what_makes_the_difference(cells, tmp_path):
    (tmp_path / "runs" / "sweep.json").unlink()
    fake_runs.finish(tmp_path / "other", cells[1].recipe.model_copy(update={"seed": 9}), {"squad": 4, "nyt": 4}, seed=9)
    beta = Recipe.load(str(tmp_path / "recipe.yaml"), ["method.name=swep", "method.beta=0.25"])
    fake_runs.finish(tmp_path / "beta", beta, {"squad": 4, "nyt": 4})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "recipe.yaml").write_text("{")
    (tmp_path / "damaged" / "results.json").write_text("{}")
    folders = [tmp_path / name for name in ("runs", "other", "beta", "damaged")]
    done, [missing] = runs.read_runs(runs.find_runs(folders))
    assert [(run.variant, run.seed) for run in done] == [
        *((name, seed) for name in ("mle", "swep") for seed in (0, 1, 2)),
        ("swep", 9),
        ("swep, beta 0.25", 0),
    ]
    assert missing.variant == "damaged"
    assert missing.reason.startswith(f"{tmp_path / 'damaged' / 'recipe.yaml'}: not YAML")
    assert missing.reason.endswith(": delete the run's folder and run it again")
    _, [twice] = runs.read_runs(runs.find_runs([tmp_path / "other", tmp_path / "other"]))
    assert twice.reason == f"the same variant and seed as {tmp_path / 'other'}, which is in the table"
    # a first duplicate that is left out does not take the good one along
    fake_runs.finish(tmp_path / "twice", cells[0].recipe, {"squad": 3, "nyt": 3})
    change_json(cells[0].folder / "results.json", world_size=2)
    done, [missing] = runs.read_runs(runs.find_runs([tmp_path / "runs", tmp_path / "twice"]))
    assert missing.folder == cells[0].folder
    assert tmp_path / "twice" in [run.folder for run in done]
    two = Recipe.load(str(tmp_path / "recipe.yaml"), ["method.name=mle", "pretrain={train: generated.json}"])
    for seed, recipe in enumerate([two, two, cells[0].recipe]):
        folder = tmp_path / "stages" / f"{seed}"
        fake_runs.finish(folder, recipe.model_copy(update={"seed": seed}), {"squad": 4, "nyt": 4}, seed=seed)
    assert [run.variant for run in runs.find_runs([tmp_path / "stages"])] == ["mle", "mle", "mle, pretrain None"]
