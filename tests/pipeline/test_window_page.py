"""docs/window.md tells the life of a window by functions: they exist, and a run calls them in the page's order. What
CONTRIBUTING names exists as well."""

import ast
import functools
import re
import sys
import threading
from pathlib import Path

import pytest

from swep_ds.common.settings import flatten
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
    rest = iter(called)  # two updates: a thread makes the first batches, before or after the first update begins
    assert [step for step in STEPS if step not in rest] == []  # `in` goes on where the step before was found


@functools.cache
def defined(file: Path) -> set[str]:
    """What a module and its classes define, the latter also as CLASS.NAME, what it imports, and names of arguments."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = {file.stem}
    for place in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        prefixes = ["", f"{place.name}."] if place is not tree else [""]
        for node in place.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
            defined.update(prefix + name for name in names if name for prefix in prefixes)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.keyword) and node.arg:
            defined.add(node.arg)
        elif isinstance(node, ast.ImportFrom):
            defined.update(alias.name for alias in node.names)
    return defined


IN_CODE = r"`([A-Za-z]\w*\.\w+|[A-Za-z]*_\w*|[A-Z]\w+)`"  # a plain word may be anything
PLACED = IN_CODE.replace("|[A-Z]", r"|\w+|[A-Z]") + r"(?: of| in)?\s+(?:\[[^]]+\]\(|`)?([\w./]+/\w+\.py)"


@pytest.mark.parametrize("page", ["docs/window.md", "CONTRIBUTING.md"])
def test_what_the_text_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    files = [file for room in ("swep_ds", "kernels", "tests/support") for file in (ROOT / room).rglob("*.py")]
    known = {name for file in files for name in defined(file)}
    known |= flatten(Recipe.load("quickstart").model_dump()).keys()
    known |= {file.name for file in (*files, *ROOT.iterdir())}
    known |= {f"swep_ds.{file.stem}" for file in (ROOT / "swep_ds").iterdir()}
    names = set(re.findall(IN_CODE, text))
    assert len(names) > 20
    assert sorted(names - known) == []
    places = re.findall(PLACED, text)  # the name, and the module that the text says it is in
    assert len(places) > 5
    for name, module in places:
        below = ((ROOT / page).parent, ROOT, ROOT / "swep_ds")
        [file] = {(folder / module).resolve() for folder in below if (folder / module).is_file()}
        assert name in defined(file), module
