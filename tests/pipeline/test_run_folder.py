"""A run's folder: whose it is, what may change between two starts, where it resumes."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from swep_ds.common.errors import InputError
from swep_ds.common.files import is_locked
from swep_ds.pipeline import folder as run_folder
from swep_ds.pipeline.folder import GlobalBatch, RunFolder, check_alike, resume_fingerprint
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


def take(path: Path, settings: Recipe | None = None, resume: str = "auto"):
    folder = RunFolder(path)
    tags = folder.take(settings or recipe(), resume)
    return folder, tags[0] if tags else None


def message(path: Path, settings: Recipe | None = None, resume: str = "auto") -> str:
    return refused(RunFolder(path).take, settings or recipe(), resume)


def sleep_instead(monkeypatch, act: Callable[[], object]) -> None:
    """Acts where a start that has seen another one's lock would sleep."""
    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: act()))


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
    for settings, resume in [(recipe(), "auto"), (recipe(train__learning_rate=1.0), "never")]:
        with RunFolder(path) as folder:
            assert folder.take(settings, resume) == []
            assert [file.name for file in path.iterdir()] == [".lock"]
        assert list(tmp_path.iterdir()) == []
    path.mkdir(parents=True)
    with pytest.raises(InputError, match="no such folder"), RunFolder(path) as folder:
        folder.take(recipe(), "nowhere")
    assert list(path.iterdir()) == []  # a folder that was there stays
    with RunFolder(path) as folder:
        folder.take(recipe(), "auto")
        (path / "recipe.yaml").write_text(recipe().dump())  # the run begins
    assert sorted(file.name for file in path.iterdir()) == [".lock", "recipe.yaml"]
    assert not is_locked(path / ".lock")


def test_a_start_that_waited_for_one_that_is_refused_holds_a_lock_of_its_own(tmp_path, monkeypatch):
    path, first = tmp_path / "a" / "b", RunFolder(tmp_path / "a" / "b")
    first.take(recipe(), "auto")
    sleep_instead(monkeypatch, first.__exit__)
    with RunFolder(path) as second:
        second.take(recipe(), "auto")
        assert is_locked(path / ".lock")
    assert not (path / ".lock").exists()


def test_a_finished_run_without_checkpoints_is_not_trained_again(used):
    folder = RunFolder(used)
    folder.check_not_finished()
    folder.results.write_text("{}")
    with pytest.raises(InputError, match=r"its run is finished, .*`swep-ds evaluate .*/model --data .*, or delete "):
        folder.check_not_finished()


