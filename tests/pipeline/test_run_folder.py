"""A run's folder: whose it is, what may change between two starts, where it resumes."""

import functools
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swep_ds.common.files import is_locked
from swep_ds.pipeline.folder import GlobalBatch, RunFolder, resume_fingerprint
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.ranks.group import process_group
from tests.pipeline.test_recipe import MINIMAL
from tests.support.bad_input import change_sealed, refused
from tests.support.tiny_checkpoint import write_checkpoint

BATCH = GlobalBatch(windows=8, micro_batch_size=8, gradient_accumulation_steps=1)


def recipe(**changes) -> Recipe:
    tree = MINIMAL | {"train": {"learning_rate": 1e-4}}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        tree = tree | ({section: tree.get(section, {}) | {field: value}} if field else {section: value})
    return Recipe.model_validate(tree)


def take(path: Path, settings: Recipe | None = None, resume: str = "auto") -> list[Path]:
    with RunFolder(path) as folder:
        return folder.take(settings or recipe(), resume)


message = functools.partial(refused, take)


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
    (used / "results.json").write_text("{}")
    with process_group():
        assert "without checkpoints it would be trained again" in refused(run, recipe(), "zero0", used, "auto")
    assert take(used, resume=str(write_checkpoint(tmp_path / "other", 2))) == []  # nor from elsewhere


# Whose a folder is


