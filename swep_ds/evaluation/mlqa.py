"""MLQA's normalisation of answers by language (Lewis et al., ACL 2020; the official scorer, version 1).

It lowers the text, drops ASCII punctuation and every character of Unicode's categories P*, blanks the language's
articles, and splits the text into tokens: at white space, and in Chinese also around every character from U+4E00 to
U+9FA5. Two effects of the official rules are kept: Vietnamese loses classifiers and the word for "of", and Arabic loses
its article's two letters wherever they stand, in the middle of words, too.
"""

import re
import string
import unicodedata
from functools import lru_cache
from typing import Literal, get_args

ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
}
Language = Literal["ar", "de", "en", "es", "hi", "vi", "zh"]
LANGUAGES = get_args(Language)


@lru_cache(2**16)
def normalize_mlqa(text: str, language: Language) -> str:
    """The normalised tokens of `text`, with a space between them; `language` is one of `LANGUAGES`."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    if language in ARTICLES:
        kept = re.sub(ARTICLES[language], " ", kept)
    if language == "zh":
        kept = re.sub("([\u4e00-\u9fa5])", r" \1 ", kept)
    return " ".join(kept.split())
