"""Label smoothing and the mean with the start (WiSE-FT): whole runs against a plain loop."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from swep_ds.data.batches import Batch
from swep_ds.pipeline import checks, prepare
from swep_ds.pipeline.folder import UNAVERAGED
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.ranks.group import process_group
from tests.support import tiny, tiny_models, tiny_run

UPDATES, EVERY, RATE, DECAY, CLIP, SMOOTHING, SHARE = 7, 2, 1e-2, 0.1, 0.5, 0.2, 0.3
TRAIN = {"max_updates": UPDATES, "checkpoint_every": EVERY, "keep_checkpoints": 9}
TRAIN |= {"learning_rate": RATE, "weight_decay": DECAY, "max_grad_norm": CLIP, "label_smoothing": SMOOTHING}
TRAIN |= {"average": "start", "average_start": SHARE, "adam_epsilon": 1e-6}  # rounding errors stay small
HEAD = ("qa_outputs.weight", "qa_outputs.bias")
MODEL, LAST = "model/model.safetensors", f"{UNAVERAGED}/model/model.safetensors"


def smoothed(logits_NT: Tensor, position_N: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy with a target that is written out."""
    target_NT = SMOOTHING * batch.attention_mask / batch.attention_mask.sum(1, keepdim=True)
    target_NT[torch.arange(len(position_N)), position_N] += 1 - SMOOTHING
    return -(target_NT * logits_NT.log_softmax(-1)).sum(-1).mean()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A bare encoder, whose head is new, in a process group."""
    path = tmp_path_factory.mktemp("levers")
    tiny_run.prepare(path)
    encoder = tiny_models.model(vocab_size=len(tiny.wordpiece()), num_hidden_layers=1).bert
    encoder.save_pretrained(path / "model")
    with process_group():
        yield path


@pytest.fixture(scope="module")
def recipe(folder) -> Recipe:
    settings = [f"train.{name}={value}" for name, value in TRAIN.items()]
    return Recipe.load(str(folder / "recipe.yaml"), ["method.name=mle", *settings])


@pytest.fixture(scope="module")
def expected(recipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of the start and after the last update, by PyTorch alone."""
    job = prepare.prepare(checks.read_and_check(recipe, "zero0"))
    model = deepcopy(job.objective.qa.model).train()
    start = deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, eps=TRAIN["adam_epsilon"])
    for update in range(UPDATES):
        batch = job.batches[update]
        output = model(batch.input_ids, batch.attention_mask, token_type_ids=batch.token_type_ids)
        start_loss = smoothed(output.start_logits, batch.start_position, batch)
        loss = (start_loss + smoothed(output.end_logits, batch.end_position, batch)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.param_groups[0]["lr"] = RATE * (1 - update / UPDATES)
        optimizer.step()
    return start, model.state_dict()


@pytest.fixture(scope="module")
def runs(folder, recipe, expected) -> dict[int, Path]:
    """By stage. Each but the first resumes from a checkpoint of the one before."""
    made = {}
    resume = "never"
    for stage, update in ((1, 2), (0, 4), (3, 6), (2, None)):
        made[stage] = folder / f"zero{stage}"
        with (folder / f"zero{stage}.log").open("w") as log, redirect_stdout(log):
            run(recipe, str(tiny_run.ds_config(folder, stage)), made[stage], resume)
        resume = str(tag(made[stage], update or UPDATES))
    return made


def tag(run: Path, update: int) -> Path:
    return run / "checkpoints" / f"update-{update:08d}"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_run_with_both_is_a_plain_loop_whatever_the_stage_that_it_resumes_from(runs, expected, stage):
    assert f"mean with the start, in {runs[stage]}:\n" in runs[stage].with_suffix(".log").read_text()
    start, last = expected
    averaged, plain = load_file(runs[stage] / MODEL), load_file(runs[stage] / LAST)
    assert plain.keys() == last.keys()
    for key, value in plain.items():
        if not key.endswith(tiny_run.WITHOUT_GRADIENT):
            torch.testing.assert_close(value, last[key], rtol=0, atol=3e-5)
            assert (value - start[key]).abs().max() > 2e-4
        if key in HEAD:  # it is new
            assert torch.equal(averaged[key], value)
        else:
            torch.testing.assert_close(averaged[key], SHARE * start[key] + (1 - SHARE) * value, rtol=1e-5, atol=1e-7)
