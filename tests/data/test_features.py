"""Windows against the tokenizer's own encoding of a pair, and against the rules of BERT's run_squad as loops."""

import copy
import dataclasses
import resource
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import example as given_example
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from swep_ds.data import features as features_module
from swep_ds.data import windows as windows_module
from swep_ds.data.features import Features, build_features
from swep_ds.data.windows import WindowCutter, WindowSettings, context_windows
from tests.support import bad_input, tiny
from tests.support.bad_input import flipped
from tests.support.tiny import CONTEXT, EXAMPLES, SMALL, build, with_marks

UNSHRUNK = (Phase.explicit, Phase.generate)  # making a failing case smaller would take minutes
words = st.sampled_from([word for sentence in tiny.SENTENCES for word in sentence.split(" ")])
passages = st.lists(words | st.text(min_size=1, max_size=5), min_size=1, max_size=30).map(" ".join)


def tokens(kind, text):
    """Ids and character offsets without special tokens, from the tokenizer's public call."""
    options = {"return_offsets_mapping": True, "split_special_tokens": True}  # what a text spells out is text
    encoding = tiny.TOKENIZERS[kind]()(text, add_special_tokens=False, **options)
    return encoding["input_ids"], with_marks(text, encoding["offset_mapping"])


def begins_by_loop(count, room, step):
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + step)
    return begins


