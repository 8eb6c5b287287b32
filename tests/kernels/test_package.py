"""Where `swep_ds.kernels` finds its modules: beside the package in a checkout, inside of it once installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# without the finder of an editable installation, which would answer in place of the path
ASKS = """
import importlib.util, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
from swep_ds.kernels import perturb
import swep_ds.kernels.tiles
top = importlib.util.find_spec("kernels")
print(*swep_ds.kernels.__path__, swep_ds.kernels.tiles.__file__, top is not None and top.origin, sep="\\n")
"""


def ask(path: Path, cwd: Path) -> list[str]:
    env = {"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([sys.executable, "-c", ASKS], env=env, cwd=cwd, capture_output=True, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("installed", [False, True])
def test_modules_are_found_without_an_installation_and_in_one(installed, tmp_path):
    path, modules = ROOT, ROOT / "kernels"
    if installed:
        path, modules = tmp_path / "site", tmp_path / "site" / "swep_ds" / "kernels"
        shutil.copytree(ROOT / "kernels", modules)
        (modules.parent / "common").mkdir()
        for name in ("__init__.py", "kernels.py", "common/__init__.py", "common/version.py"):
            shutil.copy(ROOT / "swep_ds" / name, modules.parent / name)
    assert ask(path, tmp_path)[:2] == [str(modules), str(modules / "tiles.py")]
