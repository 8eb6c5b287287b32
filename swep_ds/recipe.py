"""A run's settings: one typed, validated recipe, read from YAML by name or path, with `--set a.b=c` on top.

The resolved recipe is the only source of settings; everything downstream takes what it needs from it as plain
arguments. Defaults are the paper's extractive set-up (Lee et al. 2021, Section 4.2). A method's own settings live
beside the method (`swep_ds/methods/`), so that adding one touches no other file's fields.
"""

import difflib
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from swep_ds.errors import InputError, printable
from swep_ds.files import read_text, user_path
from swep_ds.methods import METHODS, MethodSettings
from swep_ds.settings import FieldFault, Section, leaves
from swep_ds.yaml_text import parse_yaml

RECIPES = Path(__file__).parent / "recipes"
MOST_FAULTS = 20  # of a file that are listed
LARGEST = 10**30  # whole number that Python still prints, and pydantic compares
MOST_PARENTS = 10  # of a field that --set names
LONGEST_NAME = 200  # bytes of a data set's name, which becomes predictions/NAME.json

# Bounds that no run reaches: above them numbers overflow, or a run has no end.
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Many = Annotated[int, Field(ge=1, le=1_000_000_000)]
Epochs = Annotated[float, Field(gt=0, le=10_000)]
Beta = Annotated[float, Field(ge=0, lt=1)]


S = TypeVar("S", bound=Section)


class ModelSection(Section):
    name: str  # hub id, local folder, or "quickstart:encoder", the encoder that comes with this package
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"  # auto: the best transformers has


class DataSection(Section):
    train: str  # a source: hub id ("owner/name[:config][@split]"), local file or folder, "quickstart:<domain>"
    eval: dict[str, str] = Field({})  # name -> source; the source domain comes first
    holdout_fraction: float = Field(0.0, ge=0, lt=1)  # share of the training articles kept out and tested on first
    train_fraction: float = Field(1.0, gt=0, le=1)  # nested, seeded subset: the 10 % are inside the 30 %
    max_train_examples: Many | None = None
    augmented: str | None = None  # source of samples made from data.train (scripts/augment.py), to train on as well
    max_eval_examples: Many | None = None  # per data set
    max_length: int = Field(384, ge=8, le=1_000_000)  # tokens in a window, question and special tokens included
    doc_stride: Count = 128  # tokens from one window's start to the next one's
    max_query_length: Count = 64  # longer questions are cut, and counted
    max_target_length: int = Field(30, ge=2, le=1_000_000)  # generative: longer answers are cut, and counted
    windows_without_answer: Literal["cls", "drop"] = "cls"  # extractive: train them towards [CLS], or leave them out

    @field_validator("eval")
    @classmethod
    def _file_names(cls, value: dict[str, str]) -> dict[str, str]:
        check_data_set_names(list(value))
        if HOLDOUT in map(_on_disk, value):
            raise ValueError(f"{HOLDOUT!r} names the held-out training articles: choose another name")
        return value


class TrainSection(Section):
    epochs: Epochs = 2
    max_updates: Many | None = None  # optimizer steps; cuts `epochs` short
    micro_batch_size: Count = 8  # windows per rank and forward pass
    max_tokens: Many | None = None  # in place of that: padded positions per rank and forward pass
    gradient_accumulation_steps: Count = 1  # a run keeps its global batch when its ranks change
    learning_rate: float = Field(3e-5, gt=0, le=1000)
    warmup_fraction: float = Field(0.0, ge=0, lt=1)  # share of the updates
    schedule: Literal["linear", "constant"] = "linear"  # decay to 0, or none, after the warm-up
    weight_decay: float = Field(0.0, ge=0)
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    adam_betas: tuple[Beta, Beta] = (0.9, 0.999)
    adam_epsilon: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, ge=0)  # global L2 norm; 0 = no clipping
    precision: Literal["fp32", "autocast", "bf16", "fp16"] = "fp32"  # autocast: bf16 in computation, fp32 weights
    execution: Literal["split", "joint"] = "split"  # a backward per pass (memory of MLE) or one for all
    activation_checkpointing: bool = False
    packing: bool = False  # extractive: no padding in the backbone, nor in the loss's softmax (models/packing.py)
    compile: bool = False  # extractive: torch.compile of the model, once for all lengths; the first updates are slow
    log_every: Many = 10  # updates
    checkpoint_every: Many = 1000  # updates
    keep_checkpoints: Count = 2
    # without progress on any rank: then rank 0 says which ones are behind
    stall_seconds: float = Field(600, gt=0, le=1_000_000)
    on_checkpoint_failure: Literal["stop", "go_on"] = "stop"  # where one cannot be written; earlier ones stay


