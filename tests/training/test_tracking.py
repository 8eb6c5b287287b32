"""Lines of metrics: cut back to where the run stands, and late rather than lost where the disk is full."""

import json
import resource

import pytest

from swep_ds.errors import Stopped
from swep_ds.training import tracking
from swep_ds.training.checkpoints import Done
from swep_ds.training.tracking import Lines, Tracker


def updates(path) -> list[int]:
    return [json.loads(line)["update"] for line in path.read_text().splitlines()]


def test_lines_of_updates_that_are_not_done_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"update": update}) + "\n" for update in (1, 2, 3, 4)) + '{"upd')
    lines = Lines(path, Done(updates=2))
    lines.write({"update": 3})
    lines.close()
    assert updates(path) == [1, 2, 3]


def test_a_full_disk_delays_lines_and_says_so_once(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path, Done())
    lines.write({"update": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        for update in (2, 3):
            lines.write({"update": update})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert updates(path) == [1]
    lines.write({"update": 4})
    lines.close()
    assert updates(path) == [1, 2, 3, 4]
    assert caplog.text.count("lines are missing until it can be written again (File too large)") == 1


@pytest.mark.parametrize(("error", "told"), [(None, [0]), (Stopped(), [1]), (ZeroDivisionError(), [])])
def test_wandb_is_not_waited_for_while_other_ranks_wait_for_word_of_an_exception(tmp_path, monkeypatch, error, told):
    finished = []
    run = type("Run", (), {"finish": lambda _, exit_code: finished.append(exit_code)})()
    monkeypatch.setattr(tracking, "_start_wandb", lambda *_: run)
    tracker = Tracker(None, tmp_path, 10, Done(), active=True)
    tracker.__exit__(error and type(error), error, None)
    assert finished == told
