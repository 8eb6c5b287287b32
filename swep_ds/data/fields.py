"""Reads and checks the fields of JSON objects and table rows; one line names a fault."""

import re
import reprlib
import unicodedata
from typing import Any

from swep_ds.errors import InputError

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
        raise InputError(f"{where}: field {name!r} is missing; add it (there: {excerpt(list(mapping))})")
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


def id_field(mapping: Any, name: str, where: str, otherwise: str | None = None) -> str:
    """A question's id. `otherwise` replaces a missing id, as in generated pairs; None = every question needs an id."""
    if otherwise and isinstance(mapping, dict) and mapping.get(name) is None:
        return otherwise
    return require_text(str(field(mapping, name, (str, int), where)), name, where)


def require_text(value: str, name: str, where: str) -> str:
    """Returns `value`. Raises InputError: it holds half of a surrogate pair, which cannot be encoded as UTF-8."""
    if not value.isascii() and _SURROGATE.search(value):
        raise InputError(f"{where}: {name} holds half of a surrogate pair, which is not text; remove or complete it")
    return value
