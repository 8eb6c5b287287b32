"""The quick-start T5: its tokenizer, what it has learned and what not, and how it is pretrained."""

import random

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from quickstart import t5
from quickstart.encoder import write_pair
from swep_ds.data.quickstart import DOMAINS, SOURCE, T5, corpus
from swep_ds.data.quickstart.world import World
from tests.support.fork_server import ROOT, run_script

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
    pairs = [write_pair(world, left_out_rate=0.0, filler="<extra_id_0>") for _ in range(100)]
    written = generate(model, tokenizer, [f"sentence: {p.statement} context: {p.passage}" for p in pairs])
    right = [text == p.passage[slice(*p.answer)].lower() for text, p in zip(written, pairs, strict=True)]
    assert sum(right) >= 80
    asked = examples(SOURCE, "test")[:100]
    written = generate(model, tokenizer, [f"question: {question} context: {context}" for question, context, _ in asked])
    assert sum(text == answer.lower() for text, (_, _, answer) in zip(written, asked, strict=True)) <= 10


# Runs scripts/pretrain_quickstart.py with the tiny settings as its defaults.
SCRIPT = f"""
import runpy, sys
from dataclasses import replace
from functools import partial
sys.path.append({str(ROOT / "scripts")!r})
from quickstart import t5
from tests.data.test_quickstart_t5 import TINY
t5.Settings = partial(replace, TINY)
runpy.run_path({str(ROOT / "scripts" / "pretrain_quickstart.py")!r}, run_name="__main__")
"""


def test_pretraining_runs_and_is_repeatable(tmp_path):
    t5.pretrain(TINY, tmp_path / "once")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [tmp_path / "script.py", str(tmp_path / "again"), "--model", "t5"]
    run_script(*command)
    ended = run_script(*command, "--updates", "1", check=False)
    assert (ended.returncode, ended.stderr) == (2, "error: --updates 1: the warm-up alone takes 1: give more\n")
    once, again = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name, dtype=torch.float32) for name in ("once", "again")
    )
    pairs = zip(once.state_dict().items(), again.state_dict().values(), strict=True)
    assert all(torch.equal(weight, other) for (_, weight), other in pairs)
    assert (tmp_path / "once/tokenizer.json").read_bytes() == (tmp_path / "again/tokenizer.json").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "once")
    assert len(generate(once, tokenizer, ["sentence: <extra_id_0> built it. context: Ida Fenden built it."])) == 1
