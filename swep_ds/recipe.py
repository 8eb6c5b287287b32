"""A run's settings: one typed, validated recipe, read from YAML by name or path, with `--set a.b=c` on top.

The resolved recipe is the only source of settings; everything downstream takes what it needs from it as plain
arguments. Defaults are the paper's extractive set-up (Lee et al. 2021, Section 4.2). A method's own settings live
beside the method (`swep_ds/methods/`), so that adding one touches no other file's fields.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from swep_ds.errors import InputError
from swep_ds.methods import METHODS, MethodSettings

RECIPES = Path(__file__).parent / "recipes"


Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    name: str  # hub id, local folder, or "quickstart:encoder", the encoder that comes with this package


class DataSection(Section):
    train: str  # a source: hub id ("owner/name[:config][@split]"), local file or folder, "quickstart:<domain>"
    eval: dict[str, str] = {}  # name -> source; the source domain comes first
    holdout_fraction: float = Field(0.0, ge=0, lt=1)  # share of the training articles kept out and tested on first
    train_fraction: float = Field(1.0, gt=0, le=1)  # nested, seeded subset: the 10 % are inside the 30 %
    max_train_examples: int | None = Field(None, ge=1)
    max_eval_examples: int | None = Field(None, ge=1)  # per data set
    max_length: int = Field(384, ge=8)  # tokens in a window, question and special tokens included
    doc_stride: int = Field(128, ge=1)  # tokens from one window's start to the next one's
    max_query_length: int = Field(64, ge=1)  # longer questions are cut, and counted
    windows_without_answer: Literal["cls", "drop"] = "cls"  # train them towards [CLS], or leave them out

    @field_validator("eval")
    @classmethod
    def _file_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
                raise ValueError(f"the name {name!r} becomes a file name: use letters, digits, '.', '_' and '-'")
        if HOLDOUT in value:
            raise ValueError(f"{HOLDOUT!r} names the held-out training articles: choose another name")
        return value


class TrainSection(Section):
    epochs: float = Field(2, gt=0)
    max_updates: int | None = Field(None, ge=1)  # optimizer steps; cuts `epochs` short
    micro_batch_size: int = Field(8, ge=1)  # windows per rank and forward pass
    gradient_accumulation_steps: int = Field(1, ge=1)
    learning_rate: float = Field(3e-5, gt=0)
    warmup_fraction: float = Field(0.0, ge=0, lt=1)  # share of the updates; linear decay to 0 follows
    weight_decay: float = Field(0.0, ge=0)
    adam_betas: tuple[Beta, Beta] = (0.9, 0.999)
    adam_epsilon: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, ge=0)  # global L2 norm; 0 = no clipping
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    execution: Literal["split", "joint"] = "split"  # a backward per pass (memory of MLE) or one for all
    activation_checkpointing: bool = False
    log_every: int = Field(10, ge=1)  # updates
    checkpoint_every: int = Field(1000, ge=1)  # updates
    keep_checkpoints: int = Field(2, ge=1)


class EvalSection(Section):
    batch_size: int = Field(32, ge=1)  # windows per rank
    n_best: int = Field(20, ge=1)
    max_answer_tokens: int = Field(30, ge=1)


class TrackingSection(Section):
    wandb: Literal["off", "online", "offline"] = "off"
    project: str = "swep-ds"

    @field_validator("wandb", mode="before")
    @classmethod
    def _bare_off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare off as false


HOLDOUT = "held_out"
Method = Annotated[MethodSettings, Field(discriminator="name")]


class Recipe(Section):
    """Every setting of a run. `Recipe.load` is the way in; `Recipe.dump` gives the resolved YAML."""

    task: Literal["extractive"] = "extractive"
    seed: int = Field(0, ge=0, lt=2**63)
    model: ModelSection
    method: Method
    data: DataSection
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _something_to_test_on(self) -> "Recipe":
        if not self.data.eval and not self.data.holdout_fraction:
            raise ValueError("data.eval names nothing to evaluate on, and data.holdout_fraction is 0: give one")
        return self

    @staticmethod
    def load(name_or_path: str, overrides: Sequence[str] = ()) -> "Recipe":
        """Reads `swep_ds/recipes/<name>.yaml` or a YAML file and applies `--set` overrides in order.

        Setting `method.name` to another method drops the recipe's settings of the former one, so that
        `--set method.name=mle` compares methods under one recipe.

        Raises:
            InputError: no such recipe, not YAML, an unknown field (names the nearest one), a wrong value.
        """
        path = Path(name_or_path)
        if not path.suffix:
            path = RECIPES / f"{name_or_path}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.yaml")))
            raise InputError(f"--recipe {name_or_path}: no such recipe; known are {known}, or give a YAML file")
        try:
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date like 2019-13-45
            raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(tree, dict):
            raise InputError(f"{path}: a recipe is a mapping with the sections {', '.join(Recipe.model_fields)}")
        for override in overrides:
            _apply(tree, override)
        try:
            return Recipe.model_validate(tree)
        except ValidationError as error:
            raise InputError(f"{path}: " + "; ".join(_explain(e) for e in error.errors())) from None

    def dump(self) -> str:
        """The resolved recipe as YAML; loading it gives this recipe again."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(tree: dict[str, Any], override: str) -> None:
    keys, separator, text = override.partition("=")
    *parents, leaf = keys.split(".")
    if not separator or not all([*parents, leaf]):
        raise InputError(f"--set {override}: write it as section.field=value")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date like 2019-13-45
        raise InputError(f"--set {override}: the value is not YAML; quote it") from None
    if isinstance(value, str):
        value = _number(value)
    node = tree
    for key in parents:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise InputError(f"--set {override}: {key} is a value, not a section")
        node = child
    if keys == "method.name" and node.get("name") != value:
        node.clear()
    node[leaf] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 3e-5 (no dot) as a string; everyone who writes it means the number."""
    try:
        return float(text) if "e" in text.lower() else text
    except ValueError:
        return text


def _explain(error: Any) -> str:
    """One pydantic error as field, fault and mend."""
    location = [str(part) for part in error["loc"]]
    if len(location) > 1 and location[0] == "method" and location[1] in METHODS:
        location.pop(1)  # the union's tag is not part of the field's name
    field = ".".join(location)
    match error["type"]:
        case "extra_forbidden":
            return f"{field} is not a field{_nearest(location)}"
        case "missing" if isinstance(error["loc"][-1], str):
            return f"{field} is required: give it in the recipe or with --set {field}=..."
        case "union_tag_invalid":
            name = str(error["input"].get("name"))
            return f"method.name: {name!r} is not a method{_suggest(name, METHODS)}"
        case "union_tag_not_found":
            return f"method.name is required: one of {', '.join(METHODS)}"
        case "value_error":
            return f"{field}: {error['ctx']['error']}" if field else str(error["ctx"]["error"])
        case _:
            return f"{field}: {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _nearest(location: list[str]) -> str:
    *parents, name = location
    if not parents:
        return _suggest(name, list(Recipe.model_fields))
    if parents == ["method"]:
        fields = {field for settings in METHODS.values() for field in settings.model_fields}
        return _suggest(name, fields) + "; a method takes only its own settings"
    section = Recipe.model_fields[parents[0]].annotation
    return _suggest(name, list(section.model_fields))


def _suggest(name: str, candidates) -> str:
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(candidates))}"
