"""SWEP in plain PyTorch: Eq. 1 to 4 of Lee et al., ACL 2021, for any model with a span head of transformers.

    python examples/swep_in_one_file.py

Nothing of the method comes from the package. A test compares the loss and every gradient with the package's.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from trainer import windows  # questions of the quick start, as tokens
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding

from swep_ds.data.quickstart import ENCODER


class NoiseGenerator(nn.Module):
    """q(z | x): the Gaussian of each dimension of each word's noise, from the word in its context."""

    def __init__(self, hidden_size: int, embedding_size: int, alpha: float = 0.1):
        super().__init__()
        self.inner = nn.Linear(hidden_size, embedding_size)
        self.outer = nn.Linear(embedding_size, 2 * embedding_size)
        nn.init.normal_(self.outer.weight, std=1e-3)  # training starts at the prior
        nn.init.constant_(self.outer.bias[:embedding_size], 1.0)
        nn.init.constant_(self.outer.bias[embedding_size:], math.log(alpha))
        self.prior = Normal(1.0, math.sqrt(alpha))

    def forward(self, hidden: Tensor) -> Normal:
        mu, log_variance = self.outer(self.inner(hidden).relu()).chunk(2, dim=-1)
        return Normal(mu, (log_variance / 2).exp())


def swep_loss(model: nn.Module, generator: NoiseGenerator, batch: dict, beta: float = 1e-4, mle_weight: float = 0.5):
    """The loss (0-dim) of a batch as the model takes it, with `start_positions` and `end_positions`."""
    inputs = dict(batch)
    words = model.get_input_embeddings()(inputs.pop("input_ids"))  # e [N, T, d]

    # Eq. 1: L_MLE = nll(e)
    clean = model(inputs_embeds=words, output_hidden_states=True, **inputs)
    hidden = clean.hidden_states[-1].detach()  # the stop-gradient: through h, the noise does not train the encoder

    # Eq. 3: z = mu + sigma * eps
    noise = generator(hidden)
    z = noise.mean + noise.stddev * torch.randn_like(words)
    noisy = model(inputs_embeds=words * z, **inputs)

    # Eq. 2: L_noise = nll(e * z) + beta * KL, summed over the words of a window
    kl = kl_divergence(noise, generator.prior).sum(-1) * batch["attention_mask"]
    noise_loss = noisy.loss + beta * kl.sum(1).mean()

    return mle_weight * clean.loss + (1 - mle_weight) * noise_loss  # Eq. 4


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--updates", type=int, default=100)
    updates = options.parse_args().updates
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model = AutoModelForQuestionAnswering.from_pretrained(ENCODER, dtype=torch.float32)  # its files are float16
    model.train()  # with dropout
    generator = NoiseGenerator(model.config.hidden_size, model.get_input_embeddings().embedding_dim)
    optimizer = torch.optim.AdamW([*model.parameters(), *generator.parameters()], lr=3e-4)
    rows = windows(tokenizer, 8 * updates)
    loader = torch.utils.data.DataLoader(rows, 8, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
    for update, batch in enumerate(loader, 1):
        loss = swep_loss(model, generator, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if update % 10 == 0:
            print(f"update {update}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
