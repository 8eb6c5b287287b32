"""Generates the quick start's corpora, which the package ships, from the templates of `grammar.py`."""

import gzip
import json
import random
from pathlib import Path
from typing import Literal

from swep_ds.common.files import write_atomically
from swep_ds.data.quickstart import ARTICLES, DOMAINS, SOURCE
from tools.quickstart.grammar import World, load_kinds, write_passage, write_questions, write_unanswerable

SHORT_ARTICLES = {"train": 240, "test": 16}


def write_corpora(folder: Path) -> None:
    """Writes the corpora that the package ships: <domain>.<split>.json.gz, which are the same bytes
    each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for domain, split in ((SOURCE, "train"), *((domain, "test") for domain in DOMAINS)):
        text = json.dumps(generate(domain, split), separators=(",", ":"))
        packed = gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0)
        write_atomically(folder / f"{domain}.{split}.json.gz", packed)


def generate(domain: str, split: Literal["train", "test"]) -> dict:
    """A corpus in SQuAD's layout. Each passage has up to four questions and a last one, which it does not answer. The
    first `ARTICLES` passages are of three to seven sentences, the others of at most two."""
    kinds = load_kinds(domain)
    articles = []
    # the short passages have an rng of their own: more of them would leave the others as they are
    for name, count, most, asked in (("", ARTICLES[split], None, 4), ("unanswerable ", SHORT_ARTICLES[split], 2, 2)):
        world = World(random.Random(f"swep-ds quickstart {name}{domain} {split}"), split)
        for number in range(count):
            passage = write_passage(kinds[number % len(kinds)], world, most=most)
            articles.append((passage, write_questions(passage, world, asked)))
    data = []
    for number, (passage, questions) in enumerate(articles):
        id_ = f"{domain}-{split}-{number:04d}"
        qas: list[dict] = []
        for letter, (question, answer) in zip("abcd", questions, strict=False):
            answers = [{"text": passage.text[answer.start : answer.end], "answer_start": answer.start}]
            qas.append({"id": f"{id_}-{letter}", "question": question, "answers": answers})
        question = write_unanswerable(passage, kinds, world)
        qas.append({"id": f"{id_}-z", "question": question, "answers": [], "is_impossible": True})
        title = f"{passage.kind.title}: {', '.join(record['name'] for record in passage.records)}"
        data.append({"title": title, "paragraphs": [{"context": passage.text, "qas": qas}]})
    return {"version": "swep-ds quickstart 2", "data": data}
