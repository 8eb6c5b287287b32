"""Which texts are the same answer, and where the training answer is. Hand-written lines of MRQA's kinds."""

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.answers import mrqa_span


def detected(text, spans):
    return [{"text": text, "char_spans": spans}]


@pytest.mark.parametrize(
    ("context", "written", "text"),
    [
        ("In the annual boat race", "annual boat race", "The annual boat race"),  # an article less
        ("It is a boat race.", "a boat race", "boat race"),  # an article more
        ("Black earth (terra preta) is dark", "Black earth (terra preta", "Black earth (terra preta)"),
        ("We saw the IFN) signature", "IFN) signature", "IFN signature"),
        ("autosomal-dominant forms", "autosomal-dominant", "autosomal dominant"),  # as one word, and as two
        ("Diamond Blackfan anemia", "Diamond Blackfan anemia", "diamond-blackfan Anemia"),
        ("Written in 19 98 .", "19 98", "1998"),  # tokens with blanks between them
        ("The Who played", "The Who", "the who"),
        ("Grade A , the best", "A", "a"),  # an article and nothing else: compared without normalisation
        ("What ?!", "?!", "? !"),
    ],
)
def test_articles_punctuation_case_and_white_space_make_no_other_answer(context, written, text):
    start = context.index(written)
    span = mrqa_span(context, detected(text, [[start, start + len(written) - 1]]))
    assert context[slice(*span)] == written  # as the file has it


@pytest.mark.parametrize(
    ("written", "text"),
    [("the", "a"), ("?", "!"), ("...", "the"), ("?", ""), ("the boat", "the boats"), ("a boat", "a")],
)
def test_other_answers(written, text):
    with pytest.raises(InputError, match=r"is not at char_spans \[0, \d+\] of its context"):
        mrqa_span(f"{written} and more", detected(text, [[0, len(written) - 1]]))
