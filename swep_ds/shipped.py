"""Folders that a checkout has beside `swep_ds/`, and an installation has inside it: `setup.py` puts them there."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """The folder `kernels`, `ds_configs` or `scripts` of this checkout or installation."""
    return next(path for path in (PACKAGE / folder, PACKAGE.parent / folder) if path.is_dir())
