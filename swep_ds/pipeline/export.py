"""Export: a plain Hugging Face folder that loads without this package, with a model card."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from swep_ds import ranks
from swep_ds.errors import WriteFailed
from swep_ds.evaluation.results import Scores, out_of_domain_mean, versions
from swep_ds.ranks.writing import write_on_all_ranks
from swep_ds.recipe import Recipe
from swep_ds.training.sharding import full_weights

READING = "reading.json"  # how windows are cut and answers decoded; scripts/evaluate.py and answer.py go by it
NOISE = "noise.safetensors"  # in a run's folder: a method's own parameters, for `swep_ds.analysis` alone
FILE_BYTES = 2**30  # of weights in one file, and in rank 0's memory while it is written
WINDOWS = ("max_length", "doc_stride", "max_query_length", "max_target_length")


def export_model(
    engine,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    recipe: Recipe,
    scores: Scores,
    keep_fp32: bool = False,
) -> None:
    """Writes backbone and QA head (safetensors), tokenizer and model card; nothing of the method goes along.

    Loads with `AutoModelForQuestionAnswering.from_pretrained(folder)`. All ranks call this together; the weights come
    into rank 0's CPU memory one by one and leave it file by file. `folder` is replaced as a whole. A model
    `keep_fp32` is written in float32 whatever it was trained in, so that the next training starts where this one
    ended.

    Raises:
        WriteFailed: on all ranks; a model that was there stays.
    """
    model = engine.module.qa.model
    half = recipe.train.precision in ("bf16", "fp16")
    unfinished = folder.with_name(f".{folder.name}.unfinished")

    def write_all() -> None:
        if ranks.is_main():
            shutil.rmtree(unfinished, ignore_errors=True)
        weights = full_weights(engine, model, masters=keep_fp32 and half)
        try:
            write_model(model, weights, unfinished)
        finally:
            for _ in weights:  # those that a full disk left over: the other ranks still give their parts
                pass
        if not ranks.is_main():
            return
        save_tokenizer(tokenizer, unfinished)
        reading = {"data": {name: getattr(recipe.data, name) for name in WINDOWS}, "eval": recipe.eval.model_dump()}
        (unfinished / READING).write_text(json.dumps(reading, indent=2) + "\n", encoding="utf-8")
        (unfinished / "README.md").write_text(model_card(recipe, scores), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)

    try:
        write_on_all_ranks(write_all, folder)
    except WriteFailed:
        if ranks.is_main():
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def export_noise(engine, file: Path) -> None:
    """Writes the method's own parameters, where it has any. All ranks call this together.

    Raises:
        WriteFailed: on all ranks; a file that was there stays.
    """
    method: nn.Module = engine.module.method
    unfinished = file.with_name(f".{file.name}.unfinished")

    def write() -> None:
        weights = dict(full_weights(engine, method, masters=False))
        if ranks.is_main() and weights:
            try:
                save_file(weights, unfinished)
                os.replace(unfinished, file)
            finally:
                unfinished.unlink(missing_ok=True)

    write_on_all_ranks(write, file)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """`tokenizer.save_pretrained(folder)`; the tokenizers library raises a bare `Exception` of what the system says."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        of_system = re.fullmatch(r"(.*) \(os error (\d+)\)", str(error))
        if type(error) is not Exception or not of_system:
            raise
        raise OSError(int(of_system[2]), of_system[1], str(folder)) from None


def write_model(model: PreTrainedModel, weights: Iterator[tuple[str, Tensor | None]], folder: Path) -> None:
    """What `model.save_pretrained(folder)` writes, of weights that come one at a time, in files of `FILE_BYTES`."""
    files: list[Path] = []
    state: dict[str, Tensor] = {}
    if output := model.get_output_embeddings():  # transformers 5 takes every T5's config for tied and sees the weights
        model.config.tie_word_embeddings = output.weight is model.get_input_embeddings().weight

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
    if len(files) == 1:
        files[0].rename(folder / SAFE_WEIGHTS_NAME)
        return
    index = {}
    for number, file in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        with safe_open(file, "pt") as content:
            index |= dict.fromkeys(content.keys(), name)
        file.rename(folder / name)
    size = sum(file.stat().st_size for file in folder.glob("model-*.safetensors"))
    content = {"metadata": {"total_size": size}, "weight_map": index}
    (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def model_card(recipe: Recipe, scores: Scores) -> str:
    """The README.md of an exported model, in the hub's format: method, data, scores, how to load it."""
    pipeline, kind, auto_class = {
        "extractive": ("question-answering", "Extractive", "AutoModelForQuestionAnswering"),
        "generative": ("text-generation", "Generative", "AutoModelForSeq2SeqLM"),
    }[recipe.task]
    rows = [f"| {name} | {s['exact_match']:.2f} | {s['f1']:.2f} | {s['total']} |" for name, s in scores.items()]
    mean = out_of_domain_mean(scores)
    if mean:
        rows.append(f"| mean out of domain | {mean['exact_match']:.2f} | {mean['f1']:.2f} | |")
    settings = ", ".join(f"{k} {v}" for k, v in recipe.method.model_dump().items() if k != "name")
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    table = ""
    if scores:
        table = "\n".join(["| data set | EM | F1 | questions |", "| --- | --- | --- | --- |", *rows])
        table += "\n\nThe first row is the source domain. "
        table += "Scores as the official SQuAD v1.1 and MRQA scorers compute them.\n\n"
    data, train, first = recipe.data, recipe.train, recipe.pretrain
    hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", recipe.model.name) and not Path(recipe.model.name).exists()
    base = f"\nbase_model: {recipe.model.name}" if hub_id else ""
    chosen = {
        "held out": data.holdout_fraction and f"{data.holdout_fraction:.0%} of the articles",
        "fraction": data.train_fraction != 1 and f"{data.train_fraction:.0%} of the questions",
        "limit": data.max_train_examples and f"at most {data.max_train_examples} questions",
    }
    subset = "".join(f", {name}: {value}" for name, value in chosen.items() if value)
    length = f"{train.epochs:g} epochs" + (f", at most {train.max_updates} updates" if train.max_updates else "")
    more = ""
    if first:
        more += f"\n- Before that: {first.epochs:g} epochs on `{first.train}`, learning rate {first.learning_rate:g}"
    if chosen_on := recipe.eval.select_on:
        more += f"\n- Checkpoint: the best by F1 on one half of `{chosen_on}`; its scores below are of the other half"
    prompt = ', as "question: ... context: ..."' if recipe.task == "generative" else ""
    return f"""---
library_name: transformers
pipeline_tag: {pipeline}
tags: [question-answering, {kind.lower()}-qa, swep-ds, {recipe.method.name}]{base}
metrics: [exact_match, f1]
---

# {kind} question answering, trained with {recipe.method.name}

Fine-tuned from `{recipe.model.name}` on one source data set, to hold up on text from other domains. SWEP learns to
multiply word embeddings with noise during training (Lee et al., ACL 2021); at inference nothing is perturbed, and
this folder is a plain transformers model.

- Method: {recipe.method.name}{f" ({settings})" if settings else ""}
- Training data: `{data.train}`{subset}
- Windows: {data.max_length} tokens, step {data.doc_stride}{prompt}
- Training: {length}, learning rate {train.learning_rate:g}, {train.precision}, seed {recipe.seed}{more}

{table}```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("PATH_OF_THIS_FOLDER")
tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")
```

Made with {made_with}.
"""
