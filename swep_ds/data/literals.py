"""Lists and objects that a table holds as text: in JSON, or as Python and NumPy print them."""

import ast
import json
import re
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.data.fields import excerpt

# a text, a number or the end of a list, and the white space by which NumPy separates it from the next value
_VALUE_AND_GAP = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+|[\])}])(\s+(?=['"\w\[{+-]))?""", re.DOTALL
)
_NUMPY = re.compile(r"array|str_|bool_?|u?int\d+|float\d+")  # calls by which NumPy prints its values


def nested_value(text: str) -> Any:
    """The value of a text in JSON, or as Python and NumPy print lists, dicts, texts and numbers: what `to_csv` of
    pandas and `datasets` writes for them. Nothing is executed. Raises InputError: it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return _value(ast.parse(_VALUE_AND_GAP.sub(_with_comma, text.strip()), mode="eval").body)
    except (SyntaxError, ValueError, TypeError):
        raise InputError(f"{excerpt(text)} is neither JSON nor a list or dict as Python prints it") from None


def _with_comma(match: re.Match[str]) -> str:
    """NumPy prints ['a' 'b'], which Python would take for ['ab']."""
    return match[1] + "," if match[2] else match[1]


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
