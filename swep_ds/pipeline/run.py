"""One way through: recipe, examples, features, batches, passes, engine, predictions, scores, results.

A recipe with `pretrain` goes that way twice: first on that data, as a run of its own in the folder `pretrain/`.
"""

import gc
import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.console import Console
from swep_ds.data.batches import Padding, TrainingBatches
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.readers import Example
from swep_ds.data.splits import halves
from swep_ds.errors import InputError, RunExit, parsing
from swep_ds.evaluation.evaluate import CACHE, EvalSet, Evaluation
from swep_ds.evaluation.results import Score, Scores, print_scores, versions, write_results
from swep_ds.evaluation.spans import SpanSettings
from swep_ds.files import read_json, write_atomically
from swep_ds.kernels.dispatch import implementation
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models import packing
from swep_ds.models.configs import load_config
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import check_knows, fit_tokenizer, load_tokenizer, longest_window, resolve_model
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.export import NOISE, export_model, export_noise
from swep_ds.pipeline.folder import PRETRAIN, Batch, RunFolder, check_alike, resume_fingerprint
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from swep_ds.recipe import Recipe
from swep_ds.settings import flatten
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.conversion import parameter_shapes
from swep_ds.training.ds_config import (
    REPORTS,
    SPREAD,
    check_machine,
    check_monitors,
    read_ds_config,
    resolve_ds_config,
    zero_stage,
)
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import train
from swep_ds.training.tracking import Table, Tracker, peak_memory_bytes

log = logging.getLogger(__name__)
MakeReport = Callable[[Path], tuple[str, Mapping[str, Table]]]  # of a run's folder; gives the page and tables in it
# in a model's config.json: who wrote it and how it is loaded, not what it computes
OF_THE_FOLDER = ("_name_or_path", "architectures", "dtype", "tie_word_embeddings", "transformers_version", "use_cache")
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


@dataclass(frozen=True)
class Job:
    """A recipe made ready to train, on this rank."""

    objective: Objective
    tokenizer: PreTrainedTokenizerFast
    config: dict[str, Any]  # the resolved ds_config
    questions: int  # to train on
    features: Features  # their windows
    batches: TrainingBatches
    tests: list[EvalSet]  # the source domain first
    validation: EvalSet | None  # what the checkpoint is chosen by
    evaluation: Evaluation


def run(recipe: Recipe, ds_config: str, output_dir: Path, resume: str, report: MakeReport | None = None) -> None:
    """A whole run, on all ranks together: train or resume, evaluate, export, write the results.

    Args:
        ds_config: path of a ds_config file.
        output_dir: the run's folder (`RunFolder`).
        resume: "auto" goes on with the run that `output_dir` holds, "never" wants none there; otherwise the folder
            of a checkpoint to go on from.
        report: what writes the report of the run when it is done, on rank 0.

    Raises:
        InputError: on all ranks, with the same message.
        TrainingDiverged: the loss is no longer finite.
        WriteFailed: a full disk, an unwritable folder.
    """
    say = Console(quiet=not ranks.is_main()).print
    folder = RunFolder(output_dir)
    say(recipe.dump().rstrip(), style="dim")
    tags, split = _take(folder, recipe, resume, say)
    start = recipe.model.name
    if recipe.pretrain and not tags:
        start = str(pretrain(recipe, split, ds_config, folder, resume, say))
    tracker = _run(recipe, prepare(split, ds_config, start), folder, tags, say)
    if report:
        _report(report, folder, tracker, say)
    else:
        tracker.finish()


