"""Hugging Face's Trainer with a method: the engine's losses, checkpoints that resume exactly, a bare model on disk."""

import json
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForQuestionAnswering, Trainer, TrainingArguments

import swep_ds as sd
from swep_ds.evaluation.scores import Scorer
from tests.support import tiny, tiny_models
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_engine import ON_RANKS, RATE, SEED, UPDATES, batches, expected_losses, inputs, settings

# method, architecture, accumulation, label smoothing
CASES = [("swep-linear", "bert", 1, 0), ("r_drop", "bert", 1, 0.2), ("swep", "t5", 1, 0.2), ("swep-held", "bert", 2, 0)]


class RobustTrainer(sd.hf.RobustMixin, Trainer):
    pass


def rows(architecture: str, accumulation: int = 1) -> list[dict]:
    """The windows of all micro-batches in their order, without tensors."""
    parts = [inputs(batch) for batch in batches(architecture, accumulation)]
    return [{name: value[row].tolist() for name, value in part.items()} for part in parts for row in range(3)]


def trainer(folder: Path, variant, architecture="bert", accumulation=1, dropout=0.0, model=None, **changes):
    """The engine's optimizer and schedule; the windows in the engine's order. `variant`: a name, or settings."""
    given = {"max_steps": UPDATES, "learning_rate": RATE, "logging_steps": 1, "save_strategy": "no", "seed": SEED}
    given |= {"per_device_train_batch_size": 3, "gradient_accumulation_steps": accumulation, "max_grad_norm": 1.0}
    given |= {"train_sampling_strategy": "sequential", "use_cpu": True, "report_to": [], "disable_tqdm": True}
    args = TrainingArguments(output_dir=str(folder), **given | changes)
    model = model or tiny_models.model(architecture, dropout)
    method = settings(variant) if isinstance(variant, str) else variant
    return RobustTrainer(model=model, args=args, train_dataset=rows(architecture, accumulation), method=method)


def losses(trained: Trainer) -> list[float]:
    return [line["loss"] for line in trained.state.log_history if "loss" in line]


@pytest.mark.parametrize(("variant", "architecture", "accumulation", "smoothing"), CASES, ids=str)
def test_losses_are_the_engines(variant, architecture, accumulation, smoothing, tmp_path):
    run = trainer(tmp_path, variant, architecture, accumulation, label_smoothing_factor=smoothing)
    run.train()
    assert losses(run) == pytest.approx(expected_losses(variant, architecture, accumulation, smoothing), rel=1e-5)


def lines(folder: Path, variant, count: int, windows: int, calls: int, **changes) -> list[dict]:
    """What two updates log, of `calls` micro-batches of so many `windows`, from the first `count` rows."""
    changes |= {"per_device_train_batch_size": windows, "gradient_accumulation_steps": calls, "max_steps": 2}
    run = trainer(folder, variant, **changes)
    run.train_dataset = run.train_dataset[:count]
    run.train()
    return [line for line in run.state.log_history if "loss" in line]


def test_micro_batches_of_unequal_sizes_add_up_to_the_whole_batch(tmp_path):
    method = sd.Swep(beta=1e-2, kl_reduction="mean", initialisation="default")
    # an epoch: micro-batches of 4 and 3, or one of 7
    parts, whole = ([line["loss"] for line in lines(tmp_path, method, 7, *size)] for size in ((4, 2), (7, 1)))
    assert parts == pytest.approx(whole, rel=1e-5)


def test_the_parts_of_the_loss_are_logged_as_means_over_updates_of_any_size(tmp_path):
    for line in lines(tmp_path, "swep", 12, 3, 2):
        total = 0.5 * line["nll_clean"] + 0.5 * (line["nll_noisy"] + line["beta"] * line["kl_per_window"])
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    # updates of 4 micro-batches and of 1
    [line] = lines(tmp_path, "mle", 10, 2, 4, logging_steps=2, learning_rate=0.0)
    assert line["nll_clean"] == pytest.approx(line["loss"], rel=1e-5)


