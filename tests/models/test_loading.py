"""Loading in float32 or mapped; what cannot be trained, and weights that transformers would fill in, are one line."""

import copy
import re
from unittest import mock

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, BertForQuestionAnswering

from swep_ds.models import trials
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused
from tests.support.tiny_models import load
from tests.support.tiny_objective import windows


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ])
def test_loads_in_float32_or_mapped_as_the_file_has_it(architecture, tmp_path):
    plain = tiny_models.model(architecture).bfloat16()
    plain.save_pretrained(tmp_path)
    for mapped, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        model = load(tmp_path, mapped=mapped).model
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert all(torch.equal(value, plain.get_parameter(name).to(dtype)) for name, value in model.named_parameters())
        if architecture in tiny_models.SEQ2SEQ:
            tied = model.lm_head.weight is model.get_input_embeddings().weight
            assert tied == (architecture not in tiny_models.UNTIED)


@pytest.mark.parametrize("architecture", ["bert", "t5", "bart"])
def test_activation_checkpointing_leaves_the_loss(architecture, tmp_path):
    tiny_models.model(architecture).save_pretrained(tmp_path)
    batch, losses = windows(architecture), []
    for checkpointing in (False, True):
        qa = load(tmp_path, activation_checkpointing=checkpointing).train()
        assert qa.model.is_gradient_checkpointing == checkpointing
        losses.append(qa(qa.embed(batch), batch).nll.sum())
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "modernbert", "bart"])
def test_only_the_dropout_of_attention_weights_is_set_or_refused(architecture, tmp_path):
    model = tiny_models.model(architecture, dropout=0.1)
    model.save_pretrained(tmp_path)
    changed = load(tmp_path, attention_dropout=0.25).model
    before, after = model.config.to_dict(), changed.config.to_dict()
    differing = {name for name in after if before.get(name) != after[name]}
    differing -= {"_name_or_path", "dtype", "architectures"}
    assert differing <= {"attention_probs_dropout_prob", "attention_dropout"}
    assert {after[name] for name in differing} == {0.25}
    tiny_models.model("t5").save_pretrained(tmp_path)
    message = refused(load, tmp_path, attention_dropout=0.0)
    assert message == "model.attention_dropout: t5 has no dropout of only its attention weights: set it to null"


ENCODER = tiny_models.COMMON | {
    "vocab_size": 400,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 70,
}
SCALING = [transformers.PegasusConfig(**tiny_models.BART)]
SCALING += [transformers.MarianConfig(**tiny_models.BART, decoder_vocab_size=64)]
SEPARATED = [transformers.BigBirdConfig(**ENCODER), transformers.LongformerConfig(**ENCODER, attention_window=[4, 4])]


@pytest.mark.parametrize("config", SCALING + SEPARATED, ids=lambda config: config.model_type)
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
    tokenizer = None if config.is_encoder_decoder else copy.deepcopy(tiny.byte_bpe())
    for mapped in (False, True):
        message = refused(qa.load, str(tmp_path), activation_checkpointing=False, mapped=mapped, tokenizer=tokenizer)
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
        (tiny_models.config("t5"), ExtractiveQA, "task extractive: {} is a sequence-to-sequence model: set task"),
        (tiny_models.config("bert"), GenerativeQA, "model.name {}: transformers has no sequence-to-sequence head for"),
    ):
        config.save_pretrained(tmp_path)
        message = refused(loader.load, str(tmp_path), activation_checkpointing=False)
        assert message.startswith(said.format(tmp_path))


FORMER = {
    "a regression": (AutoModelForSequenceClassification, {"num_labels": 1, "problem_type": "regression"}),
    "sentiment": (AutoModelForSequenceClassification, {"id2label": {"0": "bad", "1": "good"}}),
    "entities": (AutoModelForTokenClassification, {"num_labels": 9}),
}


