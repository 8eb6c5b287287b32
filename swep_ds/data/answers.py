"""The fields of a question's row: answers in every form that files have them, and the training answer's place."""

import ast
import json
import math
import re
import string
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from swep_ds.common.errors import InputError, excerpt

MRQA_COLUMN = "detected_answers"
GAPS = {"NaN", "nan", "None", "null", "NULL", "NA", "N/A", "<NA>"}  # what pandas writes and reads for no value
TRUE = ("true", "1", "1.0")
FALSE = ("false", "0", "0.0")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, kana and Han
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_BLANK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode

# a text, a number or the end of a list, and the white space by which NumPy separates it from the next value
_VALUE_AND_GAP = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+|[\])}])(\s+(?=['"\w\[{+-]))?""", re.DOTALL
)
_NUMPY = re.compile(r"array|str_|bool_?|u?int\d+|float\d+")  # calls by which NumPy prints its values


def field(mapping: Any, name: str, kind: type = object) -> Any:
    """`mapping[name]`. Raises InputError: it is missing, or not of `kind`."""
    if not isinstance(mapping, dict):
        raise InputError(f"expected an object with the field {name!r}, found {excerpt(mapping)}")
    if name not in mapping:
        raise InputError(f"field {name!r} is missing; add it (found: {excerpt(list(mapping))})")
    if not isinstance(mapping[name], kind):
        raise InputError(f"field {name!r} is {excerpt(mapping[name])}; expected a {kind.__name__}")
    return mapping[name]


def text_field(mapping: dict[str, Any], name: str) -> str:
    """The field `name`, a string that is not blank."""
    value = field(mapping, name, str)
    if is_blank(value):
        raise InputError(f"{name} is empty; give its text or leave it out of the data set")
    return value


def is_blank(text: str) -> bool:
    """Whether a text has only spaces, control and format characters, such as U+200B, all of which tokenizers drop."""
    return all(unicodedata.category(character) in _BLANK for character in text)


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, or NaN, which pandas puts into the gaps of a column."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def nested_value(text: str) -> Any:
    """The value of a text in JSON, or as Python and NumPy print lists, dicts, texts and numbers: what `to_csv` of
    pandas and `datasets` writes for them. Nothing is executed. Raises ValueError, SyntaxError or TypeError: neither."""
    with suppress(ValueError):
        return json.loads(text)
    # NumPy prints ['a' 'b'], which Python would take for ['ab']
    printed = _VALUE_AND_GAP.sub(lambda match: match[1] + "," if match[2] else match[1], text.strip())
    return _value(ast.parse(printed, mode="eval").body)


def _value(node: ast.AST) -> Any:
    match node:
        case ast.List() | ast.Tuple():
            return [_value(element) for element in node.elts]
        case ast.Dict():
            return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.Name(id="nan"):
            return None
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[made_of]) if _NUMPY.fullmatch(name):
            return _value(made_of)
    return ast.literal_eval(node)  # a text, a number, or an error


@lru_cache(2**16)  # both metrics of every evaluation normalise the same gold answers
def normalize_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, without ASCII punctuation, the words a, an, the and extra white space.
    "Well-known" becomes "wellknown". Other dashes and quotation marks of Unicode stay."""
    text = text.lower().translate(_DROP_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answer_pairs(row: dict[str, Any], context: str) -> list[tuple[str, Any]]:
    """The answers of a question as (text, offset or None), without blank ones and gaps (`GAPS`).

    They are in `answers`, or else in `answer`: one text, a list of texts, an object {text, answer_start} of two lists
    or of one text and its offset, or a list of such objects. Next to texts, `answer_start` has their offset or a list
    of offsets. Any of these may be written as a text (`_unpacked`). A number is a text. Raises InputError: anything
    else; no such field, or `is_impossible` contradicts the answers.
    """
    impossible = str(row.get("is_impossible")).lower()
    given = _unpacked(row.get("answers"), context)
    if is_missing(given) or given in ("", [], {}):
        if "answer" not in row and impossible not in TRUE:
            field(row, "answers")
        given = _unpacked(row.get("answer"), context)
    starts = _starts(row)
    if isinstance(given, dict):
        starts = _starts(given)
        given = field(given, "text")
    answers = _listed(given)
    if any(isinstance(answer, dict) for answer in answers):
        texts = [field(answer, "text") for answer in answers]
        starts = [_starts(answer) for answer in answers]
        not_given = [answer.get("answer_category") == "NOT_GIVEN" for answer in answers]  # Haystack's, beside a span
        answers = ["" if none else text for none, text in zip(not_given, texts, strict=True)]
    texts = [_text(answer, context) for answer in answers]
    starts = _unpacked(starts, "")
    if is_missing(starts) or not any(texts):
        starts = [None] * len(texts)
    starts = _listed(starts)
    if len(starts) != len(texts):
        raise InputError(f"answer_start is {excerpt(starts)}; give one whole number for each text")
    pairs = [(text, start) for text, start in zip(texts, starts, strict=True) if text]
    if pairs and impossible in TRUE:
        raise InputError("is_impossible is true, but it has answers: correct one of the two")
    if not pairs and impossible in FALSE:
        raise InputError("is_impossible is false, but it has no answers: correct one of the two")
    return pairs


def _starts(given: dict[str, Any]) -> Any:
    """`answer_start`, or else `start` if it is a whole number or a list of them."""
    starts = given.get("answer_start")
    other = given.get("start")
    if is_missing(starts) and re.fullmatch(r"\[?\d+(\.0)?(, \d+(\.0)?)*\]?", str(other)):
        return other
    return starts


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unpacked(value: Any, context: str) -> Any:
    """The list or object that a text holds in JSON or as Python prints it (`nested_value`). A text that the context has
    letter by letter, such as "[1]", and one that is no list, such as "[MASK] token", stay texts."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    if value.strip() in context and value.strip() not in ("[]", "{}"):
        return value
    try:
        return nested_value(value)
    except (ValueError, SyntaxError, TypeError):
        if not re.match(r"""[\s\[{]+['"]""", value):
            return value
    raise InputError(f"{excerpt(value)} is neither JSON nor a list or dict as Python prints it: correct it")


def _text(value: Any, context: str) -> str:
    """An answer's text; "" for a blank one or a gap. pandas makes numbers of a column of years, and of one with gaps
    1852.0."""
    if is_missing(value):
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"the answer {excerpt(value)} is not text; give a string")
    if is_blank(value) or (value in GAPS and value not in context):
        return ""
    if re.fullmatch(r"\d+\.0", value) and value not in context:
        return value[:-2]
    return value


