"""Saved models: which of them load, and what their reading.json may hold."""

import json
from unittest import mock

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError
from transformers import BertForQuestionAnswering, T5ForConditionalGeneration

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.choices import STRICT
from swep_ds.data.example import Example
from swep_ds.evaluation.evaluate import Evaluation
from swep_ds.pipeline.asked import numbers, write_asked
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.saved import WINDOWS, _reading_file, evaluate_saved, load_saved, read_data_sets
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused

SIZES = {"max_length": 48, "doc_stride": 16, "max_query_length": 8, "max_target_length": 9}
READ = {"data": SIZES, "eval": {"beams": 2, "max_answer_tokens": 9}}


@pytest.fixture
def folder(tmp_path):
    tokenizer = tiny.wordpiece()
    plain = tiny_models.model("t5", vocab_size=len(tokenizer), eos_token_id=tokenizer.sep_token_id)
    plain.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_model_is_read_as_its_run_did(folder):
    assert set(SIZES) == set(WINDOWS)
    (folder / READING).write_text(json.dumps(READ))
    saved = load_saved(str(folder))
    assert (saved.windows.max_length, saved.windows.doc_stride, saved.windows.max_query_length) == (48, 16, 8)
    assert (saved.windows.task, saved.spans.max_answer_tokens) == ("generative", 9)
    assert (saved.qa.generation.num_beams, saved.qa.generation.max_new_tokens) == (2, 9)
    assert not saved.spans.whole_words  # as runs decoded that did not know of them
    (folder / READING).write_text(json.dumps(READ | {"eval": {"whole_words": True}}))
    saved = load_saved(str(folder), max_answer_tokens=40)
    assert saved.spans.whole_words
    assert (saved.spans.max_answer_tokens, saved.qa.generation.max_new_tokens) == (40, 40)
    (folder / READING).write_text(json.dumps(READ | {"data": {"doc_strid": 3}}))
    said = f"{folder / READING}: data.doc_strid is not a field; did you mean 'data.doc_stride'?"
    assert refused(load_saved, str(folder)) == said


def test_questions_that_the_model_was_trained_on_are_scored_apart_by_the_same_rules(folder, tmp_path, monkeypatch):
    (folder / READING).write_text(json.dumps(READ | {"eval": {"scorer": {"a": "cmrc"}}}))
    examples = [Example(str(n), f"who built mill {n}?", "vera lind built it.", ("vera",), None, "") for n in range(3)]
    monkeypatch.setattr("swep_ds.pipeline.saved.read_data_sets", lambda *_: {"a": examples})
    monkeypatch.setattr("swep_ds.evaluation.evaluate.CACHE", tmp_path / "cache")
    write_asked(folder, {"trained": numbers(examples[:1])})
    prepared = []
    prepare = Evaluation.prepare
    monkeypatch.setattr(Evaluation, "prepare", lambda *given: prepared.extend(prepare(*given)) or prepared)
    with process_group():
        evaluate_saved(str(folder), ["a=a"], tmp_path / "scores", max_length=None, doc_stride=None, batch_size=4)
    assert [(test.name, test.rules) for test in prepared] == [("a", "CMRC 2018"), ("a_trained_on", "CMRC 2018")]
    results = json.loads((tmp_path / "scores/results.json").read_text())
    assert (results["eval"]["a"]["total"], results["trained_on"]["a_trained_on"]["total"]) == (2, 1)
    assert list(results["scorers"]) == ["a"]


def test_a_model_computes_in_its_own_dtype_unless_the_cpu_emulates_it(folder, monkeypatch):
    T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    for emulated, dtype in ((torch.bfloat16, torch.float32), (None, torch.bfloat16)):
        monkeypatch.setattr(accelerator, "emulates", lambda dtype, emulated=emulated: dtype == emulated)
        saved = load_saved(str(folder))
        assert {weight.dtype for weight in saved.qa.model.state_dict().values()} == {dtype}
        assert saved.spans.whole_words  # a model of others


def test_a_model_on_the_hub_is_read_as_its_run_did(tmp_path, monkeypatch, caplog):
    (tmp_path / READING).write_text(json.dumps(READ))
    assert _reading_file(str(tmp_path)) == tmp_path / READING
    assert _reading_file(str(tmp_path.parent)) is None
    fails = LocalEntryNotFoundError("503")
    missing = RemoteEntryNotFoundError("404", response=mock.MagicMock())
    hub = mock.Mock(side_effect=[str(tmp_path / READING), missing, fails, fails])
    monkeypatch.setattr("swep_ds.pipeline.saved.hf_hub_download", hub)
    assert _reading_file("me/model") == tmp_path / READING
    assert _reading_file("me/model") is None
    assert not caplog.records
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "the hub gives no reading.json" in refused(_reading_file, "me/model")  # it may decline questions
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert _reading_file("me/model") is None
    assert "offline, and its reading.json is not in the hub's cache: read with default windows" in caplog.text


def test_data_sets_have_names_that_become_files(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text('[{"question": "Who?", "context": "Ann.", "answer": "Ann"}]')
    assert list(read_data_sets([f"a={file}", f"b={file}"], STRICT, [])) == ["a", "b"]
    for names, said in (
        ([f"a={file}", f"a={file}"], "--data a: is given twice: rename one"),
        ([f"a/b={file}"], "--data a/b: the name 'a/b' becomes a file name: use letters, digits, '.', '_' and '-'"),
        ([str(file)], f"--data {file}: write it as name=source"),
    ):
        assert refused(read_data_sets, names, STRICT, []) == said


def test_models_with_few_positions_or_chunks_answer_once_tried_on_their_longest_window(tmp_path, monkeypatch):
    tokenizer = tiny.wordpiece()
    tokenizer.save_pretrained(tmp_path)
    tiny_models.model("bert", vocab_size=len(tokenizer), max_position_embeddings=24).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", chunk_size_feed_forward=7, output_attentions=True)
    assert load_saved(str(tmp_path)).qa.model.config.chunk_size_feed_forward == 0
    [reply] = QuestionAnswerer(tmp_path)("who built the old mill?", "the old mill was built by vera lind. " * 20)
    assert reply.text
    forward = BertForQuestionAnswering.forward

    def short_only(self, input_ids, **inputs):
        if input_ids.shape[1] > 23:
            raise ValueError("too long")
        return forward(self, input_ids, **inputs)

    monkeypatch.setattr(BertForQuestionAnswering, "forward", short_only)
    assert "cannot be run on a window of 24 tokens (too long)" in refused(load_saved, str(tmp_path))


def test_an_encoder_decoder_with_a_head_for_spans_is_no_generator(folder):
    """transformers would load it with an untrained output layer, tied to the embeddings, and say nothing."""
    change_json(folder / "config.json", architectures=["T5ForQuestionAnswering"])
    assert "an encoder-decoder that points at spans is not supported" in refused(load_saved, str(folder))
