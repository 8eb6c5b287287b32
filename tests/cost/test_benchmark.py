"""What a benchmark of updates says about each method, on a tiny model; no timing is judged."""

import json
import math
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from swep_ds.common.errors import InputError
from swep_ds.cost import candidates
from swep_ds.cost.candidates import _recorded_rise, largest_batch, sample
from swep_ds.cost.launches import PLAIN
from swep_ds.cost.scaling import COUNTS
from swep_ds.cost.suite import rank_by_rank
from tests.data.test_batches import ranks, windows
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import ds_config, prepare

BENCH = ROOT / "scripts" / "bench_training.py"
# forwards of the model per update; Adv-Aug runs it in each of its 5 ascent steps
EXPECTED = {"mle": 1, "adv_aug": 2 + 5, "swep": 2, "swep:joint": 2, "published": 3, "published:random": 3}


def bench(folder, *arguments: str, stage: int = 2, check: bool = True, script: Path = BENCH):
    recipe, config = str(prepare(folder)), str(ds_config(folder, stage))
    few = ["--updates", "2", "--warmup", "3", "--json", str(folder / "bench.json")]
    return run_script(script, "--recipe", recipe, "--ds_config", config, *few, *arguments, check=check)


@pytest.mark.slow
def test_methods_are_measured_side_by_side(tmp_path):
    ended = bench(tmp_path, "--methods", *list(EXPECTED)[:-1], stage=3)
    figures = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["name"]: row for row in figures["rows"]}
    assert {name: row["forwards"] for name, row in rows.items()} == EXPECTED
    d = 16  # of the tiny model, as its hidden width: two layers with bias, d -> d -> 2d
    with_noise = {"swep", "swep:joint", "published", "published:random"}
    assert {name: row["extra_parameters"] for name, row in rows.items() if row["extra_parameters"]} == dict.fromkeys(
        with_noise, 3 * d**2 + 3 * d
    )
    assert rows["mle"]["time_ratio"] == rows["mle"]["memory_ratio"] == 1
    assert math.isfinite(rows["published"]["time_ratio"])
    assert rows["published:random"]["time_ratio"] is None
    assert all(0 < row["state_bytes"] < row["peak_bytes"] for row in rows.values())
    # weights, gradients and Adam's two moments of the noise generator, 4 bytes each; padding and buckets aside
    extra = rows["swep"]["state_bytes"] - rows["mle"]["state_bytes"]
    assert extra >= 4 * 4 * (3 * d**2 + 3 * d)
    assert rows["swep"]["peak_bytes"] < rows["swep:joint"]["peak_bytes"]
    # random batches waste more of their positions
    assert rows["published"]["padding"] == rows["mle"]["padding"] < rows["published:random"]["padding"]
    speeds = {name: row["samples_per_second"] for name, row in rows.items()}
    times = speeds["swep"] / speeds["published:random"]
    assert figures["samples_per_second_to_published"]["swep"] == pytest.approx(times)
    assert set(figures["loop"]) == {"mle", "adv_aug", "swep", "swep:joint"}
    assert all(sum(row["shares"].values()) == pytest.approx(1) for row in figures["loop"].values())
    assert all(name in ended.stdout for name in rows)


def test_blocks_from_before_the_recording_and_frees_that_it_missed_do_not_count():
    blocks = [(1, 10, 100), (2, 99, -7), (3, 11, 50), (4, 12, 30), (6, 13, 20), (7, 12, 40), (8, 13, -20)]
    events = [{"name": "[memory]", "ts": ts, "args": {"Addr": a, "Bytes": size}} for ts, a, size in blocks]
    events.append({"name": "measured updates", "cat": "user_annotation", "ts": 5, "dur": 5})

    class Recorded:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text(json.dumps({"traceEvents": events}))

    # the free of 7 at address 99 belongs to no block; the 30 at 12 were freed unseen before 40 were put there
    assert _recorded_rise(Recorded()) == 20 + 40


def test_memory_is_measured_on_the_largest_batch_of_an_epoch():
    [batches] = ranks(windows(200), micro=2, max_updates=2)
    largest = largest_batch(batches).input_ids.numel()
    [whole] = ranks(windows(200), micro=2)
    assert largest == max(whole[number].input_ids.numel() for number in range(len(whole)))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_on_a_gpu_no_candidate_pays_for_the_first_use_of_a_shape(monkeypatch, on_gpu):
    calls = []
    monkeypatch.setattr(candidates.accelerator, "on_gpu", lambda: on_gpu)
    monkeypatch.setattr(candidates.ranks, "synchronize", lambda: None)

    def candidate(name):
        training = SimpleNamespace(update=lambda batch, number: calls.append((name, batch)))
        return SimpleNamespace(training=training, batches=["a", "b", "c"], seconds=[])

    pair = [candidate("mle"), candidate("swep")]
    candidates.measure(pair, warmup=1)
    in_turns = [(name, batch) for batch in "abc" for name in ("mle", "swep")]
    first = [(name, batch) for name in ("mle", "swep") for batch in "bc"]
    assert calls == first * on_gpu + in_turns
    assert [len(each.seconds) for each in pair] == [2, 2]


