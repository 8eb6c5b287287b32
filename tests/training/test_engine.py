"""The engine computes one thing, however it is carried out: ZeRO stage, ranks, split or joint, accumulation, offload.
The package's loop trains on CPU with gloo: a launch per world size makes many runs in one process group."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from safetensors.torch import load_file
from transformers import AutoModelForQuestionAnswering, get_linear_schedule_with_warmup

from swep_ds.methods import METHODS
from swep_ds.pipeline.checks import read_and_check
from swep_ds.pipeline.prepare import Prepared
from swep_ds.pipeline.prepare import prepare as prepare_job
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from tests.support.engine_runs import train_runs, weights
from tests.support.mixed_order import rows_of_updates
from tests.support.tiny_objective import split
from tests.support.tiny_run import ROOT, WITHOUT_GRADIENT, ds_config, losses, metrics, prepare, squad

pytestmark = pytest.mark.slow

UPDATES, GLOBAL_BATCH = 4, 8
QUESTIONS = 18  # 21 windows: each epoch ends with an update of 5
# single passes with noise that tests/methods/test_equations.py compares; the engine treats them as prior_aug
NOISES = ("gaussian_dropout", "bernoulli_dropout", "word_dropout", "neftune")
JOINT = {"train.execution": "joint"}
# world size -> runs of SWEP that compute the same: name -> ZeRO stage, accumulation, settings
AGREEING = {
    1: {
        "zero0-joint": (0, 1, JOINT),
        "zero0-accumulation": (0, 2, {}),
        "zero2-split": (2, 1, {}),
        "deterministic": (2, 1, {"train.deterministic": True}),
    },
    2: {
        "zero0-split": (0, 1, {}),
        "zero1-split": (1, 1, {}),
        "zero2-accumulation": (2, 2, JOINT),
        "zero3-joint": (3, 1, JOINT),
        "zero3-accumulation": (3, 2, {"train.pad_to_multiple_of": 16}),
        "zero3-checkpointing": (3, 1, {"train.activation_checkpointing": True}),
    },
}
MLE = {
    "method.name": "mle",
    "train.max_grad_norm": 0.5,  # below every gradient norm of this run: clips each time
    "train.weight_decay": 0.1,
    "train.adam_epsilon": 1e-6,
    "train.warmup_fraction": 1 / 3,
}
MLE_RUNS = [(0, 1, 1), (3, 2, 16)]  # ZeRO stage, world size, train.pad_to_multiple_of
SHARES = (3, 1)  # train.json's and more.json's in a mix
VARIANTS = {
    "published": {"method.separate_hidden_pass": True, "method.kl_reduction": "mean"},
    "without_mle": {"method.mle_weight": 0.0},
    "ablation": {"method.noise": "additive"},
    "shuffled": {"method.noise": "shuffled"},
    "annealed": {"method.beta_schedule": "linear_to_zero", "seed": 3},
    "controlled": {
        "method.kl_target": 4000,  # below the KL at first
        "method.adversarial": True,
        "method.noise_learning_rate": 5e-3,
        "method.noise_max_grad_norm": 1.5,  # amid the norms: Adam does not see a gradient that is always scaled alike
        "train.max_grad_norm": 0.5,
        "train.label_smoothing": 0.1,
    },
    **{name: {"method.name": name} for name in METHODS if name not in ("mle", "swep", "ssmba", *NOISES)},
}
# by sizes that matter in a model as small as this one; tests/methods/test_equations.py has their equations
VARIANTS |= {
    "r3f": {"method.name": "r3f", "method.noise_size": 0.1, "method.divergence_weight": 5.0},
    "pdr": {"method.name": "pdr", "method.start_size": 0.01},
    "fgm": {"method.name": "fgm"},
    "symnoise": {"method.name": "symnoise"},
    "lnsr": {"method.name": "lnsr", "method.noise_scale": 0.5},
    "divergence": {"method.divergence_weight": 20.0},
}
VARIANTS["frozen"] = {"train.freeze_embeddings": True}  # tests/training/test_zero.py has the other stages
Training = tuple[list[float], dict[str, torch.Tensor]]  # losses and the model's weights at the end


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("engine")
    prepare(path, num_hidden_layers=1)
    (path / "train.json").write_text(json.dumps(squad(QUESTIONS)))
    (path / "more.json").write_text(json.dumps(squad(5, seed=2)))
    return path


def mix(folder: Path) -> list[dict]:
    names = ("train.json", "more.json")
    return [{"source": str(folder / name), "weight": share} for name, share in zip(names, SHARES, strict=True)]


def runs(folder: Path, world_size: int) -> dict[str, dict]:
    """The runs of one launch, by name. Every run has the same global batch."""
    listed = {}

    def add(name: str, config: Path, accumulation: int = 1, **settings) -> None:
        settings |= {
            "train.max_updates": UPDATES,
            "train.micro_batch_size": GLOBAL_BATCH // world_size // accumulation,
            "train.gradient_accumulation_steps": accumulation,
            "data.eval": {},
        }
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        run = {"recipe": str(folder / "recipe.yaml"), "set": overrides, "ds_config": str(config)}
        listed[name] = run | {"output_dir": str(folder / f"{name}-on{world_size}")}

    zero = {stage: ds_config(folder, stage) for stage in range(4)}
    for name, (stage, accumulation, settings) in AGREEING[world_size].items():
        add(name, zero[stage], accumulation, **settings)
    for stage, ranks, multiple in MLE_RUNS:
        if ranks == world_size:
            add(f"mle-zero{stage}", zero[stage], **MLE | {"train.pad_to_multiple_of": multiple})
            add(f"mix-zero{stage}", zero[stage], **MLE | {"data.train": mix(folder)})
    if world_size == 2:
        for name, settings in VARIANTS.items():
            add(name, zero[3], **settings)
        # several flat tensors in a group
        listed["controlled"]["ds_config"] = str(ds_config(folder, 3, sub_group_size=1000))
        for stage in (0, 2):
            add(f"controlled-zero{stage}", zero[stage], **VARIANTS["controlled"])
        add("adv_aug-accumulation", zero[2], accumulation=2, **VARIANTS["adv_aug"])
    else:
        for config in ("zero2_offload", "zero3_offload"):
            add(f"controlled-{config}", ROOT / "ds_configs" / f"{config}.json", **VARIANTS["controlled"])
        add("zero3-bf16", zero[3], **VARIANTS["controlled"] | {"train.precision": "bf16"})
        add("zero3-autocast", zero[3], **VARIANTS["controlled"] | {"train.precision": "autocast"})
    return listed


@pytest.fixture(scope="module")
def finished(folder) -> dict[tuple[str, int], Path]:
    """The folders of all runs by name and world size."""
    folders = {}
    for world_size in (1, 2):
        listed = runs(folder, world_size)
        train_runs(folder, list(listed.values()), world_size)
        folders |= {(name, world_size): Path(run["output_dir"]) for name, run in listed.items()}
    return folders


@pytest.fixture(scope="module")
def reference(finished) -> Path:
    return finished["zero0-joint", 1]


def assert_same_training(run: Path, expected: Training) -> None:
    """Losses of all updates, relative, and the weights, to 3e-5 where the learning rates add up to 2.5e-3."""
    assert len(losses(run)) == UPDATES
    np.testing.assert_allclose(losses(run), expected[0], rtol=1e-5, atol=0)
    mine = model_weights(run)
    assert mine.keys() == expected[1].keys()
    for name, value in mine.items():
        if not name.endswith(WITHOUT_GRADIENT):
            torch.testing.assert_close(value, expected[1][name], rtol=0, atol=3e-5, msg=lambda m, n=name: f"{n}: {m}")


def model_weights(run: Path) -> dict[str, torch.Tensor]:
    """By their names in Hugging Face's model."""
    named = weights(run).items()
    return {name.removeprefix("qa.model."): value for name, value in named if name.startswith("qa.model.")}


