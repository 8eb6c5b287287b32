"""What a noise generator learns from a finished model that stays fixed, at several strengths of the KL.

    python studies/learned_noise/mechanism.py RUN --data held_out news

RUN is the folder of a finished run of prior_aug. The tables are written to analysis/ in it.

With g = d nll / dz at a window's noise z, the noise of a fixed model is stationary, per token and dimension, where
    mu - 1 = -(alpha / beta) E[g],    sigma^2 = alpha / (1 + alpha k / beta),    k = E[d^2 nll / dz^2]
(the derivatives of nll + beta KL by mu and by sigma, with E[g eps] = sigma k, which is Stein's identity). So alpha k is
the natural unit of beta for sigma: far above it sigma stays at its prior, far below it the KL does not bind. For mu it
is sqrt(alpha) |E[g]|, where mu moves by the prior's sigma. Both are per dimension, and a window has tens of thousands
of dimensions. At beta = 10 alpha k, the KL of sigma alone may therefore be hundreds of nats per window.

`curvature` measures k. `learn` trains only a generator, at beta = alpha k / ratio. `effects` compares its noise with
the same noise shuffled and with the prior's, with the same eps (`swep_ds.methods.noise_effect`).
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.analysis.trained_run import AnswerWindow, TrainedRun, answer_windows
from swep_ds.common.errors import InputError
from swep_ds.common.files import write_atomically
from swep_ds.data.batches import Batch
from swep_ds.data.example import Example
from swep_ds.methods.base import Inputs, MicroStep, PassState, multiply_by_gaussian
from swep_ds.methods.objective import Objective
from swep_ds.methods.swep import Swep, SwepSettings
from swep_ds.pipeline.build import training_batches, training_features

BATCH = 16  # windows of a forward pass
MAX_GRAD_NORM = 1.0


def sample_windows(run: TrainedRun, examples: Sequence[Example], count: int, label: str) -> list[AnswerWindow]:
    """A seeded choice of `count` questions' windows, ordered by length; fewer if not enough hold their answer.

    Raises:
        InputError: no window holds an answer.
    """
    order = np.random.default_rng(0).permutation(len(examples))
    windows = answer_windows([examples[index] for index in order], run.tokenizer, run.windows)
    chosen = list(islice(windows, count))
    if not chosen:
        raise InputError(f"{label}: none of its {len(examples)} questions has its answer in a window: name other data")
    return sorted(chosen, key=lambda window: len(window.input_ids))


def curvature(run: TrainedRun, windows: Sequence[AnswerWindow], draws: int = 2) -> pd.DataFrame:
    """The means of k and of E[g]^2 over dimensions and tokens, by kind of token, under prior noise.

    k is the mean of g eps / sigma, over pairs of eps and -eps: the mean of g cancels, which makes k's error smaller.
    E[g]^2 is the mean of g g' over two pairs, which has no bias from g's variance.

    Args:
        draws: pairs, at least 2.

    Returns:
        A row for each kind ("all", "answer", "question", "context", "special") with columns k, k_error (the standard
        error over windows), squared_mean_gradient and tokens.
    """
    variance = prior_variance(run)
    rows = []
    for batch, chunk in _batches(run, windows):
        gradients, curvatures = [], []
        with torch.no_grad():
            embeddings = run.qa.embed(batch)
        for draw in range(draws):
            z_NTd = multiply_by_gaussian(_inputs(run, torch.ones_like(embeddings), batch, draw), variance)
            plus_NTd, minus_NTd = (_gradient(run, embeddings, z, batch) for z in (z_NTd, 2 - z_NTd))
            gradients.append((plus_NTd + minus_NTd) / 2)
            curvatures.append(((plus_NTd - minus_NTd) / 2 * (z_NTd - 1) / variance).mean(-1))
        k_NT = torch.stack(curvatures).mean(0)
        product_NT = (gradients[0] * gradients[1]).mean(-1)
        for n, window in enumerate(chunk):
            kinds = _kinds(window)
            for kind in ("all", "answer", "question", "context", "special"):
                chosen = np.flatnonzero((kinds == kind) | (kind == "all"))
                if len(chosen):
                    rows.append((kind, k_NT[n, chosen].sum().item(), product_NT[n, chosen].sum().item(), len(chosen)))
    table = pd.DataFrame(rows, columns=["kind", "k", "product", "tokens"])

    def summary(group: pd.DataFrame) -> pd.Series:
        tokens = group.tokens.sum()
        k = group.k.sum() / tokens
        # the standard error of a ratio of means over windows
        error = np.sqrt(((group.k - k * group.tokens) ** 2).sum()) / tokens
        return pd.Series(
            {"k": k, "k_error": error, "squared_mean_gradient": group["product"].sum() / tokens, "tokens": tokens}
        )

    return table.groupby("kind", sort=False)[["k", "product", "tokens"]].apply(summary).reset_index()


def _gradient(run: TrainedRun, embeddings: Tensor, z_NTd: Tensor, batch: Batch) -> Tensor:
    """g of the module's docstring: [N, T, d]."""
    z_NTd = z_NTd.detach().requires_grad_()
    return torch.autograd.grad(run.qa(embeddings * z_NTd, batch).nll.sum(), z_NTd)[0]


