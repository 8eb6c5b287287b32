"""How good are the tests? Plants the mistakes of tools/mistakes/ROOM.yaml one at a time and names the survivors.

    python tools/plant_mistakes.py                        # all rooms
    python tools/plant_mistakes.py kernels methods
    python tools/plant_mistakes.py data --only answers.py # whose file or harm holds this text

A list holds mistakes that a sharp reviewer fears, each of which leaves code that runs and looks right: a scale, axis or
sign, a tie, a border, the key of a cache, a seed, a detach, eval mode, a dtype, a denominator, variance for standard
deviation, a mean over padding, a factor of ranks, accumulation or passes, stale state, an order of steps exchanged.
Crashes, messages, speed and operators exchanged at random do not belong there. Each mistake gives:

    - file: swep_ds/data/answers.py
      before: text that occurs exactly once in the file, of one or more lines
      after: the mistake
      harm: One sentence that says who gets what wrong.
      tests: [tests/data/test_chunks.py]      # optional: run first; else those whose name or imports fit the file
      equivalent: Why no test can see it.     # optional: it is planted nevertheless, and must survive

The tests of a mistake are the fast ones of its room, tests/ROOM, in a copy of the checkout in the temporary folder. A
test that fails without a mistake is left out. Libraries are imported once; every mistake gets a forked process. Ends
with 1 if fewer than 95 % are caught, if a text does not fit its file, or if an equivalent mistake is caught.
"""

import argparse
import atexit
import compileall
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

CHECKOUT = Path(__file__).parents[1]
AT_LEAST = 0.95
# what takes long to import, apart from what is tested
LIBRARIES = ("torch", "transformers.models.bert.modeling_bert", "transformers.models.t5.modeling_t5", "deepspeed")
LIBRARIES += ("deepspeed.runtime.zero.muon.muon_optimizer", "datasets", "pandas", "scipy.stats", "hypothesis")
LIBRARIES += ("matplotlib.pyplot", "pydantic", "rich", "pyarrow", "safetensors.torch")
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # some is read at import


class Mistake(NamedTuple):
    """One entry of a list; `room` is the list's name."""

    room: str
    file: str
    before: str
    after: str
    harm: str
    tests: Sequence[str] = ()
    equivalent: str = ""


class Ran(NamedTuple):
    """What the tests said: the tests that failed, pytest's exit code (None: they took too long), and seconds."""

    failed: list[str]
    code: int | None
    seconds: float

    @property
    def caught(self) -> bool:
        return self.code is None or bool(self.failed)


def read(checkout: Path, rooms: Iterable[str] = (), only: str = "") -> list[Mistake]:
    """The mistakes of these rooms, or of all, whose file or harm holds the text `only`."""
    files = sorted((checkout / "tools/mistakes").glob("*.yaml"))
    unknown = set(rooms) - {file.stem for file in files}
    if unknown:
        raise SystemExit(f"tools/mistakes/ has no list for {', '.join(sorted(unknown))}")
    lists = {
        file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) or []
        for file in files
        if not rooms or file.stem in rooms
    }
    mistakes = [Mistake(room, **entry) for room, entries in lists.items() for entry in entries]
    return [mistake for mistake in mistakes if only in mistake.file or only in mistake.harm]


def planted(checkout: Path, mistake: Mistake) -> str:
    """The text of the file with the mistake. Raises ValueError, SyntaxError: it does not fit, or is no Python."""
    text = (checkout / mistake.file).read_text(encoding="utf-8")
    if (times := text.count(mistake.before)) != 1:
        raise ValueError(f"{mistake.file} holds `before` {times} times: {mistake.before!r}")
    if mistake.before.split() == mistake.after.split():
        raise ValueError(f"{mistake.file} stays the same with {mistake.after!r}")
    wrong = text.replace(mistake.before, mistake.after)
    compile(wrong, mistake.file, "exec")
    return wrong


def tests_of(checkout: Path, mistake: Mistake) -> list[str]:
    """The test files: those the mistake names, and of its room those named like its file, that import it, the rest."""
    module = mistake.file.removesuffix(".py").replace("/", ".")
    named = {checkout / test for test in mistake.tests}

    def rank(file: Path) -> tuple[bool, bool, bool]:
        return (
            file not in named,
            Path(mistake.file).stem not in file.stem,
            module not in file.read_text(encoding="utf-8"),
        )

    files = sorted(named | set((checkout / "tests" / mistake.room).rglob("test_*.py")))
    return [str(file.relative_to(checkout)) for file in sorted(files, key=rank)]