@pytest.mark.parametrize("former", FORMER)
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_a_span_head_has_two_outputs_whatever_the_former_head_had(architecture, former, tmp_path):
    tiny_models.config(architecture).save_pretrained(tmp_path)
    kind, settings = FORMER[former]
    change_json(tmp_path / "config.json", **settings)
    classifier = kind.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    classifier.save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    assert "question-answering head" in refused(load_saved, str(tmp_path))
    model = load(tmp_path).model
    head = model.classifier if architecture == "modernbert" else model.qa_outputs
    assert (head.out_features, len(model.config.id2label)) == (2, 2)
    for name, weight in classifier.base_model.named_parameters():
        if "pooler" not in name:
            assert torch.equal(model.base_model.get_parameter(name), weight)
    model.save_pretrained(tmp_path / "exported")
    exported = type(model).from_pretrained(tmp_path / "exported")
    assert all(torch.equal(exported.get_parameter(name), weight) for name, weight in model.named_parameters())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "nemotron", "mistral", "gpt2", "opt"])
@pytest.mark.parametrize("published", [True, False])
def test_base_weights_of_a_decoder_load_and_are_exported_under_its_own_names(kind, published, tmp_path):
    """Those of the causal model, which has another prefix than the question-answering class, or of the bare one."""
    config = transformers.AutoConfig.for_model(kind, **tiny_models.COMMON, num_key_value_heads=1, head_dim=8)
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(config)
    (base if published else base.base_model).save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base", mapped=published).model
    expected = dict(base.base_model.named_parameters())
    assert {name for name, _ in model.base_model.named_parameters()} == expected.keys()
    assert all(torch.equal(model.base_model.get_parameter(name), weight) for name, weight in expected.items())
    model.save_pretrained(tmp_path / "exported")
    again, report = type(model).from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(torch.equal(again.get_parameter(name), weight) for name, weight in model.named_parameters())


def test_outputs_of_a_config_are_left_out_and_a_model_that_takes_no_embeddings_is_refused(tmp_path, monkeypatch):
    """transformers refuses the first output at the export, after the training."""
    tiny_models.model("bert").save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", output_attentions=True, output_hidden_states=True)
    load(tmp_path).model.save_pretrained(tmp_path / "exported")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert (config.output_attentions, config.output_hidden_states) == (False, False)
    kind, forward = BertForQuestionAnswering, BertForQuestionAnswering.forward
    monkeypatch.setattr(kind, "forward", lambda self, input_ids, **rest: forward(self, input_ids, **rest))
    assert "cannot be run on inputs_embeds" in refused(load, tmp_path)


def test_attention_is_chosen_or_refused(tmp_path):
    tiny_models.model("bert").save_pretrained(tmp_path / "bert")
    for name in ("eager", "sdpa"):
        assert load(tmp_path / "bert", attention=name).model.config._attn_implementation == name
    tiny_models.model("deberta-v2").save_pretrained(tmp_path / "deberta")
    message = refused(load, tmp_path / "deberta", attention="sdpa")
    assert "no deberta-v2 can be built with its config.json and model.attention (" in message
    assert message.endswith("): set it to auto, or correct config.json")


def test_a_model_with_flash_attention_is_tried_without_it(monkeypatch):
    """It loads on a CPU, which has no FlashAttention."""
    model = tiny_models.model("bert", 0.0)
    model.config._attn_implementation = "flash_attention_2"
    choose = mock.Mock(side_effect=lambda name: setattr(model.config, "_attn_implementation", name))
    monkeypatch.setattr(model, "set_attn_implementation", choose)
    trials.check_takes_embeddings(model, "model.name bert", trials.example_window(model, None))
    assert choose.mock_calls == [mock.call("eager"), mock.call("flash_attention_2")]


def write(folder, architecture: str, change=dict, **settings) -> dict:
    """Saves a model with changed weights and config; returns the weights."""
    tiny_models.model(architecture).save_pretrained(folder)
    weights = change(load_file(folder / "model.safetensors"))
    copies = {name: value.contiguous() for name, value in weights.items()}
    save_file(copies, folder / "model.safetensors", {"format": "pt"})
    change_json(folder / "config.json", **settings)
    return weights


def without(pattern: str):
    return lambda weights: {name: value for name, value in weights.items() if not re.search(pattern, name)}


