"""Times the perturbation and its baselines in one process.

Implementations: `fused` (this package), `eager` (`naive`), `compiled` (torch.compile of it), `copy` (a copy of as
many random bytes as the fused kernels move). Passes: `forward`, `backward`, `both`. On a GPU each is timed as a user
calls it and by CUDA graph replay, each after the L2 cache was emptied (`cold`) and as the call before left it (`warm`).
A cold call includes the host's time to launch it; warm calls overlap, and show the longer of host and GPU.
"""

import functools
import math
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator

import torch
import torch._functorch.config
from torch import Tensor

from swep_ds.kernels import torch_impl
from swep_ds.kernels.modes import MODES, Mode
from swep_ds.kernels.op import implementation, perturb

LENGTH = 512
"""Tokens of a sample."""
ALPHA = 0.1
SEED = 2**40 + 3
QUANTILES = (0.5, 0.1, 0.9)


def width(text: str) -> int:
    """An embedding width d, as an argument of a script."""
    if not text.isdecimal() or not 4 <= int(text) <= 8192 or int(text) % 4:
        raise ArgumentTypeError(f"must be a multiple of 4 from 4 to 8192; got {text}")
    return int(text)


def tokens(text: str) -> int:
    """A number of tokens that fills whole samples, as an argument of a script."""
    if not text.isdecimal() or int(text) < 1 or (int(text) > LENGTH and int(text) % LENGTH):
        raise ArgumentTypeError(f"must be from 1 to {LENGTH}, or a multiple of {LENGTH}; got {text}")
    return int(text)


def elements_moved(direction: str, mode: Mode) -> tuple[int, int]:
    """Elements that a fused kernel has to read and to write for each element of [N, T, d]."""
    params = mode.learned_mu + mode.learned_sigma
    if direction == "forward":
        return 1 + params, 1
    reads_embeddings = mode.needs_params and not mode.additive
    return 1 + reads_embeddings + params, 3 if mode.needs_params else 1


def shape(count: int) -> tuple[int, int]:
    """(samples, tokens of each) for a number of tokens that `tokens` accepts."""
    return max(1, count // LENGTH), min(count, LENGTH)


def inputs(n: int, t: int, d: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """A batch of n samples of t tokens without padding, params near the prior, and gradients of both outputs."""
    generator = torch.Generator(device).manual_seed(0)
    normal = functools.partial(torch.randn, dtype=dtype, device=device, generator=generator)
    return {
        "embeddings": normal(n, t, d).requires_grad_(),
        "params": normal(n, t, 2 * d).mul_(0.1).requires_grad_(),
        "mask": torch.ones(n, t, dtype=torch.bool, device=device),
        "sample_ids": torch.arange(n, device=device),
        "grad": normal(n, t, d),
        "grad_kl": torch.full((n, t), 1e-3, device=device),
    }


def naive(embeddings: Tensor, params: Tensor, mask: Tensor, prior_variance: float) -> tuple[Tensor, Tensor]:
    """`perturb` with learned noise as one would first write it, with PyTorch's own generator."""
    delta, v = params.chunk(2, dim=-1)
    z = 1 + delta + math.sqrt(prior_variance) * torch.exp(0.5 * v) * torch.randn_like(delta)
    terms = delta**2 / prior_variance + v.exp() - 1 - v
    kl = 0.5 * terms.float().sum(-1)
    return torch.where(mask[..., None], embeddings * z, 0), torch.where(mask, kl, 0)


def check(d: int, dtype: torch.dtype, device: str) -> None:
    """Compares the implementation that will be timed with float64 on a small batch with padding.

    The mean error may be twice that of rounding the float64 result to `dtype` once, plus a little float32 arithmetic.
    The largest error may be more: a normal of a radius under 0.01 is accurate to 1e-3 only (kernels/README.md).
    Raises: RuntimeError where an error is larger.
    """
    batch = inputs(3, 32, d, dtype, device)
    batch["mask"][1, 20:] = False
    tensors = [batch[name].detach() for name in ("embeddings", "params", "mask", "sample_ids")]
    key = (SEED, 7, ALPHA, MODES["learned"])
    run = implementation(torch.device(device).type, dtype)
    results = run.forward(*tensors, *key) + run.backward(batch["grad"], batch["grad_kl"], *tensors, *key)
    tensors = [x.double() if x.is_floating_point() else x for x in tensors]
    exact = torch_impl.forward(*tensors, *key)
    exact += torch_impl.backward(batch["grad"].double(), batch["grad_kl"].double(), *tensors, *key)
    for name, got, want in zip(("perturbed", "kl", "grad_embeddings", "grad_params"), results, exact, strict=True):
        rounding, error = ((x.double() - want).abs() for x in (want.to(got.dtype), got))
        scale = max(1.0, want.abs().max().item())
        # a sum over d in float32 grows with d, and with it its rounding: hence the scale
        for kind, of, margin in (("mean", torch.mean, 2e-6), ("largest", torch.amax, 2e-3)):
            allowed = 2 * of(rounding) + margin * scale
            if not of(error) <= allowed:
                reason = f"{kind} error {of(error):.3g}, allowed {allowed:.3g}"
                raise RuntimeError(f"{name} is wrong at d = {d} in {dtype}: {reason}")


def calls_of(batch: dict[str, Tensor], run: Callable) -> dict[str, Callable[[], object]]:
    """A function for each pass; `run()` returns (perturbed, kl)."""
    leaves, grads = (batch["embeddings"], batch["params"]), (batch["grad"], batch["grad_kl"])

    def forward():
        with torch.no_grad():
            run()

    def both():
        torch.autograd.grad(run(), leaves, grads)

    outputs = run()
    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True),
        "both": both,
    }


