"""From a recipe to all that training needs: model, examples, features, batches."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import CONFIG_NAME, cached_file

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, as_input_error, at
from swep_ds.common.files import user_path
from swep_ds.common.settings import differences, flatten
from swep_ds.data.batches import TrainingBatches
from swep_ds.data.example import Example
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.splits import halves
from swep_ds.data.windows import empty_answer, separate_texts
from swep_ds.evaluation.bounds import are_whole_words
from swep_ds.evaluation.evaluate import CACHE, EvalSet, Evaluation
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import SpanSettings
from swep_ds.evaluation.unreachable import unreachable
from swep_ds.kernels.op import implementation
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.folders import resolve_model
from swep_ds.models.hub import check_knows, check_length, load_config, load_tokenizer, pad_to_one_length
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.asked import numbers, read_asked
from swep_ds.pipeline.examples import by_source, load_examples, source_of_test_set, warn_of_known
from swep_ds.pipeline.folder import RunFolder, resume_fingerprint
from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import HOLDOUT, Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.training.ds_config import complete_ds_config, read_ds_config, zero_stage
from swep_ds.training.settings import REPORTS, SPREAD
from swep_ds.training.zero.flats import parameter_shapes

log = logging.getLogger(__name__)
# in a model's config.json: who wrote it and how it is loaded, not what it computes
NOT_COMPUTED = ("_name_or_path", "architectures", "dtype", "tie_word_embeddings", "transformers_version", "use_cache")
FIRST_STAGE = "first stage (pretrain)"  # in messages: its recipe is not the one that the user wrote
MULTIPLE_ON_GPU = 16  # of the widths of batches, by default
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


@dataclass(frozen=True)
class Prepared:
    """A recipe made ready to train, on this rank."""

    objective: Objective
    tokenizer: PreTrainedTokenizerFast
    config: dict[str, Any]  # the resolved ds_config
    features: Features  # the windows to train on
    unreachable: list[str]  # sentences about training answers that the model can never give
    batches: TrainingBatches
    tests: list[EvalSet]  # the source domain first
    validation: EvalSet | None  # scores the checkpoints, and chooses when to decline a question
    evaluation: Evaluation
    inputs: dict[str, str]  # `input_checksums`
    remarks: list[dict[str, str]]  # of `load_examples`
    asked: dict[str, np.ndarray]  # as of `write_asked`: what it and the model that it starts from were trained on


def prepare(
    recipe: Recipe, ds_config: str, start: str | None = None, tested_later: Mapping[str, list[Example]] | None = None
) -> Prepared:
    """Loads model and data. Everything that can be wrong is checked before the first long wait. Collective.

    The weights come from `start`, or else from `model.name`, which always gives the tokenizer. `tested_later` has the
    questions of a second stage, by data set, on which this stage should not train.
    """
    remarks: list[dict[str, str]] = []

    def read_text() -> tuple[PreTrainedTokenizerFast, list[Example], dict[str, list[Example]]]:
        read_ds_config(ds_config)
        ranks.set_deterministic(recipe.train.deterministic)
        resolve_model(recipe.model.name)
        training, tests = load_examples(recipe, remarks)  # own files come before the hub
        tokenizer = check_model(recipe)
        for field, examples in (by_source(recipe, training) | tests).items():
            contexts = (example.context for example in examples)
            check_knows(tokenizer, contexts, f"model.name {recipe.model.name}", field)
        return tokenizer, training, tests

    # the cheapest come first: a missing file ends the run before gigabytes of weights are read
    read = ranks.on_all_ranks if recipe.data.texts is None else ranks.local_rank_zero_first  # which keeps documents
    tokenizer, training, tests = read(read_text)
    warn_of_known(recipe, training, tested_later or {})
    trained = np.concatenate([numbers(training), read_asked(user_path(start or recipe.model.name), "trained")])
    asked = {"trained": trained, "held_out": numbers(tests.get(HOLDOUT, ()))}
    torch.manual_seed(recipe.seed)
    accelerator.lean_heap(True)
    with ranks.step("loading the model", lambda: sum(p.nbytes for p in objective.parameters())):
        objective, config = ranks.on_all_ranks(lambda: load(recipe, ds_config, tokenizer, start or recipe.model.name))
    if ranks.from_rank0(lambda: objective.qa.model.pads):  # the rank that has tried a mapped model
        pad_to_one_length(tokenizer, objective.qa.model, recipe.data.max_length)
    validation = {}
    if name := recipe.validation_set:
        with at("eval.select_on" if recipe.eval.select_on else "data.holdout_fraction"):
            validation[name], tests[name] = halves(tests[name])
    declines = recipe.data.unanswerable == "train" and not all(example.answers for example in training)
    if (whole_words := recipe.eval.whole_words) is None:
        whole_words = are_whole_words(training)
    evaluation = Evaluation(
        tokenizer,
        window_settings(recipe),
        SpanSettings(recipe.eval.n_best, recipe.eval.max_answer_tokens, whole_words),
        recipe.eval.batch_size,
        0.0 if declines else None,  # odds, where no data choose others
    )

    def tokenise() -> tuple[Features, list[EvalSet], list[EvalSet]]:
        features = training_features(recipe, tokenizer, training, Console(quiet=not ranks.is_main()))
        scorer_of = recipe.eval.scorer_of
        return features, evaluation.prepare(tests, scorer_of), evaluation.prepare(validation, scorer_of)

    ranks.progress("windows of all questions")
    features, test_sets, validation_sets = ranks.local_rank_zero_first(tokenise)
    for test in test_sets:
        if advice := test.scorer.advice(test.name, test.golds):
            warn_once(advice)
    batches = training_batches(recipe, tokenizer, features, ranks.rank(), ranks.world_size(), accelerator.on_gpu())
    return Prepared(
        objective=objective,
        tokenizer=tokenizer,
        config=config,
        features=features,
        unreachable=unreachable_training(recipe, features, training, test_sets[0].scorer if test_sets else Scorer()),
        batches=batches,
        tests=test_sets,
        validation=next(iter(validation_sets), None),
        evaluation=evaluation,
        inputs=ranks.from_rank0(lambda: input_checksums(recipe)),
        remarks=remarks,
        asked=asked,
    )


def run_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The tokenizer that a run uses and saves."""
    tokenizer = load_tokenizer(recipe.model.name)
    if recipe.task == "extractive":
        separate_texts(tokenizer)
    return tokenizer


