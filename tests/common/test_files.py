"""Files that are whole or not there, and locks of other processes."""

import fcntl
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.analysis import runs
from swep_ds.common.errors import InputError, Stopped, as_input_error
from swep_ds.common.files import (
    MAX_FILE_NAME_BYTES,
    check_new_folder,
    check_output,
    check_output_folder,
    is_leftover,
    is_locked,
    open_lock,
    parse_json,
    path_of,
    public_name,
    public_names,
    read_json,
    read_lines,
    read_text,
    user_path,
    write_atomically,
)
from swep_ds.evaluation.results import read_results
from swep_ds.pipeline.saved_model import ReadingSettings
from swep_ds.ranks.group import on_all_ranks, process_group
from swep_ds.sweeps.sweep import saved_recipe
from swep_ds.training.checkpoint_files import read_manifest
from tests.support.bad_input import refused
from tests.support.hostile import NO_FILES
from tests.support.tiny_run import ROOT


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


def test_where_there_are_no_locks_none_is_held(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not is_locked(tmp_path / "lock")


def test_lines_of_updates_are_read_as_far_as_they_are_any(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert read_lines(path) == []
    path.write_bytes(
        b'{"update": 1}\n[1]\n{"loss": 2}\n{"update": "3"}\n{"update": 4, "a": "\xff"}\n{"update": 5\n{"update": 6}\n'
    )
    assert read_lines(path) == [{"update": 1}, {"update": 4, "a": "\ufffd"}]


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b"\xef\xbb\xbf" + '{"a": ["Zürich", 1.5]}'.encode())
    assert read_json(path) == {"a": ["Zürich", 1.5]}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "input"
    NO_FILES[kind](path)
    with pytest.raises(InputError, match=r"input: (is not a regular file|cannot be read|no such file)"):
        read_text(path)


@pytest.mark.parametrize("name", ["missing", "x" * 300, "nul\0", "missing/" * 3000])
def test_a_path_that_names_nothing_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"^--data X: (no such file|cannot be read)"):
        read_text(tmp_path / name, "--data X")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: line 1"),
        ('{"a": 1,\n "a": 2}', "'a' is given twice"),
        ('[{"b": {"c": 1, "d": 2, "c": 1}}]', "'c' is given twice"),
        ("[" * 100_000, "cannot be read .*: correct it"),
        ("1" * 5000, "cannot be read .*: correct it"),
    ],
)
def test_what_is_not_json_is_reported_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_json(text, "a.json")
    assert str(caught.value).startswith("a.json: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_reads_as_the_standard_library_reads_it(value):
    assert parse_json(json.dumps(value), "x") == value


def test_a_path_need_not_exist_and_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs/a", "--output_dir") == tmp_path / "runs" / "a"


@pytest.mark.parametrize(
    "fault", [AttributeError("'list' has no 'get'"), RecursionError(), KeyError("x"), OSError(28, "full")]
)
def test_whatever_a_parser_raises_names_the_input_and_the_fix(fault):
    with (
        pytest.raises(InputError, match=r"^config\.json of x \(.+\): correct it$"),
        as_input_error("config.json of x", "correct it"),
    ):
        raise fault


def test_what_a_library_does_not_implement_is_the_inputs_fault():
    with (
        pytest.raises(InputError, match=r"^x \(.*bf16 with fp32.*\): y$"),
        as_input_error("x", "y", but=(RuntimeError,)),
    ):
        raise NotImplementedError("bf16 with fp32")


def test_an_end_and_an_interrupt_pass_through_a_parser():
    for end in (Stopped("later"), KeyboardInterrupt()):
        with pytest.raises(type(end)), as_input_error("x", "y"):
            raise end


def test_a_lock_file_that_exists_is_not_emptied(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text("kept")
    with open_lock(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(lock)
    assert lock.read_text() == "kept"


def test_leftovers_are_what_is_written_before_it_gets_its_name(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(os, "replace", lambda temporary, path: names.append((temporary.name, path.name)))
    for name in ("recipe.yaml", "a.1", ".hidden", "x"):
        write_atomically(tmp_path / name, "")
    assert all(is_leftover(temporary) and not is_leftover(name) for temporary, name in names)
    for name in (".recipe.yaml", ".recipe.yaml.", ".recipe.yaml.12x", "recipe.yaml.12", ".12", "..12"):
        assert not is_leftover(name)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "x" * 300, "a\0b", "x" * 5000, "a\x1b[31m\0"])
def test_a_path_that_cannot_be_looked_up_is_one_line_that_names_the_option(name):
    with pytest.raises(InputError, match=r"--output .* cannot be looked up") as caught:
        path_of("--output")(name)
    assert str(caught.value).isprintable()
    for check in (check_output, check_output_folder):
        with pytest.raises(InputError, match="--output"):
            check("--output", Path(name))


def test_an_output_is_checked_before_the_work(tmp_path, monkeypatch):
    check_output("--output", None)
    check_output_folder("--output", None)
    longest = tmp_path / ("x" * MAX_FILE_NAME_BYTES)
    check_output("--output", longest)
    write_atomically(longest, "")
    check_output_folder("--output", tmp_path / "a" / "b" / "c")
    with pytest.raises(InputError, match="longer than 240 bytes"):
        check_output("--output", tmp_path / ("x" * (MAX_FILE_NAME_BYTES + 1)))
    with pytest.raises(InputError, match="there is no folder"):
        check_output("--output", tmp_path / "a" / "file")
    with pytest.raises(InputError, match="is not a file"):
        check_output("--output", tmp_path)
    for path in (longest, longest / "below"):
        with pytest.raises(InputError, match="is not a folder"):
            check_output_folder("--output", path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root every folder can be written to
    with pytest.raises(InputError, match="cannot be written to"):
        check_output("--output", tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written to"):
        check_output_folder("--output", tmp_path / "a" / "b")


def test_a_new_folder_may_be_there_if_it_is_empty(tmp_path):
    for name in ("new", "a/b"):
        check_new_folder("--output", tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for name in ("empty", "link"):
        check_new_folder("--output", tmp_path / name)
    (tmp_path / "empty" / "file").write_text("")
    (tmp_path / "lost").symlink_to("nowhere")
    for name, fault in [
        ("empty", "is not empty (it holds file): name a new or empty folder"),
        ("link", "is not empty (it holds file)"),
        ("lost", "is a symbolic link to nothing"),
        ("empty/file", "is not a folder"),
        ("x" * 250, "longer than 240 bytes"),
    ]:
        assert fault in refused(check_new_folder, "--output", tmp_path / name)


SOURCES = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "swep_ds" / "commands").glob("*.py")])


@pytest.mark.parametrize("script", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_script_checks_its_paths(script):
    apart = script.stem in ("bench_kernels", "same_numbers")  # scripts that know nothing of the package
    assert apart or "type=Path" not in script.read_text()


READERS = {  # the file that cannot be read -> what reads it
    "recipe.yaml": lambda file: saved_recipe(file.parent),
    "ds_config.json": lambda file: runs.conditions(file.parent),
    "results.json": read_results,
    "reading.json": ReadingSettings.load,
    "sweep.json": lambda file: runs.find_runs([file.parent]),
    "complete.json": lambda file: read_manifest(file.parent),
}


def test_public_names_hold_as_little_of_a_path_as_tells_them_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "local").mkdir(parents=True)
    kept = ["owner/name", "owner/name:plain@train[:5%]", "bert-base", "wiki.json", "quickstart:news", "MLE, a b"]
    assert public_names(kept) == {source: source for source in kept}
    paths = {
        "/home/u/a": "a",
        "~/b.json": "b.json",
        "./c/": "c",
        "../d": "d",
        "owner/local": "local",
        "/": "a local folder",
    }
    assert public_names(paths) == paths
    assert public_name("tabs:/home/u/x.tabs") == "x.tabs"
    assert public_names(["/u/a/m", "/u/b/m"]) == {"/u/a/m": "a/m", "/u/b/m": "b/m"}


@pytest.mark.parametrize("name", READERS)
def test_nobody_is_told_to_delete_a_file_that_lacks_a_permission(tmp_path, monkeypatch, name):
    file, opened = tmp_path / name, Path.open
    file.write_text("{}")

    def refuse(path, *arguments):
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=re.escape(str(file))):  # see `denied`
        READERS[name](file)


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(InputError, match=r"/\.lock: cannot be opened \(Is a directory\): change its permissions, or d"):
        open_lock(tmp_path / ".lock")


def test_a_step_without_permission_ends_all_ranks_with_one_line(tmp_path):
    def step():
        raise PermissionError(13, "Permission denied", str(tmp_path))

    said = f"{tmp_path}: Permission denied: change its permissions, or its folder's"
    with process_group(), pytest.raises(InputError, match=re.escape(said)):
        on_all_ranks(step)


def test_a_lack_of_permission_that_names_no_file_is_not_the_users(tmp_path):
    def step():
        raise PermissionError(1, "Operation not permitted")  # as by os.kill

    with process_group(), pytest.raises(PermissionError):
        on_all_ranks(step)
