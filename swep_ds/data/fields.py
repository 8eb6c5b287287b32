"""Reads and checks the fields of JSON objects and table rows; one line names a fault."""

import math
import re
import reprlib
import unicodedata
from contextlib import suppress
from typing import Any

from swep_ds.common.errors import InputError

_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {str: "a string", int: "a whole number", list: "a list", dict: "an object", (str, int): "a string or number"}
_BLANK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode
_LIMIT = 80  # characters of a value in a message

_repr = reprlib.Repr()
_repr.maxlevel = 3
_repr.maxlist = _repr.maxdict = 8
_repr.maxstring = _repr.maxlong = _repr.maxother = _LIMIT


def excerpt(value: Any) -> str:
    """A value as a message shows it: printable, on one line and short, however deep or large."""
    text = _repr.repr(value)
    return text if len(text) <= _LIMIT else f"{text[: _LIMIT - 3]}..."


def field(mapping: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`mapping[name]`, which must be of `kind`: str, int, list, dict or (str, int).

    Raises:
        InputError: `mapping` is not an object, or the field is missing or of another kind; true and false are not
            numbers.
    """
    if not isinstance(mapping, dict):
        raise InputError(f"{where}: expected an object with the field {name!r}, found {excerpt(mapping)}")
    if name not in mapping:
        raise InputError(f"{where}: field {name!r} is missing; add it (found: {excerpt(list(mapping))})")
    value = mapping[name]
    if not isinstance(value, kind) or value is True or value is False:
        raise InputError(f"{where}: field {name!r} is {excerpt(value)}; expected {_KINDS[kind]}")
    return value


def text_field(mapping: Any, name: str, where: str) -> str:
    """The field `name`, a string that is not blank."""
    value = field(mapping, name, str, where)
    if is_blank(value):
        raise InputError(f"{where}: {name} is empty; give its text or leave it out of the data set")
    return require_text(value, name, where)


def is_blank(text: str) -> bool:
    """Whether a text has only spaces, control and format characters, such as U+200B, all of which tokenizers drop."""
    return all(unicodedata.category(character) in _BLANK for character in text)


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, or NaN, which pandas puts into the gaps of a column."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def whole_number(value: Any, name: str, where: str) -> int | None:
    """A whole number, which may be a float (pandas makes floats of a column with gaps) or a text of CSV; None if there
    is none. Raises InputError: it is anything else."""
    if is_missing(value) or (isinstance(value, str) and is_blank(value)):
        return None
    with suppress(TypeError, ValueError, OverflowError):
        number = int(float(value))
        if number == float(value) and not isinstance(value, bool):
            return number
    raise InputError(f"{where}: {name} is {excerpt(value)}; expected a whole number of characters, from 0")


def id_field(mapping: Any, name: str, where: str, otherwise: str | None = None) -> str:
    """A question's id. `otherwise` replaces a missing id, as in generated pairs; None = every question needs an id."""
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if otherwise and isinstance(mapping, dict) and (is_missing(value) or value == ""):
        return otherwise
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return require_text(str(field(mapping, name, (str, int), where)), name, where)


def require_text(value: str, name: str, where: str) -> str:
    """Returns `value`. Raises InputError: it holds half of a surrogate pair, which cannot be encoded as UTF-8."""
    if not value.isascii() and _SURROGATE.search(value):
        raise InputError(f"{where}: {name} holds half of a surrogate pair, which is not text; remove or complete it")
    return value
