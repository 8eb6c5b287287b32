"""Typed settings from YAML: `extends`, `--set`, and errors that name the file, the field and the nearest known name.

Notable:
- A key may stand only once in a mapping: PyYAML would keep its last value and drop the others silently.
- A short text can unfold to gigabytes (aliases, nesting, long numbers). All of that is bounded, as is each message.
- A section may come in several kinds that a field `name` tells apart (`method`). Another name drops the settings of
  the former kind.
"""

import copy
import difflib
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from swep_ds.errors import InputError, parsing, printable
from swep_ds.files import read_text, user_path
from swep_ds.schema import add_meanings

LONGEST_TEXT = 4096  # characters of a value; Linux takes no longer path
MOST_CHARACTERS = 1_000_000  # in a YAML text, before and after its aliases unfold
MOST_FAULTS = 20  # listed per file
DEEPEST = 100  # levels of YAML; Python's limit on recursion is for other code to raise
MOST_PARENTS = 10  # sections above a field that --set names
LARGEST = 10**30  # pydantic cannot compare, nor Python print, integers of any length


class _Settings(type(BaseModel)):
    """Settings made in Python raise `InputError`, as those of a file do."""

    def __call__(cls, *args, **values):
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {_explain_all(error.errors(), cls, _argument)}") from None


class Section(BaseModel, metaclass=_Settings):
    """Settings by name. Unknown names, NaN, a bool in place of a number, and text of several lines are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=add_meanings)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, tree: Any) -> Any:
        for name, value in tree.items() if isinstance(tree, dict) else ():
            if name in cls.model_fields:
                types = set(_leaf_types(cls.model_fields[name].annotation))
                if any(isinstance(leaf_type, type) and issubclass(leaf_type, Section) for leaf_type in types):
                    continue  # that section checks its own fields
                if fault := next(filter(None, (_fault(leaf, types) for leaf in leaves(value))), None):
                    raise FieldFault(f"{name}: {fault}")
        return tree


class FieldFault(ValueError):
    """A message that begins with the name of a field in its section."""


S = TypeVar("S", bound=Section)
Advice = Callable[[str, str], str]  # how to give a field, by its dotted name, a value
CheckLayer = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]


def _fault(leaf: Any, types: set[Any]) -> str | None:
    if isinstance(leaf, bool) and types & {int, float} and bool not in types:
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


def _leaf_types(annotation: Any) -> Iterator[Any]:
    if parts := get_args(annotation):
        for part in parts:
            yield from _leaf_types(part)
    else:
        yield annotation


# YAML


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which the user named by `what`; None if it is empty.

    Raises InputError: not YAML, a repeated key, nested too deep, or more than a megabyte, with aliases unfolded.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{what}: has {len(text):,} characters, too many for settings: name another file")
    # beside YAMLError, PyYAML raises whatever a date like 2019-13-45 or a list as a key does
    with parsing(f"{what}: not YAML", "correct it, or quote the value"):
        loader = _UniqueKeys(text)
        loader.what = what
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _size(node, {}) > MOST_CHARACTERS:
                raise InputError(f"{what}: its aliases unfold to more than a megabyte: write the values out")
            return loader.construct_document(node)
        except RecursionError:
            raise InputError(f"{what}: its YAML is nested too deep: flatten it") from None


class _UniqueKeys(yaml.SafeLoader):
    what: str  # how the user named the text
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                name, line = printable(key.value[:100]), key.start_mark.line + 1
                raise InputError(f"{self.what}: line {line} gives {name} a second time: keep one")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return node


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Characters below a node with every alias unfolded; infinite if the node contains itself.

    PyYAML represents an alias by the node that it names.
    """
    if isinstance(node, yaml.ScalarNode):
        return len(node.value) + 1
    if id(node) not in sizes:
        sizes[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]


# Loading


def load(
    model: type[S],
    name_or_path: str,
    shipped: Path,
    option: str,
    overrides: Sequence[str] = (),
    check_layer: CheckLayer = lambda base, layer, merged: None,
) -> S:
    """Reads `<shipped>/<name>.yaml` or a YAML file, lays it over what it `extends`, and applies `--set` overrides.

    Overrides apply in order, except that those that name a section's kind come first.

    Args:
        option: what the user names the file with, such as "--recipe".
        check_layer: is called with settings, those laid over them (a file, the overrides) and the result, not yet
            validated.

    Raises:
        InputError: see `read_settings` and `validate`; a circle of `extends`; an override that is not `a.b=c`.
    """
    path, tree = read_whole(name_or_path, shipped, option, model, check_layer)
    unions = {section for section in model.model_fields if _kinds(model, section)}
    names = {f"{section}.name" for section in unions}
    base, layer = copy.deepcopy(tree), {}
    for override in sorted(overrides, key=lambda text: text.partition("=")[0] not in unions | names):
        _apply(tree, override, names)
        _apply(layer, override, names)
    check_layer(base, layer, tree)
    return validate(model, tree, path)


