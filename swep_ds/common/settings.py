"""Typed settings from YAML: sections, `extends`, `--set`, and errors that name the place, the field and the fix.

Notable:
- A key may stand only once in a mapping: PyYAML would keep its last value and drop the others silently.
- A section may come in several kinds that a field `name` tells apart (`method`). Another name drops the settings of
  the former kind.
"""

import copy
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from swep_ds.common.errors import InputError, printable, reason
from swep_ds.common.files import read_text, user_path
from swep_ds.common.schema import add_meanings

Tree = dict[str, Any]
# is called with settings, those laid over them (a file, the overrides) and the result, not yet validated
CheckLayer = Callable[[Tree, Tree, Tree], None]


# Sections


class FieldFault(ValueError):
    """Holds messages. Each begins with the name of a field in its section."""


class _Settings(type(BaseModel)):
    """Settings made in Python raise `InputError`, as those of a file do."""

    def __call__(cls, *args, **values):
        try:
            return super().__call__(*args, **without_paths(values))
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {'; '.join(_faults(error, cls))}") from None


class Section(BaseModel, metaclass=_Settings):
    """Settings by name. Unknown names, NaN and a bool in place of a number are errors.

    `kinds` has, by section, the classes of a section that comes in several, by the `name` that selects each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=add_meanings)
    kinds: ClassVar[Mapping[str, Mapping[str, "type[Section]"]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_bool_is_a_number(cls, tree: Any) -> Any:
        """YAML reads yes and on as true, which pydantic would take for 1."""
        faults = []
        for name, value in tree.items() if isinstance(tree, dict) else ():
            field = cls.model_fields.get(name)
            if field and isinstance(value, bool) and _takes_numbers(field.annotation):
                faults.append(f"{name}: {value} is not a number: write one")
        if faults:
            raise FieldFault(*faults)
        return tree


S = TypeVar("S", bound=Section)


def _takes_numbers(annotation: Any) -> bool:
    return annotation in (int, float) or any(_takes_numbers(part) for part in get_args(annotation))


def sections_of(model: type[Section], name: str) -> list[type[Section]]:
    """The classes of a section, the first of several kinds first; [] for a field that is not a section."""
    if name in model.kinds:
        return list(model.kinds[name].values())
    annotation = model.model_fields[name].annotation
    return [part for part in (annotation, *get_args(annotation)) if hasattr(part, "model_fields")]


def without_paths(value: Any) -> Any:
    """The value, in whose mappings and lists each path is text."""
    if isinstance(value, dict):
        return {name: without_paths(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def flatten(tree: Tree) -> Tree:
    """Values by dotted name."""
    flat = {}
    for name, value in tree.items():
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


# What is wrong with settings


def validate(model: type[S], tree: Tree, place: Path | str) -> S:
    """`tree` as typed settings.

    Args:
        place: the file that the settings were read from, or how the user named it, for messages.

    Raises InputError: lists all unknown fields and wrong values.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{place}: {'; '.join(_faults(error, model))}") from None


def _faults(error: ValidationError, model: type[Section]) -> Iterator[str]:
    for fault in error.errors():
        location = [str(part) for part in fault["loc"]]
        kind = ""
        if len(location) > 1 and location[1] in model.kinds.get(location[0], {}):
            kind = location.pop(1)  # pydantic inserts it behind the section's name
        error_of_ours = fault.get("ctx", {}).get("error")
        if isinstance(error_of_ours, FieldFault):
            for message in error_of_ours.args:
                yield ".".join([*location, message])
        else:
            yield _explain(fault, location, kind, model)


