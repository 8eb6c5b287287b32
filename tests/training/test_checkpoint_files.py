"""Manifests that were changed in any way, and names: damage is one line, and an earlier checkpoint is used."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.errors import InputError
from swep_ds.training import checkpoint_files
from swep_ds.training.checkpoint_files import (
    checkpoint_name,
    checkpoint_number,
    find_checkpoints,
    list_checkpoints,
    read_manifest,
    write_manifest,
)
from tests.support.hostile import CONTENTS, NO_FILES, with_every_value_changed
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


@pytest.mark.parametrize("name", [*CONTENTS, *NO_FILES])
def test_a_manifest_of_anything_is_damage(tags, caplog, name):
    (CONTENTS | NO_FILES)[name](tags[1] / "complete.json")
    assert_passed_over(tags, caplog)


def test_a_manifest_with_one_number_changed_is_damage(tags, caplog):
    file = tags[1] / "complete.json"
    file.write_text(file.read_text().replace('"windows": 16', '"windows": 17'))
    assert_passed_over(tags, caplog)
    assert "complete.json was changed after it was written" in caplog.text


@settings(max_examples=100)
@given(data=st.data())
def test_no_single_wrong_byte_of_a_manifest_is_believed(data):
    content = {"done": {"updates": 3, "seconds": 1.5}, "setup": {"seed": 0, "name": "é"}}
    text = json.dumps(content | {"checksum": checkpoint_files._checksum(content)})
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(exclude_characters=text[at])) + text[at + 1 :]
    try:
        assert json.loads(changed) == json.loads(text)  # only white space differs
    except (ValueError, AssertionError):
        with pytest.raises(InputError):
            checkpoint_files._parse(changed)


def test_signed_manifests_with_any_value_changed_are_damage_or_of_the_same_meaning(tags):
    """All places x all wrong values, with the right checksum: none is a traceback."""
    file = tags[1] / "complete.json"
    content = json.loads(file.read_text())
    del content["checksum"]
    content |= {"scores": {"1": {"exact_match": 1.5, "f1": 2.5, "total": 7}}}
    content["done"]["unlogged"] = {
        "accumulation": 2,
        "counts": {"loss": 1, "mu": 3},
        "sums": {"loss": [1.0], "mu": [0.5]},
    }
    write_manifest(tags[1], content)
    whole, accepted, refused = read_manifest(tags[1]), [], []
    for changed in with_every_value_changed(content):
        write_manifest(tags[1], changed)
        try:
            accepted.append(read_manifest(tags[1]))
        except InputError as error:
            refused.append(str(error))
    assert all(said.startswith(f"{tags[1]}: the checkpoint is damaged (") and "\n" not in said for said in refused)
    for manifest in accepted:
        assert manifest.done.updates == 2
        assert manifest.files == whole.files
        assert manifest.layout.zero_stage in (0, 1, 2, 3)
        if unlogged := manifest.done.unlogged:  # as `Meter` reads it
            assert unlogged["accumulation"] > 0
            assert unlogged["counts"].keys() == unlogged["sums"].keys()
        assert all(number > 0 for number in manifest.batch.values())


@pytest.mark.parametrize("name", ["../state.pt", "/etc/hosts", "a/state.pt", "state", ".pt", "state.pt\n", "état.PT"])
def test_files_outside_a_checkpoint_do_not_belong_to_it(tags, caplog, name):
    change_manifest(tags[1], lambda content: content["files"].update({name: content["files"]["state.pt"]}))
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


@pytest.mark.parametrize("name", [*CONTENTS, *NO_FILES, "traversal", "absolute", "pruned"])
def test_a_latest_that_names_no_checkpoint_is_ignored(tags, caplog, name):
    file = tags[0].parent / "latest"
    file.write_text(tags[0].name)
    assert find_checkpoints(tags[0].parent) == tags
    if name == "traversal":
        file.write_text(f"../{tags[0].parent.name}/{tags[0].name}")
    elif name == "absolute":
        file.write_text(str(tags[0]))
    elif name == "pruned":
        file.write_text("update-00000009")
    else:
        (CONTENTS | NO_FILES)[name](file)
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
