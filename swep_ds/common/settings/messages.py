"""What is wrong with settings, in one line: the field, the fault, the fix and the nearest known name."""

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from swep_ds.common.errors import printable

MAX_FAULTS_LISTED = 20  # listed per file
Advice = Callable[[str, str], str]  # how to give a field, by its dotted name, a value


class FieldFault(ValueError):
    """Messages, each of which begins with the name of a field in its section."""


def option(field: str, value: str) -> str:
    """How to give a field a value on the command line."""
    return f"--set {field}={value}"


def argument(field: str, value: str) -> str:
    """How to give a field a value in Python."""
    section, _, name = field.partition(".")
    return f'{section}={{"{name}": {value}}}' if name else f"{section}={value}"


def join(messages: Sequence[str]) -> str:
    """Messages on one line, of which at most `MAX_FAULTS_LISTED` are shown."""
    more = f"; and {len(messages) - MAX_FAULTS_LISTED} more" if len(messages) > MAX_FAULTS_LISTED else ""
    return f"{'; '.join(messages[:MAX_FAULTS_LISTED])}{more}"


def faults_of(error: ValidationError) -> list[Any]:
    """The errors of pydantic's without those that follow from others: a list with a wrong value counts as shorter."""
    faults = error.errors()
    wrong = {fault["loc"][:-1] for fault in faults}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in wrong]


def explain(error: Any, model: type[BaseModel], advise: Advice) -> str:
    """An error of pydantic's in settings of the class `model`, as field, fault and fix."""
    location = [str(part) for part in error["loc"]]
    kinds = kinds_of(model, location[0]) if location else {}
    # pydantic inserts the kind behind the section's name
    kind = location.pop(1) if len(location) > 1 and location[1] in kinds else None
    field, value = shown(".".join(location), str), shown(error["input"])
    if isinstance(error["input"], type):
        return f"{field}: {error['input'].__name__} is a class: call it, with its settings in parentheses"
    match error["type"]:
        case "extra_forbidden" if kind:
            return f"{field}: {_no_setting(location[-1], kind, kinds)}"
        case "extra_forbidden":
            return f"{field} is not a field{_suggest_field(location, model)}"
        case "model_type" | "model_attributes_type":
            return f"{field}: {_no_section(field, error['input'], model, advise)}"
        case "missing" if isinstance(error["loc"][-1], str):
            if _has_option(model, advise) and len(location) == 1 and (sections := _sections(field, model)):
                field = f"{field}.{_first_field(sections[0])}"
            return f"{field} is required: {_required(field, model, advise)}"
        case "union_tag_invalid":
            name = shown(error["input"].get("name"), str)
            return f"{field}.name: {name!r} is not a {field}{suggest(name, kinds)}"
        case "union_tag_not_found":
            return f"{field}.name is required: one of {', '.join(kinds)}"
        case "list_type" | "tuple_type":
            by_option = f", or --set '{field}=[A, B]'" * _has_option(model, advise)
            return f"{field}: {value} is not a list: write it as {location[-1]}: [A, B]{by_option}"
        case "too_short":
            return f"{field}: {value} has too few values: give at least {error['ctx']['min_length']}"
        case "too_long":
            return f"{field}: {value} has too many values: give at most {error['ctx']['max_length']}"
        case "dict_type":
            by_option = f", or {option(f'{field}.NAME', 'VALUE')}" * _has_option(model, advise)
            return f"{field}: {value} is not a mapping: write it as {location[-1]}: {{NAME: VALUE}}{by_option}"
        case "literal_error":
            choices = [choice.strip("'\"") for choice in re.split(", | or ", error["ctx"]["expected"])]
            return f"{field}: {value} is not known{suggest(shown(error['input'], str), choices)}"
        case _ if error["input"] is None:
            return f"{field}: is empty: give a value"
        case "string_type":
            fix = "" if isinstance(error["input"], dict | list) else ": quote it"
            return f"{field}: {value} is not text{fix}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"{field}: {value} is not a whole number"
        case "float_type" | "float_parsing":
            return f"{field}: {value} is not a number"
        case "bool_type" | "bool_parsing":
            return f"{field}: {value} is neither true nor false"
        case "value_error" if isinstance(error["ctx"]["error"], FieldFault):
            return join([".".join(filter(None, (field, fault))) for fault in error["ctx"]["error"].args])
        case "value_error":
            return f"{field}: {error['ctx']['error']}" if field else str(error["ctx"]["error"])
        case _:
            text = error["msg"].replace("Input should", "must")
            return f"{field}: {value}: {text[0].lower()}{text[1:]}"


