"""Sweep files, their cells, and that a sweep compares runs made under the same conditions."""

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from swep_ds.analysis.runs import find_runs
from swep_ds.common.files import ds_config_path
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps.conditions import check_runs, check_start, conditions
from swep_ds.sweeps.sweep import SWEEPS, Cell, Sweep, describe, identity, read_sweep
from swep_ds.training.ds_config import complete_ds_config
from tests.support import tiny_run
from tests.support.bad_input import refused
from tests.support.sweep_files import MINIMAL, finish, write

TWO = {"variants": {"MLE": {"method.name": "mle"}, "SWEP": {}}}


@functools.cache
def shipped(name: str) -> tuple[Sweep, list[Cell]]:
    return read_sweep(name, Path("runs"))


def message(folder: Path, overrides=(), **fields) -> str:
    said = refused(read_sweep, write(folder, **fields), folder, overrides)
    assert said.startswith((str(folder / "mine.yaml"), "--set"))
    return said


def test_cells_are_variants_times_seeds_with_settings_in_order(tmp_path):
    # the method's name comes first wherever it stands; then the variant's settings over the sweep's, and --set's last
    variants = {
        "MLE": {"method.name": "mle"},
        "SWEP, beta = 1": {"method.beta": 1, "train.epochs": 0.5, "method.name": "swep"},
        "Prior-Aug": {"method.prior_variance": "1e-1", "method.name": "prior_aug"},
    }
    both = {"train.epochs": 0.3, "train.adam_betas": [0.8, 0.98], "data.eval": {"only": "a b.json"}}
    path = write(tmp_path, recipe="quickstart", set=both, variants=variants, seeds=[3, 5])
    sweep, cells = read_sweep(path, tmp_path / "runs", ["train.max_updates=7", "train.adam_betas=[0.7, 0.98]"])
    assert sweep.ds_config is None
    assert [(c.variant, c.recipe.seed) for c in cells] == [(name, seed) for seed in (3, 5) for name in variants]
    assert [cell.recipe.train.epochs for cell in cells[:3]] == [0.3, 0.5, 0.3]
    assert [cell.recipe.method.name for cell in cells[:3]] == ["mle", "swep", "prior_aug"]
    assert cells[1].recipe.method.beta == 1
    assert cells[2].recipe.method.prior_variance == 0.1
    assert cells[4].folder == tmp_path / "runs" / "swep-beta-1-seed5"
    assert cells[4].log == tmp_path / "runs" / "swep-beta-1-seed5.log"
    for cell in cells:
        assert cell.recipe.train.adam_betas == (0.7, 0.98)
        assert cell.recipe.train.max_updates == 7
        assert cell.recipe.data.eval == {"only": "a b.json"}
        options = cell.options()  # from which the cell's process makes the same recipe
        assert options[:2] == ["--output_dir", str(cell.folder)]
        assert Recipe.load("quickstart", options[3::2]) == cell.recipe


def test_axes_multiply_the_cells_and_name_their_folders(tmp_path):
    across = {
        "model": {"BERT-base": {"model.name": "b"}, "T5": {"model.name": "t", "method.name": "swep", "method.beta": 3}},
        "questions": {10: {"data.train_fraction": 0.1}, "100 %": {}},
    }
    variants = {"A": {"train.epochs": 1}, "B": {"train.epochs": 2}}
    _, cells = read_sweep(write(tmp_path, across=across, variants=variants, seeds=[4, 7]), tmp_path)
    folders = [f"{variant}-{model}-{share}" for model in ("bert-base", "t5") for share in (10, 100) for variant in "ab"]
    assert [cell.name for cell in cells[:8]] == [f"{folder}-seed4" for folder in folders]
    assert [cell.seed for cell in cells] == [4] * 8 + [7] * 8
    chosen, labels = cells[13], {"model": "T5", "questions": "10"}
    recipe = chosen.recipe
    assert (recipe.model.name, recipe.method.beta, recipe.train.epochs) == ("t", 3, 2)
    assert [cell.recipe.data.train_fraction for cell in (chosen, cells[2])] == [0.1, 1]

    describe(cells, tmp_path / "new")
    described = json.loads((tmp_path / "new" / "sweep.json").read_text())["runs"]
    assert list(described) == [cell.name for cell in cells]
    assert described[chosen.name] == {"variant": "B", "labels": labels, "seed": 7, "model": "t"}
    other = ["A", "B", "exact_match", "news"]
    fields = {"variants": variants, "seeds": [4], "primary": ["B", "A", "f1", "shifted"], "secondary": [other]}
    describe(read_sweep(write(tmp_path, **fields), tmp_path)[1], tmp_path / "primary")
    registered = {(ref.primary, ref.secondary) for ref in find_runs([tmp_path / "primary"])}
    assert registered == {(("B", "A", "f1", "shifted"), (tuple(other),))}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "batch.json").write_text("")
    said = refused(read_sweep, write(tmp_path, **fields), tmp_path / "run")
    assert said.endswith("run: is the folder of a run: name another")


