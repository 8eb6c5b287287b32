"""The settings of training and tracking: the recipe's sections `train` and `tracking`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from swep_ds.common.settings import FieldFault, Section

# field of `train` -> the kind of average it sets
AVERAGED_BY = {"average_decay": "ema", "average_start": "start"}

# its throughput timer synchronises the GPU at every forward and step
QUIET = {"steps_per_print": 2**31, "wall_clock_breakdown": False, "timers": {"throughput": {"enabled": False}}}
# what DeepSpeed reports, which may change between two starts of a run
REPORTS = (*QUIET, "memory_breakdown", "dump_state", "log_level", "comms_logger")
REPORTS += ("tensorboard", "csv_monitor", "wandb", "comet")
BATCH_SPLIT = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# how DeepSpeed spreads state and work, which may change too
SPREAD = (*BATCH_SPLIT, "zero_optimization", "zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer", "aio")
SPREAD += ("data_types",)
# blocks that the recipe decides, as a whole or in what affects results
BY_RECIPE = (*BATCH_SPLIT, "train_batch_size", "gradient_clipping", "bf16", "fp16", "torch_autocast")

# Bounds that no run reaches; above them numbers overflow or a run never ends
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Many = Annotated[int, Field(ge=1, le=1_000_000_000)]
Epochs = Annotated[float, Field(gt=0, le=10_000)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainSection(Section):
    epochs: Epochs = 2  # passes over the training data; of a mix, each as long as all its sources together
    max_updates: Many | None = None  # optimizer steps; cuts `epochs` short
    micro_batch_size: Count = 8  # windows per rank and forward pass
    max_tokens: Many | None = None  # replaces micro_batch_size: padded positions per rank and pass
    group_by_length: bool = True  # windows of similar length share an update; false = random ones, with more padding
    # widths of batches are rounded up to it, so that a GPU sees few shapes; null = 16 on a GPU, else 1
    pad_to_multiple_of: Count | None = None
    gradient_accumulation_steps: Count = 1  # a run keeps its global batch when its ranks change
    learning_rate: float = Field(3e-5, gt=0, le=1000)  # at its peak, after the warm-up
    warmup_fraction: float = Field(0.0, ge=0, lt=1)  # share of the updates
    schedule: Literal["linear", "constant"] = "linear"  # decay to 0, or none, after the warm-up
    weight_decay: float = Field(0.0, ge=0)  # for all parameters, decoupled from the gradient
    optimizer: Literal["adamw", "adafactor"] = "adamw"  # adafactor: with ZeRO-0 in fp32, tf32 or autocast
    adam_betas: tuple[Beta, Beta] = (0.9, 0.999)  # adamw: decay rates of the gradient's and its square's mean
    adam_epsilon: float = Field(1e-8, gt=0)  # adamw: added to the root in its denominator
    max_grad_norm: float = Field(1.0, ge=0)  # global L2 norm; 0 = no clipping
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # share of the target that is spread evenly over all choices
    # tf32: fp32 whose matrix products are in TF32, on a GPU; autocast: matrix products in bf16, fp32 weights
    precision: Literal["fp32", "tf32", "autocast", "bf16", "fp16"] = "fp32"
    execution: Literal["split", "joint"] = "split"  # a backward per pass (memory of MLE), or one backward for all
    # at ZeRO-2 and 3: reduce gradients once an update, not after each backward; until then each rank holds whole ones
    coalesce_grad_reduction: bool = False
    activation_checkpointing: bool = False  # computes activations again in the backward pass: less memory, more time
    compile: bool = False  # extractive: torch.compile of the model, once for all lengths; the first updates are slow
    cuda_graphs: bool = True  # GPU, ZeRO-1: the passes of a shape are captured once, then replayed without the host
    deterministic: bool = False  # GPU: the same numbers, to the last bit, in every run on the same devices; slower
    freeze_embeddings: bool = False  # word embeddings, and an output layer that is tied to them, stay as they are
    log_every: Many = 10  # updates between two logged lines
    checkpoint_every: Many = 1000  # updates between two checkpoints
    keep_checkpoints: Count = 2  # how many of the newest are kept
    average: Literal["none", "ema", "start"] = "none"  # which mean of the weights is tested and exported
    average_decay: float = Field(0.99, gt=0, lt=1)  # ema: per update; the mean is about 1 / (1 - decay) updates old
    average_start: float = Field(0.5, gt=0, lt=1)  # start: the share of the weights that training started from

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainSection":
        for name, kind in AVERAGED_BY.items():
            default = type(self).model_fields[name].default
            if self.average != kind and getattr(self, name) != default:
                raise FieldFault(f"{name}: is a setting of average {kind}: set train.average to that")
        return self


class TrackingSection(Section):
    # where metrics, scores, tables and the report go besides the run's folder (offline: without a network)
    to: Literal["off", "wandb", "wandb_offline"] = "off"
    project: str = "swep-ds"  # the project in wandb
    group: str | None = None  # the group of runs in wandb; a sweep sets its own name
