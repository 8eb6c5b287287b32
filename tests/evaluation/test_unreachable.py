"""What is said of answers that a model can never give, with counts by hand."""

from dataclasses import dataclass

import pytest

from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.unreachable import unreachable


@dataclass
class Counted:
    """The part of `Features` that is asked for."""

    answer_tokens: list[int]
    rewritten: dict[str, str]

    @property
    def examples(self) -> int:
        return len(self.answer_tokens)


@pytest.mark.parametrize(("limit", "said"), [(2, "2 of 4"), (3, "1 of 4"), (8, "1 of 4"), (9, None)])
def test_questions_whose_shortest_answer_is_too_long_are_counted(limit, said):
    lines = unreachable(Counted([3, 9, 2, 0], {}), [("a",), ("b", "c"), ("d",), ()], Scorer(), limit, "eval.limit")
    if said is None:
        assert lines == []
    else:
        text = f"{said} questions have only answers of more than {limit} tokens, which are never given: "
        assert lines == [f"{text}raise eval.limit, up to 9 for the longest"]


def test_an_answer_cannot_be_written_where_what_comes_back_is_scored_as_wrong():
    rewritten = {
        "Mill!": "mill",
        "\u20ac 5": "5",
        "x \u20ac 5": "x 5",
        "caf\u00e9": "caf",
        "Le Caf\u00e9\u00bb": "le caf\u00e9",
    }
    golds = [
        ("Mill!",),  # right after normalisation
        ("x \u20ac 5",),
        ("\u20ac 5", "5"),  # the other gold can be written
        ("\u20ac 5", "caf\u00e9"),  # neither can be
        ("plain",),
        (),
        ("Le Caf\u00e9\u00bb",),  # right by MLQA's French rules only
    ]
    counted = Counted([1] * 6 + [0], rewritten)
    [squad] = unreachable(counted, golds, Scorer(), 30, "limit")
    assert squad.startswith("3 of 7 questions have only answers that the model's tokenizer cannot write, such as ")
    assert "such as '\u20ac 5', which comes back as '5': name a model" in squad
    [french] = unreachable(counted, golds, Scorer("mlqa fr"), 30, "limit")
    assert french.startswith("2 of 7 questions")
