"""Samples of questions: draws, windows, seeds, counts; the file of `swep-ds augment` whatever the ranks and stops."""

import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertModel, MobileBertConfig

from swep_ds.commands import augment as command
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.data.choices import STRICT, Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.methods.ssmba_samples import augment as module
from swep_ds.methods.ssmba_samples import corruption
from swep_ds.methods.ssmba_samples.augment import AugmentSettings, Reconstructor, augment, draw, read_answerable
from swep_ds.methods.ssmba_samples.corruption import splice
from swep_ds.ranks.group import process_group
from tests.support import bad_input, tiny, tiny_models
from tests.support.bad_input import error_line
from tests.support.fork_server import run_script
from tests.support.tiny_run import squad

CPU = torch.device("cpu")
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
    """Logits [N, T, V]: the rows of a table that the input ids name, whatever the rounding of a batch."""

    def __init__(self, table: torch.Tensor):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(table)

    def get_output_embeddings(self):
        return self.table

    def forward(self, input_ids, **inputs):
        assert input_ids.shape[1] <= 64  # what the tiny BERT takes
        return SimpleNamespace(logits=self.table(input_ids))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: tiny_models.save_masked_lm(folder / kind, make()) for kind, make in tiny.TOKENIZERS.items()}


def test_models_without_the_head_a_mask_token_or_a_folder_are_refused(models, tmp_path):
    def refused(name: str) -> str:
        message = bad_input.refused(Reconstructor, name, AugmentSettings(), CPU)
        assert message.startswith(f"--model {name}: ")
        return message

    BertModel.from_pretrained(models["wordpiece"]).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    for name in (str(tmp_path), "quickstart:encoder"):
        assert "has no weights for cls.predictions" in refused(name)
        assert "it is without a trained masked-language-model head: name a model with one" in refused(name)
    tokenizer = tiny.wordpiece.__wrapped__()
    tokenizer.mask_token = None
    shutil.copytree(models["wordpiece"], tmp_path / "maskless")
    tokenizer.save_pretrained(tmp_path / "maskless")
    assert "has no mask token" in refused(str(tmp_path / "maskless"))