def test_a_point_may_take_a_section_away():
    points = [cell for cell in shipped("synthetic")[1] if cell.variant == "MLE" and cell.seed == 0]
    shares = [int(cell.labels["share of HarvestingQA"].removesuffix(" %")) for cell in points]
    pairs = [cell.recipe.pretrain.max_train_examples if cell.recipe.pretrain else 0 for cell in points]
    assert shares == [0, 5, 10, 20, 30, 40, 50]
    assert pairs == [round(240_422 * share / 50) for share in shares]
    assert points[1].recipe.pretrain.train == "data/synthetic.jsonl"


def check_equal_compute(recipes: dict[str, Recipe]) -> None:
    """The control has MLE's loss and twice the updates of the other rows."""
    control = recipes["MLE, equal compute"]
    assert control.method.name == "mle"
    budget = min(recipe.train.max_updates or 0 for recipe in recipes.values())
    if budget:
        assert control.train.max_updates == 2 * budget
    else:
        assert control.train.epochs == 2 * min(recipe.train.epochs for recipe in recipes.values())


def check_two_masks(recipes: dict[str, Recipe]) -> None:
    """The control has two passes under dropout masks of their own, and nothing else."""
    masks = recipes["MLE, two dropout masks"]
    epochs = min(recipe.train.epochs for recipe in recipes.values())
    assert (masks.method.name, masks.method.divergence_weight, masks.train.epochs) == ("r_drop", 0, epochs)


@pytest.mark.parametrize("name", sorted(file.stem for file in SWEEPS.glob("*.yaml")))
def test_every_shipped_sweep_loads_and_has_the_controls_of_two_passes(name):
    sweep, cells = shipped(name)
    assert ds_config_path(sweep.ds_config).is_file()
    text = (SWEEPS / f"{name}.yaml").read_text()
    assert re.match(rf"# swep-ds sweep {name}( .*)?\n", text)
    stated = re.search(r"(\d+) runs", text)
    assert stated is None or int(stated[1]) == len(cells)
    first = cells[0]
    recipes = {cell.variant: cell.recipe for cell in cells if (cell.seed, cell.labels) == (first.seed, first.labels)}
    sizes = ("micro_batch_size", "max_tokens", "gradient_accumulation_steps", "group_by_length")
    batches = {tuple(getattr(recipe.train, size) for size in sizes) for recipe in recipes.values()}
    assert len(batches) == 1  # without common batches there are no common random numbers
    if name != "synthetic":  # whose axis takes the first stage away, so that no row can set its epochs
        check_equal_compute(recipes)
    if not name.startswith("quickstart"):  # their encoder drops no units
        check_two_masks(recipes)


def test_the_papers_sweeps_have_its_methods_and_data_sets():
    methods = {"mle", "adv_aug", "word_dropout", "gaussian_dropout", "bernoulli_dropout", "ssmba", "prior_aug", "swep"}
    methods.add("r_drop")  # a control
    for name in ("paper_bert", "paper_electra", "paper_t5"):
        sweep, cells = shipped(name)
        assert {cell.recipe.method.name for cell in cells} == methods
        assert list(cells[0].recipe.data.eval) == ["squad", "new_wiki", "nyt", "bioasq", "reddit", "amazon"]
        assert sweep.seeds == [0, 1, 2, 3, 4]
        methods_of = {cell.variant: cell.recipe.method for cell in cells}
        assert [methods_of[row].prior_variance for row in ("Prior-Aug", "Prior-Aug 1/3")] == [0.1, 1 / 3]
        changed = {"noise_dropout": 0.1} if name == "paper_electra" else {}  # the published code's for ELECTRA
        published = Recipe.load("official").method.model_copy(update=changed)
        assert methods_of["SWEP"] == published
        if name == "paper_electra":
            ablations = {cell.variant: cell.recipe.method for cell in shipped("ablations")[1]}
            assert ablations["SWEP"] == published
            parts = ({"noise": noise} for noise in ("additive", "fixed_mu", "fixed_sigma", "no_eps"))
            without = [published.model_copy(update=part) for part in (*parts, {"beta": 0.0}, {"mle_weight": 0.0})]
            assert [method for row, method in ablations.items() if row.startswith("SWEP, ")] == without
    assert {cell.recipe.data.train_fraction for cell in shipped("low_resource")[1]} == {0.1, 0.3, 0.5, 0.8, 1}
    assert {cell.recipe.eval.select_on for cell in shipped("new_wikipedia")[1]} == {"held_out"}


