"""The bounds of pyproject.toml, the two files that are compiled from them, and how they are installed."""

import os
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from swep_ds.training.ds_config import OLDEST, TOO_NEW
from tests.support.tiny_run import ROOT
from tools import install

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]
DIRECT = DEPENDENCIES + [requirement for requirement in EXTRAS if requirement.name != PROJECT["name"]]
PRIVATE_NAMES_USED = {"torch", "deepspeed", "transformers", "triton", "tantivy"}  # tantivy: its meta.json
SETTINGS_OF_INSTALL = """
[global]
index-url = https://company.example/simple
extra-index-url = https://first.example/simple
    file:///wheels/simple
constraint = constraints.txt
cert = /certificates.pem
timeout = 99
[install]
timeout = 100
no-index = yes
[download]
proxy = another.example:1
"""


def pins(name: str) -> list[Requirement]:
    """The lines of a file of `requirements/`."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.lstrip().startswith("#")]


LOCK = pins("lock")
LOWEST = pins("lowest")


def versions(pinned: list[Requirement], package: str) -> list[Version]:
    """The versions of a package in a file of `requirements/`; several if they differ by Python version."""
    same = [pin for pin in pinned if canonicalize_name(pin.name) == canonicalize_name(package)]
    return [Version(part.version) for pin in same for part in pin.specifier]


def bound(requirement: Requirement, operator: str) -> Version:
    [version] = [Version(part.version) for part in requirement.specifier if part.operator == operator]
    return version


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_bounds_are_what_the_compiled_files_prove_and_an_upper_one_stands_where_private_names_are_used(requirement):
    tested = versions(LOCK, requirement.name)
    assert tested
    assert all(version in requirement.specifier for version in tested)
    assert versions(LOWEST, requirement.name) == [bound(requirement, ">=")]
    beyond = [Version(part.version) for part in requirement.specifier if part.operator != ">="]
    newest = max(tested)
    assert beyond == ([Version(f"{newest.major}.{newest.minor + 1}")] if requirement.name in PRIVATE_NAMES_USED else [])


def test_compiled_files_pin_public_versions_that_each_machine_installs_from_its_own_index():
    for pin in LOCK + LOWEST:
        [specifier] = pin.specifier
        assert specifier.operator == "=="
        assert Version(specifier.version).local is None
        assert pin.url is None
        assert not pin.name.startswith(("cuda-", "nvidia-"))  # a CPU build of PyTorch needs none of them


def test_deepspeed_with_silent_gradient_faults_is_shut_out():
    [deepspeed] = [requirement for requirement in DEPENDENCIES if requirement.name == "deepspeed"]
    assert not [*deepspeed.specifier.filter(["0.18.3", "0.18.9", "0.19.0", "0.19.3"])]
    assert (str(bound(deepspeed, ">=")), str(bound(deepspeed, "<"))) == (OLDEST, TOO_NEW)


def test_the_installation_page_names_the_versions_that_are_admitted():
    [torch] = [requirement for requirement in DEPENDENCIES if requirement.name == "torch"]
    text = " ".join((ROOT / "docs" / "install.md").read_text().split())
    lowest, beyond = bound(torch, ">="), bound(torch, "<")
    python = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", PROJECT["requires-python"])
    expected = f"({lowest} to {beyond.major}.{beyond.minor - 1}, Python {python[1]} to 3.{int(python[2]) - 1})"
    assert f"that has PyTorch {expected}" in text


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """What `tools/install.py` runs, as (command, environment); pip tells its settings, nothing is installed."""
    ran = []
    run = subprocess.run

    def record(command, env=None, **options):
        ran.append((command, env))
        if command[-2:] == ["config", "list"]:
            return run(command, **options)

    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(SETTINGS_OF_INSTALL)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels https://third.example/wheels")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "first.example third.example")
    monkeypatch.setenv("PIP_PROXY", "proxy.example:3128")
    monkeypatch.setattr(install.subprocess, "run", record)
    monkeypatch.setattr(sys, "argv", ["install.py", "requirements/lock.txt"])
    return ran


def test_uv_installs_the_file_and_the_checkout_with_the_settings_that_pip_would_use(commands):
    install.main()
    command, environment = commands[-1]
    assert command[1:4] == ["-m", "uv", "pip"]
    assert "--no-index" in command
    assert [*map(str, command[-4:])] == ["--requirement", "requirements/lock.txt", "--editable", str(ROOT)]
    expected = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://company.example/simple",
        "UV_INDEX": "https://first.example/simple file:///wheels/simple",
        "UV_FIND_LINKS": "/wheels,https://third.example/wheels",
        "UV_CONSTRAINT": "constraints.txt",
        "UV_INSECURE_HOST": "first.example third.example",
        "SSL_CERT_FILE": "/certificates.pem",
        "HTTP_PROXY": "proxy.example:3128",
        "HTTPS_PROXY": "proxy.example:3128",
        "UV_HTTP_TIMEOUT": "100",
    }
    assert environment | expected == environment


def test_where_uv_fails_pip_installs_the_same_versions_and_a_line_says_so(commands, monkeypatch, capsys):
    record = install.subprocess.run

    def run(command, **options):
        record(command, **options)
        if install.UV in command:  # it cannot be had
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(install.subprocess, "run", run)
    with pytest.raises(SystemExit, match=r"^0$"):
        install.main()
    assert commands[-1][0][: len(install.PIP)] == install.PIP
    assert [*map(str, commands[-1][0][-4:])] == ["--requirement", "requirements/lock.txt", "--editable", str(ROOT)]
    assert capsys.readouterr().err == "uv failed: pip installs the same versions, which takes some minutes\n"


def test_the_tests_of_the_lowest_versions_exist():
    """Under xdist pytest runs nothing, and says nothing, where one of its arguments is missing."""
    command = subprocess.run(["make", "--dry-run", "test-lowest"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = [word for word in command.stdout.split() if word.startswith("tests/")]
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]
