"""What is tried on a loaded model: embeddings against ids, padding against none, on windows of its own tokenizer."""

import copy
import logging

import datasets
import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.batches import TrainingBatches
from swep_ds.models import hub, trials
from swep_ds.models.hub import fit_tokenizer
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import refused
from tests.support.tiny_models import load

# whose logits depend on padding: a Fourier transform over all positions, and convolutions
MIXING = {
    "fnet": {},
    "convbert": {"embedding_size": 8, "conv_kernel_size": 3, "head_ratio": 1},
    "mobilebert": {"embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8},
}
SHORT = ("who wrote it", "the old bridge over the river")
LONG = ("who wrote it", " ".join(tiny.SENTENCES[:2]))


def save(folder, kind: str, tokenizer=None, **sizes) -> str:
    """A model with large weights, with a tokenizer of words."""
    tokenizer = tokenizer or tiny.wordpiece()
    config = transformers.AutoConfig.for_model(kind, **tiny_models.COMMON | {"vocab_size": len(tokenizer)} | sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForQuestionAnswering.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_window_is_the_tokenizers_own():
    tokenizer = copy.deepcopy(tiny.wordpiece())
    model = tiny_models.model("bert", vocab_size=len(tokenizer))
    fit_tokenizer(tokenizer, model, "model x")
    window = trials.example_window(model, tokenizer, 11)
    [ids] = window["input_ids"].tolist()
    pair = tokenizer("word", "word")
    specials = {*tokenizer.all_special_ids}
    assert [token for token in ids if token in specials] == [t for t in pair.input_ids if t in specials]
    assert len(ids) == 11
    second = ids.index(tokenizer.sep_token_id) + 1
    assert window["token_type_ids"].tolist() == [[0] * second + [1] * (11 - second)]


@pytest.mark.parametrize("kind", ["bert", *MIXING])
def test_an_answer_does_not_depend_on_its_batch(kind, tmp_path, caplog):
    folder = save(tmp_path, kind, **MIXING.get(kind, {}))
    with caplog.at_level(logging.WARNING):
        answerer = QuestionAnswerer(folder)
    assert ("depend on padding: windows are padded to 64 tokens" in caplog.text) == (kind in MIXING)
    [alone] = answerer.answer([SHORT])
    together, _ = answerer.answer([SHORT, LONG])
    assert together[0].text == alone[0].text
    assert together[0].score == pytest.approx(alone[0].score, abs=1e-4)


@pytest.mark.parametrize("kind", MIXING)
def test_a_model_that_sees_padding_trains_on_windows_of_one_length(kind, tmp_path):
    """Its loss is that of transformers on windows of this length, over the columns of the update's longest one."""
    tokenizer = copy.deepcopy(tiny.wordpiece())
    qa = load(save(tmp_path, kind, **MIXING[kind]), tokenizer=tokenizer)
    assert qa.model.pads
    hub.pad_to_one_length(tokenizer, qa.model, 40)
    rows = [{"input_ids": [2, *range(9, 9 + count), 3], "token_type_ids": [0] * (count + 2)} for count in (7, 12, 9)]
    rows = [row | {"length": len(row["input_ids"]), "start_position": 4, "end_position": 6} for row in rows]
    features = datasets.Dataset.from_list(rows)
    batches = TrainingBatches(
        features,
        tokenizer,
        micro_batch_size=3,
        accumulation=1,
        rank=0,
        world_size=1,
        epochs=1,
        max_updates=None,
        seed=0,
    )
    batch = batches[0]
    assert (batch.input_ids.shape, int(batch.width)) == ((3, 40), 14)
    assert batches.width(0) == 40
    with torch.no_grad():
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = qa.model.eval()(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **types)
        loss = qa(qa.embed(batch), batch).nll
    parts = []
    for logits, place in ((output.start_logits, batch.start_position), (output.end_logits, batch.end_position)):
        parts.append(torch.nn.functional.cross_entropy(logits[:, :14], place, reduction="none"))
    torch.testing.assert_close(loss, (parts[0] + parts[1]) / 2)


OTHERWISE = {
    "in every call": lambda head, h: head(torch.randn_like(h)),
    "with the batch": lambda head, h: head(100 * (h - h.mean(0, keepdim=True))),
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_logits_that_change_in_every_call_or_with_the_batch_are_refused(change, monkeypatch):
    model = tiny_models.model("bert")
    head = copy.deepcopy(model.qa_outputs)
    monkeypatch.setattr(model.qa_outputs, "forward", lambda h: OTHERWISE[change](head, h))
    windows = [trials.example_window(model, None, size) for size in (5, 9)]
    message = refused(trials.depends_on_padding, model, "model x", *windows)
    assert "model x: BertForQuestionAnswering gives the same window other logits in each call or batch" in message


def test_a_model_that_finds_its_question_by_a_token_is_refused(tmp_path):
    """Splinter reads the place of [QUESTION] from the ids; from embeddings it takes position 0."""
    tokenizer = copy.deepcopy(tiny.wordpiece())
    tokenizer.add_special_tokens({"additional_special_tokens": ["[QUESTION]"]})
    number = tokenizer.convert_tokens_to_ids("[QUESTION]")
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    specials = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (cls, sep, "[QUESTION]")]
    pair = f"{cls} $A [QUESTION] {sep} $B:1 {sep}:1"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{cls} $A {sep}", pair, specials)
    folder = save(tmp_path, "splinter", tokenizer, question_token_id=number)
    message = refused(load, folder, tokenizer=tokenizer)
    assert "SplinterForQuestionAnswering computes something else from inputs_embeds than from the same" in message


def test_block_sparse_attention_is_full_from_the_start(tmp_path):
    """BigBirdPegasus leaves it for good when it sees a short input: its answers would depend on earlier ones."""
    sizes = {name: value for name, value in tiny_models.BART.items() if name != "forced_eos_token_id"}
    config = transformers.BigBirdPegasusConfig(
        **sizes | {"vocab_size": 200, "max_position_embeddings": 256}, block_size=8
    )
    assert config.attention_type == "block_sparse"
    torch.manual_seed(0)
    transformers.BigBirdPegasusForConditionalGeneration(config).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    for model in (load(tmp_path, tokenizer=copy.deepcopy(tiny.wordpiece())).model, load_saved(str(tmp_path)).qa.model):
        assert model.config.attention_type == "original_full"
        assert {layer.self_attn.attention_type for layer in model.get_encoder().layers} == {"original_full"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_what_is_not_finite_is_seen_wherever_it_is(dtype):
    whole = torch.arange(-5000, 5007).to(dtype)
    assert trials.all_finite([torch.empty(0, 3, dtype=dtype), -whole if dtype.is_signed else whole, whole[0]])
    for fault in (torch.nan, torch.inf, -torch.inf) if dtype.is_floating_point else ():
        for place in (0, 5000, 10006):  # among 0.0 and -0.0, too
            faulty = whole.clone()
            faulty[place] = fault
            assert not trials.all_finite([whole, faulty, whole])
