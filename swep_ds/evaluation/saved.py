"""Saved models: evaluated on data sets, or asked a question."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds import distributed as ranks
from swep_ds.data.features import WindowSettings
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError
from swep_ds.evaluation.evaluate import CACHE, Evaluation
from swep_ds.evaluation.predict import decode
from swep_ds.evaluation.results import print_scores, versions, write_results
from swep_ds.evaluation.spans import Answer, SpanSettings
from swep_ds.export import READING
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.loading import UNREADABLE
from swep_ds.models.names import load_tokenizer, longest_window


def evaluate_saved(
    model_name: str,
    data: Sequence[str],
    output_dir: Path,
    *,
    max_length: int | None,
    doc_stride: int | None,
    batch_size: int,
) -> None:
    """Scores a saved model on `name=source` data sets, the source domain first; writes under `output_dir`.

    Raises:
        InputError: no such model or data, or `output_dir` holds results already.
    """
    say = Console(quiet=not ranks.is_main(), highlight=False, markup=False, soft_wrap=True).print

    def prepare():
        if (output_dir / "results.json").exists():
            raise InputError(f"--output_dir {output_dir}: holds results already: name another folder")
        if batch_size < 1:
            raise InputError(f"--batch_size {batch_size}: must be at least 1")
        tests = {}
        for one in data:
            name, separator, source = one.partition("=")
            if not separator or not name or "/" in name:
                raise InputError(f"--data {one}: write it as name=source, the name without '/'")
            if name in tests:
                raise InputError(f"--data {one}: the name {name!r} is given twice")
            tests[name] = read_examples(source, training=False)
        model, tokenizer = load_saved(model_name)
        windows, spans = reading(model_name, model, tokenizer)
        longest = longest_window(tokenizer, model)
        if max_length is not None and max_length > longest:
            raise InputError(f"--max_length {max_length}: {model_name} takes at most {longest} tokens")
        if max_length is not None:
            windows = replace(windows, max_length=max_length)
        if doc_stride is not None:
            windows = replace(windows, doc_stride=doc_stride)
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--output_dir {output_dir}: cannot be made ({error.strerror})") from None
        return tests, model, tokenizer, windows, spans

    tests, model, tokenizer, windows, spans = ranks.agree(prepare)
    say(f"windows of {windows.max_length} tokens, {windows.doc_stride} apart; {spans}")
    evaluation = Evaluation(tokenizer, windows, spans, batch_size, CACHE)
    scores = evaluation.run(ExtractiveQA(model).predict, evaluation.prepare(tests), output_dir, say)
    if ranks.is_main():
        results = {"model": model_name, "world_size": ranks.world_size(), "eval": scores, "versions": versions()}
        write_results(output_dir, results)
        print_scores(scores, model_name)


def answer_question(model_name: str, question: str, context: str) -> list[Answer]:
    """The n best answers to a question over a text of any length, best first.

    Raises:
        InputError: no such model; empty question or text.
    """
    for name, text in (("question", question), ("text", context)):
        if not text.strip():
            raise InputError(f"the {name} is empty: give at least one word")
    model, tokenizer = load_saved(model_name)
    examples = [Example("question", question, context, ("",), None, context)]
    with tempfile.TemporaryDirectory() as folder:
        windows, spans = reading(model_name, model, tokenizer)
        evaluation = Evaluation(tokenizer, windows, spans, 32, Path(folder))
        [asked] = evaluation.prepare({"question": examples})
        decoder = decode(ExtractiveQA(model).predict, examples, asked.features.dataset, evaluation.padding, spans, 32)
    return decoder.n_best()["question"]


def load_saved(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A question-answering model in evaluation mode on this rank's device, and its tokenizer.

    Raises:
        InputError: cannot be loaded, or has no trained question-answering head.
    """
    tokenizer = load_tokenizer(name)
    try:
        model, report = AutoModelForQuestionAnswering.from_pretrained(name, output_loading_info=True)
    except UNREADABLE as error:
        raise InputError(f"model {name}: cannot be loaded: {' '.join(str(error).split())[:300]}") from None
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"model {name}: has no weights for {missing}: name a model trained for question answering")
    return model.eval().to(ranks.device()), tokenizer


def reading(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> tuple[WindowSettings, SpanSettings]:
    """How to cut windows and decode answers: as in the run that exported the model, else the defaults."""
    file = Path(name) / READING
    if not file.is_file():
        defaults = WindowSettings()
        return replace(defaults, max_length=min(defaults.max_length, longest_window(tokenizer, model))), SpanSettings()
    try:
        saved = json.loads(file.read_text())
        spans = SpanSettings(saved["eval"]["n_best"], saved["eval"]["max_answer_tokens"])
        return WindowSettings(**saved["data"]), spans
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file}: damaged: delete it to read with default windows") from None
