"""The methods by name. `build` is the only place that knows them all."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, Union, get_args, get_type_hints

from swep_ds.errors import InputError
from swep_ds.methods.adv_aug import AdvAug, AdvAugSettings
from swep_ds.methods.base import Method, Need, Pass, Settings
from swep_ds.methods.bernoulli_dropout import BernoulliDropout, BernoulliDropoutSettings
from swep_ds.methods.fgm import Fgm, FgmSettings
from swep_ds.methods.freelb import Freelb, FreelbSettings
from swep_ds.methods.gaussian_dropout import GaussianDropout, GaussianDropoutSettings
from swep_ds.methods.lnsr import Lnsr, LnsrSettings
from swep_ds.methods.mle import Mle, MleSettings
from swep_ds.methods.neftune import Neftune, NeftuneSettings
from swep_ds.methods.pdr import Pdr, PdrSettings
from swep_ds.methods.prior_aug import PriorAug, PriorAugSettings
from swep_ds.methods.r3f import R3f, R3fSettings
from swep_ds.methods.r_drop import RDrop, RDropSettings
from swep_ds.methods.ssmba import Ssmba, SsmbaSettings
from swep_ds.methods.swep import Swep, SwepSettings
from swep_ds.methods.symnoise import Symnoise, SymnoiseSettings
from swep_ds.methods.word_dropout import WordDropout, WordDropoutSettings
from swep_ds.settings.plugins import check_free

_CLASSES: dict[type[Settings], type[Method]] = {
    MleSettings: Mle,
    PriorAugSettings: PriorAug,
    SwepSettings: Swep,
    GaussianDropoutSettings: GaussianDropout,
    BernoulliDropoutSettings: BernoulliDropout,
    WordDropoutSettings: WordDropout,
    AdvAugSettings: AdvAug,
    SsmbaSettings: Ssmba,
    NeftuneSettings: Neftune,
    RDropSettings: RDrop,
    FreelbSettings: Freelb,
    R3fSettings: R3f,
    PdrSettings: Pdr,
    FgmSettings: Fgm,
    SymnoiseSettings: Symnoise,
    LnsrSettings: Lnsr,
}
METHODS: dict[str, type[Settings]] = {settings.model_fields["name"].default: settings for settings in _CLASSES}
GROUP = "swep_ds.methods"  # the entry points' group
on_registered: list[Callable[[], None]] = []  # called after each `method` that is registered
M = TypeVar("M", bound=type[Method])


def settings_union() -> Any:
    """The settings of all methods, as an annotation."""
    return Union[tuple(_CLASSES)]  # noqa: UP007 (a union made from a tuple has no other spelling)


def method(name: str) -> Callable[[M], M]:
    """Registers a `Method` under `name`, for recipes and commands.

    Its constructor takes (settings, hidden_size, embedding_size), and annotates `settings` with a `Settings` class that
    has the field `name: Literal["NAME"] = "NAME"`, as the methods of this package do.

    Raises:
        TypeError: the class is not such a method, or the name is taken.
    """

    if not isinstance(name, str):
        raise TypeError('method: it needs a name: write @sd.method("NAME")')

    def register(cls: M) -> M:
        settings = get_type_hints(cls.__init__).get("settings")
        if not (isinstance(settings, type) and issubclass(settings, Settings) and issubclass(cls, Method)):
            raise TypeError(
                f"method {name!r}: {cls.__name__} must be a Method whose __init__ takes settings: ITS_SETTINGS"
            )
        if "name" not in settings.model_fields or settings.model_fields["name"].default != name:
            raise TypeError(f'method {name!r}: {settings.__name__} needs the field name: Literal["{name}"] = "{name}"')
        if settings.needs not in (None, *get_args(Need)):
            raise TypeError(f"method {name!r}: needs {settings.needs!r}: it is None, {', '.join(get_args(Need))}")
        former = METHODS.get(name)
        check_free(name, former and _CLASSES[former], cls)
        _CLASSES.pop(former, None)
        _CLASSES[settings], METHODS[name] = cls, settings
        for listener in on_registered:
            listener()
        return cls

    return register


def summary(settings: Settings) -> str:
    """What the method does, in the first paragraph of the docstring of its class or, without one, of its file."""
    cls = _CLASSES[type(settings)]
    text = cls.__doc__
    if text is None and cls.__module__ != "__main__":  # a notebook, whose docstring is not its author's
        text = sys.modules[cls.__module__].__doc__
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return " ".join(paragraphs[0].split())


def build(settings: Settings, hidden_size: int, embedding_size: int) -> Method:
    """The method that `settings` describe, for a model of these widths (h and word embeddings).

    Raises:
        InputError: the method draws noise, which comes in fours (`kernels/philox.py`), for another width.
        TypeError: its passes are not as `Method.passes` says.
    """
    if settings.draws_noise and embedding_size % 4:
        raise InputError(
            f"model.name: its word embeddings are {embedding_size} wide, and method.name {settings.name} draws noise "
            "for widths that are multiples of 4: name another model, or a method without noise such as mle"
        )
    method = _CLASSES[type(settings)](settings, hidden_size, embedding_size)
    passes = method.passes(0.0)
    if not isinstance(passes, list | tuple) or not all(isinstance(pass_, Pass) for pass_ in passes):
        raise TypeError(f"method {settings.name}: passes gives a {type(passes).__name__}, which is not a list of Pass")
    if not any(pass_.trains for pass_ in passes):
        raise TypeError(f"method {settings.name}: none of its passes {[pass_.name for pass_ in passes]} trains")
    if passes[0].compares:
        raise TypeError(f"method {settings.name}: its first pass is compared with the one before, and there is none")
    return method


__all__ = ["METHODS", "Method", "build", "method", "settings_union", "summary"]
