"""A run, from recipe to report: `run`, for each stage `_run_stage`, and what that calls, in order.

A recipe with `pretrain` goes through twice: first on that data, as a separate run in the folder `pretrain/`.
"""

import gc
import logging
import shlex
import socket
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
from swep_ds.common.errors import InputError, RunExit, at, reason
from swep_ds.common.files import PACKAGE, content_checksum, folder_bytes, read_lines, shipped
from swep_ds.evaluation.results import (
    Evaluated,
    Results,
    Score,
    Selection,
    print_scores,
    provenance,
    read_results,
    versions,
    write_remarks,
    write_results,
)
from swep_ds.pipeline.export import NOISE, export_model, export_noise
from swep_ds.pipeline.folder import HEALTH_FILE, PRETRAIN, UNAVERAGED, GlobalBatch, RunFolder, batch_of_rank
from swep_ds.pipeline.inputs import check_unchanged
from swep_ds.pipeline.prepare import FIRST_STAGE, Prepared, check_alike, prepare, resume_setup
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.accelerator import lean_heap, machine, on_gpu, peak_memory_bytes
from swep_ds.ranks.writing import check_shared, write_on_all_ranks, write_on_rank0
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoint_files import read_manifest
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.engine import Engine, build_engine
from swep_ds.training.loop import train
from swep_ds.training.tracking import Table, Tracker, check_wandb

log = logging.getLogger(__name__)
MakeReport = Callable[[Path], tuple[str, Mapping[str, Table]]]  # from a run's folder: the page, and its tables by name
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A set of a run's weights, which is tested and exported into `folder` as if `recipe` had trained it."""

    recipe: Recipe
    folder: RunFolder
    weights: Callable[[], AbstractContextManager[None]] = nullcontext  # a context in which the engine holds them
    kind: str = ""  # names the outcome if the run has two


def run(recipe: Recipe, ds_config: str, output_dir: Path, resume: str, report: MakeReport | None = None) -> None:
    """A whole run: train or resume, evaluate, export, write the results. Collective.

    `ds_config` is the name of a shipped one or the path of a file, `resume` as in `RunFolder.take`, and `report` writes
    the report of the finished run, on rank 0. Raises a `RunExit` on all ranks: InputError, TrainingDiverged (loss or
    weights are no longer finite), WriteFailed or Stopped.
    """
    say = Console(quiet=not ranks.is_main()).print
    with RunFolder(output_dir) as folder:
        tags, split = _take(folder, recipe, resume)
        check_shared(output_dir)
        start = recipe.model.name
        if not tags:
            ranks.from_rank0(lambda: check_wandb(recipe.tracking))
            if ranks.from_rank0(folder.results.is_file):
                raise InputError(
                    f"{folder.path}: its run is finished, and without checkpoints it would be trained again: test its "
                    f"model with `swep-ds evaluate`, or delete {folder.results}"
                )
            if recipe.pretrain:
                start = str(_pretrain(recipe, split, ds_config, folder, resume, say))
        tracker = _run_stage(recipe, prepare(split, ds_config, start), folder, tags, say)
        if report:
            _report(report, folder, tracker, say)
        else:
            tracker.finish()


def preflight(recipe: Recipe, ds_config: str, output_dir: Path, resume: str) -> None:
    """Does all that a start does before it builds the engine, compares versions and this package's code as well, and
    leaves nothing in the folder. Collective. Arguments as `run`'s. Raises InputError: on all ranks, as a start would,
    or where ranks differ."""
    say = Console(quiet=not ranks.is_main()).print
    code = [file for folder in (PACKAGE, shipped("kernels")) for file in sorted(folder.rglob("*.py"))]
    seen = versions() | {"code of this package": content_checksum(code)}
    for line in dict.fromkeys(ranks.gather(f"{socket.gethostname()}: {machine()}")):
        say(line)
    say(", ".join(f"{name} {value}" for name, value in seen.items()))
    check_alike(seen)
    with RunFolder(output_dir) as folder:
        tags, split = _take(folder, recipe, resume)
        check_shared(output_dir)
        _setup(recipe, prepare(split, ds_config), tags)
        if recipe.pretrain:
            with RunFolder(folder.path / PRETRAIN) as first_folder, at(FIRST_STAGE):
                first = recipe.first_stage()
                tags, split = _take(first_folder, first, "auto")
                _setup(first, prepare(split, ds_config), tags)
    say(f"preflight: {ranks.world_size()} rank(s) can start, and see the same")