@pytest.mark.parametrize("variant", ["swep-held", "prior_aug"])
def test_a_resumed_training_is_the_whole_one_and_needs_the_same_method(variant, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "dropout": 0.1}
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    whole, resumed = (trainer(tmp_path / name, variant, **saving) for name in ("whole", "resumed"))
    whole.train()
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert losses(resumed)[2:] == losses(whole)[2:]
    for mine, other in zip(resumed.robust.state_dict().values(), whole.robust.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    assert "another method than swep" in refused(trainer(tmp_path, "swep").train, str(checkpoint))


def test_a_checkpoint_of_a_plain_trainer_or_without_an_optimizer(tmp_path, caplog):
    """A method that learns nothing resumes. One that learns starts anew where the optimizer does, too."""
    saving = {"save_strategy": "steps", "save_steps": 2}
    plain = Trainer(
        model=tiny_models.model(), args=trainer(tmp_path / "plain", "mle", **saving).args, train_dataset=rows("bert")
    )
    plain.train()
    checkpoint = str(tmp_path / "plain" / "checkpoint-2")
    resumed = trainer(tmp_path / "mle", "mle")
    resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == resumed.robust.update == UPDATES
    said = refused(trainer(tmp_path / "swep", "swep").train, resume_from_checkpoint=checkpoint)
    assert f"{checkpoint}: is a plain Trainer's: its optimizer is for the model alone" in said
    only = trainer(tmp_path / "only", "swep", save_only_model=True, **saving)
    only.train()
    again = trainer(tmp_path / "again", "swep", save_only_model=True)
    again.train(resume_from_checkpoint=str(tmp_path / "only" / "checkpoint-2"))
    assert again.state.global_step == again.robust.update == UPDATES
    assert "has no method.safetensors: the noise starts anew, as the optimizer does" in caplog.text


def test_windows_that_transformers_would_train_towards_position_0_are_counted(tmp_path):
    run = trainer(tmp_path, "mle")
    for row in run.train_dataset[::3]:
        row["start_positions"] = row["end_positions"] = -100
    run.train()
    assert [line["left_out"] for line in run.state.log_history if "loss" in line] == pytest.approx([1 / 3] * UPDATES)


def test_what_is_saved_and_evaluated_is_the_bare_model(tmp_path):
    run = trainer(tmp_path, "swep", save_strategy="steps", save_steps=UPDATES, label_smoothing_factor=0.2)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.train()
    saved = load_file(tmp_path / f"checkpoint-{UPDATES}" / "model.safetensors")
    assert saved.keys() == before.keys()
    assert not torch.equal(saved["qa_outputs.weight"], before["qa_outputs.weight"])
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path / f"checkpoint-{UPDATES}").eval()
    given = {name: value for name, value in inputs(batches("bert")[0]).items() if name != "sample_id"}
    with torch.no_grad():
        loss = loaded(**given).loss.item()
        assert run.model.eval()(**given).loss.item() == pytest.approx(loss, rel=1e-5)
    assert run.evaluate(rows("bert")[:3])["eval_loss"] == pytest.approx(loss, rel=1e-5)
    generator = load_file(tmp_path / f"checkpoint-{UPDATES}" / sd.hf.METHOD_FILE)
    assert "objective.method.noise.inner.weight" in generator
    groups = run.optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len([*run.robust.parameters()])


def test_the_card_of_what_is_saved_asks_it_as_the_package_does(tmp_path, capsys):
    tokenizer = tiny.wordpiece()
    run = trainer(tmp_path, sd.Swep(beta=1e-3), model=tiny_models.model(vocab_size=len(tokenizer)))
    run.save_model()
    assert not (tmp_path / "README.md").exists()  # no tokenizer to ask it with
    run.processing_class = tokenizer
    run.evaluate(rows("bert")[:3])
    run._save(str(tmp_path), sd.wrap(run.model, sd.Mle()).state_dict())  # as under DeepSpeed; transformers empties it
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.tags[-2:] == ["swep-ds", "swep"]
    assert "- Method: swep (noise learned, beta 0.001, " in card.text
    assert f"- Last evaluation, after 0 updates: loss {run.state.log_history[-1]['eval_loss']:.4g}\n" in card.text
    _, plain = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    text = " ".join(tiny.SENTENCES)  # takes several windows
    for asked in ("It was founded in 1204 by an abbot.", text):
        code = plain.replace("PATH_OF_THIS_FOLDER", str(tmp_path))
        capsys.readouterr()
        exec(code.replace("It was founded in 1204 by an abbot.", asked), {})
        [reply] = sd.QuestionAnswerer(tmp_path)("Who founded it?", asked)
        assert capsys.readouterr().out == f"{reply.text}\n"


