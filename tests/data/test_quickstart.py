"""The quick-start corpus and its encoder: what they promise to whoever starts with them."""

import hashlib
import json
import random

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from swep_ds.data.quickstart import DOMAINS, ENCODER, KINDS, SOURCE, corpus, pretrain
from swep_ds.data.quickstart.grammar import slots, write_passage, write_questions
from swep_ds.data.quickstart.world import World

SPLITS = [(SOURCE, "train"), *((domain, "test") for domain in DOMAINS)]
SHA256 = {
    ("encyclopedia", "train"): "a8daedf91dc50c80113b16579228e4dc8677a26a280ddc6e6a6158e698c27adc",
    ("encyclopedia", "test"): "9963025f65855763042c3f486a67ec08b96b6f22c7e78248ca5e647a9a908d46",
    ("news", "test"): "cfbf16b46d7ec0bd9f7e90e29f8cfb8f11836caf165920cdf8c822889e709ea1",
    ("forum", "test"): "ce6ae2ef18634bf4ba5acd46b5726e988fa9bfcc5871958ceac365de5399c15a",
    ("reviews", "test"): "d0a1c34b7e4b314137a89cf3ca6c425ffb6ea3eaf40be3653241e79ea7e5a08b",
    ("biomedicine", "test"): "f55990823f65f219e15b4ee2fa1f3dc270049e01c18e31d1f3b62c9ca5476852",
}


@pytest.fixture(scope="module")
def corpora():
    return {pair: corpus(*pair) for pair in SPLITS}


def paragraphs(data):
    return [paragraph for article in data["data"] for paragraph in article["paragraphs"]]


def questions(data):
    return [(qa, paragraph["context"]) for paragraph in paragraphs(data) for qa in paragraph["qas"]]


@pytest.mark.parametrize(("domain", "split"), SPLITS)
def test_same_text_on_every_platform(corpora, domain, split):
    text = json.dumps(corpora[domain, split], ensure_ascii=True, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256[domain, split]


@pytest.mark.parametrize(("domain", "split"), SPLITS)
def test_every_answer_stands_at_its_offset(corpora, domain, split):
    found = questions(corpora[domain, split])
    assert len(found) > (6000 if split == "train" else 400)
    for qa, context in found:
        (answer,) = qa["answers"]
        assert context[answer["answer_start"] :].startswith(answer["text"])
        assert answer["text"].strip() == answer["text"] != ""
        assert "{" not in qa["question"] + context


def test_ids_are_unique(corpora):
    ids = [qa["id"] for data in corpora.values() for qa, _ in questions(data)]
    assert len(set(ids)) == len(ids)


def test_only_the_source_has_a_train_split():
    with pytest.raises(KeyError, match="only 'encyclopedia' has"):
        corpus("forum", "train")
    with pytest.raises(KeyError):
        corpus("poetry", "test")


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds], ids=lambda kind: kind.title)
def test_templates_name_their_thing_and_know_their_fields(kind):
    assert set(kind.questions) <= set(kind.fields)
    for template in kind.sentences:
        stated, _ = slots(template)
        assert stated
        assert stated <= set(kind.fields)
        assert "{name}" in template or "{short}" in template
    for asked, templates in kind.questions.items():
        # A fact that one template alone can state could not be restated in other words.
        assert asked == "name" or sum(asked in slots(sentence)[0] for sentence in kind.sentences) >= 2
        for template in templates:
            assert asked == "name" or "{name}" in template
            assert asked not in slots(template)[0]


def test_relation_and_entity_decide_the_answer():
    """No question has a second right answer: what it states is true of one thing of the passage only."""
    world = World(random.Random(3), "test")
    for kinds in KINDS.values():
        for kind in kinds:
            for _ in range(20):
                passage = write_passage(kind, world)
                for question, mention in write_questions(passage, world, 4):
                    others = [r for i, r in enumerate(passage.records) if i != mention.record]
                    own = passage.records[mention.record]
                    if mention.field == "name":
                        assert own["name"] not in question
                    else:
                        assert own["name"] in question
                        assert not any(other["name"] in question for other in others)
                    answer = passage.text[mention.start : mention.end]
                    assert answer.lower() == own[mention.field].lower()
                    assert all(other[mention.field] != own[mention.field] for other in others)


