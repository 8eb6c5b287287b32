"""Typed settings from YAML: sections, `extends`, `--set`, and errors that name the place, the field and the fix. A
field's meaning is the comment beside it or above it.

A section may come in several kinds that a field `name` tells apart (`method`). Another name drops the settings of the
former kind.
"""

import difflib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema

from swep_ds.common.errors import InputError, excerpt, printable, reason
from swep_ds.common.files import read_text, user_path

Tree = dict[str, Any]
Change = tuple[list[str], Any]  # a field's name, in parts, and its new value
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
# a field in the source of its class: the comments above it, its name, the comment beside it
_FIELD = re.compile(r"((?:^[ \t]*# .*\n)*)^[ \t]*(\w+): [^#\n]*(?:# (.*))?", re.MULTILINE)


class FieldFault(ValueError):
    """Holds messages. Each begins with the name of a field in its section."""


@cache
def _meanings(section: type) -> dict[str, str]:
    """What the comments of a class say about the fields that it declares. A class that was typed into an interpreter
    has no source, and then none."""
    try:
        source = inspect.getsource(section)
    except (OSError, TypeError):
        return {}
    meanings = {}
    for above, name, beside in _FIELD.findall(source):
        if meaning := " ".join([*re.findall("# (.*)", above), beside]).strip():  # else a variable of a function, too
            meanings[name] = meaning
    return meanings


def _add_meanings(schema: Tree, section: type[BaseModel]) -> None:
    """Pydantic's `json_schema_extra`: describes a class's fields by their comments, those of base classes included."""
    fields = schema.get("properties", {})
    for part in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        for name, meaning in _meanings(part).items():
            if name in fields:
                fields[name]["description"] = meaning


class _Settings(type(BaseModel)):
    """Settings made in Python raise `InputError`, as those of a file do."""

    def __call__(cls, **values):
        return validate(cls, without_paths(values), cls.__name__)


class Section(BaseModel, metaclass=_Settings):
    """Settings by name. Unknown names, NaN and a bool in place of a number are errors. `kinds` has, by section, the
    classes of a section that comes in several, by the `name` that selects each."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=_add_meanings)
    kinds: ClassVar[Mapping[str, Mapping[str, "type[Section]"]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_bool_is_a_number(cls, tree: Any) -> Any:
        """pydantic would take true for 1."""
        if isinstance(tree, dict):
            for name, field in cls.model_fields.items():
                if isinstance(tree.get(name), bool) and {int, float} & {*_parts(field.annotation)}:
                    raise FieldFault(f"{name}: {str(tree[name]).lower()}: must be a number")
        return tree

    @classmethod
    def lay_over(cls, base: Tree, layer: Tree) -> Tree:
        """Settings of a file or a call laid over others, neither validated yet. Another `name` of a section drops the
        settings of the former kind."""
        merged = _merge(base, layer)
        for section in cls.kinds:
            former = base.get(section)
            given = layer.get(section)
            if isinstance(former, dict) and isinstance(given, dict):
                name = former.get("name")
                if given.get("name", name) != name:
                    merged[section] = given
        return merged


S = TypeVar("S", bound=Section)


def _parts(annotation: Any) -> list[Any]:
    """An annotation and all that it is made of: `list[int] | None` has int."""
    return [annotation, *(inner for part in get_args(annotation) for inner in _parts(part))]


def sections_of(model: type[Section], name: str) -> list[type[Section]]:
    """The classes of a section, the first of several kinds first; [] for a field that is not a section."""
    if name in model.kinds:
        return list(model.kinds[name].values())
    return [part for part in _parts(model.model_fields[name].annotation) if isinstance(part, _Settings)]


def without_paths(value: Any) -> Any:
    """The value, in whose mappings and lists each path is text."""
    if isinstance(value, dict):
        return {name: without_paths(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value


def flatten(tree: Tree) -> Tree:
    """Values by dotted name; of mappings in a list, the number is a part of the name."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            value = {str(number): part for number, part in enumerate(value)}
        if isinstance(value, dict):
            flat |= {f"{name}.{below}": leaf for below, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def without(flat: Tree, names: Iterable[str]) -> Tree:
    """The values of a flat mapping without the settings, and the sections of settings, of these names."""
    prefixes = tuple(f"{name}." for name in names)
    return {name: value for name, value in flat.items() if not f"{name}.".startswith(prefixes)}


def differences(there: Tree, here: Tree, most: int | None = None) -> str:
    """How two flat mappings differ, for a message that names at most `most` values; empty if they are equal."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    parts = [f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in names[:most]]
    if len(names) > len(parts):
        parts.append(f"and {len(names) - len(parts)} more")
    return "; ".join(parts)


def validate(model: type[S], tree: Tree, place: Path | str) -> S:
    """`tree` as typed settings, which were read from the file `place`, or which the user named so. Raises InputError:
    lists all unknown fields and wrong values."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{place}: {'; '.join(_faults(error, model))}") from None