def _take(folder: RunFolder, recipe: Recipe, resume: str, say: Callable[[str], None]) -> tuple[list[Path], Recipe]:
    """The checkpoints to go on from, and the recipe with the split of its global batch that these ranks make."""

    def take() -> tuple[list[Path], Recipe] | None:
        if not ranks.is_main():
            return None
        tags = folder.take(recipe, resume)
        began = folder.began(tags)
        return tags, began.keep(recipe, ranks.world_size()) if began else recipe

    tags, split = ranks.gather(ranks.on_all_ranks(take))[0]
    if split != recipe:
        micro, steps = split.train.micro_batch_size, split.train.gradient_accumulation_steps
        tokens = split.train.max_tokens
        whole = steps * ranks.world_size() * (1 if tokens else micro)
        say(
            f"{folder.path} began with a global batch of {whole}{f' x {tokens} positions' if tokens else ''}: kept, on "
            f"{ranks.world_size()} rank(s), by micro-batches of {f'{tokens} positions' if tokens else micro} and an "
            f"accumulation of {steps}"
        )
    return tags, split


def pretrain(
    recipe: Recipe, split: Recipe, ds_config: str, folder: RunFolder, resume: str, say: Callable[[str], None]
) -> Path:
    """The folder of the first stage's model, which is trained now unless that is done.

    Args:
        split: the recipe as the second stage will be run.
    """
    first, own = recipe.first_stage(), RunFolder(folder.path / PRETRAIN)
    tags, first_split = _take(own, first, "never" if resume == "never" else "auto", say)
    if not ranks.gather(own.results.is_file())[0]:
        second = prepare(split, ds_config)  # what is wrong with the second stage must not show hours later
        batch = Batch.of(recipe, second.batches.global_batch)
        del second
        say(f"first stage, in {own.path}:")
        try:
            job = prepare(first_split, ds_config, training_source="pretrain.train")
        except InputError as error:
            raise InputError(f"first stage (pretrain): {error}") from None
        write_on_rank0(lambda: folder.keep(batch), folder.path)
        _run(first, job, own, tags, say, keep_fp32=True).finish()
        del job
        gc.collect()  # the engine's reference cycles hold the device's memory
        get_accelerator().empty_cache()
        get_accelerator().reset_peak_memory_stats()
    say(f"second stage, from {own.model}:")
    return own.model


def _run(
    recipe: Recipe,
    job: Job,
    folder: RunFolder,
    tags: list[Path],
    say: Callable[[str], None],
    *,
    keep_fp32: bool = False,
) -> Tracker:
    """One stage, from the first undamaged one of `tags`, or from the start, to the results; its tracker to finish."""
    stage, updates = zero_stage(job.config), job.batches.updates
    setup, layout = _setup(recipe, job)
    check_alike(setup | layout)
    windows = job.features
    targets = f", {windows.targets_cut} answers cut" if recipe.task == "generative" else ""
    say(
        f"training {recipe.method.name} on {job.questions} questions in {len(windows.dataset)} windows "
        f"({windows.windows_without_answer} without the answer, {windows.questions_cut} questions cut{targets}): "
        f"{updates} updates of {job.batches.size}, ZeRO-{stage}, {ranks.world_size()} rank(s) "
        f"on {ranks.device().type}, {recipe.train.precision}, {recipe.train.execution} execution"
    )
    engine = build_engine(job.objective, job.config, recipe.train, updates)
    try:
        tracker = _carry_out(engine, job, recipe, folder, tags, say, keep_fp32)
    except RunExit:  # on all ranks; of any other exception they must hear first
        engine.destroy()
        raise
    engine.destroy()
    return tracker


