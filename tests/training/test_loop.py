"""What the loop does around an update: makes batches ahead, keys dropout, measures (a line of metrics and one of
health), notices what is not finite."""

import itertools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.methods.objective import NO_NOISE
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training import loop
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.instruments import NUMBERS, Instruments, Stopwatch
from swep_ds.training.loop import AHEAD, prefetch, seed_dropout
from swep_ds.training.settings import TrainSection
from tests.data import test_batches
from tests.support import tiny_run
from tests.support.engine_runs import Saves, train_here

FAULTY = 3  # the update with the gradient


@contextmanager
def overflowing(engine) -> Iterator[None]:
    """One element of one gradient of update FAULTY is infinite; its loss is finite."""
    [parameter, *_] = engine.module.qa.parameters()

    def spoil(gradient: Tensor) -> Tensor:
        if engine.deepspeed.global_steps == FAULTY - 1:
            gradient = gradient.clone()
            gradient.view(-1)[0] = torch.inf
        return gradient

    parameter.register_hook(spoil)
    yield


@pytest.mark.parametrize("first", [0, 29, 30])
def test_batches_made_ahead_are_those_of_the_data_set_in_its_order(first):
    [batches] = test_batches.ranks(test_batches.windows(19), micro=2, epochs=3)  # 10 micro-steps an epoch
    yielded = list(prefetch(batches, first, torch.device("cpu")))
    assert len(yielded) == 30 - first
    for number, batch in enumerate(yielded, first):
        for mine, expected in zip(batch, batches[number], strict=True):
            assert torch.equal(mine, expected) if isinstance(mine, Tensor) else mine == expected


def test_no_more_than_a_few_are_made_ahead_and_closing_ends_the_thread(monkeypatch):
    [batches] = test_batches.ranks(test_batches.windows(40), micro=2)
    asked, get = [], type(batches).__getitem__
    monkeypatch.setattr(type(batches), "__getitem__", lambda self, number: asked.append(number) or get(self, number))
    before = set(threading.enumerate())
    yielded = prefetch(batches, 0, torch.device("cpu"))
    for _ in range(3):
        next(yielded)
    while len(asked) < 3 + AHEAD:  # the thread makes them when it comes to run
        time.sleep(0.01)
    yielded.close()
    assert not set(threading.enumerate()) - before
    assert asked == list(range(3 + AHEAD))


def test_dropout_differs_by_seed_update_and_rank_and_repeats(monkeypatch):
    drawn = []
    for rank, seed, update in [*itertools.product((0, 1), repeat=3)] * 2:
        monkeypatch.setattr("swep_ds.ranks.rank", lambda rank=rank: rank)
        seed_dropout(seed, update)
        drawn.append(tuple(torch.rand(4).tolist()))
    assert len(set(drawn)) == 8
    assert drawn[:8] == drawn[8:]


