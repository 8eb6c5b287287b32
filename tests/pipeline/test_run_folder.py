"""A run's folder: whose it is, what may change between two starts, where it resumes."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from swep_ds.common.errors import InputError
from swep_ds.common.files import is_locked
from swep_ds.pipeline import folder as run_folder
from swep_ds.pipeline import prepare
from swep_ds.pipeline.folder import GlobalBatch, RunFolder, resume_fingerprint
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import refused
from tests.support.tiny_checkpoint import change_manifest, state, write_checkpoint

BATCH = GlobalBatch(windows=8, micro_batch_size=8, gradient_accumulation_steps=1)
TREE = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}


def recipe(**changes) -> Recipe:
    tree = TREE | {"train": {"learning_rate": 1e-4}}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        tree = tree | ({section: tree.get(section, {}) | {field: value}} if field else {section: value})
    return Recipe.model_validate(tree)


def take(path: Path, settings: Recipe | None = None, resume: str = "auto") -> list[Path]:
    with RunFolder(path) as folder:
        return folder.take(settings or recipe(), resume)


def message(path: Path, settings: Recipe | None = None, resume: str = "auto") -> str:
    return refused(take, path, settings, resume)


@pytest.fixture
def used(tmp_path) -> Path:
    """The folder of a run of `recipe()` that has made an update."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "metrics.jsonl").write_text('{"update": 1}\n')
    (path / "recipe.yaml").write_text(recipe().dump())
    RunFolder(path).write_batch(BATCH)
    return path


def test_a_new_folder_is_made_with_its_parents_and_a_start_that_is_refused_leaves_nothing(tmp_path):
    path = tmp_path / "a" / "b"
    with RunFolder(path) as folder:
        assert folder.take(recipe(), "auto") == []
        assert is_locked(path / ".lock")
    assert list(tmp_path.iterdir()) == []
    path.mkdir(parents=True)
    assert "no such folder: give auto, never, or a checkpoint's folder" in message(path, resume="nowhere")
    assert list(path.iterdir()) == []  # a folder that already existed stays
    with RunFolder(path) as folder:
        folder.take(recipe(), "auto")
        (path / "recipe.yaml").write_text(recipe().dump())  # the run begins
    assert (path / "recipe.yaml").is_file()
    assert not is_locked(path / ".lock")


def test_a_finished_run_without_checkpoints_is_not_trained_again(used, tmp_path):
    folder = RunFolder(used)
    folder.check_not_finished()
    folder.results.write_text("{}")
    with pytest.raises(InputError, match=r"its run is finished, .*`swep-ds evaluate .*/model --data .*, or delete "):
        folder.check_not_finished()
    assert take(used, resume=str(write_checkpoint(tmp_path / "other", 2))) == []  # nor from elsewhere


# Whose a folder is


def test_what_is_not_a_folder_or_holds_other_files(tmp_path):
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert "is a file: name a folder" in message(tmp_path / "file")
    assert "cannot be made and locked (Not a directory)" in message(tmp_path / "file" / "run")
    assert "holds files that belong to no run (file): name a new or empty folder" in message(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["thesis.tex", "recipe.yaml", "checkpoints/mine", "model/mine", "pretrain/a"])
