"""A training of a run, from its engine to its results: `Stage.run`, and what that calls, in order."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from swep_ds import ranks
from swep_ds.common.errors import RunExit
from swep_ds.common.files import folder_bytes, read_lines
from swep_ds.evaluation.evaluate import Evaluation
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
from swep_ds.pipeline.inputs import questions_checksum
from swep_ds.pipeline.prepare import Prepared
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.resume import check_setup
from swep_ds.ranks.accelerator import lean_heap, on_gpu, peak_memory_bytes
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.engine import Engine, build_engine
from swep_ds.training.loop import train
from swep_ds.training.tracking import Tracker

Say = Callable[[str], None]
NOTHING_TO_CHOOSE = "half of them has no question without an answer, and is too small to calibrate confidences"


@dataclass(frozen=True)
class Outcome:
    """A set of a run's weights, which is tested and exported into `folder` as if `recipe` had trained it."""

    recipe: Recipe
    folder: RunFolder
    label: str = ""  # which weights, if the run has two outcomes
    is_main: bool = True  # whether its scores choose a checkpoint
    weights: Callable[[], AbstractContextManager[None]] = nullcontext  # a context in which the engine holds them


@dataclass(frozen=True)
class Trained:
    """What a training leaves to be written beside the scores."""

    done: TrainState
    peak: int  # bytes, the most of all ranks
    selection: Selection | None


