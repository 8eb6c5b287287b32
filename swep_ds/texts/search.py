"""A user's own search engine in place of the index."""

from collections.abc import Callable, Iterable

from swep_ds.common.errors import InputError, excerpt
from swep_ds.texts.passages import Passage, Piece

# (question, count) -> the best passages, best first: the name of each one's text, what it says and, where it does not
# begin that text, the character at which it begins there
Search = Callable[[str, int], Iterable[tuple[str, str] | tuple[str, str, int]]]


class UserSearch:
    """What `TextIndex.pieces` gives, from a `Search`. Each passage is read as it is."""

    texts = None  # are not known as a whole

    def __init__(self, search: Search):
        self._search = search

    def pieces(self, question: str, count: int) -> list[Piece]:
        """Raises InputError: what the search gives is no passage."""
        pieces = []
        for passage in self._search(question, count):
            match passage:
                case (str(name), str(text)):
                    begin = 0
                case (str(name), str(text), int(begin)):
                    pass
                case _:
                    given = excerpt(passage)
                    raise InputError(f"the search gives {given}: give (name, text) or (name, text, begin) of a passage")
            if text.strip():
                pieces.append((Passage(name, begin, begin + len(text)), text))
        return pieces[:count]
