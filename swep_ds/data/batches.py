"""Batches: the windows of every rank in every update, padded, with their weights in the loss.

The windows of an update depend only on the seed and the global batch (micro batch x accumulation x ranks), not on how
the batch is split; resuming at update u needs nothing but u.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError
from swep_ds.data.normalisation import LossNormalisation

IGNORED = -100  # in target_ids, as in transformers' labels
MEGA_BATCH = 50  # updates whose windows are sorted by length together


class Batch(NamedTuple):
    """One rank's windows in one micro-batch. N windows of at most T tokens, padded on the right.

    Training only: start_position and end_position or target_ids, sample_id, weight, token_weight; else None.
    """

    input_ids: Tensor  # [N, T] int64
    attention_mask: Tensor  # [N, T] int64, 1 = token, 0 = padding
    token_type_ids: Tensor | None = None  # [N, T] int64, for models that take them
    start_position: Tensor | None = None  # [N] int64, the answer's first token
    end_position: Tensor | None = None  # [N] int64, the answer's last token
    target_ids: Tensor | None = None  # [N, K] int64, the answer's tokens and the end of sequence; IGNORED = padding
    sample_id: Tensor | None = None  # [N] int64, the window's row: keys its noise
    weight: Tensor | None = None  # [N] float32, factor of a window's loss: sums are exact means over the update
    token_weight: Tensor | None = None  # [N] float32, the same for means over the update's tokens
    lengths: tuple[int, ...] | None = None  # tokens of each window, always on the host
    # T before it was rounded up, 0-dim int64; None if it was not. Columns behind it take no part in the loss. A tensor,
    # because batches of one shape share a CUDA graph.
    width: Tensor | None = None

    @property
    def padding_mask(self) -> Tensor | None:
        """The attention mask; None if `lengths` show no padding, as attention is faster without a mask."""
        if self.lengths is not None and min(self.lengths) == self.input_ids.shape[1]:
            return None
        return self.attention_mask

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with each of its tensors changed."""
        return Batch(*(change(field) if isinstance(field, Tensor) else field for field in self))

    def to(self, device: torch.device) -> "Batch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


def padded_inputs(tokenizer: PreTrainedTokenizerFast, columns: dict[str, list], width: int) -> dict[str, Tensor]:
    """The model's inputs [N, width], padded on the right, from the feature columns `input_ids` and, if the tokenizer
    says that the model takes them, `token_type_ids`. For a model that sees padding the width is always the same."""
    ids = columns["input_ids"]
    width = getattr(tokenizer, "padded_length", width)
    inputs = {
        "input_ids": _pad(ids, width, tokenizer.pad_token_id),
        "attention_mask": _pad([[1] * len(row) for row in ids], width, 0),
    }
    if "token_type_ids" in tokenizer.model_input_names:
        inputs["token_type_ids"] = _pad(columns["token_type_ids"], width, tokenizer.pad_token_type_id)
    return inputs


def _pad(rows: Sequence[Sequence[int]], width: int, value: int) -> Tensor:
    padded = np.full((len(rows), width), value, dtype=np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded)


