"""Question answering that holds up on text it never saw: SWEP (Lee et al., ACL 2021) on DeepSpeed.

    import swep_ds as sd

Importing this costs next to nothing: each name below is imported when it is used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from swep_ds.common.version import __version__

if TYPE_CHECKING:
    from swep_ds.api import hf as hf
    from swep_ds.api.answerer import QuestionAnswerer as QuestionAnswerer
    from swep_ds.api.run import Run as Run
    from swep_ds.api.run import train as train
    from swep_ds.api.wrap import Robust as Robust
    from swep_ds.api.wrap import wrap as wrap
    from swep_ds.common.errors import InputError as InputError
    from swep_ds.common.errors import TrainingDiverged as TrainingDiverged
    from swep_ds.common.errors import WriteFailed as WriteFailed
    from swep_ds.data.reader_registry import reader as reader
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

# Hugging Face's libraries read these when they are imported, and would take an empty one for the current folder.
for _name in ("XDG_CACHE_HOME", *(f"HF_{kind}" for kind in ("HOME", "HUB_CACHE", "DATASETS_CACHE", "MODULES_CACHE"))):
    if os.environ.get(_name) == "":
        del os.environ[_name]

# name -> (module, its name there; None = the module itself)
_NAMES: dict[str, tuple[str, str | None]] = {
    "InputError": ("swep_ds.common.errors", "InputError"),
    "Inputs": ("swep_ds.methods.base", "Inputs"),
    "Method": ("swep_ds.methods.base", "Method"),
    "NoiseGenerator": ("swep_ds.methods.swep", "NoiseGenerator"),
    "Pass": ("swep_ds.methods.base", "Pass"),
    "Perturbed": ("swep_ds.methods.base", "Perturbed"),
    "QuestionAnswerer": ("swep_ds.api.answerer", "QuestionAnswerer"),
    "Recipe": ("swep_ds.pipeline.recipe", "Recipe"),
    "Robust": ("swep_ds.api.wrap", "Robust"),
    "Run": ("swep_ds.api.run", "Run"),
    "Settings": ("swep_ds.methods.settings", "Settings"),
    "TrainingDiverged": ("swep_ds.common.errors", "TrainingDiverged"),
    "WriteFailed": ("swep_ds.common.errors", "WriteFailed"),
    "gaussian": ("swep_ds.methods.base", "gaussian"),
    "hf": ("swep_ds.api.hf", None),
    "method": ("swep_ds.methods", "method"),
    "perturb": ("swep_ds.kernels", "perturb"),
    "reader": ("swep_ds.data.reader_registry", "reader"),
    "train": ("swep_ds.api.run", "train"),
    "uniform": ("swep_ds.methods.base", "uniform"),
    "wrap": ("swep_ds.api.wrap", "wrap"),
}

__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module, attribute = _NAMES[name]
    elif name[:1].isupper():  # the settings of a method: `sd.AdvAug` is AdvAugSettings
        module, attribute = "swep_ds.methods.settings", f"{name}Settings"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swep_ds.common.console import quiet_about_cpu

    with quiet_about_cpu():
        value = import_module(module)
    if attribute is not None:
        try:
            value = getattr(value, attribute)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from swep_ds.methods.settings import SHIPPED

    methods = [settings.__name__.removesuffix("Settings") for settings in SHIPPED]
    return sorted({*globals(), *_NAMES, *methods})