def test_the_examples_metric_is_that_of_squads_scorer_on_rows_in_their_order(tmp_path):
    """transformers evaluates in another order with "group_by_length"."""
    example = (ROOT / "examples" / "trainer.py").read_text()
    [code] = re.findall(r"^    def compute_metrics.*?\n(?=\n)", example, re.DOTALL | re.MULTILINE)
    given = rows("bert")[:8]
    texts = [" ".join(f"n{number}w{place}" for place in range(12)) for number in range(len(given))]
    offsets = [[match.span() for match in re.finditer(r"\w+", text)] for text in texts]
    run = trainer(tmp_path, "mle", train_sampling_strategy="group_by_length", per_device_eval_batch_size=2)
    answers = []
    for number, row in enumerate(given):
        row.pop("sample_id")
        with torch.no_grad():
            output = run.model.eval()(**{name: torch.tensor([value]) for name, value in row.items()})
        start, end = output.start_logits.argmax().item(), output.end_logits.argmax().item()
        answers.append([texts[number][offsets[number][start][0] : offsets[number][end][1]] if number % 2 else "none"])
    names = {"Scorer": Scorer, "texts": texts, "offsets": offsets, "answers": answers}
    exec(textwrap.dedent(code), names)
    run.compute_metrics = names["compute_metrics"]
    assert run.evaluate(given)["eval_exact_match"] == 50.0


def test_evaluation_is_in_the_precision_that_the_trainer_is_asked_for(tmp_path):
    computed = []
    run = trainer(tmp_path, "mle", bf16=True)
    run.train()
    layer = run.model.bert.encoder.layer[0].output.dense
    layer.register_forward_hook(lambda *call: computed.append(call[-1].dtype))
    assert run.predict(rows("bert")[:3]).predictions[0].dtype == "float32"
    assert set(computed) == {torch.bfloat16}
    run.train()  # once more, from update 0
    assert run.robust.update == UPDATES


@pytest.mark.parametrize(("clipping", "said"), [({}, 1), ({"gradient_clipping": "auto"}, 0)])
def test_clipping_that_is_deepspeeds_default_is_said(clipping, said, tmp_path, caplog):
    args = trainer(tmp_path, "mle", max_grad_norm=0.3).args
    args.hf_deepspeed_config = SimpleNamespace(config={"zero_optimization": {"stage": 1}} | clipping)
    RobustTrainer(model=tiny_models.model(), args=args, train_dataset=rows("bert"), method=sd.Mle())
    fault = "deepspeed: has no gradient_clipping: DeepSpeed clips at 1.0, whatever max_grad_norm says (0.3): set it to"
    assert caplog.text.count(fault) == said


def test_what_does_not_go_with_a_method_is_named(tmp_path, monkeypatch):
    for name, value in {"torch_compile": True, "neftune_noise_alpha": 5.0}.items():
        assert name in refused(trainer, tmp_path, "swep", **{name: value})
    assert "method 'swep': is not " in refused(RobustTrainer, model=tiny_models.model(), method="swep")
    create = Trainer.create_accelerator_and_postprocess

    def create_and_keep(self):
        create(self)
        self.is_deepspeed_enabled = True

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", create_and_keep)
    assert "mle does not go with an earlier Trainer's deepspeed" in refused(trainer, tmp_path, "mle")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "ranks"), [("ddp", 2), ("zero3", 2), ("zero3", None)])
def test_losses_on_ranks_are_those_of_one_process_and_a_resumed_training_is_the_whole_one(case, ranks, tmp_path):
    run_script(ROOT / "tests" / "support" / "trainer_on_ranks.py", str(tmp_path), case, ranks=ranks)
    saved = json.loads((tmp_path / f"{case}.json").read_text())
    alone = trainer(tmp_path / "alone", ON_RANKS, accumulation=4)
    alone.train()
    assert saved["whole"] == pytest.approx(losses(alone), rel=1e-5)
    assert saved["resumed"] == saved["whole"]
    assert saved["bare"]