@dataclass(frozen=True)
class Stage:
    """A training in `folder`, on this rank: the only one of a run, or a run's first or second stage. `recipe` is as the
    user wrote it, and `prepared` has its global batch split over these ranks. `keep_fp32` as in `export_model`."""

    recipe: Recipe
    prepared: Prepared
    folder: RunFolder
    say: Say
    keep_fp32: bool = False

    def run(self, tags: list[Path]) -> Tracker:
        """Trains, evaluates, exports and writes the results; returns the tracker, which the caller finishes.

        It resumes from the first of the checkpoints `tags` that is not damaged.
        """
        recipe = self.recipe
        prepared = self.prepared
        folder = self.folder
        setup = check_setup(recipe, prepared, tags)
        if ranks.is_main():
            self.say_start()
        with self._engine() as engine:
            average = None
            if recipe.train.average != "none":
                average = WeightAverage(engine, recipe.train)
            main, *others = self._outcomes(average)
            batch = asdict(GlobalBatch.of(recipe, prepared.batches.global_batch))
            checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep_checkpoints, setup, batch, average)
            tag, before = checkpoints.load(engine, tags) if tags else (None, TrainState())
            # last, so that a start that is refused leaves the folder as it was
            self._begin(main, is_trained=before.updates == prepared.batches.updates)
            write_on_rank0(lambda: write_remarks(folder.path, prepared.remarks, self.say), folder.path)
            if tag:
                self.say(f"resuming from {tag}: {before.updates} of {prepared.batches.updates} updates are done")
            with self._tracker(before, 1 + len(others)) as tracker:
                validate = None
                if recipe.eval.select_on:
                    validate = partial(self._validate, engine, main)
                done = train(engine, prepared.batches, recipe.train, checkpoints, tracker, before, validate)
                peak = max(ranks.gather(_peak(folder, before)))  # before evaluation, which may take more
                trained = Trained(done, peak, self._select(engine, checkpoints, done))
                engine.eval()
                for outcome in others:  # first: the results of `main` mark the run as done
                    self._finish(engine, outcome, trained)
                tracker.summary(self._finish(engine, main, trained).scores)
        self.say(f"model in {folder.model}, results in {folder.results}")
        return tracker

    def say_start(self) -> None:
        """Prints the resolved recipe and the size of the training. A refused start never gets here."""
        recipe = self.recipe
        prepared = self.prepared
        windows = prepared.features
        batches = prepared.batches
        self.say(recipe.dump().rstrip(), style="dim")
        if batches.global_batch != batch_of_rank(recipe) * ranks.world_size():
            self.say(f"{self.folder.path} began with a global batch of {batches.global_batch}, which is kept")
        cut = f"{windows.questions_cut} questions cut"
        if recipe.task == "generative":
            cut += f", {windows.targets_cut} answers cut"
        self.say(
            f"training {recipe.method.name} on {windows.examples} questions in {len(windows.dataset)} windows "
            f"({windows.windows_without_answer} without the answer, {cut}): {batches.updates} updates of "
            f"{batches.size}, ZeRO-{zero_stage(prepared.config)}, {ranks.world_size()} rank(s) on "
            f"{ranks.device().type}, {recipe.train.precision}, {recipe.train.execution} execution"
        )
        for line in prepared.unreachable:
            self.say(f"  {line}")
        read = sum(len(batches.windows(update)) for update in range(batches.updates))
        if recipe.validation_set and prepared.validation is None:
            self.say(f"  all held-out questions are scored: {NOTHING_TO_CHOOSE}")
        for part in self._mix():
            self.say(
                f"  {part['source']}: {100 * part['share']:.3g} % of each update, {part['questions']} questions in "
                f"{part['windows']} windows, each read about {part['share'] * read / part['windows']:.3g} times in "
                "this run"
            )

    def _mix(self) -> list[dict]:
        """What each source of a mix gives; nothing of a single source."""
        shares = self.recipe.data.shares.items()
        mix = []
        for (source, share), part in zip(shares, self.prepared.features.parts, strict=False):
            mix.append({"source": source, "share": share, "questions": part.examples, "windows": len(part.dataset)})
        return mix

    @contextmanager
    def _engine(self) -> Iterator[Engine]:
        prepared = self.prepared
        size = sum(weight.nbytes for weight in prepared.objective.parameters())  # at ZeRO-3 they are empty afterwards
        with ranks.step("engine", lambda: size):
            engine = build_engine(prepared.objective, prepared.config, self.recipe.train, prepared.batches.updates)
            lean_heap(engine.stage == 3)  # where weights come and go
        try:
            yield engine
        except BaseException as error:
            if isinstance(error, RunExit) or ranks.world_size() == 1:  # else the other ranks must first hear of it
                engine.destroy()
            raise
        engine.destroy()

    def _outcomes(self, average: WeightAverage | None) -> list[Outcome]:
        """The main outcome first. With `train.average` that is the mean of the weights, and the last weights are a
        second outcome."""
        recipe = self.recipe
        if average is None:
            return [Outcome(recipe, self.folder)]
        label = recipe.train.average
        if label == "start":
            label = "mean with the start"
        plain = Outcome(recipe.unaveraged(), RunFolder(self.folder.path / UNAVERAGED), UNAVERAGED, is_main=False)
        return [Outcome(recipe, self.folder, label, weights=average.applied), plain]

    def _begin(self, outcome: Outcome, *, is_trained: bool) -> None:
        folder = outcome.folder
        batch = self.prepared.batches.global_batch
        begin = partial(folder.begin, outcome.recipe, self.prepared.config, batch, is_trained=is_trained)
        write_on_rank0(begin, folder.path)

    def _tracker(self, before: TrainState, outcomes: int) -> AbstractContextManager[Tracker]:
        """The tracker. It also gets the time of testing all outcomes, in updates: generating an answer counts as one
        forward."""
        prepared = self.prepared
        recipe = self.recipe
        path = self.folder.path
        forwards = sum(pass_.forwards for pass_ in prepared.objective.method.passes(0.0))
        windows = sum(len(test.features.dataset) for test in filter(None, [*prepared.tests, prepared.validation]))
        tests = outcomes * (windows / (forwards * len(prepared.batches.windows(0))))
        settings = recipe.model_dump(mode="json")
        named = recipe.tracking, recipe.method.name, settings, path, prepared.batches.updates, before
        return write_on_all_ranks(lambda: Tracker(*named, ranks.is_main(), tests), path)

    def _validate(self, engine: Engine, outcome: Outcome) -> Score:
        validation = self.prepared.validation
        engine.eval()
        with outcome.weights():
            predictions = self.prepared.evaluation.predict(engine, validation)
        engine.train()
        return validation.score(predictions)

    def _select(self, engine: Engine, checkpoints: Checkpoints, done: TrainState) -> Selection | None:
        """Loads the best checkpoint into the engine, if the recipe selects; a run that resumed from another run's last
        checkpoint has none in its folder and keeps that one."""
        data_set = self.recipe.eval.select_on
        if data_set is None:
            return None
        update = checkpoints.best() or done.updates
        if update != done.updates:
            checkpoints.load(engine, [checkpoints.tag(update)])
        scores = {str(number): checkpoints.scores[number] for number in sorted(checkpoints.scores)}
        chosen = checkpoints.scores[update]
        self.say(
            f"selected update {update} of {done.updates}: F1 {chosen['f1']:.2f}, EM {chosen['exact_match']:.2f} on the "
            f"first half of {data_set}"
        )
        return Selection(data_set=data_set, update=update, **chosen, checkpoints=scores)

    def _finish(self, engine: Engine, outcome: Outcome, trained: Trained) -> Evaluated:
        """Tests and exports an outcome, and writes its results."""
        self._begin(outcome, is_trained=True)
        folder = outcome.folder
        title = outcome.recipe.title
        if outcome.label:
            title += f", {outcome.label}"
            self.say(f"{outcome.label}, in {folder.path}:")
        lean_heap(engine.stage == 3)
        with outcome.weights():
            evaluation, validated = self._fit_declining_and_calibration(engine)
            scores = evaluation.run(engine, self.prepared.tests, folder.path, self.say)
            rules = {test.name: test.rules for test in self.prepared.tests}
            tested = Evaluated(scores, rules, evaluation.null_threshold, evaluation.calibrator, validated)
            lean_heap(engine.stage == 3)
            with ranks.step("export", lambda: folder_bytes(folder.model)):
                decided = Recipe.make(outcome.recipe, eval={"whole_words": evaluation.spans.whole_words})
                tokenizer = self.prepared.tokenizer
                export_model(engine, tokenizer, folder.model, decided, tested, self.prepared.asked, self.keep_fp32)
        export_noise(engine, folder.path / NOISE)
        if scores and ranks.is_main():
            print_scores(scores, title)
        write_on_rank0(lambda: self._write_results(outcome, trained, tested), folder.results)
        return tested

    def _fit_declining_and_calibration(self, engine: Engine) -> tuple[Evaluation, Score | None]:
        """The evaluation with threshold and calibrator from the validation data, and its score there if that selects a
        checkpoint."""
        evaluation = self.prepared.evaluation
        validation = self.prepared.validation
        validated = None
        threshold_reason = "the default, for lack of data to choose it on (set data.holdout_fraction or eval.select_on)"
        calibration = "confidences are softmax probabilities: no held-out half of the source domain calibrates them"
        calibration += " (eval.select_on)"
        if self.recipe.validation_set and validation is None:
            threshold_reason = f"the default ({NOTHING_TO_CHOOSE})"
        if validation:
            predictions = evaluation.predict(engine, validation)
            if self.recipe.eval.select_on:
                validated = validation.score(predictions)
            if evaluation.null_threshold is not None:
                evaluation, threshold_reason = evaluation.with_threshold(predictions, validation)
            if validation.name == self.prepared.tests[0].name:
                evaluation, calibration = evaluation.with_calibrator(predictions, validation)
        if evaluation.null_threshold is not None:
            self.say(f"questions are declined at null odds above {evaluation.null_threshold:.2f}: {threshold_reason}")
        self.say(calibration)
        return evaluation, validated

    def _write_results(self, outcome: Outcome, trained: Trained, tested: Evaluated) -> None:
        recipe = outcome.recipe
        inputs = dict(self.prepared.inputs)
        pretraining = None
        if recipe.pretrain:
            pretraining = {"data": recipe.pretrain.train}
            inputs.pop("pretrain.train", None)  # it was maybe read in an earlier start, or by another run
            results_of_first = RunFolder(self.folder.path / PRETRAIN).results
            if results_of_first.is_file():
                first = read_results(results_of_first)
                pretraining |= first.train
                if "data.train" in first.inputs:
                    inputs["pretrain.train"] = first.inputs["data.train"]
        selection = trained.selection
        if selection and not outcome.is_main:
            checkpoints = {str(selection.update): tested.validation}
            selection = selection.model_copy(update=tested.validation | {"checkpoints": checkpoints})
        done = trained.done
        results = Results(
            method=recipe.method.name,
            model=recipe.model.name,
            seed=recipe.seed,
            world_size=ranks.world_size(),
            threads=torch.get_num_threads(),
            versions=versions(),
            inputs=inputs,
            questions={test.name: questions_checksum(test.examples) for test in self.prepared.tests},
            provenance=provenance(),
            train={
                "examples": self.prepared.features.examples,
                "features": len(self.prepared.features.dataset),
                "updates": done.updates,
                "seconds": done.seconds,
                "device_seconds" if on_gpu() else "cpu_seconds": done.compute_seconds,
                "samples_per_second": done.windows / done.seconds,
                "tokens_per_second": done.tokens / done.seconds,
                "peak_memory_bytes": trained.peak,
            },
            mix=self._mix() or None,
            pretraining=pretraining,
            selection=selection,
            eval=tested.scores,
            scorers=tested.scorers,
            null_threshold=tested.null_threshold,
            calibrator=tested.calibrator,
        )
        write_results(outcome.folder.path, results.model_dump(exclude_none=True))


def _peak(folder: RunFolder, before: TrainState) -> int:
    """This rank's peak memory in bytes; of a resumed run at least the highest of all ranks' in earlier starts."""
    peaks = [peak_memory_bytes()]
    if before.updates:
        for line in read_lines(folder.path / HEALTH_FILE):
            peaks += [int(2**20 * mib) for mib in line.get("memory_mib", [])]
    return max(peaks)