@given(count=st.integers(1, 80), room=st.integers(1, 40), step=st.integers(1, 40))
# the last window is short: what the windows before it do not have, and the edge of both, which is the earlier one's
@given_example(count=301, room=300, step=128)
@given_example(count=3, room=2, step=1)
@settings(deadline=None)
def test_context_windows_follow_the_rules(count, room, step):
    def owner_by_loop(position):
        """Index of the maximum-context window of a token."""
        scores = {}
        for index, (begin, end) in enumerate(bounds):
            if begin <= position < end:
                scores[index] = min(position - begin, end - 1 - position) + Fraction(end - begin, 100)
        return max(scores, key=scores.get)

    step = min(step, room)
    windows = context_windows(count, room, step)
    bounds = [(begin, min(begin + room, count)) for begin in begins_by_loop(count, room, step)]
    assert [(window.begin, window.end) for window in windows] == bounds
    owned = [[*range(window.own_begin, window.own_end)] for window in windows]
    by_rule = [owner_by_loop(position) for position in range(count)]
    assert owned == [[p for p, owner in enumerate(by_rule) if owner == index] for index in range(len(bounds))]


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
@given(question=passages, context=passages)
@given_example(question="Who?", context="an cafe\u0301 abbot")
@given_example(question="Who is [SEP]?", context="an [SEP] </s> <mask> abbot")
@settings(deadline=None, max_examples=25, phases=UNSHRUNK)
def test_a_pair_that_fits_is_encoded_as_by_the_tokenizer(kind, question, context):
    if not tokens(kind, context)[0]:
        return
    example = tiny.Example("q", question, context, ("x",), None, "a")
    features, (row,) = build([example], kind, WindowSettings(2000, 500, len(tokens(kind, question)[0])))
    assert features.questions_cut == 0
    tokenizer = tiny.TOKENIZERS[kind]()
    pair = tokenizer(question, context, return_offsets_mapping=True, split_special_tokens=True)
    specials = {*tokenizer.all_special_ids}  # which a Unigram model has among its pieces: in a text they are unknown
    text = [sequence is not None for sequence in pair.sequence_ids()]
    assert row["input_ids"] == [
        tokenizer.unk_token_id if of_text and token in specials else token
        for token, of_text in zip(pair["input_ids"], text, strict=True)
    ]
    assert ("token_type_ids" in row) == (kind != "byte_bpe")
    assert row.get("token_type_ids") == pair.get("token_type_ids")
    assert row["length"] == len(pair["input_ids"])
    inside = [i for i, sequence in enumerate(pair.sequence_ids()) if sequence == 1]
    assert [*range(row["context_begin"], row["context_end"])] == inside
    assert [*range(row["own_begin"], row["own_end"])] == inside
    offsets = with_marks(context, [pair["offset_mapping"][i] for i in inside])
    assert [*zip(row["offset_start"], row["offset_end"], strict=True)] == offsets


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
@pytest.mark.parametrize("sizes", [SMALL, WindowSettings(20, 100, 8), WindowSettings(80, 1, 8), WindowSettings()])
def test_windows_of_a_long_context(kind, sizes):
    features, rows = build(EXAMPLES, kind, sizes)
    tokenizer = tiny.TOKENIZERS[kind]()
    prefix, suffix = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    middle = suffix * 2 if kind == "byte_bpe" else suffix
    expected = []
    for index, example in enumerate(EXAMPLES):
        question = tokens(kind, example.question)[0][: sizes.max_query_length]
        ids, offsets = tokens(kind, example.context)
        room = sizes.max_length - len(prefix + middle + suffix) - len(question)
        at = len(prefix + question + middle)
        for begin, end, own_begin, own_end in context_windows(len(ids), room, min(sizes.doc_stride, room)):
            inputs = prefix + question + middle + ids[begin:end] + suffix
            row = {"input_ids": inputs, "length": len(inputs), "example": index, "null_position": 0}
            row |= {"context_begin": at, "context_end": at + end - begin}
            row |= {"own_begin": at + own_begin - begin, "own_end": at + own_end - begin}
            row["offset_start"], row["offset_end"] = (list(ends) for ends in zip(*offsets[begin:end], strict=True))
            expected.append(row)
    for row in rows:
        row.pop("token_type_ids", None)
    assert rows == expected
    assert max(row["length"] for row in rows) <= sizes.max_length
    cut = sum(len(tokens(kind, example.question)[0]) > sizes.max_query_length for example in EXAMPLES)
    assert (features.examples, features.questions_cut, features.windows_without_answer) == (len(EXAMPLES), cut, 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("template", "null"),
    [
        ("$A [SEP] $B:1 [SEP]:1 [CLS]:2", "[CLS]"),  # XLNet's stands last
        ("$A [SEP] $B:1 [CLS]:1 [SEP]:1", "[CLS]"),
        ("$A [SEP] $B:1 [SEP]:1", "the first token"),
    ],
)
def test_no_answer_is_at_cls_wherever_the_tokenizer_puts_it(template, null, training, tmp_path):
    tokenizer = copy.deepcopy(tiny.unigram())
    specials = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    processor = TemplateProcessing(single="$A", pair=template, special_tokens=specials)
    tokenizer.backend_tokenizer.post_processor = processor
    unanswerable = dataclasses.replace(EXAMPLES[0], answers=(), span=None)
    windows = build_features([unanswerable], tokenizer, SMALL, training=training, cache_dir=tmp_path).dataset
    assert len(windows) > 1
    for row in windows:
        for name in ("start_position", "end_position") if training else ("null_position",):
            token = tokenizer.convert_ids_to_tokens(row["input_ids"][row[name]])
            assert null == (token if row[name] else "the first token")


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
@given(data=st.data(), context=passages, max_length=st.integers(14, 60))
@settings(deadline=None, max_examples=25, phases=UNSHRUNK)
def test_answer_tokens_are_those_that_overlap_the_answer(kind, data, context, max_length):
    ids, offsets = tokens(kind, context)
    if not ids:
        return
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    example = tiny.Example("q", "When?", context, (context[start:end],), (start, end), "a")
    sizes = WindowSettings(max_length, 5, 8)
    _, windows = build([example], kind, sizes)
    features, rows = build([example], kind, sizes, training=True)
    # the first token that ends after the answer's start, the last that starts before its end
    first = min((i for i, (_, stop) in enumerate(offsets) if stop > start), default=len(ids))
    last = max((i for i, (begin, _) in enumerate(offsets) if begin < end), default=-1)
    room = windows[0]["context_end"] - windows[0]["context_begin"]
    expected = []
    for window, begin in zip(windows, begins_by_loop(len(ids), room, min(5, room)), strict=True):
        shift = window["context_begin"] - begin
        has_answer = window["context_begin"] <= first + shift <= last + shift < window["context_end"]
        places = (first + shift, last + shift) if has_answer else (0, 0)
        expected.append((window["input_ids"], *places, has_answer))
    names = ("input_ids", "start_position", "end_position", "has_answer")
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert features.windows_without_answer == sum(not row["has_answer"] for row in rows)


