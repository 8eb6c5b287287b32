"""What is tried with a tiny model: this package against transformers alone."""

import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, GenerationConfig
from transformers.pytorch_utils import Conv1D

import swep_ds as sd
from swep_ds.common.errors import InputError, reason
from swep_ds.data.batches import Batch, padded_inputs
from swep_ds.data.example import Example
from swep_ds.data.features import windows_to_answer
from swep_ds.data.windows import WindowCutter, WindowSettings
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import load_tokenizer, pad_to_one_length
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import load_saved
from swep_ds.ranks.group import process_group
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update
from tools.models.making import LENGTH, LONG, OTHER, QUESTION, SHORT, auto_class, is_generative, save_model

ROOT = Path(__file__).parents[2]
SPANS = ("answers", "trains", "types", "padding", "noise", "LoRA", "ZeRO-3", "compile")
GENERATED = tuple(name for name in SPANS if name not in ("types", "compile"))
METHOD_OF = {"LoRA": "lora", "ZeRO-3": "zero3", "compile": "compiled"}  # column -> method, where its name differs
TARGET = 5  # tokens of a generated answer
ATTENTION = re.compile(
    r"(q|k|v|qkv|query|key|value)(_(proj|lin|head|layer))?|Wqkv|c_attn|query_key_value|in_proj", re.I
)
WRONG, RAW = "a fault: ", "a raw error: "  # begin the reasons that are no message of this package
Cells = dict[str, str]


class Failed(Exception):
    """What was computed is not what it should be: a fault, of this package or of a library."""