def _setup(recipe: Recipe, prepared: Prepared, tags: list[Path]) -> dict[str, Any]:
    """What a checkpoint must share with this run. Raises InputError: that is another on one of the ranks, or in the
    first of the checkpoints `tags`."""
    setup = resume_setup(recipe, prepared)
    check_alike(setup | {"zero_optimization": prepared.config.get("zero_optimization", {})})
    if tags:  # before the engine is built, which takes seconds
        ranks.on_all_ranks(lambda: read_manifest(tags[0]).check_fits(tags[0], setup))
    return setup


def _take(folder: RunFolder, recipe: Recipe, resume: str) -> tuple[list[Path], Recipe]:
    """The checkpoints to resume from, and the recipe with its global batch split over these ranks."""
    tags = ranks.from_rank0(lambda: folder.take(recipe, resume))
    began = ranks.from_rank0(lambda: folder.read_batch(tags))
    if began:
        recipe = ranks.on_all_ranks(lambda: began.split(recipe, ranks.world_size()))
    return tags, recipe


def _pretrain(recipe: Recipe, split: Recipe, ds_config: str, folder: RunFolder, resume: str, say: Say) -> Path:
    """Trains the first stage, unless that is done; returns the folder of its model. `split` is for the second stage."""
    first = recipe.first_stage()
    with RunFolder(folder.path / PRETRAIN) as first_folder:
        tags, first_split = _take(first_folder, first, "never" if resume == "never" else "auto")
        if ranks.from_rank0(first_folder.results.is_file):
            with at(FIRST_STAGE):
                ranks.from_rank0(lambda: check_unchanged(first, first_folder.path))
        else:
            second = prepare(split, ds_config)  # an error of the second stage must not show hours later
            batch = GlobalBatch.of(recipe, second.batches.global_batch)
            tests = {test.name: test.examples for test in second.tests}
            del second
            with at(FIRST_STAGE):
                prepared = prepare(first_split, ds_config, tested_later=tests)
            say(f"first stage, in {first_folder.path}:")
            write_on_rank0(lambda: folder.write_batch(batch), folder.path)
            _run_stage(first, prepared, first_folder, tags, say, keep_fp32=True).finish()
            del prepared
            gc.collect()  # the engine's reference cycles hold the device's memory
            get_accelerator().empty_cache()
            get_accelerator().reset_peak_memory_stats()
    ranks.progress("second stage")
    say(f"second stage, from {first_folder.model}:")
    return first_folder.model


def _run_stage(
    recipe: Recipe, prepared: Prepared, folder: RunFolder, tags: list[Path], say: Say, *, keep_fp32: bool = False
) -> Tracker:
    """Trains, evaluates, exports and writes the results; returns the tracker, which the caller finishes.

    It resumes from the first of the checkpoints `tags` that is not damaged. With `train.average` a run has two
    outcomes: `main`, the mean of the weights, and `plain`, the last weights. `keep_fp32` as in `export_model`.
    """
    updates = prepared.batches.updates
    setup = _setup(recipe, prepared, tags)
    if ranks.is_main():
        _say_training(recipe, prepared, folder, say)
    with _engine(recipe, prepared) as engine:
        average = None
        main = Outcome(recipe, folder)
        outcomes = [main]
        if recipe.train.average != "none":
            average = WeightAverage(engine, recipe.train)
            kind = "mean with the start" if recipe.train.average == "start" else recipe.train.average
            main = Outcome(recipe, folder, average.applied, kind)
            plain = Outcome(recipe.unaveraged(), RunFolder(folder.path / UNAVERAGED), kind=UNAVERAGED)
            outcomes = [plain, main]
        batch = asdict(GlobalBatch.of(recipe, prepared.batches.global_batch))
        keep = recipe.train.keep_checkpoints
        checkpoints = Checkpoints(folder.checkpoints, keep, setup, batch, average)
        tag, before = checkpoints.load(engine, tags) if tags else (None, TrainState())
        # last, so that a start that is refused leaves the folder as it was
        _begin(main, prepared, is_trained=before.updates == updates)
        write_on_rank0(lambda: write_remarks(folder.path, prepared.remarks, say), folder.path)
        if tag:
            say(f"resuming from {tag}: {before.updates} of {updates} updates are done")
        settings = recipe.model_dump(mode="json")
        make_tracker = partial(Tracker, recipe.tracking, recipe.method.name, settings, folder.path, updates, before)
        tested = len(outcomes) * _tests_in_updates(prepared)
        with write_on_all_ranks(partial(make_tracker, ranks.is_main(), tested), folder.path) as tracker:
            select_on = recipe.eval.select_on
            validate = partial(_validate, engine, prepared, main) if select_on else None
            done = train(engine, prepared.batches, recipe.train, checkpoints, tracker, before, validate)
            peak = max(ranks.gather(_peak(folder, before)))  # before evaluation, which may take more
            selection = _select(engine, checkpoints, select_on, done, say) if select_on else None
            engine.eval()
            for outcome in outcomes:
                tested = _test_and_export(engine, prepared, outcome, say, keep_fp32)
                write = partial(_write_results, outcome, prepared, done, peak, selection, tested)
                write_on_rank0(write, outcome.folder.results)
            tracker.summary(tested.scores)
    say(f"model in {folder.model}, results in {folder.results}")
    return tracker


