"""A run, from recipe to report: examples, features, batches, passes, engine, predictions, scores, results.

A recipe with `pretrain` goes through twice: first on that data, as a separate run in the folder `pretrain/`.
"""

import gc
import json
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, RunExit, reason
from swep_ds.common.files import read_lines, write_atomically
from swep_ds.evaluation.evaluate import Evaluation, Predictions
from swep_ds.evaluation.results import (
    Evaluated,
    Results,
    Score,
    Selection,
    SetScore,
    print_scores,
    provenance,
    read_results,
    versions,
    write_results,
)
from swep_ds.pipeline.export import NOISE, export_model, export_noise
from swep_ds.pipeline.folder import (
    DS_CONFIG,
    HEALTH_FILE,
    PRETRAIN,
    RECIPE,
    UNAVERAGED,
    GlobalBatch,
    RunFolder,
    check_alike,
)
from swep_ds.pipeline.inputs import check_unchanged
from swep_ds.pipeline.prepare import Job, prepare, resume_setup
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.writing import check_shared, write_on_all_ranks, write_on_rank0
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.determinism import naming_operation
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import train
from swep_ds.training.metrics import check_weights, peak_memory_bytes
from swep_ds.training.services import check_service
from swep_ds.training.tracking import Table, Tracker

log = logging.getLogger(__name__)
MakeReport = Callable[[Path], tuple[str, Mapping[str, Table]]]  # from a run's folder: the page, and its tables by name
Say = Callable[[str], None]


def run(recipe: Recipe, ds_config: str, output_dir: Path, resume: str, report: MakeReport | None = None) -> None:
    """A whole run: train or resume, evaluate, export, write the results. Collective.

    Args:
        ds_config: name of a shipped ds_config, or path of a file.
        output_dir: the run's folder (`RunFolder`).
        resume: "auto" resumes the run in `output_dir`, "never" refuses a folder with a run; otherwise the folder of a
            checkpoint to resume from.
        report: writes the report of the finished run, on rank 0.

    Raises:
        InputError: on all ranks, with the same message.
        TrainingDiverged: the loss or a weight is no longer finite.
        WriteFailed: a full disk, an unwritable folder.
    """
    say = Console(quiet=not ranks.is_main()).print
    with RunFolder(output_dir) as folder:
        tags, split = _take(folder, recipe, resume)
        if ranks.world_size() > 1:
            check_shared(output_dir)
        if not tags:
            ranks.from_rank0(folder.check_not_finished)
        start = recipe.model.name
        if recipe.pretrain and not tags:
            start = str(pretrain(recipe, split, ds_config, folder, resume, say))
        tracker = _run_stage(recipe, prepare(split, ds_config, start), folder, tags, say)
        if report:
            _report(report, folder, tracker, say)
        else:
            tracker.finish()


def _take(folder: RunFolder, recipe: Recipe, resume: str) -> tuple[list[Path], Recipe]:
    """The checkpoints to resume from, and the recipe with its global batch split over these ranks."""

    def take() -> tuple[list[Path], dict[str, Any]]:
        tags = folder.take(recipe, resume)
        if not tags:
            check_service(recipe)
        began = folder.read_batch(tags)
        split = began.split(recipe, ranks.world_size()) if began else recipe
        return tags, split.model_dump(mode="json")  # a method's settings may be of a class that cannot be pickled

    tags, split = ranks.from_rank0(take)
    return tags, Recipe.model_validate(split)


def pretrain(recipe: Recipe, split: Recipe, ds_config: str, folder: RunFolder, resume: str, say: Say) -> Path:
    """Trains the first stage, unless that is done; returns the folder of its model.

    Args:
        split: the recipe as the second stage will run it.
    """
    first = recipe.first_stage()
    with RunFolder(folder.path / PRETRAIN) as first_folder:
        tags, first_split = _take(first_folder, first, "never" if resume == "never" else "auto")
        if ranks.from_rank0(first_folder.results.is_file):
            with _in_first_stage():
                ranks.from_rank0(lambda: check_unchanged(first, first_folder.path, training_source="pretrain.train"))
        else:
            second = prepare(split, ds_config)  # an error of the second stage must not show hours later
            batch = GlobalBatch.of(recipe, second.batches.global_batch)
            tests = {test.name: test.examples for test in second.tests}
            if half := second.validation:
                tests[half.name] = half.examples + tests[half.name]
            del second
            with _in_first_stage():
                job = prepare(first_split, ds_config, training_source="pretrain.train", tested_later=tests)
            say(f"first stage, in {first_folder.path}:")
            write_on_rank0(lambda: folder.write_batch(batch), folder.path)
            _run_stage(first, job, first_folder, tags, say, keep_fp32=True).finish()
            del job
            gc.collect()  # the engine's reference cycles hold the device's memory
            get_accelerator().empty_cache()
            get_accelerator().reset_peak_memory_stats()
    ranks.progress("second stage")
    say(f"second stage, from {first_folder.model}:")
    return first_folder.model


