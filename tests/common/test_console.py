"""Output without a reader, output that cannot be written, and output that would control the terminal."""

import io
import logging
import os
import re
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from swep_ds.common.console import Console, Progress, Rendered, Screen, escaped, on_one_line, quiet_about_cpu
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


def printing(tmp_path, redirection: str, *more: str, env: dict[str, str] | None = None) -> tuple[int, bool]:
    """(exit code, whether the work was done) of a script whose output a shell redirects."""
    done = tmp_path / "done"
    script = f'"$0" -c "$1" "$2" {" ".join(more)} {redirection}; echo $? > "$2.code"'
    subprocess.run(
        ["bash", "-c", script, sys.executable, PRINTS, str(done)],
        env=os.environ | (env or {}),
        timeout=HANGS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return int(done.with_name("done.code").read_text()), done.is_file()


@pytest.mark.parametrize(
    ("redirection", "env"),
    [
        ("2>&1 | head -c 1 > /dev/null; (exit ${PIPESTATUS[0]})", {}),
        ("2>&1 | head -c 1 > /dev/null; (exit ${PIPESTATUS[0]})", {"PYTHONUNBUFFERED": "1"}),
        ("> /dev/full 2>&1", {}),
        (">&- 2>&- <&-", {}),
        ("1< /dev/null 2>&1", {}),
    ],
)
def test_screen_output_that_cannot_be_written_ends_no_work(tmp_path, redirection, env):
    assert printing(tmp_path, redirection, env=env) == (0, True)


def test_the_exit_code_is_that_of_the_work(tmp_path):
    assert printing(tmp_path, "> /dev/full 2>&1", "bad") == (2, True)


def test_a_full_disk_that_has_room_again_is_written_to(tmp_path):
    read, write = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    descriptor = os.dup(full)
    screen = Screen(descriptor, escapes=False)
    print("lost", file=screen, flush=True)
    os.dup2(write, descriptor)
    print("kept", file=screen, flush=True)
    assert os.read(read, 100) == b"kept\n"
    screen.close()
    print("after", file=screen, flush=True)
    for number in (read, write, full, descriptor):
        os.close(number)


def test_a_closed_stdout_gives_its_number_to_no_file(tmp_path):
    script = (
        "import swep_ds.commands.cli\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "    print(1, flush=True)\n"
        "    assert file.fileno() > 2\n"
    )
    command = ["bash", "-c", '"$0" -c "$1" >&- 2>&- <&-', sys.executable, script]
    assert subprocess.run(command, timeout=HANGS).returncode == 0
    assert (tmp_path / "file").read_text() == ""


# ASCII locales


def test_in_an_ascii_locale_every_name_can_be_printed():
    script = (
        "from swep_ds.commands.cli import main\n"
        "from swep_ds.common.console import Console\n"
        "from swep_ds.common.errors import InputError\n"
        "from rich.table import Table\n"
        "def command():\n"
        "    table = Table('Gr\\xf6\\xdfe')\n"
        "    table.add_row('na\\xefve \\u65e5')\n"
        "    print('\\u03a9mega \\udcff')\n"
        "    Console().print(table)\n"
        "    raise InputError('Stra\\xdfe \\u65e5\\u672c: fehlt')\n"
        "main(command)\n"
    )
    env = os.environ | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii:strict",
    }
    ended = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, timeout=HANGS)
    assert ended.returncode == 2
    assert ended.stderr == b"error: Stra\\xdfe \\u65e5\\u672c: fehlt\n"
    assert ended.stdout.startswith(b"\\u03a9mega \\udcff\n")
    assert b"na\\xefve" in ended.stdout


# Progress


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


def test_progress_on_a_terminal_is_a_bar_and_on_other_ranks_nothing():
    stream = io.StringIO()
    for quiet in (True, False):
        assert stream.getvalue() == ""
        with Progress(Console(file=stream, force_terminal=True, quiet=quiet, width=200), "updates", 4) as progress:
            progress.update(4, "loss [1]")
    assert "updates" in stream.getvalue()
    assert "4/4" in stream.getvalue()
    assert "loss [1]" in stream.getvalue()


