"""The texts of a folder as they are shown: quoted around an answer, whole, or found for a question."""

from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.evaluation.spans import Answer
from swep_ds.texts.documents import Document
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex, text_checksum
from swep_ds.texts.pairs import Searched
from swep_ds.texts.passages import Passage, joined

QUOTED = 400  # characters before and after an answer
FOUND = 10  # passages that a search shows


class Changed(InputError):
    """A text is no longer what was shown or indexed."""

    def __init__(self, name: str):
        super().__init__(f"{name} has changed since it was shown: ask again, or open it again")


class ShownTexts:
    """Those of an index, whose names alone are known: no other file of the folder is read."""

    def __init__(self, texts: FolderTexts, index: TextIndex):
        self.index = index
        self._texts = texts

    def document(self, name: str, version: str | None = None) -> tuple[Document, str]:
        """A document and the version of its text, which changes with it. Raises InputError: there is none, or it cannot
        be read; Changed: it is no longer in this `version`."""
        if name not in self.index.names:
            raise InputError(f"{name!r}: no such text: it may have been renamed or removed: ask again")
        document = self._texts.document(name)
        found = text_checksum(document.text)
        if version not in (None, found):
            raise Changed(name)
        return document, found

    def quoted(self, name: str, start: int, end: int) -> dict[str, Any]:
        """A place of a text, with the words around it."""
        document, version = self.document(name)
        first, last = _around(document.text, start, end)
        place = {"text": name, "start": start, "end": end, "version": version}
        place |= {"page": document.page(start), "heading": document.heading(start)}
        return place | {"passage": document.text[first:last], "passage_start": first}

    def reply(self, answer: Answer) -> dict[str, Any]:
        """An answer, quoted if it is a place. Raises Changed: the place says something else now."""
        shown = {"answer": answer.text, "probability": answer.probability, "text": answer.name}
        if answer.start is None:
            nowhere = dict.fromkeys(("start", "end", "page", "heading", "passage", "passage_start", "version"))
            return shown | nowhere
        quoted = self.quoted(answer.name, answer.start, answer.end)
        begin = answer.start - quoted["passage_start"]
        if quoted["passage"][begin : begin + len(answer.text)] != answer.text:
            raise Changed(answer.name)
        return shown | quoted

    def found(self, question: str) -> list[dict[str, Any]]:
        """The best passages for a question, without a model, best first; those that touch as one."""
        best = self.index.best(question, FOUND)
        pieces = joined(best)
        ranked: list[Passage] = []
        for passage in best:
            [piece] = [each for each in pieces if each.name == passage.name and each.begin <= passage.begin < each.end]
            if piece not in ranked:
                ranked.append(piece)
        found = []
        for name, begin, end in ranked:
            document, version = self.document(name)
            shown = {"text": name, "start": begin, "end": end, "version": version, "page": document.page(begin)}
            found.append(shown | {"heading": document.heading(begin), "passage": document.text[begin:end]})
        return found

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
