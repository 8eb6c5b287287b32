"""The cache of windows: used if nothing changed, made again if incomplete, and one line if it cannot be written."""

import dataclasses
import resource

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data import features as module
from swep_ds.data.features import build_features
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


def test_cache_is_used_when_nothing_changed(cached):
    first, again, folder = cached
    second, fresh = again()
    assert not fresh
    assert list(first.dataset) == list(second.dataset)
    assert dataclasses.replace(first, dataset=None) == dataclasses.replace(second, dataset=None)
    assert first.windows_without_answer > 0
    assert {file.suffix for file in folder.iterdir()} == {".arrow", ".json"}
    # answers for scoring are not part of a window
    assert not again(examples=[dataclasses.replace(e, id=f"{e.id}x", answers=("y",)) for e in EXAMPLES])[1]


def test_cache_notices_changes(cached):
    _, again, _ = cached
    changes = [{"training": False}, {"windows_without_answer": "drop"}, {"tokenizer": tiny.unigram()}]
    for field, value in {"max_length": 25, "doc_stride": 6, "max_query_length": 7}.items():
        changes.append({"settings": dataclasses.replace(SMALL, **{field: value})})
    changes += [{"examples": EXAMPLES[:3]}, {"examples": EXAMPLES[::-1]}]
    for field, value in {"question": "where?", "context": CONTEXT + " ", "span": (0, 3)}.items():
        changes.append({"examples": [*EXAMPLES[:3], dataclasses.replace(EXAMPLES[3], **{field: value})]})
    for change in changes:
        assert again(**change)[1], change
        assert not again(**change)[1], change


def test_an_incomplete_cache_is_made_again(cached):
    """As a copy that was stopped, and a build that was killed between its two files."""
    first, again, folder = cached
    rows = list(first.dataset)
    [windows], [facts] = folder.glob("*.arrow"), folder.glob("*.json")
    for damage in (lambda: windows.write_bytes(windows.read_bytes()[:-50]), facts.unlink):
        damage()
        second, fresh = again()
        assert fresh
        assert list(second.dataset) == rows
        assert not again()[1]


def test_a_build_that_fails_leaves_nothing(cached, monkeypatch, tmp_path):
    _, again, folder = cached
    before = sorted(folder.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # of a file's bytes: writing more fails
    try:
        with pytest.raises(InputError, match=rf"{folder}: tokenised windows cannot be written .* HF_DATASETS_CACHE"):
            again(training=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_inputs", stop)
    with pytest.raises(KeyboardInterrupt):
        again(training=False)
    assert sorted(folder.iterdir()) == before
