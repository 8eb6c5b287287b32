"""Recipes: names and paths, overrides and their types, what errors say, the resolved copy."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.common.files import ds_config_path
from swep_ds.common.settings import flatten
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.scoring_rules import LANGUAGES, SCORERS
from swep_ds.pipeline.recipe import RECIPES, Recipe
from swep_ds.ranks.environment import warn_once
from swep_ds.sweeps.sweep import read_sweep
from tests.support.bad_input import refused

MINIMAL = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}


@pytest.fixture
def path(tmp_path) -> Path:
    return write(tmp_path / "mine.yaml", MINIMAL)


def write(path: Path, tree: object) -> Path:
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def message(path: Path, *overrides: str) -> str:
    return refused(Recipe.load, str(path), overrides)


# Shipped recipes


@pytest.mark.parametrize("shipped", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads_by_name_and_has_its_launch_line_at_its_head(shipped):
    comments = itertools.takewhile(lambda line: line.startswith("#"), shipped.read_text().splitlines())
    line = " ".join(comment.lstrip("# ").rstrip("\\") for comment in comments)
    required = re.findall(r"--set (\S+)", line)  # values that a recipe leaves to its launch line
    assert Recipe.load(str(shipped), required) == Recipe.load(shipped.stem, required)
    assert line.startswith("swep-ds train")
    if named := re.search(r"--ds_config (\S+)", line):
        assert ds_config_path(named[1]).is_file()
    named = re.search(r"--recipe (\S+)", line)
    assert (named[1] if named else "quickstart") == shipped.stem  # the script's default


# The numbers of the paper's Section 4 and, where it gives none, of the published code. All other fields are at their
# defaults. The paper gives neither beta nor T5's schedule and max_grad_norm.
NUMBERS = """
task: extractive
model: {name: google-bert/bert-base-uncased}
method: {name: swep, noise: learned, beta: 1.0, prior_variance: 0.1, mle_weight: 0.5, kl_reduction: sum}
data: {train: rajpurkar/squad, eval: {squad: rajpurkar/squad}, max_length: 384, max_query_length: 64, doc_stride: 128}
train: {epochs: 2, micro_batch_size: 8, gradient_accumulation_steps: 1, optimizer: adamw, learning_rate: 3.0e-5,
  schedule: linear, warmup_fraction: 0, weight_decay: 0, adam_epsilon: 1.0e-8, max_grad_norm: 1}
eval: {n_best: 20, max_answer_tokens: 30, whole_words: false}
---
task: generative
model: {name: google-t5/t5-small}
train: {epochs: 4, micro_batch_size: 64, gradient_accumulation_steps: 1, optimizer: adafactor, learning_rate: 1.0e-4,
  schedule: constant, max_grad_norm: 0}
