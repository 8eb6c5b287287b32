"""The cache of windows: used if nothing changed, rebuilt if damaged, and one line if it cannot be written."""

import dataclasses
import os
import resource
import time
from pathlib import Path

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


def truncate(file):
    file.write_bytes(file.read_bytes()[:-50])


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".arrow", truncate),  # as a copy of the cache that was stopped
        (".json", lambda file: file.unlink()),  # as a build that was killed between its two files
    ],
)
def test_an_incomplete_cache_is_made_again(cached, suffix, damage):
    first, again, folder = cached
    rows = list(first.dataset)
    (file,) = folder.glob(f"*{suffix}")
    damage(file)
    second, fresh = again()
    assert fresh
    assert list(second.dataset) == rows
    assert not again()[1]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/none")):
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


def test_an_interrupted_build_leaves_nothing(cached, monkeypatch):
    _, again, folder = cached
    before = sorted(folder.iterdir())

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_record_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        again(training=False)
    assert sorted(folder.iterdir()) == before
