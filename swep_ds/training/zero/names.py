"""Every private name of DeepSpeed that this package uses, and whether the installed DeepSpeed still has it.

Public is what DeepSpeed documents or `deepspeed.initialize` returns: the engine's methods without an underscore, its
`module`, `optimizer` and `lr_scheduler`, `deepspeed.comm`, `deepspeed.accelerator`, `deepspeed.zero`. All else is in
`TABLE`, and used in this folder alone, to which `tests/training/test_names.py` holds both. Names and parameters are
compared with what is installed before the first update; what methods compute, and the keys in a checkpoint's files, are
compared by the tests that the table names.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import deepspeed
from deepspeed.accelerator import get_accelerator

from swep_ds.common.errors import InputError

OLDEST = "0.19.8"  # earlier ones lose gradients, or were never compared with a plain loop
# Names of an engine, its optimizer (as a "bucket", where gradients lie in one), its parameters or a module, of methods
# with their first parameters; the ZeRO stages at which they are used; the files here that use them; why; a test in
# tests/training/test_FILE.py, by the end of its name, which fails where they mean something else.
TABLE = """
engine.basic_optimizer | 0123 | flats conversion norms install | the optimizer we made | conversion uninterrupted_one
engine.checkpoint_engine.save(state_dict, path) | 0123 | files | notices a full disk | resume of_an_earlier_start
engine.checkpoint_engine.load(path, map_location) | 0123 | files | runs no code | conversion and_not_run
engine._get_all_ckpt_names(checkpoints_path, tag) | 0123 | files | globs a folder's name | zero of_any_name
engine._get_ckpt_name(checkpoints_path, tag) | 0123 | files | names the file to read | zero of_any_name
engine._copy_recovery_script(save_path) | 0123 | files | writes a file that we lack | resume of_an_earlier_start
engine.global_steps, global_samples | 0123 | conversion | progress | conversion uninterrupted_one
engine.skipped_steps | 0123 | conversion install | updates that fp16 skipped | precision has_no_norm
optimizer.bit16_groups | 12 | flats | the parameters in each flat tensor | conversion uninterrupted_one
optimizer.fp16_groups, sub_group_to_group_id | 3 | flats | they, and the group of each | conversion uninterrupted_one
optimizer.fp32_partitioned_groups_flat | 3 | flats weights | the flat tensors | conversion uninterrupted_one
optimizer.dp_process_group | 123 | flats gradient foreach | the ranks that share them | conversion uninterrupted_one
parameter.ds_id, ds_shape, ds_tensor | 3 | flats | what of it a rank has | sharding of_the_whole_model
parameter._hp_mapping | 1 | gradient | `lp_fragment` holds a node of autograd | graphs to_the_last_bit
optimizer._grad_acc_hooks, averaged_gradients | 1 | gradient | go; get the gradient | precision to_the_last_bit
optimizer.communication_data_type | 1 | gradient | what ranks send | gradients of_a_plain_loop
optimizer.get_param_comm_dtype(param) | 1 | gradient | what autocast sends | precision to_the_last_bit
deepspeed.runtime.zero.stage_1_and_2.GradPartitionBufferGroup | 1 | gradient | holds it | precision to_the_last_bit
optimizer.contiguous_gradients, overlap_comm | 2 | foreach | whether buckets are copied | precision to_the_last_bit
optimizer.copy_grads_in_partition(param, group_idx) | 2 | foreach | copies one by one | precision to_the_last_bit
optimizer.reduce_ipg_grads(comm_dtype) | 2 | foreach | reduces a bucket, then copies | precision to_the_last_bit
bucket.grads_in_partition, grads_in_partition_offset | 2 | foreach | where they go | precision to_the_last_bit
optimizer.get_grad_norm_direct(gradients, params) | 123 | foreach norms | the norm of one | zero as_in_a_plain_loop
optimizer.complete_grad_norm_calculation_for_cpu_offload(params) | 123 | norms | the same | zero as_in_a_plain_loop
optimizer.unscale_and_clip_grads(grad_groups_flat, total_norm) | 12 | foreach norms | clips | zero as_in_a_plain_loop
optimizer.unscale_and_clip_grads(sub_group_id, total_norm) | 3 | norms | clips | zero as_in_a_plain_loop
optimizer.clip_grad | 123 | foreach norms | the limit | zero as_in_a_plain_loop
optimizer.loss_scale | 123 | foreach norms install | multiplies fp16's gradients | precision has_no_norm
optimizer.overflow | 123 | norms | whether fp16 skipped the update | precision has_no_norm
optimizer.loss_scaler, dynamic_loss_scale | 123 | conversion | of fp16, saved | precision has_no_norm
optimizer.update_lp_params() | 12 | weights | makes the weights | average weights_outside
optimizer._reassign_or_swap_out_partitioned_parameters(sub_group_id) | 3 | weights | same | average weights_outside
optimizer.checkpoint_event_prologue(), checkpoint_event_epilogue() | 3 | weights | around it | average weights_outside
optimizer.persistent_parameters | 3 | weights | small ones that stay whole | average weights_outside
parameter.partition(param_list) | 3 | weights | drops their old values | average weights_outside
parameter.convert_to_zero_parameters(param_list) | 3 | weights | partitions it | sharding of_the_whole_model
deepspeed.runtime.fp16.loss_scaler.LossScaler | 0123 | files | may be in a file | conversion and_not_run
deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler | 0123 | files | may be in a file | conversion and_not_run
deepspeed.runtime.zero.config.ZeroStageEnum | 0123 | files | may be in a file | conversion and_not_run
deepspeed.utils.tensor_fragment.fragment_address | 0123 | files | may be in a file | conversion uninterrupted_one
ops.__compatible_ops__ | 0123 | install | decides what is compiled on a CPU | zero nothing_is_compiled
"""


class Private(NamedTuple):
    holder: str  # the first word in `TABLE`, or "" for an import
    name: str
    parameters: list[str]
    stages: str
    where: list[str]
    test: str


def _read(table: str) -> Iterator[Private]:
    for line in table.strip().splitlines():
        names, stages, where, _, test = line.split(" | ")
        holder = names.split(".")[0].replace("deepspeed", "")
        for name, parameters in re.findall(r"([\w.]+)(?:\(([^)]*)\))?", names):
            taken = [part for part in parameters.split(", ") if part]
            yield Private(holder, name.removeprefix(f"{holder}."), taken, stages, where.split(), test)


PRIVATE = list(_read(TABLE))


def check_version() -> None:
    """Raises InputError: this DeepSpeed is too old."""
    installed = tuple(map(int, re.findall(r"\d+", deepspeed.__version__)[:3]))
    if installed < tuple(map(int, OLDEST.split("."))):  # pip did not check one that is part of an image
        raise InputError(
            f"DeepSpeed {deepspeed.__version__}: versions before {OLDEST} can silently lose gradients: "
            f"pip install 'deepspeed>={OLDEST}'"
        )


def check_engine(engine) -> None:
    """Raises InputError: DeepSpeed's `engine`, or what belongs to it, differs from what is replaced and read there."""
    holders = {"": deepspeed, "engine": engine, "optimizer": engine.optimizer}
    holders["parameter"] = next(engine.module.parameters())
    if getattr(engine.optimizer, "contiguous_gradients", False):
        holders["bucket"] = engine.optimizer
    if get_accelerator().device_name() == "cpu":  # elsewhere DeepSpeed would call compilers to list them
        holders["ops"] = deepspeed.ops
    check(holders, str(engine.zero_optimization_stage()))


def check(holders: Mapping[str, Any], stage: str) -> None:
    """Raises InputError: these holders lack names of a ZeRO stage, or a method has other parameters."""
    faults = []
    for private in PRIVATE:
        if private.holder in holders and stage in private.stages:
            faults += _faults(private, holders[private.holder])
    if faults:
        raise InputError(
            f"DeepSpeed {deepspeed.__version__}: what this package replaces in it has changed: {'; '.join(faults)}: "
            f"pip install 'deepspeed=={OLDEST}'"
        )


def _faults(private: Private, holder: Any) -> Iterator[str]:
    used = f"{private.holder} {private.name} (used at ZeRO {', '.join(private.stages)} in {', '.join(private.where)})"
    try:
        value = attrgetter(private.name)(holder) if private.holder else pkgutil.resolve_name(private.name)
    except (AttributeError, ImportError):
        yield f"{used.strip()} is missing"
        return
    if private.parameters:
        taken = list(inspect.signature(value).parameters)
        hidden = taken == ["args", "kwargs"]  # by DeepSpeed's decorator
        if not hidden and taken[: len(private.parameters)] != private.parameters:
            yield f"{used} takes ({', '.join(taken)}), not ({', '.join(private.parameters)})"
