"""YAML as settings need it: a key stands once, and what a text can blow up to is bounded."""

from typing import Any

import yaml

from swep_ds.errors import InputError, printable, reason

MOST_CHARACTERS = 1_000_000  # of a text, and of what its aliases unfold to


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text; None of an empty one.

    Args:
        what: how the user named the text, such as "--set a=b" or a path.

    Raises:
        InputError: not YAML, a key given twice, nested too deep, or large: text of a megabyte, or aliases that
            unfold to as much.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{what}: has {len(text):,} characters, too many for settings: name another file")
    try:
        loader = _UniqueKeys(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST_CHARACTERS:
            raise InputError(f"{what}: its aliases unfold to more than a megabyte: write the values out")
        return loader.construct_document(node)
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{what}: its YAML is nested too deep: flatten it") from None
    except _RepeatedKey as error:
        raise InputError(f"{what}: {error}") from None
    except Exception as error:  # PyYAML lets through what a date like 2019-13-45 or a list as a key raises
        raise InputError(f"{what}: not YAML ({reason(error)}): correct it, or quote the value") from None


class _RepeatedKey(ValueError):
    pass


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of a key's values and loses the others without a word."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise _RepeatedKey(f"line {line} gives {printable(key.value[:100])} a second time: keep one")
                seen.add(key.value)
        return node


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Characters of all values below, those behind an alias as often as it stands; infinite where a node holds itself.

    An alias is the very node that it names.
    """
    if isinstance(node, yaml.ScalarNode):
        return len(node.value) + 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
