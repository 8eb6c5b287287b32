"""The sdist and the wheel hold what they need: commands work in an empty folder with the installed wheel alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import ROOT, free_port

BESIDE = ("benchmarks", "studies", "tools", "findings")  # folders that are no part of the package
STUDIES = ("studies/", "tests/studies/")  # whose archives make most of the checkout
LEFT_OUT = (".git", ".venv*", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", "build", "dist", "runs", "wandb")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
# Runs `swep-ds` once for each list of words on standard input, each time in a process of its own with all imported.
RUN_ALL = """
import json, os, sys
import swep_ds.__main__
for number, words in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if not child:
        sys.argv = ["swep-ds", *words]
        file = os.open(f"said{number}", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1), os.dup2(file, 2)
        try:
            swep_ds.__main__.main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code or 0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, (words, code, open(f"said{number}").read())
print(swep_ds.__file__)
"""
FEW = ["--set", "train.max_updates=1", "--set", "data.max_train_examples=40", "--set", "data.max_eval_examples=4"]


def build(kind: str, source: Path, target: Path) -> Path:
    """Builds without the network or pip: the build's requirements are installed."""
    subprocess.run([sys.executable, "-c", BUILD, kind, str(target)], cwd=source, check=True, capture_output=True)
    [built] = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the files that git knows; where it is none of git's, or git does not say, of all but `LEFT_OUT`."""
    tree = tmp_path_factory.mktemp("copy") / "tree"
    if not ((ROOT / ".git").exists() and shutil.which("git")):
        return Path(shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT)))
    # git refuses a checkout of another user, as in a container
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():  # one that is deleted is listed, too
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(["tar", "-xzf", build("sdist", source, folder), "-C", folder], check=True)
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory) -> Path:
    """A folder with nothing but the wheel that the sdist gives."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build("wheel", sdist, folder)
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder / "site"


@pytest.mark.slow
def test_the_sdist_holds_the_whole_tree_but_for_the_studies(source, sdist):
    here, there = ({str(f.relative_to(top)) for f in top.rglob("*") if f.is_file()} for top in (source, sdist))
    here = {name for name in here if not name.startswith(STUDIES)}
    assert here - there == set()
    made = {"PKG-INFO", "setup.cfg"}  # which are here as well if this is an unpacked sdist
    assert {name for name in there if ".egg-info/" not in name} == made | {n for n in here if ".egg-info/" not in n}
    [archive] = sdist.parent.glob("*.tar.gz")
    assert archive.stat().st_size <= 6_000_000


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(installed):
    [metadata] = installed.glob("swep_ds-*.dist-info")
    assert {path.name for path in installed.iterdir()} == {"swep_ds", "bin", metadata.name}
    inside = {path.name for path in (installed / "swep_ds").rglob("*") if path.is_dir()}
    assert {"kernels", "ds_configs", "scripts", "slurm"} <= inside
    assert not inside & {*BESIDE, "tests"}


@pytest.mark.slow
def test_commands_work_in_an_empty_folder_with_the_wheel_alone(installed, tmp_path):
    commands = [
        ["recipes"],
        ["recipes", "official"],
        ["submit", "train", "--gpus_per_node", "8", "--dry_run", "--", "--recipe", "official"],
        ["submit", "sweep", "--gpus_per_node", "1", "--dry_run", "--", "quickstart"],
    ]
    env = os.environ | {"PYTHONPATH": str(installed)}
    options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    ended = subprocess.run([sys.executable, "-c", RUN_ALL], input=json.dumps(commands), check=False, **options)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout.strip() == str(installed / "swep_ds" / "__init__.py")
    said = [(tmp_path / f"said{number}").read_text() for number in range(len(commands))]
    assert "bert_base_squad" in said[0]
    assert "method:\n  beta: 2.0" in said[1]
    for text, kind in ((said[2], "train"), (said[3], "sweep")):
        slurm = installed / "swep_ds" / "scripts" / "slurm"
        assert f"SWEP_DS_ROOT={installed / 'swep_ds'} " in text
        assert (slurm / f"{kind}.sbatch").read_text() + f"\n# {slurm / 'restart.sh'}" in text
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--master_port", str(free_port())]
    training = ["--module", "swep_ds", "train", "--ds_config", "zero1", "--output_dir", "run", *FEW]
    ended = subprocess.run([*launcher, *training], **options)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["train"]["updates"] == 1
    assert (installed / "swep_ds" / "scripts" / "train.py").is_file()  # which a sweep starts
    assert "recipes" in subprocess.run([installed / "bin" / "swep-ds", "--help"], **options).stdout