def test_a_sample_of_updates_stands_for_the_epoch():
    """One from each tenth of the updates by size: sizes average to the epoch's, to a step between two tenths."""
    [batches] = ranks(windows(400), micro=4, max_updates=3)
    sampled = sample(batches, warmup=2, updates=10)
    drawn = [sampled[number] for number in range(len(sampled))]
    assert [batch.sample_id.tolist() for batch in drawn[:2]] == [batch.sample_id.tolist() for batch in drawn[2:4]]
    [epoch] = ranks(windows(400), micro=4)
    rows = {tuple(epoch.windows(number)): epoch[number].input_ids.numel() for number in range(100)}
    sizes = sorted(rows[tuple(batch.sample_id.tolist())] for batch in drawn[2:])
    tenths = np.sort(list(rows.values())).reshape(10, 10)
    assert all(low <= size <= high for size, low, high in zip(sizes, tenths.min(1), tenths.max(1), strict=True))
    assert np.mean(sizes) == pytest.approx(tenths.mean(), rel=0.03)


COPY = """
import json, os, sys
_, source, _, target = sys.argv
if os.environ["RANK"] == "0":
    loop = json.load(open(source)) | {"ranks": int(os.environ["WORLD_SIZE"])}
    json.dump(loop, open(target, "w"))
"""


@pytest.mark.slow
def test_scaling_is_measured_on_one_and_two_ranks_and_modelled_beyond(tmp_path, capsys):
    bench(tmp_path, "--loop")
    loop = json.loads((tmp_path / "bench.json").read_text())
    assert (loop["ranks"], loop["width"]) == (1, 4)
    assert set(loop["loop"]) == {"mle", "swep:split", "swep:joint"}
    assert 1.9 < loop["flops"]["swep:split"] / loop["flops"]["mle"] < 2.2
    # --scaling starts --loop on 1 and 2 ranks: here a script that gives back what was measured
    (tmp_path / "copy.py").write_text(COPY)
    counts = [
        {"stage": k, "name": name, "all": 1000 + (0 if k == PLAIN else k)}
        for name in loop["loop"]
        for k in (PLAIN, 0, 1, 2, 3)
    ]
    (tmp_path / "counts.json").write_text(json.dumps({"operations": counts}))
    copying = [[str(tmp_path / "copy.py"), str(tmp_path / name)] for name in ("bench.json", "counts.json")]
    figures = rank_by_rank(*copying)
    assert figures["measured"] == [loop, loop | {"ranks": 2}]
    assert figures["operations"] == [[k, name, 1000 + k] for name in loop["loop"] for k in range(4)]
    assert {row["ranks"] for row in figures["model"]} == set(COUNTS)
    printed = capsys.readouterr().out
    assert "swep:split: 1.00 times the samples per second of 1 rank on 2" in printed
    assert all(f"{name} = " in printed for name in figures["assumptions"])


def test_scaling_starts_the_loop_with_the_same_options(monkeypatch):
    commands = []
    monkeypatch.setattr("swep_ds.cost.suite.rank_by_rank", lambda *both: commands.extend(both))
    options = {"--recipe": "quickstart", "--ds_config": "x.json", "--set": "train.precision=bf16"}
    options |= {"--updates": "5", "--warmup": "4"}
    monkeypatch.setattr(sys, "argv", [str(BENCH), "--scaling", *(word for pair in options.items() for word in pair)])
    runpy.run_path(str(BENCH))["bench"]()
    for command, kind in zip(commands, ("--loop", "--operations"), strict=True):
        assert command[:2] == [str(BENCH), kind]
        assert dict(zip(command[2::2], command[3::2], strict=True)) == options


# Shows a row for every operation: which ones are the slowest differs from run to run.
BENCH_WITH_ALL_ROWS = f"""
import runpy, sys
from swep_ds.cost import profile
profile.SHOWN = 10**6
sys.argv[0] = {str(BENCH)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_an_update_is_profiled(tmp_path):
    (tmp_path / "bench.py").write_text(BENCH_WITH_ALL_ROWS)
    ended = bench(tmp_path, "--profile", "--methods", "swep:split", script=tmp_path / "bench.py")
    rows = json.loads((tmp_path / "bench.json").read_text())["profile"]["swep:split"]
    calls = {row["name"]: row["calls"] for row in rows}
    # in both passes six linear layers in each of two layers, the answer's, and the noise generator's two: idle, and not
    assert calls["aten::addmm"] == 2 * (2 * 6 + 1 + 2)
    assert "swep:split: operations by their own time" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "no/such/file.json"], "--json no/such/file.json: there is no folder no/such: make it first"),
        (["--json", "/"], "--json /: is not a file: name one"),
        (["--updates", "1"], "--updates: 1 must be at least 2"),
        (["--scaling", "--set", "train.precision=autocast"], "--scaling: with train.precision autocast"),
        (["--methods", "mle", "ssmba"], "--methods ssmba: ssmba's update is mle's: measure mle"),
        (["--methods", "mle", "swap"], "'swap' is not a method; did you mean 'swep'?"),
        (["--loop", "--methods", "published"], "published: it has no engine: leave --loop, --profile and --op"),
    ],
)
def test_bad_arguments_are_reported_before_anything_is_loaded(monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["bench_training.py", *arguments])
    with pytest.raises(InputError, match=re.escape(message)):
        runpy.run_path(str(BENCH))["bench"]()


def test_an_epoch_that_is_too_short_is_reported(tmp_path):
    ended = bench(tmp_path, "--updates", "90", check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: an epoch has 6 updates, and 90 are asked for: lower --updates")
