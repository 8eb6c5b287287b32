"""Checkpoints whose bytes are right but whose content does not belong to the engine: found before any is loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import BertConfig

from swep_ds.common.settings import differences
from swep_ds.pipeline import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.checkpoint_files import read_manifest
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.conversion import find_mismatch, parameter_shapes
from swep_ds.training.engine import build_engine
from swep_ds.training.saved_state import FLATS, name_files, read_state
from tests.support import tiny_run
from tests.support.tiny_checkpoint import BATCH, LAYOUT, change_manifest, rewrite_state
from tests.support.tiny_objective import objective

MODEL, OPTIMIZER = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"
FLAT = FLATS[1]
WORD = "qa.model.bert.embeddings.word_embeddings.weight"


class Saved(NamedTuple):
    engine: Any
    tag: Path


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    with process_group():
        yield


@pytest.fixture(scope="module", params=[0, 1])
def whole(request, group, tmp_path_factory) -> Iterator[Saved]:
    """An engine of ZeRO 0 or 1 and its checkpoint of update 0; ZeRO-3 would leave torch's `linear` replaced here."""
    folder = tmp_path_factory.mktemp("saved")
    recipe = Recipe.load(str(tiny_run.prepare(folder)))
    job = prepare.prepare(recipe, str(tiny_run.ds_config(folder, request.param)))
    engine = build_engine(job.objective, job.config, recipe.train, 10)
    checkpoints = Checkpoints(folder / "checkpoints", 9, {}, LAYOUT | {"zero_stage": request.param}, BATCH)
    checkpoints.save(engine.deepspeed, TrainState(0))
    yield Saved(engine.deepspeed, checkpoints.tag(0))
    engine.destroy()


def mismatch(saved: Saved, *, same_layout: bool = True) -> str | None:
    return find_mismatch(saved.engine, saved.tag, read_manifest(saved.tag), same_layout=same_layout)


def test_what_the_engine_saved_is_without_mismatch(whole):
    assert mismatch(whole) is None
    assert mismatch(whole, same_layout=False) is None


def in_model(change: Callable[[dict], Any]) -> tuple[str, Callable]:
    return MODEL, change


def in_optimizer(change: Callable[[dict], Any]) -> tuple[str, Callable]:
    """A change at ZeRO-1."""
    return OPTIMIZER, lambda state: change(state["optimizer_state_dict"])


BOTH = {
    "an empty model": in_model(dict.clear),
    "no module": in_model(lambda s: s.update(module=[1])),
    "no schedule": in_model(lambda s: s.pop("lr_scheduler")),
    "another schedule": in_model(lambda s: s.update(lr_scheduler={"last_epoch": "x"})),
    "another update": in_model(lambda s: s.update(global_steps=3)),
    "no number": in_model(lambda s: s.update(global_samples="many")),
    "a negative number": in_model(lambda s: s.update(skipped_steps=-1)),
}
STAGES = {
    0: {
        "a name": in_model(lambda s: s["module"].update(more=s["module"].pop(WORD))),
        "a shape": in_model(lambda s: s["module"].update({WORD: s["module"][WORD].T})),
        "no tensor": in_model(lambda s: s["module"].update({WORD: [1.0]})),
        "no numbers": in_model(lambda s: s["module"].update({WORD: s["module"][WORD].long()})),
        "nan": in_model(lambda s: s["module"][WORD].fill_(float("nan"))),
        "no state": in_model(lambda s: s.update(optimizer=None)),
        "moments of another length": in_model(lambda s: s["optimizer"].update(state={0: {"exp_avg": torch.ones(2)}})),
    },
    1: {
        "a name": in_model(lambda s: s["param_shapes"][0].update(more=s["param_shapes"][0].pop(WORD))),
        "a shape": in_model(lambda s: s["param_shapes"][0].update({WORD: torch.Size((16, 200))})),
        "no shapes": in_model(lambda s: s.update(param_shapes=None)),
        "nothing": (OPTIMIZER, dict.clear),
        "too short": in_optimizer(lambda s: s.update({FLAT: [torch.ones(5)]})),
        "too long": in_optimizer(lambda s: s.update({FLAT: [torch.ones(10**5)]})),
        "two tensors": in_optimizer(lambda s: s[FLAT].append(torch.ones(5))),
        "another type": in_optimizer(lambda s: s.update({FLAT: [s[FLAT][0].double()]})),
        "nan": in_optimizer(lambda s: s[FLAT][0].data.fill_(float("inf"))),
        "no state": in_optimizer(lambda s: s.pop("base_optimizer_state")),
        "moments of another length": in_optimizer(
            lambda s: s["base_optimizer_state"].update(state={0: {"step": 1, "exp_avg": torch.ones(2)}})
        ),
        "a wrong step": in_optimizer(lambda s: s["base_optimizer_state"].update(state={0: {"step": "x"}})),
        "no loss scale": in_optimizer(lambda s: s.update(loss_scaler=1.0)),
    },
}


