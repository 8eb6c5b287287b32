"""Saved models: evaluated on data sets, or asked a question."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import create_model
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.console import Console
from swep_ds.data.features import WindowSettings
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError
from swep_ds.evaluation.evaluate import CACHE, Evaluation
from swep_ds.evaluation.generated import GeneratedAnswer
from swep_ds.evaluation.predict import decode
from swep_ds.evaluation.results import print_scores, versions, write_results
from swep_ds.evaluation.spans import Answer, SpanSettings
from swep_ds.files import read_json
from swep_ds.models.configs import load_config
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import check_knows, fit_tokenizer, load_tokenizer, longest_window, resolve_model
from swep_ds.models.loading import load_weights, make_hollow
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.export import READING, WINDOWS
from swep_ds.recipe import DataSection, EvalSection, check_data_set_names
from swep_ds.settings import Section, validate


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
    say = Console(quiet=not ranks.is_main()).print

    def prepare():
        if (output_dir / "results.json").exists():
            raise InputError(f"--output_dir {output_dir}: holds results already: name another folder")
        if batch_size < 1:
            raise InputError(f"--batch_size {batch_size}: must be at least 1")
        sources = {}
        for given in data:
            name, separator, source = given.partition("=")
            if not separator or not name or "/" in name:
                raise InputError(f"--data {given}: write it as name=source, the name without '/'")
            if name in sources:
                raise InputError(f"--data {given}: the name {name!r} is given twice")
            sources[name] = source
        try:
            check_data_set_names([*sources])
        except ValueError as error:
            raise InputError(f"--data: {error}") from None
        tests = {name: read_examples(source, training=False) for name, source in sources.items()}
        saved = load_saved(model_name)
        for name, examples in tests.items():
            texts = [example.context[:1000] for example in examples[:20]]
            check_knows(saved.tokenizer, texts, f"model {model_name}", f"--data {name}")
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

    tests, saved, windows = ranks.on_all_ranks(prepare)
    how = f"beams of {saved.qa.generation.num_beams}" if windows.task == "generative" else str(saved.spans)
    say(f"windows of {windows.max_length} tokens, {windows.doc_stride} apart; {how}")
    evaluation = Evaluation(saved.tokenizer, windows, saved.spans, batch_size, CACHE)
    scores = evaluation.run(saved.qa.predict, evaluation.prepare(tests), output_dir, say)
    if ranks.is_main():
        results = {"model": model_name, "world_size": ranks.world_size(), "eval": scores, "versions": versions()}
        write_results(output_dir, results)
        print_scores(scores, model_name)


def answer_question(model_name: str, question: str, context: str, count: int) -> list[Answer] | list[GeneratedAnswer]:
    """The `count` best answers to a question over a text of any length, best first.

    Raises:
        InputError: no such model; empty question or text; several answers of a model that generates.
    """
    for name, text in (("question", question), ("text", context)):
        if not text.strip():
            raise InputError(f"the {name} is empty: give at least one word")
    saved = load_saved(model_name)
    check_knows(saved.tokenizer, [question, context], f"model {model_name}", "question and text")
    if count > 1 and saved.windows.task == "generative":
        raise InputError(f"--n_best {count}: {model_name} generates one answer: set it to 1, or name a model of spans")
    with tempfile.TemporaryDirectory() as folder:
        evaluation = Evaluation(saved.tokenizer, saved.windows, saved.spans, 32, Path(folder))
        [asked] = evaluation.prepare({"question": [Example("question", question, context, ("",), None, context)]})
        decoder = evaluation.decoder(asked.examples)
        decode(saved.qa.predict, decoder, asked.features.dataset, evaluation.padding, evaluation.batch_size)
    return decoder.n_best()["question"][:count]


_WINDOWS = {name: (DataSection.model_fields[name].annotation, DataSection.model_fields[name]) for name in WINDOWS}
Windows = create_model("Windows", __base__=Section, **_WINDOWS)


class HowToRead(Section):
    """What a run's recipe says of windows and answers, as `export_model` keeps it."""

    data: Windows
    eval: EvalSection


def how_to_read(file: Path) -> HowToRead:
    """The `reading.json` of an exported model.

    Raises:
        InputError: not JSON, or a field that a recipe would not take either.
    """
    try:
        tree = read_json(file)
        if not isinstance(tree, dict):
            raise InputError(f"{file}: no JSON object")
        return validate(HowToRead, tree, file)
    except InputError as error:
        raise InputError(f"{error}: correct it, or delete it to read with default windows") from None


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
        InputError: cannot be loaded, has no trained head or another model's tokenizer, or a damaged reading.json.
    """
    tokenizer, source, named = load_tokenizer(name, "model"), resolve_model(name, "model"), f"model {name}"
    config = load_config(source, "model")
    generative = config.is_encoder_decoder
    auto_class = AutoModelForSeq2SeqLM if generative else AutoModelForQuestionAnswering
    advice = "name a model trained for question answering"
    if type(config) not in auto_class._model_mapping:
        raise InputError(f"{named}: is of type {config.model_type}, which answers no questions: {advice}")
    hollow = make_hollow(auto_class, config, source, named)
    model = load_weights(auto_class, config, hollow, source, named, new_head=False, advice=advice)
    fit_tokenizer(tokenizer, model, named)
    model = model.eval().to(ranks.device())
    windows = WindowSettings(task="generative" if generative else "extractive")
    windows = replace(windows, max_length=min(windows.max_length, longest_window(tokenizer, model)))
    search, spans, file = {}, SpanSettings(), Path(source, READING)
    if file.is_file():
        reading = how_to_read(file)
        windows = replace(windows, **reading.data.model_dump())
        spans = SpanSettings(reading.eval.n_best, reading.eval.max_answer_tokens)
        search = {"beams": reading.eval.beams, "max_answer_tokens": spans.max_answer_tokens}
    return Saved(GenerativeQA(model, **search) if generative else ExtractiveQA(model), tokenizer, windows, spans)
