"""A model with a method around it computes, in a plain loop, what the engine computes."""

import copy
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import (
    AutoModel,
    FNetConfig,
    FNetForQuestionAnswering,
    PegasusConfig,
    PegasusForConditionalGeneration,
)

import swep_ds as sd
from tests.support import tiny_batches, tiny_models
from tests.support.bad_input import refused
from tests.support.tiny_engine import RATE, SEED, UPDATES, VARIANTS, batches, expected_losses, inputs, settings

CASES = [(variant, "bert", 1) for variant in VARIANTS]
CASES += [("swep", "t5", 1), ("prior_aug", "bart", 1), ("swep", "electra", 2), ("swep-held", "bert", 2)]
CASES += [("swep", "modernbert", 1)]


def plain_loop(robust, data, accumulation: int = 1) -> list[float]:
    """AdamW, linear decay and clipping as a run has them; without a method that would be ordinary fine-tuning."""
    optimizer = torch.optim.AdamW(robust.parameter_groups(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / UPDATES)
    losses = []
    for first in range(0, len(data), accumulation):
        calls = [inputs(batch) for batch in data[first : first + accumulation]]
        if accumulation > 1:
            robust.begin_update(calls)
        loss = sum(robust(**call).loss / accumulation for call in calls)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(robust.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("variant", "architecture", "accumulation"), CASES, ids=str)
def test_losses_are_the_engines(variant, architecture, accumulation):
    model = tiny_models.model(architecture).train()
    robust = sd.wrap(model, settings(variant), seed=SEED, updates=UPDATES)
    losses = plain_loop(robust, batches(architecture, accumulation), accumulation)
    assert losses == pytest.approx(expected_losses(variant, architecture, accumulation), rel=1e-5)
    assert len(set(losses)) == UPDATES


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("kind", [tiny_batches.batch, tiny_batches.generative], ids=lambda kind: kind.__name__)
def test_micro_batches_of_unequal_sizes_add_up_to_the_whole_batch(kind, reduction):
    method = sd.Swep(beta=1e-2, kl_reduction=reduction, initialisation="default")
    architecture = "t5" if kind is tiny_batches.generative else "bert"
    whole = inputs(kind((12, 7, 9), dtype=torch.float32))
    if "start_positions" in whole:
        whole["start_positions"][1] = 12  # outside: counts neither in its micro-batch nor in the whole
    parts = [{name: value[rows] for name, value in whole.items()} for rows in (slice(0, 2), slice(2, 3))]

    def gradients(robust, losses):
        (sum(losses) / len(losses)).backward()
        return [sum(losses).item() / len(losses), *(p.grad for p in robust.parameters() if p.grad is not None)]

    one_call, calls = (sd.wrap(tiny_models.model(architecture).train(), method) for _ in range(2))
    expected = gradients(one_call, [one_call(**whole).loss])
    calls.begin_update(parts)
    torch.testing.assert_close(gradients(calls, [calls(**part).loss for part in parts]), expected)
    one_call.update = calls.update
    calls.begin_update(parts[1:])
    torch.testing.assert_close(calls(**parts[1]).loss, one_call(**parts[1]).loss)  # a mean of its own again


def test_calls_beyond_an_update_and_a_begin_within_one_are_refused():
    """What evaluates in between, a begin without calls and an update that is given up are all right."""
    robust, other = (sd.wrap(tiny_models.model().train(), sd.PriorAug(), seed=SEED) for _ in range(2))
    first, second = (inputs(batch) for batch in batches("bert")[:2])
    assert refused(robust, first["input_ids"]).startswith("inputs: have no names: to train, call robust(**batch)")
    ids = robust.eval()(first["input_ids"]).start_logits  # as the bare model takes them
    torch.testing.assert_close(ids, robust.model(first["input_ids"]).start_logits)
    robust.train().begin_update([first, second, second])
    robust.begin_update([first, second])
    robust(**first)
    robust.eval()(**first)
    said = refused(robust.train().begin_update, [second])
    assert "begin_update: only 1 of its 2 calls are made: make the others, or restart(0)" in said
    robust.restart(0)
    robust.begin_update([first, second])
    losses = [robust(**call).loss for call in (first, second)]
    assert "begin_update: its 2 calls are made: call it again, or eval() to validate" in refused(robust, **second)
    assert robust.update == 1
    other.begin_update([first, second])
    torch.testing.assert_close([other(**call).loss for call in (first, second)], losses)


def test_autocast_to_what_the_processor_has_no_instructions_for_is_warned_of_once(caplog, monkeypatch):
    given = inputs(tiny_batches.batch(dtype=torch.float32)) | {"token_type_ids": torch.zeros(3, 12, dtype=torch.long)}
    for has, count in ((True, 0), (False, 1)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: {"avx512_bf16": has})
        robust = sd.wrap(tiny_models.model().train(), sd.Mle())
        robust(**given)  # without autocast
        robust = sd.wrap(tiny_models.model().train(), sd.Mle())
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                robust(**given)
        assert caplog.text.count("autocast: this processor has no instructions for half precision") == count


def test_ranks_with_equal_windows_have_the_losses_of_a_single_one(monkeypatch):
    """Also of a method that goes by what is watched, whose mean is over all ranks."""
    alone, together = (sd.wrap(tiny_models.model().train(), settings("swep-held"), seed=SEED) for _ in range(2))
    data = batches("bert", accumulation=2)
    losses = plain_loop(alone, data, accumulation=2)
    group = SimpleNamespace(
        is_initialized=lambda: True, all_reduce=lambda value: value.mul_(2), get_world_size=lambda: 2
    )
    monkeypatch.setattr(sd.api.wrap, "dist", group)
    assert plain_loop(together, data, accumulation=2) == pytest.approx(losses, rel=1e-6)
    assert together.method.state() == pytest.approx(alone.method.state())


def test_weights_in_half_precision_are_refused_unless_they_are_frozen():
    model = tiny_models.model().half()
    assert "load it with dtype=torch.float32" in refused(sd.wrap, model, sd.Mle())
    model = model.bfloat16().requires_grad_(False).train()
    model.qa_outputs.float().requires_grad_(True)  # as adapters on a frozen model
    model.qa_outputs.register_forward_pre_hook(lambda head, given: (given[0].float(),))
    robust = sd.wrap(model, sd.Swep())
    robust(**inputs(tiny_batches.batch((12, 7), dtype=torch.float32))).loss.backward()
    assert {weight.grad.dtype for weight in robust.method.parameters()} == {torch.float32}


def test_in_evaluation_it_is_the_bare_model_which_is_not_to_be_trained(caplog):
    model = tiny_models.model(dropout=0.1)
    robust = sd.wrap(model, sd.Swep())
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    robust.train()(**given)
    with torch.no_grad():
        mine = robust.eval()(**given)
        plain = model(**{name: value for name, value in given.items() if name != "sample_id"})
    assert type(mine) is type(plain)
    assert torch.equal(mine.start_logits, plain.start_logits)
    assert torch.equal(mine.loss, plain.loss)
    assert caplog.messages == []
    robust = sd.wrap(model, sd.Swep())  # in evaluation mode, as after from_pretrained
    for _ in range(2):
        robust(**given)
    said = "the model trains in evaluation mode, without dropout: call train() of what sd.wrap returned"
    assert caplog.messages == [said]


def test_a_restored_state_continues_exactly():
    data, method = batches("bert"), sd.Swep(kl_target=4000, beta=1e-3, initialisation="default")
    first, second = (sd.wrap(tiny_models.model("bert").train(), method, seed=SEED) for _ in range(2))
    start = first.method.state()
    plain_loop(first, data[:2])
    assert first.method.state() != start
    second.load_state_dict(first.state_dict())
    assert plain_loop(second, data[2:]) == plain_loop(first, data[2:])
    other = sd.wrap(tiny_models.model("bert"), sd.Swep(), seed=SEED)
    with pytest.raises(ValueError, match="is longer than argument 1"):
        other.load_state_dict(first.state_dict())
    assert other.update == 0


def test_a_compiled_wrapper_is_not_compiled_anew_for_each_update():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model = tiny_models.model("bert", num_hidden_layers=1).train()
    robust = sd.wrap(model, sd.Swep(beta_schedule="linear_to_zero"), updates=8)
    compiled, graphs = torch.compile(robust, backend="eager"), []
    plain = sd.wrap(robust.model, sd.Swep(beta_schedule="linear_to_zero"), updates=8)
    plain.method.load_state_dict(robust.method.state_dict())
    for batch in batches("bert"):
        torch.manual_seed(SEED)
        loss = compiled(**inputs(batch)).loss
        torch.manual_seed(SEED)
        assert loss.item() == plain(**inputs(batch)).loss.item()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[-1] == graphs[1]  # the second update has shown that the update's number changes


def test_without_sample_ids_the_noise_goes_with_the_windows_text():
    robust = sd.wrap(tiny_models.model(), sd.PriorAug(prior_variance=0.5))
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    del given["sample_id"]

    def nll(rows: list[int], update: int = 0) -> float:
        robust.update = update
        return float(robust(**{name: value[rows] for name, value in given.items()}).metrics["nll_noisy"])

    whole = nll([0, 1, 2])
    assert nll([2, 0, 1]) == pytest.approx(whole, rel=1e-6)
    ids = sd.api.wrap.sample_ids(given["input_ids"], given["attention_mask"])
    # no release may change them: they key the noise of a training that is continued
    for row, length in enumerate((12, 7, 9)):
        tokens = given["input_ids"][row, :length].tolist()
        total = sum((token + 1) * 6364136223846793005 ** (k + 1) for k, token in enumerate(tokens))
        assert ids[row].item() == total % 2**64 // 2**32
    left = [torch.roll(given[name], 5, 1)[1:2] for name in ("input_ids", "attention_mask")]  # window 1 has 7 of 12
    assert sd.api.wrap.sample_ids(*left).item() == ids[1].item()
    assert nll([0, 1, 2], update=1) != pytest.approx(whole, rel=1e-6)


def test_windows_with_positions_outside_do_not_count():
    robust = sd.wrap(tiny_models.model(), sd.Mle())
    given = inputs(tiny_batches.batch((12, 7, 9), dtype=torch.float32))
    some = {name: value[:2] for name, value in given.items()}
    # a mask of floats and one row of token types are as good
    some["attention_mask"] = some["attention_mask"].float()
    some["token_type_ids"] = torch.zeros_like(some["input_ids"])[:1]
    for name in ("start_positions", "end_positions"):
        given[name][2] = 12  # as Hugging Face's heads ignore it
    torch.testing.assert_close(robust(**given).loss, robust(**some).loss)
    torch.testing.assert_close(robust(**given).loss, robust.eval()(**given).loss)
    given["start_positions"][2] = -100  # one of both is enough
    given["end_positions"][2] = 3
    torch.testing.assert_close(robust.train()(**given).loss, robust(**some).loss)
    given["end_positions"][:] = 12
    assert robust(**given).loss == 0
    given["position_ids"] = torch.zeros(3, 12)
    assert refused(robust.train().begin_update, [given]).startswith("inputs position_ids: a method's passes take only ")


@pytest.mark.parametrize("method", [sd.Mle(), sd.RDrop(), sd.Swep(divergence_weight=1.0)])
def test_answers_without_a_label_do_not_count(method):
    given = inputs(tiny_batches.generative(dtype=torch.float32))
    given["labels"][-1] = -100
    robust, other = (sd.wrap(tiny_models.model("t5"), method, seed=SEED) for _ in range(2))
    loss = robust(**given).loss
    torch.testing.assert_close(loss, other(**{name: value[:-1] for name, value in given.items()}).loss)
    loss.backward()
    gradients = [parameter.grad for parameter in robust.parameters() if parameter.grad is not None]
    assert any(gradient.any() for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_what_does_not_go_with_a_loop_is_refused():
    model = tiny_models.model()
    for method in ("freelb", "fgm", "ssmba"):
        assert f"method {method}: " in refused(sd.wrap, model, sd.methods.METHODS[method]())
    for said, method in (
        ("number of updates", sd.Swep(beta_schedule="linear_to_zero")),
        ("method 'swep': is not the settings of a method", "swep"),
        ("noise_max_grad_norm", sd.Swep(noise_max_grad_norm=1.0)),
    ):
        assert said in refused(sd.wrap, model, method)
    for other in (AutoModel.from_config(model.config), "a name"):
        assert f"model {type(other).__name__}: " in refused(sd.wrap, other, sd.Swep())
    batch = inputs(tiny_batches.batch((12, 7), dtype=torch.float32))
    robust = sd.wrap(model.train(), sd.Swep(beta_schedule="linear_to_zero"), updates=1)
    robust(**batch)
    assert refused(robust, **batch).startswith("updates 1: all are done: ")
    # a model that treats embeddings otherwise than ids
    pegasus = PegasusForConditionalGeneration(PegasusConfig(**tiny_models.BART, init_std=0.3))
    robust, batch = sd.wrap(pegasus, sd.Swep()).train(), tiny_batches.generative()
    said = refused(robust, **inputs(batch))
    assert said.startswith("model: PegasusForConditionalGeneration computes something else")


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_padding_on_either_side_gives_the_models_own_loss(architecture, left):
    """RoBERTa counts positions over the tokens of ids, and over all columns of embeddings."""
    model = tiny_models.model(architecture).train()
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    padding = given["attention_mask"] == 0
    given["input_ids"] = given["input_ids"].masked_fill(padding, model.config.pad_token_id or 0)
    if left:
        columns = given["input_ids"].shape[1]
        given |= {name: given[name].flip(1) for name in ("input_ids", "attention_mask")}
        given |= {name: columns - 1 - given[name] for name in ("start_positions", "end_positions")}
    loss = sd.wrap(model, sd.Mle())(**given).loss
    given.pop("sample_id")
    torch.testing.assert_close(loss, model(**given).loss)


def test_nothing_of_its_host_changes_and_it_can_be_copied(monkeypatch):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = tiny_models.model("bart").train()
    model.get_encoder().layers[0].eval()
    modes = [part.training for part in model.modules()]
    generation = model.generation_config
    torch.set_rng_state(before)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("seeds the GPUs"))
    robust = sd.wrap(model, sd.Swep())
    robust._check(robust._batch(inputs(tiny_batches.generative(dtype=torch.float32))))
    assert torch.equal(torch.get_rng_state(), before)
    assert [part.training for part in model.modules()] == modes
    assert model.generation_config is generation
    assert type(copy.deepcopy(robust)) is type(robust)


def peft_model(model, **options):
    return get_peft_model(model, LoraConfig(target_modules=["query", "value"], **options))


@pytest.mark.parametrize("task", [{}, {"task_type": "QUESTION_ANS"}])
def test_adapters_train_on_the_token_types_that_the_merged_model_is_asked_with(task):
    """`PeftModelForQuestionAnswering` does not hand them on."""
    bare = tiny_models.model().train()
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    types = torch.zeros_like(given["input_ids"])
    types[:, 5:] = 1
    given |= {"token_type_ids": types}
    expected = sd.wrap(copy.deepcopy(bare), sd.Mle())(**given).loss
    assert expected != sd.wrap(copy.deepcopy(bare), sd.Mle())(**given | {"token_type_ids": 0 * types}).loss
    robust = sd.wrap(peft_model(copy.deepcopy(bare), **task).train(), sd.Mle())
    torch.testing.assert_close(robust(**given).loss, expected)


EMBEDDINGS = [{"target_modules": ["query", "word_embeddings"]}]
EMBEDDINGS += [{"target_modules": ["query"], "modules_to_save": ["qa_outputs", "word_embeddings"]}]


@pytest.mark.parametrize("method", [sd.Mle(), sd.Swep(beta=1e-4)], ids=lambda method: method.name)
@pytest.mark.parametrize("options", EMBEDDINGS, ids=["adapter", "copy"])
def test_adapters_on_the_word_embeddings_train(options, method):
    model = get_peft_model(tiny_models.model(), LoraConfig(**options)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    robust = sd.wrap(model, method)
    loss = robust(**given).loss
    if method.name == "mle":
        given.pop("sample_id")
        torch.testing.assert_close(loss, model(**given).loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_virtual_tokens_are_refused():
    model = get_peft_model(tiny_models.model(), PromptTuningConfig(task_type="QUESTION_ANS", num_virtual_tokens=2))
    assert "model: PROMPT_TUNING adds virtual tokens, which no method knows" in refused(sd.wrap, model, sd.Mle())


def test_token_types_that_a_saved_model_would_be_asked_with_are_missed(caplog):
    given = inputs(tiny_batches.batch(dtype=torch.float32))
    sd.wrap(tiny_models.model("modernbert").train(), sd.Mle())(**given)
    assert caplog.messages == []
    sd.wrap(tiny_models.model("bert").train(), sd.Mle())(**given)
    assert caplog.messages == [
        "inputs: no token_type_ids, with which a saved model is asked: give those of the tokenizer"
    ]


def test_what_peft_leaves_frozen_is_said(caplog):
    adapters = {"target_modules": ["Wqkv"], "task_type": "QUESTION_ANS"}
    sd.wrap(get_peft_model(tiny_models.model("modernbert"), LoraConfig(**adapters)), sd.Mle())
    assert "classifier.weight, classifier.bias) is frozen: name it in LoraConfig(" in caplog.text
    caplog.clear()
    sd.wrap(peft_model(tiny_models.model(), task_type="QUESTION_ANS"), sd.Mle())
    assert caplog.text == ""
    frozen = peft_model(tiny_models.model(), task_type="QUESTION_ANS").requires_grad_(False)  # as PEFT loads adapters
    sd.wrap(frozen, sd.Swep(beta=1e-4))
    assert caplog.messages == ["model: all of its weights are frozen: load adapters with is_trainable=True"]
    sd.wrap(peft_model(tiny_models.model(), task_type="QUESTION_ANS").merge_and_unload(), sd.Swep(beta=1e-4))
    assert "model: only its head (qa_outputs.weight, qa_outputs.bias) is trained: call model.requires" in caplog.text


def test_a_model_whose_logits_depend_on_padding_is_warned_of(caplog):
    sizes = tiny_models.COMMON | {"hidden_dropout_prob": 0.0}
    model = FNetForQuestionAnswering(FNetConfig(**sizes, initializer_range=0.3)).train()
    given = inputs(tiny_batches.batch((12, 12), dtype=torch.float32))  # none is padded yet
    robust = sd.wrap(model, sd.Mle())
    loss = robust(**given).loss
    assert "the logits of a FNetForQuestionAnswering depend on padding: pad all windows to one length" in caplog.text
    given.pop("sample_id")
    torch.testing.assert_close(loss, model(**given).loss)
