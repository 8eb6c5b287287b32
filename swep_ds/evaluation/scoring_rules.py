"""The rules of published scorers, a row for each: how a text is normalised, what F1 counts, and what becomes of empty
texts. Exact match compares normalised texts. `Scorer` applies a row.

What the official scripts do is kept, although some of it surprises:
  - MLQA: Vietnamese loses classifiers and the word for "of"; Arabic loses its article's two letters wherever they
    stand, in the middle of words, too. An elided article stays with its word ("l'home" becomes "lhome"), because
    punctuation goes before the articles do. The script of CLUB, for XQuAD-ca and ViquiQuAD, adds Catalan's articles.
    French, Italian and Portuguese have no official script with articles (SQuAD-it names SQuAD's own): theirs are those
    of lighteval 3fd15266.
  - KLUE-MRC: "F1" is its ROUGE-W, the longest run of characters that both texts have, blanks included. The marks that
    KorQuAD makes blanks of stay, because the script's pattern asks for several of them in a row. In an accepted answer
    of 200 characters or more, no run begins at a frequent character (`difflib` takes them for junk).
  - JGLUE: the same rules score JSQuAD and JaQuAD. JaQuAD's own notebook accepts the characters in any order.
  - CMRC 2018 and DRCD: F1 is the longest run of Chinese characters and Western words. Some marks stay, such as "!", the
    ellipsis and an opening single quotation mark. Blanks at the ends are removed before marks are. Western words are
    those of NLTK 3.9.1's tokenizer, here without its cut into sentences.
  - ARCD is scored by SOQAL's script, in which Arabic punctuation counts.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Literal

from swep_ds.data.answers import normalize_answer

Step = Callable[[str], str]
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
    "ca": r"\b(un|una|uns|unes|el|la|els|les)\b",
    "fr": r"\b(le|la|les|un|une|des)\b",
    "it": r"\b(il|lo|la|i|gli|le|un|uno|una)\b",
    "pt": r"\b(o|a|os|as|um|uma|uns|umas)\b",
}
LANGUAGES = ("ar", "ca", "de", "en", "es", "fr", "hi", "it", "pt", "vi", "zh")
HAN_OF_MLQA = "\u4e00-\u9fa5"  # CMRC's as well
HAN_OF_BERT = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
CMRC_MARKS = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
DUREADER_MARKS = ":_`，。：？！()“”；’《》·、,「」（）－～『』|"


def drop(characters: str) -> Step:
    table = str.maketrans("", "", characters)
    return lambda text: text.translate(table)


def blank(pattern: str) -> Step:
    """Puts a blank in the place of each match."""
    return partial(re.compile(pattern).sub, " ")


def collapse(text: str) -> str:
    """Single blanks between words, and none at the ends."""
    return " ".join(text.split())


def normalize_mlqa(text: str, language: str) -> str:
    """MLQA's normalisation (Lewis et al., ACL 2020; the official scorer, version 1): lower case, without ASCII
    punctuation, Unicode's categories P* and the language's articles. In Chinese every character from U+4E00 to U+9FA5
    is a token."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    if language in ARTICLES:
        kept = re.sub(ARTICLES[language], " ", kept)
    if language == "zh":
        kept = re.sub(f"([{HAN_OF_MLQA}])", r" \1 ", kept)
    return collapse(kept)


# several full stops; a quotation mark; a comma, unless in a number; a mark; a word, with the marks inside it
_MARKS = r"\]\[;@#$%&?!(){}<>«»„“”‘’"
_WESTERN = re.compile(rf"""\.{{2,}}|''|,(?!\d)|[{_MARKS}]|(?:[^\s",.'{_MARKS}]|,(?=\d)|\.(?!\.)|'(?!'))+""")


