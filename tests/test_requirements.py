"""The versions that pyproject.toml admits are those that the two pinned sets prove."""

import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from swep_ds.training.zero.names import OLDEST
from tests.support.tiny_run import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = [Requirement(line) for name, lines in EXTRAS.items() if name != "serve" for line in lines]
# the set of `make test` proves their lower bound
NOT_PROVEN_LOW = ("ruff", "wandb", "bm25s", "fastapi", "httpx2")


def pins(name: str) -> dict[str, list[Version]]:
    """The versions of each package in a file of `requirements/`; several if they differ by Python version."""
    versions: dict[str, list[Version]] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            [specifier] = pin.specifier
            assert specifier.operator == "==", line
            versions.setdefault(canonicalize_name(pin.name), []).append(Version(specifier.version))
    return versions


def bound(requirement: Requirement, operator: str) -> Version:
    [version] = [Version(part.version) for part in requirement.specifier if part.operator == operator]
    return version


@pytest.mark.parametrize("requirement", RUNTIME + OPTIONAL, ids=lambda requirement: requirement.name)
def test_bounds_lie_where_the_pinned_sets_prove_them(requirement):
    tested = pins("cpu")[canonicalize_name(requirement.name)]
    lowest = min(tested) if requirement.name in NOT_PROVEN_LOW else min(pins("lowest")[requirement.name])
    assert lowest == bound(requirement, ">=")
    assert all(version in requirement.specifier for version in tested)
    next_ones = [Version(f"{v.major}.{v.minor + 1}") for v in tested] + [Version(f"{v.major + 1}") for v in tested]
    assert bound(requirement, "<") in next_ones


def test_what_serves_an_example_is_admitted_from_far_before_the_tested_version_on():
    for requirement in map(Requirement, EXTRAS["serve"]):
        assert all(version in requirement.specifier for version in pins("cpu")[requirement.name])


def test_deepspeed_with_silent_gradient_faults_is_shut_out():
    [deepspeed] = [requirement for requirement in RUNTIME if requirement.name == "deepspeed"]
    assert not [*deepspeed.specifier.filter(["0.18.3", "0.18.9", "0.19.0", "0.19.3"])]
    assert str(bound(deepspeed, ">=")) == OLDEST


def test_the_installation_page_names_the_versions_that_are_admitted():
    [torch] = [requirement for requirement in RUNTIME if requirement.name == "torch"]
    text = " ".join((ROOT / "docs" / "install.md").read_text().split())
    lowest, beyond = bound(torch, ">="), bound(torch, "<")
    python = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", PROJECT["requires-python"])
    expected = f"({lowest} to {beyond.major}.{beyond.minor - 1}, Python {python[1]} to 3.{int(python[2]) - 1})"
    assert f"that has PyTorch {expected}" in text
