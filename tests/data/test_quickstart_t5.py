"""The quick-start T5: its tokenizer, what it has learned and what not, and how it is pretrained."""

import random

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from quickstart import pretraining, t5
from swep_ds.data.quickstart import DOMAINS, SOURCE, T5, corpus
from swep_ds.data.quickstart.world import World

TINY = t5.Settings(
    updates=2,
    brief_updates=1,
    batch_size=2,
    encoder_layers=2,
    decoder_layers=1,
    hidden=16,
    heads=3,
    head_width=8,
    intermediate=16,
    vocabulary=400,
    tokenizer_passages=100,
    warmup=1,
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(T5)


def examples(domain, split):
    """(question, context, answer) of a corpus."""
    return [
        (qa["question"], paragraph["context"], qa["answers"][0]["text"])
        for article in corpus(domain, split)["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def generate(model, tokenizer, texts):
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**encoded, max_new_tokens=20), skip_special_tokens=True)


def test_is_small_and_loads_whole(tokenizer):
    assert sum(path.stat().st_size for path in T5.iterdir()) < 4_000_000
    model, loading = AutoModelForSeq2SeqLM.from_pretrained(T5, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert len(tokenizer) == model.config.vocab_size
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (model.config.pad_token_id, model.config.eos_token_id)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_answers_and_contexts_come_back_from_their_tokens(tokenizer):
    asked = [example for domain in DOMAINS for example in examples(domain, "test")]
    texts = sorted({text for _, context, answer in asked for text in (context, answer)})
    texts += ["1,204", "$173.99", "twenty-one", "o'hara", "21q30", "67 °c", "the (old) mill"]
    ids = tokenizer(texts)["input_ids"]
    assert not any(tokenizer.unk_token_id in row for row in ids)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [text.lower() for text in texts]


def test_recovers_blanked_values_but_answers_no_question(tokenizer):
    """Statements are what it has learned, on names it has never read; questions it has not."""
    model = AutoModelForSeq2SeqLM.from_pretrained(T5, dtype=torch.float32).eval()
    world = World(random.Random(5), "test")
    pairs = [pretraining.write_pair(world, left_out_rate=0.0, filler="<extra_id_0>") for _ in range(40)]
    written = generate(model, tokenizer, [f"sentence: {p.statement} context: {p.passage}" for p in pairs])
    right = [text == p.passage[slice(*p.answer)].lower() for text, p in zip(written, pairs, strict=True)]
    assert sum(right) >= 30
    asked = examples(SOURCE, "test")[:40]
    written = generate(model, tokenizer, [f"question: {question} context: {context}" for question, context, _ in asked])
    assert sum(text == answer.lower() for text, (_, _, answer) in zip(written, asked, strict=True)) <= 4


def test_pretraining_makes_a_model_that_writes(tmp_path):
    pretraining.pretrain(t5, TINY, tmp_path / "tiny")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert len(generate(model, tokenizer, ["sentence: <extra_id_0> built it. context: Ida Fenden built it."])) == 1