def test_right_bytes_of_wrong_content_are_found_before_they_are_loaded(whole):
    stage = whole.engine.zero_optimization_stage()
    before = {name: weight.clone() for name, weight in whole.engine.module.named_parameters()}
    for what, (name, change) in (BOTH | STAGES[stage]).items():
        content = (whole.tag / name).read_bytes()
        state = read_state(whole.tag / name, mapped=False)
        change(state)
        rewrite_state(whole.tag, name, state)
        said = mismatch(whole)
        assert said is not None, what
        assert said.startswith(f"{whole.tag}: the checkpoint is damaged ("), what
        assert "\n" not in said
        rewrite_state(whole.tag, name, None)
        assert mismatch(whole) is not None
        (whole.tag / name).write_bytes(content)
        rewrite_state(whole.tag, name, read_state(whole.tag / name, mapped=False))
    assert mismatch(whole) is None
    assert all(torch.equal(weight, before[name]) for name, weight in whole.engine.module.named_parameters())


def test_another_layout_than_the_files_have(whole):
    for layout in ({"world_size": 2}, {"world_size": 2**20}, {"zero_stage": 3}, {"zero_stage": 2, "world_size": 7}):
        before = (whole.tag / "complete.json").read_text()
        change_manifest(whole.tag, lambda content, layout=layout: content["layout"].update(layout))
        if whole.engine.zero_optimization_stage() or "zero_stage" in layout:  # at ZeRO-0 rank 0 writes everything
            assert "its files are not those of" in mismatch(whole, same_layout=False)
        else:
            assert mismatch(whole, same_layout=False) is None
        (whole.tag / "complete.json").write_text(before)


@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (0, 3), (1, 1), (2, 3), (3, 2)])
def test_files_are_named_by_rank(stage, ranks):
    numbers = range(ranks)
    models = [f"zero_pp_rank_{number}_mp_rank_00_model_states.pt" for number in numbers] if stage == 3 else [MODEL]
    for prefix in ("", "bf16_"):
        optimizers = [f"{prefix}{OPTIMIZER.replace('_0_', f'_{number}_')}" for number in numbers] if stage else []
        assert name_files([*models, *optimizers][::-1], stage, ranks) == (models, optimizers)
        with pytest.raises(ValueError, match="its files are not those of"):
            name_files([*models, *optimizers, "more.pt"], stage, ranks)


def test_models_of_as_many_weights_are_distinguished():
    mine = objective("mle")
    saved = prepare.architecture(mine)
    assert prepare.architecture(objective("mle")) == saved
    config: BertConfig = mine.qa.model.config
    config.num_attention_heads = 4
    config.transformers_version = "0.1"
    config._name_or_path = "elsewhere"
    assert differences(saved, prepare.architecture(mine)) == "model config num_attention_heads 2 there, 4 here"
    config.num_attention_heads = 2
    layer = mine.qa.model.bert.encoder.layer[0].intermediate.dense
    shape = list(layer.weight.shape)
    layer.weight = torch.nn.Parameter(layer.weight.T)
    said = differences(saved, prepare.architecture(mine))
    assert said.endswith(f"intermediate.dense.weight {shape} there, {shape[::-1]} here")
    assert ";" not in said
    assert sum(map(len, parameter_shapes(mine).values())) > 0
