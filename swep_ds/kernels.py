"""Fused perturbation of word embeddings. Knows nothing of the rest of swep_ds.

This module is a package: its modules lie in `kernels/`, which a checkout has beside `swep_ds/` and an installation has
inside it. That folder has no `__init__.py`: as a regular package it would shadow Hugging Face's `kernels`, which
transformers looks for, wherever the checkout is on PYTHONPATH.
"""

from pathlib import Path

__path__ = [str(next(p for p in (Path(__file__).with_suffix(""), Path(__file__).parents[1] / "kernels") if p.is_dir()))]

from swep_ds.kernels.modes import MODES, Mode
from swep_ds.kernels.op import perturb
from swep_ds.kernels.philox import standard_normal

__all__ = ["MODES", "Mode", "perturb", "standard_normal"]