def test_an_update_has_its_place_in_the_run_whatever_the_update_that_a_start_resumes_from(monkeypatch):
    """The loop around stand-ins, from the third of ten updates on; an update is two micro-batches of one window."""
    [batches] = test_batches.ranks(test_batches.windows(19), micro=1, accumulation=2, seed=5)
    before = TrainState(updates=2, windows=4, tokens=30, method={"theta": 1.0})
    ran, averaged, saved, loaded = [], [], [], []

    def run_update(engine, micro_batches, accumulation, step, phase) -> list:
        rows = [int(row) for _ in range(accumulation) for row in windows_of(next(micro_batches))]
        ran.append((step, rows, torch.initial_seed()))
        return []

    def windows_of(batch) -> Tensor:
        return batch.sample_id[batch.weight > 0]

    def report(state, saves, validate):
        return state, validate and validate()

    watch = SimpleNamespace(phase=lambda name: nullcontext())
    instruments = SimpleNamespace(begin=lambda number: None, add=lambda statistics: None, report=report, watch=watch)
    monkeypatch.setattr(loop, "Instruments", lambda *_: instruments)
    monkeypatch.setattr(loop, "run_update", run_update)
    monkeypatch.setattr(loop, "note_checkpoint", lambda number: None)
    method = SimpleNamespace(load=loaded.append, state=lambda: {"theta": 2.0}, watches=None)
    engine = SimpleNamespace(train=lambda: None, module=SimpleNamespace(method=method), deepspeed=None)
    checkpoints = SimpleNamespace(average=SimpleNamespace(add=averaged.append))
    checkpoints.save = lambda engine, done, score: saved.append((done.updates, done.method, score))
    section = TrainSection(checkpoint_every=4, log_every=3)
    left, seeds = range(2, 10), []
    with process_group():
        done = loop.train(engine, batches, section, checkpoints, None, before, lambda: "score")
        for update in left:
            seed_dropout(5, update)
            seeds.append(torch.initial_seed())
    assert loaded == [before.method]
    assert [(step.update, step.progress) for step, _, _ in ran] == [(update, update / 10) for update in left]
    assert [step.update + 1 for step, _, _ in ran if step.measure] == [3, 4, 6, 8, 9, 10]
    assert [sorted(rows) for _, rows, _ in ran] == [sorted(batches.windows(update)) for update in left]
    assert [seed for *_, seed in ran] == seeds
    assert averaged == list(range(3, 11))
    assert saved == [(update, {"theta": 2.0}, "score") for update in (4, 8, 10)]
    rows = [row for _, rows, _ in ran for row in rows]
    assert (done.updates, done.windows, done.tokens) == (10, 4 + len(rows), 30 + batches.lengths[rows].sum())


def test_a_method_gets_the_mean_over_ranks_and_micro_batches(monkeypatch):
    seen = []
    method = SimpleNamespace(watches="kl", observe=lambda mean: seen.append(mean.item()))
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda mean: mean.add_(10))  # the other rank's
    loop.observe(method, [{"kl": torch.tensor(1.0)}, {"kl": torch.tensor(3.0)}])
    assert seen == [6.0]


def test_what_the_noise_does_is_measured_at_every_20th_update_and_a_run_shows_its_schedules(tmp_path):
    settings = ["train.max_updates=41", "train.micro_batch_size=2", "train.warmup_fraction=0.11"]
    settings += ["method.beta_schedule=linear_to_zero", "method.noise_learning_rate=5e-3"]
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), settings)
    with process_group():
        train_here(recipe, tiny_run.ds_config(tmp_path, 0), tmp_path, Saves())
    lines = tiny_run.metrics(tmp_path)
    assert len(lines) == 41
    assert [line["update"] for line in lines if "gold_nll_learned" in line] == [1, 21, 41]
    assert [line["beta"] for line in lines] == pytest.approx([1e-3 * (1 - update / 41) for update in range(41)])
    rates = [1e-3 * min(update / 5, (41 - update) / 36) for update in range(41)]  # 4.51 updates of warm-up are 5
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)


def diverged(folder, stage: int, said: str, *settings: str, inside=nullcontext) -> list[int]:
    """The updates that a run saves until it ends with what it `said`."""
    recipe = Recipe.load(str(tiny_run.prepare(folder)), ["method.name=mle", *settings])
    config, saves = tiny_run.ds_config(folder, stage), Saves()
    with process_group(), pytest.raises(TrainingDiverged, match=said):
        train_here(recipe, config, folder, saves, logs=False, inside=inside)
    return saves.updates


@pytest.mark.parametrize(("stage", "precision"), [(2, "bf16"), (3, "fp32")])
def test_an_update_with_an_infinite_gradient_is_named_and_nothing_is_saved_after_it(tmp_path, stage, precision):
    settings = [f"train.precision={precision}", "train.log_every=100", "train.checkpoint_every=2"]
    said = f"by update 4 .*, the gradient not finite first in update {FAULTY}"
    assert diverged(tmp_path, stage, said, *settings, "train.max_updates=6", inside=overflowing) == [2]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_weights_that_an_update_breaks_are_not_saved(tmp_path, stage):
    """At ZeRO-2 the norm of the gradient is finite, and says nothing of the weights."""
    settings = ["train.weight_decay=1e300", "train.max_updates=3", "train.checkpoint_every=1"]
    assert diverged(tmp_path, stage, "by update 1 ", *settings, "train.warmup_fraction=0") == []


