"""What the documentation names exists: scripts, options, recipes, fields, files, links."""

import ast
import functools
import importlib.util
import io
import re
import shlex
import sys
from contextlib import redirect_stdout, suppress
from itertools import pairwise, takewhile
from pathlib import Path
from unittest import mock

import pytest

from swep_ds.__main__ import COMMANDS as COMMAND_NAMES
from swep_ds.__main__ import main
from swep_ds.common.files import ds_config_path
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import RECIPES, Recipe
from swep_ds.sweeps.sweep import SWEEPS
from tests.support.fork_server import ROOT, run_script

FOUND = ("*.md", "docs/*.md", "docs/measurements/*.md", "studies/*/*.md", "ds_configs/*.md", "kernels/*.md")
FOUND += ("benchmarks/*.md", "swep_ds/data/quickstart/*/*.md")
PAGES = {str(file.relative_to(ROOT)): file.read_text() for at in FOUND for file in sorted(ROOT.glob(at))}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FOLDERS = "swep_ds|kernels|ds_configs|scripts|benchmarks|studies|tools|findings|tests|docs|requirements"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*\w)`")
PROGRAM = re.compile(r"make\b|swep-ds [a-z]|.*\b(scripts|benchmarks|studies|tools)/|.* -m (benchmarks|studies|tools)\b")
LINK = re.compile(r"\[[^][]*\]\(([^()\s]+)\)")


def commands(text: str) -> list[str]:
    """The lines of bash blocks, and what stands in backticks, that start `make` or a script."""
    blocks = [content for language, content in FENCED.findall(text) if language == "bash"]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:python|deepspeed|torchrun|make|swep-ds) [^`]+)`", FENCED.sub("", text))
    return [line for line in lines if PROGRAM.match(line)]


COMMANDS = [(page, command) for page, text in PAGES.items() for command in commands(text)]


@functools.cache
def options(command: str, *words: str) -> set[str]:
    """The options of a program, as `program` names it."""
    if not command.startswith("swep-ds "):
        script = ROOT / command if command.endswith(".py") else command
        return set(re.findall(r"--[a-z]\w*", run_script(script, *words, "--help").stdout))
    argv = mock.patch.object(sys, "argv", [*command.split(), *words, "--help"])
    with argv, redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main()
    return set(re.findall(r"--[a-z]\w*", printed.getvalue()))


def program(words: list[str]) -> tuple[str, list[str]]:
    """What a command starts, "swep-ds NAME", a file or a module, and the words behind it; of which there is one."""
    if words[0] == "swep-ds" or "swep_ds" in words:
        begin = words.index("swep_ds" if "swep_ds" in words else "swep-ds") + 1
        assert words[begin] in COMMAND_NAMES
        return f"swep-ds {words[begin]}", words[begin + 1 :]
    if "-m" in words:
        begin = words.index("-m") + 1
        assert importlib.util.find_spec(words[begin])
    else:
        begin = next(number for number, word in enumerate(words) if PROGRAM.match(word))
        assert (ROOT / words[begin]).is_file()
    return words[begin], words[begin + 1 :]


@pytest.fixture(scope="module")
def pages_files(tmp_path_factory) -> Path:
    """A folder with the YAML files that pages show; their first line is a comment with the name."""
    folder = tmp_path_factory.mktemp("files")
    for text in PAGES.values():
        for language, content in FENCED.findall(text):
            if language == "yaml" and (name := re.match(r"# (\w+\.yaml)\n", content)):
                (folder / name[1]).write_text(content)
    return folder


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command(page, command, pages_files, monkeypatch):
    monkeypatch.chdir(pages_files)
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    script, words = program(words)
    mine = list(takewhile("--".__ne__, words))
    if script == "swep-ds submit" and mine:
        assert mine[0] in ("train", "sweep")
        check(f"swep-ds {mine[0]}", words[len(mine) + 1 :])
    if not script.endswith(".sh"):
        check(script, mine)


def check(script: str, words: list[str]) -> None:
    """Whether a program takes these options, and its recipe, fields, ds_config and sweep are there."""
    name = script if script.startswith("benchmarks.") else Path(script.removeprefix("swep-ds ")).stem
    sub = words[:1] if name in ("analyze", "submit") else []
    given = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
    assert given <= options(script, *sub)
    values = {name: [b for a, b in pairwise(words) if a == name] for name in words}
    assert all((ROOT / path).is_file() or ds_config_path(path) for path in values.get("--ds_config", []))
    if name in ("train", "benchmarks.training"):
        Recipe.load(*values.get("--recipe", ["quickstart"]), values.get("--set", []))
    if name == "sweep" and words:
        if not words[0].endswith(".yaml"):
            assert (SWEEPS / f"{words[0]}.yaml").is_file()
        elif words[0].startswith("studies/"):
            assert (ROOT / words[0]).is_file()


def left_out(path: str) -> bool:
    """Whether a path leads to the studies, which an sdist does not have."""
    return "studies/" in path and not (ROOT / "studies").exists()


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere_and_nothing_is_left_to_fill_in(page):
    assert [path for path in PATH.findall(PAGES[page]) if not (ROOT / path).exists() and not left_out(path)] == []
    assert not re.search(r"^[A-Z]{6,}$", PAGES[page], re.MULTILINE)
    for target in LINK.findall(FENCED.sub("", PAGES[page])):
        if re.match("[a-z]+:", target) or left_out(target):
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", FENCED.sub("", file.read_text()), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], target


def test_the_pages_are_found_are_short_and_are_in_the_index():
    assert len(COMMANDS) > 50
    assert {"README.md", "docs/measurements/README.md", "ds_configs/README.md"} <= PAGES.keys()
    assert len(PAGES["README.md"].splitlines()) <= 120
    assert sum(len(text.splitlines()) for page, text in PAGES.items() if re.match(r"docs/\w+\.md", page)) <= 2000
    linked = LINK.findall(PAGES["docs/README.md"])
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(linked)


def test_the_readmes_code_does_not_scroll_sideways_and_it_shows_the_report():
    """GitHub shows some 95 characters of a line of code."""
    text = PAGES["README.md"]
    blocks = [content for _, content in FENCED.findall(text)]
    indented = re.findall(r"^    .*", FENCED.sub("", text), re.MULTILINE)
    assert [line for line in [*"".join(blocks).splitlines(), *indented] if len(line) > 95] == []
    assert "](docs/report.png)" in text
    assert (ROOT / "docs" / "report.png").stat().st_size <= 150_000


def test_ci_runs_the_readmes_two_commands_in_their_order():
    for text in (PAGES["README.md"], (ROOT / ".ci" / "run").read_text()):
        assert re.search(r"make quickstart\b.*make test\b", text, re.DOTALL)


def test_the_messages_of_the_trouble_page_are_those_of_the_code():
    texts = []
    for file in (ROOT / "swep_ds").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            if all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
                texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in parts))
    messages = re.findall(r'^\| "(.+?)" \|', PAGES["docs/trouble.md"], re.MULTILINE)
    assert len(messages) > 20
    assert [message for message in messages if message not in "\n".join(texts)] == []


def test_everything_that_is_shipped_is_listed():
    for page, names in (
        ("docs/recipes.md", [path.stem for path in RECIPES.glob("*.yaml")]),
        ("docs/sweeps.md", [path.stem for path in SWEEPS.glob("*.yaml")]),
        ("docs/methods.md", METHODS),
        ("ds_configs/README.md", [path.name for path in (ROOT / "ds_configs").glob("*.json")]),
    ):
        assert [name for name in names if f"`{name}`" not in PAGES[page]] == []
