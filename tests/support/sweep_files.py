"""Sweep files of tests."""

from pathlib import Path

import yaml

MINIMAL = {"variants": {"MLE": {"method.name": "mle"}}}


def write(folder: Path, **fields) -> str:
    (folder / "mine.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    return str(folder / "mine.yaml")
