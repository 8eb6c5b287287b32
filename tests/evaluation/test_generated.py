"""Generated token ids become the texts that the tokenizer makes of them; a question's most probable window wins."""

import copy
import math

import pytest
import torch

from swep_ds.data.batches import IGNORED
from swep_ds.evaluation.spans import GeneratedAnswers
from tests.evaluation.test_spans import best_probabilities, best_texts
from tests.support import tiny

TOKENIZER = tiny.wordpiece()
ASKED = [tiny.example("Who?", "an abbot of the valley", "an abbot", id_=name) for name in ("a", "b")]


def written(text: str) -> list[int]:
    return [*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.sep_token_id]


def decode(*windows: tuple, tokenizer=TOKENIZER) -> GeneratedAnswers:
    """From windows (example, token ids, their mean log probability, that of the empty answer)."""
    decoder = GeneratedAnswers(ASKED, tokenizer)
    for example, ids, *log_probabilities in windows:
        scores = [torch.tensor([value]) for value in log_probabilities]
        decoder.add({"example": [example]}, torch.tensor([[*ids, IGNORED]]), *scores)
    return decoder


def test_the_most_probable_window_wins_whatever_the_order():
    windows = [(1, written("the bridge"), -0.5), (0, written("an abbot"), -0.1), (1, written(""), -0.7)]
    windows.append((0, written("the river"), -0.2))
    # sums over whole sequences, where the scores are means over tokens
    expected = {"a": math.exp(-0.1 * len(windows[1][1])), "b": math.exp(-0.5 * len(windows[0][1]))}
    for order in (windows, windows[::-1]):
        decoder = decode(*order)
        assert best_texts(decoder) == {"a": "an abbot", "b": "the bridge"}
        assert best_probabilities(decoder) == pytest.approx(expected)
    equal = [(0, written(text), -0.1) for text in ("the river", "an abbot")]
    assert best_texts(decode(*equal)) == best_texts(decode(*equal[::-1])) == {"a": "an abbot"}


def test_a_window_that_writes_nothing_does_not_silence_another():
    silent = (0, [TOKENIZER.pad_token_id, TOKENIZER.sep_token_id], -0.01)
    assert best_texts(decode(silent)) == {"a": ""}
    assert best_texts(decode(silent, (0, written("abbot"), -3.0), silent)) == {"a": "abbot"}


def test_the_spaces_of_an_answer_stay_whatever_the_tokenizers_configuration_says():
    tokenizer = copy.deepcopy(tiny.unigram())
    tokenizer.clean_up_tokenization_spaces = True
    words = "It 's the holder ."
    ids = tokenizer(words, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) != words
    assert best_texts(decode((0, ids, -0.1), tokenizer=tokenizer)) == {"a": words}


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_window_whose_probability_is_not_a_number_never_wins(broken):
    windows = [(0, written("tea"), broken, broken), (0, written("abbot"), -0.5, -0.5)]
    for order in (windows, windows[::-1]):
        decoder = decode(*order)
        assert best_texts(decoder) == {"a": "abbot"}
        assert decoder.nulls()["a"].probability == 0
    alone = decode(windows[0])
    [answer], null = alone.n_best(1)["a"], alone.nulls()["a"]
    assert (answer.text, answer.probability) == ("tea", 0)
    assert all(map(math.isfinite, (answer.score, null.score, null.odds)))  # JSON has no other numbers


def test_the_window_that_finds_most_decides_whether_there_is_an_answer():
    for order in ((0.9, 0.25), (0.25, 0.9)):
        null = decode(*((0, written("an abbot"), -0.3, math.log(p)) for p in order)).nulls()["a"]
        assert (null.text, null.start) == ("", None)
        assert (null.score, null.probability, null.odds) == pytest.approx((math.log(0.25), 0.25, math.log(1 / 3)))
    assert math.isfinite(decode((0, written("an abbot"), -0.3, 0.0)).nulls()["a"].odds)
