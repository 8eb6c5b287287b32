"""Where the training answer stands: offsets that are wrong in the ways of published files, and texts without offsets in
many languages."""

import functools

import pytest

from swep_ds.data.choices import STRICT, Choices, LeftOut
from swep_ds.data.places import find_answer, occurs_as_words, training_place
from swep_ds.data.readers import read_examples
from tests.support.bad_input import refused
from tests.support.qa_files import lines
from tests.support.qa_files import refused as refused_source

FIND = Choices(misplaced_answers="find")
DROP = Choices(misplaced_answers="drop")


@pytest.mark.parametrize(
    ("context", "text", "begin"),
    [
        ("parties of art", "art", 11),
        ("the U.S. and U.S.", "the U.S.", 0),
        ("5 and 50 °C", "5", 0),
        ("上海市在中国", "中国", 4),  # no spaces between words
        ("in 1998年", "1998", 3),  # a script with spaces beside one without
        ("tea", " tea ", 0),
        ("un cafe\u0301 noir", "cafe\u0301", 3),  # a combining accent
        ("วันที่1998", "1998", 6),
        ("\u30c6\u30ec\u30d3\u3092\u898b\u308b", "\u30c6\u30ec\u30d3", 0),  # kana
        # a word with a particle, a prefix or an ending is as good as none
        ("김민수는 1931년에 방앗간을 세웠다.", "1931년", 5),
        ("Değirmeni kuran kişi bir doktordur.", "doktor", 25),
        ("הטחנה נבנתה בחיפה בשנת 1931.", "חיפה", 13),
        ("Mylly rakennettiin Turussa.", "Turu", 19),
        ("tea_pot", "tea", 0),
        ("un cafe\u0301 noir", "cafe", 3),
        ("\u0915\u0930\u093e\u091a\u0940", "\u0915\u0930", 0),  # before a vowel sign of Devanagari
        # a whole word, and else a word's begin, is better than another place
        ("doktorlar bir doktor", "doktor", 14),
        ("the seaport and its ports", "port", 20),
        ("\u0915\u0930\u093e \u0915\u0930", "\u0915\u0930", 4),  # not before a vowel sign
        ("parties", "art", 1),
        # and else nothing tells places apart
        ("tea or tea", "tea", "the answer 'tea' occurs 2 times in its context, at [0, 7]; give its answer_start"),
        ("aa aa aa", "aa aa", "occurs 2 times"),
        ("서울은 크다. 수도 서울 밖에", "서울", "occurs 2 times in its context, at [0, 11]"),
        ("בחיפה ליד חיפה", "חיפה", "occurs 2 times in its context, at [1, 10]"),
        ("Tea", "tea", "the answer 'tea' does not occur in its context; correct it"),
    ],
)
def test_a_whole_word_is_a_preference_and_no_condition(context, text, begin):
    if isinstance(begin, int):
        assert find_answer(context, text)[:2] == (begin, begin + len(text.strip()))
    else:
        assert begin in refused(find_answer, context, text)


def test_a_place_that_the_preference_chose_is_doubtful():
    assert find_answer("parties of art", "art").remark.startswith("the answer also occurs inside other words")
    assert find_answer("parties", "art").remark == "the answer occurs only inside a longer word"
    for context, text in (("doktordur", "doktor"), ("김민수는", "김민수"), ("art", "art"), ("בחיפה", "חיפה")):
        assert not find_answer(context, text).remark


def test_a_repeated_answer_gets_its_first_place_or_is_left_out(save):
    asked = {"question": "Who?", "context": "Annika met Ann, and Ann left."}
    rows = [asked | {"answers": [" Ann ", "met"]}, asked | {"answer": "", "id": "none"}, asked | {"answer": "Annika"}]
    source = save(rows)
    read = functools.partial(read_examples, source, training=True)
    whole = [(11, 14), None, (0, 6)]
    for choice, spans, end in (("first", whole, "first place"), ("drop", whole[1:], "left out")):
        remarks = []
        examples = read(choices=Choices("train", choice), remark=remarks.append)
        assert [example.span for example in examples] == spans
        assert [(remark.id, remark.left_out) for remark in remarks] == [("data-0", choice == "drop")]
        assert f"{end} (data.repeated_answers)" in remarks[0].reason
    assert "the answer 'Ann' occurs 2 times in its context, at [11, 20]; give" in refused_source(source)
    assert len(read_examples(source, training=False, choices=Choices("train"))) == 3  # tests need no place


