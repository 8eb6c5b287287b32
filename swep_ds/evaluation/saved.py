"""Saved models: evaluated on data sets, or asked a question."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerFast,
)

from swep_ds import distributed as ranks
from swep_ds.data.features import WindowSettings
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError
from swep_ds.evaluation.evaluate import CACHE, Evaluation
from swep_ds.evaluation.generated import GeneratedAnswer
from swep_ds.evaluation.predict import decode
from swep_ds.evaluation.results import print_scores, versions, write_results
from swep_ds.evaluation.spans import Answer, SpanSettings
from swep_ds.export import READING
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.loading import UNREADABLE
from swep_ds.models.names import load_tokenizer, longest_window
from swep_ds.models.seq2seq import GenerativeQA


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
        saved = load_saved(model_name)
        windows, longest = saved.windows, longest_window(saved.tokenizer, saved.qa.model)
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
        return tests, saved, windows

    tests, saved, windows = ranks.agree(prepare)
    how = f"beams of {saved.qa.generation.num_beams}" if windows.task == "generative" else str(saved.spans)
    say(f"windows of {windows.max_length} tokens, {windows.doc_stride} apart; {how}")
    evaluation = Evaluation(saved.tokenizer, windows, saved.spans, batch_size, CACHE)
    scores = evaluation.run(saved.qa.predict, evaluation.prepare(tests), output_dir, say)
    if ranks.is_main():
        results = {"model": model_name, "world_size": ranks.world_size(), "eval": scores, "versions": versions()}
        write_results(output_dir, results)
        print_scores(scores, model_name)


def answer_question(model_name: str, question: str, context: str) -> list[Answer] | list[GeneratedAnswer]:
    """The best answers to a question over a text of any length, best first.

    Raises:
        InputError: no such model; empty question or text.
    """
    for name, text in (("question", question), ("text", context)):
        if not text.strip():
            raise InputError(f"the {name} is empty: give at least one word")
    saved = load_saved(model_name)
    with tempfile.TemporaryDirectory() as folder:
        evaluation = Evaluation(saved.tokenizer, saved.windows, saved.spans, 32, Path(folder))
        [asked] = evaluation.prepare({"question": [Example("question", question, context, ("",), None, context)]})
        decoder = evaluation.decoder(asked.examples)
        decode(saved.qa.predict, decoder, asked.features.dataset, evaluation.padding, evaluation.batch_size)
    return decoder.n_best()["question"]


@dataclass(frozen=True)
class Saved:
    """A model ready to answer, on this rank's device, and how it reads: as in the run that exported it."""

    qa: ExtractiveQA | GenerativeQA
    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings


def load_saved(name: str) -> Saved:
    """Loads an exported run, or any question-answering model with default settings.

    Raises:
        InputError: cannot be loaded, or has no trained head.
    """
    tokenizer = load_tokenizer(name, "model")
    try:
        generative = AutoConfig.from_pretrained(name).is_encoder_decoder
        auto_class = AutoModelForSeq2SeqLM if generative else AutoModelForQuestionAnswering
        model, report = auto_class.from_pretrained(name, output_loading_info=True)
    except UNREADABLE as error:
        raise InputError(f"model {name}: cannot be loaded: {' '.join(str(error).split())[:300]}") from None
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"model {name}: has no weights for {missing}: name a model trained for question answering")
    model = model.eval().to(ranks.device())
    windows = WindowSettings(task="generative" if generative else "extractive")
    windows = replace(windows, max_length=min(windows.max_length, longest_window(tokenizer, model)))
    search, spans, file = {}, SpanSettings(), Path(name) / READING
    if file.is_file():
        try:
            settings = json.loads(file.read_text())
            windows = replace(windows, **settings["data"])
            spans = SpanSettings(settings["eval"]["n_best"], settings["eval"]["max_answer_tokens"])
            search = {"beams": settings["eval"]["beams"], "max_answer_tokens": spans.max_answer_tokens}
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{file}: damaged: delete it to read with default windows") from None
    return Saved(GenerativeQA(model, **search) if generative else ExtractiveQA(model), tokenizer, windows, spans)
