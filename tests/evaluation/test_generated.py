"""Generated token ids become the texts that the tokenizer makes of them; a question's most probable window wins."""

import copy
import math

import pytest
import torch

from swep_ds.data.batches import IGNORED
from swep_ds.evaluation.generated import GeneratedAnswers
from tests.support import tiny
from tests.support.decoded import best_probabilities, best_texts

TOKENIZER = tiny.wordpiece()
ASKED = [tiny.example("Who?", "an abbot of the valley", "an abbot", id_=name) for name in ("a", "b")]


def written(*texts: str) -> torch.Tensor:
    rows = [[*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.sep_token_id] for text in texts]
    width = max(map(len, rows))
    return torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows])


def test_the_most_probable_window_wins_whatever_the_order():
    ids = written("the bridge", "an abbot", "", "the river")
    columns, scores = {"example": [1, 0, 1, 0]}, torch.tensor([-0.5, -0.1, -0.7, -0.2])
    # of whole sequences, where the scores are means over tokens
    expected = {"a": math.exp(-0.1 * (ids[1] != IGNORED).sum()), "b": math.exp(-0.5 * (ids[0] != IGNORED).sum())}
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        decoder = GeneratedAnswers(ASKED, TOKENIZER)
        for row in order:
            decoder.add({"example": [columns["example"][row]]}, ids[[row]], scores[[row]])
        assert best_texts(decoder) == {"a": "an abbot", "b": "the bridge"}
        assert best_probabilities(decoder) == pytest.approx(expected)


def test_a_window_that_writes_nothing_does_not_silence_another():
    decoder = GeneratedAnswers(ASKED, TOKENIZER)
    silent = torch.tensor([[TOKENIZER.pad_token_id, TOKENIZER.sep_token_id]])
    for ids, score, best in ((silent, -0.01, ""), (written("abbot"), -3.0, "abbot"), (silent, -0.01, "abbot")):
        decoder.add({"example": [0]}, ids, torch.tensor([score]))
        assert best_texts(decoder) == {"a": best}


def test_the_spaces_of_an_answer_stay_whatever_the_tokenizers_configuration_says():
    tokenizer = copy.deepcopy(tiny.unigram())
    tokenizer.clean_up_tokenization_spaces = True
    words = "It 's the holder ."
    ids = tokenizer(words, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) != words
    decoder = GeneratedAnswers(ASKED, tokenizer)
    decoder.add({"example": [0]}, torch.tensor([ids]), torch.tensor([-0.1]))
    assert best_texts(decoder) == {"a": words}


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_window_whose_probability_is_not_a_number_never_wins(broken):
    ids = written("tea", "abbot")
    for order in ([0, 1], [1, 0]):
        decoder = GeneratedAnswers(ASKED, TOKENIZER)
        for row in order:
            scores = torch.tensor([(broken, -0.5)[row]])
            decoder.add({"example": [0]}, ids[[row]], scores.half(), scores)
        assert best_texts(decoder) == {"a": "abbot"}
        assert decoder.nulls()["a"].probability == 0
    alone = GeneratedAnswers(ASKED, TOKENIZER)
    alone.add({"example": [0]}, ids[:1], torch.tensor([broken]), torch.tensor([broken]))
    [answer], null = alone.n_best(1)["a"], alone.nulls()["a"]
    assert (answer.text, answer.probability) == ("tea", 0)
    assert all(map(math.isfinite, (answer.score, null.score, null.odds)))  # JSON has no other numbers
