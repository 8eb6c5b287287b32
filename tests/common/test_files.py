"""Files that users name, files that are whole or missing, and locks of other processes."""

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from swep_ds.common import files
from swep_ds.common.errors import InputError, Stopped, WriteFailed, as_input_error, denied
from swep_ds.ranks.group import on_all_ranks, process_group
from tests.support.bad_input import refused


def test_a_text_or_its_pieces_replace_what_was_there(tmp_path, monkeypatch):
    path, done, sync, replace = tmp_path / "file.txt", [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.fstat(file).st_size) or sync(file))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("name") or replace(*names))
    files.write_atomically(path, "Zürich\n")
    assert path.read_bytes() == "Zürich\n".encode()
    assert done == [8, "name"]  # the bytes are on the disk before the name is

    def pieces():
        yield "half"
        assert path.read_text() == "Zürich\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, pieces())
    assert path.read_text() == "Zürich\n"
    files.write_atomically(path, (piece for piece in ("a", "b\n")))
    assert path.read_text() == "ab\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_seen_while_it_is_held_and_its_file_is_not_emptied(tmp_path):
    path = tmp_path / ".lock"
    assert not files.is_locked(path)
    path.write_text("kept")
    with path.open("ab") as file:
        assert not files.is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert files.is_locked(path)
    assert not files.is_locked(path)
    assert path.read_text() == "kept"


def test_lines_of_updates_are_read_up_to_one_that_a_killed_run_cut(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert files.read_lines(path) == []
    path.write_text('{"update": 1}\n{"loss": 2}\n{"update": 4}\n{"update": 5\n{"update": 6}\n')
    assert files.read_lines(path) == [{"update": 1}, {"update": 4}]


def test_a_file_is_read_whole_and_a_wrong_one_named_in_one_line(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b"\xef\xbb\xbf" + '{"a": ["Zürich", 1.5]}'.encode())
    assert files.read_json(path) == {"a": ["Zürich", 1.5]}
    for content, said in (
        (b"{", "not JSON: line 1, column 2"),
        (b'[{"b": {"c": 1, "d": 2, "c": 1}}]', "the key 'c' is given twice: keep one"),
        (b"\xff\xfe", "is not UTF-8 text (byte 0): save it as UTF-8"),
    ):
        path.write_bytes(content)
        assert refused(files.read_json, path, "--data X").startswith(f"--data X: {said}")
    for file in (tmp_path, path / "below"):
        assert refused(files.read_text, file, "--data X") == "--data X: no such file"


def test_a_path_need_not_exist_and_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.user_path("~/runs/a") == tmp_path / "runs" / "a"


def test_whatever_a_parser_raises_names_the_input_and_the_fix():
    for fault in (AttributeError("'list' has no 'get'"), RecursionError(), OSError(28, "full")):
        with (
            pytest.raises(InputError, match=r"^config\.json of x \(.+\): correct it$"),
            as_input_error("config.json of x", "correct it"),
        ):
            raise fault
    with pytest.raises(InputError, match="bf16 with fp32"), as_input_error("x", "y", but=(RuntimeError,)):
        raise NotImplementedError("bf16 with fp32")
    for end in (Stopped("later"), KeyboardInterrupt(), MemoryError()):
        with pytest.raises(type(end)), as_input_error("x", "y", but=(MemoryError,)):
            raise end


def test_an_output_is_checked_before_the_work(tmp_path, monkeypatch):
    file = tmp_path / "file"
    files.check_output("--output", file)
    file.touch()
    files.check_output_folder("--output", tmp_path / "a" / "b" / "c")
    for check in (files.check_output, files.check_output_folder):
        check("--output", None)
    assert "there is no folder" in refused(files.check_output, "--output", tmp_path / "a" / "file")
    assert "no workbook is written: name a .csv" in refused(files.check_output, "--output", tmp_path / "a.XLSX")
    for path in (tmp_path, Path("/dev/null")):
        assert "is not a file" in refused(files.check_output, "--output", path)
    assert "is not a folder" in refused(files.check_output_folder, "--output", file / "below")
    (tmp_path / "empty").mkdir()
    for name in ("new", "a/b", "empty"):
        files.check_new_folder("--output", tmp_path / name)
    assert "is not empty: name a new or empty folder" in refused(files.check_new_folder, "--output", tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root every folder can be written to
    assert "cannot be written to" in refused(files.check_output, "--output", tmp_path / "other")
    assert "cannot be written to" in refused(files.check_output_folder, "--output", tmp_path / "a" / "b")


def test_public_names_hold_as_little_of_a_path_as_tells_them_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "local").mkdir(parents=True)
    kept = ["owner/name", "owner/name:plain@train[:5%]", "bert-base", "wiki.json", "quickstart:news", "MLE, a b"]
    assert files.public_names(kept) == {source: source for source in kept}
    paths = {"/home/u/a": "a", "~/b.json": "b.json", "./c/": "c", "owner/local": "local", "/": "a local folder"}
    assert files.public_names(paths) == paths
    assert files.public_name("tabs:/home/u/x.tabs") == "x.tabs"
    assert files.public_names(["/u/a/m", "/u/b/m"]) == {"/u/a/m": "a/m", "/u/b/m": "b/m"}


def test_what_the_system_refuses_is_one_line_on_every_rank(tmp_path):
    def step():
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    said = f"{tmp_path}: Permission denied: change its permissions, or its folder's"
    with process_group(), pytest.raises(InputError, match=re.escape(said)):
        on_all_ranks(step)
    full = denied(OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(full, WriteFailed)
    assert str(full) == "a file cannot be written: No space left on device: make room"
    assert str(denied(OSError(errno.ENAMETOOLONG, "File name too long", "x"))) == "x: File name too long"
    assert denied(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None  # not the user's
