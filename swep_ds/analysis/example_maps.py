"""The heat maps of a run's report: a few questions of each data set, answered right and wrong, under one scale."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from safetensors import safe_open

from swep_ds.analysis.answers import Answered, in_fixed_order
from swep_ds.analysis.heatmap import Word, fragment, legend, limits, word_distances
from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import windows_if_any
from swep_ds.common.errors import InputError, as_input_error
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
    try:
        if (size := _parameters(folder / "model")) > MAX_PARAMETERS:
            return HeatMaps(
                missing=f"The model has {size:,} parameters; it is not loaded again for heat maps above "
                f"{MAX_PARAMETERS:,}. `swep-ds analyze` makes them."
            )
        run = SavedRun.load(folder)
    except InputError as error:
        return HeatMaps(missing=str(error))
    if not run.perturbs:
        return HeatMaps(missing=f"{recipe.method.name} has no perturbation that can be looked at after training.")
    maps, incomplete = {}, []
    for name, questions in answered.items():
        if len(maps) * EACH < MAX_MAPS and (pairs := _draw(run, questions, EACH)):
            maps[name] = pairs
        if (count := len(maps.get(name, []))) < min(EACH, len(questions)):
            incomplete.append(f"{count} of {name}")
    texts = [words for pairs in maps.values() for _, words in pairs]
    scale = limits(texts) if texts else (0.0, 1.0)
    note = f"Only {', '.join(incomplete)}: at most {MAX_MAPS} are drawn, and only where one window holds the answer."
    drawn = [
        (name, [(question, Markup(fragment(words, scale, AROUND))) for question, words in pairs])
        for name, pairs in maps.items()
    ]
    return HeatMaps(drawn, Markup(legend(scale, run.draws)), note if incomplete else "")


def _draw(run: SavedRun, answered: Sequence[Answered], count: int) -> list[tuple[Answered, Sequence[Word]]]:
    """The first `count` of the fixed choice with the answer in a window; half right and half wrong if possible."""
    pools = {
        right: [item for item in in_fixed_order(answered) if item.right is right][:TRIED] for right in (True, False)
    }
    chosen = []
    for right, pool in pools.items():
        enough = len(chosen) + max(count // 2, count - len(pools[not right]))
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
    for file in filter(Path.is_file, model.glob("*.safetensors")):
        with as_input_error(f"{file}: cannot be read", "train again"), safe_open(file, "pt") as content:
            total += sum(math.prod(content.get_slice(name).get_shape()) for name in content.keys())  # noqa: SIM118
    return total