def learn(run: TrainedRun, beta: float, learning_rate: float, updates: int) -> Swep:
    """Trains a noise generator, which starts at the prior, on the run's training questions; the model stays as it is.

    AdamW at a constant learning rate, without dropout, on the run's batches and with its seed, in float32.
    """
    device = ranks.device()
    torch.manual_seed(run.recipe.seed)
    settings = SwepSettings(beta=beta, prior_variance=prior_variance(run), mle_weight=0.0)
    method = Swep(settings, run.qa.hidden_size, run.qa.embedding_size).to(device)
    features = training_features(run.recipe, run.tokenizer, run.training_examples())
    train = run.recipe.train.model_copy(update={"epochs": 1000, "max_updates": updates})
    recipe = run.recipe.model_copy(update={"train": train})
    batches = training_batches(recipe, run.tokenizer, features, 0, 1, on_gpu=False)
    objective = Objective(run.qa, method, run.recipe.seed)
    optimizer = torch.optim.AdamW(method.parameters(), lr=learning_rate, weight_decay=0.0)
    for update in range(updates):
        for micro in range(batches.accumulation):
            batch = batches[update * batches.accumulation + micro].to(device)
            loss, *_ = objective(batch, MicroStep(update, update / updates))
            (loss / batches.accumulation).backward()
        torch.nn.utils.clip_grad_norm_(method.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return method.eval().requires_grad_(False)


@torch.no_grad()
def effects(run: TrainedRun, method: Swep, windows: Sequence[AnswerWindow], draws: int = 2) -> dict[str, float]:
    """The noise of `method` against noise from its prior: means over windows and draws.

    Returns:
        kl_per_window (nats), and for gold and guess: `<answer>_learned` and `<answer>_shuffled`, the nll
        less that under prior noise; each with its standard error `<name>_error`, over contexts.
    """
    [noisy] = [pass_ for pass_ in method.passes(0.0) if pass_.perturb]
    rows = []
    for batch, chunk in _batches(run, windows):
        embeddings = run.qa.embed(batch)
        state = PassState(run.hidden(embeddings, batch))
        for draw in range(draws):
            noise = noisy.perturb(replace(_inputs(run, embeddings, batch, draw), carried=state))
            nll = noise.compare()
            values = {"kl_per_window": noise.kl.sum(1)} | {
                f"{answer}_{kind}": nll[f"{answer}_nll_{kind}"] - nll[f"{answer}_nll_prior"]
                for answer in ("gold", "guess")
                for kind in ("learned", "shuffled")
            }
            columns = {name: value_N.tolist() for name, value_N in values.items()}
            rows.append(pd.DataFrame(columns | {"context": [window.example.context for window in chunk]}))
    table = pd.concat(rows)
    means = table.drop(columns="context").mean()
    sums = table.groupby("context").agg(["sum", "count"])
    result = {}
    for name, mean in means.items():
        residuals = sums[name, "sum"] - mean * sums[name, "count"]
        result |= {name: mean, f"{name}_error": float(np.sqrt((residuals**2).sum()) / len(table))}
    return result


def study(
    run: TrainedRun,
    sets: Mapping[str, Sequence[AnswerWindow]],
    k: float,
    *,
    ratios: Sequence[float],
    factors: Sequence[float],
    updates: int,
) -> Iterator[dict[str, float | str]]:
    """Trains and measures a generator for each ratio alpha k / beta and factor of the run's learning rate.

    Args:
        sets: the windows of each test set.
        k: from `curvature`.

    Yields:
        Rows of the table: ratio, factor, beta, data_set, and what `effects` returns.
    """
    for ratio, factor in product(ratios, factors):
        beta = prior_variance(run) * k / ratio
        method = learn(run, beta, factor * run.recipe.train.learning_rate, updates)
        for name, windows in sets.items():
            yield {"ratio": ratio, "factor": factor, "beta": beta, "data_set": name} | effects(run, method, windows)


def prior_variance(run: TrainedRun) -> float:
    """alpha of a run of prior_aug; raises InputError for another method."""
    if run.recipe.method.name != "prior_aug":
        raise InputError(f"{run.folder}: trained by {run.recipe.method.name}: name a run of prior_aug")
    return run.recipe.method.prior_variance


def _inputs(run: TrainedRun, embeddings: Tensor, batch: Batch, draw: int) -> Inputs:
    forward = partial(run.qa, batch=batch, hidden=True)
    return Inputs(embeddings, batch, run.recipe.seed, draw, PassState(), forward)


def _batches(run: TrainedRun, windows: Sequence[AnswerWindow]) -> Iterator[tuple[Batch, Sequence[AnswerWindow]]]:
    for begin in range(0, len(windows), BATCH):
        chunk = windows[begin : begin + BATCH]
        yield run.batch(chunk), chunk


def _kinds(window: AnswerWindow) -> np.ndarray:
    """By token: "answer", "question", "context" or "special"."""
    kinds = np.full(len(window.input_ids), "special", dtype=object)
    for word in window.words:
        kinds[word.positions] = "question" if word.part == "question" else "context"
    first, last = window.answer
    kinds[first : last + 1] = "answer"
    return kinds


def measure(args: argparse.Namespace, folder: Path) -> None:
    run = TrainedRun.load(args.run)
    names = args.data or run.recipe.test_sets
    sets = {name: sample_windows(run, run.test_examples(name), args.windows, name) for name in names}
    by_kind = curvature(run, sample_windows(run, run.training_examples(), args.windows, "the training data"))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "curvature.csv", by_kind.to_csv(index=False))
    print(by_kind.to_string(index=False), flush=True)
    [(k, error)] = by_kind.loc[by_kind.kind == "all", ["k", "k_error"]].to_numpy().tolist()
    if k < 2 * error:
        fault = f"k is {k:.3g} with a standard error of {error:.3g}, too uncertain to be the unit of beta"
        raise InputError(f"{args.run}: {fault}: give more --windows, or name a longer run")
    settings = {name: getattr(args, name) for name in ("ratios", "factors", "updates")}
    rows = []
    for row in study(run, sets, k, **settings):
        rows.append(row)
        write_atomically(folder / "mechanism.csv", pd.DataFrame(rows).to_csv(index=False))
        print(pd.DataFrame([row]).to_string(index=False), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--output", type=Path, help="folder to write to (default: analysis/ in the run)")
    parser.add_argument("--data", nargs="+", help="names of the run's test sets (default: all)")
    parser.add_argument(
        "--ratios", nargs="+", type=float, default=[0.1, 1, 10, 100], help="KL strengths, alpha k / beta"
    )
    parser.add_argument("--factors", nargs="+", type=float, default=[1, 10], help="of train.learning_rate")
    parser.add_argument("--updates", type=int, default=400, help="of each noise generator (default: 400)")
    parser.add_argument("--windows", type=int, default=400, help="of each data set (default: 400)")
    args = parser.parse_args()
    try:
        measure(args, args.output or args.run / "analysis")
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