def read_settings(name_or_path: str, shipped: Path, option: str, model: type[Section]) -> tuple[Path, dict[str, Any]]:
    """The path and the unvalidated content of `<shipped>/<name>.yaml` or of a YAML file.

    Raises InputError: no such file (lists the shipped ones), not YAML, or no mapping.
    """
    kind = model.__name__.lower()
    path = user_path(name_or_path, option)
    if not path.suffix:
        path = shipped / f"{name_or_path}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in shipped.glob("*.yaml")))
        raise InputError(f"{option} {shown(name_or_path, str)}: no such {kind}; known are {known}, or give a YAML file")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a {kind} is a mapping with the sections {', '.join(model.model_fields)}")
    return path, tree


def read_whole(
    name_or_path: str,
    shipped: Path,
    option: str,
    model: type[Section],
    check_layer: CheckLayer = lambda base, layer, merged: None,
) -> tuple[Path, dict[str, Any]]:
    """As `read_settings`, laid over what the file extends; `check_layer` as in `load`."""
    path, tree = read_settings(name_or_path, shipped, option, model)

    def lay_over(base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
        merged = _lay_over(base, layer)
        check_layer(base, layer, merged)
        return merged

    return path, inherit(path, tree, shipped, model, lay_over)


def inherit(
    path: Path,
    tree: dict[str, Any],
    shipped: Path,
    model: type[Section],
    lay_over: Callable[[dict, dict], dict],
    above: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """`tree`, read from `path`, laid over the file that it extends; the files `above` extend this one."""
    if "extends" not in tree:
        return tree
    kind, chain = model.__name__.lower(), (*above, path.resolve())
    name, tree = tree["extends"], {key: value for key, value in tree.items() if key != "extends"}
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}: extends {shown(name)}: name a shipped {kind} or a YAML file")
    if Path(name).suffix and not name.startswith("~"):
        name = str(path.parent / name)
    base_path, base = read_settings(name, shipped, f"{path}: extends", model)
    if base_path.resolve() in chain:
        raise InputError(
            f"{path}: extends {shown(name, str)}, which extends this one: {kind}s cannot go round in a circle"
        )
    base = inherit(base_path, base, shipped, model, lay_over, chain)
    for section in model.model_fields:
        if _kinds(model, section):
            former, new = (part.get(section) if isinstance(part.get(section), dict) else {} for part in (base, tree))
            if "name" in new and new["name"] != former.get("name"):
                base.pop(section, None)
    return lay_over(base, tree)


def lay_sections(model: type[Section], tree: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """`tree` with `sections` in place of its own: a `Section` replaces the whole section; of a mapping each field
    replaces that field, and `name` of another kind drops the settings of the former kind."""
    merged = dict(tree)
    for name, given in sections.items():
        former = merged.get(name)
        if isinstance(given, Section):
            merged[name] = given.model_dump(mode="json")
        elif isinstance(given, dict) and isinstance(former, dict):
            other = _kinds(model, name) and given.get("name", former.get("name")) != former.get("name")
            merged[name] = dict(given) if other else former | given
        else:
            merged[name] = given
    return merged


def _lay_over(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in tree.items():
        both = isinstance(base.get(key), dict) and isinstance(value, dict)
        merged[key] = _lay_over(base[key], value) if both else value
    return merged


def _apply(tree: dict[str, Any], override: str, kind_names: set[str]) -> None:
    field, separator, text = override.partition("=")
    override = shown(override, str)
    *parents, leaf = field.split(".")
    if not separator or not all([*parents, leaf]) or len(parents) > MOST_PARENTS:
        raise InputError(f"--set {override}: write it as section.field=value")
    value = parse_yaml(text, f"--set {override}")
    if isinstance(value, str) and "e" in value.lower():
        with suppress(ValueError):
            value = float(value)  # YAML 1.1 reads 3e-5 (no dot) as a string; everyone who writes it means the number
    node = tree
    for key in parents:
        if node.get(key) is None:
            node[key] = {}
        if not isinstance(node[key], dict):
            raise InputError(f"--set {override}: {key} is a value, not a section")
        node = node[key]
    if field in kind_names and node.get("name") != value:
        node.clear()
    node[leaf] = value


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted name."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{below}": leaf for below, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def differences(there: dict[str, Any], here: dict[str, Any], most: int | None = None) -> str:
    """How two flat mappings differ, for a message that names at most `most` values; empty if they are equal."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    more = f"; and {len(names[most:])} more" if most and names[most:] else ""
    return "; ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in names[:most]) + more


# Validation and its messages


def validate(model: type[S], tree: dict[str, Any], path: Path, arguments: Collection[str] | None = None) -> S:
    """`tree` as typed settings.

    Args:
        path: of the file that the settings were read from, for messages.
        arguments: the sections that a call in Python gave in place of the file's; None = no such call.

    Raises:
        InputError: lists all unknown fields and wrong values, and names the file of those that are not in `arguments`.
    """
    for name, value in flatten(tree).items():
        if any(isinstance(leaf, int) and abs(leaf) > LARGEST for leaf in leaves(value)):
            raise InputError(f"{path}: {shown(name, str)}: a whole number of more than 30 digits: correct it")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        advise = _option if arguments is None else _argument
        faults: dict[str, list[Any]] = {}
        for fault in error.errors():
            mine = arguments and (not fault["loc"] or fault["loc"][0] in arguments)
            faults.setdefault(model.__name__ if mine else str(path), []).append(fault)
        said = (f"{where}: {_explain_all(part, model, advise)}" for where, part in faults.items())
        raise InputError("; ".join(said)) from None


def _option(field: str, value: str) -> str:
    return f"--set {field}={value}"


def _argument(field: str, value: str) -> str:
    section, _, name = field.partition(".")
    return f'{section}={{"{name}": {value}}}' if name else f"{section}={value}"


def _explain_all(faults: Sequence[Any], model: type[BaseModel], advise: Advice) -> str:
    said = [_explain(fault, model, advise) for fault in faults[:MOST_FAULTS]]
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return f"{'; '.join(said)}{more}"


def _explain(error: Any, model: type[BaseModel], advise: Advice) -> str:
    """One pydantic error as field, fault and fix."""
    location = [str(part) for part in error["loc"]]
    kinds = _kinds(model, location[0]) if location else {}
    # pydantic inserts the kind behind the section's name
    kind = location.pop(1) if len(location) > 1 and location[1] in kinds else None
    field = shown(".".join(location), str)
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
            return f"{field} is required: {_required(field, model, advise)}"
        case "union_tag_invalid":
            name = shown(error["input"].get("name"), str)
            return f"{field}.name: {name!r} is not a {field}{suggest(name, kinds)}"
        case "union_tag_not_found":
            return f"{field}.name is required: one of {', '.join(kinds)}"
        case "list_type":
            return f"{field}: {shown(error['input'])} is not a list: write it as {location[-1]}: [A, B]"
        case "value_error" if isinstance(error["ctx"]["error"], FieldFault):
            return ".".join(filter(None, (field, str(error["ctx"]["error"]))))
        case "value_error":
            return f"{field}: {error['ctx']['error']}" if field else str(error["ctx"]["error"])
        case _:
            return f"{field}: {shown(error['input'])}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _required(field: str, model: type[BaseModel], advise: Advice) -> str:
    kind = model.__name__.lower()
    if advise is _argument:
        return f"give {advise(field, '...')}"
    return f"give it in the {kind}" + f" or with {advise(field, '...')}" * (kind == "recipe")


def _suggest_field(location: Sequence[str], model: type[BaseModel]) -> str:
    """The end of a message about an unknown field: where a field of that name is, else the nearest name here."""
    *parents, name = location
    owners = [
        f"{section}.{name}"
        for section in model.model_fields
        if any(name in kind.model_fields for kind in _kinds(model, section).values() or _sections(section, model))
    ]
    if owners:
        return f"; did you mean {' or '.join(map(repr, owners))}?"
    here = next(iter(_sections(parents[0], model)), model) if parents else model
    return suggest(name, here.model_fields)


def _kinds(model: type[BaseModel], section: str) -> dict[str, type[BaseModel]]:
    """The kinds of a section by the `name` that selects each; empty for a section of one kind."""
    info = model.model_fields.get(section)
    if info is None or info.discriminator is None:
        return {}
    return {kind.model_fields["name"].default: kind for kind in get_args(info.annotation)}


def _sections(name: str, model: type[BaseModel]) -> list[type[BaseModel]]:
    """The types of a section, the first of several kinds first; [] for a field that is no section."""
    annotation = model.model_fields[name].annotation
    return [part for part in (annotation, *get_args(annotation)) if hasattr(part, "model_fields")]


def _no_section(field: str, value: Any, model: type[BaseModel], advise: Advice) -> str:
    name = next(iter(_sections(field, model)[0].model_fields))
    given = shown(value, str) if _kinds(model, field) and isinstance(value, str) else "..."
    what = "is empty" if value is None else f"{shown(value)} is no section"
    if advise is _argument:
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


def suggest(name: str, candidates) -> str:
    """The end of a message about an unknown name: the nearest known name, or else all of them."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(candidates))}"
