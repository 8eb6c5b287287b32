"""Reads and checks the fields of JSON objects and table rows. A message says what is wrong; `at` adds where."""

import ast
import json
import math
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from swep_ds.common.errors import InputError

_BLANK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode

# a text, a number or the end of a list, and the white space by which NumPy separates it from the next value
_VALUE_AND_GAP = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+|[\])}])(\s+(?=['"\w\[{+-]))?""", re.DOTALL
)
_NUMPY = re.compile(r"array|str_|bool_?|u?int\d+|float\d+")  # calls by which NumPy prints its values


@contextmanager
def at(place: str) -> Iterator[None]:
    """Puts the place in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def excerpt(value: Any) -> str:
    """A value as a message shows it: on one line and short."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def field(mapping: dict[str, Any], name: str, kind: type = object) -> Any:
    """`mapping[name]`, which must be of `kind`. Raises InputError: it is not, or is missing."""
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
    pandas and `datasets` writes for them. Nothing is executed. Raises InputError: it is neither."""
    with suppress(ValueError):
        return json.loads(text)
    # NumPy prints ['a' 'b'], which Python would take for ['ab']
    printed = _VALUE_AND_GAP.sub(lambda match: match[1] + "," if match[2] else match[1], text.strip())
    try:
        return _value(ast.parse(printed, mode="eval").body)
    except (SyntaxError, ValueError, TypeError):
        raise InputError(
            f"{excerpt(text)} is neither JSON nor a list or dict as Python prints it; a text that begins with [ or {{ "
            "goes into a JSON list of texts"
        ) from None


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
