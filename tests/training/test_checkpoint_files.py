"""Manifests, files and names of checkpoints: damage is one line, and an earlier checkpoint is used."""

import shutil
from pathlib import Path

import pytest

from swep_ds.training import checkpoint_files
from swep_ds.training.checkpoint_files import (
    checkpoint_name,
    checkpoint_number,
    find_checkpoints,
    list_checkpoints,
    read_manifest,
)
from tests.support.tiny_checkpoint import change_manifest, write_checkpoint


@pytest.fixture
def tags(tmp_path) -> list[Path]:
    return [write_checkpoint(tmp_path, update) for update in (1, 2)]


def assert_passed_over(tags: list[Path], caplog) -> None:
    caplog.clear()
    assert find_checkpoints(tags[0].parent) == tags[:1]
    [record] = caplog.records
    said = record.getMessage()
    assert said.startswith(f"{tags[1]}: the checkpoint is damaged (")
    assert said.endswith(checkpoint_files.FIX)
    assert "\n" not in said
    assert len(said) < 1000


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"done": {"updates": 2}}'])
def test_a_manifest_of_something_else_is_damage(tags, caplog, text):
    (tags[1] / "complete.json").write_text(text)
    assert_passed_over(tags, caplog)


def test_a_truncated_file_is_damage(tags, caplog):
    (tags[1] / "state.pt").write_bytes(b"12345")
    assert_passed_over(tags, caplog)
    assert "(state.pt has 5 bytes, " in caplog.text


def test_a_file_that_deepspeed_would_read_as_well_is_damage(tags, caplog):
    shutil.copy(tags[1] / "state.pt", tags[1] / "mp_rank_01_model_states.pt")
    assert_passed_over(tags, caplog)
    (tags[1] / "mp_rank_01_model_states.pt").rename(tags[1] / "notes.txt")
    assert find_checkpoints(tags[0].parent) == tags[::-1]


def test_a_renamed_checkpoint_is_not_taken_for_another_update(tags, caplog):
    assert_passed_over([tags[0], tags[1].rename(tags[1].with_name("update-00000012"))], caplog)
    assert "it was saved after update 2 and renamed" in caplog.text
    kept = tags[1].with_name("update-00000012").rename(tags[1].with_name("kept"))
    assert read_manifest(kept).done.updates == 2  # named by the user, with --resume


@pytest.mark.parametrize("number", [0, 7, 99_999_999, 100_000_000, 10**12])
def test_names_and_numbers_are_each_others(number):
    assert checkpoint_number(checkpoint_name(number)) == number


@pytest.mark.parametrize("name", ["", "update-1", "update-000000001", "update-00000001\n", "update-" + 19 * "1"])
def test_other_names_have_no_number(name):
    assert checkpoint_number(name) is None


@pytest.mark.parametrize("name", ["", "elsewhere", "pruned"])
def test_a_latest_that_names_no_checkpoint_is_ignored(tags, caplog, name):
    file = tags[0].parent / "latest"
    file.write_text(tags[0].name)
    assert find_checkpoints(tags[0].parent) == tags
    file.write_text({"": "", "elsewhere": str(tags[0]), "pruned": "update-00000009"}[name])
    assert find_checkpoints(tags[0].parent) == tags[::-1]
    assert len(caplog.records) == 1
    assert "newest" in caplog.text


def test_a_folder_without_checkpoints(tmp_path):
    assert list_checkpoints(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    assert list_checkpoints(tmp_path / "file") == []


def test_what_a_run_writes_is_read_as_it_was(tags):
    unlogged = {"accumulation": 2, "counts": {"loss": 3.0, "kl": 1.5}, "sums": {"loss": [1.25], "kl": [float("inf")]}}
    change_manifest(tags[1], lambda content: content["done"].update(unlogged=unlogged))
    manifest = read_manifest(tags[1])
    assert manifest.done.unlogged == unlogged
    assert manifest.done.seconds == 1.5