CONTEXT = "🏺 Ada  Brook built the Mill in 1931. The mill burnt in 1977, and Brook left in 1977."


@pytest.mark.parametrize(
    ("pairs", "trained", "reason"),
    [
        # at its offset but for case or white space, although the same letters stand elsewhere, too
        ([("Ada Brook", 2)], None, ""),
        ([("the mill", 19)], "the Mill", "differs in case or white space"),
        ([("built", 14)], "built", "counts UTF-16 units: converted"),
        ([("1977", 40), ("1931", 31)], "1931", "another of its answers is trained on"),
        ([("1977", 54)], "1977", "the one place that is close to it"),  # it also stands elsewhere
        ([("1977", 54), ("1931", 31)], "1931", "another of its answers is trained on"),
        ([("1931", 20)], "1931", "the only place where its text occurs"),
        ([("in 1850", -1), ("1931", -1)], "1931", "the only place where its text occurs"),
        ([("1977", 40)], None, ""),  # twice in the context
        ([("1931", -5)], "1931", "the only place where its text occurs"),
        ([("1931", "1.5")], "1931", "the only place where its text occurs"),
        ([("Otto", 5)], None, ""),
        ([("Otto", None)], None, ""),
    ],
)
def test_misplaced_answers_are_refused_found_or_left_out(pairs, trained, reason):
    said = refused(training_place, {}, CONTEXT, pairs, STRICT)
    assert "set data.misplaced_answers" in said
    assert said.endswith("to find or drop") == bool(trained)
    assert ("UTF-16" in said) == ("UTF-16" in reason)
    with pytest.raises(LeftOut, match=r"left out \(data\.misplaced_answers\)"):
        training_place({}, CONTEXT, pairs, DROP)
    if trained:
        begin, end, remark = training_place({}, CONTEXT, pairs, FIND)
        assert CONTEXT[begin:end] == trained
        assert reason in remark
    else:
        with pytest.raises(LeftOut, match="not just once elsewhere in the context: left out"):
            training_place({}, CONTEXT, pairs, FIND)


def test_an_offset_of_minus_one_is_not_known():
    """As many converters write it. The text must then stand in the context once."""
    for start in (-1, "-1", -1.0):
        assert training_place({}, CONTEXT, [("1931", start)], STRICT)[:2] == (31, 35)
        assert "occurs 2 times" in refused(training_place, {}, CONTEXT, [("1977", start)], STRICT)


def test_misplaced_answers_of_mrqa():
    row = {"detected_answers": [{"text": "Mill", "char_spans": [[0, 3]]}]}
    assert "set data.misplaced_answers to drop" in refused(training_place, row, CONTEXT, [], STRICT)
    for choices in (FIND, DROP):
        with pytest.raises(LeftOut):
            training_place(row, CONTEXT, [], choices)


def test_all_misplaced_answers_are_counted_and_named(save):
    """More than a message names."""
    row = {"question": "Who?", "context": CONTEXT}
    wrong = [row | {"id": f"q{n}", "answers": {"text": ["1931"], "answer_start": [1]}} for n in range(150)]
    source = save(lines([row | {"id": "right", "answer": "1931"}, *wrong]))
    assert "; 149 more of this file's questions have faults: 'q1', 'q2'" in refused_source(source, longest=2000)
    for choices, kept in ((FIND, 151), (DROP, 1)):
        remarks = []
        assert len(read_examples(source, training=True, choices=choices, remark=remarks.append)) == kept
        assert [remark.id for remark in remarks] == [f"q{n}" for n in range(150)]
        assert all(remark.left_out == (choices == DROP) for remark in remarks)


def test_golds_that_no_extracted_answer_equals_are_doubtful_in_tests(save):
    assert occurs_as_words("Ada Brook", "ada")
    assert occurs_as_words("doktordur", "doktor")
    assert occurs_as_words("Brooks", "rooks")
    assert not occurs_as_words("Brooks", "rook")  # half a word
    asked = {"question": "Who?", "context": "Ada Brook built it."}
    rows = [asked | {"answers": given} for given in (["Ada", "She"], ["No idea"], ["a Broo"], ["Ada#Its builder"])]
    remarks = []
    examples = read_examples(save(rows), training=False, remark=remarks.append)
    assert len(examples) == 4
    assert [remark.id for remark in remarks] == ["data-1", "data-2", "data-3"]
    assert "no accepted answer occurs in the context as words" in remarks[0].reason
