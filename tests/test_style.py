"""Linting, formatting and the order of the rooms are part of the tests."""

import ast
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BESIDE = ("benchmarks", "studies", "tools")  # what neither the package nor its commands import
PYTHON = ("swep_ds", "kernels", "scripts", *BESIDE, "examples", "tests")


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_long():
    sources = [f for room in PYTHON for f in (ROOT / room).rglob("*.py")]
    assert not [str(f) for f in sources if len(f.read_text().splitlines()) > 500]


# What someone reads who wants to know what the package does: the rooms whose every file makes a window, a loss or a
# score, with the files that docs/window.md names.
ROOMS = ("kernels", "swep_ds/data", "swep_ds/models", "swep_ds/methods")
APART = {"annotations.py", "chunks.py", "trials.py"}  # the tools' exports, a cache, and what is tried before any window


def test_the_core_is_read_in_an_evening():
    """Lines that are not blank."""
    page = (ROOT / "docs" / "window.md").read_text(encoding="utf-8")
    named = [(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\((\.\./[\w/]+\.py)\)", page)]
    assert len(named) > 25
    lines: dict[str, int] = {}  # by room
    for file in {*named, *(file for room in ROOMS for file in (ROOT / room).glob("*.py") if file.name not in APART)}:
        room = str(file.parent.relative_to(ROOT))
        count = sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
        lines[room] = lines.get(room, 0) + count
    assert set(ROOMS) < lines.keys()
    assert sum(lines.values()) <= 6000, "\n".join(f"{room}: {count} lines" for room, count in sorted(lines.items()))


def imported(source: str) -> set[str]:
    """The rooms of swep_ds that a source imports anywhere."""
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return {module.split(".")[1] for module in modules if module.startswith("swep_ds.")}


def test_imports_point_one_way():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    order = re.search(r"Imports point one way: (.+?)\. `kernels/` imports nothing of `swep_ds`", text, re.DOTALL)[1]
    rooms = [[name.removesuffix(".py") for name in re.findall("`([a-z_.]+)`", part)] for part in order.split(">")]
    depth = {name: number for number, names in enumerate(rooms) for name in names}
    roots = {path.stem for path in (ROOT / "swep_ds").iterdir() if path.suffix == ".py" or path.is_dir()}
    roots -= {"__init__", "__main__", "__pycache__", "kernels", "recipes"}
    assert roots == depth.keys() - {"scripts"}
    upwards = {
        f"{room} imports {name}"
        for room in roots
        for file in [ROOT / "swep_ds" / f"{room}.py", *(ROOT / "swep_ds" / room).rglob("*.py")]
        if file.is_file()
        for name in imported(file.read_text(encoding="utf-8"))
        if name in depth and name != room and depth[name] <= depth[room]
    }
    assert not upwards
    beside = re.compile(rf"^\s*(from|import) ({'|'.join(BESIDE)})\b", re.MULTILINE)
    shipped = [file for room in ("swep_ds", "kernels", "scripts") for file in (ROOT / room).rglob("*.py")]
    assert not [str(file) for file in shipped if beside.search(file.read_text(encoding="utf-8"))]
    inside = [imported(file.read_text(encoding="utf-8")) for file in (ROOT / "kernels").rglob("*.py")]
    assert set().union(*inside) <= {"kernels"}


def decodes_by_locale(call: ast.Call) -> bool:
    """Whether a call reads or writes text in whatever encoding the locale names. A lock holds no text."""
    keywords = {keyword.arg for keyword in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "encoding" in keywords or ".lock" in ast.unparse(call):
        return False
    if name == "open":
        modes = [part.value for part in call.args if isinstance(part, ast.Constant)]
        opens_bytes = ("os", "gzip", "tarfile", "tantivy.Index")
        other = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in opens_bytes
        return not other and not any("b" in str(mode) for mode in modes)
    if name in ("run", "Popen", "check_output"):
        return "text" in keywords
    return name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)


def test_text_is_utf_8_whatever_the_locale():
    sources = [f for room in PYTHON if room != "tests" for f in (ROOT / room).rglob("*.py")]
    calls = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and decodes_by_locale(node)
    ]
    assert not calls


VAGUE = {"one", "own", "found"}  # names that do not say what kind of thing they hold


def names(tree: ast.AST) -> set[str]:
    """The names that a source gives to variables, arguments, attributes, functions and classes."""
    given = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            given.add(node.attr)
    return given


def sentences(source: str, tree: ast.AST) -> list[str]:
    """The docstrings, and the comments. A comment's further lines are no sentences of their own."""
    documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    for before, line in pairwise(["", *source.splitlines()]):
        code, _, comment = line.partition("# ")
        if code.strip() or not before.lstrip().startswith("#"):
            texts.append(comment)
    return [text for text in texts if text]


def test_names_say_the_kind_of_thing_and_no_sentence_begins_with_of():
    for file in (file for room in PYTHON for file in (ROOT / room).rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        assert not VAGUE & {name.strip("_") for name in names(tree)}, file
        assert not [text for text in sentences(source, tree) if re.match(r"of\b", text, re.IGNORECASE)], file


def test_a_sentence_of_the_pages_has_one_idea():
    """At most 3 semicolons in 100 sentences; pages that tools write, tables and code count as neither."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.name not in ("data_sets.md", "models.md")]
    prose = re.sub(r"^```.*?^```|^    .*?$|^\|.*?$", "", "\n".join(texts), flags=re.DOTALL | re.MULTILINE)
    ends = re.findall(r"[.!?](?=\s|\))", prose)
    assert len(ends) > 800
    assert prose.count(";") <= 0.03 * len(ends)