class Trial:
    """One architecture's folder, what this package makes of it, and what transformers alone makes of it."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.folder = str(folder)
        self.generative = is_generative(name)
        save_model(name, folder)
        self.config = AutoConfig.from_pretrained(folder)

    # transformers and tokenizers alone

    def plain(self) -> torch.nn.Module:
        """BigBird's with full attention, as this package has it."""
        full = {"attention_type": "original_full"} if hasattr(self.config, "attention_type") else {}
        return auto_class(self.name).from_pretrained(self.folder, **full).eval()

    def plain_inputs(self, types: bool, contexts: Iterable[str] = (SHORT, LONG), width: int = 0) -> dict[str, Tensor]:
        backend = Tokenizer.from_file(f"{self.folder}/tokenizer.json")
        backend.enable_truncation(LENGTH, strategy="only_first" if self.generative else "only_second")
        backend.enable_padding(length=width or None, pad_id=0)
        texts = [(QUESTION, context) for context in contexts]
        if self.generative:
            texts = [f"question: {question} context: {context}" for question, context in texts]
        rows = backend.encode_batch(texts)
        inputs = {
            "input_ids": torch.tensor([row.ids for row in rows]),
            "attention_mask": torch.tensor([row.attention_mask for row in rows]),
        }
        if types:
            inputs["token_type_ids"] = torch.tensor([row.type_ids for row in rows])
        return inputs

    def targets(self) -> dict[str, Tensor]:
        if self.generative:
            return {"labels": torch.tensor([[9, 8, 7, 3], [7, 12, 13, 3]])}
        return {"start_positions": torch.tensor([7, 9]), "end_positions": torch.tensor([8, 9])}

    def shifted(self, model) -> dict[str, Tensor]:
        """As DataCollatorForSeq2Seq gives them with the labels."""
        if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
            return {}
        return {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=self.targets()["labels"])}

    # this package

    @cached_property
    def saved(self):
        saved = load_saved(self.folder)
        if self.generative:
            saved.qa.generation.max_new_tokens = TARGET
        return saved

    def load(self, **options):
        tokenizer = load_tokenizer(self.folder)
        qa = (GenerativeQA if self.generative else ExtractiveQA).load(
            self.folder, activation_checkpointing=False, tokenizer=tokenizer, **options
        )
        if qa.model.pads:
            pad_to_one_length(tokenizer, qa.model, LENGTH)
        return qa, tokenizer

    def batch(self, tokenizer, contexts: Iterable[str] = (SHORT, LONG), *, train: bool = False) -> Batch:
        task = "generative" if self.generative else "extractive"
        cutter = WindowCutter(tokenizer, WindowSettings(max_length=LENGTH, max_query_length=8, doc_stride=8, task=task))
        examples = [Example(text, QUESTION, text, (), None, text) for text in contexts]
        columns = windows_to_answer(examples, cutter)[0].to_pydict()
        first = [columns["example"].index(number) for number in range(len(examples))]
        rows = {
            name: [columns[name][row] for row in first] for name in ("input_ids", "token_type_ids") if name in columns
        }
        lengths = tuple(len(row) for row in rows["input_ids"])
        batch = Batch(**padded_inputs(tokenizer, rows, max(lengths)), lengths=lengths)
        if not train:
            return batch
        names = ("target_ids",) if self.generative else ("start_position", "end_position")
        targets = dict(zip(names, self.targets().values(), strict=True))
        weight = torch.full((2,), 0.5)
        return batch._replace(**targets, sample_id=torch.arange(2), weight=weight, token_weight=weight)

    # what is tried; each returns a cell

    def answers(self) -> str:
        saved = self.saved
        batch = self.batch(saved.tokenizer)
        types = batch.token_type_ids is not None
        inputs = self.plain_inputs(types)
        for name, value in inputs.items():
            same(getattr(batch, name), value, f"its {name}")
        with torch.no_grad():
            given = saved.qa.predict(batch)
            if self.generative:
                return self._generated(inputs, *given)
            expected = self.plain()(**inputs)
        for logits, name in zip(given, ("start_logits", "end_logits"), strict=True):
            same(logits * inputs["attention_mask"], expected[name] * inputs["attention_mask"], f"its {name}")
        return "yes"

    def _generated(self, inputs: dict[str, Tensor], ids: Tensor, log_p: Tensor) -> str:
        model = self.plain()
        # in place of the model's own settings, as in this package
        settings = {"eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": self._first_token(model)}
        model.generation_config = GenerationConfig(num_beams=4, max_new_tokens=TARGET, **settings)
        for number, row in enumerate(ids):
            window = {name: value[number : number + 1] for name, value in inputs.items()}
            [expected] = model.generate(**window)
            answer = row[row != -100]
            same(answer, expected[1:], "its answer")
            logits = model(**window, decoder_input_ids=expected[None, :-1], use_cache=False).logits
            same(log_p[number], -cross_entropy(logits[0], answer), "its answer's probability")
        return "yes"

    def _first_token(self, model) -> int:
        """As the model shifts the end of sequence, which begins the targets."""
        if hasattr(model, "prepare_decoder_input_ids_from_labels"):
            return int(model.prepare_decoder_input_ids_from_labels(labels=torch.tensor([[3]]))[0, 0])
        return model.config.decoder_start_token_id

    def trains(self) -> str:
        """Losses and gradients, of a loaded model and under `sd.wrap`, against the model's own from labels."""
        qa, tokenizer = self.load()
        batch = self.batch(tokenizer, train=True)
        inputs = self.plain_inputs(batch.token_type_ids is not None) | self.targets()
        model = self.plain().train()
        expected = model(**inputs, **self.shifted(model)).loss
        expected.backward()
        qa.train()
        loss = qa(qa.embed(batch), batch).nll.mean()
        loss.backward()
        same(loss, expected, "its loss", 1e-5)
        self._same_gradients(qa.model, model, "its gradient")
        wrapped = sd.wrap(self.plain(), METHODS["mle"]()).train()
        loss = wrapped(**inputs).loss
        loss.backward()
        same(loss, expected, "its loss in sd.wrap", 1e-5)
        self._same_gradients(wrapped.model, model, "its gradient in sd.wrap")
        return "yes"

    @staticmethod
    def _same_gradients(model, plain, what: str) -> None:
        for (name, weight), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            if (weight.grad is None) != (other.grad is None):
                raise Failed(f"{what} of {name} is missing on one side")
            if weight.grad is not None:
                same(weight.grad, other.grad, f"{what} of {name}", 1e-3)

    def types(self) -> str:
        model = self.plain()
        if "token_type_ids" not in inspect.signature(model.forward).parameters:
            return "none"
        inputs = self.plain_inputs(types=True)
        if getattr(model.config, "type_vocab_size", 3) == 1:
            return "none"
        with torch.no_grad():
            typed = model(**inputs).start_logits
            untyped = model(**inputs | {"token_type_ids": torch.zeros_like(inputs["input_ids"])}).start_logits
        changes = not torch.allclose(typed, untyped, atol=1e-4)
        given = "token_type_ids" in self.saved.tokenizer.model_input_names
        return {(True, True): "given", (True, False): "given, without effect", (False, True): "withheld"}.get(
            (given, changes), "none"
        )

    def padding(self) -> str:
        """Whether a short window's logits, or its answer, stay in a batch with a longer one."""
        saved = self.saved
        with torch.no_grad():
            batch = self.batch(saved.tokenizer)
            alone = self.batch(saved.tokenizer, [SHORT])
            together = saved.qa.predict(batch)
            apart = saved.qa.predict(alone)
        for first, second in zip(together, apart, strict=True):
            first = first[:1]
            if first.dim() == 2:  # positions, or generated tokens
                length = min(first.shape[1], second.shape[1])
                first, second = first[:, :length], second[:, :length]
            same(first, second, "its answer in a batch" if self.generative else "its logits in a batch")
        return "one length" if hasattr(saved.tokenizer, "padded_length") else "yes"

    def noise(self) -> str:
        """Whether a factor that all of a token's embedding shares changes anything: not where a norm follows."""
        qa, tokenizer = self.load()
        batch = self.batch(tokenizer, train=True)
        with torch.no_grad():
            embeddings = qa.eval().embed(batch)
            plain = qa(embeddings, batch).logits
            factors = torch.ones(embeddings.shape[1])
            factors[8] = 1.5
            changed = qa(embeddings * factors[:, None], batch).logits
        return "yes" if (changed - plain).abs().max() > 1e-2 * plain.std() else "direction"

    def lora(self) -> str:
        model = self.plain().train()
        types = "token_type_ids" in self.saved.tokenizer.model_input_names
        inputs = self.plain_inputs(types, (LONG, OTHER)) | self.targets()
        expected = model(**inputs, **self.shifted(model)).loss
        layers = (torch.nn.Linear, torch.nn.Conv1d, Conv1D)
        projections = [
            name
            for name, module in model.named_modules()
            if isinstance(module, layers) and ATTENTION.fullmatch(name.rpartition(".")[2])
        ]
        if not projections:
            return "no projections"
        task = "SEQ_2_SEQ_LM" if self.generative else "QUESTION_ANS"
        adapted = get_peft_model(model, LoraConfig(task_type=task, r=2, target_modules=projections))
        with caught_warnings() as said:
            wrapped = sd.wrap(adapted, METHODS["mle"]()).train()
        loss = wrapped(**inputs).loss
        loss.backward()
        same(loss, expected, "its first loss under LoRA", 1e-5)
        trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
        if self.generative or any("lora_" not in name for name in trained):
            return "yes"
        return "head frozen, with a warning" if any("is frozen" in text for text in said) else "head frozen in silence"

    def zero3(self) -> str:
        """The losses of two updates at ZeRO-3 and at ZeRO-0: the second one shows the first one's gradients."""
        losses = {}
        for stage in (0, 3):
            qa, tokenizer = self.load()
            method = METHODS["mle"]()
            train = {"micro_batch_size": 2, "learning_rate": 1e-2, "warmup_fraction": 0.0, "schedule": "constant"}
            sections = {"train": train, "method": method.model_dump(), "model": {"name": "tiny"}}
            sections |= {
                "data": {"train": "none", "eval": {}},
                "task": "generative" if self.generative else "extractive",
            }
            recipe = Recipe.model_validate(sections)
            file = Path(self.folder, f"zero{stage}.json")
            config = json.loads((ROOT / "ds_configs" / file.name).read_text(encoding="utf-8"))
            if stage:
                config["zero_optimization"]["stage3_param_persistence_threshold"] = 0  # else tiny ones stay whole
            file.write_text(json.dumps(config), encoding="utf-8")
            objective = Objective(qa, build(method, qa.hidden_size, qa.embedding_size), 0)
            setup = {"world_size": 1, "backwards": 1, "hidden_size": qa.hidden_size, "on_cpu": True}
            config = complete_ds_config(str(file), recipe.train, **setup)
            with process_group():
                engine = build_engine(objective, config, recipe.train, 2)
                engine.train()
                batches = iter([self.batch(tokenizer, train=True)] * 2)
                losses[stage] = [
                    float(run_update(engine, batches, 1, MicroStep(update))[0]["loss"]) for update in (0, 1)
                ]
                engine.destroy()
        same(torch.tensor(losses[3]), torch.tensor(losses[0]), "its losses at ZeRO-3", 1e-4)
        return "yes"

    def compiled(self) -> str:
        """One graph for all lengths, captured as in a run, but without inductor's code."""
        qa, tokenizer = self.load(compiled=True)
        qa.base.compile(dynamic=True, fullgraph=True, backend="eager")
        batch = self.batch(tokenizer, train=True)
        plain, _ = self.load()
        for rows in (
            batch,
            batch._replace(input_ids=batch.input_ids[:, :24], attention_mask=batch.attention_mask[:, :24]),
        ):
            if rows.token_type_ids is not None:
                rows = rows._replace(token_type_ids=rows.token_type_ids[:, : rows.input_ids.shape[1]])
            rows = rows._replace(lengths=None)
            loss = qa(qa.embed(rows), rows).nll.mean()
            loss.backward()
            same(loss, plain(plain.embed(rows), rows).nll.mean(), "its loss, compiled", 1e-4)
        return "yes"

    def cells(self, columns: Iterable[str]) -> Cells:
        """The cells by column. What needs a loaded model is "-" where it is refused."""
        cells: Cells = {}
        columns = [column for column in (GENERATED if self.generative else SPANS) if column in columns]
        for column in sorted(columns, key="ZeRO-3".__eq__):  # last, since DeepSpeed replaces functions of PyTorch
            if column in ("types", "padding"):
                needed = "answers"
            else:
                needed = "trains" if column != "answers" else ""
            if needed in cells and needed != column and not cells[needed].startswith("yes"):
                cells[column] = "-"
                continue
            cells[column] = self._cell(getattr(self, METHOD_OF.get(column, column)))
        return cells

    def _cell(self, trial: Callable[[], str]) -> str:
        try:
            return trial()
        except InputError as error:
            text = str(error)
        except Failed as error:
            text = f"{WRONG}{error}"
        except Exception as error:
            text = f"{RAW}{reason(error)}"
        text = re.sub(rf"model(\.name)? {re.escape(self.folder)}: |{re.escape(self.folder)}", "", text)
        return "no: " + " ".join(text.split())


def same(given: Tensor, expected: Tensor, what: str, tolerance: float = 1e-4) -> None:
    """Raises Failed: by more than `tolerance`, relative to the largest number, or to 1."""
    if given.shape != expected.shape:
        raise Failed(f"{what} has the shape {tuple(given.shape)} for {tuple(expected.shape)}")
    likely = expected.masked_fill(expected < -1e4, 0)  # BigBird gives the question's tokens -1e6
    largest = float(likely.abs().max().clamp(min=1)) if given.is_floating_point() else 0.0
    apart = float((given.double() - expected.double()).abs().max())
    if not apart <= tolerance * largest:
        raise Failed(f"{what} is {apart:.2g} away from that of transformers, which is at most {largest:.2g}")


@contextmanager
def caught_warnings():
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("swep_ds")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
