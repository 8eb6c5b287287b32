"""Output without a reader, output that cannot be written, messages on one line, and progress."""

import io
import logging
import os
import re
import subprocess
import sys

import pytest

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError
from swep_ds.ranks.environment import report
from tests.support.fork_server import HANGS

# prints more than any buffer holds, on all ways there are, and then does its work
PRINTS = """
import logging, sys
from pathlib import Path
from swep_ds.commands.cli import main
from swep_ds.common.errors import InputError
def command():
    from rich.progress import track
    from swep_ds.common.console import Console
    console, text = Console(highlight=False), "\\n".join(["x" * 99] * 1000)
    for number in track(range(3), console=console):
        print(text)
        print(text, file=sys.stderr)
        console.print(text)
        logging.getLogger("test").warning(text)
        sys.stdout.write("partial")
        sys.stdout.flush()
        sys.stderr.flush()
    Path(sys.argv[1]).write_text("done")
    if sys.argv[2:]:
        raise InputError("bad")
main(command)
"""


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("bad 2>&1 | head -c 1 > /dev/null; (exit ${PIPESTATUS[0]})", 2), ("> /dev/full 2>&1", 0), (">&- 2>&-", 0)],
)
def test_output_that_cannot_be_written_ends_no_work(tmp_path, redirection, code):
    done = tmp_path / "done"
    command = ["bash", "-c", f'"$0" -c "$1" "$2" {redirection}', sys.executable, PRINTS, str(done)]
    ended = subprocess.run(command, timeout=HANGS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert (ended.returncode, done.is_file()) == (code, True)


def test_what_no_terminal_takes_is_escaped_and_messages_are_one_line(capsys):
    report(InputError("a\nb\r\x1b[2J: correct it"))
    assert capsys.readouterr().err == "error: a\\nb\\r\\x1b[2J: correct it\n"
    script = (
        "import logging\n"
        "from swep_ds.commands.cli import main\n"
        "from swep_ds.common.errors import InputError\n"
        "def command():\n"
        "    print('\\u03a9mega \\udcff')\n"
        "    logging.getLogger('swep_ds').warning('data set %s: skipped', 'a\\nb\\x1b[2J')\n"
        "    raise InputError('Stra\\xdfe \\u65e5\\u672c: fehlt')\n"
        "main(command)\n"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ | ascii_only, capture_output=True)
    assert ended.returncode == 2
    warning = b"warning: data set a\\nb\\x1b[2J: skipped\n"
    assert ended.stderr == warning + b"error: Stra\\xdfe \\u65e5\\u672c: fehlt\n"
    assert ended.stdout == b"\\u03a9mega \\udcff\n"


def test_progress_without_a_terminal_is_a_line_now_and_then_and_at_the_end(monkeypatch):
    clock, stream = [0.0], io.StringIO()
    monkeypatch.setattr("swep_ds.common.console.time.monotonic", lambda: clock[0])
    with Progress(Console(file=stream), "batches", 5) as progress:
        progress.update(5)
    assert stream.getvalue() == ""  # it took less than a minute
    with Progress(Console(file=stream), "batches", 100, 10) as progress:
        for done in range(11, 101):
            clock[0] += 1.0
            progress.update(done, "[x]")
    assert stream.getvalue() == "    70/100 batches  [x]  eta 30 s\n   100/100 batches  [x]  eta 0 s\n"
    stream.truncate(0)
    resumed = Progress(Console(file=stream), "updates", 3, 1, line_seconds=0, after=2.5)
    for done in (2, 3):
        clock[0] += 4.0
        resumed.update(done)
    said = re.findall("eta (.*) s", stream.getvalue())
    assert said == ["14", "10"]  # an update takes 4 s, and what follows the last one as long as 2.5 of them


@pytest.mark.parametrize("width", [70, 120])
def test_progress_on_a_terminal_is_a_bar_that_cuts_the_note_and_not_the_count(width):
    stream = io.StringIO()
    note = "loss [1.755]  clean 1.729  noisy 1.774  KL/token 0.778  KL/window 61  beta 1.00e-04  mu 1.016"
    for quiet in (True, False):  # quiet on other ranks
        assert stream.getvalue() == ""
        console = Console(file=stream, force_terminal=True, width=width, quiet=quiet)
        with Progress(console, "updates", 12345) as progress:
            progress.update(1234, note)
    last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    assert len(last.rstrip()) <= width
    assert all(part in last for part in ("updates", " 1234/12345 ", " 0:00:00 ", " eta ", " loss [1"))
    assert last.rstrip().endswith("…")


def test_of_deepspeeds_messages_only_the_notice_about_the_cpu_is_dropped():
    logger = logging.getLogger("DeepSpeed")
    for text, is_shown in (("Setting accelerator to CPU. If you have", False), ("CUDA is out of memory", True)):
        record = logger.makeRecord("DeepSpeed", logging.WARNING, "", 0, text, (), None)
        assert bool(logger.filter(record)) == is_shown
