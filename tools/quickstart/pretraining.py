"""What the quick-start models are pretrained on, and how: the project's own generated text, without labels.

The text comes from the templates of all domains with the names of the `pretrain` pool, which no training or test text
uses. It contains no question and no answer label. An example is a pair of segments, like BERT's: a STATEMENT, which
restates one or two facts in other words, and a PASSAGE about two or three things of one kind.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swep_ds.data.quickstart import DOMAINS
from tools.quickstart.grammar import Mention, Passage, World, load_kinds, slots, write_passage

Span = tuple[int, int]
POOL = 16  # batches that are drawn together and sorted by length, against padding
LOG_EVERY = 100


@dataclass(frozen=True)
class Pair:
    """One example. Spans are characters [start, end) of the passage."""

    statement: str
    passage: str
    answer: Span  # the name or value that the statement hides
    values: tuple[Span, ...]  # values of the passage that the statement still shows
    restated: tuple[Span, ...]  # every name and value of the passage that the statement restates


def write_pair(world: World, left_out_rate: float, brief: bool = False, filler: str = "[MASK]") -> Pair:
    """Draws a passage, restates some of its facts and hides one name or value of the restatement.

    `filler` replaces what is hidden, or nothing at the rate `left_out_rate`.
    """
    rng = world.rng
    restatements: list[str] = []
    while not restatements:
        kind = rng.choice(load_kinds(rng.choice(DOMAINS)))
        passage = write_passage(kind, world, brief)
        record = rng.randrange(len(passage.records))
        stated = passage.stated(record)
        restatements = [
            template
            for template in kind.sentences
            if not slots(template)[1] and slots(template)[0] <= stated and template not in passage.used
        ]
    statement = Passage(kind, passage.records)
    statement.add(rng.choice(restatements), (record,), 0)
    places = {mention.field: _recurrence(mention, statement, passage) for mention in statement.mentions}
    blank = rng.choice(statement.mentions)
    filler = "" if rng.random() < left_out_rate else filler
    return Pair(
        statement=statement.text[: blank.start] + filler + statement.text[blank.end :],
        passage=passage.text,
        answer=places[blank.field],
        values=tuple(span for name, span in places.items() if name not in (blank.field, "name")),
        restated=tuple((m.start, m.end) for m in passage.mentions if m.record == record and m.field in places),
    )


def _recurrence(mention: Mention, statement: Passage, passage: Passage) -> Span:
    """The span in the passage of the statement's name or value. That of a name is in the sentence of a stated fact."""
    same = [m for m in passage.mentions if (m.record, m.field) == (mention.record, mention.field)]
    if mention.field == "name":
        stated = {m.field for m in statement.mentions} - {"name"}
        stating = {m.sentence for m in passage.mentions if m.record == mention.record and m.field in stated}
        same = [m for m in same if m.sentence in stating]
    return same[0].start, same[0].end


def tokenizer_texts(passages: int, seed: int) -> Iterator[str]:
    """Passages of the pretraining pool, of all kinds in turn."""
    world = World(random.Random(f"swep-ds quickstart tokenizer {seed}"), "pretrain")
    kinds = [kind for domain in DOMAINS for kind in load_kinds(domain)]
    return (write_passage(kinds[i % len(kinds)], world).text for i in range(passages))


def draw_batches(world: World, settings: Any, filler: str = "[MASK]") -> Iterator[list[Pair]]:
    """Endless batches of pairs; the pairs of a batch are of similar length. `settings` are those of either model."""
    size = settings.batch_size
    for update in itertools.count():
        if update % POOL == 0:
            brief = update < settings.brief_updates
            pool = [write_pair(world, settings.left_out_rate, brief, filler) for _ in range(POOL * size)]
            pool.sort(key=lambda pair: len(pair.statement) + len(pair.passage))
            order = world.rng.sample(range(POOL), POOL)
        first = order[update % POOL] * size
        yield pool[first : first + size]


def span_labels(pairs: list[Pair], ids_BT: Tensor, tokens: Callable[[int, Span], slice]) -> dict[str, Tensor]:
    """For a batch: `restated` (B, T), 1 on the tokens of the passage that the statement restates; `starts` and `ends`
    (B,), first and last token of the hidden span. `tokens` finds the tokens of a span in the passage of a row."""
    restated = torch.zeros_like(ids_BT)
    for row, pair in enumerate(pairs):
        for span in pair.restated:
            restated[row, tokens(row, span)] = 1
    answers = [tokens(row, pair.answer) for row, pair in enumerate(pairs)]
    starts = torch.tensor([span.start for span in answers])
    return {"restated": restated, "starts": starts, "ends": torch.tensor([span.stop - 1 for span in answers])}


def span_losses(
    logits_BT3: Tensor, batch: dict[str, Tensor], in_passage_BT: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The losses "selection" and "restated" of a head for start, end and restated; whether each span is found (B,)."""
    start, end, restated = logits_BT3.unbind(-1)
    start, end = start.masked_fill(~in_passage_BT, -1e9), end.masked_fill(~in_passage_BT, -1e9)
    losses = {
        "selection": (F.cross_entropy(start, batch["starts"]) + F.cross_entropy(end, batch["ends"])) / 2,
        "restated": F.binary_cross_entropy_with_logits(
            restated[in_passage_BT], batch["restated"][in_passage_BT].float()
        ),
    }
    return losses, (start.argmax(1) == batch["starts"]) & (end.argmax(1) == batch["ends"])


def pretrain(module: ModuleType, settings: Any, folder: Path) -> None:
    """Trains tokenizer and model of `encoder` or `t5`, prints the losses and saves both to `folder`."""
    torch.manual_seed(settings.seed)
    tokenizer = module.train_tokenizer(settings)
    model = module.PretrainingModel(settings)
    train(model, module.batches(tokenizer, settings), settings)
    model.trained().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(model: nn.Module, data: Iterator[dict[str, Tensor]], settings: Any) -> None:
    """AdamW with linear warm-up and decay on the sum, by `model.weights`, of the losses that `model(batch)` returns.

    Prints the means of all values that `model` returns.
    """
    updates, warmup = settings.updates, settings.warmup
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / warmup, (updates - done) / (updates - warmup))
    )
    begin = time.perf_counter()
    sums: Counter[str] = Counter()
    for update, batch in zip(range(1, updates + 1), data, strict=False):
        terms = model(batch)
        sum(weight * terms[name] for name, weight in model.weights.items()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        for name, value in terms.items():
            sums[name] += value.item() / LOG_EVERY
        if update % LOG_EVERY == 0:
            means = "  ".join(f"{name} {value:.3f}" for name, value in sums.items())
            print(f"update {update:5d}  {means}  {time.perf_counter() - begin:5.0f} s", flush=True)
            sums.clear()
