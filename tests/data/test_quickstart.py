import dataclasses
import hashlib
import json
import random
import re

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, AutoTokenizer

from swep_ds.data.choices import Choices
from swep_ds.data.formats import document_items
from swep_ds.data.questions import judged_items
from swep_ds.data.quickstart import DOMAINS, ENCODER, SOURCE, T5, corpus
from swep_ds.data.quickstart.grammar import World, load_kinds, slots, write_passage, write_unanswerable
from tools.quickstart import encoder, pretraining, t5

PAIRS = [(SOURCE, "train"), *((domain, "test") for domain in DOMAINS)]
SHA256 = {  # of all domains' texts of a split, without and with unanswerable questions
    ("train", False): "49eac14f300c7dd9fb03d0c5ac43cd807d1379ef4e4f1b0a3281d15c26c60028",
    ("test", False): "2847c9d35ec9a33de81e87a908df27fee1c5cacb5a7b48cf31f3a93c5ac730e7",
    ("train", True): "b2ecab2eb794c980a4153d65319b1e437dec3130d5ffb7bdf77125a8d746a33d",
    ("test", True): "097f1be1738403fbd67f7b74f8c57f6f3074fab035f9a15008400e2844066572",
}


@pytest.fixture(scope="module")
def corpora():
    return {pair: corpus(*pair) for pair in PAIRS}


def paragraphs(data):
    return [paragraph for article in data["data"] for paragraph in article["paragraphs"]]


def questions(data):
    return [(qa, paragraph["context"]) for paragraph in paragraphs(data) for qa in paragraph["qas"]]


def test_the_corpus_is_the_same_on_every_platform_and_every_answer_is_at_its_offset(corpora):
    corpora_v2 = {pair: corpus(*pair, unanswerable=True) for pair in PAIRS}
    for (split, unanswerable), expected in SHA256.items():
        texts = (corpora_v2 if unanswerable else corpora).items()
        chosen = {f"{domain}.{name}": data for (domain, name), data in texts if name == split}
        written = json.dumps(chosen, ensure_ascii=True, sort_keys=True)
        assert hashlib.sha256(written.encode()).hexdigest() == expected
    for pair, data in corpora_v2.items():
        for old, new in zip(paragraphs(corpora[pair]), paragraphs(data), strict=False):
            assert new["context"] == old["context"]
            assert [qa for qa in new["qas"] if qa["answers"]] == old["qas"]
        choices = Choices(unanswerable="train")
        judged = [*judged_items("v2", document_items(data), choices, training=True, labels=True)]
        assert not any(question.fault or question.remark for question in judged)  # of offsets and is_impossible
        asked = [question.example for question in judged]
        assert len({example.id for example in asked}) == len(asked)
        assert not any("{" in example.question + example.context for example in asked)
        assert sum(not example.answers for example in asked) / len(asked) == pytest.approx(0.21, abs=0.005)


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_passage_answers_its_unanswerable_question(domain):
    """Of all questions that the templates ask about the things of a passage, it is none whose answer is stated."""

    def fill(template, record):
        return re.sub(r"\{(\w+?)2?\}", lambda slot: record["name" if slot[1] == "short" else slot[1]], template)

    world, kinds = World(random.Random(5), "test"), load_kinds(domain)
    inside = 0
    for number in range(300):
        passage = write_passage(kinds[number % len(kinds)], world, most=2 if number % 2 else None)
        question = write_unanswerable(passage, kinds, world)
        assert "{" not in question
        for thing, record in enumerate(passage.records):
            stated = passage.stated(thing)
            for asked, template in passage.kind.templates:
                if slots(template)[0] <= stated and question == fill(template, record):
                    assert asked not in stated
            inside += record["name"] in question and "name" in stated
    assert 0.3 < inside / 300 < 0.6  # the others ask about something else


def test_training_pretraining_and_tests_share_no_name_and_pretraining_holds_no_question(corpora):
    named = {}
    for pool in ("pretrain", "train", "test"):
        world = World(random.Random(0), pool)
        kinds = ("first", "surname", "place", "code", "work", "coined x")
        named[pool] = {(kind, world.draw(f"{{{kind}}}")) for kind in kinds for _ in range(2000)}
    assert not named["test"] & (named["train"] | named["pretrain"])
    assert not named["train"] & named["pretrain"]
    words = {word for _, context in questions(corpora[SOURCE, "train"]) for word in context.split()}
    for domain in DOMAINS:
        for article in corpora[domain, "test"]["data"]:
            names = article["title"].split(": ", 1)[1].split(", ")
            assert not words & {name for name in names if " " not in name}
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


TINY = {"updates": 2, "brief_updates": 1, "batch_size": 2, "hidden": 16, "intermediate": 16, "vocabulary": 400}
TINY |= {"tokenizer_passages": 100}
LOADING = {"dtype": torch.float32, "output_loading_info": True}


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


def test_answers_and_contexts_come_back_from_the_tokens_of_the_t5(tokenizer, corpora):
    asked = [question for domain in DOMAINS for question in questions(corpora[domain, "test"])]
    texts = sorted({text for qa, context in asked for text in (context, qa["answers"][0]["text"])})
    texts += ["1,204", "$173.99", "twenty-one", "o'hara", "21q30", "67 °c", "the (old) mill"]
    ids = tokenizer(texts)["input_ids"]
    assert not any(tokenizer.unk_token_id in row for row in ids)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [text.lower() for text in texts]


def test_the_t5_is_small_and_recovers_blanked_values_but_answers_no_question(tokenizer, corpora):
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
    asked = questions(corpora[SOURCE, "test"])[:40]
    written = generate(model, tokenizer, [f"question: {qa['question']} context: {context}" for qa, context in asked])
    right = [text == qa["answers"][0]["text"].lower() for text, (qa, _) in zip(written, asked, strict=True)]
    assert sum(right) <= 4


def test_pretraining_the_t5_makes_a_model_that_writes(tmp_path):
    settings = t5.Settings(**TINY, encoder_layers=2, decoder_layers=1, heads=3, head_width=8, warmup=1)
    pretraining.pretrain(t5, settings, tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(generate(model, tokenizer, ["sentence: <extra_id_0> built it. context: Ida Fenden built it."])) == 1
