"""Makes files wrong, and reads the line that refuses them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swep_ds.common.errors import InputError
from swep_ds.common.files import read_sealed, sealed


def refused(action: Callable, *arguments, **options) -> str:
    """The message of the InputError that the call raises, which is one line."""
    with pytest.raises(InputError) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def error_line(stderr: str) -> str:
    """The one line for the user, among what launchers print."""
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return line


def flipped(content: bytes, bit: int) -> bytes:
    """The same bytes but for one bit."""
    return (int.from_bytes(content, "big") ^ 1 << bit).to_bytes(len(content), "big")


def change_sealed(file: Path, *path: str | int, **fields: Any) -> None:
    """As `change_json`, in a file with a checksum, which is made anew."""
    file.write_text(json.dumps(read_sealed(file)))
    change_json(file, *path, **fields)
    file.write_text(sealed(file.read_text()))


def change_json(file: Path, *path: str | int, **fields: Any) -> None:
    """Sets fields of the object at `path` in a JSON file."""
    tree = place = json.loads(file.read_text())
    for key in path:
        place = place[key]
    place |= fields
    file.write_text(json.dumps(tree))
