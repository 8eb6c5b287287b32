"""A model: what an update sends at each ZeRO stage and execution, and what that costs on up to 1,024 GPUs.

Volumes are those of DeepSpeed 0.19 with the shipped ds_configs; a test compares them with what it really sends:
- Stages 0 and 1 all-reduce all gradients once an update, stage 2 in every micro-step: `split` execution pays twice,
  unless `train.coalesce_grad_reduction` is set.
  By default (`use_multi_rank_bucket_allreduce`) stages 1 and 2 all-reduce as well, they do not reduce-scatter.
- Stages 1 and 2 gather the updated weights once an update.
- Stage 3 scatters gradients in every micro-step, or once an update with that setting. Weights are gathered once for a
  forward and its backward where all of them may stay (`stage3_max_live_parameters`), else once for each.

The host hands the device one operation after the other while the device computes: what takes longer decides.
"""

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from rich.table import Table

from swep_ds.cost.flops import peak_flops
from swep_ds.cost.launches import HOST_SECONDS

# a ring sends this many times (w - 1) / w of the whole tensor from every rank
TIMES = {"all_reduce": 2, "reduce_scatter_tensor": 1, "all_gather_into_tensor": 1}
STAGES = (0, 1, 2, 3)
COUNTS = (1, 2, 8, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Schedule:
    """The forwards with a backward in an update, the micro-steps they are spread over, and the reductions at stage 2.

    measured: the candidate that has its FLOPs and operations.
    """

    name: str
    passes: int
    micro_steps: int
    reductions: int
    measured: str


SCHEDULES = (
    Schedule("mle", 1, 1, 1, "mle"),
    Schedule("swep:split", 2, 2, 2, "swep:split"),
    Schedule("swep:split, coalesced", 2, 2, 1, "swep:split"),
    Schedule("swep:joint", 2, 1, 1, "swep:joint"),
)


@dataclass(frozen=True)
class Cluster:
    """Assumptions: H100 nodes with a 400 Gb/s adapter for each GPU. Bandwidths are achieved, not nominal.

    flops_per_second: dense, at the precision of the job.
    """

    flops_per_second: float
    gpus_per_node: int = 8
    bytes_per_second_in_a_node: float = 300e9  # per GPU and direction
    bytes_per_second_between_nodes: float = 40e9  # per adapter and direction
    seconds_a_step_in_a_node: float = 3e-6  # latency of a ring's step
    seconds_a_step_between_nodes: float = 10e-6
    host_seconds_an_operation: float = HOST_SECONDS
    utilisation: float = 0.4  # share of flops_per_second that the model's own FLOPs reach
    # share of ZeRO-3's communication behind computation; the other stages as shipped (no overlap_comm) overlap nothing
    overlapped_at_stage_3: float = 0.5

    def seconds(self, size: float, times: int, calls: int, ranks: int) -> float:
        """Seconds of ring collectives over `size` bytes in total, in `calls` calls.

        Rings visit all GPUs of a node before they leave it; one ring uses each adapter.
        """
        if ranks == 1:
            return 0.0
        nodes = math.ceil(ranks / self.gpus_per_node)
        speed, hops = self.bytes_per_second_in_a_node, 0
        if nodes > 1:
            speed = min(speed, self.gpus_per_node * self.bytes_per_second_between_nodes)
            hops = nodes
        latency = hops * self.seconds_a_step_between_nodes + (ranks - hops) * self.seconds_a_step_in_a_node
        return times * ((ranks - 1) / ranks * size / speed + calls * (ranks - 1) / ranks * latency)


def volumes(stage: int, schedule: Schedule, parameters: int, width: int, live: int) -> dict[str, int]:
    """Bytes of the whole tensors in an update's collectives, by name as in `Traffic`.

    Args:
        width: bytes of a gradient and of a weight in communication.
        live: how many weights may stay gathered at ZeRO-3.
    """
    whole = parameters * width
    if stage == 0:
        return {"all_reduce": whole}
    if stage < 3:
        return {"all_reduce": whole * (schedule.reductions if stage == 2 else 1), "all_gather_into_tensor": whole}
    gathers = schedule.micro_steps if parameters <= live else 2 * schedule.passes
    return {"all_gather_into_tensor": whole * gathers, "reduce_scatter_tensor": whole * schedule.reductions}


def cluster(job: dict[str, Any]) -> Cluster:
    return Cluster(peak_flops("H100", job["precision"]))


def predict(job: dict[str, Any]) -> list[dict[str, Any]]:
    """For each stage, schedule and number of ranks: what a rank sends and how long an update takes.

    Args:
        job: "precision", "parameters", "modules" that hold them, "width", "reduce_bucket" (elements), and "flops" of
            an update on a rank by candidate; "operations": [ZeRO stage, candidate, operations of an update] each.
    """
    assumed, zero = cluster(job), DeepSpeedZeroConfig(stage=3)
    live = min(zero.max_live_parameters, zero.max_reuse_distance)
    buckets = math.ceil(job["parameters"] / job["reduce_bucket"])
    whole = job["parameters"] * job["width"]
    operations = {(stage, name): number for stage, name, number in job["operations"]}
    rows = []
    for stage, schedule, ranks in itertools.product(STAGES, SCHEDULES, COUNTS):
        compute = job["flops"][schedule.measured] / (assumed.flops_per_second * assumed.utilisation)
        host = operations[stage, schedule.measured] * assumed.host_seconds_an_operation
        busy = max(compute, host)
        sizes = volumes(stage, schedule, job["parameters"], job["width"], live)
        seconds = 0.0
        for name, size in sizes.items():
            gather_calls = job["modules"] if stage == 3 else 1
            calls = (gather_calls if name == "all_gather_into_tensor" else buckets) * size // whole
            seconds += assumed.seconds(size, TIMES[name], calls, ranks)
        hidden = min(busy, assumed.overlapped_at_stage_3 * seconds) if stage == 3 else 0.0
        update = busy + seconds - hidden
        rows.append(
            {
                "stage": stage,
                "schedule": schedule.name,
                "ranks": ranks,
                "bytes_sent": sum(TIMES[n] * size * (ranks - 1) / ranks for n, size in sizes.items()),
                "compute_seconds": compute,
                "host_seconds": host,
                "communication_seconds": seconds,
                "update_seconds": update,
                "efficiency": compute / update,
            }
        )
    return rows


def tables(job: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, Table]:
    """The assumptions as text, and the table: MB that a rank sends, and the share of an update that is computation."""
    lines = [f"    {name} = {value:g}" for name, value in asdict(cluster(job)).items()]
    counted = ", ".join(f"{name} at ZeRO-{stage} {number:,}" for stage, name, number in job["operations"])
    flops = ", ".join(f"{name} {flop / 1e12:.3g}" for name, flop in job["flops"].items())
    text = "\n".join(
        [
            "a model of an update, not a measurement. It assumes:",
            *lines,
            f"    {job['parameters']:,} parameters in {job['modules']} modules, {job['width']} bytes each in "
            f"communication; buckets of {job['reduce_bucket']:,}",
            f"    TFLOP of an update on a rank: {flops}",
            f"    operations of an update: {counted}",
            "    the host hands them over while the device computes: the longer of both counts",
            "    collectives are rings; a gather is one call a module at ZeRO-3, one call at ZeRO-1 and 2",
            "    the optimizer's step, which ZeRO divides among the ranks, is not counted",
        ]
    )
    shown = Table(title="MB sent by a rank, and the share of an update that is computation, by number of GPUs")
    for name in ("stage", ""):
        shown.add_column(name, no_wrap=True)
    for ranks in COUNTS:
        shown.add_column(f"{ranks:,}", justify="right", no_wrap=True)
    for (stage, name), group in itertools.groupby(rows, key=lambda row: (row["stage"], row["schedule"])):
        cells = [f"{row['bytes_sent'] / 1e6:,.0f} {row['efficiency']:4.0%}" for row in group]
        shown.add_row(str(stage), name, *cells, end_section=name == SCHEDULES[-1].name)
    return text, shown
