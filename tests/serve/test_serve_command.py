"""The command `swep-ds serve`: from its words to its first answer, and what it refuses."""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from swep_ds import __main__ as command
from tests.support.finished import write_reading
from tests.support.fork_server import free_port
from tests.support.tiny_run import prepare


@pytest.fixture
def serve(tmp_path, monkeypatch, capsys):
    """Calls it in this process; returns (exit code, stdout, the line of stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/abbey.txt").write_text("The abbey was founded in 1204 by an abbot.")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["swep-ds", "serve", *words])
        with pytest.raises(SystemExit) as end:
            command.main()
        out, err = capsys.readouterr()
        [line] = [line for line in err.splitlines() if line.startswith(("error: ", "stopped: "))]
        return end.value.code, out, line

    return call


def test_what_cannot_be_served_is_one_line(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        began = time.process_time()
        code, _, line = serve("model", "texts", "--port", port)
        assert (code, time.process_time() - began < 1) == (2, True)  # before anything is loaded
        assert line.startswith(f"error: --host 127.0.0.1 --port {port}: cannot be used (")
    assert not Path("corrections.jsonl").exists()
    for words, said in (
        (["model"], "give a model and a folder of texts; or finished runs and --label QUESTIONS"),
        (["model", "none"], "texts none: no such folder"),
        (["model", "texts", "--columns", "id=nr"], "--texts and --columns are those of --label: "),
        (["run", "--label", "a.csv", "--min_confidence", "0.5"], "--null_threshold and --min_confidence: labels are "),
    ):
        code, _, line = serve(*words)
        assert (code, line.startswith(f"error: {said}")) == (2, True), line


def test_a_model_that_cannot_be_loaded_ends_the_server(serve):
    for words, file, said in (
        (["no/model", "texts"], "corrections.jsonl", "no/model"),
        (["no_run", "--label", "a.csv"], "labels.jsonl", "no_run"),
    ):
        code, out, line = serve(*words, "--port", "0")
        assert (code, said in line) == (2, True)
        assert out.startswith("http://127.0.0.1:")
        assert out.endswith(f": verdicts go to {file}\n")
        assert Path(file).read_bytes() == b""


def test_a_model_is_served_until_it_is_interrupted(serve, tmp_path):
    prepare(tmp_path)
    write_reading(tmp_path / "model")
    port = free_port()
    replies = []

    def request(path: str, **fields) -> dict:
        content = json.dumps(fields).encode() if fields else None
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", content, {"content-type": "application/json"})
        with urllib.request.urlopen(asked) as reply:
            return json.load(reply)

    def visit() -> None:
        try:
            while not request("state")["ready"]:
                time.sleep(0.1)
            replies.append(request("answer", question="Who founded the abbey?"))
            request("verdicts", question="Who painted the abbey?")
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Timer(1, visit)
    visitor.start()
    code, _, line = serve("model", "texts", "--port", str(port), "--output", "mine.jsonl")
    visitor.join()
    assert (code, line) == (130, "stopped: by SIGINT")
    assert replies[0]["text"] == "abbey.txt"
    [row] = map(json.loads, Path("mine.jsonl").read_text().splitlines())
    assert (row["question"], row["is_impossible"]) == ("Who painted the abbey?", True)
