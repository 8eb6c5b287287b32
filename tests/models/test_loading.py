"""Loading: in float32, with activation checkpointing or mapped; what cannot be trained is refused in one line."""

import pytest
import torch
import transformers
import transformers.models.bert.modeling_bert as bert

from swep_ds.models import loading
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_batches, tiny_models
from tests.support.bad_input import change_json, refused


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ])
def test_loads_in_float32_or_mapped_as_the_file_has_it(architecture, tmp_path):
    plain = tiny_models.model(architecture).bfloat16()
    plain.save_pretrained(tmp_path)
    for mapped, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        model = tiny_models.load(tmp_path, mapped=mapped).model
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert all(torch.equal(value, plain.get_parameter(name).to(dtype)) for name, value in model.named_parameters())
        if architecture in tiny_models.SEQ2SEQ:
            tied = model.lm_head.weight is model.get_input_embeddings().weight
            assert tied == (architecture not in tiny_models.UNTIED)


@pytest.mark.parametrize("architecture", ["bert", "t5", "bart"])
def test_activation_checkpointing_leaves_the_loss(architecture, tmp_path):
    tiny_models.model(architecture).save_pretrained(tmp_path)
    batch = tiny_batches.batch() if architecture == "bert" else tiny_batches.generative()
    losses = []
    for checkpointing in (False, True):
        qa = tiny_models.load(tmp_path, activation_checkpointing=checkpointing).train()
        assert qa.model.is_gradient_checkpointing == checkpointing
        losses.append(qa(qa.embed(batch), batch).nll.sum())
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "modernbert", "bart"])
def test_only_the_dropout_of_attention_weights_is_set_or_refused(architecture, tmp_path):
    model = tiny_models.model(architecture, dropout=0.1)
    model.save_pretrained(tmp_path)
    changed = tiny_models.load(tmp_path, attention_dropout=0.25).model
    before, after = model.config.to_dict(), changed.config.to_dict()
    differing = {name for name in after if before.get(name) != after[name]}
    differing -= {"_name_or_path", "dtype", "architectures"}
    assert differing <= {"attention_probs_dropout_prob", "attention_dropout"}
    assert {after[name] for name in differing} == {0.25}
    tiny_models.model("t5").save_pretrained(tmp_path)
    message = refused(tiny_models.load, tmp_path, attention_dropout=0.0)
    assert message == "model.attention_dropout: t5 has no dropout of only its attention weights: set it to null"