def _carry_out(
    engine,
    job: Job,
    recipe: Recipe,
    folder: RunFolder,
    tags: list[Path],
    say: Callable[[str], None],
    keep_fp32: bool,
) -> Tracker:
    updates, batch = job.batches.updates, Batch.of(recipe, job.batches.global_batch)

    def validate() -> Score:
        return job.evaluation.score(engine, job.validation)[1]

    checkpoints = Checkpoints(
        folder.checkpoints,
        recipe.train.keep_checkpoints,
        *_setup(recipe, job),
        asdict(batch),
        recipe.train.on_checkpoint_failure,
    )
    tag, before = checkpoints.load(engine, tags) if tags else (None, TrainState())
    ranks.on_all_ranks(lambda: checkpoints.check_names(before.updates, updates, recipe.train.checkpoint_every))
    pretraining = ranks.gather(ranks.on_all_ranks(lambda: _pretraining(recipe, folder) if ranks.is_main() else {}))[0]
    # not earlier: a start that is refused leaves the folder as it was
    write_on_rank0(lambda: _note_start(folder, recipe, job, batch), folder.path)
    if tag is not None:
        say(f"resuming from {tag}: {before.updates} of {updates} updates are done")
    with write_on_all_ranks(
        lambda: Tracker(recipe, folder.path, updates, before, active=ranks.is_main()), folder.path
    ) as tracker:
        done = train(
            engine, job.batches, recipe.train, checkpoints, tracker, before, validate if job.validation else None
        )
        peak = max(ranks.gather(peak_memory_bytes()))  # before evaluation, which may take more
        selection = select(engine, checkpoints, recipe, done, say) if job.validation else None
        engine.eval()
        scores = job.evaluation.run(engine, job.tests, folder.path, say)
        tracker.summary(scores)
    ranks.progress("export")
    export_model(engine, job.tokenizer, folder.model, recipe, scores, keep_fp32)
    export_noise(engine, folder.path / NOISE)
    found = results(recipe, job, pretraining, done, peak, selection, scores)
    write_on_rank0(lambda: write_results(folder.path, found), folder.results)
    if ranks.is_main():
        if scores:
            print_scores(scores, f"{recipe.method.name}, {recipe.model.name}, seed {recipe.seed}")
        say(f"model in {folder.model}, results in {folder.path / 'results.json'}")
    return tracker


def _report(report: MakeReport, folder: RunFolder, tracker: Tracker, say: Callable[[str], None]) -> None:
    """Rank 0's last work, with the engine gone; the others wait at their common end. No fault of it is the run's."""
    gc.collect()
    get_accelerator().empty_cache()  # of the engine, as a model is loaded
    ranks.progress("report")
    if not ranks.is_main():
        return
    try:
        page, tables = report(folder.path)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        again = f"python scripts/report.py {shlex.quote(str(folder.path))}"
        log.warning("no report.html (%s); the run is done, and `%s` makes it", reason, again)
        tracker.finish()
    else:
        say(f"report in {folder.report}")
        tracker.finish(page, tables)


