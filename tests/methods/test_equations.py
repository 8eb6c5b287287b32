"""Every method's loss and gradients against its paper's equations, written a second time in float64."""

from typing import get_args

import pytest

from swep_ds.methods import METHODS
from swep_ds.methods.settings import SwepSettings
from tests.support import methods_reference
from tests.support.tiny_objective import JOINT, SEED, away_from_the_prior, gradients, objective, split, windows

CASES = {
    "mle": ("mle", {}),
    "prior_aug": ("prior_aug", {"prior_variance": 0.3, "mle_weight": 0.3}),
    "gaussian_dropout": ("gaussian_dropout", {"drop_probability": 0.2}),
    "bernoulli_dropout": ("bernoulli_dropout", {"drop_probability": 0.3}),
    "word_dropout": ("word_dropout", {"drop_probability": 0.3}),
    "adv_aug": ("adv_aug", {"step_size": 0.05, "penalty": 0.5, "mle_weight": 0.3}),
    "neftune": ("neftune", {"noise_alpha": 7.0}),
    "freelb, projected": ("freelb", {"step_size": 0.15, "radius": 0.2}),
    "freelb": ("freelb", {"step_size": 0.15, "radius": 10.0}),
    "r3f": ("r3f", {"noise_size": 0.3, "divergence_weight": 0.7}),
    "pdr": ("pdr", {"start_size": 0.01, "epsilon": 0.2, "divergence_weight": 3.0}),
    "fgm": ("fgm", {"epsilon": 0.3}),
    "symnoise": ("symnoise", {"noise_alpha": 7.0}),
    "lnsr": ("lnsr", {"noise_scale": 0.2, "distance_weight": 0.6}),
    "swep": ("swep", {"divergence_weight": 0.8, "beta": 0.01, "mle_weight": 0.3}),
    "swep, without MLE": ("swep", {"beta": 0.7, "mle_weight": 0.0, "kl_reduction": "mean"}),
    "swep, published": ("swep", {"separate_hidden_pass": True, "kl_reduction": "mean", "divergence_weight": 0.8}),
}
CASES["swep, adversarial"] = ("swep", {"adversarial": True, "beta": 0.01, "mle_weight": 0.3, "divergence_weight": 0.8})
KINDS = get_args(SwepSettings.model_fields["noise"].annotation)
CASES |= {f"swep, {kind}": ("swep", {"noise": kind, "prior_variance": 0.3}) for kind in KINDS}
MICRO_STEPS = {"prior_aug": 2, "adv_aug": 2, "freelb": 3, "fgm": 2, "symnoise": 2}  # the others: 1


@pytest.mark.parametrize("architecture", ["electra", "t5"])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_equations(case, architecture):
    name, settings = CASES[case]
    module = away_from_the_prior(objective(name, architecture, **settings))
    batch = windows(architecture)
    draw = next((key.draw for _, key in module.passes(JOINT) if key), 0)
    generator = getattr(module.method, "noise", None)
    expected = methods_reference.loss(module.qa.model, batch, METHODS[name](**settings), SEED, draw, generator)
    reference = gradients(module, expected)
    if settings.get("adversarial"):  # the generator goes up the loss without its KL, and still down the KL
        without_kl = METHODS[name](**settings | {"beta": 0.0, "adversarial": False})
        up = methods_reference.loss(module.qa.model, batch, without_kl, SEED, draw, generator)
        for parameter, gradient in gradients(module, up).items():
            if parameter.startswith("method."):
                reference[parameter] = reference[parameter] - 2 * gradient
    module.zero_grad()
    total = 0.0
    for loss, _, _ in split(module, batch):
        (1024 * loss).backward()  # as a loss scaler does
        total += loss.item()
    assert total == pytest.approx(expected.item(), rel=1e-6)
    for parameter, gradient in reference.items():
        got = module.get_parameter(parameter).grad / 1024
        assert (got - gradient).norm() <= 1e-5 * gradient.norm() + 1e-12, parameter  # noise in float32
    assert len(module.parts("split")) == (2 if case.removeprefix("swep, ") in KINDS else MICRO_STEPS.get(name, 1))