def check_model(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that fits the recipe as far as its config tells, before gigabytes of weights are read.
    Raises InputError: as `run_tokenizer`, `load_model` and `methods.build`."""
    tokenizer = run_tokenizer(recipe)
    qa = load_model(recipe, tokenizer, recipe.model.name, weights=False)
    build(recipe.method, qa.hidden_size, qa.embedding_size)
    return tokenizer


def window_settings(recipe: Recipe) -> WindowSettings:
    data = recipe.data
    return WindowSettings(data.max_length, data.doc_stride, data.max_query_length, recipe.task, data.max_target_length)


def training_features(recipe: Recipe, tokenizer, examples: list[Example], console: Console | None = None) -> Features:
    """The windows; of a mix those of each source, which other mixes share in the cache."""
    build = partial(
        build_features,
        tokenizer=tokenizer,
        settings=window_settings(recipe),
        training=True,
        windows_without_answer=recipe.data.windows_without_answer,
        cache_dir=CACHE,
        console=console,
    )
    parts = []
    for field, part in by_source(recipe, examples).items():
        with at(field):
            parts.append(build(part))
    return Features.joined(parts)


def unreachable_training(recipe: Recipe, features: Features, examples: list[Example], scorer: Scorer) -> list[str]:
    """As `unreachable`, for the answers of training, which have only the text that is learned."""
    golds = [(example.context[slice(*example.span)],) if example.span else () for example in examples]
    option = "eval.max_answer_tokens"
    if recipe.task == "generative":
        option = f"data.max_target_length and {option}"
    return unreachable(features, golds, scorer, recipe.eval.max_answer_tokens, option)


def training_batches(
    recipe: Recipe, tokenizer, features: Features, rank: int, world_size: int, on_gpu: bool
) -> TrainingBatches:
    settings = recipe.train
    sizes = [len(part.dataset) for part in features.parts]
    multiple = settings.pad_to_multiple_of
    if multiple is None:
        multiple = MULTIPLE_ON_GPU if on_gpu else 1
    return TrainingBatches(
        features.dataset,
        tokenizer,
        micro_batch_size=settings.micro_batch_size,
        max_tokens=settings.max_tokens,
        accumulation=settings.gradient_accumulation_steps,
        rank=rank,
        world_size=world_size,
        epochs=settings.epochs,
        max_updates=settings.max_updates,
        seed=recipe.seed,
        group_by_length=settings.group_by_length,
        pad_to_multiple_of=multiple,
        max_target_length=recipe.data.max_target_length,
        mix=list(zip(sizes, recipe.data.shares.values(), strict=True)) if sizes else (),
    )


def load(
    recipe: Recipe, ds_config: str, tokenizer: PreTrainedTokenizerFast, source: str
) -> tuple[Objective, dict[str, Any]]:
    """The model with the method, weights from `source`, and the ds_config resolved on the ranks of this process group.

    Raises InputError: as `load_model` and `complete_ds_config`; or this rank's machine cannot run what is asked for.
    """
    qa = load_model(recipe, tokenizer, source, mapped=zero_stage(read_ds_config(ds_config)) == 3)
    method = build(recipe.method, qa.hidden_size, qa.embedding_size)
    objective = Objective(qa, method, recipe.seed, recipe.train.label_smoothing)
    setup = {"world_size": ranks.world_size(), "micro_steps": len(objective.parts(recipe.train.execution))}
    setup |= {"hidden_size": qa.hidden_size, "on_cpu": ranks.device().type == "cpu"}
    train = recipe.train
    if train.precision == "autocast" and accelerator.emulates(torch.bfloat16):
        warn_once("train.precision autocast: this processor has no instructions for bf16: it trains in float32")
        train = train.model_copy(update={"precision": "fp32"})
    config = complete_ds_config(ds_config, train, **setup)
    precision = train.precision
    if precision == "tf32" and not accelerator.has_tf32():
        device = accelerator.product_name()
        raise InputError(f"train.precision tf32: {device} has no TF32 (NVIDIA GPUs from Ampere on do): set it to fp32")
    if ranks.is_main() and precision == "bf16" and accelerator.emulates(torch.bfloat16):
        log.warning("train.precision bf16: this processor has no instructions for bf16, fp32 is faster")
    fix = "install what the reason names, such as a C compiler and Python's headers, or set SWEP_KERNELS to torch"
    with as_input_error("SWEP_KERNELS: the perturbation kernels cannot run", fix):
        kernels = implementation(ranks.device().type, torch.float32)
        if hasattr(kernels, "check_driver"):
            kernels.check_driver()
    return objective, config


def load_model(
    recipe: Recipe, tokenizer, name: str, *, mapped: bool = False, weights: bool = True
) -> ExtractiveQA | GenerativeQA:
    """The model of the recipe's task, to which a tokenizer is fitted. `mapped` and `weights` as in `load_trainable`.

    Raises InputError: `load_trainable` refuses it, it overflows in fp16, or, with a tokenizer, its windows are shorter
    than data.max_length.
    """
    source = resolve_model(name)
    if recipe.train.precision == "fp16" and (kind := load_config(source).model_type) in OVERFLOWS_IN_FP16:
        raise InputError(
            f"train.precision fp16: activations of {kind} overflow in it (it was trained in bfloat16): set it to "
            "autocast, or to bf16 or fp32"
        )
    options = recipe.model.model_dump(exclude={"name"}) | {"mapped": mapped, "weights": weights, "tokenizer": tokenizer}
    options["activation_checkpointing"] = recipe.train.activation_checkpointing
    if recipe.task == "generative":
        options |= {"beams": recipe.eval.beams, "max_answer_tokens": recipe.eval.max_answer_tokens}
        qa = GenerativeQA.load(source, **options)
    else:
        qa = ExtractiveQA.load(source, compiled=recipe.train.compile and weights, **options)
    if recipe.train.freeze_embeddings:
        qa.words.requires_grad_(False)  # DeepSpeed gives them no float32 copy and no moments then
    if tokenizer is None:
        return qa
    if recipe.task == "generative":
        qa.answer_like(empty_answer(tokenizer), declines=recipe.data.unanswerable == "train")
    check_length(tokenizer, qa.model, recipe.data.max_length, "data.max_length")
    return qa


def resume_setup(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """What a run must share with the checkpoint it resumes from."""
    config = dict(prepared.config)
    # whether DeepSpeed or instruments.py notices an overflow changes no number
    config["bf16"] = {key: value for key, value in config["bf16"].items() if key != "check_grad_overflow"}
    setup = resume_fingerprint(recipe) | architecture(prepared.objective)
    setup |= {f"ds_config {name}": value for name, value in config.items() if name not in (*REPORTS, *SPREAD)}
    setup["updates"] = prepared.batches.updates
    setup["global batch"] = prepared.batches.global_batch
    if recipe.train.max_tokens and prepared.batches.pad_to_multiple_of > 1:  # fewer windows then fit into an update
        setup["widths rounded up to"] = prepared.batches.pad_to_multiple_of
    parts = prepared.features.parts or [prepared.features]
    for (field, source), part in zip(recipe.data.sources.items(), parts, strict=True):
        samples = f" or data.augmented {recipe.data.augmented}" if recipe.data.augmented else ""
        setup[f"content of {recipe.as_named(field)} {source}{samples}"] = part.fingerprint
    setup["files of model.name"] = prepared.inputs.get("model.name")
    if recipe.train.freeze_embeddings and not setup["files of model.name"]:  # each start takes them from this commit
        setup["files of model.name"] = Path(cached_file(recipe.model.name, CONFIG_NAME)).parent.name
    if prepared.validation:
        field = source_of_test_set(recipe, prepared.validation.name)
        setup[f"content of {field} {recipe.sources[field]}, selection"] = prepared.validation.features.fingerprint
    return setup


def architecture(objective: Objective) -> dict[str, Any]:
    """What decides the meaning of the weights: the parameters' shapes and the model's config, flat."""
    config = flatten(json.loads(objective.qa.model.config.to_json_string(use_diff=True)))
    shapes = {f"parameter {name}": list(shape) for name, shape in parameter_shapes(objective).items()}
    return {f"model config {name}": value for name, value in config.items() if name not in NOT_COMPUTED} | shapes


def check_alike(setup: dict[str, Any]) -> None:
    """Raises InputError on all ranks if one of them would train under another `setup`. Collective."""
    first, *others = ranks.gather(setup)
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, most=5):
            raise InputError(
                f"rank {number} (here, host {ranks.host(number)}) starts with other settings than rank 0 (there, host "
                f"{ranks.host(0)}): {differing}: give all nodes the same versions, recipe, data and ds_config"
            )


def check_ds_config(recipe: Recipe, ds_config: str, folder: Path, world_size: int, *, on_cpu: bool) -> Recipe:
    """Checks the ds_config against each stage of a run in `folder`, which may have begun elsewhere. Reads no model.

    Returns the recipe with the run's global batch split over the ranks. Raises InputError: as `complete_ds_config`; or
    the run cannot continue on so many ranks.
    """
    setup = {"world_size": world_size, "micro_steps": 1, "hidden_size": 1, "on_cpu": on_cpu}
    began = RunFolder(folder).read_batch([])
    if began:
        recipe = began.split(recipe, world_size)
    elif recipe.pretrain:
        with at(FIRST_STAGE):
            complete_ds_config(ds_config, recipe.first_stage().train, **setup)
    complete_ds_config(ds_config, recipe.train, **setup)
    return recipe