def test_what_is_not_a_folder_or_holds_other_files(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert "is a file: name a folder" in message(tmp_path / "file")
    assert "cannot be made and locked (Not a directory)" in message(tmp_path / "file" / "run")
    assert "is a symbolic link to nothing: name a folder" in message(tmp_path / "link")
    assert "holds files that belong to no run (file): name a new or empty folder" in message(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_another_run_names_all_fields_that_differ(used):
    other = recipe(train__learning_rate=2e-4, method__beta=0.5, seed=3)
    said = message(used, other)
    for part in ("train.learning_rate 0.0001 there, 0.0002 here", "method.beta 1.0 there, 0.5 here", "seed 0 there"):
        assert part in said
    assert "method.name 'swep' there, 'mle' here" in message(used, recipe(method={"name": "mle"}))
    (used / "recipe.yaml").write_text(recipe(pretrain={"train": "generated"}).dump())
    assert "pretrain.train 'generated' there, None here" in message(used)
    assert "data.train" not in said


def test_the_same_run_and_what_may_change_in_it(used):
    changed = recipe(
        data__eval={"x": "elsewhere", "more": "z"},
        data__max_eval_examples=5,
        eval__n_best=10,
        tracking__to="wandb_offline",
        train__log_every=1,
        train__checkpoint_every=2,
        train__keep_checkpoints=9,
        train__on_checkpoint_failure="continue",
    )
    assert take(used)[1] is None
    assert take(used, changed)[1] is None


def test_a_start_that_was_refused_in_its_first_update_binds_nothing(used):
    (used / "metrics.jsonl").write_text("")
    assert take(used, recipe(train__learning_rate=2e-4))[1] is None
    (used / "checkpoints" / "update-00000001").mkdir(parents=True)
    assert "holds another run" in message(used, recipe(train__learning_rate=2e-4))


def test_every_other_setting_binds():
    bound = resume_fingerprint(recipe())
    for name in ("seed", "task", "model.name", "method.beta", "data.train", "data.doc_stride", "train.max_updates"):
        assert name in bound
    free = [name for name in bound if name.startswith(("data.eval", "data.max_eval", "eval.", "tracking."))]
    assert free == ["eval.select_on"]


def test_what_selection_depends_on_binds_where_there_is_one(used):
    selecting = {"eval__select_on": "x"}
    assert "eval.select_on None there, 'x' here" in message(used, recipe(**selecting))
    (used / "recipe.yaml").write_text(recipe(**selecting).dump())
    assert take(used, recipe(**selecting, data__eval={"x": "y", "more": "z"}, eval__batch_size=3))[1] is None
    assert "eval.select_on 'x' there, None here" in message(used, recipe())
    for changes, said in [
        ({"data__eval": {"x": "elsewhere"}}, "data.eval, to select on 'y' there, 'elsewhere' here"),
        ({"data__max_eval_examples": 5}, "data.max_eval_examples None there, 5 here"),
        ({"eval__n_best": 10}, "eval.n_best 20 there, 10 here"),
    ]:
        tree = selecting | changes
        assert said in message(used, recipe(**tree))


def test_a_first_stage_may_be_there_already(tmp_path):
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / ".lock").write_text("")
    assert take(tmp_path)[1] is None  # what a refused start leaves
    (tmp_path / "pretrain" / "recipe.yaml").write_text("")
    assert take(tmp_path, recipe(pretrain={"train": "generated"}))[1] is None
    assert "holds files that belong to no run" in message(tmp_path)


def test_resume_never_wants_no_run_there(used):
    assert "holds a run already: name another folder, or --resume auto to resume it" in message(used, resume="never")


def test_auto_resumes_from_the_newest_complete_checkpoint(used):
    tags = [write_checkpoint(used / "checkpoints", update) for update in (10, 9, 8)]
    (used / "checkpoints" / "update-00000011").mkdir()  # cut off
    assert RunFolder(used).take(recipe(), "auto") == tags  # older ones in case it turns out to be damaged
    (used / "checkpoints" / "latest").write_text(tags[1].name)
    assert RunFolder(used).take(recipe(), "auto") == [tags[1], tags[0], tags[2]]


def test_auto_with_nothing_but_damaged_checkpoints(used):
    tag, size = write_checkpoint(used / "checkpoints", 4), len(state())
    (tag / "state.pt").unlink()
    said = message(used)
    assert f"{tag}: the checkpoint is damaged (state.pt is missing, {size} were written): delete that folder" in said


def test_a_path_names_a_checkpoint_or_a_folder_of_them(tmp_path):
    other = tmp_path / "other" / "checkpoints"
    older, newest = write_checkpoint(other, 1), write_checkpoint(other, 2)
    assert take(tmp_path / "a", resume=str(older))[1] == older
    assert RunFolder(tmp_path / "b").take(recipe(), str(other)) == [newest]  # and no other


def test_a_run_from_a_path_elsewhere_continues_from_its_own_checkpoints(used, tmp_path, capsys):
    other, inside = write_checkpoint(tmp_path / "other", 2), write_checkpoint(used / "checkpoints", 4)
    newest = write_checkpoint(used / "checkpoints", 6)
    assert RunFolder(used).take(recipe(), str(other)) == [newest, inside]
    assert f"not from {other}" in capsys.readouterr().err
    assert RunFolder(used).take(recipe(), str(inside)) == [inside]  # its own may rewind it


def test_a_finished_run_from_a_path_elsewhere_is_not_trained_again(used, tmp_path):
    (used / "results.json").write_text("{}")
    assert RunFolder(used).take(recipe(), str(write_checkpoint(tmp_path / "other", 2))) == []  # see check_not_finished


def test_a_path_without_a_checkpoint(tmp_path, monkeypatch):
    assert "no such folder: give auto, never, or a checkpoint's folder" in message(
        tmp_path / "a", resume=str(tmp_path / "none")
    )
    (tmp_path / "other").mkdir()
    assert "not a complete checkpoint (it has no complete.json)" in message(
        tmp_path / "b", resume=str(tmp_path / "other")
    )
    monkeypatch.chdir(tmp_path)
    assert message(tmp_path / "c", resume=".").startswith(f"--resume .: {tmp_path}: not a complete checkpoint")


@contextmanager
def held(path: Path):
    """The folder is locked by another process, which is yielded."""
    script = (
        "import fcntl, sys\n"
        "lock = open(sys.argv[1], 'a')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(path / ".lock")], **pipes) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            yield holder
        finally:
            holder.kill()  # a killed process leaves no lock behind


def test_another_process_holds_the_folder(used, monkeypatch, capsys):
    monkeypatch.setattr(run_folder, "LOCK_EVERY", 0.05)
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.2)
    with held(used) as holder:
        assert "another process is writing to it: name another folder" in message(used)
        assert capsys.readouterr().err == f"{used}: another process holds it, waiting up to 0 s\n"
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # as if on the disk of a node that was lost
        sleep_instead(monkeypatch, lambda: (holder.kill(), holder.wait()))
        folder, tag = take(used)
        assert tag is None
        assert is_locked(folder.path / ".lock")
        assert capsys.readouterr().err == f"{used}: another process holds it, waiting up to 120 s\n"


def test_ranks_that_would_train_otherwise_are_named_with_what_differs(monkeypatch):
    setups = [{"training data": "a"}, {"training data": "a"}, {"training data": "b"}]
    monkeypatch.setattr(run_folder, "ranks", SimpleNamespace(gather=lambda mine: [*setups, mine], host="n{}".format))
    said = (
        r"rank 2 \(here, host n2\) starts with other settings than rank 0 \(there, host n0\): training data 'a' there"
    )
    with pytest.raises(InputError, match=said):
        check_alike(setups[0])
    setups.pop()
    check_alike(setups[0])


def test_the_split_may_change_but_the_folder_remembers_the_batch(used, tmp_path):
    folder, tag = take(used, recipe(train__micro_batch_size=4, train__gradient_accumulation_steps=2))
    assert tag is None
    batch = GlobalBatch(windows=16, micro_batch_size=8, gradient_accumulation_steps=1)
    folder.write_batch(batch)
    assert folder.read_batch([]) == batch
    other = write_checkpoint(tmp_path / "other", 3)
    of_checkpoint = {"windows": 4, "micro_batch_size": 4, "gradient_accumulation_steps": 1}
    change_manifest(other, lambda content: content.update(batch=of_checkpoint))
    assert folder.read_batch([other]) == batch
    assert RunFolder(tmp_path / "new").read_batch([other]) == GlobalBatch(**of_checkpoint)


# What a killed start leaves, and what is in the way


def killed(path: Path, *, pretrain: bool) -> Iterator[None]:
    """Yields after each step that a first start takes at `path` before it writes its recipe: it may be killed there."""
    yield
    path.mkdir(parents=True, exist_ok=True)  # the previous start may have done this and all that follows
    yield
    for name in (".lock", f".preflight-{16 * 'a'}-0"):
        (path / name).touch()
        yield
    if pretrain:
        (path / "pretrain").mkdir(exist_ok=True)
        yield
        for name in (".lock", ".batch.json.7", "batch.json", ".recipe.yaml.7", "recipe.yaml"):
            if name == "batch.json":
                RunFolder(path / "pretrain").write_batch(BATCH)
            else:
                (path / "pretrain" / name).write_text(recipe(pretrain=FIRST).first_stage().dump())
            yield
    (path / ".batch.json.7").write_text("{")
    yield
    RunFolder(path).write_batch(BATCH)
    yield
    (path / ".recipe.yaml.7").write_text("se")
    yield


FIRST = {"train": "generated"}


@pytest.mark.parametrize("pretrain", [False, True])
def test_a_first_start_that_was_killed_anywhere_starts_again(tmp_path, pretrain):
    settings = recipe(pretrain=FIRST) if pretrain else recipe()
    for _ in killed(tmp_path / "a" / "run", pretrain=pretrain):
        folder, tag = take(tmp_path / "a" / "run", settings)
        assert tag is None
        folder._lock.close()


@pytest.mark.parametrize(
    "name", ["thesis.tex", "recipe.yaml", ".recipe.yaml.x", "checkpoints/mine", "health.jsonl", "model", "pretrain/a"]
)
def test_what_no_start_leaves_is_somebody_elses(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("text")
    before = sorted(tmp_path.rglob("*"))
    assert f"holds files that belong to no run ({Path(name).parts[0]})" in message(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("batch", [None, "{}", "5", '{"windows": 8}'])
def test_a_users_own_recipe_makes_his_folder_no_runs(tmp_path, batch):
    """Beside his model, even with a file batch.json of his own, and a recipe that another run has written."""
    for name in ("model", "predictions"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    for text in ("extends: quickstart\n", recipe().dump()):
        (tmp_path / "recipe.yaml").write_text(text)
        if batch:
            (tmp_path / "batch.json").write_text(batch)
        before = sorted(tmp_path.rglob("*"))
        said = message(tmp_path)
        assert said.startswith(f"{tmp_path}/batch.json: is" if batch else f"--output_dir {tmp_path}: holds files that")
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("output", ["a", "a/model", "link"])
def test_the_model_that_a_run_starts_from_is_not_in_its_folder(tmp_path, output):
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "a" / "model" / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to("a")
    settings = recipe(model__name=str(tmp_path / "a" / "model"))
    for begun in (False, True):
        if begun:  # by the same run
            RunFolder(tmp_path / "a").write_batch(BATCH)
            (tmp_path / "a" / "recipe.yaml").write_text(settings.dump())
        assert "holds the model that the run starts from (model.name" in message(tmp_path / output, settings)
    assert take(tmp_path / "b", settings)[1] is None


def test_another_run_that_began_while_this_one_waited_keeps_its_folder(tmp_path, monkeypatch):
    def write_meanwhile(*_) -> None:
        RunFolder(tmp_path).write_batch(BATCH)
        (tmp_path / "recipe.yaml").write_text(recipe(seed=9).dump())
        (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n')

    monkeypatch.setattr(run_folder, "_lock", write_meanwhile)
    assert message(tmp_path).endswith("holds another run: name another folder (seed 9 there, 0 here)")


def test_of_a_run_that_differs_in_much_five_settings_are_named(used):
    said = message(used, Recipe.load("official"))
    assert said.count(" there, ") == 5
    assert re.search(r"; and \d+ more\)$", said)


@pytest.mark.parametrize("kind", ["file", "link to nothing", "no permission"])
@pytest.mark.parametrize("name", ["", "checkpoints", "predictions", "model"])
def test_what_cannot_be_written_to_is_found_at_the_start(used, monkeypatch, name, kind):
    if kind == "no permission":
        (used / name).mkdir(exist_ok=True)
        monkeypatch.setattr(os, "access", lambda path, mode: path != used / name)  # root may write everywhere
    elif not name:
        return
    elif kind == "file":
        (used / name).write_text("mine")
    else:
        (used / name).symlink_to("a_disk_that_is_not_mounted")
    assert f"{used / name}: is no folder that can be written to: change its permissions" in message(used)


def test_checkpoints_may_be_on_another_disk(used, tmp_path):
    (tmp_path / "disk").mkdir()
    (used / "checkpoints").symlink_to(tmp_path / "disk")
    tag = write_checkpoint(tmp_path / "disk", 3)
    assert take(used)[1] == used / "checkpoints" / tag.name


def test_the_home_of_nobody_is_no_checkpoint(tmp_path):
    assert "no such user" in message(tmp_path / "run", resume="~nobody-of-this-name/run")


def test_the_folder_itself_may_be_a_link_whatever_its_name(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk")
    assert take(tmp_path / "model")[1] is None


def test_a_batch_with_any_value_changed_names_its_file(used):
    whole = {"windows": 8, "micro_batch_size": 4, "gradient_accumulation_steps": 2}
    (used / "batch.json").write_text(json.dumps(whole))
    assert RunFolder(used).read_batch([]) == GlobalBatch(**whole)
    changed = [whole | {"more": 1}, whole | {"windows": 9}, whole | {"windows": 0}, whole | {"windows": "8"}, {}, 5]
    for tree in changed:
        (used / "batch.json").write_text(json.dumps(tree))
        with pytest.raises(InputError, match=r"batch\.json: is damaged, or no run's: it needs windows, micro_batch_"):
            RunFolder(used).read_batch([])


@pytest.mark.parametrize("text", ["", "{", "[1]", "model: 5"])
def test_a_damaged_recipe_names_its_file(used, text):
    (used / "recipe.yaml").write_text(text)
    assert str(used) in message(used)
