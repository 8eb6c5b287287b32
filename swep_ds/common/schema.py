"""What settings mean, in their JSON schema: a field's meaning is the comment beside it or above it."""

import ast
import copy
import functools
import inspect
import json
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
# a field of settings, for people: its dotted name, and its default as YAML takes it, or "required"
Field = namedtuple("Field", ["name", "value", "default", "type", "meaning"])


@functools.cache
def meanings(section: type[BaseModel]) -> dict[str, str]:
    """The comments of a class's fields, those of its base classes included, by name: first above, then beside a field.
    Empty for a class without source, such as one that was typed into an interpreter."""
    by_name: dict[str, str] = {}
    for part in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        try:
            source = textwrap.dedent(inspect.getsource(part))
        except (OSError, TypeError):
            continue
        lines = source.splitlines()
        for field in ast.parse(source).body[0].body:
            if isinstance(field, ast.AnnAssign):
                meaning = lines[field.end_lineno - 1].partition("  # ")[2]
                above = field.lineno - 2
                while lines[above].lstrip().startswith("#"):
                    meaning = f"{lines[above].lstrip('# ')} {meaning}"
                    above -= 1
                if field.target.id == "name" and not meaning:  # of a section that comes in several kinds
                    meaning = (part.__doc__ or inspect.getmodule(part).__doc__ or "").partition("\n")[0]
                if meaning:
                    by_name[field.target.id] = meaning.strip()
    return by_name


def add_meanings(schema: Schema, section: type[BaseModel]) -> None:
    """Pydantic's `json_schema_extra`: describes the fields of a class."""
    for name, meaning in meanings(section).items():
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = meaning


def describe(schema: Schema, values: dict[str, Any], prefix: str = "") -> Iterator[Field]:
    """Every field of settings with these values, those of the kinds of section that they chose included."""
    for name, field in schema["properties"].items():
        value = values[name]
        kinds = [schema["$defs"][part["$ref"].rpartition("/")[2]] for part in _parts(field) if "$ref" in part]
        if kinds and isinstance(value, dict):
            named = [kind for kind in kinds if kind["properties"].get("name", {}).get("const") == value.get("name")]
            section = (named or kinds)[0] | {"$defs": schema["$defs"]}
            yield from describe(section, value, f"{prefix}{name}.")
        else:
            default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else "required"
            yield Field(prefix + name, value, default, _type(field), field.get("description", ""))


def _parts(field: Schema) -> list[Schema]:
    return field.get("anyOf") or field.get("oneOf") or [field]


def _type(field: Schema) -> str:
    """Such as "integer, at least 1 or null"."""
    parts = _parts(field)
    if len(parts) > 1:
        return " or ".join(map(_type, parts))
    if "const" in field or "enum" in field:
        choices = field.get("enum") or [field["const"]]
        return " | ".join(choice if isinstance(choice, str) else json.dumps(choice) for choice in choices)
    if "$ref" in field:
        return "section"
    limits = [f"{words} {field[key]:,}" for key, words in BOUNDS.items() if key in field]
    kind = {"object": "mapping", "array": "list"}.get(field.get("type"), field.get("type", "any"))
    return ", ".join([kind, *limits])


def for_editors(schema: Schema) -> Schema:
    """The schema of a file that `extends` another one, in which every field may be missing."""
    schema = copy.deepcopy(schema)
    for section in (schema, *schema.get("$defs", {}).values()):
        section.pop("required", None)
        for field in section.get("properties", {}).values():
            if "oneOf" in field:  # without its name, a section of one kind may look like one of another kind
                field["anyOf"] = field.pop("oneOf")
                del field["discriminator"]
    extends = {"type": "string", "description": "what this file changes: name of a shipped one, or path"}
    schema["properties"] = {"extends": extends} | schema["properties"]
    return schema