def _required(field: str, model: type[BaseModel], advise: Advice) -> str:
    if advise is argument:
        return f"give {advise(field, '...')}"
    if _has_option(model, advise):
        return f"give {advise(field, '...')}, or set it in your recipe"  # --recipe may name a shipped one
    return f"give it in the {model.__name__.lower()}"


def _has_option(model: type[BaseModel], advise: Advice) -> bool:
    """Whether --set gives the field: it gives those of recipes alone."""
    return advise is option and model.__name__ == "Recipe"


def open_fields(model: type[BaseModel], tree: dict[str, Any]) -> list[tuple[str, str]]:
    """(section, field) of each required field that the settings leave open, in sections that are required or given."""
    return [
        (section, name)
        for section, info in model.model_fields.items()
        if info.is_required() or section in tree
        for part in _sections(section, model)[:1]
        for name, field in part.model_fields.items()
        if field.is_required() and isinstance(given := tree.get(section, {}), dict) and name not in given
    ]


def _suggest_field(location: Sequence[str], model: type[BaseModel]) -> str:
    """The end of a message about an unknown field: where a field of that name is, else the nearest name here."""
    *parents, name = location
    owners = [
        f"{section}.{name}"
        for section in model.model_fields
        if any(name in kind.model_fields for kind in kinds_of(model, section).values() or _sections(section, model))
    ]
    if owners:
        return f"; did you mean {' or '.join(map(repr, owners))}?"
    here = next(iter(_sections(parents[0], model)), model) if parents else model
    return suggest(name, here.model_fields, "".join(f"{parent}." for parent in parents))


def kinds_of(model: type[BaseModel], section: str) -> dict[str, type[BaseModel]]:
    """The kinds of a section by the `name` that selects each; empty for a section of one kind."""
    return model.kinds.get(section, {})


def _sections(name: str, model: type[BaseModel]) -> list[type[BaseModel]]:
    """The types of a section, the first of several kinds first; [] for a field that is not a section."""
    if kinds := kinds_of(model, name):
        return list(kinds.values())
    annotation = model.model_fields[name].annotation
    return [part for part in (annotation, *get_args(annotation)) if hasattr(part, "model_fields")]


def _first_field(section: type[BaseModel]) -> str:
    """The field that a section is begun with: a required section's required one."""
    return next(iter(section.model_fields))


def _no_section(field: str, value: Any, model: type[BaseModel], advise: Advice) -> str:
    name = _first_field(_sections(field, model)[0])
    given = shown(value, str) if kinds_of(model, field) and isinstance(value, str) else "..."
    what = "is empty" if value is None else f"{shown(value)} is not a section"
    if advise is argument:
        return f"{what}: give {advise(f'{field}.{name}', shown(value) if given != '...' else given)}"
    return f"{what}: write it as a section: {field}: {{{name}: {given}}}, or {advise(f'{field}.{name}', given)}"


def _no_setting(name: str, kind: str, kinds: dict[str, type[BaseModel]]) -> str:
    fields = [field for field in kinds[kind].model_fields if field != "name"]
    others = [other for other, settings in kinds.items() if name in settings.model_fields]
    owners = f" ({', '.join(others)} {'has' if len(others) == 1 else 'have'})" if others else ""
    return f"{kind} has no setting {name!r}{owners}{suggest(name, fields) if fields else '; it takes none'}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """A value for a message, on one line of at most 100 characters."""
    try:
        text = write(value)
    except (RecursionError, ValueError):  # nested too deep; a whole number of thousands of digits
        text = f"a {type(value).__name__} too large to print"
    text = printable(text)
    return text if len(text) <= 100 else f"{text[:97]}..."


def suggest(name: str, candidates, before: str = "") -> str:
    """The end of a message about an unknown name: the nearest known name, with `before` it, or else all of them."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {before + close[0]!r}?" if close else f"; known are {', '.join(sorted(candidates))}"
