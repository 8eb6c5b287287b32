"""Saved models: loads them, and evaluates them on data sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RemoteEntryNotFoundError
from pydantic import create_model
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import read_json
from swep_ds.common.settings import Section, validate
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns
from swep_ds.data.example import Example
from swep_ds.data.windows import WindowSettings, empty_answer
from swep_ds.evaluation.calibration import Calibrator
from swep_ds.evaluation.evaluate import Evaluation
from swep_ds.evaluation.results import RESULTS, Evaluated, print_scores, versions, write_remarks, write_results
from swep_ds.evaluation.spans import SpanSettings
from swep_ds.models import hub
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.folders import resolve_model
from swep_ds.models.loading import load_weights
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.models.trials import depends_on_padding, example_window
from swep_ds.pipeline.asked import apart
from swep_ds.pipeline.examples import read_reported
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import DataSection, EvalSection, Recipe, check_data_set_name
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.ranks.writing import write_on_rank0

TRAINED_ON = "_trained_on"  # ends the name of the part of a test set that the model was trained on
WINDOWS = ("max_length", "doc_stride", "max_query_length", "max_target_length")
_WINDOWS = {name: (DataSection.model_fields[name].annotation, DataSection.model_fields[name]) for name in WINDOWS}
WindowSection = create_model("WindowSection", __base__=Section, **_WINDOWS)


class ReadingSettings(Section):
    """The content of `READING`: a part of the recipe."""

    data: WindowSection
    eval: EvalSection
    null_threshold: float | None = None  # a question with null odds above this is declined; None = never
    calibrator: Calibrator | None = None

    @classmethod
    def of(cls, recipe: Recipe, tested: Evaluated) -> "ReadingSettings":
        data = WindowSection(**{name: getattr(recipe.data, name) for name in WINDOWS})
        return cls(data=data, eval=recipe.eval, null_threshold=tested.null_threshold, calibrator=tested.calibrator)

    def text(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def load(cls, file: Path) -> "ReadingSettings":
        """Raises InputError: not JSON, or a field that a recipe would not take either."""
        return validate(cls, read_json(file), file)


@dataclass(frozen=True)
class SavedModel:
    """A model ready to answer, on this rank's device, with its run's windows, decoding and scoring rules."""

    qa: ExtractiveQA | GenerativeQA
    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    null_threshold: float | None  # these three as in `ReadingSettings`
    calibrator: Calibrator | None
    eval: EvalSection


def load_saved(name: str, null_threshold: float | None = None, max_answer_tokens: int | None = None) -> SavedModel:
    """Loads an exported run, or any question-answering model with default settings.

    It computes in the dtype of its files or, on a CPU that could only emulate that one, in float32. `null_threshold`
    and `max_answer_tokens` replace the model's own, which its calibrator was fitted with: others leave that out. Raises
    InputError: `max_answer_tokens` < 1; the model cannot be loaded or has no trained head; its tokenizer is another
    model's; or, tried on a short and on its longest window, it fails or computes NaN.
    """
    if max_answer_tokens is not None and max_answer_tokens < 1:
        raise InputError(f"max_answer_tokens {max_answer_tokens}: must be at least 1")
    source = resolve_model(name, "model")
    label = f"model {name}"
    config = hub.load_config(source, "model")
    config.dtype = None  # it need not be the files' dtype
    tokenizer = hub.load_tokenizer(name, "model")
    generative = config.is_encoder_decoder
    if generative and any(kind.endswith("ForQuestionAnswering") for kind in config.architectures or ()):
        raise InputError(f"{label}: an encoder-decoder that points at spans is not supported: name another model")
    auto_class = AutoModelForSeq2SeqLM if generative else AutoModelForQuestionAnswering
    model = load_weights(auto_class, config, source, label)
    hub.fit_tokenizer(tokenizer, model, label)
    if accelerator.emulates(model.dtype):
        model = model.float()
    model = model.eval().to(accelerator.device())
    if file := _reading_file(source):
        reading = ReadingSettings.load(file)
    else:
        longest = hub.longest_window(tokenizer, model)
        # at least half of a small model's window is for a context
        query = max(1, min(WindowSettings.max_query_length, longest // 2))
        sizes = WindowSection(max_length=min(WindowSettings.max_length, longest), max_query_length=query)
        reading = ReadingSettings(data=sizes, eval=EvalSection(whole_words=True))  # as transformers' pipeline answers
    windows = WindowSettings(task="generative" if generative else "extractive", **reading.data.model_dump())
    calibrator = reading.calibrator
    if null_threshold is None:
        null_threshold = reading.null_threshold
    if max_answer_tokens is None:
        max_answer_tokens = reading.eval.max_answer_tokens
    # with others it declines other questions, or chooses among other answers
    if (null_threshold, max_answer_tokens) != (reading.null_threshold, reading.eval.max_answer_tokens):
        calibrator = None
    sizes = (windows.max_length // 2, windows.max_length)
    if depends_on_padding(model, label, *(example_window(model, tokenizer, size) for size in sizes)):
        hub.pad_to_one_length(tokenizer, model, windows.max_length)
    spans = SpanSettings(reading.eval.n_best, max_answer_tokens, bool(reading.eval.whole_words))
    if generative:
        qa = GenerativeQA(model, beams=reading.eval.beams, max_answer_tokens=max_answer_tokens)
        qa.answer_like(empty_answer(tokenizer), declines=null_threshold is not None)
    else:
        qa = ExtractiveQA(model)
    return SavedModel(qa, tokenizer, windows, spans, null_threshold, calibrator, reading.eval)


def _reading_file(source: str) -> Path | None:
    """The `READING` of a model in a folder or on the hub; None if there is none or, with a warning, if offline mode
    leaves that open. Raises InputError: the hub cannot be asked; default settings might answer wrongly."""
    if Path(source).is_dir():
        file = Path(source, READING)
        return file if file.exists() else None
    try:
        return Path(hf_hub_download(source, READING))
    except RemoteEntryNotFoundError:
        return None
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        if not constants.is_offline_mode():
            raise InputError(f"model {source}: the hub gives no {READING} ({reason(error)}): try again") from None
        warn_once(f"model {source}: offline, and its {READING} is not in the hub's cache: read with default windows")
        return None


def evaluate_saved(
    model_name: str,
    data: Sequence[str],
    output_dir: Path,
    *,
    max_length: int | None,
    doc_stride: int | None,
    batch_size: int,
    scorer: str | None = None,
    language: str | None = None,
    null_threshold: float | None = None,
    max_answer_tokens: int | None = None,
    columns: Columns = (),
) -> None:
    """Scores a saved model on `name=source` data sets, the source domain first; writes into `output_dir`. Collective.

    `scorer` and `language` as in the recipe's section `eval`, for all data sets; `null_threshold` and
    `max_answer_tokens` as in `load_saved`; `columns` as in `Choices`.
    Raises InputError: there is no such model or data. WriteFailed: a full disk or the like.
    """
    say = Console(quiet=not ranks.is_main()).print
    remarks: list[dict[str, str]] = []

    def load() -> tuple[dict[str, list[Example]], SavedModel]:
        tests = read_data_sets(data, Choices(unanswerable="train", columns=columns), remarks)
        saved = load_saved(model_name, null_threshold, max_answer_tokens)
        if language not in (None, "en") and not saved.eval.model_copy(update=_given(scorer=scorer)).uses_mlqa:
            raise InputError(f"--language {language}: only MLQA has rules by language: give --scorer mlqa as well")
        for name, examples in tests.items():
            texts = (example.context for example in examples)
            hub.check_knows(saved.tokenizer, texts, f"model {model_name}", f"--data {name}")
        if max_length is not None:
            hub.check_length(saved.tokenizer, saved.qa.model, max_length, "--max_length")
        output_dir.mkdir(parents=True, exist_ok=True)
        return tests, saved

    every, saved = ranks.on_all_ranks(load)
    tests, known = apart(every, model_name)
    for name, examples in known.items():
        warn_once(f"{name}: the model was trained on {len(examples)} of {len(every[name])} questions: scored apart")
    windows = replace(saved.windows, **_given(max_length=max_length, doc_stride=doc_stride))
    if hasattr(saved.tokenizer, "padded_length"):
        saved.tokenizer.padded_length = windows.max_length
    scoring = saved.eval.model_copy(update=_given(scorer=scorer, language=language))
    say(f"windows of {windows.max_length} tokens, {windows.doc_stride} apart")
    evaluation = Evaluation(saved.tokenizer, windows, saved.spans, batch_size, saved.null_threshold, saved.calibrator)
    named = tests | {f"{name}{TRAINED_ON}": examples for name, examples in known.items()}
    rules = {name: scoring.scorer_of(name.removesuffix(TRAINED_ON)) for name in named}
    test_sets = ranks.local_rank_zero_first(lambda: evaluation.prepare(named, rules.__getitem__))
    for test in test_sets:
        if advice := test.scorer.advice(test.name, test.golds):
            warn_once(advice)
    scorers = {test.name: test.rules for test in test_sets if test.name in tests}
    say(f"scoring rules: {', '.join(f'{name} {rule}' for name, rule in scorers.items())}")
    every_score = evaluation.run(saved.qa.predict, test_sets, output_dir, say)
    scores = {name: every_score.pop(name) for name in tests}
    results = {"model": model_name, "world_size": ranks.world_size(), "eval": scores, "scorers": scorers}
    if known:
        results["trained_on"] = every_score
    calibrator = saved.calibrator.model_dump() if saved.calibrator else None
    results |= _given(null_threshold=saved.null_threshold, calibrator=calibrator, versions=versions())
    write_on_rank0(lambda: write_remarks(output_dir, remarks, say), output_dir)
    write_on_rank0(lambda: write_results(output_dir, results), output_dir)
    if ranks.is_main() and scores:
        print_scores(scores, model_name)
    if ranks.is_main() and known:
        print_scores(every_score, f"{model_name}, on questions that it was trained on", mean=False)
    say(f"results in {output_dir / RESULTS}")


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def read_data_sets(options: Sequence[str], choices: Choices, remarks: list[dict[str, str]]) -> dict[str, list[Example]]:
    """The test sets of options NAME=SOURCE, by name, with `remarks` as in `load_examples`. Raises InputError: an option
    has another form or a name twice; or as `read_examples`."""
    tests = {}
    for option in options:
        name, separator, source = option.partition("=")
        if not separator:
            raise InputError(f"--data {option}: write it as name=source")
        if name in tests:
            raise InputError(f"--data {name}: is given twice: rename one")
        try:
            check_data_set_name(name)
        except ValueError as error:
            raise InputError(f"--data {name}: {error}") from None
        tests[name] = read_reported(f"--data {name}", source, choices, remarks, training=False)
    return tests
