"""Which checkpoints are kept, found and the best, over any history of scores; and damage is one line."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from swep_ds.common.errors import WriteFailed
from swep_ds.common.files import read_sealed
from swep_ds.ranks.group import process_group
from swep_ds.training import checkpoints
from swep_ds.training.checkpoint_files import FIX, find_checkpoints, list_updates, read_manifest
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.zero.files import Writer
from tests.support.bad_input import change_sealed, flipped, refused
from tests.support.tiny_checkpoint import BATCH, state, write_checkpoint
from tests.support.tiny_run import complete


class Engine:
    """Writes a file where DeepSpeed would write its own."""

    stage = 1
    writer = SimpleNamespace(finish=lambda: {"state.pt": xxh3_64_hexdigest(state())})

    @property
    def deepspeed(self) -> "Engine":
        return self

    def save_checkpoint(self, folder: str, tag: str, **options: bool) -> None:
        (Path(folder) / tag / "state.pt").write_bytes(state())


def load(engine: Engine, tag: Path, stage: int, names: list[str]) -> None:
    assert (stage, names) == (1, ["state.pt"])
    engine.loaded = tag


@pytest.fixture(autouse=True, scope="module")
def one_rank() -> Iterator[None]:
    with process_group(), mock.patch.multiple(checkpoints, load=load, refresh_weights=lambda engine: None):
        yield


def open_in(folder: Path, keep: int) -> Checkpoints:
    return Checkpoints(folder, keep, {}, BATCH)


def score(f1: float, exact_match: float = 0.0) -> dict:
    return {"exact_match": exact_match, "f1": f1, "total": 10}


def best_of(scores: list[dict]) -> int:
    """By hand: the first of the highest F1, among those of the highest EM. Updates count from 1."""
    return min(range(len(scores)), key=lambda i: (-scores[i]["f1"], -scores[i]["exact_match"], i)) + 1


def test_only_what_a_killed_start_left_is_deleted_and_nothing_foreign(tmp_path):
    mine, engine = open_in(tmp_path / "checkpoints", 1), Engine()
    mine.save(engine, TrainState(1), score(99))
    foreign = ("update-00000001-backup", "update-1", "update-of-mine")
    for name in foreign:
        shutil.copytree(mine.tag(1), mine.folder / name)
    for name in ("update-00000000", "update-00000005"):
        (mine.folder / name).mkdir()
        (mine.folder / name / "state.pt").write_text("half")
    elsewhere = shutil.copytree(mine.tag(1), tmp_path / "elsewhere")
    mine.tag(3).symlink_to(elsewhere)
    for update in (2, 3):
        mine.save(engine, TrainState(update))  # 3 in the place of the link
    kept = {"latest", "update-00000001", "update-00000003", *foreign}
    assert {path.name for path in mine.folder.iterdir()} == kept
    assert all((mine.folder / name / "state.pt").read_bytes() == state() for name in foreign)
    assert (elsewhere / "complete.json").is_file()
    assert mine.best() == 1
    mine.tag(4).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteFailed, match=r"the checkpoint of update 4 is lost, earlier ones stay: cannot write"):
        mine.save(engine, TrainState(4))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_checkpoint_that_was_deleted_in_part_is_not_complete(tmp_path, monkeypatch):
    mine, engine = open_in(tmp_path, 1), Engine()
    mine.save(engine, TrainState(1))

    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(WriteFailed, match="Input/output error"):
        mine.save(engine, TrainState(2))
    assert list_updates(tmp_path) == [2]


few = st.integers(0, 3).map(float)  # so that there are ties


@settings(max_examples=10)
@given(scores=st.lists(st.builds(score, few, few), min_size=1, max_size=9), keep=st.integers(1, 3), data=st.data())
def test_the_best_is_never_pruned(tmp_path_factory, scores, keep, data):
    run = tmp_path_factory.mktemp("run")
    mine, engine = open_in(run / "checkpoints", keep), Engine()
    for update, scored in enumerate(scores, 1):
        mine.save(engine, TrainState(update), scored)
        assert mine.best() == best_of(scores[:update])
        newest = range(max(1, update - keep + 1), update + 1)
        assert complete(run) == sorted({*newest, *(best_of(scores[:last]) for last in newest)})
    # a run that resumes from any of the newest finds the best and the scores so far
    from_update = data.draw(st.sampled_from(newest))
    again = open_in(run / "checkpoints", keep)
    assert again.load(engine, [again.tag(from_update)]) == (again.tag(from_update), TrainState(from_update))
    assert again.scores == dict(enumerate(scores[:from_update], 1))
    for update in range(from_update + 1, len(scores) + 1):
        again.save(engine, TrainState(update), scores[update - 1])
        assert complete(run)[-1] == update  # the branch that it left is gone
    assert again.best() == best_of(scores)


def test_scores_of_another_runs_checkpoints_are_known_but_not_chosen(tmp_path):
    other, engine = open_in(tmp_path / "other", 2), Engine()
    for update, f1 in ((1, 70), (2, 90), (3, 50), (4, 40)):
        other.save(engine, TrainState(update), score(f1))
    other.load(engine, [other.tag(other.best())])
    assert engine.loaded == other.tag(2)
    assert sorted(other.scores) == [1, 2, 3, 4]  # loading forgets none
    mine = open_in(tmp_path / "mine", 2)
    mine.load(engine, [other.tag(3)])
    assert mine.best() is None
    mine.save(engine, TrainState(4))  # without a score
    assert mine.best() is None
    mine.save(engine, TrainState(5), score(60))
    assert mine.best() == 5
    mine.setup = {"updates": 20}
    said = refused(mine.load, engine, [mine.tag(5)])
    assert "does not fit this start (updates None there, 20 here): start with the same" in said


@pytest.mark.parametrize("file", ["complete.json", "latest"])
def test_without_room_for_what_completes_a_checkpoint_the_earlier_one_stays(tmp_path, monkeypatch, file):
    mine, engine, write = open_in(tmp_path, 1), Engine(), checkpoints.write_atomically
    mine.save(engine, TrainState(1))

    def write_or_fail(path: Path, text: str) -> None:
        if path.name == file:
            raise OSError(28, "No space left on device", str(path))
        write(path, text)

    monkeypatch.setattr(checkpoints, "write_atomically", write_or_fail)
    with pytest.raises(WriteFailed, match=rf"/{file}: No space left on device: make room"):
        mine.save(engine, TrainState(2))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["latest", "update-00000001"]
    assert (tmp_path / "latest").read_text() == "update-00000001"
    monkeypatch.undo()
    mine.save(engine, TrainState(2))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["latest", "update-00000002"]


def test_a_writer_keeps_the_first_fault_and_writes_nothing_more(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size) or sync(file))
    writer, file = Writer(), tmp_path / "state.pt"
    writer.save({"x": torch.ones(1000)}, str(file))
    assert writer.finish() == {"state.pt": xxh3_64_hexdigest(file.read_bytes())}
    assert writer.finish() == {}
    assert torch.load(file)["x"].tolist() == [1] * 1000
    assert synced == [file.stat().st_size]
    writer.save({}, str(tmp_path / "missing" / "two.pt"))
    writer.save({}, str(tmp_path / "three.pt"))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*two\.pt'"):
        writer.finish()
    assert [*tmp_path.iterdir()] == [file]
    writer.save({}, str(tmp_path / "three.pt"))
    assert list(writer.finish()) == ["three.pt"]


@pytest.fixture
def tags(tmp_path) -> list[Path]:
    return [write_checkpoint(tmp_path, update) for update in (1, 2)]


@pytest.mark.parametrize("name", ["state.pt", "complete.json"])
def test_whatever_damages_a_checkpoint_the_next_older_one_is_loaded_unless_it_is_named(tags, caplog, name):
    file, engine = tags[1] / name, Engine()
    whole = file.read_bytes()
    bits = [int(bit) for bit in np.random.default_rng(0).choice(8 * len(whole), 60, replace=False)]
    of_another_update = io.BytesIO()
    torch.save({"x": 2 * torch.ones(1000)}, of_another_update)
    assert len(of_another_update.getvalue()) == len(state())
    damaged = [flipped(whole, bit) for bit in bits]
    for content in (*damaged, b"", whole[:-1], whole + b"\0", of_another_update.getvalue(), None):
        caplog.clear()
        file.unlink() if content is None else file.write_bytes(content)
        mine = open_in(tags[0].parent, 2)
        assert mine.load(engine, tags[::-1])[0] == engine.loaded == tags[0], content
        [record] = caplog.records
        said = record.getMessage().removesuffix("; the next one is tried")
        assert said == refused(mine.load, engine, tags[1:]) != record.getMessage()
        assert said.startswith(f"{tags[1]}: ")
        if content is not None:
            assert f" ({name} has changed since it was written" in said
            assert said.endswith(FIX)
    file.write_bytes(whole)
    assert open_in(tags[0].parent, 2).load(engine, tags[::-1])[0] == tags[1]


def test_a_checkpoint_without_checksums_is_refused_at_the_start_and_passed_over_for_an_older_one(tags, caplog):
    for tag in tags[::-1]:
        (tag / "complete.json").write_text(json.dumps(read_sealed(tag / "complete.json")))
        if tag == tags[1]:
            assert find_checkpoints(tags[0].parent) == tags[:1]
            said = caplog.records[0].getMessage()
            assert said.startswith(
                f"{tag}: the checkpoint is damaged (complete.json has changed since it was written, or "
            )
    assert refused(find_checkpoints, tags[0].parent).startswith(f"{tags[0]}: the checkpoint is damaged (")


def test_what_latest_names_comes_first_and_copies_do_not_count(tags):
    folder = tags[0].parent
    tags[1].rename(tags[1].with_name("update-00000002-backup"))
    tags[1] = write_checkpoint(folder, 10_000_000)
    assert find_checkpoints(folder) == tags[::-1]
    for latest, expected in ((tags[0].name, tags), ("update-00000009", tags[::-1]), ("update-\xff", tags[::-1])):
        (folder / "latest").write_text(latest, "latin-1")
        assert find_checkpoints(folder) == expected
    (tags[1] / "complete.json").unlink()
    assert find_checkpoints(folder) == tags[:1]
    assert "not a complete checkpoint: name one such as checkpoints/update-" in refused(read_manifest, tags[1])
    assert find_checkpoints(folder / "none") == []


def test_scores_are_read_as_they_were_and_fields_that_are_gone_are_passed_over(tags):
    scores = {2: {"f1": 90.0, "exact_match": 1 / 3, "total": 10}}
    change_sealed(tags[1] / "complete.json", scores=scores)
    change_sealed(tags[1] / "complete.json", "done", unlogged={})  # as an earlier version wrote it
    manifest = read_manifest(tags[1])
    assert (manifest.done.seconds, manifest.scores) == (1.5, scores)
