"""Places inside words, marked by hand in many scripts; and training answers that cut words or do not."""

import pytest

from swep_ds.data.example import Example
from swep_ds.evaluation.bounds import are_whole_words, bounds

CUTS = [  # "·" marks each place inside a word
    "p·a·i·d $1·,·6·2·5·.·5·0 i·n 1·9·9·0s, a·t 3., p·r·e-w·a·r O·b·a·m·a's C++ U.S. d·o·n't s·n·a·k·e_c·a·s·e",
    "İ·s·t·a·n·b·u·l'd·a k·ö·p·e·ğ·i e·\u0301·t·e·\u0301 D·o·n·a·u·s·c·h·i·f·f 4t·h B5·2 x² м·и·р",
    "ह·ि·न·्·द·ी म·ी·\u200d·ठ·ा م·ی·\u200c·ر·و·م ו·ל·י·ל·ד·י·ם ב-G·o·o·g·l·e",
    "\ufeffT·h·e \U0001f600\ufe0f a\u00a0\u0301b\u2003c·d",
    "中文字 １·９·４·５年 B·E·R·T模型 カタカナ ｶﾞ ภาษาไทย ខ្មែរ 서울에서 왔다 \u1100\u1161\u11a8\u1100\u1161 K·B·S는",
]


@pytest.mark.parametrize("marked", CUTS)
def test_a_place_between_two_letters_or_two_digits_is_inside_a_word(marked):
    first, *others = marked.split("·")
    expected = [True] * (len(first) + 1)
    for part in others:
        expected[-1] = False
        expected += [True] * len(part)
    assert bounds("".join((first, *others)))[1].tolist() == expected


def test_few_training_answers_that_cut_words_are_slips():
    spans = {"whole": (0, 3), "number": (9, 11), "begins": (1, 3), "ends": (4, 6), "none": None}
    made = {name: Example(name, "?", "one threes 55", (), span, "a") for name, span in spans.items()}
    assert are_whole_words([made["whole"]] * 49 + [made["begins"], made["none"]])
    for cuts in (["begins"] * 2, ["begins", "ends"], ["number"] * 2):
        assert not are_whole_words([made["whole"]] * 48 + [made[name] for name in cuts] + [made["none"]] * 50)
    assert are_whole_words([made["none"]])
