"""Runs that resume on other ranks or at another ZeRO stage, and the layouts that are converted.

Every chain of starts is compared with an uninterrupted run of the same recipe, without dropout, whose masks differ
between ranks.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.functional import pad

from swep_ds.common.errors import InputError
from swep_ds.training.conversion import _set_steps, copy_parts
from swep_ds.training.deepspeed_files import MOMENTS, WEIGHTS, Part, find_shares
from tests.support.fork_server import run_script
from tests.support.tiny_run import SEVERAL_RUNS, WITHOUT_GRADIENT, ds_config, losses, metrics, prepare

UPDATES, EVERY, STOPS = 6, 2, (3, 5)  # the first and second start stop after 3 and 5: the next resumes from 2 and 4
OPTIONS = {
    "": {},
    "offload": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "aligned": {"parameter_alignment": True},
}
# (ranks, ZeRO stage) of the three starts of a run. Stage 1 has the layout of stage 2, and the pairs of stages that are
# not listed consist of the same two halves: reading a layout, and writing one.
BY_RANKS = {"ranks-0": [(2, 0), (1, 0), (2, 0)]}
BY_RANKS |= {"both": [(2, 1), (1, 3), (2, 2)], "offload": [(2, "3-offload"), (1, 2), (2, "3-offload")]}
BY_RANKS |= {"t5": [(2, 3), (1, 1), (2, 3)], "bf16": [(2, 2), (1, 3), (2, 1)]}
BY_STAGE = {"by-stage": [(2, 0), (2, "2-aligned"), (2, 0)]}
# largest difference of losses; in bf16 a right conversion differed by 2.5e-4, and one that zeroes moments or rounds
# weights by 7e-3 or more
TOLERANCE = {"bf16": 1e-3}


def spread(stage: int, whole: dict[str, torch.Tensor], groups: list[list[str]], ranks: int, gap: int) -> list[Part]:
    """Parts of all ranks: flat tensors by DeepSpeed's rules in plain PyTorch, and their shares from `find_shares`."""
    shapes = [{name: whole[name].shape for name in group} for group in groups]
    flats: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for group in groups:
        if stage == 3:
            chunks = [pad(whole[name].flatten(), (0, -whole[name].numel() % ranks)).chunk(ranks) for name in group]
            pieces = [torch.cat([chunk[rank] for chunk in chunks]) for rank in range(ranks)]
        else:
            end_to_end = torch.cat([pad(whole[name].flatten(), (0, gap)) for name in group])
            pieces = pad(end_to_end, (0, -end_to_end.numel() % (2 * ranks))).chunk(ranks)
        for rank, piece in enumerate(pieces):
            flats[rank].append(piece.clone())
    gaps = [[gap] * len(group) for group in groups]
    sizes = [flat.numel() for flat in flats[0]]
    return [
        Part(
            find_shares(stage, shapes, rank, ranks, sizes=sizes, gaps=gaps),
            [{WEIGHTS: flat, MOMENTS[0]: -flat, MOMENTS[1]: 2 * flat} for flat in flats[rank]],
        )
        for rank in range(ranks)
    ]


layout = st.tuples(st.sampled_from([1, 3]), st.integers(1, 5), st.integers(0, 3))
sizes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=2).map(tuple), min_size=1, max_size=6)


@settings(max_examples=50)
@given(sizes=sizes, source=layout, target=layout, cut=st.integers(1, 6))
def test_every_element_of_every_parameter_is_converted(sizes, source, target, cut):
    whole = {f"p{i}": torch.randn(size) for i, size in enumerate(sizes)}
    group, groups = [list(whole)], [part for part in (list(whole)[:cut], list(whole)[cut:]) if part]
    saved = spread(source[0], whole, groups if source[0] == 3 else group, *source[1:])
    kept = spread(target[0], {name: torch.zeros_like(value) for name, value in whole.items()}, group, *target[1:])
    for part, expected in zip(kept, spread(target[0], whole, group, *target[1:]), strict=True):
        copy_parts(saved, part, Path("tag"))
        for mine, right in zip(part.flats, expected.flats, strict=True):
            assert all(torch.equal(mine[key], right[key]) for key in right)


def test_a_layout_that_does_not_hold_everything_is_refused():
    whole = {"a": torch.ones(7), "b": torch.ones(5)}
    saved = spread(3, whole, [["a", "b"]], 2, 0)
    with pytest.raises(InputError, match=r"tag: the checkpoint has 4 of 7 elements of a: resume on the number of"):
        copy_parts(saved[:1], spread(1, whole, [["a", "b"]], 1, 0)[0], Path("tag"))


