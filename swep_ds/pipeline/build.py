"""Builds what a recipe names, each from what was built before it: tokenizer, model, objective, windows, batches."""

from functools import partial

from transformers import PreTrainedTokenizerFast

from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, at
from swep_ds.data.batches import TrainingBatches
from swep_ds.data.example import Example
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.windows import empty_answer, separate_texts
from swep_ds.evaluation.bounds import are_whole_words
from swep_ds.evaluation.evaluate import CACHE, Evaluation
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import SpanSettings
from swep_ds.evaluation.unreachable import unreachable
from swep_ds.methods import build as build_method
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.folders import resolve_model
from swep_ds.models.hub import check_length, load_config, load_tokenizer
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.examples import by_source
from swep_ds.pipeline.recipe import Recipe

MULTIPLE_ON_GPU = 16  # the widths of batches are its multiples, by default
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


def run_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The tokenizer that a run uses and saves."""
    tokenizer = load_tokenizer(recipe.model.name)
    if recipe.task == "extractive":
        separate_texts(tokenizer)
    return tokenizer


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
    check_length(tokenizer, qa.model, recipe.data.max_length, "data.max_length")
    if recipe.task == "generative":
        qa.answer_like(empty_answer(tokenizer), declines=recipe.data.unanswerable == "train")
    return qa


def build_objective(recipe: Recipe, qa: ExtractiveQA | GenerativeQA) -> Objective:
    """The model with the recipe's method. Raises InputError: as `methods.build`."""
    method = build_method(recipe.method, qa.hidden_size, qa.embedding_size)
    return Objective(qa, method, recipe.seed, recipe.train.label_smoothing)


def window_settings(recipe: Recipe) -> WindowSettings:
    data = recipe.data
    return WindowSettings(data.max_length, data.doc_stride, data.max_query_length, recipe.task, data.max_target_length)


def training_features(recipe: Recipe, tokenizer, examples: list[Example], console: Console | None = None) -> Features:
    """Cuts the windows. A mix is cut by source, so that other mixes can reuse the cache of each source."""
    cut = partial(
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
            parts.append(cut(part))
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
    mix = ()
    if features.parts:
        sizes = [len(part.dataset) for part in features.parts]
        mix = list(zip(sizes, recipe.data.shares.values(), strict=True))
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
        mix=mix,
    )


def build_evaluation(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, training: list[Example]) -> Evaluation:
    """How answers are decoded. It declines questions if `training` has questions without an answer. It answers in whole
    words if the answers of `training` are whole words, unless the recipe says otherwise."""
    whole_words = recipe.eval.whole_words
    if whole_words is None:
        whole_words = are_whole_words(training)
    null_threshold = None
    if recipe.data.unanswerable == "train" and not all(example.answers for example in training):
        null_threshold = 0.0  # odds, where no data choose others
    spans = SpanSettings(recipe.eval.n_best, recipe.eval.max_answer_tokens, whole_words)
    return Evaluation(tokenizer, window_settings(recipe), spans, recipe.eval.batch_size, null_threshold)