def implementations(
    batch: dict[str, Tensor], device: str, seed: int | Tensor = SEED, draw: int | Tensor = 1
) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, function that returns the calls of each pass)."""
    tensors = [batch[name] for name in ("embeddings", "params", "mask")]
    fused = functools.partial(perturb, *tensors, batch["sample_ids"], seed=seed, draw=draw, prior_variance=ALPHA)
    yield "fused", functools.partial(calls_of, batch, fused)
    yield "eager", functools.partial(calls_of, batch, functools.partial(naive, *tensors, ALPHA))
    if device != "cpu":
        # a donated buffer serves one backward only, and this one is timed many times over
        torch._functorch.config.donated_buffer = False
        compiled = torch.compile(naive, dynamic=False)
        yield "compiled", functools.partial(calls_of, batch, functools.partial(compiled, *tensors, ALPHA))
    yield "copy", functools.partial(copies, batch)


def bytes_moved(batch: dict[str, Tensor]) -> dict[str, int]:
    """Bytes that the fused kernels read and write in each pass."""
    embeddings = batch["embeddings"]
    moved = {p: sum(elements_moved(p, MODES["learned"])) * embeddings.nbytes for p in ("forward", "backward")}
    return moved | {"both": sum(moved.values())}


def copies(batch: dict[str, Tensor]) -> dict[str, Callable[[], object]]:
    """A copy for each pass that reads half of its bytes and writes the other half."""
    moved = bytes_moved(batch)
    # memory and caches compress constant data, so zeros would copy faster than anything real
    device, size = batch["embeddings"].device, max(moved.values()) // 2
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {name: functools.partial(target[: n // 2].copy_, source[: n // 2]) for name, n in moved.items()}


def seconds(
    call: Callable[[], object], device: str, cold: bool = True, host: bool = False
) -> tuple[float, float, float]:
    """Median, 10% and 90% quantile of a call's seconds.

    Args:
        cold: on a GPU, empties the L2 before each call. The host queues it meanwhile: up to 0.1 ms of its time hide.
        host: the host's time counts: it waits for the GPU before a cold call and has no lead over warm ones.
    """
    times = _gpu_seconds(call, cold, host) if device != "cpu" else _cpu_seconds(call)
    return tuple(torch.tensor(times).quantile(torch.tensor(QUANTILES)).tolist())


def _cpu_seconds(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(21):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times[1:]


def _gpu_seconds(call: Callable[[], object], cold: bool, host: bool) -> list[float]:
    # read to empty the L2: lines that a fill had left dirty there would be written back during the timed call
    unrelated = torch.ones(2**26, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(60)]
    if not cold and not host:
        for _ in range(20):  # about 2 ms, in which the host gets ahead
            unrelated.sum()
    for _ in range(3):
        call()
    for start, end in events:
        if cold:
            unrelated.sum()
            if host:
                torch.cuda.synchronize()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


def graphed(make: Callable[[], dict]) -> dict[str, Callable[[], object]]:
    """The calls of each pass as replays of CUDA graphs. Keys must be on the device.

    The forward whose backward is captured runs on the capturing stream, because autograd runs a backward on the stream
    of its forward.
    """
    stream, replays = torch.cuda.Stream(), {}
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        functions = make()
        for function in functions.values():
            function()  # compiles outside the capture
    torch.cuda.synchronize()
    for name, function in functions.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            function()
        replays[name] = functools.partial(_replay, graph, functions)
    return replays


def _replay(graph: torch.cuda.CUDAGraph, functions: dict) -> None:
    """Replays a graph. `functions` hold what was computed outside of it, which a captured backward reads."""
    graph.replay()


def measure(count: int, d: int, dtype: torch.dtype, device: str) -> list[dict]:
    """One record for each implementation, pass and way to time it; one that runs out of memory has one that says so."""
    batch = inputs(*shape(count), d, dtype, device)
    moved = bytes_moved(batch)
    about = {"tokens": count, "d": d, "dtype": str(dtype).removeprefix("torch.")}
    records = []
    ways = {"call": (False,)} if device == "cpu" else {"call": (True, False), "graph": (True, False)}
    for way, caches in ways.items():
        torch.compiler.reset()
        keys = [torch.tensor(part, device=device) if way == "graph" else part for part in (SEED, 1)]
        for name, make in implementations(batch, device, *keys):
            try:
                functions = graphed(make) if way == "graph" else make()
                for name_of_pass, function in functions.items():
                    for cold in caches:
                        median, low, high = seconds(function, device, cold, host=way == "call")
                        measured = {
                            "implementation": name,
                            "pass": name_of_pass,
                            "timed": f"{way}, {'cold' if cold else 'warm'}",
                            "seconds": median,
                            "seconds_10_90": (low, high),
                            "gb_per_s": moved[name_of_pass] / median * 1e-9,
                        }
                        records.append(about | measured)
                del functions, function
            except torch.OutOfMemoryError:
                records.append(about | {"implementation": name, "timed": way, "out_of_memory": True})
    compare_with_copies(records)
    return records


def compare_with_copies(records: list[dict]) -> None:
    """Gives the records of a size their `share_of_copy`: the speed relative to a copy of the same bytes.

    A graph is compared with the faster of the copy's graph and call: on an H100 the graph copied some sizes above
    0.5 GB at four fifths of the call's rate.
    """
    measured = [record for record in records if "pass" in record]
    copies_of = {(r["pass"], r["timed"]): r["seconds"] for r in measured if r["implementation"] == "copy"}
    for record in measured:
        ways = {record["timed"], record["timed"].replace("graph", "call")}
        times = [copies_of[record["pass"], way] for way in ways if (record["pass"], way) in copies_of]
        if times:
            record["share_of_copy"] = min(times) / record["seconds"]
