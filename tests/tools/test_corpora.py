"""tools/quickstart: the corpora that the package ships, and the names and questions in them."""

import gzip
import random
import re

import pytest

from swep_ds.data.quickstart import CORPORA, DOMAINS
from tools.quickstart.corpora import write_corpora
from tools.quickstart.grammar import World, load_kinds, slots, write_passage, write_unanswerable


def test_the_shipped_corpora_are_what_the_tool_writes(tmp_path):
    """Compared unpacked: how zlib packs depends on its version."""
    write_corpora(tmp_path)
    shipped, written = (
        {file.name: gzip.decompress(file.read_bytes()) for file in folder.iterdir()} for folder in (CORPORA, tmp_path)
    )
    assert shipped.keys() == written.keys()
    assert all(shipped[name] == written[name] for name in shipped)


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_passage_answers_its_unanswerable_question(domain):
    """An unanswerable question is none whose answer the passage states."""

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


def test_training_pretraining_and_tests_draw_from_different_names():
    named = {}
    for pool in ("pretrain", "train", "test"):
        world = World(random.Random(0), pool)
        kinds = ("first", "surname", "place", "code", "work", "coined x")
        named[pool] = {(kind, world.draw(f"{{{kind}}}")) for kind in kinds for _ in range(2000)}
    assert not named["test"] & (named["train"] | named["pretrain"])
    assert not named["train"] & named["pretrain"]
