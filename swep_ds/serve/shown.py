"""The texts of a folder as they are shown: quoted around an answer, whole, or found for a question."""

import time
from contextlib import suppress
from threading import Lock
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.evaluation.spans import Answer
from swep_ds.texts.documents import Document
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex, text_checksum
from swep_ds.texts.pairs import Searched
from swep_ds.texts.passages import Passage, joined

QUOTED = 400  # characters before and after an answer
LOOK_EVERY = 10  # seconds between two looks at the whole folder, which take a file system call for each text
FOUND = 10  # passages that a search shows


class Changed(InputError):
    """A text is no longer what was shown or indexed."""

    status = 409  # the reply's

    def __init__(self, name: str):
        super().__init__(f"{name} has changed since it was shown: ask again, or open it again")


class ShownTexts:
    """Those of an index, whose names alone are known: no other file of the folder is read."""

    def __init__(self, texts: FolderTexts, index: TextIndex):
        self.index = index
        self._texts = texts
        self._looked = time.monotonic()
        self._looking = Lock()

    def look(self) -> None:
        """Indexes what has changed in the folder, at most every `LOOK_EVERY` seconds. Raises as `TextIndex.refresh`."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_EVERY:
                self.index.refresh()
                self._looked = time.monotonic()

    def document(self, name: str, version: str | None = None) -> tuple[Document, str]:
        """A document and the version of its text, which changes with it. Raises InputError: there is none, or it cannot
        be read; Changed: it is no longer in this `version`."""
        if name not in self.index.names:
            raise InputError(f"{name!r}: no such text: it may have been renamed or removed: ask again")
        document = self._texts.document(name)
        current = text_checksum(document.text)
        if version not in (None, current):
            raise Changed(name)
        return document, current

    def reply(self, answer: Answer) -> dict[str, Any]:
        """An answer, quoted if it is a place of a text. Raises Changed: the place says something else now."""
        names = ("probability", "confidence", "start", "end", "page", "heading")
        shown = {name: getattr(answer, name) for name in names} | {"answer": answer.text, "text": answer.name}
        if answer.start is None:
            return shown
        document, version = self.document(answer.name)
        if document.text[answer.start : answer.end] != answer.text:
            raise Changed(answer.name)
        first, last = _around(document.text, answer.start, answer.end)
        return shown | {"passage": document.text[first:last], "passage_start": first, "version": version}

    def search(self, question: str) -> list[dict[str, Any]]:
        """The best passages for a question, without a model, best first; those that touch as one."""
        self.look()
        self.index.pieces(question, FOUND)  # which indexes texts that have changed since
        best = self.index.best(question, FOUND)

        def rank(piece: Passage) -> int:
            holds = (p.name == piece.name and piece.begin <= p.begin < piece.end for p in best)
            return list(holds).index(True)

        passages = []
        for name, begin, end in sorted(joined(best), key=rank):
            document, version = self.document(name)
            shown = {"text": name, "start": begin, "end": end, "version": version, "page": document.page(begin)}
            passages.append(shown | {"heading": document.heading(begin), "passage": document.text[begin:end]})
        return passages

    def holds(self, reply: dict[str, Any]) -> bool:
        """Whether the texts that a reply and its others quote are what they were."""
        with suppress(InputError):
            for place in (reply, *reply["others"]):
                if place["start"] is not None:
                    self.document(place["text"], place["version"])
            return True
        return False

    def context(self, name: str, version: str | None, start: int, end: int) -> tuple[str, int]:
        """What a reader is given of a text at characters [start, end), as in training on `data.texts`, and where that
        begins. Raises as `document`; or InputError: the text is shorter, or has no words."""
        text = self.document(name, version)[0].text
        searched = Searched(text)
        if end > len(text) or not searched.begins:
            raise InputError(f"characters {start} to {end}: {name} has no words there: mark words of it")
        first, last = searched.around(start, end)
        return text[first:last], first


def _around(text: str, start: int, end: int) -> tuple[int, int]:
    """`QUOTED` characters more on both sides, without a word that this cuts."""
    first, last = max(0, start - QUOTED), min(len(text), end + QUOTED)
    if first:
        first = 1 + max(text.find(" ", first, start), first - 1)
    if last < len(text):
        last = max(text.rfind(" ", end, last), end)
    return first, last
