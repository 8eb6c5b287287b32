"""The heat maps of a run's report: a few questions of each data set, answered right and wrong, under one scale."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from safetensors import safe_open

from swep_ds.analysis.answer_windows import windows_if_any
from swep_ds.analysis.answered import Answered, in_fixed_order
from swep_ds.analysis.heatmap import Word, fragment, legend, limits, word_distances
from swep_ds.analysis.trained_run import TrainedRun
from swep_ds.common.errors import InputError
from swep_ds.pipeline.recipe import Recipe

EACH = 2  # questions of a data set, half of them answered right
AROUND = 20  # words of the text that are shown before and after the answer
MAX_MAPS = 24  # in all
MAX_PARAMETERS = 10**9  # parameters of a model that is loaded for heat maps
TRIED = 50  # questions of a data set that are looked at for windows with the answer


class HeatMaps(NamedTuple):
    """maps: (data set, (question, its map as HTML)); legend: their colours; missing: why some or all are missing."""

    maps: Sequence[tuple[str, list[tuple[Answered, Markup]]]] = ()
    legend: Markup = Markup()
    missing: str = ""


def heat_maps(folder: Path, recipe: Recipe, answered: dict[str, list[Answered]]) -> HeatMaps:
    """Heat maps of a few questions by data set."""
    if not answered:
        return HeatMaps()
    if (size := _parameters(folder / "model")) > MAX_PARAMETERS:
        return HeatMaps(
            missing=f"The model has {size:,} parameters; it is not loaded again for heat maps above "
            f"{MAX_PARAMETERS:,}. `swep-ds analyze` makes them."
        )
    try:
        run = TrainedRun.load(folder)
    except InputError as error:
        return HeatMaps(missing=str(error))
    if not run.perturbs:
        return HeatMaps(missing=f"{recipe.method.name} has no perturbation that can be looked at after training.")
    maps: dict[str, list[tuple[Answered, list[Word]]]] = {}
    incomplete = []
    for name, questions in answered.items():
        pairs = _draw(run, questions, EACH) if len(maps) * EACH < MAX_MAPS else []
        if pairs:
            maps[name] = pairs
        if len(pairs) < min(EACH, len(questions)):
            incomplete.append(f"{len(pairs)} of {name}")
    missing = ""
    if incomplete:
        missing = (
            f"Only {', '.join(incomplete)}: at most {MAX_MAPS} are drawn, and only where one window holds the answer."
        )
    if not maps:
        return HeatMaps(missing=missing)
    scale = limits([words for pairs in maps.values() for _, words in pairs])
    drawn = [
        (name, [(question, Markup(fragment(words, scale, AROUND))) for question, words in pairs])
        for name, pairs in maps.items()
    ]
    return HeatMaps(drawn, Markup(legend(scale, run.draws)), missing)


def _draw(run: TrainedRun, answered: Sequence[Answered], count: int) -> list[tuple[Answered, list[Word]]]:
    """The first `count` of the fixed choice with the answer in a window; half right and half wrong if possible."""
    ordered = in_fixed_order(answered)
    right = [item for item in ordered if item.right][:TRIED]
    wrong = [item for item in ordered if not item.right][:TRIED]
    chosen = []
    for pool, others in ((right, wrong), (wrong, right)):
        enough = len(chosen) + max(count // 2, count - len(others))
        # an answer may be in the text only after normalisation, or in no window
        windows = windows_if_any([item.example for item in pool], run.tokenizer, run.windows)
        for item, window in zip(pool, windows, strict=True):
            if len(chosen) == enough:
                break
            if window:
                chosen.append((item, window))
    texts = word_distances(run, [window for _, window in chosen])
    return [(item, words) for (item, _), words in zip(chosen, texts, strict=True)]


def _parameters(model: Path) -> int:
    total = 0
    for file in model.glob("*.safetensors"):
        with safe_open(file, "pt") as content:
            total += sum(math.prod(content.get_slice(name).get_shape()) for name in content.keys())  # noqa: SIM118
    return total
