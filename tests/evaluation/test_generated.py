"""Generated token ids become the texts that the tokenizer makes of them; a question's most probable window wins."""

import copy
import math

import pytest
import torch

from swep_ds.data.batches import IGNORED
from swep_ds.evaluation.generated import GeneratedAnswers
from tests.support import tiny
from tests.support.decoded import best_probabilities, best_texts


def test_the_most_probable_window_wins_whatever_the_order():
    tokenizer = tiny.wordpiece()
    examples = [tiny.example("Who?", "an abbot of the valley", "an abbot", id_=name) for name in ("a", "b")]
    texts = ["the bridge", "an abbot", "", "the river"]
    rows = [[*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.sep_token_id] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows])
    columns, scores = {"example": [1, 0, 1, 0]}, torch.tensor([-0.5, -0.1, -0.7, -0.2])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        decoder = GeneratedAnswers(examples, tokenizer)
        for row in order:
            decoder.add({"example": [columns["example"][row]]}, ids[[row]], scores[[row]])
        assert best_texts(decoder) == {"a": "an abbot", "b": "the bridge"}
        # of whole sequences, where the scores are means over tokens
        lengths = {"a": len(rows[1]), "b": len(rows[0])}
        expected = {"a": math.exp(-0.1 * lengths["a"]), "b": math.exp(-0.5 * lengths["b"])}
        assert best_probabilities(decoder) == pytest.approx(expected)


def test_a_window_that_writes_nothing_does_not_silence_another():
    tokenizer, asked = tiny.wordpiece(), [tiny.example("Who?", "an abbot", "an abbot", id_="a")]
    end, blank = tokenizer.sep_token_id, tokenizer.pad_token_id
    silent, word = [blank, end], [*tokenizer("abbot", add_special_tokens=False).input_ids, end]
    decoder = GeneratedAnswers(asked, tokenizer)
    for row, score, best in ((silent, -0.01, ""), (word, -3.0, "abbot"), (silent, -0.01, "abbot")):
        decoder.add({"example": [0]}, torch.tensor([row]), torch.tensor([score]))
        assert best_texts(decoder) == {"a": best}


def test_the_spaces_of_an_answer_stay_whatever_the_tokenizers_configuration_says():
    tokenizer = copy.deepcopy(tiny.unigram())
    tokenizer.clean_up_tokenization_spaces = True
    words = "It 's the holder ."
    ids = tokenizer(words, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) != words
    decoder = GeneratedAnswers([tiny.example("Who?", "an abbot", "an abbot", id_="a")], tokenizer)
    decoder.add({"example": [0]}, torch.tensor([ids]), torch.tensor([-0.1]))
    assert best_texts(decoder) == {"a": words}


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_window_whose_probability_is_not_a_number_never_wins(broken):
    tokenizer, asked = tiny.wordpiece(), [tiny.example("Who?", "an abbot", "an abbot", id_="a")]
    end = tokenizer.sep_token_id
    rows = [[*tokenizer(text, add_special_tokens=False).input_ids, end] for text in ("tea", "abbot")]
    for order in ([0, 1], [1, 0]):
        decoder = GeneratedAnswers(asked, tokenizer)
        for row in order:
            scores = torch.tensor([(broken, -0.5)[row]])
            decoder.add({"example": [0]}, torch.tensor([rows[row]]), scores.half(), scores)
        assert best_texts(decoder) == {"a": "abbot"}
        assert decoder.nulls()["a"].probability == 0
    alone = GeneratedAnswers(asked, tokenizer)
    alone.add({"example": [0]}, torch.tensor([rows[0]]), torch.tensor([broken]), torch.tensor([broken]))
    [answer], null = alone.n_best(1)["a"], alone.nulls()["a"]
    assert (answer.text, answer.probability) == ("tea", 0)
    assert all(map(math.isfinite, (answer.score, *null)))  # JSON has no other numbers
