"""Questions that name their document in place of a context: where it has the answer, and the passage around that.

The answer may differ from the document in what Word and Excel change: case, quotation marks, dashes, hyphens and
blanks. The context is what `passages.cut` gives a reader at that place, so training sees what answering will see.
"""

import difflib
import math
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cache, cached_property, lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np

from swep_ds.common.errors import InputError, excerpt
from swep_ds.data.choices import LeftOut
from swep_ds.data.places import starts, word_ends
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.passages import cut
from swep_ds.texts.words import grams, words

SEVERAL = "the answer occurs several times in its document: taken where the words around it are most like the question"
NOWHERE = "its document does not hold the answer: left out; copy it from the document"
INSIDE = "its document has the answer only at the beginning of longer words"
DOCUMENTS_KEPT = 16  # read documents: rows about one mostly follow each other
_QUOTES = "\"'`´‘’‚‛“”„‟‹›«»"
_DROPPED = ("Zs", "Zl", "Zp", "Cc", "Cf", "Pd")  # categories of Unicode: blanks, line breaks, soft hyphens, dashes


@cache
def _folded(character: str) -> str:
    if character in _QUOTES:
        return "'"
    if unicodedata.category(character) in _DROPPED or character == "\N{MINUS SIGN}":
        return ""
    return unicodedata.normalize("NFKD", character).casefold()


def folded(text: str) -> str:
    """The text without case, blanks and dashes, and with one kind of quotation mark."""
    return "".join(map(_folded, text))


class Searched:
    """The text of a document in which answers are looked for, with its passages."""

    def __init__(self, text: str):
        self.text = text
        self.begins: list[int] = []  # one per passage, in their order
        self.ends: list[int] = []
        self._passages_of = defaultdict(lambda: array("i"))  # by term the numbers of the passages that have it
        for number, (begin, end, of_passage, pieces) in enumerate(cut(text)):
            self.begins.append(begin)
            self.ends.append(end)
            for term in {*of_passage.split(), *pieces.split()}:
                self._passages_of[term].append(number)

    @cached_property
    def folded(self) -> tuple[str, np.ndarray]:
        """The folded text, and the place in `text` of each of its characters."""
        pieces = list(map(_folded, self.text))
        return "".join(pieces), np.repeat(np.arange(len(pieces), dtype=np.int32), list(map(len, pieces)))

    def places(self, answer: str) -> tuple[list[tuple[int, int]], bool]:
        """Where it is [begin, end), and whether it is whole words there: letter by letter, or else folded; or else
        folded at the beginning of a word, as in languages that write endings onto words."""
        exact = [(begin, begin + len(answer)) for begin in starts(self.text, answer)]
        whole = [place for place in exact if all(word_ends(self.text, *place))]
        if whole:
            return whole, True
        text, places = self.folded
        wanted = folded(answer)
        begins = []
        for first in starts(text, wanted):
            place = (int(places[first]), int(places[first + len(wanted) - 1]) + 1)
            starts_word, ends_word = word_ends(self.text, *place)
            if starts_word and ends_word:
                whole.append(place)
            elif starts_word and wanted[-1].isalpha():
                begins.append(place)
        return whole or begins, bool(whole)

    def likeness(self, asked: list[str]) -> np.ndarray:
        """What each passage shares with these words [P], each weighted by how rare it is in the document."""
        likeness_P = np.zeros(len(self.begins))
        for term in sorted(({*asked, *grams(asked)} - {""}) & self._passages_of.keys()):
            passages = np.asarray(self._passages_of[term])
            likeness_P[passages] += math.log(1 + len(self.begins) / len(passages))
        return likeness_P

    def around(self, begin: int, end: int) -> tuple[int, int]:
        """Where the passages that hold characters [begin, end) begin and end."""
        passages = self.holding(begin, end)
        return self.begins[passages][0], self.ends[passages][-1]

    def holding(self, begin: int, end: int) -> slice:
        """The passages that hold characters [begin, end), or else those that overlap them."""
        first, last = bisect_left(self.ends, end), bisect_right(self.begins, begin)
        if first >= last:
            first, last = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        return slice(first, last)


class PairLocator:
    """Finds answers in the documents of a folder. Called with the name of a document, a question and its answers."""

    def __init__(self, texts: FolderTexts):
        self._texts = texts
        self._document = lru_cache(DOCUMENTS_KEPT)(lambda name: Searched(texts[name]))

    def __call__(self, given: str, question: str, answers: list[str]) -> tuple[dict[str, Any], str]:
        """Raises InputError: there is no such document, or several, or it cannot be read or has no word. LeftOut: it
        holds none of the answers."""
        name = self._name(given)
        document = self._document(name)
        if not document.begins:
            raise InputError(f"document {excerpt(name)}: has no word: name another one")
        asked = words(question)
        for answer in answers:
            places, whole = document.places(answer.strip())
            if places:
                remark = ""
                if len(places) > 1:
                    remark = SEVERAL
                    likeness_P = document.likeness(asked)
                    places.sort(key=lambda place: -likeness_P[document.holding(*place)].max())
                elif not whole:
                    remark = INSIDE
                begin, end = places[0]
                first, last = document.around(begin, end)
                texts = [document.text[begin:end], *(other for other in answers if other != answer)]
                placed = {"text": texts, "answer_start": [begin - first] + [None] * (len(texts) - 1)}
                return {"title": name, "context": document.text[first:last], "answers": placed}, remark
        nearest = document.likeness([*asked, *(word for answer in answers for word in words(answer))]).argmax()
        passage = document.text[document.begins[nearest] : document.ends[nearest]]
        if answers:
            raise LeftOut(NOWHERE, passage)
        return {"title": name, "context": passage}, ""

    @cached_property
    def _names(self) -> dict[str, set[str]]:
        """The documents by what people may write for each: with or without its folders and its suffix, in any case,
        with other blanks and marks."""
        names = defaultdict(set)
        for name in self._texts.names():
            path = PurePath(name)
            for form in (name, str(path.with_suffix("")), path.name, path.stem):
                names[form].add(name)
                names[_letters(form)].add(name)
        return names

    def _name(self, given: str) -> str:
        if not given.strip():
            raise InputError("document is empty: name one, or give a context")
        path = PurePath(given.replace("\\", "/"))
        for form in (str(path), _letters(str(path)), path.name, _letters(path.name)):
            if matches := sorted(self._names.get(form, ())):
                if len(matches) > 1:
                    raise InputError(
                        f"document {excerpt(given)}: may be {', '.join(matches)}: give its path in the folder"
                    )
                return matches[0]
        close = difflib.get_close_matches(_letters(given), self._names, n=1)
        meant = ""
        if close:
            meant = f"; did you mean {min(self._names[close[0]])!r}?"
        raise InputError(f"document {excerpt(given)}: {self._texts.what} has no such text{meant}")


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, folded(name)))
