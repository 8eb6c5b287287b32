"""What a CUDA graph replays trains what updates without graphs do; `tests/support/graph_stand_in.py` is the GPU."""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from swep_ds.methods.base import MicroStep, Pass
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from swep_ds.training.graphs import PATIENCE, Graphs, can_replay
from swep_ds.training.loop import observe, run_update, seed_dropout
from tests.support.engine_memory import make_config, make_objective
from tests.support.graph_stand_in import record, stand_in_graphs
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective

UPDATES = 16  # two shapes, each with two kinds of measurements, so that each is captured once and replayed twice
METHODS_AND_SETTINGS = {
    "mle": (),
    "symnoise": (),
    "swep": ("method.beta_schedule=linear_to_zero", "method.initialisation=default", "train.precision=bf16"),
    "swep, held": ("method.kl_target=30", "method.adversarial=true", "train.execution=joint"),
    "fgm": (),
    "adv_aug": (),
    "r_drop": (),
    "word_dropout": ("train.gradient_accumulation_steps=3",),
    "prior_aug": ("train.precision=autocast", "train.label_smoothing=0.1"),
}


def trained(name: str, settings: tuple[str, ...], graphs: AbstractContextManager | None = None):
    """The weights after some updates of two shapes, all statistics, and the engine."""
    method = name.partition(",")[0]
    fixed = ["train.micro_batch_size=3", "train.learning_rate=1e-3", f"method.name={method}"]
    recipe = Recipe.load("quickstart", [*fixed, *settings])
    torch.manual_seed(0)
    objective = make_objective("bert", recipe)
    parts = objective.parts(recipe.train.execution)
    with graphs or nullcontext():
        engine = build_engine(objective, make_config(recipe, 1, backwards=len(parts)), recipe.train, UPDATES)
    engine.train()
    accumulation = recipe.train.gradient_accumulation_steps
    seen = []
    for update in range(UPDATES):
        lengths = (12, 7, 9) if update % 2 else (6, 6, 4)
        micro_batches = [batch(lengths, seed=10 * update + k, dtype=torch.float32) for k in range(accumulation)]
        seed_dropout(0, update)
        step = MicroStep(update, update / UPDATES, measure=update % 4 < 2, compare=update % 4 < 1)
        statistics = run_update(engine, iter(micro_batches), accumulation, step)
        observe(engine.module.method, statistics)
        seen += statistics
    weights = [parameter.detach().clone() for parameter in engine.module.parameters()]
    engine.destroy()
    return weights, seen, engine


@pytest.mark.parametrize("name", METHODS_AND_SETTINGS)
def test_replays_train_what_updates_without_graphs_do_to_the_last_bit(name):
    settings = METHODS_AND_SETTINGS[name]
    with process_group():
        expected, expected_statistics, _ = trained(name, settings)
        weights, statistics, engine = trained(name, settings, stand_in_graphs(PATIENCE))
    assert all(map(torch.equal, weights, expected))
    for mine, theirs in zip(statistics, expected_statistics, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert float(mine[key]) == pytest.approx(float(value), rel=1e-7), key
    accumulates = "gradient_accumulation_steps" in "".join(settings)
    assert len(engine.graphs._graphs) == (8 if accumulates else 4)


@pytest.mark.parametrize("fails", [True, False])
def test_what_cannot_be_captured_or_is_one_too_many_trains_without_a_graph(monkeypatch, caplog, fails):
    def capture(body):
        if fails:
            body()
            raise RuntimeError("operation not permitted when stream is capturing")
        return record(body)

    monkeypatch.setattr("swep_ds.training.graphs.MOST", 1)
    settings = ("train.gradient_accumulation_steps=2",)
    with process_group():
        expected, _, _ = trained("swep", settings)
        weights, _, engine = trained("swep", settings, stand_in_graphs(PATIENCE, capture))
    assert all(map(torch.equal, weights, expected))
    assert len(engine.graphs._graphs) == (0 if fails else 1)
    if fails:
        said = [record.getMessage() for record in caplog.records if "cannot be captured" in record.getMessage()]
        assert len(said) == 3  # each kind of update is tried once
        assert "(RuntimeError: operation not permitted when stream is capturing; capture, line " in said[0]


def test_windows_without_padding_and_passes_of_another_weight_have_a_graph_of_their_own():
    """A graph of windows without padding reads no mask: tokens would attend to the padding of others."""
    recorded = []

    def record_names(body):
        recorded.append(body)
        return lambda: None, body()

    flat = SimpleNamespace(begun=False, groups=[])
    engine = SimpleNamespace(module=objective("mle"), flat=flat, run_passes=lambda *_: {"loss": torch.zeros(())})
    with process_group():
        graphs = Graphs(engine, record_names, patience=1)
        for lengths in ((9, 9), (9, 7), (9, 9), (9, 5)):
            flat.begun = False
            assert graphs.run(batch(lengths)._replace(lengths=lengths), MicroStep(0))
        assert len(recorded) == 2
        engine.module.method.passes = lambda progress: [Pass("clean", 1 - progress)]
        for progress in (0.0, 0.5, 0.5):
            flat.begun = False
            assert graphs.run(batch((9, 5))._replace(lengths=(9, 5)), MicroStep(0, progress))
    assert len(recorded) == 3


def test_what_the_host_decides_anew_in_every_update_is_never_frozen():
    class Own(type(objective("swep").method)):  # what its passes read is not known
        pass

    plain = objective("swep")
    assert can_replay(plain)
    assert not can_replay(objective("freelb"))  # reads the state of the generator
    plain.method.__class__ = Own
    assert not can_replay(plain)
    dropping = objective("mle")
    dropping.qa.model.config.encoder_layerdrop = 0.1
    assert not can_replay(dropping)
