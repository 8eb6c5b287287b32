"""The cache of windows: used if nothing changed, rebuilt if damaged, and one line if it cannot be written."""

import dataclasses
import errno
import hashlib
import json
import logging
import os
import resource
import time
from pathlib import Path

import pyarrow as pa
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data import cache
from swep_ds.data import features as module
from swep_ds.data.features import Features, build_features
from swep_ds.data.windows import WindowCutter
from tests.support import tiny
from tests.support.tiny_windows import CONTEXT, EXAMPLES, SMALL


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A filled cache; `again` reads it and tells whether it tokenised."""
    tokenised = []
    tokenise = WindowCutter.tokenise
    monkeypatch.setattr(WindowCutter, "tokenise", lambda *args: tokenised.append(1) or tokenise(*args))
    setup = {"examples": EXAMPLES, "tokenizer": tiny.wordpiece(), "settings": SMALL, "training": True}

    def again(**changes):
        tokenised.clear()
        features = build_features(**setup | changes, cache_dir=tmp_path / "new" / "cache")
        return features, bool(tokenised)

    first, fresh = again()
    assert fresh
    return first, again, tmp_path / "new" / "cache"


def same(features: Features, others: Features) -> bool:
    without_rows, others_without = (dataclasses.replace(value, dataset=None) for value in (features, others))
    return without_rows == others_without and list(features.dataset) == list(others.dataset)


def test_cache_is_used_when_nothing_changed(cached):
    first, again, folder = cached
    second, fresh = again()
    assert not fresh
    assert same(first, second)
    assert first.windows_without_answer > 0
    assert {file.suffix for file in folder.iterdir()} == {".arrow", ".json"}
    # answers for scoring are not part of a window
    assert not again(examples=[dataclasses.replace(e, id=f"{e.id}x", answers=("y",)) for e in EXAMPLES])[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"training": False},
        {"windows_without_answer": "drop"},
        {"tokenizer": tiny.unigram()},
        {"settings": dataclasses.replace(SMALL, max_length=25)},
        {"settings": dataclasses.replace(SMALL, doc_stride=6)},
        {"settings": dataclasses.replace(SMALL, max_query_length=7)},
        {"examples": EXAMPLES[:3]},
        {"examples": EXAMPLES[::-1]},
        {"examples": [*EXAMPLES[:3], dataclasses.replace(EXAMPLES[3], question="where?")]},
        {"examples": [*EXAMPLES[:3], dataclasses.replace(EXAMPLES[3], context=CONTEXT + " ")]},
        {"examples": [*EXAMPLES[:3], dataclasses.replace(EXAMPLES[3], span=(0, 3))]},
    ],
)
def test_cache_notices_changes(cached, changes):
    _, again, _ = cached
    assert again(**changes)[1]
    assert not again(**changes)[1]


def test_cache_notices_a_new_format(cached, monkeypatch):
    monkeypatch.setattr(module, "FORMAT_VERSION", -1)
    assert cached[1]()[1]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-50])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def make_foreign(file):
    """Another Arrow stream, or none, with the checksum that belongs to it."""

    def damage(content: bytes):
        file.write_bytes(content)
        facts = file.with_suffix(".json")
        counts = json.loads(facts.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
        facts.write_text(json.dumps(counts))

    return damage


def other_columns(file):
    sink = pa.BufferOutputStream()
    table = pa.table({"input_ids": [[1]], "length": [1]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    make_foreign(file)(sink.getvalue().to_pybytes())


def offsets_out_of_bounds(file):
    """The right columns, with a list that ends after its values."""
    table = pa.ipc.open_stream(file.read_bytes()).read_all().combine_chunks()
    column = table["input_ids"].chunk(0)
    offsets = column.offsets.to_numpy().copy()
    offsets[1] = 2**30
    broken = pa.ListArray.from_arrays(pa.array(offsets), column.values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.set_column(0, table.schema.field(0), broken))
    make_foreign(file)(sink.getvalue().to_pybytes())


def change_facts(**changes):
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def replace_by_folder(file):
    file.unlink()
    file.mkdir()


def replace_by_pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".arrow", truncate),
        (".arrow", flip_a_bit),
        (".arrow", lambda file: file.write_bytes(b"")),
        (".json", truncate),
        (".arrow", lambda file: make_foreign(file)(b"no Arrow stream")),
        (".arrow", other_columns),
        (".arrow", offsets_out_of_bounds),
        (".arrow", replace_by_pipe),
        (".json", lambda file: file.write_text("{}")),
        (".json", lambda file: file.write_text("[1]")),
        (".json", lambda file: file.write_text("[" * 10**5)),
        (".json", change_facts(examples="4")),
        (".json", change_facts(examples=True)),
        (".json", change_facts(more=1)),
        (".json", change_facts(sha256=None)),
        (".json", replace_by_pipe),
    ],
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(cached, caplog, suffix, damage):
    first, again, folder = cached
    rows = list(first.dataset)
    (file,) = folder.glob(f"*{suffix}")
    damage(file)
    with caplog.at_level(logging.WARNING, logger=cache.__name__):
        second, fresh = again()
    assert fresh
    assert "cannot be used" in caplog.text
    assert list(second.dataset) == rows
    assert json.loads(next(folder.glob("*.json")).read_text())["examples"] == len(EXAMPLES)
    assert not again()[1]


@pytest.mark.parametrize("suffix", [".arrow", ".json"])
def test_a_folder_in_the_place_of_a_cached_file(cached, suffix):
    _, again, folder = cached
    replace_by_folder(next(folder.glob(f"*{suffix}")))
    with pytest.raises(InputError, match=f"{folder}: tokenised windows cannot be written .* HF_DATASETS_CACHE"):
        again()


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(InputError, match=rf"{folder}: tokenised windows cannot be written .* HF_DATASETS_CACHE"):
            build_features(EXAMPLES, tiny.wordpiece(), SMALL, training=False, cache_dir=folder)


def test_a_full_disk_leaves_nothing(cached, monkeypatch):
    _, again, folder = cached
    before = sorted(folder.iterdir())

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # of a file's bytes: writing more fails
    try:
        with pytest.raises(InputError, match=rf"{folder}: tokenised windows cannot be written \(.* make room there"):
            again(training=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(folder.iterdir()) == before
    assert again(training=False)[1]


def test_what_a_killed_build_left_is_deleted_after_a_day(cached):
    _, again, folder = cached
    for name, hours in (("old", 25), ("new", 23)):
        left = folder / f"{cache.UNFINISHED}{name}"
        left.mkdir()
        (left / "windows").write_text("x")
        for path in (left / "windows", left):
            os.utime(path, (time.time() - 3600 * hours,) * 2)
    assert again(training=False)[1]
    assert [path.name for path in folder.glob(f"{cache.UNFINISHED}*")] == [f"{cache.UNFINISHED}new"]


def test_a_cache_that_may_only_be_read_is_used(cached, monkeypatch):
    """Root may write everywhere, so the writes are patched to fail."""

    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    first, again, _ = cached
    for name in ("mkdir", "write_text"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    second, fresh = again()
    assert not fresh
    assert same(first, second)
    with pytest.raises(InputError, match="Permission denied"):
        again(training=False)


def test_an_interrupted_build_leaves_nothing(cached, monkeypatch):
    _, again, folder = cached
    before = sorted(folder.iterdir())

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_join", stop)
    with pytest.raises(KeyboardInterrupt):
        again(training=False)
    assert sorted(folder.iterdir()) == before