SMALL = {"hidden_size": 16, "embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}
CONFIGS = {name: tiny_models.config(name) for name in ("bert", "roberta", "modernbert")}
CONFIGS["mobilebert"] = MobileBertConfig(**tiny_models.COMMON | SMALL)


@pytest.mark.parametrize("architecture", ["table", *CONFIGS])
def test_draws_invert_the_softmax_over_the_candidates(architecture, monkeypatch):
    """A draw is the number of candidates whose cumulated probability u has passed."""
    monkeypatch.setattr(module, "PLACES_AT_A_TIME", 7)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    table = torch.randn(64, 64)
    table[7, 1] = table[7, 5] = -1e30  # probability 0
    model = Table(table) if architecture == "table" else AutoModelForMaskedLM.from_config(CONFIGS[architecture]).eval()
    inputs = {"input_ids": torch.randint(8, 60, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 5:] = 0
    inputs["input_ids"][1, 2] = 7
    candidates = np.array([1, 4, 5, 8, 10])
    rows, positions, uniforms = rng.integers(0, 3, 200), rng.integers(0, 5, 200), rng.random(200)
    rows[:40], positions[:40] = 1, 2
    uniforms[:4] = [0.0, 1 - 2**-53, 0.0, 1 - 2**-53]
    places = (torch.from_numpy(rows), torch.from_numpy(positions))
    drawn = draw(model, inputs, places, torch.from_numpy(uniforms), torch.from_numpy(candidates))

    with torch.no_grad():
        logits = model(**inputs).logits.numpy()  # at all places: no hook is left
    weights = np.exp(logits[rows, positions][:, candidates].astype(np.float64))
    cumulated = np.cumsum(weights, 1) / weights.sum(1, keepdims=True)
    expected = candidates[np.minimum((cumulated <= uniforms[:, None]).sum(1), 4)]
    assert drawn.tolist() == expected.tolist()
    if architecture == "table":
        assert drawn[:4].tolist() == [4, 10, 4, 10]
        assert not {1, 5} & set(drawn[:40].tolist())


def reconstructor(models, kind: str = "wordpiece", table: torch.Tensor | None = None, **settings) -> Reconstructor:
    made = Reconstructor(models[kind], AugmentSettings(**settings), CPU)
    if table is None:
        size = len(tiny.TOKENIZERS[kind]())
        table = 2 * torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    made.model = Table(table)
    return made


def read(articles: list[dict], tmp_path) -> list[Example]:
    (tmp_path / "samples.json").write_text(json.dumps({"data": articles}))
    return read_examples(str(tmp_path / "samples.json"), training=True)  # which checks every offset


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_samples_of_all_kinds_of_tokenizers(models, kind, protect, tmp_path):
    made = reconstructor(models, kind, protect_answer=protect)
    articles, counts = made(EXAMPLES)
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
    assert len(ids) == counts["kept"] == 40 - counts["dropped"] - counts["lost"]
    assert len({(s.id.partition("-")[0], s.question, s.context) for s in samples}) == len(samples)
    tokens, eligible, lost = 0, 0, 0
    for sample in made._corrupted(EXAMPLES):
        tokens += len(sample.ids)
        eligible += int(sample.question.eligible.sum() + sample.context.eligible.sum())
        begin, end = sample.example.span
        in_answer = np.flatnonzero((sample.context.starts < end) & (sample.context.ends > begin))
        assert sample.context.eligible[in_answer].any() != protect
        made._predict([sample])
        changed = sample.selected[sample.predicted != sample.original]
        lost += bool(set(in_answer + len(sample.question.ids)) & set(changed))
    assert counts["lost"] == lost
    assert (lost == 0) == protect
    assert counts["tokens"] == tokens
    # a quarter of what may be corrupted, to rounding: 40 samples, each off by 0.5 tokens at most on average
    assert counts["corrupted"] == pytest.approx(0.25 * eligible, abs=20)
    assert 0.5 * counts["corrupted"] < counts["changed"] <= counts["corrupted"]


@pytest.fixture
def given_as_they_are(monkeypatch):
    """The model is given the selected tokens without a mask or another token."""
    monkeypatch.setattr(corruption, "MASKED", 0.0)
    monkeypatch.setattr(corruption, "RANDOM", 0.0)


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_every_token_is_predicted_at_its_own_place(models, kind, given_as_they_are, tmp_path):
    """A model that answers every token with another one shows which token was asked about."""
    made = reconstructor(models, kind, share=1.0, samples=1)
    candidates = made.vocabulary.candidates
    after = np.arange(len(made.vocabulary.texts))
    after[candidates] = np.roll(candidates, 1)
    made.model = Table(1e4 * torch.eye(len(after))[torch.from_numpy(after)])
    articles, counts = made(EXAMPLES)
    samples = {sample.id: sample for sample in read(articles, tmp_path)}
    assert counts["kept"] == len(EXAMPLES)
    for given in made._corrupted(EXAMPLES):
        expected = []
        for text in (given.question, given.context):
            at = np.flatnonzero(text.eligible)
            expected.append(splice(text, at, after[text.ids[at]], made.vocabulary)[0])
        sample = samples[f"{given.example.id}-ssmba0"]
        assert [sample.question, sample.context] == expected


def test_every_selected_token_has_a_window_of_its_own_also_beside_a_question_that_is_cut(models):
    made = reconstructor(models, share=1.0, samples=1)
    long = tiny.example(" ".join(tiny.SENTENCES), LONG, "not too big", "f", "third")
    for sample in made._corrupted([*EXAMPLES, long]):
        rows = list(made._rows(sample))
        assert sorted(np.concatenate([row.owned for row in rows])) == list(range(len(sample.selected)))
        for row in rows:
            assert row.ids[row.positions].tolist() == sample.ids[sample.selected[row.owned]].tolist()


def test_samples_that_came_back_as_the_original_or_as_another_sample_are_dropped(models, given_as_they_are):
    size = len(tiny.wordpiece())
    echo = reconstructor(models, table=1e4 * torch.eye(size), share=1.0)
    counts = echo(EXAMPLES[:2])[1]
    assert (counts["dropped"], counts["changed"], counts["kept"]) == (16, 0, 0)
    always = torch.zeros(size, size)
    always[:, int(echo.vocabulary.candidates[3])] = 1e4
    articles, counts = reconstructor(models, table=always, share=1.0)(EXAMPLES[:2])
    assert (counts["kept"], counts["dropped"]) == (2, 14)
    [paragraphs] = [article["paragraphs"] for article in articles]
    assert [qa["id"] for paragraph in paragraphs for qa in paragraph["qas"]] == ["a-ssmba0", "b-ssmba0"]


def test_a_sample_depends_only_on_seed_question_and_number(models):
    def texts(examples, **settings) -> dict[str, tuple[str, str]]:
        articles, _ = reconstructor(models, **settings)(examples)
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return {p["qas"][0]["id"]: (p["qas"][0]["question"], p["context"]) for p in paragraphs}

    whole = texts(EXAMPLES)
    assert texts(EXAMPLES[::-1]) == whole
    assert texts(EXAMPLES, batch_size=3) == whole
    few = texts(EXAMPLES[1:3], samples=2)
    assert few == {name: whole[name] for name in few}
    assert len(few) == 4
    twin = texts([replace(EXAMPLES[0], id="twin")])
    assert twin["twin-ssmba0"] not in [whole[name] for name in whole if name[0] == "a"]
    other = texts(EXAMPLES, seed=1)
    assert not any(other[name] == whole[name] for name in set(other) & set(whole) if name[0] in "abcd")


QUESTIONS = 96  # 3 chunks


def test_a_mistake_in_an_option_is_one_line(monkeypatch):
    for option, said in (
        ("--samples=0", "--samples: 0 must be at least 1"),
        ("--share=1.01", "--share 1.01: must be above 0"),
        ("--data=nowhere.json", "data source 'nowhere.json': no such file"),
    ):
        given = ["--data", "d", "--model", "m", "--output", "o.json", option]
        monkeypatch.setattr(sys, "argv", ["augment.py", *given])
        assert said in bad_input.refused(command.augment)


@pytest.mark.parametrize(("choice", "spans"), [("first", [(0, 3), (4, 7)]), ("drop", [(4, 7)])])
def test_repeated_answers_are_settled_and_counted(tmp_path, capsys, choice, spans):
    rows = [{"question": "Who?", "context": "Ann Bob Ann", "answer": answer} for answer in ("Ann", "Bob")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    examples = read_answerable(str(tmp_path / "rows.json"), Choices("train", choice), Console())
    assert [example.span for example in examples] == spans
    assert "1 questions: the answer occurs several times in its context" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(squad(5)))
    with process_group():
        said = bad_input.refused(
            augment, str(tmp_path / "train.json"), "nowhere", tmp_path / "o", AugmentSettings(), STRICT
        )
    assert said.startswith("--model nowhere: no tokenizer to load there")
    assert [file.name for file in tmp_path.iterdir()] == ["train.json"]


def test_all_that_decides_the_samples_is_noted_with_them(models, tmp_path, monkeypatch):
    """A start that finds another note is refused: tests/data/test_chunks.py."""
    noted, data = [], tmp_path / "train.json"

    def take(self, setup: dict) -> None:
        noted.append(json.dumps(setup))
        raise InputError("--output o: noted")

    monkeypatch.setattr(module.Chunks, "take", take)
    monkeypatch.setattr(module, "Reconstructor", lambda *_: None)
    folder = shutil.copytree(models["wordpiece"], tmp_path / "model")

    def start(questions: int = 3, **settings) -> None:
        data.write_text(json.dumps(squad(questions)))
        bad_input.refused(augment, str(data), str(folder), tmp_path / "o", AugmentSettings(**settings), STRICT)

    with process_group():
        for changed in ({}, {}, {"questions": 4}, {"seed": 1}, {"share": 0.5}, {"samples": 2}, {"batch_size": 3}):
            start(**changed)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        start()
    first, again, *others = noted
    assert again == first
    assert len({first, *others}) == len(others) + 1


# Runs `swep-ds augment` and kills it when it has written two chunks.
KILLED = """
import os, runpy, signal, sys
from swep_ds.common.console import Console
from swep_ds.data.chunks import Chunks
write, written = Chunks.write, []
def write_and_die(*arguments):
    write(*arguments)
    written.append(arguments)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Chunks.write = write_and_die
runpy.run_module("swep_ds", run_name="__main__", alter_sys=True)
"""


def arguments(folder: Path, output: str, *more: str) -> list[str]:
    data, model = str(folder / "train.json"), str(folder / "model")
    return ["--data", data, "--model", model, "--output", str(folder / output), *more]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_file_of_two_ranks_which_is_training_data(tmp_path):
    tiny_models.save_masked_lm(tmp_path / "model", tiny.wordpiece())
    (tmp_path / "train.json").write_text(json.dumps(squad(QUESTIONS)))
    run_script("swep_ds", "augment", *arguments(tmp_path, "two.json"), ranks=2)
    (tmp_path / "killed.py").write_text(KILLED)
    killed = run_script(tmp_path / "killed.py", "augment", *arguments(tmp_path, "one.json"), check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((tmp_path / "one.json.chunks").glob("0*.json"))) == 2
    assert not (tmp_path / "one.json").exists()

    other = run_script("swep_ds", "augment", *arguments(tmp_path, "one.json"), "--seed", "1", check=False)
    assert other.returncode == 2
    assert "seed 0 " in error_line(other.stderr)
    resumed = run_script("swep_ds", "augment", *arguments(tmp_path, "one.json")).stdout
    assert "2 of 3 chunks are done" in resumed
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert not list(tmp_path.glob("*.chunks"))

    samples = read_examples(str(tmp_path / "two.json"), training=True)
    originals = read_examples(str(tmp_path / "train.json"), training=True)
    assert {sample.id.rpartition("-ssmba")[0] for sample in samples} == {example.id for example in originals}
    document = json.loads((tmp_path / "two.json").read_text(encoding="utf-8"))["ssmba"]
    assert document["kept"] == len(samples)
    dropped = 8 * QUESTIONS - len(samples)
    assert document.get("dropped", 0) == dropped
    assert f"kept {len(samples)} samples of {QUESTIONS} questions, dropped {dropped} that" in resumed