@pytest.mark.parametrize("fused", [True, None])
def test_steps_count_where_the_optimizer_expects_them(fused):
    flats = [torch.empty(3, device="meta"), torch.empty(2, device="meta")]
    optimizer = SimpleNamespace(
        defaults={"fused": fused}, param_groups=[{"params": flats}], state={flat: {} for flat in flats}
    )
    step = torch.tensor(4.0)
    _set_steps(SimpleNamespace(basic_optimizer=optimizer, zero_optimization_stage=lambda: 1), step)
    steps = [optimizer.state[flat]["step"] for flat in flats]
    assert all(step.device.type == ("meta" if fused else "cpu") for step in steps)
    assert len({id(tensor) for tensor in (*steps, step)}) == 3


def start(folder: Path, name: str, ranks: int, stage: int | str, *changes: str, **more) -> dict:
    """A run for `several_runs.py`. The recipe's split is for 2 ranks; a single rank has to find another."""
    sets = [f"train.max_updates={UPDATES}", f"train.checkpoint_every={EVERY}", "train.micro_batch_size=3"]
    sets += ["method.kl_target=4000", "method.noise_learning_rate=5e-3", "method.noise_max_grad_norm=0.3"]
    if more.pop("average", True):
        sets += ["train.average=ema", "train.average_decay=0.8"]
    if name == "bf16":
        sets.append("train.precision=bf16")
    return {
        "recipe": str(folder / f"model-{'t5' if name == 't5' else 'bert'}" / "recipe.yaml"),
        "set": [*sets, *changes],
        "ds_config": str(ds_config(folder, int(str(stage)[0]), **OPTIONS[str(stage)[2:]])),
        "output_dir": str(folder / more.pop("output", name)),
        **more,
    }


def uneven(folder: Path, name: str, ranks: int) -> dict:
    """Fewer windows than an update takes, and fewer to evaluate on than there are ranks."""
    few = ("data.max_train_examples=3", "data.max_eval_examples=1", "train.epochs=3", f"train.max_updates={UPDATES}")
    return start(folder, name, ranks, 2, *few, f"train.gradient_accumulation_steps={4 // ranks}")


