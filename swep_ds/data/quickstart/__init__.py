"""The embedded quick-start corpus: extractive QA with a domain shift, generated on the spot, no download.

Like the paper's experiments it has ONE source domain to train on and several shifted domains to test on:

    encyclopedia   train and test: impersonal articles, full names, dates, measures
    news           test only: reports with attributions and quotes, new relations, new wording of known ones
    forum          test only: first person, lower case, slang, nicknames
    reviews        test only: products, prices, complaints
    biomedicine    test only: drugs, genes, strains, cohorts, units

All text comes from templates/<domain>.yaml; every person, town, firm and drug is invented. Training and test text
share no such name (`world.py`), so nothing can be answered from memory. A passage states the same relations of several
things (`grammar.py`), so only relation and entity together answer a question. A fixed seed decides the corpus.
`ENCODER` is a small pretrained BERT to start from, `T5` a small pretrained T5; `scripts/pretrain_quickstart.py` makes
them.
"""

import random
from pathlib import Path
from typing import Literal

from swep_ds.common.errors import InputError
from swep_ds.data.quickstart.grammar import load_kinds, write_passage, write_questions, write_unanswerable
from swep_ds.data.quickstart.world import World

SOURCE = "encyclopedia"
DOMAINS = (SOURCE, "news", "forum", "reviews", "biomedicine")
ENCODER = Path(__file__).parent / "encoder"
T5 = Path(__file__).parent / "t5"

_ARTICLES = {"train": 1800, "test": 120}
_SHORT_ARTICLES = {"train": 240, "test": 16}  # only beside unanswerable questions


def corpus(domain: str, split: Literal["train", "test"], unanswerable: bool = False) -> dict:
    """The quick-start corpus of one domain in SQuAD's layout.

    Args:
        domain: one of `DOMAINS`.
        split: "train" (about 7,000 questions; only of the source) or "test" (about 450).
        unanswerable: gives each passage one more question, which it does not answer, and adds passages of at most two
            sentences. The other passages and questions are those without it.

    Raises InputError: there is no such domain, or no such split of it.
    """
    if domain not in DOMAINS or split not in _ARTICLES or (split == "train" and domain != SOURCE):
        raise InputError(
            f"there is no quick-start corpus {domain}.{split}: name one of {', '.join(DOMAINS)} for "
            f"evaluation, {SOURCE} for training"
        )
    kinds = load_kinds(domain)
    parts = [("", _ARTICLES[split], None, 4)]
    if unanswerable:  # with an rng of their own, so that the others are the same with them and without
        parts.append(("unanswerable ", _SHORT_ARTICLES[split], 2, 2))
    articles = []
    for name, count, most, asked in parts:
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
        if unanswerable:
            question = write_unanswerable(passage, kinds, world)
            qas.append({"id": f"{id_}-z", "question": question, "answers": [], "is_impossible": True})
        title = f"{passage.kind.title}: {', '.join(record['name'] for record in passage.records)}"
        data.append({"title": title, "paragraphs": [{"context": passage.text, "qas": qas}]})
    return {"version": f"swep-ds quickstart {2 if unanswerable else 1}", "data": data}
