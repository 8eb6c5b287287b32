"""Every model: loss, h and states are those of the plain model from token ids; the process's switches are put back."""

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

from swep_ds.models.backends import WITHOUT_SYNC, float32_products, tf32_products
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_models
from tests.support.tiny_objective import windows


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ])
def test_from_embeddings_equals_the_plain_model(architecture):
    plain, batch = tiny_models.model(architecture).eval(), windows(architecture)
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if "token_type_ids" in inspect.signature(plain.forward).parameters:
        given["token_type_ids"] = (torch.arange(12) >= 4).long().expand(3, 12)
        batch = batch._replace(token_type_ids=given["token_type_ids"])
    if architecture in tiny_models.SEQ2SEQ:
        qa, encoder, answers = GenerativeQA(plain), plain.get_encoder(), {"labels": batch.target_ids}
    else:
        qa, encoder = ExtractiveQA(plain), plain.base_model
        answers = {"start_positions": batch.start_position, "end_positions": batch.end_position}
    embeddings = qa.embed(batch)
    assert embeddings.shape == (3, 12, qa.embedding_size)
    with torch.no_grad():
        output = qa(embeddings, batch, hidden=True, layers=True)
        expected = encoder(**given, output_hidden_states=True)
        for row in range(3):  # transformers' own loss of one window is the mean over its predictions
            alone = {name: values[row : row + 1] for name, values in (given | answers).items()}
            torch.testing.assert_close(output.nll[row], plain(**alone).loss)
        if architecture not in tiny_models.SEQ2SEQ:
            logits = plain(**given)
            assert torch.equal(torch.stack(qa.predict(batch)), torch.stack([logits.start_logits, logits.end_logits]))
    real = batch.attention_mask.bool()
    states = (*expected.hidden_states[1:], expected.last_hidden_state)
    assert len(output.layers) == plain.config.num_hidden_layers
    for mine, other in zip((*output.layers, output.hidden), states, strict=True):
        torch.testing.assert_close(mine[real], other[real])
    assert output.hidden.shape[-1] == qa.hidden_size
    assert output.shares.sum(1).tolist() == pytest.approx([1, 1, 1])


def masks() -> dict:
    return {name: MASK_FUNCTIONS[name] for name in WITHOUT_SYNC}


@pytest.mark.parametrize(("kind", "architecture", "calls"), [(ExtractiveQA, "bert", 40), (GenerativeQA, "t5", 4)])
def test_threads_predict_without_cudnn_attention_and_with_the_masks_that_they_are_given(kind, architecture, calls):
    plain, seen, before = tiny_models.model(architecture).eval(), [], masks()
    plain.register_forward_hook(lambda *_: seen.append((cudnn_sdp_enabled(), masks())))
    qa, batch = kind(plain).double(), windows(architecture)

    @torch.no_grad()
    def predict(_) -> torch.Tensor:
        return qa.predict(batch)[0]

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(answers, predict(0)) for answers in pool.map(predict, range(calls)))
    assert len(seen) > calls
    assert all(state == (False, WITHOUT_SYNC) for state in seen)
    assert (cudnn_sdp_enabled(), masks()) == (True, before)


def test_products_in_tf32_and_in_float32_are_chosen_for_a_block():
    """ "high" is TF32; "medium" would be bfloat16."""
    precision = torch.get_float32_matmul_precision
    before = precision()
    with tf32_products():
        with tf32_products():
            assert precision() == "high"
        assert precision() == "high"
        with float32_products():
            assert precision() == "highest"
    assert precision() == before
