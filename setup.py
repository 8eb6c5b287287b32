"""The packages of swep-ds. Everything else about the distribution is in pyproject.toml.

The folders `kernels/`, `ds_configs/` and `scripts/` are installed inside `swep_ds/`, where
`swep_ds/common/files.py` looks for them first.
"""

from setuptools import find_packages, setup

BESIDE = {
    "swep_ds.kernels": "kernels",
    "swep_ds.ds_configs": "ds_configs",
    "swep_ds.scripts": "scripts",
    "swep_ds.scripts.slurm": "scripts/slurm",
}

setup(
    packages=[*find_packages(include=["swep_ds", "swep_ds.*"]), *BESIDE],
    package_dir={"swep_ds": "swep_ds"} | BESIDE,
    include_package_data=False,  # MANIFEST.in is for the sdist alone
    package_data={
        "swep_ds": [
            "py.typed",
            "recipes/*.yaml",
            "sweeps/*.yaml",
            "training/ds_refused.yaml",
            "data/quickstart/encoder/*",
            "data/quickstart/t5/*",
            "data/quickstart/corpora/*",
            "analysis/*.jinja",
            "pipeline/*.jinja",
            "analysis/*.yaml",
            "analysis/lines/*.yaml",
            "cost/*.jinja",
            "serve/page/*",
        ],
        "swep_ds.ds_configs": ["*.json"],
        "swep_ds.scripts.slurm": ["*.sbatch", "*.sh"],
    },
)