def test_windows_without_the_answer_can_be_dropped():
    kept, rows = build(EXAMPLES, "wordpiece", SMALL, training=True)
    dropped, fewer = build(EXAMPLES, "wordpiece", SMALL, training=True, windows_without_answer="drop")
    assert fewer == [row for row in rows if row["has_answer"]]
    assert dropped.windows_without_answer == kept.windows_without_answer == len(rows) - len(fewer) > 0
    # but for those of a question without an answer, which are what it teaches
    unanswerable = dataclasses.replace(EXAMPLES[0], answers=(), span=None)
    none, windows = build([unanswerable], "wordpiece", SMALL, training=True, windows_without_answer="drop")
    assert len(windows) == none.windows_without_answer > 1
    joined = Features.joined([dropped, none])
    assert list(joined.dataset) == fewer + windows
    assert (joined.examples, joined.questions_cut) == (len(EXAMPLES) + 1, dropped.questions_cut)
    assert joined.windows_without_answer == dropped.windows_without_answer + none.windows_without_answer
    assert len({dropped.fingerprint, none.fingerprint, joined.fingerprint}) == 3
    assert Features.joined([none]) is none


@pytest.mark.parametrize(
    ("example", "length", "said"),
    [
        (tiny.example("When?", CONTEXT, " ".join(tiny.SENTENCES[:3])), 24, "no window holds its whole answer"),
        (tiny.Example("empty", "When?", "\u200b", ("x",), (0, 1), "a"), 24, "finds no token in the context"),
        (EXAMPLES[0], 11, "raise max_length to at least 12,"),  # 3 special tokens and a question of at most 8
    ],
)
def test_what_leaves_no_window_is_refused(example, length, said):
    options = {"training": True, "windows_without_answer": "drop"}
    assert said in bad_input.refused(build, [example], "wordpiece", WindowSettings(length, 5, 8), **options)


GENERATIVE = WindowSettings(max_length=64, doc_stride=6, max_query_length=24, task="generative", max_target_length=5)


@pytest.mark.parametrize("name", tiny.TOKENIZERS)
def test_a_prompt_is_the_plain_text(name):
    """Token for token, spaces between its parts included, though each part is tokenised by itself."""
    tokenizer = tiny.TOKENIZERS[name]()
    answer = "an abbot of the north"  # more tokens than a target may have
    features, (row,) = build([tiny.example("Who founded it?", answer, answer)], name, GENERATIVE, training=True)
    text = f"question: Who founded it? context: {answer}"
    assert row["input_ids"] == tokenizer(text).input_ids
    if name == "byte_bpe":
        assert tokenizer.decode(row["input_ids"], skip_special_tokens=True) == text
    target = tokenizer(answer).input_ids
    assert len(target) > 5
    assert features.targets_cut == 1
    assert row["target_ids"] == target[:4] + target[-1:]
    unanswerable = dataclasses.replace(tiny.example("Who?", answer, answer), answers=(), span=None)
    features, (row,) = build([unanswerable], name, GENERATIVE, training=True)
    assert (row["target_ids"], features.targets_cut) == (tokenizer("").input_ids, 0)


