"""Tiny fast tokenizers of the three kinds in use, made from a few sentences, and examples to feed them.

They are the same in every process, although the tokenizers library breaks ties by the order of a hash table.
"""

import copy
import functools
import json
from collections import Counter
from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from swep_ds.data.example import Example

SENTENCES = (
    "The monastery was founded in 1204 by an abbot from the northern valley.",
    "Who founded the monastery? When was the old bridge over the river built?",
    "It's a very nice holder - not too big and not too small; I'd buy it again!",
    "Zürich's café, opened in 1998, serves \u201csmørrebrød\u201d and tea for 5 \u20ac.",
    "Patients with type 2 diabetes received 10 mg of the drug twice daily (p < 0.05).",
)


@functools.cache
def wordpiece() -> PreTrainedTokenizerFast:
    """Like BERT's: lower-cased WordPiece, [CLS] question [SEP] context [SEP], two token types."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter()
    for sentence in SENTENCES:
        words.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(sentence)))
    splits = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in words}
    vocabulary = [*special, *sorted({piece for split in splits.values() for piece in split})]
    while len(vocabulary) < 200:  # WordPiece training: the most frequent pair becomes a piece
        pairs = Counter()
        for word, split in splits.items():
            pairs.update(dict.fromkeys(pairwise(split), words[word]))
        first, second = min(pairs, key=lambda pair: (-pairs[pair], pair))
        vocabulary.append(first + second.removeprefix("##"))
        for split in splits.values():
            for i in range(len(split) - 1, 0, -1):
                if split[i - 1 : i + 1] == [first, second]:
                    split[i - 1 : i + 1] = [vocabulary[-1]]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    return _wrap(tokenizer, *special)


@functools.cache
def byte_bpe() -> PreTrainedTokenizerFast:
    """Like RoBERTa's: byte-level BPE, <s> question </s></s> context </s>, no token types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )


def decoder_bpe(begin: str = "") -> PreTrainedTokenizerFast:
    """Like a decoder's: no token between or after two texts, padding on the left; `begin` before the first one."""
    backend = copy.deepcopy(byte_bpe().backend_tokenizer)
    specials = [(begin, backend.token_to_id(begin))] if begin else []
    single = f"{begin} $A".strip()
    backend.post_processor = processors.TemplateProcessing(single, f"{single} $B:1", specials)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", padding_side="left")


@functools.cache
def unigram() -> PreTrainedTokenizerFast:
    """Like ALBERT's and DeBERTa-v2's: Unigram whose tokens begin with the space before the word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="[UNK]")
    tokenizer.train_from_iterator(SENTENCES, trainer)
    learned = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted((-round(score, 2), piece) for piece, score in learned[len(special) :])
    vocabulary = [(piece, 0.0) for piece in special] + [(piece, -cost) for cost, piece in pieces]
    tokenizer.model = models.Unigram(vocabulary, unk_id=special.index("[UNK]"))
    return _wrap(tokenizer, *special)


TOKENIZERS = {"wordpiece": wordpiece, "byte_bpe": byte_bpe, "unigram": unigram}


def _wrap(tokenizer: Tokenizer, pad: str, unk: str, cls: str, sep: str, mask: str) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unk,
        cls_token=cls,
        sep_token=sep,
        mask_token=mask,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def example(question: str, context: str, answer: str, id_: str = "q", article: str = "article") -> Example:
    """The answer's span is its first occurrence in the context."""
    start = context.index(answer)
    return Example(id_, question, context, (answer,), (start, start + len(answer)), article)
