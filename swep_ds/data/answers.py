"""The fields of a question's row, and its answers in every form that files have them."""

import ast
import json
import math
import re
import string
import unicodedata
from contextlib import suppress
from typing import Any

from swep_ds.common.errors import InputError, excerpt

MRQA_COLUMN = "detected_answers"
GAPS = {"NaN", "nan", "None", "null", "NULL", "NA", "N/A", "<NA>"}  # what pandas writes and reads for no value
SUBJQA_NONE = "ANSWERNOTFOUND"  # which its contexts end with
DASHES = {"-", "–", "—"}
NO_ANSWER = {"n/a", "none", "no answer", "no_answer", "noanswer", "unanswerable", "not answerable"}
NO_ANSWER |= {"not in the document"}  # what people write for it, in any case, with or without a full stop
TRUE = ("true", "1", "1.0", "yes")
FALSE = ("false", "0", "0.0", "no")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
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
        raise InputError(
            f"field {name!r} is missing; add it, or name yours in data.columns (--columns) (found: "
            f"{excerpt(list(mapping))})"
        )
    if not isinstance(mapping[name], kind):
        raise InputError(f"field {name!r} is {excerpt(mapping[name])}; expected a {kind.__name__}")
    return mapping[name]


def text_field(mapping: dict[str, Any], name: str) -> str:
    """The field `name`, a string that is not blank."""
    value = field(mapping, name, str)
    if is_blank(value):
        raise InputError(f"{name} is empty; give its text, or set data.unanswerable to leave such questions out")
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
    else, or no such field.
    """
    given = _unpacked(row.get("answers"), context)
    if is_missing(given) or given in ("", [], {}):
        if "answer" not in row and says_impossible(row) is not True:
            field(row, "answers")
        given = _unpacked(row.get("answer"), context)
    if isinstance(given, str) and means_none(given, context):
        return []
    starts = _starts(row)
    if isinstance(given, dict):
        starts = _starts(given)
        given = field(given, "text")
    answers = listed(given)
    if any(isinstance(answer, dict) for answer in answers):
        answers = [answer for answer in answers if not _is_not_given(answer)]
        texts = [field(answer, "text") for answer in answers]
        starts = [_starts(answer) for answer in answers]
        answers = texts
    texts = [_text(answer, context) for answer in answers]
    starts = _unpacked(starts, "")
    if is_missing(starts) or not any(texts):
        starts = [None] * len(texts)
    starts = listed(starts)
    if len(starts) != len(texts):
        raise InputError(f"answer_start is {excerpt(starts)}; give one whole number for each text")
    return [(text, start) for text, start in zip(texts, starts, strict=True) if text]


def _starts(given: dict[str, Any]) -> Any:
    """`answer_start`, or else `start_char` (QRCD), or `start` if it is a whole number or a list of them."""
    if not is_missing(given.get("answer_start")):
        return given["answer_start"]
    if re.fullmatch(r"\[?\d+(\.0)?(, \d+(\.0)?)*\]?", str(given.get("start"))):
        return given["start"]
    return given.get("start_char")


def says_impossible(row: dict[str, Any]) -> bool | None:
    """Whether the question has no answer, by `is_impossible` or words for it (`means_none`); None if nothing says."""
    if any(map(_is_not_given, [row, *listed(row.get("answers"))])):
        return True
    said = str(row.get("is_impossible")).lower()
    if said in TRUE + FALSE:
        return said in TRUE
    given = row.get("answers") or row.get("answer")
    return True if isinstance(given, str) and means_none(given, str(row.get("context"))) else None


def means_none(answer: str, context: str) -> bool:
    """Whether a cell is a dash, which many texts have, or words for "no answer" that its own text has not."""
    words = answer.strip().rstrip(".").rstrip()
    if words.lower() in NO_ANSWER:
        return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", context) is None
    return words in DASHES


def _is_not_given(answer: Any) -> bool:
    """Whether an answer, or its row, says that there is none: Haystack's annotation tool writes this beside a span."""
    return isinstance(answer, dict) and answer.get("answer_category") == "NOT_GIVEN"


def says_none(row: dict[str, Any]) -> bool:
    """Whether a row without an answer says so: by `is_impossible`, or by a list or an object without any."""
    return says_impossible(row) is True or isinstance(_unpacked(row.get("answers"), ""), list | dict)


def listed(value: Any) -> list[Any]:
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
    """An answer's text; "" for a blank one, a gap or a remark such as "no answer". pandas makes numbers of a column of
    years, and of one with gaps 1852.0."""
    if is_missing(value):
        return ""
    if isinstance(value, float) and str(value) not in context:
        value = str(value).removesuffix(".0")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"the answer {excerpt(value)} is not text; give a string")
    says_none = value in GAPS or value in DASHES or value.strip().lower() in NO_ANSWER
    if is_blank(value) or value == SUBJQA_NONE or (says_none and value not in context):
        return ""
    return value
