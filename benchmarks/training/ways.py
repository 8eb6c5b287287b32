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
AS_PUBLISHED = ["method.name=mle", "train.precision=fp32", "train.compile=false", "train.max_grad_norm=1"]
AS_PUBLISHED += ["train.weight_decay=0"]
# SSMBA's updates are MLE's, on more data: leave it out
ALL = [name for name in METHODS if name != "ssmba"]
SETTINGS = {"compile": "train.compile", "graphs": "train.cuda_graphs"}  # true in a way that adds them with a +


class Way(NamedTuple):
    """A method, and how it is trained."""

    method: str  # with its execution
    loop: str  # PLAIN, TRAINER, PUBLISHED, or else the engine's
    settings: Sequence[str]  # what it adds to SETTINGS
    recipe: Recipe
    ds_config: str

    @property
    def has_engine(self) -> bool:
        return self.loop not in (PLAIN, TRAINER, PUBLISHED)


def read_ways(
    recipe: str, overrides: Sequence[str], methods: Sequence[str], ways: Sequence[str], ds_config: str
) -> dict[str, Way]:
    """Each method NAME[:EXECUTION], or PUBLISHED, in each way LOOP[+SETTING ...], by a name for tables.

    LOOP is PLAIN, TRAINER (for mle alone), or a ds_config of the engine; without `ways` it is `ds_config`, and the
    recipe decides the settings. Raises InputError: a method, a way or a setting is unknown or given twice, or they do
    not go together.
    """
    methods = [name for word in methods for name in (ALL if word == "all" else [word])]
    for option, words in (("--methods", methods), ("--ways", ways)):
        for word in words:
            if words.count(word) > 1:
                raise InputError(f"{option}: {word} is given twice: leave one out")
    for way in ways:
        _check(way, methods, overrides)
    by_name = {}
    for method in methods:
        if method == PUBLISHED:
            chosen = Recipe.load(recipe, [*overrides, *AS_PUBLISHED])
            by_name[method] = Way(method, PUBLISHED, [], chosen, ds_config)
            continue
        name, _, execution = method.partition(":")
        if name == "ssmba":
            raise InputError(f"--methods {method}: ssmba's update is mle's: measure mle")
        changes = [*overrides, f"method.name={name}", f"train.execution={execution or 'split'}"]
        for way in ways or [ds_config]:
            loop, *settings = way.split("+")
            if loop == TRAINER and name != "mle":
                continue
            switches = [f"{field}={str(name in settings).lower()}" for name, field in SETTINGS.items() if ways]
            chosen = Recipe.load(recipe, [*changes, *switches])
            label = f"{method} {way}" if len(ways) > 1 else method
            by_name[label] = Way(method, loop, settings, chosen, ds_config if loop in (PLAIN, TRAINER) else loop)
    return by_name


def _check(way: str, methods: Sequence[str], overrides: Sequence[str]) -> None:
    loop, *settings = way.split("+")
    if not loop:
        raise InputError(f"--ways {way}: begin with {PLAIN}, {TRAINER} or a ds_config, such as zero1{way}")
    for setting, field in SETTINGS.items():
        if any(override.startswith(f"{field}=") for override in overrides):
            raise InputError(f"--set {field}: with --ways, a way that ends in +{setting} sets it: leave --set out")
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
