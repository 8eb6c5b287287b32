"""A method in Hugging Face's `Trainer`: one base class before it, and the argument `method`.

`trainer.model` stays the bare model: evaluation, saving, the hub and PEFT work on it. Only what the Trainer prepares to
train, DDP's or DeepSpeed's module, is the wrapped model, so that the noise generator's parameters are in the optimizer
and in all that the ranks reduce.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import convert_to_fp32, get_cpu_distributed_information
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.api.wrap import Robust, RobustOutput, check_offered, check_trained_dtypes
from swep_ds.common.errors import InputError
from swep_ds.common.files import hub_name
from swep_ds.methods import summary
from swep_ds.methods.settings import Settings
from swep_ds.models.hub import longest_window
from swep_ds.pipeline.export import card, card_head
from swep_ds.ranks.environment import read_launch

log = logging.getLogger(__name__)
METHOD_FILE = "method.safetensors"  # in a checkpoint: the state of the wrapper, without the model's
PREFIX = "objective.qa.model."  # prefix of the model's weights in the wrapper's state


class RobustMixin:
    """Trains with a method instead of the model's own loss. Stands before `Trainer` in a class's bases:

        class RobustTrainer(sd.hf.RobustMixin, Trainer): ...

        trainer = RobustTrainer(model=model, args=args, train_dataset=data, method=sd.Swep(beta=1e-4))

    An update's loss is the mean over its windows on all ranks. The seed of the noise is `args.seed`; a column
    `sample_id` (whole numbers) keys it, or else a hash of each window's tokens. What the method measures ("nll_clean",
    "kl_per_window" ...) is logged with the loss, as means over the updates since the last line. Only the targets of
    training are smoothed by `args.label_smoothing_factor`.

    Raises InputError: at the start, no settings of a method, or arguments that do not go with it; in `train`, as
    `sd.wrap`.
    """

    def __init__(self, *args, method: Settings, **kwargs):
        check_offered(method)
        super().__init__(*args, **kwargs)
        self.method = method
        self.robust = None
        given = self.args
        is_kept = self.is_deepspeed_enabled and given.deepspeed_plugin is None
        refused = {
            "several GPUs in one process: start a process for each, with torchrun or deepspeed": given.n_gpu > 1,
            "fsdp: train with DDP, or with a DeepSpeed configuration": self.is_fsdp_enabled,
            "torch_compile: compile the model itself, with model.compile()": given.torch_compile,
            "neftune_noise_alpha: it adds noise to all passes: take method=sd.Neftune(...)": given.neftune_noise_alpha,
            "compute_loss_func: the method computes the loss: leave it out": self.compute_loss_func,
            "an earlier Trainer's deepspeed, which Accelerate keeps: start another process": is_kept,
        }
        for fault, is_set in refused.items():
            if is_set:
                raise InputError(f"method {method.name} does not go with {fault}")
        deepspeed = getattr(given, "hf_deepspeed_config", None)  # the user's dictionary or file
        if deepspeed and "gradient_clipping" not in deepspeed.config:
            fault = "deepspeed: has no gradient_clipping: DeepSpeed clips at 1.0, whatever max_grad_norm says (%s)"
            log.warning(f'{fault}: set it to "auto"', given.max_grad_norm)
        self.model_accepts_loss_kwargs = False  # the loss is a mean, to be divided by the accumulation
        self.label_smoother = None  # the objective smooths, also spans

    def _prepare_for_training(self, max_steps: int, *args, **kwargs) -> Any:
        bare = self.model
        if self.robust is None or self.robust.model is not bare:
            self.robust = Robust(bare, self.method, self.args.seed, max_steps)
            self.robust.objective.label_smoothing = self.args.label_smoothing_factor
        if not self.is_deepspeed_enabled:  # DeepSpeed keeps float32 copies
            check_trained_dtypes(self.robust)
        self.robust.updates = max_steps
        self.robust.restart(self.state.global_step)
        self._sums: dict[str, Tensor] = {}  # sums of what the method measures, over the updates since the last log
        launched = dist.is_initialized() or read_launch() or get_cpu_distributed_information().world_size > 1
        if self.is_deepspeed_enabled and not launched:  # DeepSpeed would look for MPI
            os.environ["LOCAL_RANK"] = "0"
            dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        if self.model_wrapped is bare:
            self.model_wrapped = self.robust
        self.model = self.robust
        try:
            return super()._prepare_for_training(max_steps, *args, **kwargs)
        finally:
            self.model = self.callback_handler.model = bare

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's, with a group of its own for the method's parameters where they have a learning rate.

        Raises InputError: the given optimizer lacks these parameters, or DeepSpeed's has one learning rate.
        """
        given = self.optimizer
        optimizer = super().create_optimizer(model)
        mine = {id(parameter) for parameter in self.robust.method.parameters()}
        rate = self.robust.method.learning_rate
        if isinstance(given, torch.optim.Optimizer):
            if not mine <= {id(parameter) for group in given.param_groups for parameter in group["params"]}:
                raise InputError("optimizers: it lacks the method's parameters: give optimizer_cls_and_kwargs instead")
        elif rate is not None:
            if given is not None:  # Accelerate's place-holder
                raise InputError(
                    "method.noise_learning_rate: DeepSpeed's configuration has an optimizer, which has one learning "
                    "rate: take `optimizer` out of it, or set noise_learning_rate to None"
                )
            for group in [*optimizer.param_groups]:
                moved = [parameter for parameter in group["params"] if id(parameter) in mine]
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in mine]
                if moved:
                    optimizer.add_param_group(group | {"params": moved, "lr": rate})
        return optimizer

    def get_batch_samples(self, *args, **kwargs) -> tuple[list, Any]:
        samples, items = super().get_batch_samples(*args, **kwargs)
        if samples:  # none at the end of data whose length is not known
            self.robust.begin_update(samples)
        return samples, items

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if isinstance(outputs, RobustOutput):
            for name, value in {**outputs.metrics, "updates": torch.ones_like(loss)}.items():
                mean = value.double() / self.current_gradient_accumulation_steps
                self._sums[name] = self._sums.get(name, 0) + mean
        if return_outputs:
            return loss, outputs
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args, **kwargs) -> Any:
        inputs = {name: value for name, value in inputs.items() if name != "sample_id"}
        with self.accelerator.autocast():  # as Accelerate does in the forward of what it prepares, which is the wrapper
            return convert_to_fp32(super().prediction_step(model, inputs, *args, **kwargs))

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        if "loss" in logs and self._sums:  # these are training's logs, which all ranks write together
            names = sorted(self._sums.keys() - {"updates"})
            means = torch.stack([self._sums[name] for name in names]) / self._sums["updates"]
            logs |= dict(zip(names, self.accelerator.reduce(means, "mean").tolist(), strict=True))
            if not logs.get("left_out", 1):
                del logs["left_out"]
            self._sums = {}
        super().log(logs, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "sample_id" not in self._signature_columns:
            self._signature_columns.append("sample_id")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict:  # DeepSpeed's engine gives the wrapper's
            state_dict = {name.removeprefix(PREFIX): value for name, value in state_dict.items() if PREFIX in name}
        whole = state_dict != {}  # {}: ZeRO-3 keeps its parts
        super()._save(output_dir, state_dict)  # empties the dictionary
        if self.args.should_save and whole:
            self._write_card(Path(output_dir or self.args.output_dir))

    def _write_card(self, folder: Path) -> None:
        """Into a README.md, unless an adapter was saved, or no tokenizer: the card's code loads model and tokenizer."""
        model, tokenizer = self.model, self.processing_class
        if isinstance(model, PreTrainedModel) and isinstance(tokenizer, PreTrainedTokenizerFast):
            task = "generative" if model.config.is_encoder_decoder else "extractive"
            head = card_head(task, self.method.name, base_model=hub_name(model.config.name_or_path))
            values = {"trainer": self, "task": task, "limit": longest_window(tokenizer, model)}
            card(head, "trainer_card.md.jinja", summary=summary(self.method), **values).save(folder / "README.md")

    def _get_eval_sampler(self, eval_dataset: Any) -> None:
        """None keeps the rows in order, also with "group_by_length": a metric looks its texts up by row."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            save_file(self._state(), Path(output_dir, METHOD_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        file = Path(checkpoint or "", METHOD_FILE)
        if checkpoint and file.is_file():
            state = load_file(file)
            expected = self._state()
            if state.keys() != expected.keys() or len(state["_extra_state"]) != len(expected["_extra_state"]):
                raise InputError(
                    f"{file}: belongs to another method than {self.method.name}: use that method, or another checkpoint"
                )
            self.robust.load_state_dict(state, strict=False)
        elif checkpoint and [*self.robust.method.parameters()]:
            if [*file.parent.glob("optimizer.*"), *file.parent.glob("global_step*")]:
                raise InputError(
                    f"{checkpoint}: is a plain Trainer's: its optimizer is for the model alone, without {METHOD_FILE}: "
                    "begin a training from its model, or resume with a method that learns no noise"
                )
            log.warning("%s: has no %s: the noise starts anew, as the optimizer does", checkpoint, METHOD_FILE)
        super()._load_optimizer_and_scheduler(checkpoint)

    def _state(self) -> dict[str, Tensor]:
        saved = "objective." if self.is_deepspeed_enabled else PREFIX  # DeepSpeed saves all weights
        state = self.robust.state_dict().items()
        return {name: value.contiguous() for name, value in state if not name.startswith(saved)}
