"""Windows in one row without padding: losses, gradients and hidden states of the padded model."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig

from swep_ds.models import packing
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches, tiny_models, tiny_objective
from tests.support.bad_input import refused

FAMILIES = ("bert", "electra", "roberta")


def packed(architecture: str, **changes) -> ExtractiveQA:
    plain = tiny_models.model(architecture, **changes)
    return ExtractiveQA(plain, packing.prepare(plain, "auto"))


def packed_objective(method: str, **settings):
    objective = tiny_objective.objective(method, **settings)
    objective.qa.first_position = packing.prepare(objective.qa.model, "auto")
    return objective


def masked_nll(model, batch, embeddings):
    """Losses per window of a padded model whose logits at padding do not count, and its hidden states."""
    output = model(inputs_embeds=embeddings, attention_mask=batch.attention_mask, output_hidden_states=True)
    outside = batch.attention_mask == 0
    parts = ((output.start_logits, batch.start_position), (output.end_logits, batch.end_position))
    nll = [cross_entropy(logits.masked_fill(outside, -torch.inf), target, reduction="none") for logits, target in parts]
    return sum(nll) / 2, output.hidden_states[-1]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_losses_gradients_and_states_are_the_padded_ones(architecture, checkpointing):
    plain, qa = tiny_models.model(architecture).double(), packed(architecture).double()
    if checkpointing:
        qa.model.gradient_checkpointing_enable({"use_reentrant": False})
        qa.train()
    batch = tiny_batches.batch((12, 7, 1, 9))
    batch = batch._replace(start_position=batch.start_position.clamp(min=0))
    results, gradients = [], []
    for model in (plain, qa.model):
        leaf = model.get_input_embeddings()(batch.input_ids).detach().requires_grad_()
        if model is plain:
            nll, hidden = masked_nll(plain, batch, leaf)
        else:
            nll, _, _, hidden, _ = qa(leaf, batch, hidden=True)
        # weights that differ, so that a gradient in the wrong window shows
        ((nll * torch.arange(1, 5)).sum() + hidden[batch.attention_mask.bool()].square().sum()).backward()
        results.append((nll, hidden[batch.attention_mask.bool()]))
        gradients.append(
            {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | {"e": leaf.grad}
        )
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


def test_a_window_does_not_see_its_neighbours_nor_the_batchs_width():
    qa = packed("bert").eval()
    together, alone = tiny_batches.batch((12, 7)), tiny_batches.batch((7,))
    alone = alone._replace(**{name: getattr(together, name)[1:, :7] for name in ("input_ids", "attention_mask")})
    alone = alone._replace(start_position=together.start_position[1:], end_position=together.end_position[1:])
    with torch.no_grad():
        left, right = qa(qa.embed(together), together).nll[1:], qa(qa.embed(alone), alone).nll
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("method", ["swep", "r_drop", "pdr", "lnsr"])
def test_methods_on_packed_windows_equal_those_on_windows_of_one_length(method):
    """Without padding the two losses are the same by definition."""
    batch = tiny_batches.batch((9, 9, 9))
    results = []
    for objective in (tiny_objective.objective(method), packed_objective(method)):
        loss, _, statistics = objective(batch, tiny_objective.JOINT)
        results.append((loss, tiny_objective.gradients(objective, loss), statistics))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_swep_keeps_its_noise_and_kl_on_windows_of_several_lengths():
    batch = tiny_batches.batch((12, 7, 9))
    padded, swep = tiny_objective.objective("swep"), packed_objective("swep")
    expected, kl = (objective(batch, tiny_objective.JOINT)[2]["kl_per_token"] for objective in (padded, swep))
    torch.testing.assert_close(kl, expected)
    gradients = tiny_objective.gradients(swep, swep(batch, tiny_objective.JOINT)[0])
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    # a divergence over the lowest logits at padding
    for method in ("r_drop", "pdr"):
        assert packed_objective(method, dropout=0.3)(batch, tiny_objective.JOINT)[0].isfinite()


def test_lengths_on_the_host_change_nothing_and_evaluation_is_padded(monkeypatch):
    qa, batch = packed("roberta").eval(), tiny_batches.batch()
    with torch.no_grad():
        nll = [qa(qa.embed(b), b).nll for b in (batch, batch._replace(lengths=(12, 7, 9)))]
        plain = ExtractiveQA(tiny_models.model("roberta").eval()).predict(batch)
        monkeypatch.setattr(torch.Tensor, "all", lambda *_: pytest.fail("a mask's values were read"))
        qa.predict(batch)
        monkeypatch.undo()
        torch.testing.assert_close(qa.predict(batch), plain)
    assert torch.equal(*nll)


@pytest.mark.parametrize("architecture", ["deberta-v2", "albert", "modernbert", "distilbert"])
def test_other_backbones_are_refused(architecture, tmp_path):
    tiny_models.model(architecture).save_pretrained(tmp_path)
    message = refused(tiny_models.load, tmp_path, packed=True)
    assert message.startswith(f"train.packing: {architecture} ")
    assert message.endswith(": set it to false")


def test_another_attention_is_refused_and_none_is_exported(tmp_path):
    tiny_models.model("bert").save_pretrained(tmp_path / "bert")
    message = refused(tiny_models.load, tmp_path / "bert", packed=True, attention="eager")
    assert message.startswith("model.attention eager: ")
    tiny_models.load(tmp_path / "bert", packed=True).model.save_pretrained(tmp_path / "saved")
    assert packing.PACKED not in (tmp_path / "saved" / "config.json").read_text()


GPU = torch.device("cuda", 0)


@pytest.fixture
def ampere(monkeypatch):
    """A machine that has the kernel."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    packing._has_flash_attention.cache_clear()
    yield
    packing._has_flash_attention.cache_clear()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_keeps_windows_from_one_kernel_is_named(architecture, ampere):
    """Heads of 8; dropout as it is published, in training alone."""
    plain, dropping = (tiny_models.config(architecture, dropout) for dropout in (0.0, 0.1))
    assert packing.slow_because(plain, "bf16", GPU) is None
    assert packing.slow_because(plain, "autocast", GPU) is None
    assert packing.slow_because(dropping, "fp32", torch.device("cpu")) is None
    assert "train.precision is fp32" in packing.slow_because(plain, "fp32", GPU)
    assert "model.attention_dropout 0 (it is 0.1)" in packing.slow_because(dropping, "fp16", GPU)
    plain.num_attention_heads = 4
    assert "they are 4 wide" in packing.slow_because(plain, "bf16", GPU)


def test_a_machine_without_the_kernel_is_named(ampere, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "an Ampere GPU" in packing.slow_because(tiny_models.config("bert"), "fp16", GPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_varlen_kernel_equals_windows_one_by_one():
    batch = tiny_batches.batch((120, 7, 64, 33)).to(GPU)
    assert packing.slow_because(BertConfig(attention_probs_dropout_prob=0.0), "bf16", GPU) is None
    windows = packing.Windows.of(batch)
    inputs = torch.randn(3, 1, 4, sum(windows.lengths), 64, device="cuda", dtype=torch.bfloat16)
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        output, _ = packing.attend(None, *leaves, None, scaling=0.125, windows=windows)
        output.float().square().sum().backward()
        results.append((output.float(), *(leaf.grad.float() for leaf in leaves)))
    torch.testing.assert_close(results[0], results[1], rtol=2e-2, atol=2e-2)
