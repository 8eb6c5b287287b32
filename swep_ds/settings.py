"""The base of all typed settings: what no field of them takes."""

import unicodedata
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

LONGEST_TEXT = 4096  # characters; the most bytes that Linux takes for a path


class Section(BaseModel):
    """Settings by name. An unknown name is an error, as are NaN, a bool for a number, and text of several lines."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, tree: Any) -> Any:
        for name, value in tree.items() if isinstance(tree, dict) else ():
            if name in cls.model_fields:
                kinds = set(_leaves_of_type(cls.model_fields[name].annotation))
                if any(isinstance(kind, type) and issubclass(kind, Section) for kind in kinds):
                    continue  # a section looks at its own fields
                fault = next(filter(None, (_fault(leaf, kinds) for leaf in leaves(value))), None)
                if fault:
                    raise FieldFault(name, fault)
        return tree


class FieldFault(ValueError):
    """What is wrong with a field, by its name in the section."""

    def __init__(self, name: str, text: str):
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


def _fault(leaf: Any, kinds: set[Any]) -> str | None:
    if isinstance(leaf, bool) and kinds & {int, float} and bool not in kinds:
        return f"{leaf} is no number: write one"
    if not isinstance(leaf, str):
        return None
    if len(leaf) > LONGEST_TEXT:
        return f"text of {len(leaf):,} characters: shorten it to {LONGEST_TEXT:,}"
    # control characters, halves of surrogate pairs, separators of lines and paragraphs
    wrong = next((c for c in leaf if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None)
    if wrong is None:
        return None
    return f"{leaf[:60]!r} holds {wrong!r}: write one line without control characters"


def leaves(value: Any) -> Iterator[Any]:
    """What lists and mappings hold in the end, keys too."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list | tuple | set):
            waiting += part
        else:
            yield part


def _leaves_of_type(annotation: Any) -> Iterator[Any]:
    if inner := get_args(annotation):
        for part in inner:
            yield from _leaves_of_type(part)
    else:
        yield annotation
