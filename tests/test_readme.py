"""The README's commands exist as written: scripts, options, recipes, fields, files. The main ones are run elsewhere."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from swep_ds.recipe import RECIPES, Recipe

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def test_there_are_commands():
    assert len(COMMANDS) >= 5


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"^[A-Z]{6,}$", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command):
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    script = next(word for word in words if word.startswith("scripts/"))
    source = (ROOT / script).read_text()
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in source, option
    if script == "scripts/train.py":
        values = {name: [b for a, b in pairwise(words) if a == name] for name in words}
        assert all((ROOT / path).is_file() for path in values["--ds_config"])
        Recipe.load(*values.get("--recipe", ["quickstart"]), values.get("--set", []))


def test_every_shipped_recipe_and_ds_config_is_listed():
    readme, configs = (ROOT / "README.md").read_text(), (ROOT / "ds_configs" / "README.md").read_text()
    assert all(f"`{path.stem}`" in readme for path in RECIPES.glob("*.yaml"))
    assert all(f"`{path.name}`" in configs for path in (ROOT / "ds_configs").glob("*.json"))
