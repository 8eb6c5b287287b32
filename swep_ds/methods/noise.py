"""The noise generator q(z given x) of Eq. 2: (mu_t, log sigma_t^2) = MLP(stop_gradient(h_t))."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Initialisation = Literal["prior", "default"]


class NoiseGenerator(nn.Module):
    """Two linear layers with a ReLU between, hidden -> d -> 2d: mu and log sigma^2 for every token.

    With hidden = d it has 3 d^2 + 3 d parameters, as the paper's.

    Args:
        hidden_size: width of h, the encoder's last hidden state.
        embedding_size: d, width of the word embeddings.
        initialisation: "prior" starts at N(1, alpha I), where the KL is 0 and SWEP is Prior-Aug; "default" is
            PyTorch's, where mu starts near 0 and sigma near 1: the first noisy inputs are nearly erased.
        prior_variance: alpha, for "prior".
        dropout: after the ReLU, while training (the published code's choice for ELECTRA).
        prior_mean: for "prior"; 0 for additive noise.
    """

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        initialisation: Initialisation,
        prior_variance: float,
        dropout: float = 0.0,
        prior_mean: float = 1.0,
    ):
        super().__init__()
        self.inner = nn.Linear(hidden_size, embedding_size)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(embedding_size, 2 * embedding_size)
        if initialisation == "prior":
            with torch.no_grad():
                nn.init.normal_(self.outer.weight, std=1e-3)
                self.outer.bias[:embedding_size] = prior_mean
                self.outer.bias[embedding_size:] = math.log(prior_variance)

    def forward(self, hidden_NTH: Tensor) -> Tensor:
        """h [N, T, hidden] -> [N, T, 2d]: mu, then log sigma^2."""
        return self.outer(self.dropout(torch.relu(self.inner(hidden_NTH))))
