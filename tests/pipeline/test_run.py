"""How a run begins and ends, what its seed decides, and which models it takes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from swep_ds.common.files import sealed
from swep_ds.common.settings import differences
from swep_ds.data.readers import read_examples
from swep_ds.evaluation import scores
from swep_ds.pipeline.build import load_model, training_batches
from swep_ds.pipeline.checks import read_and_check
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.prepare import Prepared, prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.resume import resume_setup
from swep_ds.pipeline.run import _report
from swep_ds.pipeline.stage import Stage, _peak
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from swep_ds.training.checkpoints import TrainState
from tests.support import tiny_models, tiny_run
from tests.support.bad_input import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_run.prepare(tmp_path_factory.mktemp("run")).parent


def job(folder: Path, *settings: str, stage: int = 0) -> Prepared:
    with process_group():
        recipe = Recipe.load(str(folder / "recipe.yaml"), settings)
        return prepare(read_and_check(recipe, str(tiny_run.ds_config(folder, stage))))


def test_a_seed_decides_the_noise_the_generators_start_the_order_and_the_questions(folder, tmp_path):
    settings = ["data.train_fraction=0.5", "data.unanswerable=train"]
    jobs = [job(folder, f"seed={seed}", *settings) for seed in (0, 1, 1)]
    assert [job.objective.seed for job in jobs] == [0, 1, 1]
    assert [job.evaluation.null_threshold for job in jobs] == [None] * 3  # all of its questions have an answer
    recipe = Recipe.load(str(folder / "recipe.yaml"), settings)
    with process_group(), mock.patch("swep_ds.pipeline.stage.build_engine") as engine:
        setups = [resume_setup(recipe, job) for job in jobs]
        manifest = {"done": {}, "setup": setups[0], "stage": 0, "batch": {}, "scores": {}, "files": []}
        (tmp_path / "complete.json").write_text(sealed(json.dumps(manifest)))
        said = refused(Stage(recipe, jobs[1], RunFolder(tmp_path), print).run, [tmp_path])
    assert "does not fit this start (content of data.train" in said
    assert not engine.called  # it takes seconds to build
    read = [setup[f"content of data.train {folder}/train.json"] for setup in setups]
    assert read[0] != read[1] == read[2]  # as many questions, but others
    weights = [[parameter.tolist() for parameter in job.objective.method.parameters()] for job in jobs]
    order = [[job.batches.windows(update).tolist() for update in range(job.batches.updates)] for job in jobs]
    questions = [job.features.dataset["input_ids"][:] for job in jobs]
    for first, other, again in (weights, order, questions):
        assert first != other == again
    assert [job.features.examples for job in jobs] == [21, 21, 21]


def test_what_each_source_of_a_mix_gives_is_printed_and_one_without_a_window_is_named(folder, tmp_path):
    (tmp_path / "few.json").write_text(json.dumps(tiny_run.squad(5, seed=2)))
    text = "word " * 60
    rows = [{"question": "Who?", "context": text, "answers": {"text": [text.strip()], "answer_start": [0]}}]
    (tmp_path / "long.json").write_text(json.dumps(rows))

    def mixed(name: str) -> list[str]:
        parts = [{"source": str(folder / "train.json"), "weight": 1}, {"source": str(tmp_path / name), "weight": 3}]
        return [f"data.train={json.dumps(parts)}", "data.windows_without_answer=drop"]

    prepared = job(folder, *mixed("few.json"))
    recipe = Recipe.load(str(folder / "recipe.yaml"), mixed("few.json"))
    said = []
    with process_group():
        Stage(recipe, prepared, RunFolder(tmp_path), lambda line, **_: said.append(line)).say_start()
    assert not prepared.evaluation.spans.whole_words  # 1 of the 47 answers begins inside a word
    rows = np.concatenate([prepared.batches.windows(update) for update in range(prepared.batches.updates)])
    first, second = (len(part.dataset) for part in prepared.features.parts)
    for line, share, questions, windows, read in (
        (said[-2], 25, 42, first, (rows < first).sum()),
        (said[-1], 75, 5, second, (rows >= first).sum()),
    ):
        assert f": {share} % of each update, {questions} questions in {windows} windows, each read about " in line
        assert float(re.search(r"about ([\d.]+) times in this run", line)[1]) == pytest.approx(read / windows, rel=0.1)
    assert refused(job, folder, *mixed("long.json")).startswith("data.train.1.source: no window holds its whole answer")


def test_answers_that_a_model_would_learn_and_never_give_are_told_before_training(folder, tmp_path):
    long = " ".join(["tea in the north"] * 8)
    rows = [{"question": "What?", "context": f"{name} had {long}.", "answer": f"{name} had {long}"} for name in "ab"]
    rows.append({"question": "What?", "context": "b had tea.", "answer": "tea"})
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    settings = [f"data.train={tmp_path / 'rows.json'}", "data.max_length=64"]
    begin = "  2 of 3 questions have only answers of more than"
    longest = job(folder, *settings).features.answer_tokens[0]
    assert longest > 30
    fix = f"which are never given: raise eval.max_answer_tokens, up to {longest} for the longest"
    for limit, told, words in ((longest - 1, [f"{begin} {longest - 1} tokens, {fix}"], "null"), (longest, [], "false")):
        changes = [f"eval.max_answer_tokens={limit}", f"eval.whole_words={words}"]
        recipe = Recipe.load(str(folder / "recipe.yaml"), [*settings, *changes])
        say = mock.Mock()
        with process_group():
            prepared = prepare(read_and_check(recipe, str(tiny_run.ds_config(folder, 0))))
            Stage(recipe, prepared, RunFolder(tmp_path), say).say_start()
        said = [call.args[0] for call in say.call_args_list]
        assert [line for line in said if "only answers" in line] == told
        assert prepared.evaluation.spans.whole_words == (words == "null")


def test_a_run_by_max_tokens_on_a_gpu_resumes_only_where_widths_are_rounded_alike(folder):
    """Fewer windows fit into its updates."""
    for setting, said in (("train.max_tokens=200", "widths rounded up to None there, 16 here"), ("seed=1", "")):
        settings = [setting, "train.max_updates=7"]
        recipe, prepared = Recipe.load(str(folder / "recipe.yaml"), settings), job(folder, *settings)
        on_gpu = training_batches(recipe, prepared.tokenizer, prepared.features, 0, 1, on_gpu=True)
        with process_group():
            begun, resumed = (resume_setup(recipe, replace(prepared, batches=b)) for b in (prepared.batches, on_gpu))
        assert differences(begun, resumed) == said


def test_bf16_is_warned_of_on_a_cpu(folder, caplog):
    norm = torch.nn.LayerNorm(2, dtype=torch.bfloat16)
    norm(torch.tensor([[1.0, -1.0]], dtype=torch.bfloat16).repeat(100_000, 1)).float().sum().backward()
    assert norm.bias.grad[0] < 90_000  # else PyTorch adds up in float32, and the warning can go
    for precision, warned in (("bf16", 1), ("autocast", 0), ("fp32", 0)):
        caplog.clear()
        job(folder, f"train.precision={precision}", stage=1)
        assert caplog.text.count("gradients of LayerNorm and embeddings in bf16") == warned


def test_a_precision_that_the_processor_emulates_is_warned_of(folder, monkeypatch, caplog):
    for precision, emulated, warned in (("bf16", False, 0), ("fp32", True, 0), ("bf16", True, 1)):
        monkeypatch.setattr(accelerator, "emulates", lambda dtype, emulated=emulated: emulated)
        job(folder, f"train.precision={precision}", stage=1)
        assert caplog.text.count("train.precision bf16: this processor has no instructions for bf16") == warned
    for emulated in (False, True):
        monkeypatch.setattr(accelerator, "emulates", lambda dtype, emulated=emulated: emulated)
        config = job(folder, "train.precision=autocast").config
        assert config.get("torch_autocast", {}).get("enabled", False) is not emulated
    assert caplog.text.count("train.precision autocast: this processor has no instructions for bf16: it trains in") == 1


def test_own_files_are_checked_before_the_hub(folder, tmp_path):
    (tmp_path / "faulty.json").write_text("[")
    faulty = [f"data.train={tmp_path / 'faulty.json'}", "model.name=owner/model"]
    assert "data.train: " in refused(job, folder, *faulty)


def test_held_out_articles_that_cannot_be_halved_are_named_by_their_setting(folder):
    one_text = ["data.eval={}", "data.holdout_fraction=0.02", "data.unanswerable=train"]
    examples = read_examples(str(folder / "test.json"), training=False)[:1]
    with mock.patch("swep_ds.pipeline.examples.hold_out_articles", lambda training, _: (training, examples)):
        assert "data.holdout_fraction: all questions are about one text" in refused(job, folder, *one_text)


def test_answers_that_the_rules_do_not_know_are_named_once_with_a_scorer(folder, monkeypatch, caplog):
    monkeypatch.setitem(scores.SCRIPTS, "Latin", ("A-Za-z", 0.5, ("klue",)))
    sources = [f"data.eval.{name}={folder / 'test.json'}" for name in ("latin", "klue")]
    job(folder, *sources, "eval.scorer={klue: klue}", "eval.select_on=latin", stage=1)
    assert (
        caplog.text.count("latin: answers are Latin, which SQuAD v1.1 has no rules for: set eval.scorer to klue") == 1
    )
    assert "klue: answers" not in caplog.text


def test_a_report_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
    report, tracker = mock.Mock(side_effect=KeyError("of the test")), mock.Mock()
    monkeypatch.setattr("swep_ds.ranks.group.rank", lambda: 0)
    _report(report, RunFolder(tmp_path / "a run"), tracker, print)
    tracker.finish.assert_called_once_with()
    assert "no report.html (KeyError: 'of the test'); the run is done, and `swep-ds report '" in caplog.text


def test_a_start_without_an_update_reports_the_memory_of_the_training(tmp_path):
    line = {"update": 1, "memory_mib": [2.0**20, 2.0**21]}  # more than this process will have
    (tmp_path / "health.jsonl").write_text(json.dumps(line) + "\n")
    with process_group():
        assert _peak(RunFolder(tmp_path), TrainState(updates=2)) == 2**41
        assert 0 < _peak(RunFolder(tmp_path), TrainState()) < 2**41


def test_what_overflows_in_fp16_is_refused_by_its_config(tmp_path):
    recipe = Recipe.make("t5_small_squad", model={"name": tmp_path}, train={"precision": "fp16"})
    for kind in ("t5", "mt5"):
        config = tiny_models.config("t5").to_dict() | {"model_type": kind}
        (tmp_path / "config.json").write_text(json.dumps(config))  # no weights there
        said = refused(load_model, recipe, None, str(tmp_path))
        assert said.startswith(f"train.precision fp16: activations of {kind} overflow in it ")
        assert said.endswith(": set it to autocast, or to bf16 or fp32")