def test_the_runs_are_worth_comparing(reference, finished, folder):
    first, *_, last = losses(reference)
    assert abs(last - first) > 0.05  # a wrong update would show
    before, after = load_file(folder / "model" / "model.safetensors"), model_weights(reference)
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    assert min(moved[name] for name in moved if not name.endswith(WITHOUT_GRADIENT)) > 1e-3  # the tolerance: 3e-5
    batches = job_of(folder)[1].batches
    widths = [batches.width(update) for update in range(UPDATES)]
    assert any(width % 16 and width < batches.lengths.max() for width in widths)  # they are rounded up in some runs
    features = len(batches.features)
    assert features % GLOBAL_BATCH  # an update with an unequal batch ...
    assert features < (UPDATES - 1) * GLOBAL_BATCH  # ... that all runs reach
    assert max(line["grad_norm"] for line in metrics(finished["zero2-split", 1])) > 1.0  # clipped


@pytest.mark.parametrize(("name", "world_size"), [(name, size) for size, named in AGREEING.items() for name in named])
def test_every_way_to_carry_a_run_out_agrees(finished, reference, name, world_size):
    assert_same_training(finished[name, world_size], (losses(reference), model_weights(reference)))


def job_of(folder: Path, **settings) -> tuple[Recipe, Prepared]:
    """A recipe with the objective and batches of one rank without accumulation."""
    settings |= {"train.max_updates": UPDATES, "train.micro_batch_size": GLOBAL_BATCH, "data.eval": {}}
    recipe = Recipe.load(str(folder / "recipe.yaml"), [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    with process_group():
        return recipe, prepare_job(read_and_check(recipe, str(ds_config(folder, 0))))


def without_an_engine(folder: Path, variant: str) -> Training:
    """A plain PyTorch loop over a method's passes: one process, one backward a pass, one step at the end."""
    settings = dict(VARIANTS[variant])
    is_frozen = settings.pop("train.freeze_embeddings", False)
    recipe, job = job_of(folder, **settings)
    objective = job.objective.train()
    objective.qa.model.get_input_embeddings().requires_grad_(not is_frozen)
    model, method = [*objective.qa.parameters()], [*objective.method.parameters()]
    groups = [{"params": model}, {"params": method, "lr": settings.get("method.noise_learning_rate", 1e-3)}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=UPDATES)
    seen = []
    limit, own_limit = recipe.train.max_grad_norm, settings.get("method.noise_max_grad_norm")
    clipped = [(model + method, limit)] if own_limit is None else [(model, limit), (method, own_limit)]
    for update in range(UPDATES):
        batch, total, statistics = job.batches[update], 0.0, {}
        steps = split(objective, batch, update, progress=update / UPDATES)
        for loss, _, measured in steps:
            loss.backward()
            total, statistics = total + loss.item(), statistics | measured
        for parameters, most in clipped:
            torch.nn.utils.clip_grad_norm_(parameters, most)
        if "method.kl_target" in settings:
            objective.method.observe(statistics["kl_per_window"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen.append(total)
    return seen, objective.qa.model.state_dict()


@pytest.fixture(scope="module")
def controlled(folder) -> Training:
    return without_an_engine(folder, "controlled")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_method_is_its_passes(finished, folder, reference, variant):
    expected = without_an_engine(folder, variant)
    assert_same_training(finished[variant, 2], expected)
    if variant == "adv_aug":  # what a pass carries on belongs to its micro-batch
        assert_same_training(finished["adv_aug-accumulation", 2], expected)
    if variant == "frozen":
        words = "bert.embeddings.word_embeddings.weight"
        assert torch.equal(expected[1][words], load_file(folder / "model" / "model.safetensors")[words])
    assert expected[0] != pytest.approx(losses(reference), rel=1e-4)


def test_statistics_do_not_depend_on_the_split(finished, reference):
    same = ("nll_clean", "nll_noisy", "kl_per_token", "kl_per_window", "span_nats", "mu", "mu_distance", "sigma")
    same += ("sigma_spread", "mu_spread")
    assert any(line["words_changed"] for line in metrics(reference))
    for line in metrics(reference):  # sigma is near 1 in all dimensions: the root, not the mean square
        assert line["sigma_spread"] == pytest.approx(line["sigma"] / 0.1**0.5 - 1, rel=0.2)
    for name, world_size in (("zero3-accumulation", 2), ("zero2-accumulation", 2), ("zero0-accumulation", 1)):
        for mine, other in zip(metrics(finished[name, world_size]), metrics(reference), strict=True):
            compared = [key for key in other if "_nll_" in key]  # what the noise does
            assert len(compared) == (6 if other["update"] == 1 else 0)
            for key in (*same, "learning_rate", *compared):
                # 3e-5 is what two runs' weights may differ by, and mu's mean is a small sum of large terms
                assert mine[key] == pytest.approx(other[key], rel=1e-4, abs=3e-5), key
            assert mine["words_changed"] == pytest.approx(other["words_changed"], abs=0.03)  # a tie may fall either way


def test_each_group_has_its_norm_and_its_rate_and_is_clipped_alike_at_every_stage(finished, controlled):
    for name in ("zero2_offload", "zero3_offload"):
        assert_same_training(finished[f"controlled-{name}", 1], controlled)
    whole = metrics(finished["controlled-zero0", 2])
    for name in ("controlled-zero0", "controlled-zero2", "controlled"):
        run = finished[name, 2]
        assert_same_training(run, controlled)
        for mine, other in zip(metrics(run), whole, strict=True):
            assert mine["noise_grad_norm"] == pytest.approx(other["noise_grad_norm"], rel=1e-4)
            assert mine["noise_grad_norm"] < mine.get("grad_norm", torch.inf)  # both groups'; at ZeRO-0 there is none
            for key in ("beta", "kl_per_window"):
                assert mine[key] == pytest.approx(other[key], rel=1e-4)
    assert {line["noise_grad_norm"] > 1.5 for line in whole} == {True, False}  # some are clipped
    assert whole[0]["beta"] == pytest.approx(1e-3)
    assert len({line["beta"] for line in whole}) == UPDATES
    shared = metrics(finished["zero2-split", 1])
    assert all(0 < line["noise_grad_norm"] <= line["grad_norm"] for line in shared)
    assert {line["beta"] for line in shared} == {1e-3}


def test_a_run_shows_its_schedule_and_the_parts_of_its_loss(finished):
    betas = [line["beta"] for line in metrics(finished["annealed", 2])]
    assert betas == pytest.approx([1e-3 * (1 - update / UPDATES) for update in range(UPDATES)])
    for line in metrics(finished["prior_aug", 2]):
        assert line["loss"] == pytest.approx((line["nll_clean"] + line["nll_noisy"]) / 2, rel=1e-6)
    files = [finished[name, 1] / "weights.safetensors" for name in ("deterministic", "zero2-split")]
    assert files[0].read_bytes() == files[1].read_bytes()  # on a CPU


@pytest.mark.parametrize("precision", ["bf16", "autocast"])
def test_low_precision_is_close_to_fp32(finished, controlled, precision):
    run = finished[f"zero3-{precision}", 1]
    mine, whole = metrics(run), metrics(finished["controlled", 2])
    for key in ("loss", "beta", "kl_per_window", "noise_grad_norm"):  # bf16 resolves 0.8 %
        np.testing.assert_allclose([line[key] for line in mine], [line[key] for line in whole], rtol=0.02)
    rounded = precision == "bf16" or not accelerator.emulates(torch.bfloat16)  # else autocast trains in float32
    assert np.allclose(losses(run), controlled[0], rtol=1e-5) != rounded
    dtype = torch.float32 if precision == "autocast" else torch.bfloat16
    assert {value.dtype for value in weights(run).values()} == {dtype}


@pytest.mark.parametrize("data", ["mle", "mix"])
def test_mle_is_plain_fine_tuning_step_for_step(finished, folder, data):
    """Under Hugging Face's own loss, padding and schedule, torch's AdamW and clipping. Shared with the package are the
    windows and, of one source, which of them make an update."""
    _, job = job_of(folder)
    windows = job.batches.features
    order = [job.batches.windows(update).tolist() for update in range(UPDATES)]
    if data == "mix":
        _, more = job_of(folder, **{"data.train": str(folder / "more.json")})
        sizes = len(windows), len(more.batches.features)
        windows = concatenate_datasets([windows, more.batches.features])
        of_run = {"seed": 0, "epochs": 2, "global_batch": GLOBAL_BATCH}
        order = rows_of_updates(windows["length"], sizes, SHARES, **of_run)[:UPDATES]
        assert all(1 <= sum(row >= sizes[0] for row in rows) <= 3 for rows in order if len(rows) == GLOBAL_BATCH)
    model = AutoModelForQuestionAnswering.from_pretrained(folder / "model").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.1)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=UPDATES // 3, num_training_steps=UPDATES)
    seen, rates = [], []
    for update in range(UPDATES):
        rows = windows[order[update]]
        inputs = job.tokenizer.pad({key: rows[key] for key in ("input_ids", "token_type_ids")}, return_tensors="pt")
        starts, ends = (torch.tensor(rows[key]) for key in ("start_position", "end_position"))
        loss = model(**inputs, start_positions=starts, end_positions=ends).loss
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5  # clipping is compared, too
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    for stage, world_size, _ in MLE_RUNS:
        run = finished[f"{data}-zero{stage}", world_size]
        assert_same_training(run, (seen, model.state_dict()))
        assert [line["learning_rate"] for line in metrics(run)] == pytest.approx(rates)