eval: {beams: 4}
---
method: {beta: 2.0, kl_reduction: mean, initialisation: default, separate_hidden_pass: true} # (1 - lambda) * beta = 1
data: {windows_without_answer: cls}
train: {group_by_length: false}
---
pretrain: {epochs: 2, micro_batch_size: 32, learning_rate: 2.0e-5}
train: {micro_batch_size: 32}
eval: {select_on: squad}
"""
BERT, T5, OFFICIAL, SYNTHETIC = map(flatten, yaml.safe_load_all(NUMBERS))
OFFICIAL["method.prior_variance"] = pytest.approx((0.1 / 0.9) ** 0.5, rel=1e-15)
ELECTRA = {"model.name": "google/electra-small-discriminator"}
PAPER = {
    "bert_base_squad": {},
    "electra_small_squad": ELECTRA,
    "t5_small_squad": T5,
    "official": OFFICIAL,
    "synthetic": SYNTHETIC,
    "ablation_no_kl": ELECTRA | {"method.beta": 0.0},
    "ablation_no_mle": ELECTRA | {"method.mle_weight": 0.0},
}
for noise in ("additive", "fixed_mu", "fixed_sigma", "no_eps"):
    PAPER[f"ablation_{noise}"] = ELECTRA | {"method.noise": noise}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_have_its_numbers_and_defaults_elsewhere(name):
    expected = BERT | PAPER[name]
    required = ["pretrain.train=pairs.json"] if name == "synthetic" else []
    fields = flatten(Recipe.load(name, required).model_dump(mode="json"))
    assert {field: fields.get(field) for field in expected} == expected
    defaults = flatten(Recipe.model_validate(MINIMAL).model_dump(mode="json"))
    for field, value in fields.items():
        assert field in expected or field.startswith("pretrain.") or value == defaults[field]


# One recipe on top of another


def test_a_recipe_that_extends_another_holds_what_it_changes(path, tmp_path):
    changes = {"extends": "mine.yaml", "seed": 7, "data": {"eval": {"more": "z"}, "max_length": 100}}
    mine = write(tmp_path / "changed.yaml", changes | {"method": {"beta": 0.5}})
    expected = Recipe.load(str(path), ["seed=7", "data.eval.more=z", "data.max_length=100", "method.beta=0.5"])
    assert Recipe.load(str(mine)) == expected
    assert list(expected.data.eval) == expected.test_sets == ["x", "more"]
    holding_out = expected.model_copy(update={"data": expected.data.model_copy(update={"holdout_fraction": 0.1})})
    assert holding_out.test_sets == ["held_out", "x", "more"]
    assert "extends" not in expected.dump()
    assert Recipe.make(mine) == expected  # a path is as good as its text
    above = write(tmp_path / "again.yaml", {"extends": str(mine), "seed": 8, "train": {"epochs": 1}})
    assert Recipe.load(str(above), ["train.epochs=3"]) == Recipe.load(str(mine), ["seed=8", "train.epochs=3"])


def test_windows_fit_a_local_model_if_their_length_is_not_set(path, tmp_path, caplog):
    tree = {"model": {"name": str(tmp_path)}, "method": {"name": "mle"}, "data": {"train": "x", "eval": {"x": "y"}}}
    for positions, length in ((None, 384), (512, 384), (256, 256)):
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
        recipe = Recipe.load(str(write(tmp_path / "own.yaml", tree)))
        assert recipe.data.max_length == length
        assert Recipe.load(str(tmp_path / "own.yaml"), ["data.max_length=300"]).data.max_length == 300
    assert caplog.text.count("data.max_length is not set: 256, the most that model.name") == 1
    assert Recipe.load(str(write(tmp_path / "saved.yaml", yaml.safe_load(recipe.dump())))) == recipe


# Two stages and the choice of a checkpoint


def test_the_first_stage_is_the_recipe_on_other_data(path):
    settings = ["pretrain.train=pairs", "pretrain.epochs=3", "pretrain.max_train_examples=50", "eval.select_on=x"]
    settings += ["data.holdout_fraction=0.2", "data.eval={x: dev}", "data.train_fraction=0.5", "train.precision=bf16"]
    first = Recipe.load(str(path), [*settings, "train.max_updates=7", "train.max_tokens=4096"]).first_stage()
    expected = ["data.train=pairs", "data.max_train_examples=50", "data.eval={}", "train.epochs=3"]
    expected += ["train.precision=bf16", "train.micro_batch_size=32", "train.learning_rate=2e-5"]
    assert first.model_dump() == Recipe.load(str(path), expected).model_dump()
    averaged = Recipe.load(str(path), ["train.average=ema", "train.average_decay=0.9", "pretrain.train=pairs"])
    assert averaged.unaveraged() == Recipe.load(str(path), ["pretrain.train=pairs"])
    assert averaged.first_stage().train.average == "none"
    samples = [
        "method.name=ssmba",
        "data.augmented=a.json",
        "pretrain.train=p.json",
    ]  # for the second stage
    assert Recipe.load(str(path), samples).first_stage().method.name == "mle"


# Overrides


def test_an_override_has_its_fields_type(path):
    for override, expected in (
        ("train.learning_rate=3e-5", 3e-5),  # YAML 1.1 reads this one as a string
        ("train.adam_betas=[0.8, 0.98]", (0.8, 0.98)),
        ("train.max_updates=null", None),
        ("tracking.to=off", "off"),  # YAML 1.1 reads this one as false
        ("data.train=owner/name:config@train[:10%]", "owner/name:config@train[:10%]"),
        ("data.train=a=b.json", "a=b.json"),
    ):
        node = Recipe.load(str(path), [override])
        for key in override.partition("=")[0].split("."):
            node = getattr(node, key)
        assert node == expected
        assert type(node) is type(expected)


def test_overrides_apply_in_order_keep_the_order_of_test_sets_and_make_missing_sections(path):
    overrides = ["data.eval.amazon=a.json", "data.eval.nyt=n.json", "data.eval.x=z"]
    recipe = Recipe.load(str(path), [*overrides, "eval.n_best=6", "eval.n_best=5", "tracking.project=p"])
    assert list(recipe.data.eval.items()) == [("x", "z"), ("amazon", "a.json"), ("nyt", "n.json")]
    assert (recipe.eval.n_best, recipe.tracking.project) == (5, "p")
    assert Recipe.load(str(path), ["data.eval={}"]).data.eval == {}  # said, not forgotten
    write(path, MINIMAL | {"data": None, "pretrain": None})
    recipe = Recipe.load(str(path), ["data.train=t", "data.eval.x=y", "pretrain.train=p"])
    assert (recipe.data.train, recipe.pretrain.train) == ("t", "p")


def test_another_method_drops_the_settings_of_the_former_one(tmp_path):
    path = write(tmp_path / "r.yaml", MINIMAL | {"method": {"name": "swep", "beta": 0.01, "prior_variance": 0.2}})
    assert Recipe.load(str(path), ["method.name=mle"]).method.model_dump() == {"name": "mle"}
    assert Recipe.load(str(path), ["method.name=prior_aug"]).method.prior_variance == 0.1  # its own default
    assert Recipe.load(str(path), ["method.name=swep"]).method.beta == 0.01
    for method, variance in (("prior_aug", 0.1), ("swep", 0.2)):
        above = write(tmp_path / "above.yaml", {"extends": "r.yaml", "method": {"name": method}})
        assert Recipe.load(str(above)).method.prior_variance == variance
    adversarial = ["method.ascent_steps=7", "method.name=adv_aug"]  # its settings may stand before its name
    assert Recipe.load(str(path), adversarial).method.ascent_steps == 7
    assert Recipe.load(str(path), ["method={name: swep}", "method.name=mle"]).method.name == "mle"


# Errors


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        # what is no override
        ("train.epochs", "section.field=value"),
        ("data.train=[", "--set data.train=[: not YAML"),
        ("data.train.x=1", "data.train: {'x': 1}: give a source, or a list of {source, weight}"),
        # a mix
        ("data.train=[{source: a}]", "data.train.0.weight is required: set it"),
        ("data.train=[{source: a, weigth: 1}]", "0.weigth is not a field; did you mean 'data.train.0.weight'?"),
        ("data.train=[{name: a, weight: 1}]", "0.name is not a field; known are source, weight"),
        ("data.train=[{source: a, weight: 0}]", "data.train.0.weight: 0: must be greater than 0"),
        ("data.train=[a.json]", "data.train.0: 'a.json' is not a section: give its fields"),
        ("data.train=[]", "data.train: give one or more sources, each only once"),
        ("data.train=[{source: a, weight: 1},{source: a, weight: 2}]", "data.train: give one or more sources, each"),
        ("pretrain.train=[a]", "pretrain.train: ['a']: must be a valid string"),
        # wrong values
        ("seed=x", "yaml: seed: 'x': must be a valid integer, unable to parse string as an integer"),
        ("train.epochs=", "train.epochs: None: must be a valid number"),
        ("train.max_updates=on", "train.max_updates: 'on': must be a valid integer"),
        ("train.max_updates=true", "train.max_updates: true: must be a number"),
        ("method.beta=true", "method.beta: true: must be a number"),
        ("train.schedule=Linear", "train.schedule: 'Linear': must be 'linear' or 'constant'"),
        ("data={}", "data.train is required: set it"),
        # unknown names
        ("beta=1", "beta is not a field; did you mean 'method.beta'?"),
        ("train.max_length=64", "train.max_length is not a field; did you mean 'data.max_length'?"),
        ("pretrain.epocs=1", "pretrain.epocs is not a field; did you mean 'pretrain.epochs'?"),
        ("zzzz.a=1", "; known are data, eval, extends, method, model, pretrain, seed, task, tracking, train"),
        ("method.name=sweb", "method.name: 'sweb' is not a method; did you mean 'swep'?"),
        ("method.name=mle method.prior_variance=1", "method.prior_variance is not a field of mle, but of prior_aug, "),
        ("method.prior_varience=1", "method.prior_varience is not a field; did you mean 'method.prior_variance'?"),
        ("eval.select_on=y", "eval.select_on: 'y' is not a data set of data.eval; known are x"),
        ("data.holdout_fraction=0.1 data.eval.x=dev eval.select_on=heldout", "did you mean 'held_out'?"),
        ("eval.select_on=held_out", "not a data set of data.eval; known are x (held_out needs data.holdout_fraction)"),
        ("train.average_start=0.3", "average_start: is a setting of average start: set train.average to that"),
        # sections and names
        ("data.eval={a/b: y}", "the name 'a/b' becomes a file name"),
        ("data.eval={held_out: y}", "'held_out' names the held-out training articles: choose another name"),
        ("pretrain=a.json", "pretrain: 'a.json' is not a section: give its fields"),
        # what does not fit together
        ("method.name=freelb train.execution=joint", "needs the gradient of one pass for the next"),
        ("method.divergence_weight=1 method.mle_weight=0", "which does not train where mle_weight is 0: set"),
        ("method.kl_target=20 method.beta=0", "method.beta: with kl_target beta starts from"),
        ("method.kl_target=20 method.beta_schedule=linear_to_zero", "beta_schedule: kl_target decides beta: set it to"),
        ("method.kl_target=20 method.noise=fixed_sigma", "cannot fall below a constant"),
        (
            "method.adversarial=true method.beta=0",
            "adversarial: only the KL bounds it: set kl_target, or a constant beta",
        ),
        ("method.adversarial=true method.beta_schedule=linear_to_zero", "adversarial: only the KL bounds it"),
        ("task=generative eval.max_answer_tokens=12", "eval.max_answer_tokens 12 never generate them: lower it to 12"),
        ("model.attention=flash_attention_2", "model.attention: flash_attention_2 needs half precision"),
        ("method.name=ssmba", "`swep-ds augment --data t --model MASKED_LANGUAGE_MODEL --output FILE.json`"),
    ],
)
def test_what_is_wrong_is_said_with_the_field_and_the_fix(path, overrides, said):
    overrides = [overrides] if "{" in overrides else overrides.split()
    assert said in (line := message(path, *overrides))
    assert line.startswith((f"{path}: ", f"--set {overrides[0]}: "))


def test_a_text_that_is_not_yaml_has_a_place(tmp_path):
    file = tmp_path / "bad.yaml"
    for text, part in (
        ("a: !!python/object/apply:os.system [id]", "line 1, column 4: could not determine a constructor"),
        ("key: 1\nkey: 2", "line 2, column 1: key stands here a second time"),
        ("train:\n  epochs: 1\n epochs: [3\n", "line 3, column 2: expected <block end>, but found"),
    ):
        file.write_text(text)
        said = message(file)
        assert said.startswith(f"{file}: not YAML ({part}")
        assert said.endswith("): correct it, or quote the value")
        assert refused(read_sweep, str(file), tmp_path / "runs") == said


def test_all_faults_of_a_file_or_a_name_and_of_overrides_are_in_one_line(tmp_path):
    file = write(tmp_path / "r.yaml", MINIMAL | {"train": {"epochs": -1, "compile": True}})
    fault = "seed: -1: must be greater than or equal to 0; train.epochs: -1: must be greater than 0"
    assert message(file, "seed=-1") == f"{file}: {fault}"
    assert message("quickstart", "seed=-1", " train.epochs = -1") == f"--recipe quickstart: {fault}"
    fits = f"{file}: train.compile: works only with extractive models: set it to false"
    assert message(file, "train.epochs=1", "task=generative") == fits


def test_a_similar_name_is_suggested(tmp_path):
    for name in ("Quickstart", "quickstrat"):
        assert message(name) == f"--recipe {name}: no such recipe; did you mean 'quickstart'?"
    file = write(tmp_path / "r.yaml", {"extends": "bert_base_squd"})
    assert message(file) == f"{file}: extends bert_base_squd: no such recipe; did you mean 'bert_base_squad'?"
    write(file, MINIMAL | {"extend": "quickstart"})
    assert message(file) == f"{file}: extend is not a field; did you mean 'extends'?"


def test_a_file_that_is_no_recipe_is_told(tmp_path):
    file = tmp_path / "mine.yaml"
    sections = "task, seed, model, method, data, pretrain, train, eval, tracking"
    for tree in (["a"], "text", {"set": {}}):
        assert message(write(file, tree)) == f"{file}: a recipe is a mapping with the sections {sections}"
    for tree in ({"variants": {"MLE": {}}}, {"extends": "quickstart", "seeds": [0]}):
        assert message(write(file, tree)) == f"{file}: is a sweep, not a recipe: start it with `swep-ds sweep {file}`"
    assert message(write(file, MINIMAL | {"variants": {}})).startswith(f"{file}: variants is not a field")
    write(file, {"extends": "two.yaml"})
    write(tmp_path / "two.yaml", {"extends": "mine.yaml"})
    assert message(tmp_path / "two.yaml").endswith("which extends this one: files cannot go round in a circle")


def test_what_a_file_lacks(tmp_path):
    for changes, said in (
        ({"model": {}}, "model.name is required: set it"),
        ({"method": {"beta": 1}}, "method.name is required: set it"),
        ({"data": None}, "data: None is not a section: give its fields"),
        ({"data": {"train": "t"}}, "data.eval names nothing"),
    ):
        assert said in message(write(tmp_path / "r.yaml", MINIMAL | changes))


def test_scorers_and_languages_are_known_and_of_test_sets(path):
    assert Recipe.load(str(path)).eval.scorer_of("any") == Scorer("squad")
    assert Recipe.load(str(path), ["eval.scorer=korquad"]).eval.scorer_of("any") == Scorer("korquad")
    mlqa = ["eval.scorer=mlqa", "data.eval.zh=zh.json"]
    testing = Recipe.load(str(path), [*mlqa, "eval.language={zh: zh}"]).eval
    assert (testing.scorer_of("zh"), testing.scorer_of("other")) == (Scorer("mlqa zh"), Scorer("mlqa en"))
    assert Recipe.load(str(path), [*mlqa, "eval.language=de"]).eval.scorer_of("zh") == Scorer("mlqa de")
    both = ["data.eval.zh=zh.json", "data.eval.ko=ko.json", "eval.scorer={zh: mlqa, ko: klue}", "eval.language=zh"]
    testing = Recipe.load(str(path), both).eval
    assert [testing.scorer_of(name).row for name in ("zh", "ko", "other")] == ["mlqa zh", "klue", "squad"]
    for scorer in ("squad", "korquad"):
        said = message(path, "eval.language=de", f"eval.scorer={scorer}")
        assert "eval.language: only scorer mlqa has rules by language: set eval.scorer to mlqa" in said
    assert "eval.language: 'hz' is not a data set" in message(path, *mlqa, "eval.language={hz: zh}")
    assert "eval.scorer: 'hz' is not a data set" in message(path, "data.eval.zh=zh.json", "eval.scorer={hz: cmrc}")
    known = {"language": ", ".join(LANGUAGES), "scorer": ", ".join(SCORERS)}
    for field, value in (("language", "xx"), ("language", "{zh: xx}"), ("scorer", "xx"), ("scorer", "{zh: xx}")):
        said = message(path, *mlqa, f"eval.{field}={value}")
        assert f"eval.{field}: 'xx' is not one of {known[field]}: give one, or one by data set" in said


# The resolved copy


@settings(max_examples=10)
@given(rate=st.floats(1e-12, 1e3), text=st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1))
def test_the_resolved_copy_loads_to_an_equal_recipe(tmp_path_factory, rate, text):
    tree = {
        "model": {"name": text},
        "method": {"name": "swep", "beta": rate},
        "data": {"train": text, "eval": {"source": text, "b": "null", "a": "off"}},
        "train": {"learning_rate": rate, "adam_betas": [0.5, 0.9]},
    }
    path = tmp_path_factory.getbasetemp() / "resolved.yaml"
    recipe = Recipe.model_validate(tree)
    path.write_text(recipe.dump())
    again = Recipe.load(str(path))
    assert again == recipe
    assert list(again.data.eval) == ["source", "b", "a"]
    assert set(yaml.safe_load(recipe.dump())["train"]) == set(type(recipe.train).model_fields)  # every setting


def test_a_mix_has_shares_by_weight_and_a_home():
    mix = [{"source": "a.json", "weight": 3}, {"source": "b.json", "weight": 1}]
    recipe = Recipe.make("quickstart", data={"train": mix, "eval": {}})
    assert recipe.data.shares == {"a.json": 0.75, "b.json": 0.25}
    assert recipe.data.home_field == "data.train.0.source"
    assert Recipe.make(recipe, data={"home": "b.json"}).data.home_field == "data.train.1.source"


def test_a_list_of_a_single_source_is_that_source(path):
    plain = Recipe.load(str(path), ["data.train=a.json", "data.home=a.json"])
    assert Recipe.load(str(path), ["data.train=[{source: a.json, weight: 3}]", "data.home=a.json"]) == plain


def test_what_does_not_fit_a_mix_is_said(path, caplog):
    for more, said in (
        ("data.home=b.jsn", "data.home: 'b.jsn' is not a source of data.train; did you mean 'b.json'?"),
        ("data.augmented=c", "data.augmented: holds samples of one source, and data.train is a mix"),
        ("method.name=ssmba", "data.train: ssmba trains on samples of one source, and this is a mix: give one"),
    ):
        assert said in message(path, "data.train=[{source: a.json, weight: 3}, {source: b.json, weight: 1}]", more)
    caplog.clear()
    for more in ("data.train={a.json: 1, b.json: 3}", "data.train.0.weight=5"):  # over a recipe with a source domain
        assert message("bert_base_squad", more).endswith(": give a source, or a list of {source, weight}")
    assert not caplog.records


# Own training data over a shipped recipe: which test set is the source domain is said, never guessed

MINE = "data.train=mine.json"
HOLDS_OUT = "data.holdout_fraction=0.1"
BOTH = "data.train=[{source: mine.json, weight: 1}, {source: rajpurkar/squad, weight: 9}]"


def child(folder: Path, **data) -> str:
    return str(write(folder / "child.yaml", {"extends": "bert_base_squad", "data": data}))


def test_the_recipes_source_domain_stays_with_a_warning(tmp_path, caplog):
    for name, overrides in (
        ("bert_base_squad", [MINE]),
        (child(tmp_path, train="mine.json"), []),
        ("bert_base_squad", [BOTH]),
    ):
        warn_once.cache_clear()
        caplog.clear()
        for _ in range(3):  # a sweep loads it for each run
            assert list(Recipe.load(name, overrides).data.eval) == ["squad"]
        [record] = caplog.records
        said = "data.train is 'mine.json', while the source domain, data.eval.squad ('rajpurkar/squad')"
        if overrides == [BOTH]:
            said = f"the home of {said}"
        assert (record.levelname, record.message.startswith(said)) == ("WARNING", True)
    warn_once.cache_clear()
    Recipe.make("bert_base_squad", data={"train": "mine.json"})
    assert len(caplog.records) == 2


def test_test_sets_that_are_added_would_count_as_out_of_domain(tmp_path):
    added = "data.eval.own=dev.json"
    mine = child(tmp_path, train="mine.json", eval={"own": "dev.json"})
    for name, overrides in (("bert_base_squad", [MINE, added]), ("bert_base_squad", [added, MINE]), (mine, [])):
        assert "own would count as out of domain: name all test sets" in refused(Recipe.load, name, overrides)
    # overrides are compared with the file that they change
    name = child(tmp_path, train="mine.json", eval={"squad": "dev.json"})
    assert list(Recipe.load(name, ["data.eval.amazon=a.json"]).data.eval) == ["squad", "amazon"]
    said = refused(Recipe.load, name, ["data.train=other.json", "data.eval.amazon=a.json"])
    assert "data.eval.squad ('dev.json'), is the recipe's" in said
    for more in ([], ["data.eval.amazon=amazon.json"]):
        said = refused(Recipe.load, "bert_base_squad", [HOLDS_OUT, *more])
        assert "0.1: held-out articles are the source domain, and data.eval.squad (rajpurkar/squad), which is " in said
    for malformed in ("data=", "data.eval=5", "data.eval.squad=5"):
        assert refused(Recipe.load, "bert_base_squad", [MINE, malformed])


def test_what_is_clear_is_taken_as_it_is(caplog):
    for overrides, sets in (
        ([MINE, "data.eval={own: dev.json}"], ["own"]),
        ([MINE, "data.eval={own: dev.json, squad: rajpurkar/squad}"], ["own", "squad"]),
        ([MINE, "data.eval.own=dev.json", "data.eval.squad=rajpurkar/squad"], ["squad", "own"]),
        (["data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        (["data.train=rajpurkar/squad", "data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        ([MINE, HOLDS_OUT, "data.eval.amazon=amazon.json"], ["squad", "amazon"]),  # held_out is first
        ([HOLDS_OUT, "data.eval={amazon: amazon.json}"], ["amazon"]),
        (["data.holdout_fraction=0"], ["squad"]),
        ([BOTH, "data.home=rajpurkar/squad"], ["squad"]),
    ):
        assert list(Recipe.load("bert_base_squad", overrides).data.eval) == sets
    assert not caplog.records
