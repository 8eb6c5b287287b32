"""Saved models: evaluated on data sets, or asked a question."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds import distributed as ranks
from swep_ds.data.batches import Batch
from swep_ds.data.features import WindowSettings
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError
from swep_ds.evaluation.evaluate import CACHE, Evaluation
from swep_ds.evaluation.predict import decode
from swep_ds.evaluation.results import print_scores, versions, write_results
from swep_ds.evaluation.spans import Answer, SpanSettings
from swep_ds.models.names import load_tokenizer, longest_window
from swep_ds.recipe import Recipe


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
    say = Console(quiet=not ranks.is_main(), highlight=False, soft_wrap=True).print

    def prepare():
        if (output_dir / "results.json").exists():
            raise InputError(f"--output_dir {output_dir}: holds results already: name another folder")
        tests = {}
        for one in data:
            name, separator, source = one.partition("=")
            if not separator or not name or "/" in name:
                raise InputError(f"--data {one}: write it as name=source, the name without '/'")
            tests[name] = read_examples(source, training=False)
        model, tokenizer = load_saved(model_name)
        windows = window_settings(model_name, model, tokenizer)
        windows = replace(
            windows, max_length=max_length or windows.max_length, doc_stride=doc_stride or windows.doc_stride
        )
        output_dir.mkdir(parents=True, exist_ok=True)
        return tests, model, tokenizer, windows

    tests, model, tokenizer, windows = ranks.agree(prepare)
    evaluation = Evaluation(tokenizer, windows, SpanSettings(), batch_size, CACHE)
    scores = evaluation.run(plain_logits(model), tests, output_dir, say)
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
        windows = window_settings(model_name, model, tokenizer)
        evaluation = Evaluation(tokenizer, windows, SpanSettings(), 32, Path(folder))
        features = evaluation.features(examples)
        decoder = decode(plain_logits(model), examples, features.dataset, evaluation.padding, evaluation.spans, 32)
    return decoder.n_best()["question"]


def load_saved(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A question-answering model in evaluation mode on this rank's device, and its tokenizer.

    Raises:
        InputError: cannot be loaded, or has no trained question-answering head.
    """
    tokenizer = load_tokenizer(name)
    try:
        model, report = AutoModelForQuestionAnswering.from_pretrained(name, output_loading_info=True)
    except (OSError, ValueError) as error:
        raise InputError(f"model {name}: cannot be loaded: {' '.join(str(error).split())[:300]}") from None
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"model {name}: has no weights for {missing}: name a model trained for question answering")
    return model.eval().to(ranks.device()), tokenizer


def window_settings(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> WindowSettings:
    """Of the run that exported the model, whose recipe lies beside it; else the defaults, as far as the model goes."""
    recipe = Path(name).resolve().parent / "recipe.yaml"
    if recipe.is_file():
        data = Recipe.load(str(recipe)).data
        return WindowSettings(data.max_length, data.doc_stride, data.max_query_length)
    defaults = WindowSettings()
    return replace(defaults, max_length=min(defaults.max_length, longest_window(tokenizer, model.config)))


def plain_logits(model: PreTrainedModel) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """Start and end logits [N, T] of a plain Hugging Face model."""

    def logits(batch: Batch) -> tuple[Tensor, Tensor]:
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, return_dict=True, **types)
        return output.start_logits, output.end_logits

    return logits
