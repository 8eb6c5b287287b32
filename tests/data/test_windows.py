import copy
import json

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from swep_ds.data.features import windows_to_answer
from swep_ds.data.windows import TextTokens, WindowCutter, WindowSettings, named_tokens, separate_texts
from swep_ds.evaluation.evaluate import decode_alone
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings
from tests.evaluation.test_spans import best_texts
from tests.support import tiny


@pytest.mark.parametrize("begin", ["", "<s>"])
def test_a_decoders_question_ends_with_a_newline_that_is_saved(begin, tmp_path):
    tokenizer = tiny.decoder_bpe(begin)
    newline = tokenizer("\n", add_special_tokens=False).input_ids
    question, text = (tokenizer(part, add_special_tokens=False).input_ids for part in ("Who?", "an abbot"))
    first = [tokenizer.convert_tokens_to_ids(begin)] if begin else []
    assert tokenizer("Who?", "an abbot").input_ids == [*first, *question, *text]
    separate_texts(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    for there in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        pair = there("Who?", "an abbot")
        assert pair.input_ids == [*first, *question, *newline, *text]
        assert pair.sequence_ids() == [*[None] * len(first), *[0] * len(question), None, *[1] * len(text)]
        assert there("Who?").input_ids == [*first, *question]
        assert WindowCutter(there, WindowSettings()).template.middle.tolist() == newline
    for separated in (tokenizer, tiny.wordpiece(), tiny.byte_bpe(), tiny.unigram()):
        before = separated.backend_tokenizer.to_str()
        separate_texts(separated)
        assert separated.backend_tokenizer.to_str() == before


@pytest.mark.parametrize("make", tiny.TOKENIZERS.values())
def test_an_additional_special_token_marks_a_text_where_a_named_one_is_text(make):
    tokenizer = copy.deepcopy(make())
    text = f"an abbot <hl> {' '.join(tokenizer.all_special_tokens)} from the valley"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<hl>"]})
    ids = {*WindowCutter(tokenizer, WindowSettings()).encode(text).ids.tolist()}
    assert not ids & {*named_tokens(tokenizer).values()}
    assert tokenizer.convert_tokens_to_ids("<hl>") in ids


SPECIALS = ["<s>", "</s>", "<unk>", "<pad>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = sorted({*"".join(tiny.SENTENCES), *"VLAXY179$\u201c\u201d\u6a4b\u53e4\u2581"} - {" "})
TEMPLATE = processors.TemplateProcessing(
    "<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", SPECIALS.index("<s>")), ("</s>", SPECIALS.index("</s>"))]
)


def trained(model, trainer, steps, alphabet=LETTERS, specials=SPECIALS, **sizes) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.post_processor = TEMPLATE
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    trained_by = trainer(special_tokens=specials, initial_alphabet=alphabet, show_progress=False, **sizes)
    tokenizer.train_from_iterator(tiny.SENTENCES, trained_by)
    return tokenizer


def wordpiece(normalizer, pre_tokenizer) -> Tokenizer:
    steps = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    return trained(models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer, steps, vocab_size=200)


def byte_level(*before, prefix: bool, trimmed: bool = True) -> Tokenizer:
    steps = [*before, pre_tokenizers.ByteLevel(add_prefix_space=prefix)]
    roberta = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=trimmed, add_prefix_space=prefix)
    steps = {"pre_tokenizer": pre_tokenizers.Sequence(steps), "post_processor": roberta}
    return trained(models.BPE(), trainers.BpeTrainer, steps, pre_tokenizers.ByteLevel.alphabet(), vocab_size=330)


def sentencepiece_bpe(byte_fallback: bool = False, **steps) -> Tokenizer:
    model = models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True)
    if byte_fallback:
        return trained(model, trainers.BpeTrainer, steps, LETTERS[:40], SPECIALS + BYTES, vocab_size=400)
    return trained(model, trainers.BpeTrainer, steps, vocab_size=400)


def unigram(byte_fallback: bool = False, **steps) -> Tokenizer:
    tokenizer = trained(models.Unigram(), trainers.UnigramTrainer, steps, vocab_size=120, unk_token="<unk>")
    if byte_fallback:
        pieces = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
        tokenizer.model = models.Unigram([*pieces, *((byte, -20.0) for byte in BYTES)], 2, byte_fallback=True)
    return tokenizer


