"""The recipe: every setting of a run, its type, default and meaning, and the rules between them.

Everything downstream gets plain arguments from it. Defaults are the paper's extractive set-up (Lee et al. 2021, Section
4.2). A method's settings are in `swep_ds/methods/`; `swep_ds/common/settings.py` reads YAML, `extends` and `--set`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union

import yaml
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, field_validator, model_validator
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from swep_ds.common.errors import InputError, excerpt
from swep_ds.common.files import read_json, user_path
from swep_ds.common.plugins import load_entry_points
from swep_ds.common.settings import FieldFault, Section, change, flatten, load, read_whole, suggest, without_paths
from swep_ds.data.choices import Choices
from swep_ds.data.columns import check_columns
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.scoring_rules import LANGUAGES, SCORERS
from swep_ds.methods import GROUP, METHODS
from swep_ds.methods.settings import Settings
from swep_ds.ranks.environment import warn_once
from swep_ds.training.settings import AVERAGED_BY, Count, Epochs, Many, TrackingSection, TrainSection

RECIPES = Path(__file__).parents[1] / "recipes"
HOLDOUT = "held_out"
# settings that change neither the trained model nor its scores; nor does `SAVING` where no checkpoint is selected
NEUTRAL = ("tracking", "train.log_every", "train.keep_checkpoints", "train.cuda_graphs", "eval.batch_size")
SAVING = "train.checkpoint_every"


class AnyMethod:
    """Validates the settings of a method as those of the class that `METHODS` has under their `name`."""

    @staticmethod
    def _union() -> TypeAdapter:
        """Any of the methods registered so far."""
        return TypeAdapter(Annotated[Union[tuple(METHODS.values())], Field(discriminator="name")])  # noqa: UP007

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(lambda value: cls._union().validate_python(value))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(cls._union().core_schema)


class ModelSection(Section):
    name: str  # hub id, local folder, or "quickstart:encoder", the encoder that comes with this package
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"  # auto: the best that transformers has
    attention_dropout: float | None = Field(None, ge=0, lt=1)  # dropout of attention weights; null = the model's


class MixedSource(Section):
    """One of several sources of training questions."""

    source: str
    weight: float = Field(gt=0, le=1e9)  # over the sum of all weights: the source's share of each update's windows


class DataSection(Section):
    # A source: hub id ("owner/name[:config][@split]"), local file or folder, "quickstart_v2:<domain>". Or a mix, which
    # is a list of {source, weight}: every update has each source's share of windows, and an epoch has as many windows
    # as all sources together, so that one of a large weight comes in it several times and another only in part.
    train: str | list[MixedSource]
    home: str | None = None  # in a mix: the source whose articles are held out, from all sources; null = the first
    eval: dict[str, str] = Field({})  # name -> source; the source domain comes first
    holdout_fraction: float = Field(0.0, ge=0, lt=1)  # share of the training articles kept out and tested on first
    # A run that was trained before pairs were added: the questions that it held out are held out again, and new ones
    # about their articles left out, so that `swep-ds report NEW --against OLD` compares the two on the same questions.
    holdout_of: str | None = None
    train_fraction: float = Field(1.0, gt=0, le=1)  # a nested, seeded subset of each source: the 30 % hold the 10 %
    max_train_examples: Many | None = None  # the most training questions of each source to use; null = all
    augmented: str | None = None  # source of samples made from data.train (`swep-ds augment`), to train on as well
    max_eval_examples: Many | None = None  # the most questions of each test set to use; null = all
    max_length: int = Field(384, ge=8, le=1_000_000)  # tokens in a window, question and special tokens included
    doc_stride: Count = 128  # tokens between windows' starts, at most max_length; run_qa's doc_stride is the overlap
    max_query_length: Count = 64  # longer questions are cut, and counted
    max_target_length: int = Field(30, ge=2, le=1_000_000)  # generative: longer answers are cut, and counted
    windows_without_answer: Literal["cls", "drop"] = "cls"  # extractive: train them towards [CLS], or leave them out
    # Questions without an answer, as in SQuAD v2.0. train: towards [CLS] or an empty answer; the model may then decline
    # a question, and does so where its null score is above a threshold.
    unanswerable: Literal["error", "drop", "train"] = "error"
    # Training questions whose answer has no offset and occurs several times in its context: first = its first place
    repeated_answers: Literal["error", "first", "drop"] = "error"
    # Training questions whose first answer is not at its offset, or nowhere in its context. find tries, in order: the
    # text at the offset, but for case and white space; another answer that is at its own offset; the only occurrence
    # in the context; the only one close to the offset
    misplaced_answers: Literal["error", "find", "drop"] = "error"
    texts: str | None = None  # folder of documents, for pairs with the name of a `document` in place of a context
    # The names of columns or fields in the files, as in {question: Frage, context: Text}; {id: null} = the place of a
    # question is its id. A file without such a name has the field's own.
    columns: dict[str, str | None] = Field({})
    _known_columns = field_validator("columns")(check_columns)

    @field_validator("train", mode="wrap")
    @classmethod
    def _source_or_mix(cls, value: Any, _: Callable) -> Any:
        """An error is only about the kind of value that the user wrote."""
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError(f"{excerpt(value)}: give a source, or a list of {{source, weight}}")
        mix = TypeAdapter(list[MixedSource]).validate_python(value)
        names = {part.source for part in mix}
        if not mix or len(names) < len(mix):
            raise ValueError("give one or more sources, each only once")
        if len(mix) == 1:
            return mix[0].source  # whose weight changes nothing
        return mix

    @field_validator("eval")
    @classmethod
    def _file_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            check_data_set_name(name)
        if HOLDOUT in value:
            raise ValueError(f"{HOLDOUT!r} names the held-out training articles: choose another name")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "DataSection":
        names = list(self.sources.values())
        if self.home is not None and self.home not in names:
            raise FieldFault(f"home: {excerpt(self.home)} is not a source of data.train{suggest(self.home, names)}")
        if self.holdout_of is not None and not self.holdout_fraction:
            raise FieldFault("holdout_of: nothing is held out: set data.holdout_fraction as in that run")
        if len(names) > 1 and self.augmented is not None:
            raise FieldFault("augmented: holds samples of one source, and data.train is a mix: set one of them only")
        return self

    @property
    def choices(self) -> Choices:
        """How the questions of all sources are read. Raises InputError: `texts` is no folder."""
        columns = tuple(self.columns.items())
        locate = None
        if self.texts is not None:
            from swep_ds.texts.folder import FolderTexts  # these modules import transformers
            from swep_ds.texts.pairs import PairLocator

            locate = PairLocator(FolderTexts(user_path(self.texts), f"data.texts {self.texts}"))
        return Choices(self.unanswerable, self.repeated_answers, self.misplaced_answers, columns, locate)

    @property
    def sources(self) -> dict[str, str]:
        """The sources of training questions, by the field that names each."""
        if isinstance(self.train, str):
            return {"data.train": self.train}
        return {f"data.train.{number}.source": part.source for number, part in enumerate(self.train)}

    @property
    def shares(self) -> dict[str, float]:
        """By source of training questions, its share of the windows; they add up to 1."""
        if isinstance(self.train, str):
            return {self.train: 1.0}
        total = sum(part.weight for part in self.train)
        return {part.source: part.weight / total for part in self.train}

    @property
    def home_field(self) -> str:
        """The field that names the source whose articles are held out."""
        return next(field for field, source in self.sources.items() if self.home in (None, source))

    def trained_on(self, write: Callable[[str], str] = str) -> str:
        """The sources of training questions as `write` shows each, and of a mix their shares and which is home."""
        if isinstance(self.train, str):
            return write(self.train)
        parts = [f"{write(source)} ({100 * share:.3g} %)" for source, share in self.shares.items()]
        return f"{', '.join(parts)}; home: {write(self.sources[self.home_field])}"


class PretrainSection(Section):
    """A first stage of training on other data, usually generated questions. All else is as in the recipe."""

    train: str  # a source like data.train, used whole
    max_train_examples: Many | None = None  # the most of its questions to use; null = all
    epochs: Epochs = 2  # passes over that data
    max_updates: Many | None = None  # optimizer steps; cuts `epochs` short
    micro_batch_size: Count = 32  # windows per rank and forward pass
    max_tokens: Many | None = None  # replaces micro_batch_size: padded positions per rank and pass
    gradient_accumulation_steps: Count = 1  # micro-batches per update and rank
    learning_rate: float = Field(2e-5, gt=0, le=1000)  # at its peak


def _by_data_set(given: str | dict[str, str]) -> dict[str, str]:
    """A setting of the evaluation where it is by data set; empty where it is the same for all."""
    if isinstance(given, str):
        return {}
    return given


class EvalSection(Section):
    # A name in data.eval, or "held_out". Half of that set scores every checkpoint. The best by F1 (then EM, then the
    # earlier one) is exported, and reported on the other half of the set and on all other sets.
    select_on: str | None = None
    batch_size: Count = 32  # windows per rank
    # extractive: how many of the best starts and ends per window are paired; a calibrator sees the five best answers
    n_best: int = Field(20, ge=5, le=10_000)
    max_answer_tokens: Count = 30  # longest answer; if generated, with its end-of-sequence token
    whole_words: bool | None = None  # extractive: answers cut no words; null = unless over 2 % of training answers do
    beams: int = Field(4, ge=1, le=1000)  # generative: width of the beam search; 1 = greedy
    # Scoring rules; or by data set, else squad. squad (English), mlqa (for `language`), korquad, klue (Korean), jglue
    # (Japanese), cmrc, dureader (Chinese), persianqa, arcd (Arabic)
    scorer: str | dict[str, str] = "squad"
    language: str | dict[str, str] = "en"  # mlqa: language of the answers; or by data set, else en

    @model_validator(mode="after")
    def _fits_together(self) -> "EvalSection":
        for field, known in (("scorer", SCORERS), ("language", LANGUAGES)):
            given = getattr(self, field)
            values = _by_data_set(given).values()
            if isinstance(given, str):
                values = [given]
            for value in values:
                if value not in known:
                    names = ", ".join(known)
                    raise FieldFault(f"{field}: {value!r} is not one of {names}: give one, or one by data set")
        if self.language != "en" and not self.uses_mlqa:
            raise FieldFault("language: only scorer mlqa has rules by language: set eval.scorer to mlqa")
        for data_set in _by_data_set(self.language):
            if not self.scorer_of(data_set).row.startswith("mlqa"):
                raise FieldFault(f"language: {data_set} is not scored by mlqa: set that in eval.scorer")
        return self

    @property
    def uses_mlqa(self) -> bool:
        return "mlqa" in (self.scorer, *_by_data_set(self.scorer).values())

    def scorer_of(self, data_set: str) -> Scorer:
        """The rules that score a data set."""
        row, language = self.scorer, self.language
        if isinstance(row, dict):
            row = row.get(data_set, "squad")
        if isinstance(language, dict):
            language = language.get(data_set, "en")
        if row == "mlqa":
            row += f" {language}"
        return Scorer(row)


class Recipe(Section):
    """Every setting of a run. `Recipe.load` is the way in; `Recipe.dump` gives the resolved YAML."""

    kinds: ClassVar = {"method": METHODS}
    training_field: ClassVar = "data.train"  # the field in which the user named the training data
    task: Literal["extractive", "generative"] = "extractive"  # answers are spans of the text, or generated
    seed: int = Field(0, ge=0, lt=2**63)  # decides new layers, the order of the data, dropout and noise
    model: ModelSection  # the pretrained model
    method: Annotated[Settings, AnyMethod]  # how it is fine-tuned: name, with the settings of that method
    data: DataSection  # what it is trained and tested on
    pretrain: PretrainSection | None = None  # a first stage of training, on other data
    train: TrainSection = TrainSection()  # how it is trained
    eval: EvalSection = EvalSection()  # how it is tested
    tracking: TrackingSection = TrackingSection()  # where metrics go besides the run's folder

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))
        return self

    @model_validator(mode="after")
    def _fits_its_model(self) -> "Recipe":
        """Lowers `data.max_length` to a local model's number of positions, unless the recipe sets it."""
        config = user_path(self.model.name) / "config.json"
        if "max_length" not in self.data.model_fields_set and config.is_file():
            positions = read_json(config).get("max_position_embeddings") or self.data.max_length
            if 8 <= positions < self.data.max_length:
                warn_once(f"data.max_length is not set: {positions}, the most that model.name {self.model.name} takes")
                return self.model_copy(update={"data": self.data.model_copy(update={"max_length": positions})})
        return self

    def _faults(self) -> Iterator[str]:
        method = self.method
        train = self.train
        tests = self.test_sets
        select_on = self.eval.select_on
        longest = self.eval.max_answer_tokens
        if not tests and "eval" not in self.data.model_fields_set:
            yield "data.eval names nothing to evaluate on: name test sets, or set data.holdout_fraction or data.eval={}"
        if select_on is not None and select_on not in tests:
            yield (
                f"eval.select_on: {select_on!r} is not a data set of data.eval{suggest(select_on, tests)} "
                f"({HOLDOUT} needs data.holdout_fraction)"
            )
        for field, given in (("scorer", self.eval.scorer), ("language", self.eval.language)):
            for name in _by_data_set(given):
                if name not in tests:
                    yield f"eval.{field}: {name!r} is not a data set of data.eval{suggest(name, tests)}"
        if train.execution == "joint" and method.needs_gradient:
            yield (
                f"train.execution: joint has one backward for all passes, and {method.name} needs the gradient of one "
                "pass for the next: set it to split"
            )
        if self.model.attention == "flash_attention_2" and train.precision in ("fp32", "tf32"):
            yield "model.attention: flash_attention_2 needs half precision: set train.precision to bf16"
        if self.task == "generative" and train.compile:
            yield "train.compile: works only with extractive models: set it to false"
        if self.task == "generative" and self.data.max_target_length > longest:
            yield (
                f"data.max_target_length: the model would learn answers of {self.data.max_target_length} tokens, and "
                f"with eval.max_answer_tokens {longest} never generate them: lower it to {longest}, or raise the other"
            )
        if method.name == "ssmba" and len(self.data.sources) > 1:
            yield "data.train: ssmba trains on samples of one source, and this is a mix: give one source"
        elif method.name == "ssmba" and self.data.augmented is None:
            yield (
                "data.augmented: ssmba trains on samples of data.train: make them with `swep-ds augment "
                f"--data {self.data.train} --model MASKED_LANGUAGE_MODEL --output FILE.json` and set this to FILE.json"
            )

    @staticmethod
    def load(name_or_path: str, overrides: Sequence[str] = (), option: str = "--recipe") -> "Recipe":
        """Reads `swep_ds/recipes/<name>.yaml` or a YAML file and applies `--set` overrides.

        A recipe may begin with `extends: NAME_OR_PATH` (a path from its own folder) and then holds only its changes.
        `option` is what the user named the recipe with. Raises InputError: no such recipe, an unknown field (names the
        nearest one) or a wrong value.
        """
        return load(Recipe, name_or_path, RECIPES, option, overrides)

    @staticmethod
    def make(base: "str | Path | Recipe", **sections: Any) -> "Recipe":
        """A recipe with other sections, as in `Recipe.make("bert_base_squad", seed=1, train={"epochs": 3})`.

        `base` is the name of a shipped recipe, the path of a YAML file, or a recipe. A `Section`, such as the settings
        of a method, replaces the whole section, and a dict only its fields. Raises InputError: as `load`.
        """
        if isinstance(base, Recipe):
            place = "Recipe"
            tree = base.model_dump(mode="json")
        else:
            place = f"recipe {base}"
            _, tree = read_whole(str(base), RECIPES, "recipe", Recipe)
        changes = []
        for name, given in without_paths(sections).items():
            if isinstance(given, dict) and tree.get(name):
                changes += [([name, field], value) for field, value in given.items()]
            elif isinstance(given, Section):
                changes.append(([name], given.model_dump(mode="json")))
            else:
                changes.append(([name], given))
        return change(Recipe, tree, changes, place)

    @classmethod
    def lay_over(cls, base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
        """Also checks that the source domain, which is the first test set, still fits where a layer replaces data.train
        or holds articles out. Warns if all test sets are the recipe's, for data.train may be of the same domain. Raises
        InputError if the only domain that was trained on could count as out of domain."""
        merged = super().lay_over(base, layer)
        before, given, after = (flatten(tree) for tree in (base, layer, merged))
        first = next((field for field in before if field.startswith("data.eval.")), None)
        if first is None or first in given or after.get(first) != before[first]:
            return merged
        source = before[first]
        example = "as in --set 'data.eval={NAME: FILE}'"
        home = _home(after)
        home_before = _home(before)
        if held_out := after.get("data.holdout_fraction"):
            if home is not None and home_before == home and not before.get("data.holdout_fraction"):
                raise InputError(
                    f"data.holdout_fraction {held_out}: held-out articles are the source domain, and {first} "
                    f"({source}), which is of that domain too, would count as out of domain: name only the other test "
                    f"sets, {example}"
                )
        elif home_before is not None and home not in (None, home_before, source):
            trained = "data.train" if "data.train" in after else "the home of data.train"
            domain = f"the source domain, {first} ({excerpt(source)}), is the recipe's"
            kept = f"{trained} is {excerpt(home)}, while {domain}"
            if added := [field.removeprefix("data.eval.") for field in given if field.startswith("data.eval.")]:
                raise InputError(
                    f"{kept}, and {', '.join(added)} would count as out of domain: name all test sets, the one of "
                    f"data.train's domain first, {example}"
                )
            warn_once(f"{kept}: if it is of another domain, replace it, {example}")
        return merged

    def first_stage(self) -> "FirstStage":
        """The run on `pretrain.train` that comes first. It tests nothing and averages no weights: the second stage
        chooses and reports."""
        tree = self.model_dump(mode="json")
        stage = tree.pop("pretrain")
        tree["data"] |= {"train": stage.pop("train"), "max_train_examples": stage.pop("max_train_examples")}
        tree["data"] |= {"home": None, "train_fraction": 1.0, "augmented": None, "holdout_fraction": 0.0, "eval": {}}
        if self.method.name == "ssmba":
            tree["method"] = {"name": "mle"}  # the samples are of the second stage's questions
        tree["train"] |= stage
        tree["eval"] |= {"select_on": None, "scorer": "squad", "language": "en"}
        return FirstStage.model_validate(tree).unaveraged()

    @property
    def stages(self) -> "list[Recipe]":
        """The trainings of a run: the first stage, if there is one, and the recipe itself."""
        stages = [self]
        if self.pretrain:
            stages = [self.first_stage(), self]
        return stages

    @property
    def title(self) -> str:
        """Method, model and seed, for headings."""
        return f"{self.method.name}, {self.model.name}, seed {self.seed}"

    @property
    def sources(self) -> dict[str, str]:
        """All sources of questions, by the field that names each."""
        sources = {**self.data.sources, "data.augmented": self.data.augmented}
        if self.pretrain:
            sources["pretrain.train"] = self.pretrain.train
        sources |= {f"data.eval.{name}": source for name, source in self.data.eval.items()}
        return {field: source for field, source in sources.items() if source}

    def as_named(self, field: str) -> str:
        """The field as the user named it: a first stage has another name for its training data."""
        return self.training_field if field == "data.train" else field

    @property
    def test_sets(self) -> list[str]:
        """Names of the data sets that the run is tested on, the source domain first."""
        names = list(self.data.eval)
        return [HOLDOUT, *names] if self.data.holdout_fraction else names

    @property
    def validation_set(self) -> str | None:
        """The test set of which one half chooses a checkpoint or when to decline, and the other half is reported:
        `eval.select_on`, or else the held-out articles of a run that may decline; None if nothing chooses. All of it is
        reported where that half could choose nothing."""
        if self.eval.select_on is None and self.data.unanswerable == "train" and self.data.holdout_fraction > 0:
            return HOLDOUT
        return self.eval.select_on

    def unaveraged(self) -> "Recipe":
        """The same training, but the last weights are exported, not the average."""
        plain = {name: TrainSection.model_fields[name].default for name in ("average", *AVERAGED_BY)}
        return self.model_copy(update={"train": self.train.model_copy(update=plain)})

    def dump(self) -> str:
        """The resolved recipe as YAML; loading it gives this recipe again."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class FirstStage(Recipe):
    """The run that a recipe's `pretrain` asks for."""

    training_field: ClassVar = "pretrain.train"


def _home(flat: dict[str, Any]) -> str | None:
    """The home source in settings by dotted name that are not yet validated; None where they name none."""
    named = (flat.get(field) for field in ("data.train", "data.home", "data.train.0.source"))
    return next((source for source in named if isinstance(source, str)), None)


def check_data_set_name(name: str) -> None:
    """Raises ValueError for a name that cannot become the file `predictions/NAME.json`."""
    if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
        raise ValueError(f"the name {excerpt(name)} becomes a file name: use letters, digits, '.', '_' and '-'")


load_entry_points(GROUP)  # at the end: such a module may import this one
