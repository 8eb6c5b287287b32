"""The corpora that come with the package; tests/tools tests what makes them."""

import hashlib
import json

import pytest

from swep_ds.data.choices import Choices
from swep_ds.data.formats import document_items
from swep_ds.data.questions import judged_items
from swep_ds.data.quickstart import DOMAINS, SOURCE, corpus

PAIRS = [(SOURCE, "train"), *((domain, "test") for domain in DOMAINS)]
SHA256 = {  # all domains' texts of a split, without and with unanswerable questions
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
        judged, _ = judged_items("v2", document_items(data), choices, training=True, labels=True)
        assert not any(question.fault or question.remark for question in judged)  # neither offsets nor is_impossible
        asked = [question.example for question in judged]
        assert len({example.id for example in asked}) == len(asked)
        assert not any("{" in example.question + example.context for example in asked)
        assert sum(not example.answers for example in asked) / len(asked) == pytest.approx(0.21, abs=0.005)


def test_training_and_tests_share_no_name(corpora):
    words = {word for _, context in questions(corpora[SOURCE, "train"]) for word in context.split()}
    for domain in DOMAINS:
        for article in corpora[domain, "test"]["data"]:
            names = article["title"].split(": ", 1)[1].split(", ")
            assert not words & {name for name in names if " " not in name}
