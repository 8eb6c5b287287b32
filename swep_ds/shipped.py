"""What comes with this package beside its code: ds_configs, the scripts that launchers start, Slurm's job scripts.

A checkout has these folders, and `kernels/`, beside `swep_ds/`. An installation has them inside it: see `setup.py`.
"""

from pathlib import Path

from swep_ds.errors import InputError
from swep_ds.files import user_path

PACKAGE = Path(__file__).resolve().parent
DS_CONFIG = "zero2"  # where the user names none


def shipped(folder: str) -> Path:
    """The folder `kernels`, `ds_configs` or `scripts` of this checkout or installation."""
    return next(path for path in (PACKAGE / folder, PACKAGE.parent / folder) if path.is_dir())


def ds_config_path(name_or_path: str) -> Path:
    """The file of a shipped ds_config, such as "zero2", or the path that the user gave.

    Raises InputError: no such file (lists the shipped ones).
    """
    files = {file.stem: file for file in sorted(shipped("ds_configs").glob("*.json"))}
    path = files.get(name_or_path) or user_path(name_or_path, "--ds_config")
    if not path.exists():
        raise InputError(f"--ds_config {name_or_path}: no such file: give a path, or a shipped one: {', '.join(files)}")
    return path
