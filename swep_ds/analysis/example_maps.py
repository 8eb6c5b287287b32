"""The heat maps of a run's report: a few questions of each data set, answered right and wrong, under one scale."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from safetensors import safe_open

from swep_ds.analysis.answers import Answered, fixed_choice
from swep_ds.analysis.heatmap import Word, distances_in, fragment, limits
from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import windows_if_any
from swep_ds.errors import InputError
from swep_ds.recipe import Recipe

EACH = 4  # questions of a data set, half of them answered right
MOST = 24  # in all
LARGEST = 10**9  # parameters of a model that is loaded for heat maps
SECONDS = 20.0  # after which no further ones are begun


def heat_maps(folder: Path, recipe: Recipe, answered: dict[str, list[Answered]]) -> tuple[list[dict], str]:
    """By data set the maps of a few questions, and why there are none, or not all."""
    if not answered:
        return [], ""
    if (size := _parameters(folder / "model")) > LARGEST:
        return [], (
            f"The model has {size:,} parameters; it is not loaded again for heat maps above {LARGEST:,}. "
            "scripts/analyze.py makes them."
        )
    until = time.monotonic() + SECONDS
    try:
        run = SavedRun.load(folder)
    except InputError as error:
        return [], str(error)
    if not run.perturbs:
        return [], f"{recipe.method.name} has no perturbation that can be looked at after training."
    each = max(2, min(EACH, MOST // len(answered)))
    drawn, left_out = [], []
    for name, several in answered.items():
        room = len(drawn) * each < MOST
        pairs = _drawn(run, several, each, until) if room and time.monotonic() < until else []
        if pairs:
            drawn.append((name, pairs))
        if len(pairs) < min(each, len(several)):
            left_out.append(f"{len(pairs)} of {name}")
    texts = [words for _, pairs in drawn for _, words in pairs]
    scale = limits(texts) if texts else None
    maps = [
        {"name": name, "maps": [(one, Markup(fragment(words, scale))) for one, words in pairs]} for name, pairs in drawn
    ]
    return maps, (
        f"There are only {', '.join(left_out)}: at most {MOST} are drawn, none after "
        f"{SECONDS:.0f} s, and of questions alone whose answer stands in one window."
        if left_out
        else ""
    )


def _drawn(
    run: SavedRun, answered: Sequence[Answered], count: int, until: float
) -> list[tuple[Answered, Sequence[Word]]]:
    """The first `count` of the fixed choice whose answer stands in a window, half right, half wrong if there are.

    Args:
        until: when to look for no more, on the monotonic clock.
    """
    pools = {right: [one for one in fixed_choice(answered) if one.right is right] for right in (True, False)}
    chosen = []
    for right, pool in pools.items():
        enough = len(chosen) + max(count // 2, count - len(pools[not right]))
        # an answer may stand in the text only after normalisation, or in no window
        windows = windows_if_any([one.example for one in pool], run.tokenizer, run.windows)
        for one, window in zip(pool, windows, strict=True):
            if len(chosen) == enough or time.monotonic() > until:
                break
            if window:
                chosen.append((one, window))
    texts = distances_in(run, [window for _, window in chosen])
    return [(one, words) for (one, _), words in zip(chosen, texts, strict=True)]


def _parameters(model: Path) -> int:
    total = 0
    for file in model.glob("*.safetensors"):
        with safe_open(file, "pt") as content:
            total += sum(math.prod(content.get_slice(name).get_shape()) for name in content.keys())  # noqa: SIM118
    return total
