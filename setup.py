"""The packages of swep-ds. Everything else about the distribution is in pyproject.toml.

The folder `kernels/` is installed inside `swep_ds/`, where `swep_ds/kernels.py` looks for it first.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["swep_ds", "swep_ds.*"]), "swep_ds.kernels", "swep_ds.kernels.tools"],
    package_dir={"swep_ds": "swep_ds", "swep_ds.kernels": "kernels"},
    package_data={
        "swep_ds": [
            "py.typed",
            "recipes/*.yaml",
            "sweeps/*.yaml",
            "data/quickstart/encoder/*",
            "data/quickstart/t5/*",
            "data/quickstart/templates/*.yaml",
            "analysis/*.jinja",
            "pipeline/*.jinja",
            "analysis/paper.yaml",
            "analysis/lines/*.yaml",
        ]
    },
)