GOLDS = [  # only a part of the first one's second answer is in its context
    dataclasses.replace(EXAMPLES[0], answers=("an abbot from the northern valley", "by an abbot")),
    dataclasses.replace(EXAMPLES[1], answers=("not  too small and not too big", "It is not too small; is it?")),
    dataclasses.replace(EXAMPLES[3], answers=(), span=None),
]


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_tokens_of_answers_are_counted_where_they_stand_in_the_context(kind):
    def count(example, answer):
        if answer not in example.context:
            return len(tokens(kind, answer)[0])
        begin = example.context.index(answer)
        end = begin + len(answer)
        return sum(stop > begin and start < end for start, stop in tokens(kind, example.context)[1])

    training, _ = build([*EXAMPLES, GOLDS[2]], kind, SMALL, training=True)
    assert training.answer_tokens == [*(count(example, example.answers[0]) for example in EXAMPLES), 0]
    assert training.rewritten == {}
    evaluation, _ = build(GOLDS, kind, SMALL)
    assert evaluation.answer_tokens[:2] == [min(count(gold, text) for text in gold.answers) for gold in GOLDS[:2]]
    assert evaluation.answer_tokens[2] == 0
    other, _ = build([*GOLDS[:2], dataclasses.replace(GOLDS[2], answers=("1998",))], kind, SMALL)
    assert other.answer_tokens[2] > 0
    assert other.fingerprint != evaluation.fingerprint
    joined = Features.joined([training, evaluation])
    assert joined.answer_tokens == training.answer_tokens + evaluation.answer_tokens


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
@pytest.mark.parametrize("training", [True, False])
def test_answers_that_do_not_come_back_from_the_tokenizer_are_kept_with_what_does(kind, training):
    tokenizer = tiny.TOKENIZERS[kind]()
    texts = [
        "an abbot",
        "ABBOT",
        "It's",
        "5 \u20ac",
        "caf\u00e9",
        "10 mg",
        "p < 0.05",
        "{x}",
        "\uff11",
        "sm\u00f8rrebr\u00f8d </s>",
    ]
    context = " ".join([*tiny.SENTENCES, *texts])
    examples = [tiny.example("Which?", context, text, str(number)) for number, text in enumerate(texts + texts)]
    sizes = dataclasses.replace(GENERATIVE, max_length=400)
    features, _ = build(examples, kind, sizes, training=training)
    written = {text: tokenizer(text, split_special_tokens=True).input_ids for text in texts}
    assert features.answer_tokens == [len(written[text]) for text in texts + texts]
    back = {text: tokenizer.decode(ids, skip_special_tokens=True).strip() for text, ids in written.items()}
    assert features.rewritten == {text: back[text] for text in texts if back[text] != text}
    if kind == "unigram":  # joined
        assert Features.joined([features, features]).rewritten == features.rewritten
        assert features.rewritten["\uff11"] == "1"
    if kind == "byte_bpe":
        assert features.rewritten == {}


def test_only_prompts_with_the_answer_are_learned():
    """They have every token that overlaps it, though a space is put in front of the context."""
    tokenizer = tiny.byte_bpe()
    settings = dataclasses.replace(GENERATIVE, max_query_length=1, doc_stride=1, max_length=30)
    for answer in ("An abbot!", "old", "!", "river."):
        examples = [tiny.example("?", "An abbot! An old bridge over the river.", answer)]
        training, learned = build(examples, "byte_bpe", settings, training=True)
        _, windows = build(examples, "byte_bpe", settings)
        assert len(learned) + training.windows_without_answer == len(windows) > training.windows_without_answer > 0
        contexts = {tuple(row["input_ids"]): tokenizer.decode(row["input_ids"]).split("context:")[1] for row in windows}
        assert {tuple(row["input_ids"]) for row in learned} == {ids for ids, text in contexts.items() if answer in text}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("task", ["extractive", "generative"])
