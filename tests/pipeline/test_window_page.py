"""docs/window.md tells the life of a window by functions: they exist, and a run calls them in the page's order."""

import re
import sys
import threading
from pathlib import Path

from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.ranks.group import process_group
from tests.support import tiny_run
from tests.support.fork_server import ROOT

PAGE = (ROOT / "docs" / "window.md").read_text()
STEPS = [
    (str((ROOT / "docs" / file).resolve()), function)
    for file, function in re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| `(\w+)` \|", PAGE, re.MULTILINE)
]


def test_a_run_goes_the_way_of_the_page(tmp_path):
    # with windows of a length that no other test has cached
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), ["train.max_updates=2", "data.max_length=47"])
    called = []

    def note(frame, event, _) -> None:
        step = (frame.f_code.co_filename, frame.f_code.co_name)
        if event == "call" and step in wanted:
            called.append(step)

    wanted = set(STEPS)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with process_group():
            run(recipe, "zero0", tmp_path / "run", "auto")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(STEPS) > 20
    assert [step for step in STEPS if step not in called] == []
    rest = iter(called)  # of two updates: a thread makes the first batches, before or after the first update begins
    assert [step for step in STEPS if step not in rest] == []  # `in` goes on where the step before was found


def test_the_functions_that_the_text_names_exist():
    text = PAGE.split("|")[-1] + "".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    names = {name.split(".")[-1] for name in re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", text)} - {"cls", "noise"}
    source = "".join(file.read_text() for room in ("swep_ds", "kernels") for file in Path(ROOT, room).rglob("*.py"))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", source)] == []