# The copy and the processes


def copy(checkout: Path, to: Path) -> Path:
    """The files of the checkout that git does not ignore, with byte code of the code under test."""
    listed = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(
        None, subprocess.run(listed, check=True, capture_output=True, encoding="utf-8").stdout.split("\0")
    ):
        if (checkout / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, to / name)
    if (to / "kernels").is_dir():
        # as in a wheel; otherwise an editable install finds the checkout's
        (to / "swep_ds/kernels").symlink_to("../kernels")
    for package in ("swep_ds", "kernels"):
        compileall.compile_dir(to / package, quiet=2)
    return to


class _Order:
    """A plug-in of pytest: keeps the order of the files, notes failures, and shrinks no example of Hypothesis."""

    def __init__(self, files: list[str]):
        self.files = files
        self.failed = []

    def pytest_configure(self):
        if "hypothesis" in sys.modules:
            from hypothesis import Phase, settings

            settings.register_profile("planted", settings(phases=(Phase.explicit, Phase.generate)))
            settings.load_profile("planted")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.files.index(item.nodeid.split("::")[0]))

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)


def _run_tests(folder: Path, files: list[str], without: list[str], first: bool) -> None:
    """Runs in the forked process, whose output and result go beside the copy `folder`."""
    gc.freeze()  # what the parent has left behind, such as a process group, cannot be destroyed without its threads
    os.setsid()  # so that what the tests start ends with them
    for stream in (1, 2):
        os.dup2(os.open(folder.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
    atexit._clear()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    os.environ["PYTHONPATH"] = str(folder)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True  # a mistake's would be met by the next one
    order = _Order(files)
    options = ["-q", "-m", "not slow", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts="]
    options += ["--rootdir", str(folder), "--basetemp", str(folder.with_suffix(".tests")), *["-x"] * first]
    if "hypothesis" in sys.modules:
        options.append("--hypothesis-seed=0")
    code = pytest.main([*options, *[f"--deselect={name}" for name in without], *files], plugins=[order])
    strangers = [name for name in ("swep_ds", "swep_ds.kernels") if not _is_in(name, folder)]
    if strangers:
        raise SystemExit(f"{strangers} were imported from elsewhere")
    folder.with_suffix(".json").write_text(json.dumps([order.failed, int(code)]), encoding="utf-8")
    atexit._run_exitfuncs()


def _is_in(name: str, folder: Path) -> bool:
    return name not in sys.modules or Path(sys.modules[name].__file__).is_relative_to(folder)


class _Run:
    """A forked process that runs tests in the copy `folder`."""

    def __init__(self, folder: Path, files: list[str], without: Sequence[str] = (), first: bool = True):
        self.folder = folder
        self.start = time.monotonic()
        arguments = (folder, files, list(without), first)
        self.process = multiprocessing.get_context("fork").Process(target=_run_tests, args=arguments)
        self.process.start()

    def end(self) -> Ran:
        """Ends what is left of it. Raises SystemExit if pytest could not run."""
        hangs = self.process.is_alive()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        seconds = time.monotonic() - self.start
        shutil.rmtree(self.folder.with_suffix(".tests"), ignore_errors=True)
        result = self.folder.with_suffix(".json")
        if hangs:
            return Ran([], None, seconds)
        if self.process.exitcode < 0:  # a mistake may write where it must not
            return Ran([f"signal {-self.process.exitcode}"], self.process.exitcode, seconds)
        failed, code = (
            json.loads(result.read_text(encoding="utf-8")) if result.exists() else ([], self.process.exitcode)
        )
        result.unlink(missing_ok=True)
        if code not in (0, 1, 2) or (code and not failed):
            log = self.folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-3000:]
            raise SystemExit(f"pytest ended with {code}:\n{log}")
        return Ran(failed, code, seconds)


def run(checkout: Path, folders: list[Path], mistakes: list[Mistake]) -> Iterator[tuple[Mistake, Ran]]:
    """Plants each mistake in a free one of `folders`, copies of the checkout; yields what the tests said."""
    alone, limits = {}, {}
    for room in dict.fromkeys(mistake.room for mistake in mistakes):
        files = tests_of(folders[0], next(mistake for mistake in mistakes if mistake.room == room))
        process = _Run(folders[0], files, first=False)
        process.process.join()
        ran = process.end()
        alone[room], limits[room] = ran.failed, 60 + 5 * ran.seconds
        print(f"{room}: {ran.seconds:.0f} s without a mistake", *[f"\n  fails alone: {name}" for name in ran.failed])
    free, waiting, running = list(folders), list(mistakes), []
    while waiting or running:
        while waiting and free:
            mistake, folder = waiting.pop(0), free.pop()
            _write(folder, mistake.file, planted(folder, mistake))
            running.append((mistake, _Run(folder, tests_of(folder, mistake), alone[mistake.room])))
        wait([process.process.sentinel for _, process in running], timeout=1)
        for mistake, process in list(running):
            overdue = time.monotonic() - process.start > limits[mistake.room]
            if overdue or not process.process.is_alive():
                running.remove((mistake, process))
                ran = process.end()
                shutil.copy2(checkout / mistake.file, process.folder / mistake.file)
                free.append(process.folder)
                yield mistake, ran


def _write(folder: Path, file: str, text: str) -> None:
    Path(importlib.util.cache_from_source(folder / file)).unlink(missing_ok=True)
    (folder / file).write_text(text, encoding="utf-8")


def main(checkout: Path = CHECKOUT, arguments: list[str] | None = None, libraries: Iterable[str] = LIBRARIES) -> int:
    """Returns the exit code; `libraries` are imported before the processes are forked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", help="names of lists in tools/mistakes (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="mistakes whose file or harm holds TEXT")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mistakes at a time")
    options = parser.parse_args(arguments)
    mistakes = read(checkout, options.rooms, options.only)
    wrong = 0
    for mistake in list(mistakes):
        try:
            planted(checkout, mistake)
        except (ValueError, SyntaxError, OSError) as error:
            print(f"DOES NOT FIT: {error}")
            mistakes.remove(mistake)
            wrong += 1
    with tempfile.TemporaryDirectory(prefix="mistakes-") as name:
        home = Path(name, "home")
        home.mkdir()
        os.environ |= ENVIRONMENT | {"HOME": str(home)}
        for library in libraries:
            importlib.import_module(library)
        folders = [copy(checkout, Path(name, f"copy{job}")) for job in range(options.jobs)]
        results = []
        for mistake, ran in run(checkout, folders, mistakes):
            results.append((mistake, ran))
            print(f"{_said(mistake, ran)}\n  {mistake.file}: {mistake.harm}", flush=True)
    return summed_up(results, wrong)


def _said(mistake: Mistake, ran: Ran) -> str:
    how = "SURVIVED"
    if ran.caught:
        how = f"caught by {ran.failed[0]}" if ran.failed else "caught: the tests did not end"
    return f"{how} in {ran.seconds:.0f} s" + (" (equivalent)" if mistake.equivalent else "")


def summed_up(results: list[tuple[Mistake, Ran]], wrong: int) -> int:
    """Prints counts and survivors; returns the exit code."""
    counted = [(mistake, ran) for mistake, ran in results if not mistake.equivalent]
    print()
    for room in dict.fromkeys(mistake.room for mistake, _ in counted):
        caught = [ran.caught for mistake, ran in counted if mistake.room == room]
        print(f"{room}: {sum(caught)} of {len(caught)} caught")
    for mistake, ran in results:
        if ran.caught == bool(mistake.equivalent):
            what = "CAUGHT, NOT EQUIVALENT" if ran.caught else "SURVIVOR"
            print(f"{what} {mistake.file}: {mistake.harm}\n  - {mistake.before}\n  + {mistake.after}")
    caught = sum(ran.caught for _, ran in counted)
    share = caught / max(len(counted), 1)
    equivalent = len(results) - len(counted)
    print(f"{caught} of {len(counted)} caught ({share:.1%}), {equivalent} equivalent, {wrong} do not fit")
    told_wrongly = any(ran.caught for mistake, ran in results if mistake.equivalent)
    return int(share < AT_LEAST or wrong > 0 or told_wrongly)


if __name__ == "__main__":
    sys.exit(main())