@contextmanager
def _in_first_stage() -> Iterator[None]:
    """Errors name the stage: its recipe is not the one that the user wrote."""
    try:
        yield
    except InputError as error:
        raise InputError(f"first stage (pretrain): {error}") from None


def _run_stage(
    recipe: Recipe, job: Job, folder: RunFolder, tags: list[Path], say: Say, *, keep_fp32: bool = False
) -> Tracker:
    """Trains, evaluates, exports and writes the results; returns the tracker, which the caller finishes.

    Args:
        tags: checkpoints; the first one is resumed from. [] = a new run.
        keep_fp32: as in `export_model`.
    """
    (setup, layout), updates = resume_setup(recipe, job), job.batches.updates
    check_alike(setup | layout)
    _say_job(recipe, job, folder, say)
    ranks.progress("engine")
    with _engine(recipe, job, folder) as engine, naming_operation():
        average = WeightAverage.of(engine, recipe.train, updates)
        outcomes = _outcomes(recipe, folder, average)
        batch = GlobalBatch.of(recipe, job.batches.global_batch)
        kept, on_failure = recipe.train.keep_checkpoints, recipe.train.on_checkpoint_failure
        checkpoints = Checkpoints(folder.checkpoints, kept, setup, layout, asdict(batch), on_failure, average=average)
        before = checkpoints.load(engine, tags[0]) if tags else TrainState()
        first = ranks.from_rank0(lambda: _first_stage(recipe, folder))
        # last, so that a start that is refused leaves the folder as it was
        write_on_rank0(lambda: _note_start(folder, recipe, job, before.updates == updates), folder.path)
        if tags:
            say(f"resuming from {tags[0]}: {before.updates} of {updates} updates are done")
        with write_on_all_ranks(
            lambda: Tracker(recipe, folder.path, updates, before, active=ranks.is_main()), folder.path
        ) as tracker:
            selects = recipe.eval.select_on is not None
            validate = partial(_validate, engine, job, outcomes[-1]) if selects else None
            done = train(engine, job.batches, recipe.train, checkpoints, tracker, before, validate, average)
            peak = max(ranks.gather(_peak(folder, before)))  # before evaluation, which may take more
            selection = select(engine, checkpoints, recipe, done, say) if selects else None
            engine.eval()
            tested = [_test(engine, job, outcome, say) for outcome in outcomes]
            selections = [_scored(selection, test) for test in tested[:-1]] + [selection]
            tracker.summary(tested[-1].scores)
        ranks.progress("export")
        results = partial(_results, recipe, job, done, peak, first)
        for outcome, chosen, test in zip(outcomes, selections, tested, strict=True):
            with outcome.weights():
                export_model(engine, job.tokenizer, outcome.folder.model, outcome.recipe, test, keep_fp32)
            export_noise(engine, outcome.folder.path / NOISE)
            write_on_rank0(partial(write_results, outcome.folder.path, results(chosen, test)), outcome.folder.results)
    if ranks.is_main():
        for outcome, test in zip(outcomes, tested, strict=True):
            if test.scores:
                print_scores(test.scores, outcome.title)
        say(f"model in {folder.model}, results in {folder.results}")
    return tracker


def _peak(folder: RunFolder, before: TrainState) -> int:
    """This rank's peak memory in bytes; on rank 0 the highest of all ranks' in earlier starts, if there were any."""
    lines = read_lines(folder.path / HEALTH_FILE) if before.updates and ranks.is_main() else []
    earlier = [int(2**20 * mib) for line in lines for mib in line.get("memory_mib", [])]
    return max([peak_memory_bytes(), *earlier])


NO_VALIDATION = "the default, for lack of data to choose it on (set data.holdout_fraction or eval.select_on)"
NO_CALIBRATOR = (
    "confidences are softmax probabilities: no held-out half of the source domain calibrates them (eval.select_on)"
)


@dataclass(frozen=True)
class Outcome:
    """A set of a run's weights, which is tested and exported into `folder` as if `recipe` had trained it."""

    recipe: Recipe
    folder: RunFolder
    weights: Callable[[], AbstractContextManager[None]]  # a context in which the engine holds them
    kind: str = ""  # names the outcome if the run has two

    @property
    def title(self) -> str:
        return f"{self.recipe.title}, {self.kind}" if self.kind else self.recipe.title


