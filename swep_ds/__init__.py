"""Question answering that holds up on text it never saw: SWEP (Lee et al., ACL 2021) on DeepSpeed.

    import swep_ds as sd

Importing this costs next to nothing: each name below is imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from swep_ds.api import hf as hf
    from swep_ds.api.wrap import Robust as Robust
    from swep_ds.api.wrap import wrap as wrap
    from swep_ds.errors import InputError as InputError
    from swep_ds.kernels import perturb as perturb
    from swep_ds.methods.swep import NoiseGenerator as NoiseGenerator

# name -> (module, its name there; None = the module itself)
_NAMES: dict[str, tuple[str, str | None]] = {
    "InputError": ("swep_ds.errors", "InputError"),
    "NoiseGenerator": ("swep_ds.methods.swep", "NoiseGenerator"),
    "Robust": ("swep_ds.api.wrap", "Robust"),
    "hf": ("swep_ds.api.hf", None),
    "perturb": ("swep_ds.kernels", "perturb"),
    "wrap": ("swep_ds.api.wrap", "wrap"),
}
# the settings of the methods, `Swep` for SwepSettings of methods/swep.py
_METHODS = {
    "AdvAug": "adv_aug",
    "BernoulliDropout": "bernoulli_dropout",
    "Fgm": "fgm",
    "Freelb": "freelb",
    "GaussianDropout": "gaussian_dropout",
    "Lnsr": "lnsr",
    "Mle": "mle",
    "Neftune": "neftune",
    "Pdr": "pdr",
    "PriorAug": "prior_aug",
    "R3f": "r3f",
    "RDrop": "r_drop",
    "Ssmba": "ssmba",
    "Swep": "swep",
    "Symnoise": "symnoise",
    "WordDropout": "word_dropout",
}
_NAMES |= {name: (f"swep_ds.methods.{module}", f"{name}Settings") for name, module in _METHODS.items()}

__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _NAMES[name]
    value = import_module(module)
    value = value if attribute is None else getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
