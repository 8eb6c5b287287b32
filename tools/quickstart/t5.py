"""Pretrains the quick-start T5: a small encoder-decoder, on the project's own generated text, without labels.

The main objective on the pairs of `pretraining.py` is T5's span corruption (Raffel et al., JMLR 2020), with a span that
can be recovered from the passage:

    input     sentence: The birthplace of Ida Fenden is <extra_id_0>. context: Amos Hart came from Otterford. ...
    target    Amberwell

Some hidden spans have no sentinel; then the target is empty. So the model writes what a sentinel asks for and nothing
else, and fine-tuning has to teach what a question asks for, as with any T5.

Auxiliary losses make the model learn to match early. Their targets are tokens of the text too, and their heads are
discarded:

    span selection      (Glass et al., ACL 2020) the encoder finds the hidden span in the passage, sentinel or not
    restated tokens     the encoder marks the passage tokens that the statement restates
    segments            the encoder's first layer tells statement and passage apart, for which BERT has an embedding
    shared tokens       its second layer marks the tokens that are in the other segment too
    alignment           (guided alignment; Chen et al., AMTA 2016) to write a token of the span, the decoder's last
                        layer attends to that token in the passage
As in `encoder.py`, the first updates see brief passages, and query and key projections start equal.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BatchEncoding, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from tools.quickstart.grammar import World
from tools.quickstart.pretraining import Span, draw_batches, span_labels, span_losses, tokenizer_texts

_SPECIAL = ("<pad>", "</s>", "<unk>", "<extra_id_0>")
# Words, groups of two digits and single signs, each with the space before it ("\u2581").
_WORD = r"\u2581?[a-z]+|\u2581?[0-9]{1,2}|\u2581?[^a-z0-9\u2581]"


@dataclass(frozen=True)
class Settings:
    """Everything that determines the model. The defaults made the shipped one."""

    updates: int = 4500
    brief_updates: int = 1500
    batch_size: int = 16
    learning_rate: float = 2e-3
    warmup: int = 100
    left_out_rate: float = 0.25  # share of hidden spans without a sentinel in their place
    selection_weight: float = 1.0
    restated_weight: float = 3.0
    alignment_weight: float = 0.5
    early_weight: float = 1.0
    encoder_layers: int = 4
    decoder_layers: int = 2
    hidden: int = 128
    heads: int = 4
    head_width: int = 32
    intermediate: int = 256
    initial_query_key_std: float = 0.037
    initial_bias: float = 4.0
    vocabulary: int = 2000
    tokenizer_passages: int = 20000
    seed: int = 0


def train_tokenizer(settings: Settings) -> PreTrainedTokenizerFast:
    """An uncased BPE tokenizer with T5's special tokens, trained on passages of the pretraining pool.

    Decoding restores the encoded text in lower case, spaces included.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
            pre_tokenizers.Split(Regex(_WORD), behavior="isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=[chr(code) for code in range(33, 127) if not chr(code).isupper()],
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_texts(settings.tokenizer_passages, settings.seed), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", _SPECIAL.index("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<extra_id_0>"],
        clean_up_tokenization_spaces=False,
    )


def batches(tokenizer: PreTrainedTokenizerFast, settings: Settings) -> Iterator[dict[str, Tensor]]:
    """Endless batches of B pairs: inputs of T tokens, targets of S tokens.

    `labels` (B, S) are the hidden span, or nothing without a sentinel, then </s> and -100 as padding.
    """
    world = World(random.Random(f"swep-ds quickstart pretraining t5 {settings.seed}"), "pretrain")
    for pairs in draw_batches(world, settings, filler="<extra_id_0>"):
        prefixes = [f"sentence: {pair.statement} context: " for pair in pairs]
        texts = [prefix + pair.passage for prefix, pair in zip(prefixes, pairs, strict=True)]
        encoded = tokenizer(texts, padding=True, return_tensors="pt")
        in_passage = encoded["attention_mask"].bool()
        tokens = partial(_tokens, encoded, texts, prefixes)
        for row in range(len(pairs)):
            in_passage[row, : tokens(row, (0, 1)).start] = False
        written = [p.passage[slice(*p.answer)] if "<extra_id_0>" in p.statement else "" for p in pairs]
        targets = tokenizer(written, padding=True, return_tensors="pt")
        yield {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "labels": targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100),
            "in_passage": in_passage,
            **span_labels(pairs, encoded["input_ids"], tokens),
        }