def _say_training(recipe: Recipe, prepared: Prepared, folder: RunFolder, say: Say) -> None:
    """Prints the resolved recipe and the size of the training. A refused start never gets here."""
    windows = prepared.features
    batches = prepared.batches
    say(recipe.dump().rstrip(), style="dim")
    if batches.global_batch != batch_of_rank(recipe) * ranks.world_size():
        say(f"{folder.path} began with a global batch of {batches.global_batch}, which is kept")
    cut = f"{windows.questions_cut} questions cut"
    if recipe.task == "generative":
        cut += f", {windows.targets_cut} answers cut"
    say(
        f"training {recipe.method.name} on {windows.examples} questions in {len(windows.dataset)} windows "
        f"({windows.windows_without_answer} without the answer, {cut}): {batches.updates} updates of {batches.size}, "
        f"ZeRO-{zero_stage(prepared.config)}, {ranks.world_size()} rank(s) on {ranks.device().type}, "
        f"{recipe.train.precision}, {recipe.train.execution} execution"
    )
    for line in prepared.unreachable:
        say(f"  {line}")
    read = sum(len(batches.windows(update)) for update in range(batches.updates))
    for part in _mix(recipe, prepared):
        say(
            f"  {part['source']}: {100 * part['share']:.3g} % of each update, {part['questions']} questions in "
            f"{part['windows']} windows, each read about {part['share'] * read / part['windows']:.3g} times in this run"
        )


def _mix(recipe: Recipe, prepared: Prepared) -> list[dict]:
    """What each source of a mix gives; nothing of a single source."""
    mix = []
    for (source, share), part in zip(recipe.data.shares.items(), prepared.features.parts, strict=False):
        mix.append({"source": source, "share": share, "questions": part.examples, "windows": len(part.dataset)})
    return mix


@contextmanager
def _engine(recipe: Recipe, prepared: Prepared) -> Iterator[Engine]:
    size = sum(parameter.nbytes for parameter in prepared.objective.parameters())  # at ZeRO-3 they are empty afterwards
    with ranks.step("engine", lambda: size):
        engine = build_engine(prepared.objective, prepared.config, recipe.train, prepared.batches.updates)
        lean_heap(engine.stage == 3)  # where weights come and go
    try:
        yield engine
    except BaseException as error:
        if isinstance(error, RunExit) or ranks.world_size() == 1:  # else the other ranks must first hear of it
            engine.destroy()
        raise
    engine.destroy()


def _tests_in_updates(prepared: Prepared) -> float:
    """How many updates take as long as the tests: a backward as two forwards, and an answer that is written as one."""
    forwards = sum(3 if pass_.trains else 1 for pass_ in prepared.objective.method.passes(0.0))
    windows = sum(len(test.features.dataset) for test in filter(None, [*prepared.tests, prepared.validation]))
    return windows / (forwards * len(prepared.batches.windows(0)))


def _begin(outcome: Outcome, prepared: Prepared, *, is_trained: bool) -> None:
    batch = prepared.batches.global_batch
    begin = partial(outcome.folder.begin, outcome.recipe, prepared.config, batch, is_trained=is_trained)
    write_on_rank0(begin, outcome.folder.path)


def _validate(engine, prepared: Prepared, outcome: Outcome) -> Score:
    engine.eval()
    with outcome.weights():
        predictions = prepared.evaluation.predict(engine, prepared.validation)
    engine.train()
    return prepared.validation.score(predictions)


def _peak(folder: RunFolder, before: TrainState) -> int:
    """This rank's peak memory in bytes; of a resumed run at least the highest of all ranks' in earlier starts."""
    peaks = [peak_memory_bytes()]
    if before.updates:
        for line in read_lines(folder.path / HEALTH_FILE):
            peaks += [int(2**20 * mib) for mib in line.get("memory_mib", [])]
    return max(peaks)


