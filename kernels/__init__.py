"""Fused perturbation of word embeddings. Knows nothing of the rest of swep_ds."""

from .modes import MODES, Mode
from .op import perturb
from .philox import standard_normal

__all__ = ["MODES", "Mode", "perturb", "standard_normal"]
