"""Damage to a run's files: contents of every wrong kind, and things that are not files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]
VALUES = [None, True, -1, 0.5, 10**400, float("nan"), "text", [], [{}], {}, {"a": 1}, [[1]], "\ud800", 2**63]
BYTES = [b"", b"\0" * 100, b"\xff\xfe\x00garbage", b"{", b"[" * 100_000, b'{"a": 1, "a": 2}', b"9" * 5000, b"null\n{}"]


def _replaced(make: Callable[[Path], Any]) -> Damage:
    def damage(file: Path) -> None:
        file.unlink(missing_ok=True)
        make(file)

    return damage


def _content(content: bytes) -> Damage:
    return _replaced(lambda file: file.write_bytes(content))


NO_FILES = {
    "folder": _replaced(lambda file: file.mkdir()),
    "pipe": _replaced(os.mkfifo),
    "dangling link": _replaced(lambda file: file.symlink_to("nowhere")),
    "circle": _replaced(lambda file: file.symlink_to(file.name)),
    "device": _replaced(lambda file: file.symlink_to("/dev/zero")),
}
CONTENTS = {f"bytes {number}": _content(content) for number, content in enumerate(BYTES)}
CONTENTS |= {f"value {number}": _content(json.dumps(value).encode()) for number, value in enumerate(VALUES)}


def with_every_value_changed(tree: Any) -> list[Any]:
    """Copies of a JSON tree: in each, one value is replaced by one of `VALUES`, or one key is removed."""
    copies = []
    for path in _paths(tree):
        for value in VALUES:
            copies.append(_changed(tree, path, lambda node, key, value=value: node.__setitem__(key, value)))
        copies.append(_changed(tree, path, lambda node, key: node.__delitem__(key)))
    return copies


def _paths(tree: Any) -> list[tuple]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, below in items for path in ((key,), *((key, *rest) for rest in _paths(below)))]


def _changed(tree: Any, path: tuple, change: Callable[[Any, Any], None]) -> Any:
    copy = json.loads(json.dumps(tree))
    node = copy
    for key in path[:-1]:
        node = node[key]
    change(node, path[-1])
    return copy
