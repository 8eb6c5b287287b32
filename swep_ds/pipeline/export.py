"""Exports a run's model as a plain Hugging Face folder with a model card, which loads without this package."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from swep_ds import ranks
from swep_ds.common.files import hub_name, new_model_folder, public_name, public_names, read_json, write_atomically
from swep_ds.common.pages import template
from swep_ds.evaluation.results import METRICS, WITHHELD, Evaluated, is_scored, out_of_domain_mean, versions
from swep_ds.methods import summary
from swep_ds.pipeline.asked import write_asked
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import DataSection, Recipe
from swep_ds.pipeline.saved import ReadingSettings
from swep_ds.ranks.writing import write_on_all_ranks
from swep_ds.training.zero.weights import full_weights

NOISE = "noise.safetensors"  # in a run's folder: the method's parameters, for `swep_ds.analysis`
FILE_BYTES = 2**30  # weights in one file, and in rank 0's memory while it is written


def _trained_on(data: DataSection) -> str:
    names = public_names(data.shares)
    return data.trained_on(lambda source: f"`{names[source]}`")


def export_model(
    engine,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    recipe: Recipe,
    tested: Evaluated,
    asked: dict[str, np.ndarray],
    keep_fp32: bool = False,
) -> None:
    """Writes backbone and QA head (safetensors), tokenizer and model card, without the method's parameters. Collective.

    `folder` is replaced as a whole. `asked` as in `write_asked`. `keep_fp32` writes float32 whatever the model was
    trained in, so that another training resumes exactly there. Raises WriteFailed: on all ranks; an existing model
    stays.
    """
    model = engine.module.qa.model
    masters = keep_fp32 and recipe.train.precision in ("bf16", "fp16")

    def write() -> None:
        weights = full_weights(engine, model, masters=masters)
        try:
            with new_model_folder(folder) if ranks.is_main() else nullcontext(folder) as unfinished:
                write_model(model, weights, unfinished)
                if ranks.is_main():
                    save_tokenizer(tokenizer, unfinished)
                    (unfinished / READING).write_text(ReadingSettings.of(recipe, tested).text(), encoding="utf-8")
                    write_asked(unfinished, asked)
                    text = model_card(recipe, tested, (unfinished / CONFIG_NAME).read_text(encoding="utf-8"))
                    (unfinished / "README.md").write_text(text, encoding="utf-8")
        finally:
            for _ in weights:  # after a full disk: the other ranks still send the rest
                pass

    write_on_all_ranks(write, folder)


def export_noise(engine, file: Path) -> None:
    """Writes the method's parameters, if it has any. Collective. Raises WriteFailed: on all ranks."""

    def write() -> None:
        weights = dict(full_weights(engine, engine.module.method, masters=False))
        if ranks.is_main() and weights:
            write_atomically(file, save(weights))

    write_on_all_ranks(write, file)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Saves it with the names that transformers 4 knows for its class and its tokens; version 5 reads them, too."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def note_tied_weights(model: PreTrainedModel) -> None:
    """Has the config say whether input and output embeddings are one: transformers 5 takes every T5's for tied."""
    if output := model.get_output_embeddings():
        model.config.tie_word_embeddings = output.weight is model.get_input_embeddings().weight


def write_model(model: PreTrainedModel, weights: Iterator[tuple[str, Tensor | None]], folder: Path) -> None:
    """`model.save_pretrained(folder)` for weights that arrive one at a time, in files of `FILE_BYTES`."""
    files: list[Path] = []
    state: dict[str, Tensor] = {}
    note_tied_weights(model)

    def write() -> None:
        model.save_pretrained(folder, state_dict=state)
        files.append((folder / SAFE_WEIGHTS_NAME).rename(folder / f"part-{len(files)}.safetensors"))
        state.clear()

    for name, value in weights:
        if ranks.is_main():
            if state and sum(v.nbytes for v in (*state.values(), value)) > FILE_BYTES:
                write()
            state[name] = value
    if not ranks.is_main():
        return
    write()
    index = {}
    for number, file in enumerate(files, 1):
        name = SAFE_WEIGHTS_NAME
        if len(files) > 1:
            name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        with safe_open(file, "pt") as content:
            index |= dict.fromkeys(content.keys(), name)
        file.rename(folder / name)
    if len(files) > 1:
        size = sum(file.stat().st_size for file in folder.glob("model-*.safetensors"))
        content = {"metadata": {"total_size": size}, "weight_map": index}
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def model_card(recipe: Recipe, tested: Evaluated, config: str) -> str:
    """The README.md of an exported model, in the hub's format: method, data, scores, how to load it. `config` is the
    text of its config.json."""
    start = recipe.model.name
    method = recipe.method
    results = []
    for data_set, score in tested.scores.items():
        if not is_scored(score):
            continue
        source = hub_name(recipe.data.eval.get(data_set) or recipe.data.sources[recipe.data.home_field]) or data_set
        for metric in METRICS:
            value = round(score[metric], 2)
            results.append(EvalResult("question-answering", source, data_set, metric_type=metric, metric_value=value))
    named = [name for name in map(hub_name, recipe.data.shares) if name]
    head = card_head(
        recipe.task,
        method.name,
        base_model=hub_name(start),
        datasets=named if len(named) > 1 else next(iter(named), None),
        model_name=f"{public_name(start).rpartition('/')[2]}-{method.name}",
        eval_results=results or None,
    )
    values = {"recipe": recipe, "summary": summary(method), "tested": tested, "mean": out_of_domain_mean(tested.scores)}
    return str(card(head, "model_card.md.jinja", withheld=WITHHELD, config=config, **values))


def card_head(task: str, kind: str, **more: Any) -> ModelCardData:
    """What the hub reads of a model card; `kind` is the tag that tells this package's models apart."""
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation" if task == "generative" else "question-answering",
        tags=["question-answering", f"{task}-qa", "swep-ds", kind],
        metrics=list(METRICS),
        **more,
    )


def card(head: ModelCardData, name: str, **values: Any) -> ModelCard:
    """A model card of this head and a template of this folder."""
    body = template(f"pipeline/{name}", public=public_name, trained_on=_trained_on)
    text = body.render(**values, versions=versions())
    return ModelCard(f"---\n{head.to_yaml()}\n---\n\n{text}")
