"""Pretrains the quick-start encoder: a small BERT, on the project's own generated text, without labels.

The text comes from the templates of all domains with the names of the `pretrain` pool, which no training or test text
uses. It contains no question and no answer label. An example is a pair of segments, like BERT's: a STATEMENT, which
restates one or two facts in other words, and a PASSAGE about two or three things of one kind. The loss is a sum of
three self-supervised objectives, whose targets are tokens or spans of the text itself:

    span selection          (Glass et al., ACL 2020; the recurring spans of Ram et al., ACL 2021) The statement hides a
                            name or value, and the model finds its place in the passage.
    restated tokens         The model marks the passage tokens of all names and values that the statement restates.
    masked language model   (Devlin et al., NAACL 2019) Tokens are masked at random; some values that the statement
                            restates are masked whole in the passage, to be recovered from the other segment.

Attention between equal tokens emerges much sooner in brief passages, which the first `brief_updates` updates see, and
if it is there from the start: query and key projections start equal, positions as sinusoids (Vaswani et al., 2017).

Only the encoder is saved. The heads are discarded, and fine-tuning starts from a fresh one.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BatchEncoding, BertConfig, BertForMaskedLM, BertTokenizer

from swep_ds.data.quickstart import DOMAINS
from swep_ds.data.quickstart.grammar import Mention, Passage, load_kinds, slots, write_passage
from swep_ds.data.quickstart.world import World

Span = tuple[int, int]
_POOL = 16  # batches that are drawn together and sorted by length, against padding
_LOG_EVERY = 100
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Settings:
    """Everything that determines the encoder. The defaults made the shipped one."""

    updates: int = 5000
    brief_updates: int = 1200
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup: int = 100
    language_weight: float = 0.3
    restated_weight: float = 3.0
    left_out_rate: float = 0.3  # share of hidden spans without a [MASK] in their place
    mask_rate: float = 0.08  # share of tokens masked at random
    whole_rate: float = 0.5  # share of the restated values of a passage that are masked whole
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    intermediate: int = 384
    initial_std: float = 0.05
    initial_query_key_std: float = 0.09
    vocabulary: int = 2500
    tokenizer_passages: int = 20000
    max_positions: int = 256
    seed: int = 0


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
        if update % _POOL == 0:
            brief = update < settings.brief_updates
            pool = [write_pair(world, settings.left_out_rate, brief, filler) for _ in range(_POOL * size)]
            pool.sort(key=lambda pair: len(pair.statement) + len(pair.passage))
            order = world.rng.sample(range(_POOL), _POOL)
        first = order[update % _POOL] * size
        yield pool[first : first + size]


def train_tokenizer(settings: Settings) -> BertTokenizer:
    """An uncased WordPiece tokenizer, trained on passages of the pretraining pool."""
    texts = tokenizer_texts(settings.tokenizer_passages, settings.seed)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocabulary,
        # The trainer numbers inner pieces in the order of a hash map and breaks ties by number. With the pieces listed
        # first their numbers are fixed, and the same text always gives the same vocabulary.
        special_tokens=[*_SPECIAL, *(f"##{character}" for character in characters)],
        initial_alphabet=characters,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=settings.max_positions)


def batches(tokenizer: BertTokenizer, settings: Settings) -> Iterator[dict[str, Tensor]]:
    """Endless batches of B pairs of T tokens.

    Yields:
        `input_ids`, `token_type_ids`, `attention_mask` (B, T) int64; `restated` (B, T) int64, 1 on the tokens of the
        passage that the statement restates; `labels` (B, T) int64, the tokens under a mask and -100 elsewhere;
        `starts`, `ends` (B,) int64, first and last token of the hidden span in the passage.
    """
    world = World(random.Random(f"swep-ds quickstart pretraining {settings.seed}"), "pretrain")
    special = torch.tensor(tokenizer.all_special_ids)
    for pairs in draw_batches(world, settings):
        encoded = tokenizer(
            [pair.statement for pair in pairs], [pair.passage for pair in pairs], padding=True, return_tensors="pt"
        )
        ids = encoded["input_ids"]
        masked = (torch.rand(ids.shape) < settings.mask_rate) & ~torch.isin(ids, special)
        tokens = partial(_tokens, encoded)
        for row, pair in enumerate(pairs):
            for span in pair.values:
                if world.rng.random() < settings.whole_rate:
                    masked[row, tokens(row, span)] = True
            masked[row, tokens(row, pair.answer)] = False
        yield {
            "input_ids": ids.masked_fill(masked, tokenizer.mask_token_id),
            "token_type_ids": encoded["token_type_ids"],
            "attention_mask": encoded["attention_mask"],
            "labels": ids.masked_fill(~masked, -100),
            **span_labels(pairs, ids, tokens),
        }


def span_labels(
    pairs: list[Pair], ids_BT: Tensor, tokens: Callable[[int, tuple[int, int]], slice]
) -> dict[str, Tensor]:
    """`restated`, `starts` and `ends` of a batch; `tokens` finds the tokens of a span in the passage of a row."""
    restated = torch.zeros_like(ids_BT)
    for row, pair in enumerate(pairs):
        for span in pair.restated:
            restated[row, tokens(row, span)] = 1
    answers = [tokens(row, pair.answer) for row, pair in enumerate(pairs)]
    starts = torch.tensor([span.start for span in answers])
    return {"restated": restated, "starts": starts, "ends": torch.tensor([span.stop - 1 for span in answers])}


def _tokens(encoded: BatchEncoding, row: int, span: Span) -> slice:
    """The tokens that cover the characters `span` of the passage of pair `row`."""
    return slice(encoded.char_to_token(row, span[0], 1), encoded.char_to_token(row, span[1] - 1, 1) + 1)


class PretrainingModel(nn.Module):
    """A `BertForMaskedLM` and a linear head for the other two objectives."""

    def __init__(self, settings: Settings):
        super().__init__()
        config = BertConfig(
            vocab_size=settings.vocabulary,
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            intermediate_size=settings.intermediate,
            max_position_embeddings=settings.max_positions,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=settings.initial_std,
        )
        self.masked_lm = BertForMaskedLM(config)
        self.token_head = nn.Linear(settings.hidden, 3)  # start, end, restated
        self._favour_equal_tokens(settings)

    @torch.no_grad()
    def _favour_equal_tokens(self, settings: Settings) -> None:
        """Sets sinusoidal positions, and keys equal to queries, so that q.k is largest for equal tokens."""
        positions = self.masked_lm.bert.embeddings.position_embeddings.weight
        count, width = positions.shape
        angle = torch.arange(count)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        positions[:, 0::2] = settings.initial_std * angle.sin()
        positions[:, 1::2] = settings.initial_std * angle.cos()
        for layer in self.masked_lm.bert.encoder.layer:
            attention = layer.attention.self
            nn.init.normal_(attention.query.weight, std=settings.initial_query_key_std)
            attention.key.weight.copy_(attention.query.weight)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses "language", "selection" and "restated" (nats, scalars); "exact", the share of spans found."""
        hidden_BTd = self.masked_lm.bert(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
        ).last_hidden_state
        masked = batch["labels"] != -100
        terms, exact = span_losses(self.token_head(hidden_BTd), batch, batch["token_type_ids"] == 1)
        terms["language"] = F.cross_entropy(self.masked_lm.cls(hidden_BTd[masked]), batch["labels"][masked])
        terms["exact"] = exact.float().mean()
        return terms


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