METASPACE = {scheme: pre_tokenizers.Metaspace(prepend_scheme=scheme) for scheme in ("always", "first", "never")}
LLAMA = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
T5 = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE["always"]])
KINDS = {
    "WordPiece": lambda: wordpiece(normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()),
    "WordPiece, cased": lambda: wordpiece(normalizers.NFC(), pre_tokenizers.Whitespace()),
    "byte-level": lambda: byte_level(prefix=False),
    "byte-level, prefix": lambda: byte_level(prefix=True),
    "byte-level, prefix, untrimmed": lambda: byte_level(prefix=True, trimmed=False),
    "byte-level, every word a prefix": lambda: byte_level(pre_tokenizers.Whitespace(), prefix=True),
    "byte-level, every digit a prefix": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), prefix=True),
    "SentencePiece BPE": lambda: sentencepiece_bpe(pre_tokenizer=METASPACE["always"]),
    "SentencePiece BPE, first": lambda: sentencepiece_bpe(pre_tokenizer=METASPACE["first"]),
    "SentencePiece BPE, never": lambda: sentencepiece_bpe(pre_tokenizer=METASPACE["never"]),
    "Llama's BPE": lambda: sentencepiece_bpe(byte_fallback=True, normalizer=LLAMA),
    "Unigram": lambda: unigram(normalizer=normalizers.NFKC(), pre_tokenizer=METASPACE["always"]),
    "Unigram, bytes": lambda: unigram(byte_fallback=True, pre_tokenizer=METASPACE["always"]),
    "T5's Unigram": lambda: unigram(pre_tokenizer=T5),
    # as T5's and XLM-R's, which read a joiner as a space
    "Unigram, joiners as spaces": lambda: unigram(normalizer=normalizers.Nmt(), pre_tokenizer=METASPACE["always"]),
}
MARKERS = [
    None,
    AddedToken("<e>", special=True, normalized=False),
    AddedToken("<e>", special=False, normalized=True),
    AddedToken("<e>", lstrip=True, normalized=False),
    AddedToken("<e>", rstrip=True, normalized=False),
]
# | stands for the marker, around the gold answer
MARKED = (
    "by |Vera Lind| in 1931",
    "by |A| .",
    "|Ann| and Bob",
    "in |1931| .",
    "was |\u00e9t\u00e9| x",
    "for |$5| !",
    "|\u201cHeroes\u201d| by",
    "by | Vera | in",
    "ab |\u6a4b\u53e4| was",
    "x |\U0001f600| y",
    "x\n|Vera\nLind|\n y",
    "a\u00a0|Vera|\u00a0b",
    "|e\u0301te\u0301| x",
    "1 |X| Y",
    "\u4e2d\u56fd\u3002|1998| \u5e74\uff0c\u4e0a\u6d77",  # Chinese
    "\u0648\u0647\u0648 \u064a\u0642\u062f\u0645 |\u0627\u0644\u0634\u0627\u064a|.",  # Arabic
    "\u092f\u0939\u093e\u0901 |\u091a\u093e\u092f| \u092e\u093f\u0932\u0924\u0940",  # Hindi
    "x |\u062e\u0627\u0646\u0647\u200c| \u0631\u0627",  # Persian, with a joiner at the end
    "x |Ve\u00adra\u00ad|, \u200ey",
    "\ufeff|Vera\u200d|\n",
)


@pytest.mark.parametrize(
    ("normalizer", "text", "words"),
    [
        (normalizers.BertNormalizer(lowercase=True), "\u0917\u0941\u0930\u0941 \u0939\u0948", None),  # Hindi
        (normalizers.NFC(), "the cafe\u0301 x", None),
        (normalizers.NFKC(), "\u1112\u1161\u11ab x", None),  # a Hangul syllable
        (normalizers.BertNormalizer(lowercase=True), "plain caf\u00e9, x", ["plain", "caf\u00e9", ",", "x"]),
        (normalizers.BertNormalizer(), "\u200fx\u200c\u200d \u200by\u00ad.", ["x\u200c\u200d", "y\u00ad", "."]),
        (normalizers.NFC(), "a.\u200cb", ["a", ".\u200c", "b"]),
    ],
)
def test_a_token_reaches_over_the_marks_that_its_tokenizer_leaves_out(normalizer, text, words):
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    whole = TextTokens.of(tokenizer.encode(text), text)
    assert [text[start:end] for start, end in zip(whole.starts, whole.ends, strict=True)] == (words or text.split())