def test_on_a_gpu_the_logged_updates_passes_are_timed_by_events(monkeypatch):
    clock, waits = itertools.count(), []  # it ticks with every event

    def event(enable_timing: bool) -> SimpleNamespace:
        made = SimpleNamespace(synchronize=lambda: waits.append(made))
        made.record = lambda: setattr(made, "at", next(clock))
        made.elapsed_time = lambda later: 1000.0 * (later.at - made.at) if waits else None  # in ms
        return made

    monkeypatch.setattr(ranks, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr("swep_ds.training.instruments.get_accelerator", lambda: SimpleNamespace(Event=event))
    watch = Stopwatch()
    for update, passes in ((1, 5), (2, 2)):
        watch.next_update(update)
        for _ in range(passes):
            with watch.phase("forward"):
                pass
    assert watch.read()[2] == 2.0
    assert len(waits) == 1


def test_a_watch_counts_earlier_starts_and_means_over_updates(monkeypatch):
    now = [50.0]
    monkeypatch.setattr("swep_ds.training.instruments.time", SimpleNamespace(perf_counter=lambda: now[0]))
    watch = Stopwatch(100.0)
    for update, seconds in ((1, 1.0), (2, 3.0)):
        watch.next_update(update)
        for phase, share in (("data", 0.25), ("forward", 0.5), ("step", 0.25)):
            with watch.phase(phase):
                now[0] += share * seconds
    step, data, forward, memory = watch.read()
    assert (step, data, forward) == (2.0, 0.5, 1.5)  # the forward is of the last update
    assert watch.seconds == 104.0
    assert memory * 2**20 > psutil.Process().memory_info().rss / 2  # it is the peak, which lags a little
    watch.next_update(3)
    now[0] += 7.0
    assert watch.read()[:2] == [7.0, 0.0]


@pytest.fixture
def instruments(monkeypatch):
    """Rank 0 of four; the other ranks' numbers differ from its own by `others`."""
    monkeypatch.setattr("swep_ds.ranks.group._hosts", ["a", "a", "b", "b"])
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    monkeypatch.setattr(ranks, "rank", lambda: 0)
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(ranks, "synchronize", lambda: None)
    method = SimpleNamespace(remark=lambda means, progress: None)
    engine = SimpleNamespace(learning_rate=0.5, grad_norm=None, module=SimpleNamespace(method=method))
    engine.read = lambda: {"grad_norm": 3.0, "noise_grad_norm": math.inf}
    engine.has_finite_weights = lambda: True
    tracker = SimpleNamespace(lines=[], remarks=[], health=[])
    tracker.log = lambda state, means, remark: (tracker.lines.append(means), tracker.remarks.append(remark))
    tracker.log_health = lambda update, line: tracker.health.append(line)
    made = Instruments(engine, SimpleNamespace(updates=9), TrainSection(), tracker, TrainState())
    made.engine, made.tracker, made.others = engine, tracker, [{}, {}, {}]
    monkeypatch.setattr(made.watch, "read", lambda: [1.0, 0.1, 0.2, 500.123456])

    def gather(everyone: torch.Tensor, mine: torch.Tensor) -> None:
        names = [*sorted(made._sums), *NUMBERS, "cost", "finite"]
        rows = [
            [rank.get(name, value) for name, value in zip(names, mine.tolist(), strict=True)] for rank in made.others
        ]
        everyone.copy_(torch.tensor([mine.tolist(), *rows], dtype=mine.dtype).flatten())

    monkeypatch.setattr("torch.distributed.all_gather_into_tensor", gather)
    return made


def update(instruments, number: int, *losses: float, saves: bool = False, norm: float | None = None, **more) -> dict:
    """The line of an update with micro-batches of these losses."""
    instruments.begin(number)
    instruments.engine.grad_norm = norm
    first, *others = [{"loss": torch.tensor(loss)} for loss in losses]
    instruments.add([first | {name: torch.tensor(value) for name, value in more.items()}, *others])
    instruments.report(TrainState(number), saves, None)
    return instruments.tracker.lines[-1]


def test_a_line_has_the_means_over_ranks_and_updates_since_the_line_before(instruments):
    instruments.others[0] = {"loss": 6.0, "mu": 9.0, "data_seconds": 0.3}
    instruments.begin(1)
    instruments.add([{"loss": torch.tensor(1.0)}])
    line = update(instruments, 2, 2.0, mu=5.0, mu_spread=9.0)
    means = {"loss": (3 * 3 + 6) / 4 / 2, "mu": (3 * 5 + 9) / 4, "mu_spread": 3.0}  # the root of the mean square
    assert line == means | {"learning_rate": 0.5, "grad_norm": 3.0}
    health = {"step_seconds": [1.0] * 4, "data_seconds": [0.1, 0.3, 0.1, 0.1], "forward_seconds": [0.2] * 4}
    assert instruments.tracker.health == [health | {"memory_mib": [500.1] * 4, "not_finite": []}]
    instruments.others[0] = {}
    assert update(instruments, 3, 4.0, 2.0)["loss"] == 3.0


def test_a_noisy_pass_that_equals_the_clean_one_is_remarked_while_all_ranks_have_none(instruments):
    assert "unperturbed" not in update(instruments, 1, 1.0, unperturbed=1.0)
    instruments.others[0] = {"unperturbed": 0.0}
    assert "unperturbed" not in update(instruments, 2, 1.0, unperturbed=1.0)
    assert instruments.tracker.remarks == [NO_NOISE, None]


def test_a_line_has_the_rate_of_its_update_and_a_run_no_seconds_of_validation(instruments, monkeypatch):
    now = [instruments.watch.started]
    instruments._clock = lambda: 3 * now[0]  # three busy threads
    instruments._began, instruments._before = 3 * now[0], TrainState(1, compute_seconds=500.0)
    monkeypatch.setattr("swep_ds.training.instruments.time", SimpleNamespace(perf_counter=lambda: now[0]))
    remarks = []
    instruments.engine.module.method.remark = lambda means, progress: remarks.append(progress)

    def validate() -> dict:
        now[0] += 1000.0
        return {"exact_match": 40.0, "f1": 50.0, "total": 3}

    for number in (3, 6):
        instruments.begin(number)
        instruments.engine.learning_rate = 0.1 * number  # the engine's step moves on
        instruments.add([{"loss": torch.tensor(1.0)}])
        now[0] += 5.0
        state, score = instruments.report(TrainState(number), True, validate)
    assert (state.seconds, score["f1"]) == (10.0, 50.0)
    assert state.compute_seconds == pytest.approx(500 + 4 * 30)  # four ranks, after an earlier start
    first, second = instruments.tracker.lines
    assert (first["learning_rate"], second["learning_rate"]) == (0.5, pytest.approx(0.3))
    assert (second["validation_exact_match"], second["validation_f1"]) == (40.0, 50.0)
    assert remarks == [3 / 9, 6 / 9]


def test_what_is_not_finite_names_its_rank_and_its_update(instruments):
    instruments.others[1] = {"loss": math.nan}
    with pytest.raises(TrainingDiverged, match=r"by update 7 \(loss nan, .* not finite on rank 2, host b\): lower"):
        update(instruments, 7, 1.0)
    assert instruments.tracker.health[0]["not_finite"] == [2]
    instruments.others[1] = {"finite": 0.0}  # its loss was finite before its weights ceased to be
    with pytest.raises(TrainingDiverged, match="not finite on rank 2, host b"):
        update(instruments, 7, 1.0, saves=True)
    instruments.others[1] = {}
    with pytest.raises(TrainingDiverged, match=r"gradient norm 3\.0, the gradient not finite first in update 6\): "):
        update(instruments, 6, 1.0, norm=math.inf)
    assert instruments.tracker.lines == []
