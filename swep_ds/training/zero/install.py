"""What this package puts in place of DeepSpeed's methods in an engine, in the one order that is right.

An update goes through these steps. DeepSpeed's `step` takes those from 3 to 6 (`step` in its runtime/zero/
stage_1_and_2.py and stage3.py), and calls for 4 and 5, once for each flat tensor, what `install` has put there.

    1. backwards    ZeRO-1: `FlatGradient.collect` adds up whole gradients. ZeRO-2 and 3: DeepSpeed reduces each one to
                    this rank's part, at ZeRO-2 with the copies of a bucket in one go (`foreach`)
    2. send         ZeRO-1: `FlatGradient.hand_over`, the mean over the ranks
    3. overflow     fp16: an update with a gradient that is not finite ends here
    4. norms        the norm of each flat tensor (`foreach`); `GroupNorms` notes them. One that is not finite ends the
                    update as well
    5. clip         `GroupNorms` takes limit and norm of the tensor's group; `foreach` scales by them
    6. step         the optimizer's; then the ranks gather the new weights
    7. release      ZeRO-1: `FlatGradient.release`

At ZeRO-0 DeepSpeed's engine averages the gradients, and a hook of the optimizer's step clips groups apart.
"""

import deepspeed.ops
from deepspeed.accelerator import get_accelerator

from swep_ds.training.zero.files import Writer
from swep_ds.training.zero.foreach import replace, use_foreach
from swep_ds.training.zero.gradient import FlatGradient
from swep_ds.training.zero.leftovers import forget_engine
from swep_ds.training.zero.norms import GroupNorms


def before_initialize() -> None:
    """Switches off what DeepSpeed would compile for 40 s on a CPU, and which leaves 69 MB per rank in /dev/shm for
    good. Precedes whatever first makes DeepSpeed join the ranks, after `forget_engine`."""
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    forget_engine()


def install(
    engine, max_norm: float, method_max_norm: float | None
) -> tuple[Writer, FlatGradient | None, GroupNorms | None]:
    """Puts everything in place in DeepSpeed's `engine`. The method's gradient, if it has parameters, is clipped to
    `method_max_norm` by its own norm, and the model's to `max_norm`; None = DeepSpeed clips both by their common norm.

    Returns the writer of checkpoints; the flat gradient of ZeRO-1 without offload; and the norms of the two groups,
    None if there is one group, or DeepSpeed clips without a norm for each.
    """
    stage = engine.zero_optimization_stage()
    writer = Writer()
    replace(engine.checkpoint_engine, "save", writer.save)
    replace(engine, "_copy_recovery_script", lambda folder: None)  # a full disk there would raise on one rank only
    flat = None
    if stage == 1 and not engine.zero_cpu_offload():  # offloaded, gradients are copied one by one anyway
        flat = FlatGradient(engine)
    use_foreach(engine)  # replaces methods
    norms = None
    if len(engine.basic_optimizer.param_groups) > 1 and (stage or method_max_norm is not None):
        limits = None
        if method_max_norm is not None:
            limits = max_norm, method_max_norm
        norms = GroupNorms(engine, limits)  # wraps them
    return writer, flat, norms


def fp16_numbers(engine) -> dict[str, float]:
    """The loss scale, and how many updates fp16 skipped."""
    # the engine's own `loss_scale()` is the ds_config's, 0 for dynamic
    return {"loss_scale": float(engine.optimizer.loss_scale), "skipped_updates": engine.skipped_steps}
