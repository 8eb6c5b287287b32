"""Passages that are like a question and do not answer it, to train declining on."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from swep_ds.data.example import Example
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from swep_ds.texts.pairs import folded

SEARCHED = 20  # passages for each question: several may hold its answer


def with_negatives(
    examples: list[Example], texts: Mapping[str, str] | FolderTexts, count: int, without: Collection[str]
) -> list[Example]:
    """The examples, each one with an answer followed by at most `count` unanswerable ones with its question: the best
    passages of `texts` that hold none of its answers and are neither of its context nor of the texts `without`.

    Raises InputError: as `TextIndex`.
    """
    index = TextIndex(texts)
    every = []
    for example in examples:
        every.append(example)
        if not example.answers:
            continue
        answers = [folded(answer) for answer in example.answers]
        others = []
        for passage in index.best(example.question, SEARCHED + count):
            text = texts[passage.name][passage.begin : passage.end]
            id_ = f"{example.id}-negative{len(others) + 1}"
            holds_answer = any(answer in folded(text) for answer in answers)
            is_of_context = text in example.context or example.context in text
            if not (holds_answer or is_of_context or passage.name in without):
                others.append(replace(example, id=id_, context=text, answers=(), span=None, article=passage.name))
        every += others[:count]
    return every
