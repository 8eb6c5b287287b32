"""Files that are whole or not there, and locks of other processes."""

import fcntl
import os

import pytest

from swep_ds.files import is_locked, read_lines, write_atomically


def test_a_text_or_its_pieces_replace_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    write_atomically(path, "Zürich\n")
    assert path.read_bytes() == "Zürich\n".encode()
    write_atomically(path, (piece for piece in ("a", "b\n")))
    assert path.read_text() == "ab\n"
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    path, done, sync, replace = tmp_path / "file.txt", [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.fstat(file).st_size) or sync(file))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("name") or replace(*names))
    write_atomically(path, "abc")
    assert done == [3, "name"]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_an_error_midway_leaves_what_was_there_and_nothing_else(tmp_path, fault):
    path = tmp_path / "file.txt"
    path.write_text("before")

    def pieces():
        yield "half"
        assert path.read_text() == "before"
        raise fault

    with pytest.raises(fault):
        write_atomically(path, pieces())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_seen_while_it_is_held(tmp_path):
    path = tmp_path / ".lock"
    assert not is_locked(path)
    with path.open("w") as file:
        assert not is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path)
    assert not is_locked(path)


def test_lines_of_updates_are_read_as_far_as_they_are_any(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert read_lines(path) == []
    path.write_bytes(
        b'{"update": 1}\n[1]\n{"loss": 2}\n{"update": "3"}\n{"update": 4, "a": "\xff"}\n{"update": 5\n{"update": 6}\n'
    )
    assert read_lines(path) == [{"update": 1}, {"update": 4, "a": "\ufffd"}]
