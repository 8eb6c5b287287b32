"""What settings mean, in their JSON schema: a field's meaning is the comment beside it or above it."""

import ast
import functools
import inspect
import json
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

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
    for name, field in schema.get("properties", {}).items():
        if name in meanings(section):
            field["description"] = meanings(section)[name]


def describe(settings: BaseModel, prefix: str = "") -> Iterator[Field]:
    """Every field of settings and of the sections in them."""
    schema = type(settings).model_json_schema()
    values = settings.model_dump(mode="json")
    for name, field in schema["properties"].items():
        section = getattr(settings, name)
        if isinstance(section, BaseModel):
            yield from describe(section, f"{prefix}{name}.")
        else:
            default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else "required"
            yield Field(prefix + name, values[name], default, _type(field), field.get("description", ""))


def _type(field: Schema) -> str:
    """Such as "integer, at least 1 or null"."""
    if parts := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(map(_type, parts))
    if "const" in field or "enum" in field:
        choices = field.get("enum") or [field["const"]]
        return " | ".join(choice if isinstance(choice, str) else json.dumps(choice) for choice in choices)
    if "$ref" in field:
        return "section"
    limits = [f"{words} {field[key]:,}" for key, words in BOUNDS.items() if key in field]
    kind = {"object": "mapping", "array": "list"}.get(field.get("type"), field.get("type", "any"))
    return ", ".join([kind, *limits])


class _ForEditors(GenerateJsonSchema):
    """A file that `extends` another one may leave out every field. Without its name, a section of one kind may look
    like one of another kind."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def tagged_union_schema(self, schema: Any) -> Schema:
        return self.union_schema({"type": "union", "choices": list(schema["choices"].values())})


def for_editors(model: type[BaseModel]) -> Schema:
    """The schema of a file, which may extend another one."""
    schema = model.model_json_schema(schema_generator=_ForEditors)
    extends = {"type": "string", "description": "what this file changes: name of a shipped one, or path"}
    schema["properties"] = {"extends": extends} | schema["properties"]
    return schema
