"""tools/quickstart: pretraining the quick start's models, and the models that the package ships."""

import dataclasses
import hashlib
import random

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, AutoTokenizer

from swep_ds.data.quickstart import DOMAINS, ENCODER, SOURCE, T5, corpus
from tools.quickstart import encoder, pretraining, t5
from tools.quickstart.grammar import World, load_kinds

TINY = {"updates": 2, "brief_updates": 1, "batch_size": 2, "hidden": 16, "intermediate": 16, "vocabulary": 400}
TINY |= {"tokenizer_passages": 100}
LOADING = {"dtype": torch.float32, "output_loading_info": True}


def test_pretraining_holds_no_question():
    world = World(random.Random(2), "pretrain")
    templates = [template for domain in DOMAINS for kind in load_kinds(domain) for _, template in kind.templates]
    openings = tuple(t.split("{")[0] for t in templates if len(t.split("{")[0]) > 12)
    assert openings
    digest = hashlib.sha256()
    for number in range(500):
        pair = pretraining.write_pair(world, 0.3, brief=number % 2 == 0)
        digest.update(repr([getattr(pair, field.name) for field in dataclasses.fields(pair)]).encode())
        assert not pair.statement.startswith(openings)
        answer = pair.passage[slice(*pair.answer)]
        if "[MASK]" in pair.statement:
            assert answer.lower() not in pair.statement.lower()
    assert digest.hexdigest() == "d5bedd3b36c5c21ed283c97aa5f579a7153ad856bcc53d02a08eac62a98c0ea9"


def test_the_encoder_is_small_and_its_pretraining_repeatable(tmp_path):
    assert sum(path.stat().st_size for path in ENCODER.iterdir()) < 4_000_000
    settings = encoder.Settings(**TINY, layers=1, heads=2)
    weights = []
    for folder in (ENCODER, tmp_path / "once", tmp_path / "again"):
        if folder != ENCODER:
            pretraining.pretrain(encoder, settings, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, loading = AutoModelForQuestionAnswering.from_pretrained(folder, **LOADING)
        assert set(loading["missing_keys"]) == {"qa_outputs.weight", "qa_outputs.bias"}
        assert not loading["unexpected_keys"]
        encoded = tokenizer("Who built it?", "Ida Fenden built it.", return_tensors="pt")
        assert encoded["token_type_ids"].max() == 1
        assert torch.isfinite(model(**encoded).start_logits).all()
        weights.append(model.bert.state_dict())
    _, once, again = weights
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(T5)


def generate(model, tokenizer, texts):
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**encoded, max_new_tokens=20), skip_special_tokens=True)


def questions(domain):
    """The answerable questions of a domain's test, each with its context."""
    paragraphs = [paragraph for article in corpus(domain, "test")["data"] for paragraph in article["paragraphs"]]
    return [(qa, paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]]


def test_answers_and_contexts_come_back_from_the_tokens_of_the_t5(tokenizer):
    asked = [question for domain in DOMAINS for question in questions(domain)]
    texts = sorted({text for qa, context in asked for text in (context, qa["answers"][0]["text"])})
    texts += ["1,204", "$173.99", "twenty-one", "o'hara", "21q30", "67 °c", "the (old) mill"]
    ids = tokenizer(texts)["input_ids"]
    assert not any(tokenizer.unk_token_id in row for row in ids)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [text.lower() for text in texts]


def test_the_t5_is_small_and_recovers_blanked_values_but_answers_no_question(tokenizer):
    """Statements are what it has learned, on names it has never read; questions it has not."""
    assert sum(path.stat().st_size for path in T5.iterdir()) < 4_000_000
    model, loading = AutoModelForSeq2SeqLM.from_pretrained(T5, **LOADING)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert len(tokenizer) == model.config.vocab_size
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (model.config.pad_token_id, model.config.eos_token_id)
    world = World(random.Random(5), "test")
    pairs = [pretraining.write_pair(world, left_out_rate=0.0, filler="<extra_id_0>") for _ in range(40)]
    written = generate(model, tokenizer, [f"sentence: {p.statement} context: {p.passage}" for p in pairs])
    right = [text == p.passage[slice(*p.answer)].lower() for text, p in zip(written, pairs, strict=True)]
    assert sum(right) >= 30
    asked = questions(SOURCE)[:40]
    written = generate(model, tokenizer, [f"question: {qa['question']} context: {context}" for qa, context in asked])
    right = [text == qa["answers"][0]["text"].lower() for text, (qa, _) in zip(written, asked, strict=True)]
    assert sum(right) <= 4


def test_pretraining_the_t5_makes_a_model_that_writes(tmp_path):
    settings = t5.Settings(**TINY, encoder_layers=2, decoder_layers=1, heads=3, head_width=8, warmup=1)
    pretraining.pretrain(t5, settings, tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(generate(model, tokenizer, ["sentence: <extra_id_0> built it. context: Ida Fenden built it."])) == 1