def _faults(error: ValidationError, model: type[Section]) -> Iterator[str]:
    for fault in error.errors():
        location = [str(part) for part in fault["loc"]]
        kind = None
        if len(location) > 1 and location[1] in model.kinds.get(location[0], {}):
            kind = location.pop(1)  # pydantic inserts it behind the section's name
        field = ".".join(location)
        error_of_ours = fault.get("ctx", {}).get("error")
        if isinstance(error_of_ours, FieldFault):
            for message in error_of_ours.args:
                yield ".".join([*location, message])
        elif fault["type"] == "extra_forbidden":
            yield f"{field} is not a field{_suggest_field(model, kind, location)}"
        elif fault["type"] == "missing":
            yield f"{field} is required: set it"
        elif fault["type"] == "union_tag_not_found":
            yield f"{field}.name is required: set it"
        elif fault["type"] in ("model_type", "model_attributes_type"):
            yield f"{field}: {excerpt(fault['input'])} is not a section: give its fields"
        elif fault["type"] == "union_tag_invalid":
            name = fault["ctx"]["tag"]
            yield f"{field}.name: {name!r} is not a {field}{suggest(name, model.kinds[field])}"
        elif fault["type"] == "value_error":
            yield f"{field}: {error_of_ours}".removeprefix(": ")  # a rule of the whole model names its fields
        else:
            text = fault["msg"].replace("Input should", "must")
            yield f"{field}: {excerpt(fault['input'])}: {text[0].lower()}{text[1:]}"


def _suggest_field(model: type[Section], kind: str | None, location: Sequence[str]) -> str:
    """The end of a message about an unknown field: where a field of that name is, else the nearest name here."""
    *parents, name = location
    if kind:
        kinds = model.kinds[parents[0]]
        if others := [other for other, section in kinds.items() if name in section.model_fields]:
            return f" of {kind}, but of {', '.join(others)}"
    if len(parents) < 2:
        elsewhere = []
        for field in model.model_fields:
            if any(name in section.model_fields for section in sections_of(model, field)):
                elsewhere.append(f"{field}.{name}")
        if elsewhere:
            return f"; did you mean {' or '.join(map(repr, elsewhere))}?"
    if not parents:
        return suggest(name, [*model.model_fields, "extends"])
    here = model
    for parent in parents:
        if kind and parent in here.kinds:
            here = kinds[kind]
        elif parent in here.model_fields:  # neither a number in a list nor a name in a mapping
            here = next(iter(sections_of(here, parent)), here)
    return suggest(name, here.model_fields, f"{'.'.join(parents)}.")


