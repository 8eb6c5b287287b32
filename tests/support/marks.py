"""Character offsets of tokens whose tokenizer leaves combining marks out, as an independent reference."""

import itertools
import unicodedata


def with_marks(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each token takes in the combining marks that follow it and that no token covers."""
    moved = []
    for (start, end), (limit, _) in itertools.pairwise([*offsets, (len(text), 0)]):
        marks = itertools.takewhile(is_mark, text[end : max(end, limit)])
        moved.append((start, end + len(list(marks))))
    return moved


def is_mark(character: str) -> bool:
    """A combining mark, a voicing mark of half-width kana, a vowel or an end of a Hangul syllable."""
    code = ord(character)
    return unicodedata.category(character)[0] == "M" or code in (0xFF9E, 0xFF9F) or 0x1160 <= code <= 0x11FF
