"""The methods by name. `build` is the only place that knows them all."""

from typing import Union

from swep_ds.errors import InputError
from swep_ds.methods.adv_aug import AdvAug, AdvAugSettings
from swep_ds.methods.base import Method, Settings
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
MethodSettings = Union[tuple(_CLASSES)]  # noqa: UP007 (a union made from a tuple has no other spelling)


def build(settings: Settings, hidden_size: int, embedding_size: int) -> Method:
    """The method that `settings` describe, for a model of these widths (h and word embeddings).

    Raises:
        InputError: the method draws noise, which comes in fours (`kernels/philox.py`), for another width.
    """
    if settings.draws_noise and embedding_size % 4:
        raise InputError(
            f"model.name: its word embeddings are {embedding_size} wide, and method.name {settings.name} draws noise "
            "for widths that are multiples of 4: name another model, or a method without noise such as mle"
        )
    return _CLASSES[type(settings)](settings, hidden_size, embedding_size)


__all__ = ["METHODS", "Method", "MethodSettings", "build"]