@pytest.mark.parametrize("name", ["thesis.tex", "recipe.yaml", "model/mine", "checkpoints/mine", "pretrain/mine"])
def test_what_no_start_leaves_is_somebody_elses(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("extends: quickstart\n")
    before = sorted(tmp_path.rglob("*"))
    assert f"holds files that belong to no run ({Path(name).parts[0]})" in message(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_first_start_that_was_killed_anywhere_starts_again(tmp_path):
    path, settings = tmp_path / "run", recipe(pretrain={"train": "generated"})
    for name in (".lock", ".preflight-0a-0", "pretrain/.lock", "pretrain/.batch.json.7", ".batch.json.7"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
        assert take(path, settings) == []
    for folder in (path, path / "pretrain"):
        RunFolder(folder).write_batch(BATCH)
        assert take(path, settings) == []
    (path / "checkpoints").mkdir()
    assert take(path, settings) == []


def test_folders_may_be_on_another_disk(used, tmp_path):
    (tmp_path / "disk").mkdir()
    (used / "checkpoints").symlink_to(tmp_path / "disk")
    tag = write_checkpoint(tmp_path / "disk", 3)
    assert take(used) == [used / "checkpoints" / tag.name]
    (tmp_path / "link").symlink_to(used)
    assert take(tmp_path / "link") == [tmp_path / "link" / "checkpoints" / tag.name]


def test_another_process_holds_the_folder_until_it_ends(used, monkeypatch, capsys):
    monkeypatch.setattr("swep_ds.pipeline.folder.LOCK_SECONDS", 0.1)
    script = "import sys, filelock\nlock = filelock.FileLock(sys.argv[1])\nlock.acquire()\nprint()\nsys.stdin.read()"
    command = [sys.executable, "-c", script, str(used / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            holder.stdout.readline()  # it has the lock
            assert "another process is writing to it: name another folder" in message(used)
            assert capsys.readouterr().err == f"another process trains in {used}: waiting up to 0.1 s for it to end\n"
            monkeypatch.setattr("swep_ds.pipeline.folder.LOCK_SECONDS", 60.0)
            killer = threading.Timer(0.5, holder.kill)
            killer.start()
            with RunFolder(used) as folder:
                assert folder.take(recipe(), "auto") == []  # a killed process leaves no lock behind
                assert is_locked(used / ".lock")
            killer.join()
        finally:
            holder.kill()


# The same run, or another one


def test_another_run_names_all_fields_that_differ_unless_it_was_refused_in_its_first_update(used):
    other = recipe(train__learning_rate=2e-4, method__beta=0.5, seed=3)
    said = message(used, other)
    assert all(f"{field} " in said for field in ("train.learning_rate", "method.beta", "seed"))
    assert re.search(r"; and \d+ more\)$", message(used, Recipe.load("official")))  # five of many
    (used / "metrics.jsonl").write_text("")
    assert take(used, other) == []
    (used / "checkpoints" / "update-00000001").mkdir(parents=True)
    assert "holds another run" in message(used, other)
    (used / "recipe.yaml").write_text(recipe(pretrain={"train": "generated"}).dump())
    said = message(used)
    assert "pretrain.train" in said
    assert "data.train" not in said


def test_the_same_run_and_what_may_change_in_it(used):
    changed = recipe(data__eval={"x": "elsewhere", "more": "z"}, eval__n_best=10, train__checkpoint_every=2)
    assert take(used) == take(used, changed) == []
    assert "holds a run already: name another folder, or --resume auto to resume it" in message(used, resume="never")
    bound = resume_fingerprint(recipe())
    for name in ("seed", "task", "model.name", "method.beta", "data.train", "data.doc_stride", "train.max_updates"):
        assert name in bound
    free = [name for name in bound if name.startswith(("data.eval", "data.max_eval", "eval.", "tracking."))]
    assert free == ["eval.select_on"]


def test_what_selection_depends_on_binds_where_there_is_one(used):
    selecting = functools.partial(recipe, eval__select_on="x")
    assert "eval.select_on None" in message(used, selecting())
    (used / "recipe.yaml").write_text(selecting().dump())
    assert take(used, selecting(data__eval={"x": "y", "more": "z"}, eval__batch_size=3)) == []
    assert "(data.max_eval_examples " in message(used, selecting(data__max_eval_examples=5))
    assert "(eval.n_best " in message(used, selecting(eval__n_best=10))


# Where it resumes


def test_a_path_names_a_checkpoint_or_a_folder_of_them_and_auto_the_newest_of_its_own(used, tmp_path, capsys):
    other = tmp_path / "other" / "checkpoints"
    older, newest = write_checkpoint(other, 1), write_checkpoint(other, 2)
    assert take(tmp_path / "a", resume=str(older)) == [older]
    assert take(tmp_path / "b", resume=str(other)) == [newest, older]
    (tmp_path / "empty").mkdir()
    assert "not a complete checkpoint" in message(tmp_path / "c", resume=str(tmp_path / "empty"))
    inside, last = (write_checkpoint(used / "checkpoints", update) for update in (9, 10))
    (used / "checkpoints" / "update-00000011").mkdir()  # cut off
    assert take(used) == take(used, resume=str(other)) == [last, inside]  # it continues from its own
    assert f"not from {other}" in capsys.readouterr().err
    assert take(used, resume=str(inside)) == [inside]  # which may rewind it


def recipe_of(micro: int, steps: int, **train) -> Recipe:
    return recipe(train={"micro_batch_size": micro, "gradient_accumulation_steps": steps, **train})


def test_the_global_batch_is_kept_on_other_ranks():
    for began, world_size, kept in (
        ((32, 8, 1), 2, recipe_of(8, 2)),
        ((32, 8, 1), 32, recipe_of(1, 1)),
        ((24, 3, 4), 3, recipe_of(2, 4)),  # 8 windows per rank, which 3 do not divide
        ((36, 4, 9), 4, recipe_of(3, 3)),  # 9, which 4 do not divide
        ((8, 8, 2), 4, recipe_of(8, 2, max_tokens=4096)),
        ((8, 8, 2), 1, recipe_of(8, 8, max_tokens=4096)),
    ):
        asked = recipe_of(*began[1:], max_tokens=kept.train.max_tokens)
        assert GlobalBatch(*began).split(asked, world_size) == kept


def test_a_global_batch_that_cannot_be_kept_is_refused():
    for began, asked, world_size, batch in (
        (GlobalBatch(32, 8, 1), recipe_of(8, 1), 3, 24),
        (GlobalBatch(8, 8, 2), recipe_of(8, 2, max_tokens=4096), 3, 6),
        (GlobalBatch(12, 8, 1), recipe_of(8, 1), 1, 8),
        (GlobalBatch(16, 8, 1), recipe_of(8, 2), 2, 32),
    ):
        said = f"x {world_size} rank(s) is a global batch of {batch}, and the run began with {began.windows}: choose "
        assert said in refused(began.split, asked, world_size)


def test_the_split_may_change_but_the_folder_remembers_the_batch(used, tmp_path):
    assert GlobalBatch(16, 8, 1).split(recipe_of(4, 2), 2) == recipe_of(4, 2)
    assert take(used, recipe(train__micro_batch_size=4, train__gradient_accumulation_steps=2)) == []
    other = write_checkpoint(tmp_path / "other", 3)
    of_checkpoint = {"windows": 4, "micro_batch_size": 4, "gradient_accumulation_steps": 1}
    change_sealed(other / "complete.json", batch=of_checkpoint)
    assert RunFolder(used).read_batch([]) == RunFolder(used).read_batch([other]) == BATCH
    assert RunFolder(tmp_path / "new").read_batch([other]) == GlobalBatch(**of_checkpoint)
    assert RunFolder(tmp_path / "new").global_batch(recipe_of(4, 2), 3) == 24  # what it would begin with
    assert RunFolder(used).global_batch(recipe_of(4, 2), 3) == 8


def test_results_stay_until_there_are_new_ones_unless_settings_change_or_more_is_trained(tmp_path):
    folder = RunFolder(tmp_path)
    kept = [folder.results, folder.report, tmp_path / "unaveraged" / "results.json"]
    kept[2].parent.mkdir()
    other = recipe(eval__n_best=5)
    for given, is_trained, stay in ((recipe(), True, True), (other, True, False), (recipe(), False, False)):
        folder.begin(recipe(), {}, 8, is_trained=True)
        for file in kept:
            file.write_text("{}")
        folder.begin(given, {}, 8, is_trained=is_trained)
        assert [file.exists() for file in kept] == [stay] * 3
