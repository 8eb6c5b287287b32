"""Reads settings from YAML, lays them over the file that they extend, and applies `--set`.

Notable:
- A key may stand only once in a mapping: PyYAML would keep its last value and drop the others silently.
- A section may come in several kinds that a field `name` tells apart (`method`). Another name drops the settings of
  the former kind.
"""

import copy
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import yaml

from swep_ds.common.errors import InputError, as_input_error, printable
from swep_ds.common.files import read_text, user_path
from swep_ds.common.settings.messages import kinds_of, shown, suggest
from swep_ds.common.settings.sections import S, Section, validate

# tag -> what it looks like
NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)$"
        r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
}
# kind of file -> the command that takes one, its shipped ones' folder, and fields that no other kind has
KINDS = {
    "recipe": ("swep-ds train --recipe", "recipes", {"model", "method", "data", "pretrain", "train", "eval"}),
    "sweep": ("swep-ds sweep", "sweeps", {"variants", "across", "seeds", "set", "primary"}),
}
CheckLayer = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]


# YAML


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which the user named by `what`; None if it is empty.

    Raises InputError: not YAML, or a repeated key.
    """
    # beside YAMLError, PyYAML raises whatever a date like 2019-13-45 or a list as a key does
    with as_input_error(f"{what}: not YAML", "correct it, or quote the value"):
        loader = _UniqueKeys(text)
        loader.what = what
        try:
            return loader.get_single_data()
        except yaml.MarkedYAMLError as error:  # whose text draws the place over several lines
            if error.problem_mark is None:
                raise
            place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
            problem = printable(" ".join(str(error.problem).split())[:200])
            raise InputError(f"{what}: not YAML ({place}: {problem}): correct it, or quote the value") from None


class _UniqueKeys(yaml.SafeLoader):
    """Numbers are those of YAML 1.2: 3e-5 is one; 010 is not octal and 1:30 not base 60, as in YAML 1.1."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    what: str  # how the user named the text

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                name, line = printable(key.value[:100]), key.start_mark.line + 1
                raise InputError(f"{self.what}: line {line} gives {name} a second time: keep one")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return node


for _tag, _pattern in NUMBERS.items():
    _UniqueKeys.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


# Loading


def load(
    model: type[S],
    name_or_path: str,
    shipped: Path,
    option: str,
    overrides: Sequence[str] = (),
    check_layer: CheckLayer = lambda base, layer, merged: None,
    given_by: str = "--set",
) -> S:
    """Reads `<shipped>/<name>.yaml` or a YAML file, lays it over what it `extends`, and applies `--set` overrides.

    Overrides apply in order, except that those that name a section's kind come first.

    Args:
        option: what the user names the file with, such as "--recipe".
        check_layer: is called with settings, those laid over them (a file, the overrides) and the result, not yet
            validated.
        given_by: what gave the overrides, for messages.

    Raises:
        InputError: see `read_settings` and `validate`; a circle of `extends`; an override that is not `a.b=c`.
    """
    path, tree = read_whole(name_or_path, shipped, option, model, check_layer)
    unions = {section for section in model.model_fields if kinds_of(model, section)}
    names = {f"{section}.name" for section in unions}
    base, layer = copy.deepcopy(tree), {}
    for override in sorted(overrides, key=lambda text: text.partition("=")[0].strip() not in unions | names):
        _apply(tree, override, names)
        _apply(layer, override, names)
    check_layer(base, layer, tree)
    place = path if Path(name_or_path).suffix else f"{option} {name_or_path}"  # a shipped file is not to be edited
    return validate(model, tree, place, base=base if overrides else None, given_by=given_by)


def read_settings(name_or_path: str, shipped: Path, option: str, model: type[Section]) -> tuple[Path, dict[str, Any]]:
    """The path and the unvalidated content of `<shipped>/<name>.yaml` or of a YAML file.

    Raises InputError: no such file (lists the shipped ones), not YAML, or no mapping.
    """
    kind = model.__name__.lower()
    path = user_path(name_or_path, option)
    if not path.suffix:
        path = shipped / f"{name_or_path}.yaml"
    if not path.exists():
        for other, (command, folder, _) in KINDS.items():
            if other != kind and (shipped.with_name(folder) / path.name).exists():
                raise InputError(f"{option} {name_or_path}: is a {other}, not a {kind}: {command} {name_or_path}")
        known = suggest(name_or_path, [file.stem for file in shipped.glob("*.yaml")])
        or_file = "" if known.endswith("?") else ", or give a YAML file"
        raise InputError(f"{option} {shown(name_or_path, str)}: no such {kind}{known}{or_file}")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a {kind} is a mapping with the sections {', '.join(model.model_fields)}")
    for other, (command, _, fields) in KINDS.items():
        if other != kind and fields & tree.keys() and not tree.keys() & model.model_fields.keys():
            raise InputError(f"{path}: is a {other}, not a {kind}: {command} {path}")
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
        unknown = [key for key in tree if isinstance(key, str) and key not in model.model_fields]
        meant = get_close_matches("extends", unknown, 1, cutoff=0.8)
        if meant:
            raise InputError(f"{path}: {meant[0]} is not a field; did you mean 'extends'?")
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
        if kinds_of(model, section):
            former, new = (part.get(section) if isinstance(part.get(section), dict) else {} for part in (base, tree))
            if "name" in new and new["name"] != former.get("name"):
                base.pop(section, None)
    return lay_over(base, tree)


def lay_sections(model: type[Section], tree: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """`tree` with `sections` laid over it. A `Section` replaces the whole section, a dict only the fields that it has.
    Another `name` drops the settings of the former kind."""
    merged = dict(tree)
    for name, given in sections.items():
        former = merged.get(name)
        if isinstance(given, Section):
            merged[name] = given.model_dump(mode="json")
        elif isinstance(given, dict) and isinstance(former, dict):
            other = kinds_of(model, name) and given.get("name", former.get("name")) != former.get("name")
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
    field, override = field.strip(), shown(override, str)
    *parents, leaf = field.split(".")
    if not separator or not all([*parents, leaf]):
        raise InputError(f"--set {override}: write it as section.field=value")
    value = parse_yaml(text, f"--set {override}")
    if isinstance(value, str) and " #" in text and "#" not in value:
        raise InputError(f"--set {override}: what follows ' #' would be left out as a comment: quote the value")
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
