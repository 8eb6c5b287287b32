"""Decoders with a head for spans: position 0 is no [CLS] but their first token, and stands for the null answer."""

import json
import math
import re

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, LlamaConfig, Qwen2Config

import swep_ds as sd
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.results import Evaluated, read_predictions
from swep_ds.pipeline.export import model_card
from tests.support import tiny
from tests.support.tiny_run import squad

QUESTION, TEXT = "Who founded it?", "It was founded in 1204 by an abbot."
WINDOWS = {"max_length": 48, "doc_stride": 16, "max_query_length": 16}
LONG = " ".join(tiny.SENTENCES * 2)
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZE |= {"intermediate_size": 32, "max_position_embeddings": 96, "vocab_size": 400, "pad_token_id": 1}


@pytest.fixture(scope="module", params=[(Qwen2Config, ""), (LlamaConfig, "<s>")], ids=["qwen2", "llama"])
def folder(request, tmp_path_factory) -> str:
    config, begin = request.param
    path = tmp_path_factory.mktemp("decoder")
    torch.manual_seed(0)
    AutoModelForQuestionAnswering.from_config(config(**SIZE)).save_pretrained(path)
    tiny.decoder_bpe(begin).save_pretrained(path)
    AutoTokenizer.from_pretrained(path).save_pretrained(path)  # as the class of this model writes it
    (path / "reading.json").write_text(json.dumps({"data": WINDOWS, "eval": {}}))
    return str(path)


@torch.no_grad()
def by_hand(folder: str) -> tuple[float, float, list[float]]:
    """The scores of the null answer and of the best span, and all allowed spans' scores, in a single window."""
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(QUESTION, TEXT, return_tensors="pt", return_offsets_mapping=True)
    output = model(tokens.input_ids)
    starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    offsets = zip(tokens.sequence_ids(0), tokens.offset_mapping[0].tolist(), strict=True)
    # a token of only white space, such as a lone space before digits, neither begins nor ends an answer
    places = [k for k, (part, (begin, end)) in enumerate(offsets) if part == 1 and TEXT[begin:end].strip()]
    spans = [starts[a] + ends[b] for a in places for b in places if a <= b < a + 30]
    return starts[0] + ends[0], max(spans), spans


def test_the_null_answer_is_the_first_token_for_the_cards_code_too(folder, capsys):
    null, best, spans = by_hand(folder)
    total = math.exp(null) + sum(map(math.exp, spans))
    recipe = sd.Recipe(model={"name": folder}, method=sd.Swep(), data=WINDOWS | {"train": "train.json", "eval": {}})
    for threshold, declined in ((null - best - 1e-3, True), (null - best + 1e-3, False)):
        answerer = QuestionAnswerer(folder, null_threshold=threshold)
        # with a text of several windows, so that windows are padded
        [replies, _] = answerer.answer([(QUESTION, TEXT), ("When?", LONG)], n_best=len(spans) + 1)
        assert (replies[0].start is None) == declined
        [of_null] = [reply for reply in replies if reply.start is None]
        assert of_null.score == pytest.approx(null, abs=1e-5)
        assert of_null.probability == pytest.approx(math.exp(null) / total, rel=1e-4)
        assert sum(reply.probability for reply in replies) == pytest.approx(1, rel=1e-4)
        card = model_card(recipe, Evaluated({}, {}, threshold), "")
        [_, plain] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        for text in (LONG, TEXT):  # in several windows, and in one
            names = {}
            exec(plain.replace("PATH_OF_THIS_FOLDER", folder).replace(TEXT, text), names)
            # a decoder's first token sees nothing else, so that it scores alike in every window
            assert names["null"].item() == pytest.approx(null, abs=1e-5)
            printed = capsys.readouterr().out
        assert (printed == "no answer\n") == declined


@pytest.mark.slow
def test_a_decoder_trains_and_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("swep_ds.analysis.report.write_report", lambda folder: ("", {}))
    tokenizer = tiny.byte_bpe()
    torch.manual_seed(0)
    settings = LlamaConfig(**SIZE | {"vocab_size": len(tokenizer), "max_position_embeddings": 128})
    AutoModelForQuestionAnswering.from_config(settings).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "train.json"
    file.write_text(json.dumps(squad(12)))
    data = {"train": str(file), "eval": {"same": str(file)}, "max_length": 96}
    train = {"max_updates": 60, "epochs": 60, "learning_rate": 1e-2, "micro_batch_size": 12, "log_every": 10}
    recipe = sd.Recipe(model={"name": str(tmp_path / "model")}, method=sd.Swep(beta=1e-4), data=data, train=train)
    run = sd.train(recipe, output_dir=tmp_path / "run")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert lines[-1]["kl_per_window"] > 0
    answers = read_predictions(run.path, "same")
    contexts = {example.id: example.context for example in read_examples(str(file), training=False)}
    assert answers.keys() == contexts.keys()
    assert all(answer and answer in contexts[question] for question, answer in answers.items())