def _explain(fault: Any, location: list[str], kind: str, model: type[Section]) -> str:
    """The field, what is wrong with it and, where it is not obvious, the fix."""
    field = ".".join(location)
    value = shown(fault["input"])
    match fault["type"]:
        case "extra_forbidden" if kind:
            return f"{field}: {_no_setting(location[-1], kind, model.kinds[location[0]])}"
        case "extra_forbidden":
            return f"{field} is not a field{_suggest_field(location, model)}"
        case "missing":
            sections = sections_of(model, field) if len(location) == 1 else []
            if sections:
                first, part = next(iter(sections[0].model_fields.items()))
                if part.is_required() or field in model.kinds:
                    field = f"{field}.{first}"
            return f"{field} is required: set it"
        case "union_tag_not_found":
            return f"{field}.name is required: one of {', '.join(model.kinds[field])}"
        case "union_tag_invalid":
            name = shown(fault["input"]["name"], str)
            return f"{field}.name: {name!r} is not a {field}{suggest(name, model.kinds[field])}"
        case "model_type" | "model_attributes_type":
            first = next(iter(sections_of(model, field)[0].model_fields))
            return f"{field}: {value} is not a section: give its fields, such as {field}.{first}"
        case "value_error":
            message = str(fault["ctx"]["error"])
            return f"{field}: {message}" if field else message
        case _:
            text = fault["msg"].replace("Input should", "must")
            return f"{field}: {value}: {text[0].lower()}{text[1:]}"


def _suggest_field(location: Sequence[str], model: type[Section]) -> str:
    """The end of a message about an unknown field: where a field of that name is, else the nearest name here."""
    *parents, name = location
    owners = []
    for section in model.model_fields:
        if any(name in kind.model_fields for kind in sections_of(model, section)):
            owners.append(f"{section}.{name}")
    if owners:
        return f"; did you mean {' or '.join(map(repr, owners))}?"
    if not parents and difflib.get_close_matches(name, ["extends"], cutoff=0.8):
        return "; did you mean 'extends'?"
    here = next(iter(sections_of(model, parents[0])), model) if parents else model
    return suggest(name, here.model_fields, "".join(f"{parent}." for parent in parents))


def _no_setting(name: str, kind: str, kinds: Mapping[str, type[Section]]) -> str:
    fields = [field for field in kinds[kind].model_fields if field != "name"]
    others = [other for other, settings in kinds.items() if name in settings.model_fields]
    owners = f" (a setting of {', '.join(others)})" if others else ""
    return f"{kind} has no setting {name!r}{owners}{suggest(name, fields) if fields else '; it takes none'}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """A value for a message, on one line of at most 100 characters."""
    text = printable(write(value))
    return text if len(text) <= 100 else f"{text[:97]}..."


def suggest(name: str, candidates: Iterable[str], before: str = "") -> str:
    """The end of a message about an unknown name: the nearest known name, with `before` it, or else all of them."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {before + close[0]!r}?" if close else f"; known are {', '.join(sorted(candidates))}"


# YAML


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys. Numbers are those of YAML 1.2: 3e-5 is one, 010 is not octal, and 1:30 is text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float"))]
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


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*\.[0-9]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which the user named by `what`; None if it is empty.

    Raises InputError: not YAML, or a repeated key.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date like 2019-13-45
        problem = reason(error)
        mark = getattr(error, "problem_mark", None)
        if mark:  # the error's text draws the place on several lines
            problem = f"line {mark.line + 1}, column {mark.column + 1}: {printable(str(error.problem))}"
        raise InputError(f"{what}: not YAML ({problem}): correct it, or quote the value") from None


# Loading


def _no_check(base: Tree, layer: Tree, merged: Tree) -> None:
    pass


def load(
    model: type[S],
    name_or_path: str,
    shipped: Path,
    option: str,
    overrides: Sequence[str] = (),
    check_layer: CheckLayer = _no_check,
) -> S:
    """Reads `<shipped>/<name>.yaml` or a YAML file, lays it over what it `extends`, and applies `--set` overrides.

    Overrides apply in order, except that those that name a section's kind come first.

    Args:
        option: what the user names the file with, such as "--recipe".

    Raises InputError: see `read_layers` and `validate`; an override that is not `a.b=c`.
    """
    path, tree = read_whole(name_or_path, shipped, option, model, check_layer)
    base = copy.deepcopy(tree)
    layer = {}

    def names_no_kind(override: str) -> bool:
        return override.partition("=")[0].strip().removesuffix(".name") not in model.kinds

    for override in sorted(overrides, key=names_no_kind):
        _apply(tree, override, model)
        _apply(layer, override, model)
    check_layer(base, layer, tree)
    # a shipped file is not to be edited
    return validate(model, tree, path if Path(name_or_path).suffix else f"{option} {name_or_path}")


