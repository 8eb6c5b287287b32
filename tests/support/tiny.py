"""Tiny fast tokenizers of the three kinds in use, made from a few sentences, and examples to feed them.

They are the same in every process, although the tokenizers library breaks ties by the order of a hash table.
"""

import copy
import functools
import json
import tempfile
import unicodedata
from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from swep_ds.data.example import Example
from swep_ds.data.features import Features, build_features
from swep_ds.data.windows import WindowSettings

SENTENCES = (
    "The monastery was founded in 1204 by an abbot from the northern valley.",
    "Who founded the monastery? When was the old bridge over the river built?",
    "It's a very nice holder - not too big and not too small; I'd buy it again!",
    "Zürich's café, opened in 1998, serves \u201csmørrebrød\u201d and tea for 5 \u20ac.",
    "Patients with type 2 diabetes received 10 mg of the drug twice daily (p < 0.05).",
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@functools.cache
def wordpiece() -> PreTrainedTokenizerFast:
    """Like BERT's: lower-cased WordPiece, [CLS] question [SEP] context [SEP], two token types."""
    normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter()
    for sentence in SENTENCES:
        words.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(sentence)))
    splits = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in words}
    vocabulary = [*SPECIAL, *sorted({piece for split in splits.values() for piece in split})]
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
    return _wrap(tokenizer)


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
    names = dict.fromkeys(("bos_token", "cls_token"), "<s>") | dict.fromkeys(("eos_token", "sep_token"), "</s>")
    names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    names["model_input_names"] = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


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
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=SPECIAL, unk_token="[UNK]")
    tokenizer.train_from_iterator(SENTENCES, trainer)
    learned = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted((-round(score, 2), piece) for piece, score in learned[len(SPECIAL) :])
    vocabulary = [(piece, 0.0) for piece in SPECIAL] + [(piece, -cost) for cost, piece in pieces]
    tokenizer.model = models.Unigram(vocabulary, unk_id=SPECIAL.index("[UNK]"))
    return _wrap(tokenizer)


TOKENIZERS = {"wordpiece": wordpiece, "byte_bpe": byte_bpe, "unigram": unigram}


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    template = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    tokenizer.post_processor = template
    names = {f"{token.lower().strip('[]')}_token": token for token in SPECIAL}
    names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def example(question: str, context: str, answer: str, id_: str = "q", article: str = "article") -> Example:
    """The answer's span is its first occurrence in the context."""
    start = context.index(answer)
    return Example(id_, question, context, (answer,), (start, start + len(answer)), article)


# Questions of several kinds, and sizes that cut their contexts into many windows
SMALL = WindowSettings(max_length=24, doc_stride=5, max_query_length=8)
CONTEXT = " ".join(SENTENCES)
EXAMPLES = [
    example("Who founded the monastery?", CONTEXT, "an abbot from the northern valley", "q1"),
    example("Too big?", "  Not\u00a0too BIG;\n\nnot too small \U0001f600!", "not too small", "q2"),
    example("Which dose of which drug did the patients receive, and how often?", CONTEXT, "10 mg", "q3"),
    example("When?", CONTEXT, "1998", "q4"),
]


def build(examples, kind: str, sizes: WindowSettings, **options) -> tuple[Features, list[dict]]:
    """Features and their rows, through a new cache."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"training": False, "cache_dir": Path(folder)} | options
        features = build_features(examples, TOKENIZERS[kind](), sizes, **options)
        return features, list(features.dataset)


def with_marks(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each token takes in the combining marks and format characters that follow it and that no token covers, and the
    format characters with which the next token begins, if that has more."""
    moved = []
    for (start, end), (limit, _) in pairwise([*offsets, (len(text), 0)]):
        marks = takewhile(is_mark, text[end : max(end, limit)])
        moved.append((start, end + len(list(marks))))
    for number in range(1, len(moved)):
        before, (start, end) = moved[number - 1], moved[number]
        if before[1] == start > 0:
            taken = len(list(takewhile(is_format, text[start : end - 1])))
            moved[number - 1], moved[number] = (before[0], start + taken), (start + taken, end)
    return moved


def is_mark(character: str) -> bool:
    """A combining mark, a voicing mark of half-width kana, a vowel or end of a Hangul syllable, a format character."""
    code = ord(character)
    is_combining = unicodedata.category(character)[0] == "M"
    return is_combining or is_format(character) or code in (0xFF9E, 0xFF9F) or 0x1160 <= code <= 0x11FF


def is_format(character: str) -> bool:
    return unicodedata.category(character) == "Cf"
