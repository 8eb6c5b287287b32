"""The quick-start T5: its tokenizer, what it has learned and what not, and how it is pretrained."""

import random

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from quickstart import t5
from quickstart.encoder import write_pair
from swep_ds.data.quickstart import DOMAINS, SOURCE, T5, corpus
from swep_ds.data.quickstart.grammar import load_kinds
from swep_ds.data.quickstart.world import World
from tests.support.fork_server import ROOT, run_script

SPLITS = [(SOURCE, "train"), *((domain, "test") for domain in DOMAINS)]
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


@pytest.fixture(scope="module")
def tiny_tokenizer():
    return t5.train_tokenizer(TINY)


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


@pytest.mark.parametrize(("domain", "split"), SPLITS)
def test_answers_and_contexts_come_back_from_their_tokens(tokenizer, domain, split):
    texts = sorted({text for _, context, answer in examples(domain, split) for text in (context, answer)})
    ids = tokenizer(texts)["input_ids"]
    assert not any(tokenizer.unk_token_id in row for row in ids)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [text.lower() for text in texts]


@pytest.mark.parametrize("text", ["1,204", "$5", "$173.99", "twenty-one", "o'hara", "21q30", "67 °c", "the (old) mill"])
def test_numbers_and_signs_come_back_from_their_tokens(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_an_answer_is_the_same_tokens_in_its_context(tokenizer):
    """So it can be copied token by token."""
    for domain in DOMAINS:
        for _, context, answer in examples(domain, "test")[:100]:
            ids, copied = tokenizer(context)["input_ids"], tokenizer(answer)["input_ids"][:-1]
            assert any(ids[i : i + len(copied)] == copied for i in range(len(ids)))


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


def test_batches_hold_no_question_and_mark_what_they_say(tiny_tokenizer):
    kinds = [kind for domain in DOMAINS for kind in load_kinds(domain)]
    templates = {template for kind in kinds for asked in kind.questions.values() for template in asked}
    openings = {template.split("{")[0].lower() for template in templates if len(template.split("{")[0]) > 12}
    for batch, _ in zip(t5.batches(tiny_tokenizer, TINY), range(64), strict=False):
        for row, ids in enumerate(batch["input_ids"]):
            text = tiny_tokenizer.decode(ids)
            assert text.startswith("sentence: ")
            assert not any(text.startswith(f"sentence: {opening}") for opening in openings)
            span = slice(batch["starts"][row], batch["ends"][row] + 1)
            target = ids[span].tolist() if "<extra_id_0>" in text else []
            labels = batch["labels"][row]
            assert labels[labels != -100].tolist() == [*target, tiny_tokenizer.eos_token_id]
            assert batch["in_passage"][row, span].all()
            assert batch["restated"][row, span].all()
            assert not (batch["restated"][row].bool() & ~batch["in_passage"][row]).any()
            passage = tiny_tokenizer.decode(ids[batch["in_passage"][row]], skip_special_tokens=True)
            assert text.split("context: ")[1].startswith(passage)


def test_exact_is_what_greedy_decoding_writes(tiny_tokenizer):
    torch.manual_seed(0)
    model = t5.PretrainingModel(TINY)
    batch = next(t5.batches(tiny_tokenizer, TINY))
    with torch.no_grad():
        model.t5.shared.weight.mul_(5)  # decided logits
        written = model.t5.generate(
            batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=False, max_new_tokens=3
        )
        assert model(batch)["exact"] == 0
        batch["labels"] = written[:, 1:].contiguous()
        assert model(batch)["exact"] == 1


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