def test_windows_are_made_and_written_in_parts_of_bounded_size(training, task, monkeypatch, tmp_path):
    long = " ".join(tiny.SENTENCES * 60)
    examples = [tiny.example(f"When was it {i}?", long[i % 2 : 2000], "1998", str(i)) for i in range(4)]
    examples.insert(2, tiny.example("Who?" * 100, tiny.SENTENCES[0], "an abbot"))
    sizes = WindowSettings(max_length=60, doc_stride=20, max_query_length=20, task=task)

    def windows(folder: Path):
        built = build_features(examples, tiny.byte_bpe(), sizes, training=training, cache_dir=folder)
        (file,) = folder.glob("*.arrow")
        return list(built.dataset), [batch.num_rows for batch in pa.ipc.open_stream(file.read_bytes())]

    expected, written = windows(tmp_path / "at once")
    assert written == [len(expected)]
    monkeypatch.setattr(windows_module, "EXAMPLES_AT_A_TIME", 3)
    monkeypatch.setattr(features_module, "ROWS_AT_A_TIME", 5)
    rows, written = windows(tmp_path / "in parts")
    assert rows == expected
    assert max(written) == 5 < len(rows)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A filled cache; `again` reads it and tells whether it tokenised."""
    tokenised = []
    tokenise = WindowCutter.tokenise
    monkeypatch.setattr(WindowCutter, "tokenise", lambda *args: tokenised.append(1) or tokenise(*args))
    setup = {"examples": EXAMPLES, "tokenizer": tiny.wordpiece(), "settings": SMALL, "training": True}

    def again(**changes):
        tokenised.clear()
        features = build_features(**setup | changes, cache_dir=tmp_path / "new" / "cache")
        return features, bool(tokenised)

    first, fresh = again()
    assert fresh
    return first, again, tmp_path / "new" / "cache"


def test_the_cache_is_used_when_nothing_changed_and_made_again_when_it_is_incomplete_or_damaged(cached, caplog):
    """As a copy that was stopped, a build that was killed between its two files, and a bit that has changed."""
    first, again, folder = cached
    assert first.windows_without_answer > 0
    rows = list(first.dataset)
    [windows], [facts] = folder.glob("*.arrow"), folder.glob("*.json")
    damaged = [(windows, windows.read_bytes()[:-50]), (facts, None), (facts, b""), (windows, None)]
    for file in (windows, facts):
        bits = np.random.default_rng(0).choice(8 * file.stat().st_size, 6, replace=False)
        damaged += [(file, flipped(file.read_bytes(), int(bit))) for bit in bits]
    for file, content in ((windows, windows.read_bytes()), *damaged):
        whole = file.read_bytes()
        caplog.clear()
        file.unlink() if content is None else file.write_bytes(content)
        assert again()[1] == (content != whole)
        assert file.read_bytes() == whole
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (content != whole and (file, content) != (facts, None))
        assert all(text.startswith(f"{windows}: tokenised again (") and file.name in text for text in said)
        second, fresh = again()
        assert not fresh
        assert list(second.dataset) == rows
        assert dataclasses.replace(first, dataset=None) == dataclasses.replace(second, dataset=None)
    # answers for scoring are not part of a window
    assert not again(examples=[dataclasses.replace(e, id=f"{e.id}x", answers=("y",)) for e in EXAMPLES])[1]


def test_cache_notices_changes(cached):
    _, again, _ = cached
    changes = [{"training": False}, {"windows_without_answer": "drop"}, {"tokenizer": tiny.unigram()}]
    for field, value in {"max_length": 25, "doc_stride": 6, "max_query_length": 7}.items():
        changes.append({"settings": dataclasses.replace(SMALL, **{field: value})})
    for target in (5, 6):
        changes.append({"settings": dataclasses.replace(SMALL, task="generative", max_target_length=target)})
    typeless = copy.deepcopy(tiny.wordpiece())
    typeless.model_input_names = ["input_ids", "attention_mask"]
    changes.append({"tokenizer": typeless})
    changes += [{"examples": EXAMPLES[:3]}, {"examples": EXAMPLES[::-1]}]
    for context in (CONTEXT, EXAMPLES[1].context):  # both came before
        changes.append({"examples": [*EXAMPLES, dataclasses.replace(EXAMPLES[3], context=context, span=(2, 5))]})
    for field, value in {"question": "where?", "context": CONTEXT + " ", "span": (0, 3)}.items():
        changes.append({"examples": [*EXAMPLES[:3], dataclasses.replace(EXAMPLES[3], **{field: value})]})
    for change in changes:
        assert again(**change)[1], change
        assert not again(**change)[1], change


def test_a_build_that_fails_leaves_nothing(cached, monkeypatch, tmp_path):
    _, again, folder = cached
    before = sorted(folder.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # bytes in a file: writing more fails
    try:
        assert f"{folder}: tokenised windows cannot be written" in bad_input.refused(again, training=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr(features_module, "_inputs", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        again(training=False)
    assert sorted(folder.iterdir()) == before
