"""The embedded quick-start corpus: extractive QA with a domain shift, generated on the spot, no download.

Like the paper's experiments it has ONE source domain to train on and several shifted ones to test on:

    encyclopedia   train and test: impersonal articles, full names, dates, measures
    news           test only: reports with attributions and quotes, new relations, new wording of known ones
    forum          test only: first person, lower case, slang, nick names
    reviews        test only: products, prices, complaints
    biomedicine    test only: drugs, genes, strains, cohorts, units

All text comes from the templates of the domain modules; every person, town, firm and drug is invented. Training
and test text share no such name (`world.py`), so nothing can be answered from memory. A passage states the same
relations of several things (`grammar.py`), so a question is answered only by relation and entity together.

The corpus is a function of a fixed seed: `random.Random` gives the same numbers on every platform and Python.
`ENCODER` is a small pretrained BERT to start from, `T5` a small pretrained T5; `pretrain.py` and `pretrain_t5.py`
make them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

from swep_ds.data.quickstart import biomedicine, encyclopedia, forum, news, reviews
from swep_ds.data.quickstart.grammar import write_passage, write_questions
from swep_ds.data.quickstart.world import World

__all__ = ["DOMAINS", "ENCODER", "KINDS", "SOURCE", "T5", "corpus"]

SOURCE = "encyclopedia"
KINDS = {
    SOURCE: encyclopedia.KINDS,
    "news": news.KINDS,
    "forum": forum.KINDS,
    "reviews": reviews.KINDS,
    "biomedicine": biomedicine.KINDS,
}
DOMAINS: tuple[str, ...] = tuple(KINDS)
ENCODER = Path(__file__).parent / "encoder"
T5 = Path(__file__).parent / "t5"

_ARTICLES = {"train": 1800, "test": 120}
_QUESTIONS_PER_PASSAGE = 4


def corpus(domain: str, split: Literal["train", "test"]) -> dict:
    """The quick-start corpus of one domain in SQuAD v1.1 layout.

    Args:
        domain: one of `DOMAINS`. Only the source, "encyclopedia", has a "train" split.
        split: "train" (about 7,000 questions) or "test" (about 450).

    Returns:
        `{"version", "data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text",
        "answer_start"}]}]}]}]}`, one answer a question; `answer_start` counts characters of the context.

    Raises:
        KeyError: no such domain, or no such split of it.
    """
    kinds, articles = KINDS[domain], _ARTICLES[split]
    if split == "train" and domain != SOURCE:
        raise KeyError(f"quick-start domain {domain!r} has no train split: only {SOURCE!r} has")
    world = World(random.Random(f"swep-ds quickstart {domain} {split}"), split)
    data = []
    for number in range(articles):
        kind = kinds[number % len(kinds)]
        passage = write_passage(kind, world)
        qas = [
            {
                "id": f"{domain}-{split}-{number:04d}-{letter}",
                "question": question,
                "answers": [{"text": passage.text[answer.start : answer.end], "answer_start": answer.start}],
            }
            for letter, (question, answer) in zip(
                "abcdefgh", write_questions(passage, world, _QUESTIONS_PER_PASSAGE), strict=False
            )
        ]
        title = f"{kind.title}: {', '.join(record['name'] for record in passage.records)}"
        data.append({"title": title, "paragraphs": [{"context": passage.text, "qas": qas}]})
    return {"version": "swep-ds quickstart 1", "data": data}