def read_whole(
    name_or_path: str, shipped: Path, option: str, model: type[Section], check_layer: CheckLayer = _no_check
) -> tuple[Path, Tree]:
    """As `read_layers`; another `name` of a section drops the settings of the former kind."""

    def lay_over(base: Tree, layer: Tree) -> Tree:
        merged = _lay_over(base, layer)
        for section in model.kinds:
            if _is_other_kind(model, section, base.get(section), layer.get(section)):
                merged[section] = layer[section]
        check_layer(base, layer, merged)
        return merged

    return read_layers(name_or_path, shipped, option, model, lay_over)


def read_layers(
    name_or_path: str,
    shipped: Path,
    option: str,
    model: type[Section],
    lay_over: Callable[[Tree, Tree], Tree],
    files: Collection[Path] = (),
) -> tuple[Path, Tree]:
    """The path and the unvalidated content of `<shipped>/<name>.yaml` or of a YAML file, laid over the file that it
    extends, if there is one. `files` extend this one.

    Raises InputError: no such file (suggests a shipped one), not YAML, without any field of a recipe or a sweep, or
    files that extend each other in a circle.
    """
    kind = model.__name__.lower()
    path = user_path(name_or_path, option)
    if not path.suffix:
        path = shipped / f"{name_or_path}.yaml"
    if not path.exists():
        known = suggest(name_or_path, [file.stem for file in shipped.glob("*.yaml")])
        raise InputError(f"{option} {name_or_path}: no such {kind}{known}")
    if path.resolve() in files:
        raise InputError(f"{option} {name_or_path}, which extends this one: files cannot go round in a circle")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict) or not tree.keys() & {*model.model_fields, "extends"}:
        raise InputError(f"{path}: a {kind} is a mapping with the sections {', '.join(model.model_fields)}")
    if "extends" not in tree:
        return path, tree
    base_name = str(tree.pop("extends"))
    if Path(base_name).suffix and not base_name.startswith("~"):
        base_name = str(path.parent / base_name)
    files = {*files, path.resolve()}
    _, base = read_layers(base_name, shipped, f"{path}: extends", model, lay_over, files)
    return path, lay_over(base, tree)


def lay_sections(model: type[Section], tree: Tree, sections: Tree) -> Tree:
    """`tree` with `sections` laid over it. A `Section` replaces the whole section, a dict only the fields that it has.
    Another `name` drops the settings of the former kind."""
    merged = dict(tree)
    for name, given in sections.items():
        former = merged.get(name)
        if isinstance(given, Section):
            merged[name] = given.model_dump(mode="json")
        elif isinstance(given, dict) and isinstance(former, dict) and not _is_other_kind(model, name, former, given):
            merged[name] = former | given
        else:
            merged[name] = given
    return merged


def _is_other_kind(model: type[Section], section: str, former: Any, new: Any) -> bool:
    """Whether `new` names another kind of a section that comes in several."""
    if section not in model.kinds or not isinstance(former, dict) or not isinstance(new, dict):
        return False
    return "name" in new and new["name"] != former.get("name")


def _lay_over(base: Tree, tree: Tree) -> Tree:
    merged = dict(base)
    for key, value in tree.items():
        if isinstance(base.get(key), dict) and isinstance(value, dict):
            value = _lay_over(base[key], value)
        merged[key] = value
    return merged


def _apply(tree: Tree, override: str, model: type[Section]) -> None:
    field, separator, text = override.partition("=")
    *parents, leaf = field.strip().split(".")
    if not separator or not all([*parents, leaf]):
        raise InputError(f"--set {override}: write it as section.field=value")
    value = parse_yaml(text, f"--set {override}")
    if isinstance(value, str) and " #" in text and "#" not in value:
        raise InputError(f"--set {override}: what follows ' #' would be left out as a comment: quote the value")
    node = tree
    for key in parents:
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            raise InputError(f"--set {override}: {key} is a value, not a section")
    if leaf == "name" and parents and parents[0] in model.kinds and node.get("name") != value:
        node.clear()
    node[leaf] = value