def _tokens(encoded: BatchEncoding, texts: list[str], prefixes: list[str], row: int, span: Span) -> slice:
    """The tokens that cover the characters `span` of the passage of pair `row`, and the space before them."""
    start, end = (len(prefixes[row]) + place for place in span)
    if texts[row][start - 1] == " ":
        start -= 1
    return slice(encoded.char_to_token(row, start), encoded.char_to_token(row, end - 1) + 1)


class PretrainingModel(nn.Module):
    """A `T5ForConditionalGeneration` and a linear head on its encoder."""

    def __init__(self, settings: Settings):
        super().__init__()
        config = T5Config(
            vocab_size=settings.vocabulary,
            d_model=settings.hidden,
            d_kv=settings.head_width,
            d_ff=settings.intermediate,
            num_layers=settings.encoder_layers,
            num_decoder_layers=settings.decoder_layers,
            num_heads=settings.heads,
            dropout_rate=0.0,
            pad_token_id=_SPECIAL.index("<pad>"),
            eos_token_id=_SPECIAL.index("</s>"),
            decoder_start_token_id=_SPECIAL.index("<pad>"),
        )
        config._attn_implementation = "eager"  # the alignment loss reads attention weights
        self.t5 = T5ForConditionalGeneration(config)
        self.weights = {
            "generation": 1.0,
            "selection": settings.selection_weight,
            "restated": settings.restated_weight,
            "alignment": settings.alignment_weight,
            "segment": settings.early_weight,
            "shared": settings.early_weight,
        }
        self.token_head = nn.Linear(settings.hidden, 3)  # start, end, restated
        self.early_heads = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(settings.hidden), nn.Linear(settings.hidden, 1)) for _ in range(2)
        )
        self._favour_equal_tokens(settings)

    @torch.no_grad()
    def _favour_equal_tokens(self, settings: Settings) -> None:
        """Sets keys equal to queries, so that q.k is largest for equal tokens.

        The encoder's first two heads start by attending to the token before and the token after, the others away from
        the token itself, towards equal tokens elsewhere.
        """
        bias = self.t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        after = bias.shape[0] // 2  # buckets: 0 the token itself, i the i-th before, `after` + i the i-th after
        bias[1, 0] += settings.initial_bias
        bias[after + 1, 1] += settings.initial_bias
        bias[0, 2:] -= settings.initial_bias
        for name, module in self.t5.named_modules():
            if name.endswith("Attention"):
                nn.init.normal_(module.q.weight, std=settings.initial_query_key_std)
                module.k.weight.copy_(module.q.weight)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses "generation", "selection", "restated", "alignment", "segment" and "shared" (nats, scalars).

        "exact" is the share of targets that greedy decoding would write token for token.
        """
        ids_BT, real_BT, in_passage_BT = batch["input_ids"], batch["attention_mask"].bool(), batch["in_passage"]
        labels_BS = batch["labels"]
        output = self.t5(
            input_ids=ids_BT,
            attention_mask=batch["attention_mask"],
            labels=labels_BS,
            output_attentions=True,
            output_hidden_states=True,
        )
        terms, _ = span_losses(self.token_head(output.encoder_last_hidden_state), batch, in_passage_BT)
        segment = self.early_heads[0](output.encoder_hidden_states[1])[..., 0]
        shared = self.early_heads[1](output.encoder_hidden_states[2])[..., 0]
        other_BTT = (in_passage_BT[:, :, None] != in_passage_BT[:, None, :]) & real_BT[:, None, :]
        shared_BT = ((ids_BT[:, :, None] == ids_BT[:, None, :]) & other_BTT).any(-1)
        # Token s of the span is at first + s; </s> is not in the input.
        source_BS = batch["starts"][:, None] + torch.arange(labels_BS.shape[1])
        aligned_BS = labels_BS > _SPECIAL.index("</s>")
        weight_BST = output.cross_attentions[-1].mean(1)
        weight_BS = weight_BST.gather(-1, source_BS.clamp(max=ids_BT.shape[1] - 1)[..., None])[..., 0]
        right_BS = (output.logits.argmax(-1) == labels_BS) | (labels_BS == -100)
        return terms | {
            "generation": output.loss,
            "alignment": -weight_BS[aligned_BS].clamp(min=1e-6).log().sum() / aligned_BS.sum().clamp(min=1),
            "segment": F.binary_cross_entropy_with_logits(segment[real_BT], in_passage_BT[real_BT].float()),
            "shared": F.binary_cross_entropy_with_logits(shared[real_BT], shared_BT[real_BT].float()),
            "exact": right_BS.all(1).float().mean(),
        }

    def trained(self) -> T5ForConditionalGeneration:
        """The T5 in bf16."""
        return self.t5.bfloat16()
