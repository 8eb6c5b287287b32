"""Samples of questions: windows, seeds, counts, and paragraphs that the readers take.

The masked language model is a table of logits by input token: its predictions do not depend on the rounding of a batch.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.methods.ssmba_samples import corruption
from swep_ds.methods.ssmba_samples.corruption import splice
from swep_ds.methods.ssmba_samples.reconstruct import AugmentSettings, Reconstructor
from tests.support import tiny, tiny_masked_lm

TEXT = " ".join(tiny.SENTENCES[:3])
LONG = " ".join([TEXT] * 6)
EXAMPLES = [
    tiny.example(tiny.SENTENCES[1], TEXT, "northern valley", "a", "first"),
    tiny.example("Who  founded it?", TEXT, "abbot", "b", "first"),  # the same paragraph
    tiny.example("Big or small?", LONG, "not too big", "c", "second"),  # longer than the model takes
    Example("d", LONG, LONG, ("small",), (LONG.rindex("small"), LONG.rindex("small") + 5), "second"),
    tiny.example("Was it?", "It was.", "It", "e", "third"),
]


class Table(torch.nn.Module):
    """Logits [N, T, V]: the rows of a table that the input ids name."""

    def __init__(self, table: torch.Tensor):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(table)

    def get_output_embeddings(self):
        return self.table

    def forward(self, input_ids, **inputs):
        assert input_ids.shape[1] <= 64  # what the tiny BERT takes
        return SimpleNamespace(logits=self.table(input_ids))


def random_table(size: int) -> torch.Tensor:
    return 2 * torch.randn(size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: tiny_masked_lm.save(folder / kind, make()) for kind, make in tiny.TOKENIZERS.items()}


def reconstructor(models, kind: str = "wordpiece", table: torch.Tensor | None = None, **settings) -> Reconstructor:
    reconstruct = Reconstructor(models[kind], AugmentSettings(**settings), torch.device("cpu"))
    reconstruct.model = Table(random_table(len(tiny.TOKENIZERS[kind]())) if table is None else table)
    return reconstruct


def read(articles: list[dict], tmp_path) -> list[Example]:
    (tmp_path / "samples.json").write_text(json.dumps({"data": articles}))
    return read_examples(str(tmp_path / "samples.json"), training=True)  # which checks every offset


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_samples_of_all_kinds_of_tokenizers(models, kind, protect, tmp_path):
    reconstruct = reconstructor(models, kind, protect_answer=protect)
    articles, counts = reconstruct(EXAMPLES)
    assert [article["title"] for article in articles] == ["first", "second", "third"]
    samples = read(articles, tmp_path)  # an answer that were not at its offset would be refused
    originals = {example.id: example for example in EXAMPLES}
    for sample in samples:
        original = originals[sample.id.partition("-")[0]]
        assert sample.answers == (original.context[slice(*original.span)],)
        assert sample.article == original.article
        assert (sample.question, sample.context) != (original.question, original.context)
    everything = [f"{example.id}-ssmba{number}" for example in EXAMPLES for number in range(8)]
    ids = [sample.id for sample in samples]
    assert ids == [name for name in everything if name in set(ids)]  # in their order
    assert len(ids) == counts["kept"] == 40 - counts["lost"] - counts["unchanged"] - counts["repeated"]
    assert len({(s.id.partition("-")[0], s.question, s.context) for s in samples}) == len(samples)
    tokens, eligible, lost = 0, 0, 0
    for sample in reconstruct._corrupted(EXAMPLES):
        tokens += len(sample.ids)
        eligible += int(sample.question.eligible.sum() + sample.context.eligible.sum())
        begin, end = sample.example.span
        in_answer = np.flatnonzero((sample.context.starts < end) & (sample.context.ends > begin))
        assert sample.context.eligible[in_answer].any() != protect
        reconstruct._predict([sample])
        lost += bool(set(in_answer + len(sample.question.ids)) & set(sample.changed))
    assert counts["lost"] == lost
    assert (lost == 0) == protect
    assert counts["tokens"] == tokens
    # a quarter of what may be corrupted, to rounding: 40 samples, each off by 0.5 tokens at most on average
    assert counts["corrupted"] == pytest.approx(0.25 * eligible, abs=20)
    assert 0.5 * counts["corrupted"] < counts["changed"] <= counts["corrupted"]


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_every_token_is_predicted_at_its_own_place(models, kind, monkeypatch, tmp_path):
    """A model that answers every token with another one shows which token was asked about."""
    monkeypatch.setattr(corruption, "MASKED", 0.0)
    monkeypatch.setattr(corruption, "RANDOM", 0.0)  # all tokens are given as they are
    reconstruct = reconstructor(models, kind, share=1.0, samples=1)
    candidates = reconstruct.vocabulary.candidates
    after = np.arange(len(reconstruct.vocabulary.texts))
    after[candidates] = np.roll(candidates, 1)
    reconstruct.model = Table(1e4 * torch.eye(len(after))[torch.from_numpy(after)])
    articles, counts = reconstruct(EXAMPLES)
    samples = {sample.id: sample for sample in read(articles, tmp_path)}
    assert counts["kept"] == len(EXAMPLES)
    for given in reconstruct._corrupted(EXAMPLES):
        expected = []
        for text in (given.question, given.context):
            at = np.flatnonzero(text.eligible)
            expected.append(splice(text, at, after[text.ids[at]], reconstruct.vocabulary)[0])
        sample = samples[f"{given.example.id}-ssmba0"]
        assert [sample.question, sample.context] == expected


def test_dropped_samples_are_counted_by_reason(models, monkeypatch):
    monkeypatch.setattr(corruption, "MASKED", 0.0)
    monkeypatch.setattr(corruption, "RANDOM", 0.0)
    size = len(tiny.wordpiece())
    echo = reconstructor(models, table=1e4 * torch.eye(size), share=1.0)
    counts = echo(EXAMPLES[:2])[1]
    assert (counts["unchanged"], counts["changed"], counts["kept"]) == (16, 0, 0)
    always = torch.zeros(size, size)
    always[:, int(echo.vocabulary.candidates[3])] = 1e4
    articles, counts = reconstructor(models, table=always, share=1.0)(EXAMPLES[:2])
    assert (counts["kept"], counts["repeated"], counts["unchanged"]) == (2, 14, 0)
    [paragraphs] = [article["paragraphs"] for article in articles]
    assert [qa["id"] for paragraph in paragraphs for qa in paragraph["qas"]] == ["a-ssmba0", "b-ssmba0"]


def test_a_sample_depends_only_on_seed_question_and_number(models):
    def texts(examples, **settings) -> dict[str, tuple[str, str]]:
        articles, _ = reconstructor(models, **settings)(examples)
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return {p["qas"][0]["id"]: (p["qas"][0]["question"], p["context"]) for p in paragraphs}

    whole = texts(EXAMPLES)
    assert texts(EXAMPLES) == whole
    assert texts(EXAMPLES[::-1]) == whole
    assert texts(EXAMPLES, batch_size=3) == whole
    few = texts(EXAMPLES[1:3], samples=2)
    assert few == {name: whole[name] for name in few}
    assert len(few) == 4
    twin = texts([replace(EXAMPLES[0], id="twin")])
    assert twin["twin-ssmba0"] not in [whole[name] for name in whole if name[0] == "a"]
    other = texts(EXAMPLES, seed=1)
    assert not any(other[name] == whole[name] for name in set(other) & set(whole) if name[0] in "abcd")