def suggest(name: str, candidates: Iterable[str], before: str = "") -> str:
    """The end of a message about an unknown name: the nearest known name, with `before` it, or else all of them."""
    if close := difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6):
        return f"; did you mean {before + close[0]!r}?"
    return f"; known are {', '.join(sorted(candidates))}"


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys. As in YAML 1.2, only true and false are booleans.

    pydantic takes the texts on, off, yes and no for booleans where a field is one, and 3e-5, a text here, for a number.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if first in "tTfF" or not tag.endswith(":bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(None, None, f"{key.value} stands here a second time", key.start_mark)
                seen.add(key.value)
        return node


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which the user named by `what`; None if it is empty. Raises InputError: not YAML, or a
    repeated key."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date like 2019-13-45
        problem = reason(error)
        mark = getattr(error, "problem_mark", None)
        if mark:  # the error's text draws the place on several lines
            problem = f"line {mark.line + 1}, column {mark.column + 1}: {printable(str(error.problem))}"
        raise InputError(f"{what}: not YAML ({problem}): correct it, or quote the value") from None


def load(model: type[S], name_or_path: str, shipped: Path, option: str, overrides: Sequence[str] = ()) -> S:
    """Reads `<shipped>/<name>.yaml` or a YAML file, lays it over what it `extends`, and applies `--set` overrides, in
    order. `option` is what the user names the file with. Raises InputError: see `read_whole` and `validate`; an
    override that is not `a.b=c`."""
    path, tree = read_whole(name_or_path, shipped, option, model)
    place = path if Path(name_or_path).suffix else f"{option} {name_or_path}"  # a shipped file is not to be edited
    changes = []
    for override in overrides:
        field, separator, text = override.partition("=")
        names = field.strip().split(".")
        if not separator or not all(names):
            raise InputError(f"--set {override}: write it as section.field=value")
        changes.append((names, parse_yaml(text, f"--set {override}")))
    return change(model, tree, changes, place)


def read_whole(
    name_or_path: str, shipped: Path, option: str, model: type[Section], above: Sequence[Path] = ()
) -> tuple[Path, Tree]:
    """The path of `<shipped>/<name>.yaml` or of a YAML file, and its unvalidated content laid over what it `extends`.
    The files `above` extend this one. Raises InputError: no such file (suggests a shipped one), not YAML, without any
    field of the model, or files that extend each other in a circle."""
    kind = model.__name__.lower()
    path = user_path(name_or_path)
    if not path.suffix:
        path = shipped / f"{name_or_path}.yaml"
    if not path.exists():
        known = suggest(name_or_path, [file.stem for file in shipped.glob("*.yaml")])
        raise InputError(f"{option} {name_or_path}: no such {kind}{known}")
    if any(path.samefile(file) for file in above):
        raise InputError(f"{option} {name_or_path}, which extends this one: files cannot go round in a circle")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        tree = {}
    fields = {*tree}
    if fields & {"variants", "across", "seeds"} and not fields & {*model.model_fields}:
        raise InputError(f"{path}: is a sweep, not a {kind}: start it with `swep-ds sweep {path}`")
    if not fields & {*model.model_fields, "extends"}:
        raise InputError(f"{path}: a {kind} is a mapping with the sections {', '.join(model.model_fields)}")
    if "extends" in tree:
        below = str(tree.pop("extends"))
        if Path(below).suffix and not below.startswith("~"):
            below = str(path.parent / below)
        _, base = read_whole(below, shipped, f"{path}: extends", model, [*above, path])
        tree = model.lay_over(base, tree)
    return path, tree


def change(model: type[S], tree: Tree, changes: Iterable[Change], place: Path | str) -> S:
    """`tree` with changes laid over it, as typed settings. `place` and errors as in `validate`."""
    layer: Tree = {}
    for names, value in changes:
        put(layer, names, _Whole(value) if isinstance(value, dict) else value)
    return validate(model, model.lay_over(tree, layer), place)


def put(tree: Tree, names: Sequence[str], value: Any) -> None:
    """Sets the value at a dotted name, which is given in parts."""
    *sections, leaf = names
    for section in sections:
        if not isinstance(tree.get(section), dict):
            tree[section] = {}
        tree = tree[section]
    tree[leaf] = value


class _Whole(dict):
    """Replaces the mapping that it is laid over."""


def _merge(base: Tree, layer: Tree) -> Tree:
    merged = dict(base)
    for key, value in layer.items():
        if isinstance(base.get(key), dict) and isinstance(value, dict) and not isinstance(value, _Whole):
            value = _merge(base[key], value)
        merged[key] = value
    return merged


class Field(NamedTuple):
    """A field of settings, for people."""

    name: str  # dotted
    value: Any
    default: str  # as YAML takes it, or "required"
    type: str  # such as "integer, at least 1 or null"
    meaning: str


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


def _type(field: Tree) -> str:
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

    def tagged_union_schema(self, schema: Any) -> Tree:
        return self.union_schema({"type": "union", "choices": list(schema["choices"].values())})


def for_editors(model: type[BaseModel]) -> Tree:
    """The schema of a file, which may extend another one."""
    schema = model.model_json_schema(schema_generator=_ForEditors)
    extends = {"type": "string", "description": "what this file changes: name of a shipped one, or path"}
    schema["properties"] = {"extends": extends} | schema["properties"]
    return schema