QUERY, BIAS = "bert.encoder.layer.0.attention.self.query.weight", "qa_outputs.bias"
FAULTS = {
    "another prefix": ("bert", lambda w: {f"other.{name}": w[name] for name in w}, {}, r"lack 37 weights .*first bert"),
    "more layers": ("bert", dict, {"num_hidden_layers": 3}, r"lack 16 weights .*first bert\.encoder\.la"),
    "no embeddings of T5": ("t5", without("shared|embed_tokens|lm_head"), {}, "that its config.json asks for"),
    "no decoder": ("bart", without("decoder"), {}, r"lack \d+ weights .*first model\.decoder\.embed_positions"),
    "another width": ("bert", dict, {"intermediate_size": 48}, r"lack 6 weights in the shapes that .*intermediate"),
    "NaN": ("bert", lambda w: w | {QUERY: w[QUERY] * torch.nan}, {}, "computes NaN or infinity"),
    "infinity": ("albert", lambda w: w | {BIAS: w[BIAS] - torch.inf}, {}, "computes NaN or infinity"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_are_not_the_models(fault, tmp_path):
    architecture, change, settings, said = FAULTS[fault]
    write(tmp_path, architecture, change, **settings)
    for mapped in (False, True):
        message = refused(load, tmp_path, mapped=mapped)
        assert message.startswith(f"model.name {tmp_path}: ")
        assert re.search(said, message)


TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


@pytest.mark.parametrize("architecture", tiny_models.UNTIED)
def test_an_output_layer_of_its_own_must_be_there(architecture, tmp_path):
    """transformers ties it to the input where it is not, whatever config.json says."""
    weights = write(tmp_path, architecture)
    table = weights.pop("shared.weight")
    rest = {name: value for name, value in weights.items() if name not in TABLES}
    for name in TABLES:
        save_file(rest | {name: table}, tmp_path / "model.safetensors")
        whole = load(tmp_path).model
        assert torch.equal(whole.lm_head.weight, rest["lm_head.weight"])
        assert all(torch.equal(whole.get_parameter(name), table) for name in TABLES)
    write(tmp_path, architecture, without("lm_head"))
    assert "its files lack the output layer that its config.json asks for" in refused(load, tmp_path)
    change_json(tmp_path / "config.json", tie_word_embeddings=True)
    tied = load(tmp_path).model
    assert tied.lm_head.weight is tied.shared.weight


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_only_the_head_may_be_new(architecture, tmp_path):
    backbone = tiny_models.model(architecture).base_model
    backbone.save_pretrained(tmp_path)
    for mapped in (False, True):
        loaded = load(tmp_path, mapped=mapped).model
        base = loaded.base_model
        assert all(torch.equal(base.get_parameter(name), value) for name, value in backbone.named_parameters())
        new = {id(parameter) for parameter in loaded.parameters()} - {id(parameter) for parameter in base.parameters()}
        assert {id(loaded.get_parameter(name)) for name in loaded.new_weights} == new
    tiny.wordpiece().save_pretrained(tmp_path)
    assert "has no weights for" in refused(load_saved, str(tmp_path))  # no head to answer with


@pytest.mark.parametrize("kind", [transformers.BertForPreTraining, transformers.ElectraForPreTraining])
def test_published_checkpoints_of_other_heads_load(kind, tmp_path):
    """Like bert-base-uncased: with unused heads, pooler and position ids, and with TensorFlow's names."""
    architecture = kind.config_class.model_type
    torch.manual_seed(0)
    published = kind(tiny_models.config(architecture))
    published.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    legacy = {re.sub("LayerNorm.weight$", "LayerNorm.gamma", name): value for name, value in weights.items()}
    legacy = {re.sub("LayerNorm.bias$", "LayerNorm.beta", name): value for name, value in legacy.items()}
    legacy[f"{architecture}.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(legacy, tmp_path / "model.safetensors", {"format": "pt"})
    for mapped in (False, True):
        loaded = load(tmp_path, mapped=mapped).model.base_model
        for name, value in loaded.named_parameters():
            assert torch.equal(value, published.base_model.get_parameter(name)), name


def test_pickled_weights_shards_and_files_cut_short(tmp_path):
    model = tiny_models.model("bert")

    def assert_loads(mapped: bool) -> None:
        loaded = load(tmp_path, mapped=mapped).model
        assert all(torch.equal(value, model.get_parameter(name)) for name, value in loaded.named_parameters())

    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    for mapped in (False, True):
        assert_loads(mapped)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert_loads(mapped=False)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:100])
    assert refused(load, tmp_path).startswith(f"model.name {tmp_path}: cannot load (")
    shard.unlink()
    assert f"{shard.name}): correct the folder" in refused(load, tmp_path)
