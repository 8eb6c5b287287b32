"""Lines of metrics are cut back to what is done, and a full disk delays them. wandb never ends a run that has begun."""

import json
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest

from swep_ds.common.errors import Stopped
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.settings import TrackingSection
from swep_ds.training.tracking import Tracker
from tests.support.bad_input import refused

NEW, LINE = TrainState(), TrainState(updates=1, windows=8, tokens=80, seconds=2.0)
SCORES = {"test": {"exact_match": 50.0, "f1": 60.0, "total": 2}}
TABLES = {"scores": (["data set", "F1", "questions"], [["test", 60.0, 9], ["out-of-domain mean", 50.0, ""]])}


def updates(path) -> list[int]:
    return [json.loads(line)["update"] for line in path.read_text().splitlines()]


def tracker(to: str, folder: Path, updates: int = 10, before: TrainState = NEW) -> Tracker:
    folder.mkdir(exist_ok=True)
    return Tracker(TrackingSection(to=to, group="a sweep"), "prior_aug", {"seed": 7}, folder, updates, before, True)


def whole_run(to: str, folder: Path) -> Tracker:
    """A run, as its tracker sees it."""
    with tracker(to, folder, 1) as opened:
        opened.log(LINE, {"loss": 1.0}, None)
        opened.summary(SCORES)
    opened.finish("<p>report</p>", TABLES)
    return opened


def test_lines_of_updates_that_are_not_done_are_cut_and_a_full_disk_delays_lines(tmp_path, caplog):
    path = tmp_path / "health.jsonl"
    path.write_text("".join(json.dumps({"update": update}) + "\n" for update in (1, 2, 3, 4)) + '{"upd')
    with tracker("off", tmp_path, before=TrainState(updates=2)) as opened:
        assert updates(path) == [1, 2]
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        try:
            for update in (3, 4):
                opened.log_health(update, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert updates(path) == [1, 2]
        opened.log_health(5, {})
    assert updates(path) == [1, 2, 3, 4, 5]
    assert "lines are missing until it can be written again (File too large)" in caplog.text


def test_a_remark_is_shown_whenever_it_begins_to_hold(tmp_path, capsys):
    with tracker("off", tmp_path) as opened:
        for update, remark in enumerate((None, "KL 1", "KL 2", None, "KL 3"), 1):
            opened.log(replace(LINE, updates=update), {"loss": 1.0}, remark)
    assert re.findall("^note: (.*)", capsys.readouterr().out, re.MULTILINE) == ["KL 1", "KL 3"]


def test_a_line_shows_speed_and_memory(tmp_path, capsys):
    with tracker("off", tmp_path, updates=1) as opened:
        opened.log(LINE, {"loss": 1.0}, None)
    assert "tokens_per_second 40  peak memory " in capsys.readouterr().out


def table(columns: list[str], data: list[list]) -> tuple:
    """wandb refuses text in a column of numbers; None may be in any."""
    for column in zip(*data, strict=True):
        if len({isinstance(cell, str) for cell in column if cell is not None}) > 1:
            raise TypeError("Data row contained incompatible types")
    return columns, data


@pytest.fixture
def wandb(monkeypatch) -> MagicMock:
    """A module `wandb`, which starts one `run`."""
    module = MagicMock(Table=table, Html=lambda page, inject: page)
    module.run = module.init.return_value
    module.run.id = "the run's"
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_the_group_the_method_and_all_results_of_a_run(tmp_path, wandb):
    whole_run("wandb", tmp_path)
    start = wandb.init.call_args.kwargs
    assert (start["mode"], start["project"], start["group"]) == ("online", "swep-ds", "a sweep")
    assert (start["job_type"], start["tags"], start["config"]) == ("prior_aug", ["prior_aug"], {"seed": 7})
    assert start["dir"] == str(tmp_path)
    (_, [line], step), (_, [summary], _), (_, [shown], _), (_, _, end) = wandb.run.method_calls
    assert (line["loss"], step) == (1.0, {"step": 1})
    assert (line["samples_per_second"], line["tokens_per_second"], line["seconds"]) == (4.0, 40.0, 2.0)
    assert summary == {"test/exact_match": 50.0, "test/f1": 60.0, "test/total": 2}
    rows = [["test", 60.0, 9], ["out-of-domain mean", 50.0, None]]  # None for a blank
    assert shown == {"scores": (TABLES["scores"][0], rows), "report": "<p>report</p>"}
    assert end == {"exit_code": 0}
    whole_run("wandb", tmp_path)
    assert wandb.init.call_args.kwargs["id"] == "the run's"  # a resumed run continues under its id


def test_wandb_ends_a_new_run_only_if_it_fails_at_its_start_and_no_resumed_one(tmp_path, wandb, caplog):
    wandb.run.log.side_effect = RuntimeError("the service\nis gone")
    whole_run("wandb_offline", tmp_path / "later")
    assert len(wandb.run.method_calls) == 1
    assert caplog.text.count("failed (RuntimeError: the service is gone): the run continues without it") == 1
    assert updates(tmp_path / "later" / "metrics.jsonl") == [1]
    wandb.init.side_effect = ConnectionError("refused")
    assert refused(whole_run, "wandb", tmp_path).startswith("tracking.to: wandb cannot start (refused): install ")
    assert tracker("wandb", tmp_path, before=TrainState(updates=3)).wandb is None
    (tmp_path / "wandb_id").write_text("known")
    assert whole_run("wandb", tmp_path).wandb is None
    assert caplog.text.count("cannot start (refused): the run continues without it") == 2
    assert updates(tmp_path / "metrics.jsonl") == [1]


@pytest.mark.parametrize(
    ("to", "variable", "mode"),
    [
        ("wandb", None, "online"),
        ("wandb", "offline", "offline"),
        ("wandb", "disabled", "disabled"),
        ("wandb_offline", None, "offline"),
        ("wandb_offline", "online", "offline"),  # the recipe's word that nothing leaves the machine
        ("wandb_offline", "disabled", "disabled"),
    ],
)
def test_wandb_mode_of_the_environment_holds(to, variable, mode, tmp_path, wandb, monkeypatch):
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    tracker(to, tmp_path)
    assert wandb.init.call_args.kwargs["mode"] == mode


@pytest.mark.parametrize(("error", "ends"), [(None, 0), (Stopped(), 1), (ZeroDivisionError(), 0)])
def test_wandb_is_not_waited_for_while_other_ranks_wait_for_word_of_an_exception(tmp_path, wandb, error, ends):
    tracker("wandb_offline", tmp_path).__exit__(error and type(error), error, None)
    assert wandb.run.finish.call_args_list == [call(exit_code=1)] * ends


@pytest.mark.slow
def test_offline_wandb_writes_files_and_connects_to_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_SILENT", "true")
    whole_run("wandb_offline", tmp_path)
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    assert file.stat().st_size > 0
    [page] = folder.glob("files/media/html/*.html")
    assert page.read_text() == "<p>report</p>"
    assert len(list(folder.glob("files/media/table/scores*.json"))) == 1
