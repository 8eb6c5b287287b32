"""Sections of settings, validated: their fields are typed, and a fault is an `InputError` of one line."""

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from swep_ds.common.errors import InputError
from swep_ds.common.settings.messages import Advice, FieldFault, argument, explain, faults_of, join, option, shown
from swep_ds.common.settings.schema import add_meanings

MAX_TEXT = 4096  # characters of a value; Linux takes no longer path


def _title(settings: type[BaseModel]) -> str:
    """What messages call settings that were made in Python: their class, unless they are the arguments of a call."""
    return settings.model_config.get("title") or settings.__name__


class _Settings(type(BaseModel)):
    """Settings made in Python raise `InputError`, as those of a file do."""

    def __call__(cls, *args, **values):
        if args:
            raise InputError(f"{_title(cls)}: {shown(args[0])}: give each setting by its name, as in NAME=VALUE")
        try:
            return super().__call__(**without_paths(values))
        except ValidationError as error:
            messages = [explain(fault, cls, argument) for fault in faults_of(error)]
            raise InputError(f"{_title(cls)}: {join(messages)}") from None


class Section(BaseModel, metaclass=_Settings):
    """Settings by name. Unknown names, NaN, a bool in place of a number, and text of several lines are errors.

    `kinds` has, by section, the classes of a section that comes in several, by the `name` that selects each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=add_meanings)
    kinds: ClassVar[Mapping[str, Mapping[str, "type[Section]"]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, tree: Any) -> Any:
        faults = []
        for name, value in tree.items() if isinstance(tree, dict) else ():
            if name in cls.model_fields:
                types = set(_leaf_types(cls.model_fields[name].annotation))
                if any(isinstance(leaf_type, type) and issubclass(leaf_type, Section) for leaf_type in types):
                    continue  # that section checks its own fields
                if fault := next(filter(None, (_fault(leaf, types) for leaf in leaves(value))), None):
                    faults.append(f"{name}: {fault}")
        if faults:
            raise FieldFault(*faults)
        return tree


S = TypeVar("S", bound=Section)


def _fault(leaf: Any, types: set[Any]) -> str | None:
    if isinstance(leaf, bool) and types & {int, float} and bool not in types:
        return f"{leaf} is not a number: write one"
    if not isinstance(leaf, str):
        return None
    if len(leaf) > MAX_TEXT:
        return f"text of {len(leaf):,} characters: shorten it to {MAX_TEXT:,}"
    # control characters, halves of surrogate pairs, separators of lines and paragraphs
    wrong = next((c for c in leaf if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None)
    if wrong is None:
        return None
    return f"{leaf[:60]!r} holds {wrong!r}: write one line without control characters"


def leaves(value: Any) -> Iterator[Any]:
    """The scalars in nested lists and mappings, keys included."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list | tuple | set):
            waiting += part
        else:
            yield part


def without_paths(value: Any) -> Any:
    """The value, in whose mappings and lists each path is text."""
    if isinstance(value, dict):
        return {name: without_paths(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _leaf_types(annotation: Any) -> Iterator[Any]:
    if parts := get_args(annotation):
        for part in parts:
            yield from _leaf_types(part)
    else:
        yield annotation


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted name."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{below}": leaf for below, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def without(flat: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The values of a flat mapping without the settings, and the sections of settings, of these names."""
    prefixes = tuple(f"{name}." for name in names)
    return {name: value for name, value in flat.items() if not f"{name}.".startswith(prefixes)}


def differences(there: dict[str, Any], here: dict[str, Any], most: int | None = None) -> str:
    """How two flat mappings differ, for a message that names at most `most` values; empty if they are equal."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    more = f"; and {len(names[most:])} more" if most and names[most:] else ""
    return "; ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in names[:most]) + more


def validate(
    model: type[S],
    tree: dict[str, Any],
    path: Path | str,
    arguments: Collection[str] | None = None,
    base: dict[str, Any] | None = None,
    given_by: str = "--set",
) -> S:
    """`tree` as typed settings.

    Args:
        path: the file that the settings were read from, or how the user named it, for messages.
        arguments: the sections that a call in Python gave in place of the file's; None = no such call.
        base: the settings before some were given by `given_by`; None = none were.

    Raises:
        InputError: lists all unknown fields and wrong values, and says where they were given. A fault that `base`
            already has, or that is not in `arguments`, is blamed on the file.
    """
    advise = option if arguments is None else argument
    settings, faults = _validated(model, tree, advise)
    if not faults:
        return settings
    faults.sort(key=lambda fault: "did you mean" not in fault[1])  # a misspelt section is missing, too
    before = set() if base is None else {message for _, message in _validated(model, base, advise)[1]}
    by_place: dict[str, list[str]] = {}
    for location, message in faults:
        if arguments and (not location or location[0] in arguments):
            place = f"{model.__name__}: "
        elif base is not None and message not in before:
            # settings that do not fit together need not be among those given
            place = given_by and (f"{given_by} " if location else f"with {given_by}: ")
        else:
            place = f"{path}: "
        by_place.setdefault(place, []).append(message)
    raise InputError("; ".join(f"{place}{join(messages)}" for place, messages in by_place.items()))


def _validated(model: type[S], tree: dict[str, Any], advise: Advice) -> tuple[S | None, list[tuple[tuple, str]]]:
    """The settings, or the location and the message of each fault."""
    try:
        return model.model_validate(tree), []
    except ValidationError as error:
        return None, [(fault["loc"], explain(fault, model, advise)) for fault in faults_of(error)]
