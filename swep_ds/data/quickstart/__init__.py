"""The embedded quick-start corpus: QA with a domain shift, as in the paper, from templates/<domain>.yaml.

Training and test text share no invented name, so nothing can be answered from memory. A passage states the
same relations of several things (`grammar.py`), so only relation and entity together answer a question.
`ENCODER` is a small pretrained BERT to start from, `T5` a small pretrained T5 (`tools/quickstart`).
"""

import random
from pathlib import Path
from typing import Literal

from swep_ds.common.errors import InputError
from swep_ds.data.quickstart.grammar import World, load_kinds, write_passage, write_questions, write_unanswerable

SOURCE = "encyclopedia"
DOMAINS = (SOURCE, "news", "forum", "reviews", "biomedicine")
ENCODER = Path(__file__).parent / "encoder"
T5 = Path(__file__).parent / "t5"

_ARTICLES = {"train": 1800, "test": 120}
_SHORT_ARTICLES = {"train": 240, "test": 16}  # only beside unanswerable questions


def corpus(domain: str, split: Literal["train", "test"], unanswerable: bool = False) -> dict:
    """The corpus of one of `DOMAINS` in SQuAD's layout: about 7,000 questions for training, only of the source, and 450
    for a test. With `unanswerable` each passage has one more question, which it does not answer, and there are more
    passages, of at most two sentences. Raises InputError: there is no such domain, or no such split of it.
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