def test_a_mark_that_its_tokenizer_writes_for_two_reads_both():
    """As ALBERT, XLNet, BigBird and FNet write quotation marks."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    tokenizer.normalizer = normalizers.Sequence([*quotes, normalizers.Replace(Regex("-+"), "-")])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = "by ``Emma'' -- ``'' ----"
    whole = TextTokens.of(tokenizer.encode(text), text)
    words = ["by", "``", "Emma", "''", "--", "``", "''", "----"]
    assert [text[start:end] for start, end in zip(whole.starts, whole.ends, strict=True)] == words


@pytest.mark.parametrize("answer", ["\u7530", "\U0001f44d\U0001f3fd", "$10"])
@pytest.mark.parametrize("kind", ["Unigram, bytes", "Llama's BPE"])
def test_byte_tokens_of_neighbouring_unknown_characters_are_told_apart(kind, answer):
    text = "x \U00020bb7\u7530\U00020bb7 y \U0001f44d\U0001f3fd\U0001f389 z $10\u00a0m"
    start = text.index(answer)
    tokens = TextTokens.of(KINDS[kind]().encode(text, add_special_tokens=False), text)
    first, last = tokens.answer_tokens((start, start + len(answer)))
    assert text[tokens.starts[first] : tokens.ends[last]] == answer


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_gold_answer_read_the_answer(kind):
    """Also after the decoder, which takes no token of white space alone for an answer's end."""
    trained = KINDS[kind]().to_str()
    for marker in MARKERS:
        backend, sign = Tokenizer.from_str(trained), ""
        if marker:
            backend.add_tokens([marker])
            sign = marker.content
        names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", **names)
        examples = []
        for number, marked in enumerate(MARKED):
            before, answer, after = marked.split("|")
            start = len(before + sign + answer) - len(answer.lstrip())
            text, answer = before + sign + answer + sign + after, answer.strip()
            examples.append(tiny.Example(str(number), "Who?", text, (answer,), (start, start + len(answer)), text))
        cutter = WindowCutter(tokenizer, WindowSettings(100, 50, 8))
        windows, _ = windows_to_answer(examples, cutter)
        places = []
        for row in np.argsort(-windows["length"].to_numpy(), kind="stable"):  # windows come longest first
            example, context = examples[windows["example"][row].as_py()], windows["context_begin"][row].as_py()
            places.append([context + token for token in cutter.encode(example.context).answer_tokens(example.span)])
        decoder = SpanDecoder(examples, SpanSettings(5, 60), best_only=True)
        width = int(windows["length"].to_numpy().max())
        logits = torch.nn.functional.one_hot(torch.tensor(places).T, width).float().unbind()
        decode_alone(lambda batch, logits=logits: logits, decoder, windows, tokenizer, 100)
        assert best_texts(decoder) == {example.id: example.answers[0] for example in examples}, marker


@pytest.mark.parametrize("kind", ["byte-level, prefix", "T5's Unigram"])
def test_a_tokenizer_that_samples_cuts_a_text_in_one_way_only(kind):
    backend = KINDS[kind]()
    still = backend.encode(tiny.SENTENCES[0], add_special_tokens=False).ids
    if isinstance(backend.model, models.BPE):
        backend.model.dropout = 0.5
    else:
        backend.model.alpha, backend.model.nbest_size = 0.1, 8
    backend.enable_truncation(3)
    backend.enable_padding(length=90)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")
    tokenizer.backend_tokenizer.model = backend.model
    cutters = [WindowCutter(tokenizer, WindowSettings()) for _ in range(10)]
    assert {tuple(cutter.encode(tiny.SENTENCES[0]).ids) for cutter in cutters} == {tuple(still)}
    assert len({tuple(cutter.template.middle) for cutter in cutters}) == 1