def test_what_no_start_leaves_is_somebody_elses(tmp_path, name):
    """Such as a user's own recipe beside his model."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("extends: quickstart\n")
    before = sorted(tmp_path.rglob("*"))
    assert f"holds files that belong to no run ({Path(name).parts[0]})" in message(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_first_start_that_was_killed_anywhere_starts_again(tmp_path):
    path, settings = tmp_path / "run", recipe(pretrain={"train": "generated"})
    for name in (".lock", ".preflight-0a-0", "pretrain/.lock", "pretrain/.batch.json.7", ".batch.json.7"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
        assert take(path, settings) == []
    for folder in (path / "pretrain", path):
        RunFolder(folder).write_batch(BATCH)
        assert take(path, settings) == []
    (path / "checkpoints").mkdir()
    assert take(path, settings) == []


@pytest.mark.parametrize("output", ["a", "a/model", "link"])
def test_the_model_that_a_run_starts_from_is_not_in_its_folder(tmp_path, output):
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "a" / "model" / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to("a")
    settings = recipe(model__name=str(tmp_path / "a" / "model"))
    assert "holds the model that the run starts from (model.name" in message(tmp_path / output, settings)
    assert take(tmp_path / "b", settings) == []


def test_folders_may_be_on_another_disk(used, tmp_path):
    (tmp_path / "disk").mkdir()
    (used / "checkpoints").symlink_to(tmp_path / "disk")
    tag = write_checkpoint(tmp_path / "disk", 3)
    assert take(used) == [used / "checkpoints" / tag.name]
    (tmp_path / "link").symlink_to(used)
    assert take(tmp_path / "link") == [tmp_path / "link" / "checkpoints" / tag.name]


@pytest.mark.parametrize("name", ["", "model"])
def test_what_cannot_be_written_to_is_found_at_the_start(used, monkeypatch, name):
    (used / name).mkdir(exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: path != used / name)  # root may write everywhere
    assert f"{used / name}: cannot be written to: change its permissions" in message(used)


# The same run, or another one


def test_another_run_names_all_fields_that_differ(used):
    other = recipe(train__learning_rate=2e-4, method__beta=0.5, seed=3)
    said = message(used, other)
    assert all(f"{field} " in said for field in ("train.learning_rate", "method.beta", "seed"))
    (used / "recipe.yaml").write_text(recipe(pretrain={"train": "generated"}).dump())
    said = message(used)
    assert "pretrain.train" in said
    assert "data.train" not in said
    said = message(used, Recipe.load("official"))  # five of many
    assert re.search(r"; and \d+ more\)$", said)


def test_the_same_run_and_what_may_change_in_it(used):
    changed = recipe(
        data__eval={"x": "elsewhere", "more": "z"},
        data__max_eval_examples=5,
        eval__n_best=10,
        tracking__to="wandb_offline",
        train__checkpoint_every=2,
    )
    assert take(used) == take(used, changed) == []
    assert "holds a run already: name another folder, or --resume auto to resume it" in message(used, resume="never")
    bound = resume_fingerprint(recipe())
    for name in ("seed", "task", "model.name", "method.beta", "data.train", "data.doc_stride", "train.max_updates"):
        assert name in bound
    free = [name for name in bound if name.startswith(("data.eval", "data.max_eval", "eval.", "tracking."))]
    assert free == ["eval.select_on"]


def test_a_start_that_was_refused_in_its_first_update_binds_nothing(used):
    (used / "metrics.jsonl").write_text("")
    assert take(used, recipe(train__learning_rate=2e-4)) == []
    (used / "checkpoints" / "update-00000001").mkdir(parents=True)
    assert "holds another run" in message(used, recipe(train__learning_rate=2e-4))


def test_what_selection_depends_on_binds_where_there_is_one(used):
    selecting = {"eval__select_on": "x"}
    assert "eval.select_on None" in message(used, recipe(**selecting))
    (used / "recipe.yaml").write_text(recipe(**selecting).dump())
    assert take(used, recipe(**selecting, data__eval={"x": "y", "more": "z"}, eval__batch_size=3)) == []
    for changes, field in [
        ({"data__eval": {"x": "elsewhere"}}, "data.eval, to select on"),
        ({"data__max_eval_examples": 5}, "data.max_eval_examples"),
        ({"eval__n_best": 10}, "eval.n_best"),
    ]:
        assert f"({field} " in message(used, recipe(**selecting, **changes))


def test_ranks_that_would_train_otherwise_are_named_with_what_differs(monkeypatch):
    setups = [{"training data": "a"}, {"training data": "a"}, {"training data": "b"}]
    monkeypatch.setattr(prepare, "ranks", SimpleNamespace(gather=lambda mine: [*setups, mine], host="n{}".format))
    said = r"rank 2 \(here, host n2\) starts with other settings than rank 0 \(there, host n0\): training data 'a'"
    with pytest.raises(InputError, match=said):
        prepare.check_alike(setups[0])
    setups.pop()
    prepare.check_alike(setups[0])


# Where it resumes


def test_auto_resumes_from_the_newest_complete_checkpoint(used):
    tags = [write_checkpoint(used / "checkpoints", update) for update in (10, 9, 8)]
    (used / "checkpoints" / "update-00000011").mkdir()  # cut off
    assert take(used) == tags  # older ones in case it turns out to be damaged
    (used / "checkpoints" / "latest").write_text(tags[1].name)
    assert take(used) == [tags[1], tags[0], tags[2]]


def test_auto_with_nothing_but_damaged_checkpoints(used):
    tag, size = write_checkpoint(used / "checkpoints", 4), len(state())
    (tag / "state.pt").unlink()
    said = message(used)
    assert f"{tag}: the checkpoint is damaged (state.pt is missing, {size} were written): delete that folder" in said


def test_a_path_names_a_checkpoint_or_a_folder_of_them(used, tmp_path, capsys):
    other = tmp_path / "other" / "checkpoints"
    older, newest = write_checkpoint(other, 1), write_checkpoint(other, 2)
    assert take(tmp_path / "a", resume=str(older)) == [older]
    assert take(tmp_path / "b", resume=str(other)) == [newest]  # and no other
    (tmp_path / "empty").mkdir()
    said = message(tmp_path / "c", resume=str(tmp_path / "empty"))
    assert "not a complete checkpoint (it has no complete.json)" in said
    inside = write_checkpoint(used / "checkpoints", 4)
    last = write_checkpoint(used / "checkpoints", 6)
    assert take(used, resume=str(other)) == [last, inside]  # it continues from its own
    assert f"not from {other}" in capsys.readouterr().err
    assert take(used, resume=str(inside)) == [inside]  # which may rewind it


def test_the_split_may_change_but_the_folder_remembers_the_batch(used, tmp_path):
    assert take(used, recipe(train__micro_batch_size=4, train__gradient_accumulation_steps=2)) == []
    assert RunFolder(used).read_batch([]) == BATCH
    other = write_checkpoint(tmp_path / "other", 3)
    of_checkpoint = {"windows": 4, "micro_batch_size": 4, "gradient_accumulation_steps": 1}
    change_manifest(other, lambda content: content.update(batch=of_checkpoint))
    assert RunFolder(used).read_batch([other]) == BATCH
    assert RunFolder(tmp_path / "new").read_batch([other]) == GlobalBatch(**of_checkpoint)


# The lock


@contextmanager
def held(path: Path):
    """The folder is locked by another process, which is yielded."""
    script = (
        "import sys\n"
        "from filelock import FileLock\n"
        "lock = FileLock(sys.argv[1])\n"
        "lock.acquire()\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(path / ".lock")], **pipes) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            yield holder
        finally:
            holder.kill()


def test_another_process_holds_the_folder_until_it_ends(used, monkeypatch, capsys):
    monkeypatch.setattr(run_folder, "LOCK_EVERY", 0.05)
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.2)
    with held(used) as holder:
        assert "another process is writing to it: name another folder" in message(used)
        assert capsys.readouterr().err == f"{used}: another process holds it, waiting up to 0 s\n"
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # as if on the disk of a node that was lost
        monkeypatch.setattr(run_folder, "say_on_stderr", lambda text: (print(text), holder.kill(), holder.wait()))
        with RunFolder(used) as folder:
            assert folder.take(recipe(), "auto") == []  # a killed process leaves no lock behind
            assert is_locked(used / ".lock")
        assert capsys.readouterr().out == f"{used}: another process holds it, waiting up to 120 s\n"


def test_another_run_that_began_while_this_one_waited_keeps_its_folder(tmp_path, monkeypatch):
    def write_meanwhile(*_) -> None:
        RunFolder(tmp_path).write_batch(BATCH)
        (tmp_path / "recipe.yaml").write_text(recipe(seed=9).dump())
        (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n')

    monkeypatch.setattr(RunFolder, "_take_lock", write_meanwhile)
    assert "holds another run: name another folder (seed 9" in message(tmp_path)