def _select(engine, checkpoints: Checkpoints, data_set: str, done: TrainState, say: Say) -> Selection:
    """Loads the best checkpoint into the engine; a run that resumed from another run's last checkpoint has none in its
    folder and keeps that one."""
    update = checkpoints.best() or done.updates
    if update != done.updates:
        checkpoints.load(engine, [checkpoints.tag(update)])
    scores = {str(number): checkpoints.scores[number] for number in sorted(checkpoints.scores)}
    chosen = checkpoints.scores[update]
    say(
        f"selected update {update} of {done.updates}: F1 {chosen['f1']:.2f}, EM {chosen['exact_match']:.2f} on the "
        f"first half of {data_set}"
    )
    return Selection(data_set=data_set, update=update, **chosen, checkpoints=scores)


def _test_and_export(engine, prepared: Prepared, outcome: Outcome, say: Say, keep_fp32: bool) -> Evaluated:
    folder = outcome.folder
    title = outcome.recipe.title
    _begin(outcome, prepared, is_trained=True)
    if outcome.kind:
        title += f", {outcome.kind}"
        say(f"{outcome.kind}, in {folder.path}:")
    evaluation = prepared.evaluation
    validation = prepared.validation
    names = {test.name: test.rules for test in prepared.tests}
    validated = None
    lean_heap(engine.stage == 3)
    why = "the default, for lack of data to choose it on (set data.holdout_fraction or eval.select_on)"
    fitted = "confidences are softmax probabilities: no held-out half of the source domain calibrates them"
    fitted += " (eval.select_on)"
    with outcome.weights():
        if validation:
            predictions = evaluation.predict(engine, validation)
            if outcome.recipe.eval.select_on:
                validated = validation.score(predictions)
            if evaluation.null_threshold is not None:
                evaluation, why = evaluation.with_threshold(predictions, validation)
            if validation.name == prepared.tests[0].name:
                evaluation, fitted = evaluation.with_calibrator(predictions, validation)
        if evaluation.null_threshold is not None:
            say(f"questions are declined at null odds above {evaluation.null_threshold:.2f}: {why}")
        say(fitted)
        scores = evaluation.run(engine, prepared.tests, folder.path, say)
        tested = Evaluated(scores, names, evaluation.null_threshold, evaluation.calibrator, validated)
        lean_heap(engine.stage == 3)
        with ranks.step("export", lambda: folder_bytes(folder.model)):
            decided = Recipe.make(outcome.recipe, eval={"whole_words": evaluation.spans.whole_words})
            export_model(engine, prepared.tokenizer, folder.model, decided, tested, prepared.asked, keep_fp32)
    export_noise(engine, folder.path / NOISE)
    if scores and ranks.is_main():
        print_scores(scores, title)
    return tested


def _write_results(
    outcome: Outcome, prepared: Prepared, done: TrainState, peak: int, selection: Selection | None, tested: Evaluated
) -> None:
    recipe = outcome.recipe
    inputs = dict(prepared.inputs)
    pretraining = None
    if recipe.pretrain:
        pretraining = {"data": recipe.pretrain.train}
        inputs.pop("pretrain.train", None)  # it was maybe read in an earlier start, or by another run
        run_folder = outcome.folder.path.parent if outcome.kind == UNAVERAGED else outcome.folder.path
        results_of_first = RunFolder(run_folder / PRETRAIN).results
        if results_of_first.is_file():
            first = read_results(results_of_first)
            pretraining |= first.train
            if "data.train" in first.inputs:
                inputs["pretrain.train"] = first.inputs["data.train"]
    if selection and outcome.kind == UNAVERAGED:  # the scores of the averages chose the checkpoint
        checkpoints = {str(selection.update): tested.validation}
        selection = selection.model_copy(update=tested.validation | {"checkpoints": checkpoints})
    results = Results(
        method=recipe.method.name,
        model=recipe.model.name,
        seed=recipe.seed,
        world_size=ranks.world_size(),
        threads=torch.get_num_threads(),
        versions=versions(),
        inputs=inputs,
        provenance=provenance(),
        train={
            "examples": prepared.features.examples,
            "features": len(prepared.features.dataset),
            "updates": done.updates,
            "seconds": done.seconds,
            "device_seconds" if on_gpu() else "cpu_seconds": done.compute_seconds,
            "samples_per_second": done.windows / done.seconds,
            "tokens_per_second": done.tokens / done.seconds,
            "peak_memory_bytes": peak,
        },
        mix=_mix(recipe, prepared) or None,
        pretraining=pretraining,
        selection=selection,
        eval=tested.scores,
        scorers=tested.scorers,
        null_threshold=tested.null_threshold,
        calibrator=tested.calibrator,
    )
    write_results(outcome.folder.path, results.model_dump(exclude_none=True))


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