class PretrainSection(Section):
    """A first stage of training on other data, as a rule generated questions; all else is as in the recipe."""

    train: str  # a source like data.train, used whole
    max_train_examples: Many | None = None
    epochs: Epochs = 2
    max_updates: Many | None = None
    micro_batch_size: Count = 32
    gradient_accumulation_steps: Count = 1
    learning_rate: float = Field(2e-5, gt=0, le=1000)


class EvalSection(Section):
    # A name in data.eval, or "held_out". Half of that set scores every checkpoint; the best by F1 (then EM, then the
    # earlier) is what is reported, on the other half of this set and on all of the others, and exported.
    select_on: str | None = None
    batch_size: Count = 32  # windows per rank
    n_best: int = Field(20, ge=1, le=10_000)  # extractive: best starts and ends per window that are paired
    max_answer_tokens: Count = 30  # generated ones with the end of sequence
    beams: int = Field(4, ge=1, le=1000)  # generative: width of the beam search; 1 = greedy


class TrackingSection(Section):
    wandb: Literal["off", "online", "offline"] = "off"
    project: str = "swep-ds"
    group: str | None = None  # that wandb shows runs together under; a sweep gives its own name

    @field_validator("wandb", mode="before")
    @classmethod
    def _bare_off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare off as false


HOLDOUT = "held_out"
Method = Annotated[MethodSettings, Field(discriminator="name")]