def test_the_protocols_sweeps_exist_and_have_as_many_runs_as_it_says(tmp_path):
    text = (tiny_run.ROOT / "docs" / "protocol.md").read_text()
    said = re.findall(r"`swep-ds sweep ([\w/.]+)(?: --jobs GPUS)?` \| (\d+) \|", text)
    assert len(said) == 8
    named = set()
    for name, runs in said:
        if name.startswith("studies/"):  # tests/studies/test_sweeps.py
            continue
        _, cells = shipped(name)
        assert len(cells) == int(runs)
        for recipe in (cell.recipe for cell in cells):
            named |= {recipe.data.train, recipe.data.augmented or "", *recipe.data.eval.values()}
            if recipe.pretrain:
                named.add(recipe.pretrain.train)
    assert [file for file in named if file.startswith("data/") and f"{Path(file).name}`" not in text] == []
    [example] = re.findall(r"beta\.yaml`:\n\n((?:    .*\n)+)", text)
    _, cells = read_sweep(write(tmp_path, **yaml.safe_load(example)), tmp_path)
    assert [cell.recipe.method.beta for cell in cells] == [1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
    assert {(cell.recipe.data.holdout_fraction, len(cell.recipe.data.eval)) for cell in cells} == {(0.1, 0)}


def test_a_sweep_is_not_continued_under_other_conditions_than_its_finished_runs(tmp_path):
    _, cells = read_sweep(write(tmp_path, **MINIMAL, seeds=[0, 1]), tmp_path / "runs")
    check_start(cells, [], "zero2", 1)  # nothing is done
    folder, recipe = cells[0].folder, cells[0].recipe
    finish(cells[0])
    resolved = complete_ds_config("zero2", recipe.train, world_size=1, backwards=2, hidden_size=128, on_cpu=True)
    (folder / "ds_config.json").write_text(json.dumps(resolved))
    check_start(cells, [], "zero2", 1)
    check_start(cells, [], "zero2", None)
    batch = recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps
    other_stage, other_batch = "ds_config zero_optimization.stage 2 .*1 ", f"global batch {batch} .*{2 * batch} "
    for ds_config, ranks, said in (("zero1", 1, other_stage), ("zero2", 2, other_batch)):
        given = refused(check_start, cells, [], ds_config, ranks)
        assert re.match(f"{folder}: is done, under other conditions than .*{said}.*: start with", given)


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
    assert (cell.results(), cell.fault()) == (None, "not finished")
    (cell.folder / "results.json").write_text('{"eval": {')
    assert cell.results() is None
    (cell.folder / "results.json").write_text('{"eval": {}}')
    logging = ["tracking.group=other", "tracking.to=wandb_offline", "train.log_every=7", "train.keep_checkpoints=9"]
    logging += ["train.cuda_graphs=false", "train.checkpoint_every=3", "eval.batch_size=7"]
    _, [elsewhere] = read_sweep(path, tmp_path, logging)
    assert cell.results() == elsewhere.results() == {"eval": {}}  # how it is logged makes no other run
    assert (cell.recipe.tracking.group, elsewhere.recipe.tracking.group) == ("mine", "other")
    cell.log.write_text("$ python train.py\nmodel in there\n# exit code 0\n")
    _, [selecting] = read_sweep(path, tmp_path, select := ["eval.select_on=news"])
    assert identity(selecting.recipe) != identity(read_sweep(path, tmp_path, [*select, *logging])[1][0].recipe)
    _, [other] = read_sweep(path, tmp_path, ["train.epochs=3", "eval.n_best=7"])
    assert other.results() is None
    order = {"eval": dict(reversed(cell.recipe.data.eval.items()))}  # another source domain
    reordered = cell.recipe.model_copy(update={"data": cell.recipe.data.model_copy(update=order)})
    assert (reordered == cell.recipe, replace(cell, recipe=reordered).results()) == (True, None)
    differing = rf"train.epochs {cell.recipe.train.epochs} .*3\.0 .*; eval.n_best \d+ .*7 "
    assert re.match(rf"holds a run with other settings \({differing}", other.fault())
    cell.log.write_text("$ python train.py\nerror: no room\nkilled\n# exit code 2\n")
    assert other.fault() == "exit code 2: error: no room"
    with cell.log.open("a") as log:  # the fault of the last attempt counts
        log.write("\n$ python train.py\nworking\n# exit code 137\n")
    assert other.fault() == "exit code 137: working"
    (cell.folder / "recipe.yaml").write_text("{")
    cell.log.unlink()
    assert other.fault().startswith(f"{cell.folder / 'recipe.yaml'}: not YAML")


def test_folder_model_and_data_of_every_cell_that_is_not_done_are_checked_before_the_first_run(tmp_path):
    good, excel, generated = tmp_path / "good.json", tmp_path / "excel.csv", tmp_path / "generated.json"
    for file in (good, generated):
        file.write_text(json.dumps(tiny_run.squad(9)))
    excel.write_text("Name;Text\nWho?;Ann did.\n")
    fields = {
        "variants": {"MLE": {"method.name": "mle"}, "wrong": {"data.augmented": str(excel)}},
        "seeds": [0, 1],
        "set": {"data.train": str(good), "data.eval": {"a": str(good)}, "pretrain.train": str(generated)},
    }
    path = write(tmp_path, **fields)
    _, cells = read_sweep(path, tmp_path / "runs")
    assert refused(check_runs, cells).startswith(f"wrong-seed0: data.augmented: {excel}: ")
    for cell in cells[1::2]:
        finish(cell)
    check_runs(cells)
    _, long = read_sweep(path, tmp_path / "runs", ["data.max_length=10000"])
    said = "mle-seed1: data.max_length 10000: the model takes at most "
    assert refused(check_runs, [cells[0], long[2]]).startswith(said)
    generated.write_text("[]")
    assert refused(check_runs, cells).startswith(f"mle-seed0: pretrain.train: {generated}: ")
    cells[2].folder.mkdir()
    (cells[2].folder / "thesis.tex").touch()
    assert refused(check_runs, long[::2]).startswith(
        f"mle-seed1: --output_dir {cells[2].folder}: holds files that belong"
    )


def test_conditions_are_what_the_recipe_does_not_decide():
    def decided(world_size: int = 1, backwards: int = 2, hidden_size: int = 32, **train) -> dict:
        recipe = Recipe.load("quickstart", [f"train.{name}={value}" for name, value in train.items()])
        sizes = {"world_size": world_size, "backwards": backwards, "hidden_size": hidden_size}
        return conditions(complete_ds_config("zero2", recipe.train, **sizes, on_cpu=True))

    usual = decided()
    assert usual["ds_config zero_optimization.stage"] == 2
    train = {"micro_batch_size": 4, "learning_rate": 1.0, "precision": "bf16", "max_grad_norm": 0.0}
    assert decided(backwards=1, hidden_size=64, **train) == decided(world_size=2) == usual


def test_bad_sweeps_are_one_line(tmp_path):
    two, back = {"a": "a.json", "b": "b.json"}, {"b": "b.json", "a": "a.json"}  # another source domain
    for fields, said in (
        ({**MINIMAL, "sedes": [0]}, "sedes is not a field; did you mean 'seeds'?"),
        ({"seeds": [0]}, "variants: {}: dictionary should have at least 1 item"),
        ({**MINIMAL, "seeds": [1, 2, 1]}, "2 runs would share the folder mle-seed1: rename one or drop a repeated"),
        ({**MINIMAL, "set": {"seed": 1}}, "set: seed: give the seeds in the sweep's field seeds"),
        ({**MINIMAL, "set": {"train": {"epochs": 1}}}, "set: train would replace the whole section: write train.field"),
        ({**MINIMAL, "recipe": "quickstrat"}, "variants.MLE: recipe quickstrat: no such recipe; did you mean 'quickst"),
        ({"variants": {"A": {}, "B": {"data.eval.x": "a.json"}}}, "variants.B is tested differently from A, but"),
        ({"variants": {"A": {"data.eval": two}, "B": {"data.eval": back}}}, "variants.B is tested differently from A"),
        ({**MINIMAL, "across": {"x": {"a": {"method.name": "swep"}}}}, "variants and x both set method.name: "),
        ({**MINIMAL, "set": {"method.beta": 0.5}}, "method.beta is not a field of mle, but of swep"),
        ({**MINIMAL, "across": {"x": {"a": {"train.epocs": 1}}}}, "variants.MLE, across.x.a: .*did you mean"),
        ({**TWO, "set": {"train.average": "ema"}, "primary": ["A", "MLE", "f1", "news"]}, "SWEP; MLE, unaveraged; SWE"),
        ({**TWO, "primary": ["SWEP", "MLE", "em", "shifted"]}, "primary.*'em': must be 'exact_match' or 'f1'"),
        ({**TWO, "primary": ["SWEP", "MLE", "f1", "bbc"]}, "primary 'bbc': no such data set: name one of .*news.*sh"),
        ({**TWO, "secondary": [["SWEP", "MRE", "f1", "news"]]}, "secondary compares 'SWEP' with 'MRE': name two of"),
    ):
        assert re.search(re.sub(r"([?\[\]])", r"\\\1", said), message(tmp_path, **fields))


def test_an_override_of_what_makes_a_cell_is_refused(tmp_path):
    variants = {"A": {"train.epochs": 1}, "B": {"method.name": "mle", "train.adam_betas": [0.8, 0.9]}}
    across = {"share": {"10 %": {"data.train_fraction": 0.1}}}
    for override, said in (
        ("seed=1", "--set seed=...: the seeds are in the sweep's file"),
        ("method.name=swep", "variants and --set both set method.name: set it in one of them"),
        ("data.train_fraction=1", "share and --set both set data.train_fraction: set it in one of them"),
    ):
        assert said in message(tmp_path, [override], variants=variants, across=across)
    said = message(tmp_path, ["train.epocs=1"], **MINIMAL)
    assert "variants.MLE with --set train.epocs=1: recipe quickstart: train.epocs is not a field" in said


def test_a_variant_of_another_method_drops_the_settings_of_the_sweeps_own(tmp_path):
    both = {"method.name": "swep", "method.beta": 0.5}
    _, [mle, swep] = read_sweep(write(tmp_path, set=both, **TWO), tmp_path)
    assert (swep.recipe.method.name, swep.recipe.method.beta, mle.recipe.method.name) == ("swep", 0.5, "mle")


def test_a_sweep_that_extends_another_gives_only_what_differs(tmp_path):
    assert "sweep nothing: no such sweep; known are " in refused(read_sweep, "nothing", tmp_path)
    (tmp_path / "below").mkdir()
    base = MINIMAL | {"set": {"train.epochs": 3, "train.log_every": 7}, "seeds": [4, 5], "ds_config": "base.json"}
    write(tmp_path, **base)

    def extending(name: str, **fields) -> tuple[Sweep, list[Cell]]:
        path = tmp_path / "below" / name
        path.write_text(yaml.safe_dump(fields))
        return read_sweep(str(path), tmp_path)

    sweep, [cell] = extending("more.yaml", extends="../mine.yaml", set={"train.epochs": 1}, seeds=[6])
    assert (sweep.ds_config, cell.variant, cell.seed) == ("base.json", "MLE", 6)
    assert (cell.recipe.train.epochs, cell.recipe.train.log_every) == (1, 7)
    assert cell.recipe.tracking.group == "more"
    variants = {"SWEP": {"method.name": "swep"}, "MLE": None}
    _, cells = extending("third.yaml", extends="more.yaml", set={"train.log_every": 2}, variants=variants)
    assert [(cell.recipe.method.name, cell.seed) for cell in cells] == [("mle", 6), ("swep", 6)]
    assert [(cell.recipe.train.epochs, cell.recipe.train.log_every) for cell in cells] == [(1, 2)] * 2
    said = refused(extending, "fourth.yaml", extends="more.yaml", variants={"MLR": None})
    assert "fourth.yaml: variants.MLR: None: must be a valid dictionary" in said