def _outcomes(recipe: Recipe, folder: RunFolder, average: WeightAverage | None) -> list[Outcome]:
    """The run's main outcome is last. With `train.average`, the outcome without the average comes first."""
    if average is None:
        return [Outcome(recipe, folder, nullcontext)]
    plain = Outcome(recipe.unaveraged(), RunFolder(folder.path / UNAVERAGED), nullcontext, UNAVERAGED)
    return [plain, Outcome(recipe, folder, average.applied, recipe.train.average)]


def _validate(engine, job: Job, outcome: Outcome) -> Score:
    engine.eval()
    with outcome.weights():
        score = job.evaluation.score(engine, job.validation)
    engine.train()
    return score


def _test(engine, job: Job, outcome: Outcome, say: Say) -> Evaluated:
    """Begins the outcome's folder, tunes threshold and calibrator on the validation data, and tests the weights."""
    folder, recipe = outcome.folder, outcome.recipe
    write_on_rank0(lambda: _begin_folder(folder, recipe, job), folder.path)
    if outcome.kind:
        say(f"with train.average {recipe.train.average}, in {folder.path}:")
    names = {test.name: job.evaluation.scorer(test.name).name(test.golds) for test in job.tests}
    with outcome.weights():
        check_weights(engine, [engine.module.qa.model, engine.module.method])
        predictions = job.evaluation.predict(engine, job.validation) if job.validation else None
        evaluation = _tuned(job, predictions, recipe, say)
        scores = evaluation.run(engine, job.tests, folder.path, say)
    scored = predictions and recipe.eval.select_on
    validated = job.evaluation.score_of(predictions, job.validation) if scored else None
    return Evaluated(scores, names, evaluation.null_threshold, evaluation.calibrator, validated)


def _tuned(job: Job, predictions: Predictions | None, recipe: Recipe, say: Say) -> Evaluation:
    """The evaluation with the threshold and, on source text, the calibrator that the answers to the validation data
    choose."""
    evaluation, validation, confidences = job.evaluation, job.validation, NO_CALIBRATOR
    why = NO_VALIDATION
    if predictions:
        if evaluation.null_threshold is not None:
            evaluation, why = evaluation.with_threshold(predictions, validation)
        if validation.name == job.tests[0].name:
            evaluation, confidences = evaluation.with_calibrator(predictions, validation)
    if evaluation.null_threshold is not None:
        say(f"questions are declined at null odds above {evaluation.null_threshold:.2f}: {why}")
    elif recipe.data.unanswerable == "train":
        say("no question is declined: data.unanswerable is train, but all training questions have an answer")
    say(confidences)
    return evaluation


def _results(
    recipe: Recipe,
    job: Job,
    done: TrainState,
    peak: int,
    first: Results | None,
    selection: Selection | None,
    tested: Evaluated,
) -> Results:
    train = {
        "examples": job.questions,
        "features": len(job.features.dataset),
        "updates": done.updates,
        "seconds": done.seconds,
        "samples_per_second": done.windows / done.seconds,
        "tokens_per_second": done.tokens / done.seconds,
        "peak_memory_bytes": peak,
    }
    run = {"method": recipe.method.name, "model": recipe.model.name, "seed": recipe.seed}
    run |= {"world_size": ranks.world_size(), "threads": torch.get_num_threads()}
    run |= {"versions": versions(), "inputs": job.inputs}
    pretraining = None
    if recipe.pretrain:
        pretraining = {"data": recipe.pretrain.train} | (first.train if first else {})
        # maybe in an earlier start, or in the run that this one resumed from
        read = {"pretrain.train": first.inputs.get("data.train") if first else None}
        run["inputs"] = {name: value for name, value in (job.inputs | read).items() if value}
    run["provenance"] = provenance() if ranks.is_main() else {}  # rank 0 writes the results
    chosen = {"selection": selection, "scorers": tested.scorers, "null_threshold": tested.null_threshold}
    chosen["calibrator"] = tested.calibrator
    return Results(**run, train=train, pretraining=pretraining, eval=tested.scores, **chosen)


@contextmanager
def _engine(recipe: Recipe, job: Job, folder: RunFolder) -> Iterator[Any]:
    if job.config.get("wandb", {}).get("enabled"):
        os.environ.setdefault("WANDB_DIR", str(folder.path))  # DeepSpeed would take the current folder
    engine = build_engine(job.objective, job.config, recipe.train, job.batches.updates)
    try:
        yield engine
    except RunExit:  # on all ranks; after another exception the other ranks must first hear of it
        engine.destroy()
        raise
    engine.destroy()