SMALL_SEQ2SEQ = tiny_models.BART | {"eos_token_id": 1, "scale_embedding": True}
SMALL_ENCODER = tiny_models.COMMON | {"sep_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    "config",
    [
        transformers.PegasusConfig(**SMALL_SEQ2SEQ),
        transformers.MarianConfig(**SMALL_SEQ2SEQ, decoder_vocab_size=64),
        transformers.BigBirdConfig(**SMALL_ENCODER),
        transformers.LongformerConfig(**SMALL_ENCODER | {"max_position_embeddings": 70}, attention_window=[4, 4]),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_treats_embeddings_otherwise_than_ids_is_refused(config, tmp_path):
    """It would train on other inputs than it is tested on."""
    auto, qa = transformers.AutoModelForQuestionAnswering, ExtractiveQA
    if config.is_encoder_decoder:
        auto, qa = transformers.AutoModelForSeq2SeqLM, GenerativeQA
    torch.manual_seed(0)
    model = auto.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    for mapped in (False, True):
        message = refused(qa.load, str(tmp_path), activation_checkpointing=False, mapped=mapped)
        assert "computes something else from inputs_embeds than from the same input_ids" in message


def test_a_config_that_makes_no_model(tmp_path):
    tiny_models.model("t5").save_pretrained(tmp_path)
    for change, said in (({"d_model": "wide"}, "d_model' expected int, got str"), ({"model_type": "t9"}, "type `t9`")):
        change_json(tmp_path / "config.json", **change)
        for weights in (True, False):
            message = refused(GenerativeQA.load, str(tmp_path), weights=weights, activation_checkpointing=False)
            assert message.startswith(f"model.name {tmp_path}: ")
            assert said in message


def test_models_without_a_head_for_the_task(tmp_path):
    for config, loader, said in (
        (transformers.ViTConfig(), ExtractiveQA, "model.name {}: transformers has no question-answering head for"),
        (tiny_models.config("t5"), ExtractiveQA, "task extractive: {} is a sequence-to-sequence model (t5): set task"),
        (tiny_models.config("bert"), GenerativeQA, "model.name {}: transformers has no sequence-to-sequence head for"),
    ):
        config.save_pretrained(tmp_path)
        message = refused(loader.load, str(tmp_path), activation_checkpointing=False)
        assert message.startswith(said.format(tmp_path))


FORMER = {
    "a regression": {"num_labels": 1, "problem_type": "regression"},
    "NLI": {"id2label": {"0": "entailment", "1": "neutral", "2": "contradiction"}, "finetuning_task": "mnli"},
    "sentiment": {"id2label": {"0": "bad", "1": "good"}, "problem_type": "single_label_classification"},
    "entities": {"num_labels": 9},
}


@pytest.mark.parametrize("former", FORMER)
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_a_span_head_has_two_outputs_whatever_the_former_head_had(architecture, former, tmp_path):
    tiny_models.config(architecture).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", **FORMER[former])
    kind = transformers.AutoModelForSequenceClassification
    if former == "entities":
        kind = transformers.AutoModelForTokenClassification
    classifier = kind.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    classifier.save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    assert "question-answering head" in refused(load_saved, str(tmp_path))
    model = tiny_models.load(tmp_path).model
    head = model.classifier if architecture == "modernbert" else model.qa_outputs
    assert (head.out_features, len(model.config.id2label)) == (2, 2)
    for name, weight in classifier.base_model.named_parameters():
        if "pooler" not in name:
            assert torch.equal(model.base_model.get_parameter(name), weight)
    model.save_pretrained(tmp_path / "exported")
    exported = type(model).from_pretrained(tmp_path / "exported")
    assert all(torch.equal(exported.get_parameter(name), weight) for name, weight in model.named_parameters())


DECODER = tiny_models.COMMON | {"num_key_value_heads": 1, "head_dim": 8}
DECODERS = ("llama", "qwen2", "qwen3", "nemotron", "mistral", "gpt2", "opt")


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("published", [True, False])
def test_base_weights_of_a_decoder_load_and_are_exported_under_its_own_names(kind, published, tmp_path):
    """Those of the causal model, which has another prefix than the question-answering class, or of the bare one."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64} if kind == "gpt2" else DECODER
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **sizes))
    (base if published else base.base_model).save_pretrained(tmp_path / "base")
    model = tiny_models.load(tmp_path / "base", mapped=published).model
    expected = dict(base.base_model.named_parameters())
    assert {name for name, _ in model.base_model.named_parameters()} == expected.keys()
    assert all(torch.equal(model.base_model.get_parameter(name), weight) for name, weight in expected.items())
    model.save_pretrained(tmp_path / "exported")
    again, report = type(model).from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(torch.equal(again.get_parameter(name), weight) for name, weight in model.named_parameters())


def test_outputs_that_a_config_asks_for_are_left_out_and_a_model_that_refuses_embeddings_is_refused(
    tmp_path, monkeypatch
):
    """transformers refuses the first output at the export, after the training."""
    tiny_models.model("bert").save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", output_attentions=True, output_hidden_states=True)
    tiny_models.load(tmp_path).model.save_pretrained(tmp_path / "exported")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert (config.output_attentions, config.output_hidden_states) == (False, False)
    forward = bert.BertForQuestionAnswering.forward
    monkeypatch.setattr(
        bert.BertForQuestionAnswering, "forward", lambda self, input_ids, **rest: forward(self, input_ids, **rest)
    )
    assert "cannot be run on inputs_embeds" in refused(tiny_models.load, tmp_path)


def test_attention_is_chosen_or_refused(tmp_path):
    tiny_models.model("bert").save_pretrained(tmp_path / "bert")
    for name in ("eager", "sdpa"):
        assert tiny_models.load(tmp_path / "bert", attention=name).model.config._attn_implementation == name
    tiny_models.model("deberta-v2").save_pretrained(tmp_path / "deberta")
    message = refused(tiny_models.load, tmp_path / "deberta", attention="sdpa")
    assert "no deberta-v2 can be built with its config.json and model.attention (" in message
    assert message.endswith("): set it to auto, or correct config.json")


def test_a_model_with_flash_attention_is_tried_without_it(monkeypatch):
    """It loads on a CPU, which has no FlashAttention."""
    model = tiny_models.model("bert", 0.0)
    model.config._attn_implementation = "flash_attention_2"
    asked = []

    def choose(name: str) -> None:
        asked.append(name)
        model.config._attn_implementation = name

    monkeypatch.setattr(model, "set_attn_implementation", choose)
    loading.check_takes_embeddings(model, "model.name bert")
    assert asked == ["eager", "flash_attention_2"]
