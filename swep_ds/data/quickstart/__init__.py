"""The embedded quick-start corpus: extractive QA with a domain shift, generated on the spot, no download.

Like the paper's experiments it has ONE source domain to train on and several shifted domains to test on:

    encyclopedia   train and test: impersonal articles, full names, dates, measures
    news           test only: reports with attributions and quotes, new relations, new wording of known ones
    forum          test only: first person, lower case, slang, nicknames
    reviews        test only: products, prices, complaints
    biomedicine    test only: drugs, genes, strains, cohorts, units

All text comes from templates/<domain>.yaml; every person, town, firm and drug is invented. Training and test text
share no such name (`world.py`), so nothing can be answered from memory. A passage states the same relations of several
things (`grammar.py`), so only relation and entity together answer a question.

The corpus is a function of a fixed seed: `random.Random` gives the same numbers on every platform and Python.
`ENCODER` is a small pretrained BERT to start from, `T5` a small pretrained T5; `pretrain.py` and `pretrain_t5.py`
make them.
"""

import random
from pathlib import Path
from typing import Literal

from swep_ds.data.quickstart.grammar import load_kinds, write_passage, write_questions
from swep_ds.data.quickstart.world import World

SOURCE = "encyclopedia"
DOMAINS = (SOURCE, "news", "forum", "reviews", "biomedicine")
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
        "answer_start"}]}]}]}]}`, one answer per question; `answer_start` counts characters of the context.

    Raises:
        KeyError: there is no such domain, or no such split of it.
    """
    if domain not in DOMAINS or split not in _ARTICLES or (split == "train" and domain != SOURCE):
        raise KeyError(f"no quick-start corpus {domain}.{split}: only {SOURCE!r} has a train split")
    kinds = load_kinds(domain)
    world = World(random.Random(f"swep-ds quickstart {domain} {split}"), split)
    data = []
    for number in range(_ARTICLES[split]):
        kind = kinds[number % len(kinds)]
        passage = write_passage(kind, world)
        questions = write_questions(passage, world, _QUESTIONS_PER_PASSAGE)
        qas = [
            {
                "id": f"{domain}-{split}-{number:04d}-{letter}",
                "question": question,
                "answers": [{"text": passage.text[answer.start : answer.end], "answer_start": answer.start}],
            }
            for letter, (question, answer) in zip("abcd", questions, strict=False)
        ]
        title = f"{kind.title}: {', '.join(record['name'] for record in passage.records)}"
        data.append({"title": title, "paragraphs": [{"context": passage.text, "qas": qas}]})
    return {"version": "swep-ds quickstart 1", "data": data}