@dataclass(eq=False)
class TrainingBatches:
    """Item k is this rank's micro-batch k; update u has the micro-batches from u * accumulation on.

    Windows of similar length share an update: random batches of 8 waste a third of their positions on SQuAD-like text.
    With `max_tokens` an update takes as many windows as fit. Training ends after max_updates at the latest.

    An epoch has as many windows as there are; of a `mix`, up to rounding. Each source of a mix has its share of every
    update, but for a window or two. Each source is read in passes that are shuffled anew and continue across epochs.

    Raises InputError: a window is longer than `max_tokens`.
    """

    features: Any  # as `Features.dataset`
    tokenizer: PreTrainedTokenizerFast
    _: KW_ONLY
    micro_batch_size: int  # windows
    accumulation: int
    rank: int
    world_size: int
    epochs: float
    max_updates: int | None
    seed: int
    max_tokens: int | None = None  # positions of a micro-batch, with padding, in place of micro_batch_size
    group_by_length: bool = True
    pad_to_multiple_of: int = 1  # T and K are rounded up to it, but not above the longest window and
    max_target_length: int = sys.maxsize  # the longest target: the model may take no more
    # (windows, weight) of each source if there are several; their rows follow each other
    mix: Sequence[tuple[int, float]] = ()

    def __post_init__(self):
        self.micro_batch = self.world_size  # windows over all ranks; with max_tokens, micro-batches
        if not self.max_tokens:
            self.micro_batch *= self.micro_batch_size
        self.global_batch = self.micro_batch * self.accumulation
        self.lengths = np.asarray(self.features["length"][:])
        longest = self.lengths.max()
        self.widths = _rounded_up(self.lengths, self.pad_to_multiple_of, longest)  # for a batch of only this window
        if padded := getattr(self.tokenizer, "padded_length", None):
            self.widths = np.full_like(self.lengths, padded)
        if self.max_tokens and (longest := self.widths.max()) > self.max_tokens:
            raise InputError(
                f"train.max_tokens {self.max_tokens}: the longest window has {longest} tokens: raise it to that at "
                "least, or lower data.max_length"
            )
        sizes = np.array([size for size, _ in self.mix], int)
        self._source = np.repeat(np.arange(len(sizes)), sizes)  # one per row of a mix
        self._rows: list[np.ndarray] = []  # those of each update
        self.updates = 0
        epochs = self.epochs * (1 - 1e-12)  # without rounding errors: 1.1 epochs of 10 updates are 11, not 12
        for epoch in range(math.ceil(epochs)):
            rows = self._shuffled(epoch)
            self._rows += rows
            self.updates += math.ceil(min(1, epochs - epoch) * len(rows))
            if epoch == 0:
                self.updates_per_epoch = len(rows)  # with max_tokens other epochs have about as many
            if self.max_updates and self.updates >= self.max_updates:
                self.updates = self.max_updates
                break

    @property
    def size(self) -> str:
        if self.max_tokens:
            return f"at most {self.global_batch} x {self.max_tokens} positions"
        return f"{self.global_batch} windows"

    def __len__(self) -> int:
        return self.updates * self.accumulation

    def windows(self, update: int) -> np.ndarray:
        """Rows of all windows of an update, of all ranks and micro-batches."""
        return self._rows[update]

    def width(self, update: int) -> int:
        """T of an update's batches, the same on all ranks: Hugging Face's loss takes the softmax over padding, too, so
        it would depend on the split."""
        return int(self.widths[self.windows(update)].max())

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        """The rows of each update of an epoch, which is shuffled, sorted by length within mega-batches, and cut into
        updates, which are shuffled."""
        rng = np.random.default_rng([self.seed, epoch])
        order = self._mixed(epoch) if self.mix else rng.permutation(len(self.features))
        if self.group_by_length:
            order = self._grouped(order)
        ends = range(self.global_batch, len(order), self.global_batch)
        if self.max_tokens:
            ends = self._cuts(order)
        updates = np.split(order, ends)
        return [updates[i] for i in rng.permutation(len(updates))]

    def _mixed(self, epoch: int) -> np.ndarray:
        """The rows of an epoch of a mix, those of all sources in turn. Each pass over a source has its own key."""
        total = sum(weight for _, weight in self.mix)
        rows = []
        first_row = 0
        for number, (windows, weight) in enumerate(self.mix):
            count = max(1, round(len(self.features) * weight / total))  # in each epoch
            passes, places_in_pass = np.divmod(np.arange(epoch * count, (epoch + 1) * count), windows)
            for pass_number in np.unique(passes):
                shuffled = np.random.default_rng([self.seed, pass_number, number + 1]).permutation(windows)
                rows.append(first_row + shuffled[places_in_pass[passes == pass_number]])
            first_row += windows
        return self._alternating(np.concatenate(rows))

    def _grouped(self, order: np.ndarray) -> np.ndarray:
        """Mega-batches, each sorted by length; with `max_tokens` every other one in reverse, or short and long windows
        would meet at its end. In a mix, windows are matched by their length rank within their own source."""
        windows = self.global_batch  # per update
        if self.max_tokens:
            windows = max(1, int(self.global_batch * self.max_tokens / self.lengths.mean()))
        mega = MEGA_BATCH * windows
        lengths = self.lengths.astype(np.min_scalar_type(self.lengths.max()))  # NumPy sorts 16 bits in linear time
        parts = []
        for number, part in enumerate(np.split(order, range(mega, len(order), mega))):
            part = part[np.argsort(lengths[part], kind="stable")]
            if self.mix:
                part = self._alternating(part)
            if self.max_tokens and number % 2:
                part = part[::-1]
            parts.append(part)
        return np.concatenate(parts)

    def _alternating(self, rows: np.ndarray) -> np.ndarray:
        """The rows, which keep their order within each source, such that any stretch has the share of each source."""
        sources = self._source[rows]
        places = np.empty(len(rows))
        for source in np.unique(sources):
            of_source = sources == source
            places[of_source] = (np.arange(of_source.sum()) + 0.5) / of_source.sum()
        return rows[np.lexsort((sources, places))]

    def _cuts(self, order: np.ndarray) -> list[int]:
        """The ends of all updates but the last: each takes as many windows as fit into its micro-batches."""
        cuts = [0]
        end = widest = 0
        for place, width in enumerate(self.widths[order].tolist()):
            if place == end or width > widest:
                widest = max(widest, width)
                if place >= cuts[-1] + self.global_batch * (self.max_tokens // widest):
                    cuts.append(place)
                    widest = width
                end = cuts[-1] + self.global_batch * (self.max_tokens // widest)
        return cuts[1:]

    def __getitem__(self, number: int) -> Batch:
        update, micro = divmod(number, self.accumulation)
        rows = self.windows(update)
        if self.max_tokens:
            mine = rows[micro * self.world_size + self.rank :: self.global_batch]
        else:
            mine = rows[micro * self.micro_batch : (micro + 1) * self.micro_batch][self.rank :: self.world_size]
        scale = LossNormalisation(self.world_size, self.accumulation)
        weight = scale.weight(len(rows))
        token_weight = scale.weight(int(self.lengths[rows].sum()))
        if len(mine) == 0:  # other ranks would wait for this one
            mine = rows[:1]
            weight = token_weight = 0.0
        columns = self.features[mine.tolist()]
        if "target_ids" in columns:
            targets = columns["target_ids"]
            longest = _rounded_up(max(map(len, targets)), self.pad_to_multiple_of, self.max_target_length)
            answers = {"target_ids": _pad(targets, int(longest), IGNORED)}
        else:
            answers = {name: torch.tensor(columns[name]) for name in ("start_position", "end_position")}
        width = None
        if self.pad_to_multiple_of > 1 or hasattr(self.tokenizer, "padded_length"):
            width = torch.tensor(int(self.lengths[rows].max()))
        return Batch(
            **padded_inputs(self.tokenizer, columns, self.width(update)),
            **answers,
            sample_id=torch.from_numpy(mine.astype(np.int64)),
            weight=torch.full((len(mine),), weight),
            token_weight=torch.full((len(mine),), token_weight),
            lengths=tuple(columns["length"]),
            width=width,
        )


def _rounded_up(length: np.ndarray | int, multiple: int, most: int) -> np.ndarray:
    """The next multiple of each length, but not above `most`."""
    return np.minimum(-(-length // multiple) * multiple, most)
