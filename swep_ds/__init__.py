"""Question answering that holds up on text it never saw: SWEP (Lee et al., ACL 2021) on DeepSpeed.

    import swep_ds as sd

Importing this costs next to nothing: each name below is imported when it is used.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from swep_ds.common.version import __version__

if TYPE_CHECKING:
    from swep_ds.api import hf as hf
    from swep_ds.api.answerer import QuestionAnswerer as QuestionAnswerer
    from swep_ds.api.forecast import forecast as forecast
    from swep_ds.api.run import Run as Run
    from swep_ds.api.run import train as train
    from swep_ds.api.wrap import Robust as Robust
    from swep_ds.api.wrap import wrap as wrap
    from swep_ds.common.errors import InputError as InputError
    from swep_ds.common.errors import TrainingDiverged as TrainingDiverged
    from swep_ds.common.errors import WriteFailed as WriteFailed
    from swep_ds.data.readers import reader as reader
    from swep_ds.kernels import perturb as perturb
    from swep_ds.methods import method as method
    from swep_ds.methods.base import Inputs as Inputs
    from swep_ds.methods.base import Method as Method
    from swep_ds.methods.base import Pass as Pass
    from swep_ds.methods.base import Perturbed as Perturbed
    from swep_ds.methods.base import gaussian as gaussian
    from swep_ds.methods.base import uniform as uniform
    from swep_ds.methods.settings import Settings as Settings
    from swep_ds.methods.swep import NoiseGenerator as NoiseGenerator
    from swep_ds.pipeline.recipe import Recipe as Recipe

# module -> the names that it gives
_MODULES = {
    "swep_ds.api.answerer": ["QuestionAnswerer"],
    "swep_ds.api.forecast": ["forecast"],
    "swep_ds.api.run": ["Run", "train"],
    "swep_ds.api.wrap": ["Robust", "wrap"],
    "swep_ds.common.errors": ["InputError", "TrainingDiverged", "WriteFailed"],
    "swep_ds.data.readers": ["reader"],
    "swep_ds.kernels": ["perturb"],
    "swep_ds.methods": ["method"],
    "swep_ds.methods.base": ["Inputs", "Method", "Pass", "Perturbed", "gaussian", "uniform"],
    "swep_ds.methods.settings": ["Settings"],
    "swep_ds.methods.swep": ["NoiseGenerator"],
    "swep_ds.pipeline.recipe": ["Recipe"],
}
# name -> its module
_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", "hf", *_NAMES]

# DeepSpeed's notice that it has taken the CPU, which each process would print
_NOTICE = "Setting accelerator to CPU"
logging.getLogger("DeepSpeed").addFilter(lambda record: not str(record.msg).startswith(_NOTICE))


def __getattr__(name: str) -> Any:
    if name == "hf":
        value = import_module("swep_ds.api.hf")
    elif name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name[:1].isupper() and name in _settings():
        value = _settings()[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _settings() -> dict[str, Any]:
    """The methods' settings: `sd.AdvAug` is AdvAugSettings."""
    from swep_ds.methods import SHIPPED

    return {settings.__name__.removesuffix("Settings"): settings for settings in SHIPPED}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_settings()})
