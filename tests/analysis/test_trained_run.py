"""A saved run: model, generator and perturbation as they were trained, or one line that says why not."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from swep_ds.analysis.trained_run import TrainedRun, answer_windows
from swep_ds.data.example import Example
from swep_ds.data.features import WindowSettings, build_features
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import halves
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import Recipe
from tests.support import tiny
from tests.support.bad_input import refused
from tests.support.finished import finished, load, windows_of

PERTURBING = sorted(set(METHODS) - {"mle", "ssmba", "r_drop", "freelb", "fgm"})


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_the_generator_is_the_saved_one_and_makes_the_papers_noise(tmp_path, architecture):
    run = load(tmp_path, architecture=architecture, noise="no_eps")  # e~ = e * mu: no draw to repeat
    kept = load_file(tmp_path / "noise.safetensors")
    assert not run.qa.training
    batch = run.batch(windows_of(run, 3))
    before, [perturbed] = run.perturb(batch)
    h = run.hidden(before, batch)
    inner = torch.relu(h @ kept["noise.inner.weight"].T + kept["noise.inner.bias"])
    mu = 1 + (inner @ kept["noise.difference.weight"].T + kept["noise.difference.bias"])[..., :16]
    words = batch.attention_mask.bool()
    torch.testing.assert_close(perturbed.embeddings[words], (before * mu)[words])


@pytest.mark.parametrize("method", [*PERTURBING, "mle", "fgm"])
def test_every_perturbation_is_keyed_by_the_question(tmp_path, method):
    run = load(tmp_path, method)
    windows = windows_of(run, 3)
    if method not in PERTURBING:
        assert f"trained by {method}, which perturbs nothing after training" in refused(run.perturb, run.batch(windows))
        return
    before, [together] = run.perturb(run.batch(windows))
    if method not in ("adv_aug", "pdr"):  # whose ascents, as in training, take the softmax over padding, too
        _, [alone] = run.perturb(run.batch(windows[2:]))
        length = len(windows[2].input_ids)
        torch.testing.assert_close(alone.embeddings[0], together.embeddings[2, :length], rtol=1e-4, atol=1e-6)
    assert not together.embeddings.requires_grad
    assert (together.embeddings - before)[0, : len(windows[0].input_ids)].norm() > 0
    if method == "prior_aug":
        first, second = (draw.embeddings for draw in run.perturb(run.batch(windows), 2)[1])
        assert torch.equal(first, together.embeddings)
        assert not torch.equal(first, second)
        other = replace(run, recipe=run.recipe.model_copy(update={"seed": 7}))
        assert not torch.equal(next(other.perturb(run.batch(windows))[1]).embeddings, first)


def test_a_folder_without_a_finished_run_or_with_another_ones_noise_is_refused(tmp_path):
    folder = finished(tmp_path)
    noise = folder / "noise.safetensors"
    save_file({name: value[..., :8].contiguous() for name, value in load_file(noise).items()}, noise)
    assert "noise.safetensors: is missing, or does not fit this recipe's model" in refused(TrainedRun.load, folder)
    (folder / "results.json").unlink()
    assert "holds no results.json: name the folder of a finished run" in refused(TrainedRun.load, folder)


def test_the_questions_are_those_that_the_run_answered(tmp_path):
    run = load(tmp_path, "prior_aug")
    whole = run.test_examples()
    assert whole == run.test_examples("test")
    assert len(run.training_examples()) == 42
    # the other half of a set that chose a checkpoint
    halved = replace(run, recipe=Recipe.load(str(tmp_path / "recipe.yaml"), ["eval.select_on=test"]))
    assert halved.test_examples() == halves(whole)[1] != whole


@pytest.mark.parametrize("task", ["extractive", "generative"])
@pytest.mark.parametrize("name", tiny.TOKENIZERS)
def test_windows_are_those_of_training(tmp_path, name, task):
    """For questions with one window each."""
    finished(tmp_path, "mle")
    tokenizer, settings = tiny.TOKENIZERS[name](), WindowSettings(400, 128, 16, task)
    examples = read_examples(str(tmp_path / "train.json"), training=True)
    windows = list(answer_windows(examples, tokenizer, settings))
    features = build_features(examples, tokenizer, settings, training=True, cache_dir=tmp_path / "cache").dataset
    for window, row in zip(windows, features, strict=True):
        assert window.input_ids == row["input_ids"]
        context = [word for word in window.words if word.part != "question"]
        assert [word.text for word in context] == window.example.context.split()
        in_answer = {position for word in context if word.part == "answer" for position in word.positions}
        assert in_answer.issuperset(range(window.answer[0], window.answer[1] + 1))
        if "token_type_ids" in row:
            assert window.token_type_ids == row["token_type_ids"]
        if task == "generative":
            assert window.target_ids == row["target_ids"]
        else:
            assert window.answer == (row["start_position"], row["end_position"])


def test_the_window_holds_the_whole_answer_with_most_context():
    context = " ".join(["the bridge"] * 30 + ["1998"] + ["the river"] * 30)
    asked = tiny.example("When?", context, "1998")
    without = (Example("q", "When?", context, (), None, "t"), tiny.example("When?", context, context))
    [window] = answer_windows([*without, asked], tiny.wordpiece(), WindowSettings(40, 8, 16))
    assert window.example == asked
    first, last = window.answer
    assert tiny.wordpiece().decode(window.input_ids[first : last + 1]) == "1998"
    assert min(first, len(window.input_ids) - last) > 10
    assert len(window.input_ids) <= 40
    assert [word.text for word in window.words if word.part == "answer"] == ["1998"]
