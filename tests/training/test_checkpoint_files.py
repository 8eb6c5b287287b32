"""Manifests, files and names of checkpoints: damage is one line, and an earlier checkpoint is used."""

from pathlib import Path

import pytest

from swep_ds.training.checkpoint_files import FIX, find_checkpoints, read_manifest
from tests.support.bad_input import refused
from tests.support.tiny_checkpoint import change_manifest, write_checkpoint


@pytest.fixture
def tags(tmp_path) -> list[Path]:
    return [write_checkpoint(tmp_path, update) for update in (1, 2)]


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("state.pt", "12345", ": the checkpoint is damaged (state.pt has 5 of "),
        ("state.pt", None, ": the checkpoint is damaged (state.pt has 0 of "),
        ("complete.json", '{"done": {"updates": 2}}', "/complete.json: another version wrote this checkpoint ("),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one_unless_it_is_named(tags, caplog, file, content, why):
    if content is None:
        (tags[1] / file).unlink()
    else:
        (tags[1] / file).write_text(content)
    assert find_checkpoints(tags[0].parent) == tags[:1]
    [record] = caplog.records
    said = record.getMessage()
    assert said.startswith(f"{tags[1]}{why}")
    assert said.endswith(FIX)
    assert refused(read_manifest, tags[1]) == said
    (tags[0] / "state.pt").unlink()
    assert refused(find_checkpoints, tags[0].parent).startswith(f"{tags[0]}: the checkpoint is damaged")


def test_what_latest_names_comes_first_and_copies_do_not_count(tags):
    folder = tags[0].parent
    tags[1].rename(tags[1].with_name("update-00000002-backup"))
    tags[1] = write_checkpoint(folder, 10_000_000)
    assert find_checkpoints(folder) == tags[1:]
    (folder / "latest").write_text(tags[0].name)
    assert find_checkpoints(folder) == tags[:1]
    (folder / "latest").write_text("update-00000009")
    assert find_checkpoints(folder) == tags[1:]
    (tags[1] / "complete.json").unlink()
    assert find_checkpoints(folder) == tags[:1]
    assert "not a complete checkpoint: name one such as checkpoints/update-" in refused(read_manifest, tags[1])
    assert find_checkpoints(folder / "none") == []


def test_what_a_run_writes_is_read_as_it_was(tags):
    scores = {2: {"f1": 90.0, "exact_match": 1 / 3, "total": 10}}
    change_manifest(tags[1], lambda content: content.update(scores=scores))
    change_manifest(tags[1], lambda content: content["done"].update(unlogged={}))  # of an earlier version
    manifest = read_manifest(tags[1])
    assert manifest.done.seconds == 1.5
    assert manifest.scores == scores
    assert isinstance(manifest.scores[2]["total"], int)
