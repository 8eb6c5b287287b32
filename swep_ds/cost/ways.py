"""What a benchmark compares: methods, each trained in one or several ways. Imports no PyTorch."""

from collections.abc import Sequence
from typing import NamedTuple

from swep_ds.common.errors import InputError
from swep_ds.common.files import ds_config_path
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import Recipe

PLAIN = "plain"  # a loop of plain PyTorch
TRAINER = "trainer"  # Hugging Face's
PUBLISHED = "published"  # the published code's procedure: a method and a way in one
RANDOM = ":random"  # suffix of its name where it runs on its own random batches
# SSMBA's updates are MLE's, on more data: leave it out
ALL = [name for name in METHODS if name != "ssmba"]
SETTINGS = {"compile": "train.compile", "graphs": "train.cuda_graphs"}  # true in a way that adds them with a +


class Plan(NamedTuple):
    """A method and a way to train it."""

    method: str  # with its execution
    loop: str  # PLAIN, TRAINER, PUBLISHED, or else the engine's
    recipe: Recipe
    ds_config: str

    @property
    def on_one_rank(self) -> bool:
        return self.loop in (PLAIN, TRAINER, PUBLISHED)


def plans(
    recipe: str, overrides: Sequence[str], methods: Sequence[str], ways: Sequence[str], ds_config: str
) -> dict[str, Plan]:
    """Each method NAME[:EXECUTION], or PUBLISHED, in each way LOOP[+SETTING ...], by a name for tables.

    LOOP is PLAIN, TRAINER (for mle alone), or a ds_config of the engine; without `ways` it is `ds_config`, and the
    recipe decides the settings. Raises InputError: a method, a way or a setting is unknown, or they do not go together.
    """
    for way in ways:
        _check(way, methods)
    by_name = {}
    for method in [name for word in methods for name in (ALL if word == "all" else [word])]:
        if method == PUBLISHED:
            plain = ["method.name=mle", "train.precision=fp32", "train.compile=false"]
            by_name[method] = Plan(method, PUBLISHED, Recipe.load(recipe, [*overrides, *plain]), ds_config)
            continue
        name, _, execution = method.partition(":")
        if name == "ssmba":
            raise InputError(f"--methods {method}: ssmba's update is mle's: measure mle")
        changes = [*overrides, f"method.name={name}", f"train.execution={execution or 'split'}"]
        for way in ways or [ds_config]:
            loop, *settings = way.split("+")
            if loop == TRAINER and name != "mle":
                continue
            config = ds_config if loop in (PLAIN, TRAINER) else loop
            switches = [f"{field}={str(name in settings).lower()}" for name, field in SETTINGS.items() if ways]
            chosen = Recipe.load(recipe, [*changes, *switches])
            label = f"{method} {way}" if len(ways) > 1 else method
            by_name[label] = Plan(method, loop, chosen, config)
    return by_name


def _check(way: str, methods: Sequence[str]) -> None:
    loop, *settings = way.split("+")
    for setting in settings:
        if setting not in SETTINGS:
            raise InputError(f"--ways {way}: + takes {' or '.join(SETTINGS)}")
    if loop in (PLAIN, TRAINER):
        if "graphs" in settings:
            raise InputError(f"--ways {way}: CUDA graphs are the engine's: give a ds_config")
        if loop == TRAINER and "mle" not in methods:
            raise InputError(f"--ways {way}: Hugging Face's Trainer trains mle: add it to --methods")
        return
    try:
        ds_config_path(loop)
    except InputError as error:
        raise InputError(f"--ways {way}: is neither {PLAIN}, {TRAINER} nor a ds_config ({error})") from None