class Recipe(Section):
    """Every setting of a run. `Recipe.load` is the way in; `Recipe.dump` gives the resolved YAML."""

    task: Literal["extractive", "generative"] = "extractive"
    seed: int = Field(0, ge=0, lt=2**63)
    model: ModelSection
    method: Method
    data: DataSection
    pretrain: PretrainSection | None = None
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _something_to_test_on(self) -> "Recipe":
        tests = ([HOLDOUT] if self.data.holdout_fraction else []) + list(self.data.eval)
        if not tests and "eval" not in self.data.model_fields_set:
            raise ValueError(
                "data.eval names nothing to evaluate on, and data.holdout_fraction is 0: give one, or data.eval={}"
            )
        if self.eval.select_on not in (None, *tests):
            found = _suggest(self.eval.select_on, tests)
            raise ValueError(f"eval.select_on: {self.eval.select_on!r} is no data set of data.eval{found}")
        return self

    @model_validator(mode="after")
    def _execution(self) -> "Recipe":
        if self.method.needs_split and self.train.execution == "joint":
            raise ValueError(
                f"train.execution: joint goes backward once, and {self.method.name} needs the gradient of one pass for "
                "the next: set it to split"
            )
        if self.method.uses_model and self.train.activation_checkpointing:
            raise ValueError(
                f"train.activation_checkpointing: {self.method.name} reads the model in evaluation mode, where "
                "transformers keeps all activations: it would save nothing; set it to false"
            )
        return self

    @model_validator(mode="after")
    def _backbone(self) -> "Recipe":
        for field in ("packing", "compile"):
            if self.task == "generative" and getattr(self.train, field):
                raise ValueError(f"train.{field}: is for extractive models: set it to false")
        if self.train.packing and self.train.compile:
            raise ValueError(
                "train.compile: with train.packing every batch has other lengths, and would be compiled anew: set one "
                "of them to false"
            )
        return self

    @model_validator(mode="after")
    def _attention(self) -> "Recipe":
        if self.model.attention == "flash_attention_2" and self.train.precision == "fp32":
            raise ValueError(
                "model.attention: flash_attention_2 computes in half precision alone: set train.precision to bf16"
            )
        return self

    @model_validator(mode="after")
    def _targets(self) -> "Recipe":
        learned, written = self.data.max_target_length, self.eval.max_answer_tokens
        if self.task == "generative" and learned > written:
            raise ValueError(
                f"data.max_target_length: answers of {learned} tokens would be learned and, with "
                f"eval.max_answer_tokens {written}, never be generated: lower it to {written}, or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _augmented(self) -> "Recipe":
        if self.method.name == "ssmba" and self.data.augmented is None:
            raise ValueError(
                "data.augmented: ssmba trains on samples of data.train: make them with `python scripts/augment.py "
                f"--data {self.data.train} --model MASKED_LANGUAGE_MODEL --output FILE.json` and set this to FILE.json"
            )
        return self

    @staticmethod
    def load(name_or_path: str, overrides: Sequence[str] = ()) -> "Recipe":
        """Reads `swep_ds/recipes/<name>.yaml` or a YAML file and applies `--set` overrides in order, the method first.

        A recipe may begin with `extends: NAME_OR_PATH` (a path from its own folder): it then holds only what it
        changes in that one. The resolved copy extends nothing.

        Setting `method.name` to another method, in either way, drops the recipe's settings of the former one, so that
        `--set method.name=mle` compares methods under one recipe.

        Raises:
            InputError: no such recipe, not YAML, an unknown field (names the nearest one), a wrong value.
        """
        path, tree = read_settings(name_or_path, RECIPES, "--recipe", Recipe)
        tree = _inherit(path, tree)
        # naming a method drops the former one's settings, and none of those that are set here
        for override in sorted(overrides, key=lambda one: one.partition("=")[0] not in ("method", "method.name")):
            _apply(tree, override)
        return validate(Recipe, tree, path)

    def first_stage(self) -> "Recipe":
        """The run on `pretrain.train` that comes first. It tests nothing: choosing and reporting are the second's."""
        settings = self.pretrain.model_dump()
        data = {"train": settings.pop("train"), "max_train_examples": settings.pop("max_train_examples")}
        tree = self.model_dump(mode="json") | {"pretrain": None}
        tree["data"] |= data | {"train_fraction": 1.0, "augmented": None, "holdout_fraction": 0.0, "eval": {}}
        if self.method.name == "ssmba":
            tree["method"] = {"name": "mle"}  # the samples are of the second stage's questions
        tree["train"] |= settings
        tree["eval"] |= {"select_on": None}
        return Recipe.model_validate(tree)

    def dump(self) -> str:
        """The resolved recipe as YAML; loading it gives this recipe again."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_settings(name_or_path: str, shipped: Path, option: str, model: type[Section]) -> tuple[Path, dict[str, Any]]:
    """The path and the content of `<shipped>/<name>.yaml` or of a YAML file; not yet validated as a `model`.

    Raises:
        InputError: no such file (names those that are shipped), not YAML, a repeated key, no mapping; `option`, like
            "--recipe", is what the user named it with.
    """
    kind = model.__name__.lower()
    path = user_path(name_or_path, option)
    if not path.suffix:
        path = shipped / f"{name_or_path}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in shipped.glob("*.yaml")))
        raise InputError(f"{option} {shown(name_or_path, str)}: no such {kind}; known are {known}, or give a YAML file")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a {kind} is a mapping with the sections {', '.join(model.model_fields)}")
    return path, tree


def check_data_set_names(names: Sequence[str]) -> None:
    """Raises ValueError of names that cannot become files `predictions/NAME.json` beside each other."""
    taken: dict[str, str] = {}
    for name in names:
        if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise ValueError(f"the name {shown(name)} becomes a file name: use letters, digits, '.', '_' and '-'")
        if len(name.encode()) > LONGEST_NAME:
            raise ValueError(f"the name {shown(name)} becomes a file name: shorten it to {LONGEST_NAME} bytes")
        other = taken.setdefault(_on_disk(name), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} would share a file where case does not count: rename one")


def _on_disk(name: str) -> str:
    """What a file system compares that tells no case, and no ways to write an accent, apart."""
    return unicodedata.normalize("NFC", name.casefold())


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted name."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{below}": one for below, one in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def differences(there: dict[str, Any], here: dict[str, Any], most: int | None = None) -> str:
    """What differs between two flat mappings, for a message that names at most `most`; empty where nothing does."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    more = f"; and {len(names[most:])} more" if most and names[most:] else ""
    return "; ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in names[:most]) + more


def validate(model: type[S], tree: dict[str, Any], path: Path) -> S:
    """`tree`, read from `path`, as typed settings.

    Raises:
        InputError: an unknown field (names the nearest one), a wrong value; all of them in one line.
    """
    for name, value in flatten(tree).items():
        if any(isinstance(leaf, int) and abs(leaf) > LARGEST for leaf in leaves(value)):
            raise InputError(f"{path}: {shown(name, str)}: a whole number of more than 30 digits: correct it")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        faults = [_explain(e, model) for e in error.errors()]
        more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        raise InputError(f"{path}: {'; '.join(faults[:MOST_FAULTS])}{more}") from None


def _inherit(path: Path, tree: dict[str, Any], above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """`tree`, read from `path`, laid over the recipe that it extends; `above` are those that extend this one."""
    if "extends" not in tree:
        return tree
    tree, named, chain = dict(tree), tree["extends"], (*above, path.resolve())
    del tree["extends"]
    if not isinstance(named, str) or not named:
        raise InputError(f"{path}: extends {shown(named)}: name a shipped recipe or a YAML file")
    if Path(named).suffix and not named.startswith("~"):
        named = str(path.parent / named)
    base_path, base = read_settings(named, RECIPES, f"{path}: extends", Recipe)
    if base_path.resolve() in chain:
        named = shown(named, str)
        raise InputError(f"{path}: extends {named}, which extends this one: recipes cannot go round in a circle")
    base = _inherit(base_path, base, chain)
    methods = [one.get("method") if isinstance(one.get("method"), dict) else {} for one in (base, tree)]
    if "name" in methods[1] and methods[1]["name"] != methods[0].get("name"):
        base.pop("method", None)
    return _lay_over(base, tree)


def _lay_over(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in tree.items():
        both = isinstance(base.get(key), dict) and isinstance(value, dict)
        merged[key] = _lay_over(base[key], value) if both else value
    return merged


def _apply(tree: dict[str, Any], override: str) -> None:
    keys, separator, text = override.partition("=")
    override = shown(override, str)
    *parents, leaf = keys.split(".")
    if not separator or not all([*parents, leaf]) or len(parents) > MOST_PARENTS:
        raise InputError(f"--set {override}: write it as section.field=value")
    value = parse_yaml(text, f"--set {override}")
    if isinstance(value, str):
        value = _number(value)
    node = tree
    for key in parents:
        if node.get(key) is None:
            node[key] = {}
        if not isinstance(node[key], dict):
            raise InputError(f"--set {override}: {key} is a value, not a section")
        node = node[key]
    if keys == "method.name" and node.get("name") != value:
        node.clear()
    node[leaf] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 3e-5 (no dot) as a string; everyone who writes it means the number."""
    try:
        return float(text) if "e" in text.lower() else text
    except ValueError:
        return text


def _explain(error: Any, model: type[BaseModel]) -> str:
    """One pydantic error as field, fault and fix."""
    location, method = [str(part) for part in error["loc"]], None
    if len(location) > 1 and location[0] == "method" and location[1] in METHODS:
        method = location.pop(1)  # the union's tag is not part of the field's name
    field = shown(".".join(location), str)
    match error["type"]:
        case "extra_forbidden" if method:
            return f"{field}: {_no_setting(location[-1], method)}"
        case "model_type" | "model_attributes_type":
            return f"{field}: {_no_section(field, error['input'], model)}"
        case "extra_forbidden":
            return f"{field} is not a field{_nearest(location, model)}"
        case "missing" if isinstance(error["loc"][-1], str):
            return f"{field} is required: give it in the recipe or with --set {field}=..."
        case "union_tag_invalid":
            name = shown(error["input"].get("name"), str)
            return f"method.name: {name!r} is not a method{_suggest(name, METHODS)}"
        case "union_tag_not_found":
            return f"method.name is required: one of {', '.join(METHODS)}"
        case "value_error" if isinstance(error["ctx"]["error"], FieldFault):
            return ".".join(filter(None, (field, str(error["ctx"]["error"]))))
        case "value_error":
            return f"{field}: {error['ctx']['error']}" if field else str(error["ctx"]["error"])
        case _:
            return f"{field}: {shown(error['input'])}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _nearest(location: list[str], model: type[BaseModel]) -> str:
    *parents, name = location
    if not parents:
        return _suggest(name, list(model.model_fields))
    return _suggest(name, list(_section(parents[0], model).model_fields))


def _section(name: str, model: type[BaseModel]) -> type[BaseModel]:
    """The type of a section; of the methods', one that stands for all of them."""
    annotation = model.model_fields[name].annotation
    return next(one for one in (annotation, *get_args(annotation)) if hasattr(one, "model_fields"))


def _no_section(field: str, value: Any, model: type[BaseModel]) -> str:
    """What to write in place of a section that is a value, or nothing."""
    name = next(iter(_section(field, model).model_fields))
    given = shown(value, str) if field == "method" and isinstance(value, str) else "..."
    what = "is empty" if value is None else f"{shown(value)} is no section"
    return f"{what}: write it as a section: {field}: {{{name}: {given}}}, or --set {field}.{name}={given}"


def _no_setting(name: str, method: str) -> str:
    own = [field for field in METHODS[method].model_fields if field != "name"]
    others = [other for other, settings in METHODS.items() if name in settings.model_fields]
    owners = f" ({', '.join(others)} {'has' if len(others) == 1 else 'have'})" if others else ""
    return f"{method} has no setting {name!r}{owners}{_suggest(name, own) if own else '; it takes none'}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """A value for a message, on one line of at most 100 characters."""
    try:
        text = write(value)
    except (RecursionError, ValueError):  # nested too deep; a whole number of thousands of digits
        text = f"a {type(value).__name__} too large to print"
    text = printable(text)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _suggest(name: str, candidates) -> str:
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(candidates))}"