def named_things(pool):
    """The parts that every invented name of a pool is made of, drawn through the public methods of `World`."""
    world = World(random.Random(0), pool)
    draws = {"first": world.first, "surname": world.surname, "place": world.place, "code": world.code}
    draws |= {"work": world.work, "coined": world.coined}
    return {(sort, draw()) for sort, draw in draws.items() for _ in range(4000)}


def test_no_name_of_the_tests_is_in_training_or_pretraining_text(corpora):
    pretraining, training, testing = (named_things(pool) for pool in ("pretrain", "train", "test"))
    assert not testing & (training | pretraining)
    assert not training & pretraining
    tests = {
        name
        for domain in DOMAINS
        for article in corpora[domain, "test"]["data"]
        for name in article["title"].split(": ", 1)[1].split(", ")
    }
    train_text = "\n".join(context for _, context in questions(corpora[SOURCE, "train"]))
    world = World(random.Random(1), "pretrain")
    kinds = [kind for kinds in KINDS.values() for kind in kinds]
    pretraining_text = "\n".join(write_passage(kind, world).text for kind in kinds for _ in range(40))
    words = set(train_text.split()) | set(pretraining_text.split())
    for name in tests:
        if " " in name:
            assert name not in train_text
            assert name not in pretraining_text
        else:
            assert name not in words


def test_pretraining_text_holds_no_question():
    world = World(random.Random(2), "pretrain")
    templates = {t for kinds in KINDS.values() for k in kinds for ts in k.questions.values() for t in ts}
    openings = {template.split("{")[0] for template in templates if len(template.split("{")[0]) > 12}
    for _ in range(2000):
        pair = pretrain.write_pair(world, 0.3)
        assert not any(pair.statement.startswith(opening) for opening in openings)


def test_blanked_span_recurs_in_the_passage():
    """Put back what stands in the passage and the statement has no blank; what it restates stands there too."""
    world = World(random.Random(4), "pretrain")
    for brief in (True, False):
        for _ in range(300):
            pair = pretrain.write_pair(world, left_out_rate=0.0, brief=brief)
            found = pair.passage[slice(*pair.found)]
            assert pair.statement.count("[MASK]") == 1
            assert found
            assert found.lower() not in pair.statement.lower()
            assert pair.found in pair.restated
            for span in pair.values:
                assert pair.passage[slice(*span)].lower() in pair.statement.lower()


def test_encoder_is_small_and_loads():
    assert sum(path.stat().st_size for path in ENCODER.iterdir()) < 4_000_000
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model, loading = AutoModelForQuestionAnswering.from_pretrained(
        ENCODER, dtype=torch.float32, output_loading_info=True
    )
    assert set(loading["missing_keys"]) == {"qa_outputs.weight", "qa_outputs.bias"}
    assert not loading["unexpected_keys"]
    encoded = tokenizer("Who built it?", "Ida Fenden built it.", return_tensors="pt")
    assert encoded["token_type_ids"].max() == 1
    assert model(**encoded).start_logits.shape == encoded["input_ids"].shape


def test_tokenizer_covers_the_corpora(corpora):
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    for data in corpora.values():
        texts = [text for qa, context in questions(data) for text in (qa["question"], context)]
        ids = [token for row in tokenizer(texts)["input_ids"] for token in row]
        assert ids.count(tokenizer.unk_token_id) < 1e-4 * len(ids)


def test_pretraining_runs_and_is_repeatable(tmp_path, capsys):
    settings = pretrain.Settings(
        updates=2,
        brief_updates=1,
        batch_size=2,
        layers=1,
        hidden=16,
        heads=2,
        intermediate=16,
        vocabulary=400,
        tokenizer_passages=100,
    )
    for name in ("once", "again"):
        pretrain.pretrain(settings, tmp_path / name)
    once, again = (
        AutoModelForQuestionAnswering.from_pretrained(tmp_path / name).bert.state_dict() for name in ("once", "again")
    )
    assert all(torch.equal(once[name], again[name]) for name in once)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "once", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "once")
    assert torch.isfinite(model(**tokenizer("who", "x", return_tensors="pt")).start_logits).all()
