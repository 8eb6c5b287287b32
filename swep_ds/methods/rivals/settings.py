"""The settings of the rivals: neither the paper's method nor one of its baselines. They import no PyTorch."""

from typing import ClassVar, Literal

from pydantic import Field

from swep_ds.methods.settings import Settings


class NeftuneSettings(Settings):
    name: Literal["neftune"] = "neftune"  # NEFTune: uniform noise added to word embeddings
    noise_alpha: float = Field(5.0, gt=0)  # alpha; the paper uses 5, 10 and 15


class RDropSettings(Settings):
    # R-Drop: two passes whose dropout differs, and the divergence of what they predict
    name: Literal["r_drop"] = "r_drop"
    divergence_weight: float = Field(1.0, ge=0)  # alpha; the paper uses 0.1 to 1 for GLUE, 5 for translation


class FreelbSettings(Settings):
    needs_gradient: ClassVar[bool] = True
    # FreeLB: K ascent steps on an additive perturbation, every one of them trained on
    name: Literal["freelb"] = "freelb"
    ascent_steps: int = Field(3, ge=2, le=1000)  # K
    step_size: float = Field(0.1, gt=0)  # length of a step of the ascent
    radius: float = Field(0.3, gt=0)  # epsilon, largest Frobenius norm of a window's perturbation


class R3fSettings(Settings):
    name: Literal["r3f"] = "r3f"  # R3F: what small noise on the embeddings does to the predictions costs
    noise_size: float = Field(1e-5, gt=0)  # sigma
    divergence_weight: float = Field(1.0, gt=0)  # lambda; the paper tries 0.1 to 5


class PdrSettings(Settings):
    uses_model: ClassVar[bool] = True
    # PDR: the divergence of the predictions on clean and on virtually adversarial embeddings
    name: Literal["pdr"] = "pdr"
    # standard deviation of the random start; from 1e-3 the divergence is as small as the rounding of bf16
    start_size: float = Field(1e-2, gt=0)
    epsilon: float = Field(0.5, gt=0)  # Frobenius norm of a window's perturbation
    divergence_weight: float = Field(1.0, gt=0)  # weighs the divergence between clean and perturbed predictions


class FgmSettings(Settings):
    needs_gradient: ClassVar[bool] = True
    name: Literal["fgm"] = "fgm"  # FGM: a second pass on embeddings that one ascent step made worse
    epsilon: float = Field(0.2, gt=0)  # Frobenius norm of a window's perturbation


class SymnoiseSettings(Settings):
    name: Literal["symnoise"] = "symnoise"  # SymNoise: noise added to the embeddings and subtracted from them
    noise_alpha: float = Field(5.0, gt=0)  # alpha


class LnsrSettings(Settings):
    name: Literal["lnsr"] = "lnsr"  # LNSR: noise on the embeddings should change the hidden states of no layer
    noise_scale: float = Field(0.05, gt=0)  # root mean square length of a token's noise, share of its embedding's
    distance_weight: float = Field(1.0, gt=0)  # weighs the distance between hidden states with and without noise


SHIPPED = tuple(Settings.__subclasses__())  # the classes above and those of methods/settings.py
