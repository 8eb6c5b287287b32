"""What learned noise does to the answer: the model's nll under it, under the same noise shuffled, under its prior's.

The three share eps, so they differ by mu and sigma alone. Shuffled noise keeps a window's mu and sigma, but gives them
to other tokens of it. The nll is that of the gold answer, and that of the model's own guess on the clean input: its
most likely start and its most likely end; for a generated answer its most likely token at each position, after the gold
tokens before. The noise generator sees h, and h knows the guess: noise that lowers the nll of the guess more than that
of the gold answer tells the encoder what it believes already.

All of it is computed without gradient and dropout, and draws no number from any generator's state.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from swep_ds.data.batches import Batch
from swep_ds.kernels.philox import noise_words
from swep_ds.methods.base import Inputs, NoiseKey, PassState
from swep_ds.models.outputs import QAOutput


def shuffle(values_NTK: Tensor, batch: Batch, key: NoiseKey) -> Tensor:
    """Permutes each window's values [N, T, K] among its tokens; padding, on the right, stays.

    The permutation is keyed by (seed, draw, window), whatever the batch and its padding.
    """
    positions = torch.arange(values_NTK.shape[1], device=values_NTK.device)
    # ~seed: the noise is made of the words of the seed itself. `words_changed` uses word 0
    lots_NT = noise_words(~key.seed, key.draw, batch.sample_id[:, None], positions, 4)[2][..., 0]
    order_NT = lots_NT.masked_fill(batch.attention_mask == 0, 2**32).argsort(dim=1, stable=True)
    return values_NTK.gather(1, order_NT[..., None].expand_as(values_NTK))


@torch.no_grad()
def noise_effect(inputs: Inputs, perturb: Callable[[Inputs], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The nll of the gold answer and of the model's guess, [N] each: `gold_nll_<noise>`, `guess_nll_<noise>`.

    Args:
        perturb: perturbed embeddings [N, T, d] by the noise's name, from inputs that carry h without dropout.
    """
    clean = inputs.forward(inputs.embeddings)
    guess_NK = clean.logits.argmax(-1)
    statistics = {}
    for name, embeddings in perturb(replace(inputs, carried=PassState(clean.hidden))).items():
        output = inputs.forward(embeddings)
        statistics |= {f"gold_nll_{name}": output.nll, f"guess_nll_{name}": _nll(output, guess_NK)}
    return statistics


def _nll(output: QAOutput, choices_NK: Tensor) -> Tensor:
    precision = torch.promote_types(output.logits.dtype, torch.float32)
    nll_NK = cross_entropy(output.logits.to(precision).transpose(1, 2), choices_NK, reduction="none")
    return (nll_NK * output.shares).sum(1)