def training_span(
    row: dict[str, Any], context: str, text: str, start: Any, *, repeated: bool
) -> tuple[int, int] | None:
    """Characters [start, end) of the training answer: MRQA's, or `text` at `start`, which may be missing, a float
    (pandas makes floats of a column with gaps) or a text of CSV. None as in `find_answer`. Raises InputError: it is not
    there."""
    if MRQA_COLUMN in row:
        return mrqa_span(context, row[MRQA_COLUMN])
    if is_missing(start) or (isinstance(start, str) and is_blank(start)):
        return find_answer(context, text, repeated=repeated)
    try:
        number = float(start)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer() or number < 0:
        raise InputError(f"answer_start is {excerpt(start)}; expected a whole number of characters, from 0")
    begin = int(number)
    actual = context[begin : begin + len(text)]
    if actual != text:
        raise _elsewhere(text, f"is not at answer_start {begin}", actual)
    return _bare(text, begin)


def mrqa_span(context: str, detected: list[dict[str, Any]]) -> tuple[int, int]:
    """Characters [start, end) of the first of MRQA's detected answers. The shared task looked answers up with SQuAD's
    normalisation and in detokenised text: texts that differ only in white space, case, punctuation and articles are the
    same answer. Raises InputError: there is none, or another text."""
    if not detected:
        raise InputError("no detected_answers to train on; leave the question out")
    text = detected[0]["text"]
    start, last = detected[0]["char_spans"][0]
    actual = context[start : last + 1] if start >= 0 else ""  # a slice counts negative places from the end
    for form in (str.casefold, normalize_answer):  # the second makes nothing of some texts, such as "the" and "?!"
        bare = "".join(form(actual).split())
        if bare and bare == "".join(form(text).split()):
            return _bare(actual, start)
    raise _elsewhere(text, f"is not at char_spans {[start, last]}", actual)


def _elsewhere(text: str, said: str, actual: str) -> InputError:
    return InputError(
        f"the answer {excerpt(text)} {said} of its context, which has {excerpt(actual)} there; correct the "
        "offset (in characters, from 0)"
    )


def _bare(text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the text at `start`, without white space at its ends: a token may begin with the space
    before its word, so a blank at the end would add the next word's token."""
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def find_answer(context: str, text: str, *, repeated: bool = False) -> tuple[int, int] | None:
    """Characters [start, end) of the answer `text`, which the file gives without an offset. With `repeated`, None for
    one that occurs several times. Raises InputError: the context does not hold it exactly once as whole words."""
    text = text.strip()
    starts = list(occurrences(context, text))
    if len(starts) == 1:
        return starts[0], starts[0] + len(text)
    if not starts:
        raise InputError(f"the answer {excerpt(text)} does not occur in its context; correct it, or drop the question")
    if repeated:
        return None
    raise InputError(
        f"the answer {excerpt(text)} occurs {len(starts)} times in its context; give its answer_start (in characters, "
        "from 0), or set data.repeated_answers to first (its first place is trained on) or drop"
    )


def occurrences(context: str, text: str) -> Iterator[int]:
    """Where `text`, which is not empty, begins in `context` as whole words. Between characters of a script without
    spaces any place may end a word."""

    def in_spaced_word(character: str) -> bool:
        if _UNSPACED.match(character):
            return False
        return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")

    def splits_a_word(at: int) -> bool:
        return 0 < at < len(context) and in_spaced_word(context[at - 1]) and in_spaced_word(context[at])

    begin = context.find(text)
    while begin >= 0:
        if not (splits_a_word(begin) or splits_a_word(begin + len(text))):
            yield begin
        begin = context.find(text, begin + 1)
