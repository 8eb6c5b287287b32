"""`sd.train` and `sd.Run`: runs from Python, which leave their process as they found it."""

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import pytest
import torch
import transformers
import yaml
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import swep_ds as sd
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.methods import SHIPPED
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import ds_config, prepare


def test_importing_imports_nothing_else_and_a_call_that_is_refused_prints_nothing():
    heavy = ("torch", "transformers", "deepspeed", "datasets", "pydantic", "numpy", "yaml")
    code = f"import sys, swep_ds as sd; print(*(name for name in {heavy} if name in sys.modules))\n"
    code += "try: sd.train('quickstart', metod=sd.Swep(), output_dir='none')\n"
    code += "except sd.InputError as error: print(error)\n"
    # every command imports the methods of other packages
    code += "sd.Method, sd.gaussian; print({'transformers', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\nrecipe quickstart: metod is not a field; did you mean 'method'?\nset()\n"
    assert done.stderr == ""


def test_every_name_can_be_imported():
    for name in sd.__all__:
        assert getattr(sd, name) is not None
    assert set(sd.__all__) <= set(dir(sd))
    assert sd.QuestionAnswerer is QuestionAnswerer
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = sd.trian
    for settings in SHIPPED:
        name = settings.__name__.removesuffix("Settings")
        assert getattr(sd, name) is settings
        assert name in dir(sd)


def host() -> list:
    """What a run could change in its process."""
    masks = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in ("sdpa", "eager")}
    levels = {name: logging.getLogger(name).level for name in ("DeepSpeed", "transformers", "datasets", "")}
    bars = transformers.logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    group, rng = torch.distributed.is_initialized(), torch.get_rng_state().tolist()
    patched = torch.nn.functional.linear, sys.excepthook
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    rest = [masks, levels, bars, group, rng, patched, handlers, torch.backends.cuda.cudnn_sdp_enabled()]
    return [dict(os.environ), [*warnings.filters], *rest]


@pytest.mark.slow
def test_two_runs_in_one_process(tmp_path):
    recipe = str(prepare(tmp_path))
    train = {"max_updates": 2, "checkpoint_every": 1}
    before = host()
    first = sd.train(recipe, train=train, method=sd.Swep(beta=1e-4), output_dir=tmp_path / "first")
    assert host() == before
    config = str(ds_config(tmp_path, 3))
    second = sd.train(recipe, train=train, method=sd.Mle(), ds_config=config, output_dir=tmp_path / "second")
    assert host() == before
    assert list(first.scores) == list(second.scores) == ["test"]
    assert (first.recipe.method, second.results.method) == (sd.Swep(beta=1e-4), "mle")
    assert first.recipe.train.learning_rate == 1e-3  # the recipe's
    assert first.report.is_file()
    transformers.AutoModelForQuestionAnswering.from_pretrained(first.model_dir)
    again = sd.train(recipe, train=train, method=sd.Swep(beta=1e-4), output_dir=tmp_path / "first")
    assert again.scores == first.scores
    assert "holds another run" in refused(sd.train, recipe, train=train, output_dir=tmp_path / "first")
    assert host() == before


@pytest.mark.slow
def test_no_tensor_of_a_run_stays_after_it(tmp_path):
    """At ZeRO-3 DeepSpeed keeps an engine's module in a list and in a cache of a class, and with it all of its memory;
    after an error, too."""
    recipe = str(prepare(tmp_path))
    configs = [str(ds_config(tmp_path, stage)) for stage in (0, 1, 2, 3)]
    script = ROOT / "tests" / "support" / "live_tensors.py"
    run_script(script, recipe, str(tmp_path / "train.json"), str(tmp_path), *configs)
    left = json.loads((tmp_path / "left.json").read_text())
    assert len(left) == 5
    assert set(left.values()) == {0}, left
    checked, _, trained = json.loads((tmp_path / "prepared.json").read_text())
    assert trained == checked  # the second stage begins without the first one


PROGRAM = """import sys
import swep_ds as sd
import swep_ds.analysis.report

swep_ds.analysis.report.write_report = lambda folder: ("", {})  # has tests of its own
run = sd.train(sys.argv[1], ds_config=sys.argv[2], output_dir=sys.argv[3], train={"max_updates": 1})
sys.stdout.write(f"F1 {run.scores['test']['f1']}\\n")  # at once: the other rank writes there, too
"""


@pytest.mark.slow
def test_all_ranks_of_a_launcher_train_one_run_together(tmp_path):
    assert "holds no results.json" in refused(lambda: sd.Run(tmp_path).scores)
    (tmp_path / "program.py").write_text(PROGRAM)
    words = str(prepare(tmp_path)), str(ds_config(tmp_path, 2)), str(tmp_path / "run")
    ended = run_script(tmp_path / "program.py", *words, ranks=2)
    run = sd.Run(tmp_path / "run")
    assert run.results.world_size == 2
    assert ended.stdout.count(f"F1 {run.scores['test']['f1']}") == 2


SECTIONS = {"model": {"name": "m"}, "data": {"train": "t", "eval": {"x": "y"}}}


def test_sections_are_laid_over_a_recipe(tmp_path):
    base = {"method": {"name": "swep", "beta": 0.5, "mle_weight": 0.25}, "train": {"epochs": 3, "learning_rate": 0.1}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(SECTIONS | base))
    path = str(tmp_path / "base.yaml")
    made = sd.Recipe.make(path, seed=4, train={"epochs": 1}, method={"beta": 0.1}, data={"eval": {"z": "w"}})
    assert (made.seed, made.train.epochs, made.train.learning_rate) == (4, 1, 0.1)
    assert made.method == sd.Swep(beta=0.1, mle_weight=0.25)
    assert (made.data.train, made.data.eval) == ("t", {"z": "w"})
    assert sd.Recipe.make(made, method=sd.Swep()).method == sd.Swep()
    assert sd.Recipe.make(made, method={"name": "mle"}).method == sd.Mle()
    # paths are as good as their text, and settings as their fields
    data = {"train": Path("t"), "eval": {"x": Path("y")}}
    made = sd.Recipe(model={"name": "m"}, method=sd.PriorAug(prior_variance=0.2), data=data)
    assert made == sd.Recipe(**SECTIONS, method={"name": "prior_aug", "prior_variance": 0.2})
    assert sd.Recipe.make("quickstart", data=data) == sd.Recipe.make("quickstart", data=SECTIONS["data"])


def test_wrong_settings_are_told_in_one_line():
    quickstart = sd.Recipe.make("quickstart")
    assert refused(sd.Swep, bta=1) == "SwepSettings: bta is not a field; did you mean 'beta'?"
    assert refused(sd.Recipe, **SECTIONS) == "Recipe: method is required: set it"
    fault = "Recipe: train.epoch is not a field; did you mean 'train.epochs'?"
    assert refused(sd.Recipe.make, quickstart, train={"epoch": 1}) == fault
    fault = "recipe quickstart: seed: -1: must be greater than or equal to 0; pretrain.train is required: set it"
    assert refused(sd.Recipe.make, "quickstart", pretrain={}, seed=-1) == fault