def pretrain(settings: Settings, folder: Path) -> None:
    """Trains tokenizer and encoder, prints the losses and saves both to `folder`: a `BertModel` in fp16."""
    torch.manual_seed(settings.seed)
    tokenizer = train_tokenizer(settings)
    model = PretrainingModel(settings)
    weights = {"language": settings.language_weight, "selection": 1.0, "restated": settings.restated_weight}
    train(model, batches(tokenizer, settings), weights, settings)
    bert = model.masked_lm.bert
    bert.config.initializer_range = 0.02  # BERT's usual deviation, for the heads of fine-tuning
    bert.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(model: nn.Module, data: Iterator[dict[str, Tensor]], weights: dict[str, float], settings: Any) -> None:
    """AdamW with linear warm-up and decay on the weighted sum of the losses that `model(batch)` returns.

    Prints the means of all values that `model` returns. `settings` are those of either model.
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
        sum(weight * terms[name] for name, weight in weights.items()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        for name, value in terms.items():
            sums[name] += value.item() / _LOG_EVERY
        if update % _LOG_EVERY == 0:
            means = "  ".join(f"{name} {value:.3f}" for name, value in sums.items())
            print(f"update {update:5d}  {means}  {time.perf_counter() - begin:5.0f} s", flush=True)
            sums.clear()