def _say_job(recipe: Recipe, job: Job, folder: RunFolder, say: Say) -> None:
    """Prints the resolved recipe and the size of the training. A refused start prints its error alone, because it never
    gets here."""
    if not ranks.is_main():
        return
    say(recipe.dump().rstrip(), style="dim")
    windows, batches, world, train = job.features, job.batches, ranks.world_size(), recipe.train
    steps, width = batches.accumulation, batches.micro_batch // world
    positions = f" x {train.max_tokens} positions" if train.max_tokens else ""
    if (steps, width) != (train.gradient_accumulation_steps, 1 if train.max_tokens else train.micro_batch_size):
        micro = positions.removeprefix(" x ") or width
        say(
            f"{folder.path} began with a global batch of {batches.global_batch}{positions}: kept, on {world} rank(s), "
            f"by micro-batches of {micro} and an accumulation of {steps}"
        )
    if recipe.task == "generative":
        answers = f", {windows.targets_cut} answers cut"
    else:
        long = windows.answers_above(recipe.eval.max_answer_tokens)
        answers = f", {long} with an answer longer than eval.max_answer_tokens, which is never given" if long else ""
    say(
        f"training {recipe.method.name} on {job.questions} questions in {len(windows.dataset)} windows "
        f"({windows.windows_without_answer} without the answer, {windows.questions_cut} questions cut{answers}): "
        f"{batches.updates} updates of {batches.size}, ZeRO-{zero_stage(job.config)}, "
        f"{world} rank(s) on {ranks.device().type}, {train.precision}, {train.execution} execution"
    )


def _note_start(folder: RunFolder, recipe: Recipe, job: Job, trained: bool) -> None:
    """`trained`: whether all updates are done. If they are, and the settings are unchanged, earlier results stay until
    new ones replace them."""
    files = ((folder.path / name, text.encode()) for name, text in _settings(recipe, job).items())
    if not (trained and all(file.is_file() and file.read_bytes() == content for file, content in files)):
        for file in (folder.results, folder.report, RunFolder(folder.path / UNAVERAGED).results):
            file.unlink(missing_ok=True)
    _begin_folder(folder, recipe, job)


def _begin_folder(folder: RunFolder, recipe: Recipe, job: Job) -> None:
    folder.path.mkdir(exist_ok=True)
    folder.write_batch(GlobalBatch.of(recipe, job.batches.global_batch))  # first: it makes the folder a run's
    for name, text in _settings(recipe, job).items():
        write_atomically(folder.path / name, text)


def _settings(recipe: Recipe, job: Job) -> dict[str, str]:
    """The files, by name, that say with which settings a run was made."""
    return {RECIPE: recipe.dump(), DS_CONFIG: json.dumps(job.config, indent=2) + "\n"}


def _first_stage(recipe: Recipe, folder: RunFolder) -> Results | None:
    """The results of the first stage, where it was run in this folder. Raises InputError: they are damaged."""
    file = RunFolder(folder.path / PRETRAIN).results
    return read_results(file) if recipe.pretrain and file.is_file() else None


def select(engine, checkpoints: Checkpoints, recipe: Recipe, done: TrainState, say: Say) -> Selection:
    """Loads the best checkpoint into the engine.

    A run that resumed from another run's last checkpoint has no checkpoint in its folder; it keeps that one.
    """
    best = checkpoints.best()
    update = done.updates if best is None else best
    if update != done.updates:
        checkpoints.load(engine, checkpoints.tag(update))
    scores = {str(number): checkpoints.scores[number] for number in sorted(checkpoints.scores)}
    chosen = checkpoints.scores[update]
    say(
        f"selected update {update} of {done.updates}: F1 {chosen['f1']:.2f}, EM {chosen['exact_match']:.2f} on the "
        f"first half of {recipe.eval.select_on}"
    )
    return Selection(data_set=recipe.eval.select_on, update=update, **chosen, checkpoints=scores)


def _scored(selection: Selection | None, tested: Evaluated) -> Selection | None:
    """The selection, which the main outcome's scores made, with the score of another outcome."""
    if selection is None:
        return None
    score = SetScore.model_validate(tested.validation)
    return selection.model_copy(update=dict(score) | {"checkpoints": {str(selection.update): score}})


def _report(report: MakeReport, folder: RunFolder, tracker: Tracker, say: Say) -> None:
    """Writes the report on rank 0 when the engine is gone; the other ranks wait. A failure only warns."""
    gc.collect()
    get_accelerator().empty_cache()  # frees the engine's memory: the report loads the model
    ranks.progress("report")
    if not ranks.is_main():
        return
    try:
        page, tables = report(folder.path)
    except Exception as error:
        again = f"swep-ds report {shlex.quote(str(folder.path))}"
        log.warning("no report.html (%s); the run is done, and `%s` makes it", reason(error), again)
        tracker.finish()
    else:
        say(f"report in {folder.report}")
        tracker.finish(page, tables)
