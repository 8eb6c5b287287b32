"""Pretrains the quick-start encoder: a small BERT, on the project's own generated text, without labels.

The loss on the pairs of `pretraining.py` is a sum of three self-supervised objectives, whose targets are tokens or
spans of the text itself:

    span selection          (Glass et al., ACL 2020; the recurring spans of Ram et al., ACL 2021) The statement hides a
                            name or value, and the model finds its place in the passage.
    restated tokens         The model marks the passage tokens of all names and values that the statement restates.
    masked language model   (Devlin et al., NAACL 2019) Tokens are masked at random; some values that the statement
                            restates are masked whole in the passage, to be recovered from the other segment.

Attention between equal tokens emerges much sooner in brief passages, which the first `brief_updates` updates see, and
if it is there from the start: query and key projections start equal, positions as sinusoids (Vaswani et al., 2017).
Only the encoder is saved.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BatchEncoding, BertConfig, BertForMaskedLM, BertModel, BertTokenizer

from tools.quickstart.grammar import World
from tools.quickstart.pretraining import Span, draw_batches, span_labels, span_losses, tokenizer_texts

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
    """Endless batches of B pairs of T tokens; `labels` (B, T) are the tokens under a mask, and -100 elsewhere."""
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


def _tokens(encoded: BatchEncoding, row: int, span: Span) -> slice:
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
        self.weights = {"language": settings.language_weight, "selection": 1.0, "restated": settings.restated_weight}
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

    def trained(self) -> BertModel:
        """The encoder in fp16."""
        self.masked_lm.bert.config.initializer_range = 0.02  # BERT's usual deviation, for the heads of fine-tuning
        return self.masked_lm.bert.half()