@pytest.mark.parametrize("width", [70, 80, 120])
def test_a_narrow_terminal_cuts_the_note_and_not_the_count(width):
    stream = io.StringIO()
    with Progress(Console(file=stream, force_terminal=True, width=width), "updates", 12345) as progress:
        progress.update(
            1234, "loss 1.755  clean 1.729  noisy 1.774  KL/token 0.778  KL/window 61  beta 1.00e-04  mu 1.016"
        )
    last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    assert len(last.rstrip()) <= width
    assert all(part in last for part in ("updates", " 1234/12345 ", " 0:00:00 ", " eta ", " loss "))
    assert last.rstrip().endswith("…")


# Control characters

CLEAR = "\x1b[2J\x1b]0;title\x07"


def controls(text: str) -> set[str]:
    """What a terminal acts upon."""
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return {c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(c) in bidi}


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_control_character_is_left_and_nothing_else_is_changed(text):
    assert controls(escaped(text)) <= {"\t", "\n"}
    assert not controls(on_one_line(text))
    assert on_one_line(text).splitlines() in ([], [on_one_line(text)])
    if not controls(text) & set(text) and not {"\u061c", "\u200e", "\u200f"} & set(text):
        assert escaped(text) == on_one_line(text) == text


def written(print_to) -> bytes:
    read, write = os.pipe()
    with Screen(write, escapes=True) as screen:
        print_to(screen)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def test_stdout_shows_control_characters_escaped_unless_they_are_meant():
    assert written(lambda screen: print(f"name {CLEAR}\r\u202e", file=screen)) == (
        b"name \\x1b[2J\\x1b]0;title\\x07\\x0d\\u202e\n".replace(b"\\x0d", b"\\r")
    )
    assert written(lambda screen: screen.write(Rendered("\x1b[1mbold\x1b[0m"))) == b"\x1b[1mbold\x1b[0m"


@pytest.mark.parametrize("shape", ["text", "Text", "table"])
def test_a_console_colours_but_passes_no_control_character_on(shape):
    def print_to(screen: Screen) -> None:
        console = Console(
            file=screen, force_terminal=True, color_system="standard", width=100, markup=False, highlight=False
        )
        content = f"name {CLEAR}\x9b31m\u202e"
        if shape == "table":
            table = Table("column")
            table.add_row(content)
            console.print(table)
        else:
            console.print(Text(content) if shape == "Text" else content, style="bold red")

    printed = written(print_to).decode()
    assert "\\x1b[2J" in printed
    assert "\\x9b31m\\u202e" in printed
    assert "\x1b[2J" not in printed
    assert not {"\x07", "\x9b", "\u202e"} & set(printed)
    assert ("\x1b[1" in printed) == (shape != "text" or "\x1b[1;31m" in printed)


def test_an_error_is_one_line_whatever_the_name_in_it(capsys):
    report(InputError(f"a\nb\r{CLEAR}: correct it"))
    assert capsys.readouterr().err == "error: a\\nb\\r\\x1b[2J\\x1b]0;title\\x07: correct it\n"


def test_a_warning_is_one_line_whatever_the_name_in_it():
    script = "import logging, swep_ds.commands.cli\n"
    script += "logging.getLogger('swep_ds').warning('data set %s: skipped', 'a\\nb\\x1b[2J')\n"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=HANGS)
    assert ended.stderr == b"warning: data set a\\nb\\x1b[2J: skipped\n"
    assert logging.lastResort is not None


def test_of_deepspeeds_messages_only_the_notice_about_the_cpu_is_dropped(monkeypatch):
    logger = logging.getLogger("DeepSpeed")
    monkeypatch.setattr(logger, "filters", [])
    notice = "Setting accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it."
    records = [
        logger.makeRecord("DeepSpeed", logging.WARNING, "", 0, text, (), None)
        for text in (notice, "CUDA is out of memory")
    ]
    with quiet_about_cpu():
        assert [bool(logger.filter(record)) for record in records] == [False, True]
    assert [bool(logger.filter(record)) for record in records] == [True, True]