def _setup(recipe: Recipe, job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run must have in common with the checkpoint that it goes on from, and how its state is spread."""
    setup = {
        "updates": job.batches.updates,
        "global batch": job.batches.global_batch,
        "training data": job.features.fingerprint,
        **{f"ds_config {name}": value for name, value in job.config.items() if name not in (*REPORTS, *SPREAD)},
        **resume_fingerprint(recipe),
        **_architecture(job.objective),
    }
    if job.validation:
        setup["selection data"] = job.validation.features.fingerprint
    zero, stage = job.config.get("zero_optimization", {}), zero_stage(job.config)
    return setup, {"world_size": ranks.world_size(), "zero_stage": stage, "zero_optimization": zero}


def _architecture(objective: Objective) -> dict[str, Any]:
    """What weights of equal number could still mean otherwise: the parameters' shapes and the model's config, flat."""
    config = flatten(json.loads(objective.qa.model.config.to_json_string(use_diff=True)))
    shapes = {f"parameter {name}": list(shape) for name, shape in parameter_shapes(objective).items()}
    return {f"model config {name}": value for name, value in config.items() if name not in OF_THE_FOLDER} | shapes


def _note_start(folder: RunFolder, recipe: Recipe, job: Job, batch: Batch) -> None:
    for file in (folder.results, folder.report):
        file.unlink(missing_ok=True)  # of an earlier start, perhaps with other settings for testing
    write_atomically(folder.path / "recipe.yaml", recipe.dump())
    write_atomically(folder.path / "ds_config.json", json.dumps(job.config, indent=2) + "\n")
    folder.keep(batch)


def select(
    engine, checkpoints: Checkpoints, recipe: Recipe, done: TrainState, say: Callable[[str], None]
) -> dict[str, Any]:
    """Puts the best checkpoint into the engine; returns the results' section `selection`.

    A run that went on from another one's last checkpoint has none of its own, and keeps that.
    """
    best = checkpoints.best()
    update = done.updates if best is None else best
    if update != done.updates:
        checkpoints.restore(engine, checkpoints.tag(update))
    scores = {number: checkpoints.scores[number] for number in sorted(checkpoints.scores)}
    chosen = scores[update]
    say(
        f"selected update {update} of {done.updates}: F1 {chosen['f1']:.2f}, EM {chosen['exact_match']:.2f} on the "
        f"first half of {recipe.eval.select_on}"
    )
    return {"data_set": recipe.eval.select_on, "update": update, **chosen, "checkpoints": scores}


def prepare(recipe: Recipe, ds_config: str, start: str | None = None, *, training_source: str = "data.train") -> Job:
    """Loads model and data. Whatever can be wrong is looked at before the first long wait.

    Args:
        start: where the weights come from; None = `model.name`, whose tokenizer it is in any case.
        training_source: the field that the user named the training data in.

    Raises:
        InputError: on all ranks, with the same message.
    """
    torch.manual_seed(recipe.seed)
    tokenizer = ranks.on_all_ranks(lambda: load_tokenizer(recipe.model.name))
    spread = ranks.on_all_ranks(lambda: read_ds_config(ds_config)).get("zero_optimization", {}).get("stage") == 3
    qa = ranks.on_all_ranks(lambda: load_model(recipe, tokenizer, start or recipe.model.name, mapped=spread))
    objective = Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed)
    config = ranks.on_all_ranks(
        lambda: resolve_ds_config(
            ds_config,
            recipe,
            world_size=ranks.world_size(),
            micro_steps=objective.micro_steps(recipe.train.execution),
            hidden_size=qa.hidden_size,
            on_cpu=ranks.device().type == "cpu",
        )
    )
    ranks.on_all_ranks(lambda: check_machine(config))
    ranks.on_all_ranks(lambda: check_monitors(config) if ranks.is_main() else None)
    ranks.on_all_ranks(check_kernels)
    slow = recipe.train.packing and packing.slow_because(qa.model.config, recipe.train.precision, ranks.device())
    if slow and ranks.is_main():
        log.warning("train.packing: attention is launched for each window in each layer; %s", slow)
    training, examples = ranks.on_all_ranks(lambda: load_examples(recipe, training_source))
    texts = [example.context[:1000] for example in training[:20]]
    ranks.on_all_ranks(lambda: check_knows(tokenizer, texts, f"model.name {recipe.model.name}", training_source))
    windows = window_settings(recipe)
    features = ranks.local_rank_zero_first(lambda: training_features(recipe, tokenizer, training))
    batches = training_batches(recipe, tokenizer, features, ranks.rank(), ranks.world_size())
    spans = SpanSettings(recipe.eval.n_best, recipe.eval.max_answer_tokens)
    evaluation = Evaluation(tokenizer, windows, spans, recipe.eval.batch_size, CACHE)
    validation = None
    if chosen_on := recipe.eval.select_on:
        half, examples[chosen_on] = ranks.on_all_ranks(lambda: halves(examples[chosen_on]))
        [validation] = evaluation.prepare({chosen_on: half})
    tests = evaluation.prepare(examples)
    return Job(objective, tokenizer, config, len(training), features, batches, tests, validation, evaluation)


def check_kernels() -> None:
    """Raises InputError where the perturbation kernels that SWEP_KERNELS names cannot run on this rank's device."""
    with parsing("SWEP_KERNELS: the perturbation kernels cannot run", "unset it, or set it to torch"):
        implementation(ranks.device().type, torch.float32)


def window_settings(recipe: Recipe) -> WindowSettings:
    data = recipe.data
    return WindowSettings(data.max_length, data.doc_stride, data.max_query_length, recipe.task, data.max_target_length)


def training_features(recipe: Recipe, tokenizer, examples: list[Example]) -> Features:
    return build_features(
        examples,
        tokenizer,
        window_settings(recipe),
        training=True,
        windows_without_answer=recipe.data.windows_without_answer,
        cache_dir=CACHE,
    )


def training_batches(recipe: Recipe, tokenizer, features: Features, rank: int, world_size: int) -> TrainingBatches:
    settings = recipe.train
    return TrainingBatches(
        features.dataset,
        Padding.of(tokenizer),
        micro_batch_size=settings.micro_batch_size,
        max_tokens=settings.max_tokens,
        accumulation=settings.gradient_accumulation_steps,
        rank=rank,
        world_size=world_size,
        epochs=settings.epochs,
        max_updates=settings.max_updates,
        seed=recipe.seed,
    )


def load_model(
    recipe: Recipe, tokenizer, name: str, *, mapped: bool = False, weights: bool = True
) -> ExtractiveQA | GenerativeQA:
    """The model of the recipe's task, `mapped` and `weights` as in `load_trainable`; without tokenizer, whatever
    its window."""
    source = resolve_model(name)
    if recipe.train.precision == "fp16" and (kind := load_config(source).model_type) in OVERFLOWS_IN_FP16:
        raise InputError(
            f"train.precision fp16: activations of {kind} overflow in it (it was trained in bfloat16): set it to "
            "autocast, or to bf16 or fp32"
        )
    how = {
        "activation_checkpointing": recipe.train.activation_checkpointing,
        "attention": recipe.model.attention,
        "mapped": mapped,
        "weights": weights,
    }
    if recipe.task == "generative":
        search = {"beams": recipe.eval.beams, "max_answer_tokens": recipe.eval.max_answer_tokens}
        qa = GenerativeQA.load(source, **search, **how)
    else:
        qa = ExtractiveQA.load(source, packed=recipe.train.packing, compiled=recipe.train.compile and weights, **how)
    if tokenizer is None:
        return qa
    fit_tokenizer(tokenizer, qa.model, f"model.name {recipe.model.name}")
    longest = longest_window(tokenizer, qa.model)
    if recipe.data.max_length > longest:
        raise InputError(
            f"data.max_length {recipe.data.max_length}: {recipe.model.name} takes at most {longest} tokens: lower it"
        )
    return qa


def _pretraining(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """Of the results: the first stage's data and, where it was made in this folder, its "train"; empty without one.

    Raises:
        InputError: its `results.json` is damaged.
    """
    if not recipe.pretrain:
        return {}
    file = folder.path / PRETRAIN / folder.results.name
    first = read_json(file) if file.is_file() else {"train": {}}
    if not isinstance(first, dict) or not isinstance(first.get("train"), dict):
        raise InputError(f"{file}: is damaged (no section train): delete it, and the first stage writes it again")
    return {"data": recipe.pretrain.train, **first["train"]}


def results(
    recipe: Recipe,
    job: Job,
    pretraining: dict[str, Any],
    done: TrainState,
    peak: int,
    selection: dict[str, Any] | None,
    scores: Scores,
) -> dict[str, Any]:
    """What `results.json` holds; scores in percent, memory of the rank that took most.

    "pretraining" (`_pretraining`) and "selection" are there if such was.
    """
    return {
        "method": recipe.method.name,
        "model": recipe.model.name,
        "seed": recipe.seed,
        "world_size": ranks.world_size(),
        "train": {
            "examples": job.questions,
            "features": len(job.features.dataset),
            "updates": done.updates,
            "seconds": done.seconds,
            "samples_per_second": done.windows / done.seconds,
            "tokens_per_second": done.tokens / done.seconds,
            "peak_memory_bytes": peak,
        },
        **({"pretraining": pretraining} if pretraining else {}),
        **({"selection": selection} if selection else {}),
        "eval": scores,
        "versions": versions(),
    }