def western_words(text: str) -> list[str]:
    """The words and marks of a lower-case text, as the Penn Treebank splits them: "it's 5%." has it, 's, 5, % and a
    full stop."""
    text = re.sub(r"""(?<=[^.])\.(?=[])}>"'»\s]*$)""", " .", text)  # the last full stop is no part of its word
    text = re.sub(r"""^"|(?<=[ (\[{<])("|'')""", " `` ", text).replace('"', "''")  # quotation marks open or close
    words = []
    for word in _WESTERN.findall(text):
        word = re.sub(r"(?<=[^' ])('[smd]|'ll|'re|'ve|n't|')$", r" \1", word)
        word = re.sub(r"'(?![mtsdn])(\w)\b", r" ' \1", word)
        word = re.sub(r"\b(can(?=not)|gim(?=me)|gon(?=na)|got(?=ta)|lem(?=me))(not|me|na|ta)\b", r" \1 \2 ", word)
        words += word.split()
    return words


def cmrc_units(text: str) -> list[str]:
    """Chinese characters, and the Western words between them."""
    return [unit for part in re.split(f"([{HAN_OF_MLQA}])", text) for unit in western_words(part)]


def dureader_units(text: str) -> list[str]:
    """Chinese characters and "=", and whatever stands between them."""
    return [unit for unit in re.split(f"([{HAN_OF_BERT}=])", text) if unit]


def in_common(predicted: Sequence[str], gold: Sequence[str]) -> int:
    """How many units two texts share, in any order."""
    different = set(predicted)
    if len(different) == len(predicted):  # most answers: counting takes ten times as long
        return len(different.intersection(gold))
    return (Counter(predicted) & Counter(gold)).total()


def longest_run(predicted: Sequence[str], gold: Sequence[str], *, skips_frequent: bool = False) -> int:
    """The length of the longest run of units that both texts have. With `skips_frequent`, no run begins at a unit that
    makes up more than 1 % of a `gold` of 200 units or more."""
    matcher = SequenceMatcher(None, predicted, gold, autojunk=skips_frequent)
    return matcher.find_longest_match(0, len(predicted), 0, len(gold)).size


@dataclass(frozen=True)
class Rules:
    """A scorer. `units` are what F1 counts in a normalised text, and `overlap` how many of them two texts share."""

    name: str
    steps: Sequence[Step]
    units: Callable[[str], Sequence[str]] = str.split
    overlap: Callable[[Sequence[str], Sequence[str]], int] = in_common
    v2_name: str | None = None  # where some question of a data set has no answer; None: `name`, and that v2.0 decides
    # None: v2.0's rules for empty texts hold where some question has no answer. Else they hold in every data set, and
    # accepted answers that normalise to nothing are dropped or kept
    empty: Literal["dropped", "kept"] | None = None

    def normalize(self, text: str) -> str:
        for step in self.steps:
            text = step(text)
        return text


RULES = {
    "squad": Rules("SQuAD v1.1", [normalize_answer], v2_name="SQuAD v2.0"),
    "korquad": Rules(
        "KorQuAD 1.0",
        [blank("""['"《》<>〈〉()‘’]"""), str.lower, drop(string.punctuation), collapse],
        drop(" "),
    ),
    "klue": Rules(
        "KLUE-MRC",
        [blank("""['"《》<>〈〉]\\(\\)‘’"""), str.lower, drop(string.punctuation), collapse],
        str,
        partial(longest_run, skips_frequent=True),
        empty="kept",
    ),
    "jglue": Rules("JGLUE", [str.lower, blank(r"。+\Z"), collapse], str, empty="dropped"),
    "cmrc": Rules("CMRC 2018", [str.lower, str.strip, drop(CMRC_MARKS)], cmrc_units, longest_run),
    "dureader": Rules("DuReader-robust", [str.lower, drop(DUREADER_MARKS)], dureader_units, longest_run),
    "persianqa": Rules("PersianQA", [blank("\u200c"), str.strip], str),
    "arcd": Rules("ARCD", [normalize_answer, blank(ARTICLES["ar"]), collapse]),
}
SCORERS = ("mlqa", *RULES)
for language in LANGUAGES:
    name = f"MLQA ({language})"
    RULES[f"mlqa {language}"] = Rules(name, [partial(normalize_mlqa, language=language)], v2_name=f"{name}, v2.0")