def make(folder: Path, ranks: int, runs: list[dict]) -> str:
    (folder / "runs.json").write_text(json.dumps(runs))
    return run_script(SEVERAL_RUNS, str(folder / "runs.json"), ranks=ranks).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All chains and the uninterrupted runs, in three launches; said-<n> is what the n-th printed."""
    folder = tmp_path_factory.mktemp("conversion")
    for architecture in ("bert", "t5"):
        (folder / f"model-{architecture}").mkdir()
        prepare(folder / f"model-{architecture}", architecture=architecture)
    launches = [[], [], []]
    # uninterrupted runs before any ZeRO-3: DeepSpeed leaves torch's `linear` replaced by one that rounds differently
    launches[0] += [start(folder, name, 2, 2, output=f"whole-{name}") for name in ("bert", "t5", "bf16")]
    finished = folder / "whole-bf16" / "checkpoints"  # converted for one rank at ZeRO-3, and back for two
    launches[1].append(start(folder, "bf16", 1, 3, output="over", resume=str(finished), saves_first=True))
    over = folder / "over" / "checkpoints"
    launches[2].append(start(folder, "bf16", 2, 2, output="back", resume=str(over), saves_first=True))
    launches[0].append(uneven(folder, "uneven-2", 2))
    launches[1].append(uneven(folder, "uneven-1", 1))
    for number, stop in enumerate((*STOPS, None)):
        for name, starts in BY_RANKS.items():
            launches[number].append(start(folder, name, *starts[number], stop_after=stop))
    for name, starts in BY_STAGE.items():
        launches[2] += [
            start(folder, name, *layout, stop_after=s) for layout, s in zip(starts, (*STOPS, None), strict=True)
        ]
    # another batch in the recipe itself, ranks that cannot share it evenly, bf16 that began at ZeRO-0
    launches[2].append(start(folder, "both", 2, 2, "train.gradient_accumulation_steps=2", fails=True))
    launches[1].append(start(folder, "half", 1, 0, "train.precision=bf16", stop_after=STOPS[0]))
    launches[1].append(start(folder, "half", 1, 2, "train.precision=bf16", fails=True))
    launches[1].append(start(folder, "odd", 1, 2, stop_after=STOPS[0]))
    launches[2].append(start(folder, "odd", 2, 2, fails=True))
    for number, (ranks, runs) in enumerate(zip((2, 1, 2), launches, strict=True)):
        (folder / f"said-{number}").write_text(make(folder, ranks, runs))
    return folder


def column(run: Path, key: str) -> list[float]:
    return [line[key] for line in metrics(run)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_RANKS | BY_STAGE)
def test_a_run_that_resumes_in_another_layout_is_the_uninterrupted_one(folder, name):
    run, whole = folder / name, folder / f"whole-{name if name in ('t5', 'bf16') else 'bert'}"
    assert column(run, "update") == list(range(1, UPDATES + 1))
    assert column(run, "learning_rate") == column(whole, "learning_rate")
    close = TOLERANCE.get(name, 1e-5)
    for key in ("loss", "nll_clean", "nll_noisy"):
        assert column(run, key) == pytest.approx(column(whole, key), rel=0, abs=close)
    assert column(run, "beta") == pytest.approx(column(whole, "beta"), rel=max(1e-4, close))
    assert len(set(column(run, "beta"))) == UPDATES
    assert (run / "predictions" / "test.json").read_text() == (whole / "predictions" / "test.json").read_text()
    assert (run / "batch.json").read_text() == (whole / "batch.json").read_text()
    for model in ("model", "unaveraged/model"):
        mine, other = (load_file(folder / model / "model.safetensors") for folder in (run, whole))
        moved = [key for key in mine if not key.endswith(WITHOUT_GRADIENT)]
        distance = max(float((mine[key].float() - other[key].float()).abs().max()) for key in moved)
        assert distance < (3e-3 if name == "bf16" else 1e-5), model  # where the learning rates add up to 3.5e-3
    assert not list(run.rglob("*.bin")) + list((run / "model").rglob("*.pt"))


@pytest.mark.slow
def test_there_and_back_every_bit_of_the_state_is_the_same(folder):
    for rank in (0, 1):
        whole, back = (
            torch.load(file, weights_only=False)["optimizer_state_dict"]
            for run in ("whole-bf16", "back")
            for file in (folder / run / "checkpoints" / f"update-{UPDATES:08d}").glob(f"*rank_{rank}_*optim_states.pt")
        )
        for left, right in zip(*(o["single_partition_of_fp32_groups"] for o in (whole, back)), strict=True):
            assert torch.equal(left, right)
            assert not torch.equal(left, left.bfloat16().float())  # masters, not weights in half precision
        moved = 0
        for left, right in zip(*(o["base_optimizer_state"]["state"].values() for o in (whole, back)), strict=True):
            assert left.keys() == right.keys() == {"step", *MOMENTS}
            assert all(torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])) for key in left)
            moved += int(left["exp_avg"].count_nonzero())
        assert moved > 100
        whole, back = (
            torch.load(folder / run / "checkpoints" / f"update-{UPDATES:08d}" / f"average_rank_{rank}.pt")
            for run in ("whole-bf16", "back")
        )
        assert whole.keys() == back.keys()
        assert all(whole[key]["first"] == back[key]["first"] for key in whole)
        assert all(torch.equal(whole[key]["mean"], back[key]["mean"]) for key in whole)


@pytest.mark.slow
def test_what_is_kept_is_said_and_the_recipe_stays_as_it_was_given(folder):
    said = f"{folder / 'both'} began with a global batch of 6: kept, on 1 rank(s), by micro-batches of 3 and an accumu"
    assert said in (folder / "said-1").read_text()
    assert "kept, on" not in (folder / "said-2").read_text()
    assert "gradient_accumulation_steps: 1\n" in (folder / "both" / "recipe.yaml").read_text()


@pytest.mark.slow
def test_what_cannot_resume_is_refused_in_one_line(folder):
    said = {name: (folder / f"{name}.error").read_text() for name in ("both", "half", "odd")}
    assert (
        "x 2 rank(s) is a global batch of 12, and the run began with 6: choose values with that product" in said["both"]
    )
    assert "in bf16 the state of ZeRO-0 has another form" in said["half"]
    assert said["half"].endswith("use a ds_config of stage 0")
    assert "x 2 rank(s) is a global batch of 6, and the run began with 3: choose values with that" in said["odd"]
    assert not any("\n" in text for text in said.values())
    assert len(losses(folder / "odd")) == STOPS[0]  # unchanged


@pytest.mark.slow
def test_ranks_without_a_window_wait_for_nobody(folder):
    two, single = folder / "uneven-2", folder / "uneven-1"
    assert len(losses(two)) == 3  # updates, each with fewer windows than the ranks' micro-batches could take
    assert losses(two) == pytest.approx(losses(single), rel=1e-5)
    answers = [json.loads((run / "predictions" / "test.json").read_text()) for run in (two, single)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1
