"""The recipes of the paper: each of their fields, against its numbers typed a second time."""

import pytest

from swep_ds.common.settings import flatten
from swep_ds.pipeline.recipe import Recipe

# The numbers of the paper's Section 4 and, where it gives none, of the published code. All other fields are at their
# defaults.
BERT = {
    "task": "extractive",
    "model.name": "google-bert/bert-base-uncased",
    "method.name": "swep",
    "method.noise": "learned",
    "method.beta": 1.0,  # the paper gives none
    "method.prior_variance": 0.1,
    "method.mle_weight": 0.5,
    "method.kl_reduction": "sum",
    "data.train": "rajpurkar/squad",
    "data.eval.squad": "rajpurkar/squad",
    "data.max_length": 384,
    "data.max_query_length": 64,
    "data.doc_stride": 128,
    "train.epochs": 2,
    "train.micro_batch_size": 8,
    "train.gradient_accumulation_steps": 1,
    "train.optimizer": "adamw",
    "train.learning_rate": 3e-5,
    "train.schedule": "linear",
    "train.warmup_fraction": 0,
    "train.weight_decay": 0,
    "train.adam_epsilon": 1e-8,
    "train.max_grad_norm": 1,
    "eval.n_best": 20,
    "eval.max_answer_tokens": 30,
}
T5 = {
    "task": "generative",
    "model.name": "google-t5/t5-small",
    "train.epochs": 4,
    "train.micro_batch_size": 64,
    "train.gradient_accumulation_steps": 1,
    "train.optimizer": "adafactor",
    "train.learning_rate": 1e-4,
    "train.schedule": "constant",  # the paper says neither this
    "train.max_grad_norm": 0,  # nor this
    "eval.beams": 4,
}
OFFICIAL = {
    "method.beta": 2.0,  # (1 - lambda) * beta = 1
    "method.prior_variance": pytest.approx((0.1 / 0.9) ** 0.5, rel=1e-15),
    "method.kl_reduction": "mean",
    "method.initialisation": "default",
    "method.separate_hidden_pass": True,
    "data.windows_without_answer": "cls",
    "train.group_by_length": False,
}
SYNTHETIC = {
    "pretrain.train": "pairs.json",
    "pretrain.max_train_examples": None,
    "pretrain.epochs": 2,
    "pretrain.max_updates": None,
    "pretrain.micro_batch_size": 32,
    "pretrain.max_tokens": None,
    "pretrain.gradient_accumulation_steps": 1,
    "pretrain.learning_rate": 2e-5,
    "train.micro_batch_size": 32,
    "eval.select_on": "squad",
}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("bert_base_squad", {}),
        ("electra_small_squad", {"model.name": "google/electra-small-discriminator"}),
        ("t5_small_squad", T5),
        ("official", OFFICIAL),
        ("synthetic", SYNTHETIC),
    ],
)
def test_the_papers_recipes_have_its_numbers_and_defaults_elsewhere(name, numbers):
    minimal = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}
    required = [f"{field}=pairs.json" for field in numbers if field == "pretrain.train"]
    expected = BERT | numbers
    fields = flatten(Recipe.load(name, required).model_dump(mode="json"))
    assert {field: fields.get(field) for field in expected} == expected
    defaults = flatten(Recipe.model_validate(minimal).model_dump(mode="json"))
    others = {field: value for field, value in fields.items() if field not in expected}
    assert others == {field: defaults[field] for field in others}
