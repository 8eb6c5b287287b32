"""Times the perturbation and its baselines in one process.

Implementations: `fused` (this package), `eager` (naive.py), `compiled` (torch.compile of it), `copy` (a copy of as
many random bytes as the fused kernels move). Passes: `forward`, `backward`, `both`. On a GPU each is timed as a user
calls it and by CUDA graph replay, each after the L2 cache was emptied (`cold`) and as the call before left it (`warm`).
A cold call includes the host's time to launch it; warm calls overlap, and show the longer of host and GPU.
"""

import functools
import time
from collections.abc import Callable, Iterator

import torch
import torch._functorch.config
from torch import Tensor

from .. import torch_impl
from ..arguments import LENGTH
from ..dispatch import implementation
from ..modes import MODES, elements_moved
from ..op import perturb, perturb_op
from . import naive

ALPHA = 0.1
SEED = 2**40 + 3
QUANTILES = (0.5, 0.1, 0.9)
AIM_TIMING = "graph, cold"
"""The kind of timing that the kernels' aims refer to."""


def shape(tokens: int) -> tuple[int, int]:
    """(samples, tokens of each) for a number of tokens that `arguments.tokens` accepts."""
    return max(1, tokens // LENGTH), min(tokens, LENGTH)


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


def check(d: int, dtype: torch.dtype, device: str) -> None:
    """Compares the implementation that will be timed with float64 on a small batch with padding.

    The mean error may be twice that of rounding the float64 result to `dtype` once, plus a little float32 arithmetic.
    The largest error may be more: a normal of a radius under 0.01 is accurate to 1e-3 only (docs/kernels.md).
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
    yield "fused", lambda: calls_of(batch, fused)
    yield "eager", lambda: calls_of(batch, functools.partial(naive.perturb, *tensors, ALPHA))
    if device != "cpu":
        # a donated buffer can be used by one backward alone, and this one is timed many times over
        torch._functorch.config.donated_buffer = False
        compiled = torch.compile(naive.perturb, dynamic=False)
        yield "compiled", lambda: calls_of(batch, functools.partial(compiled, *tensors, ALPHA))
    yield "copy", lambda: copies(batch)


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
        cold: on a GPU, empties the L2 cache before each call. The host queues the call meanwhile, which hides up to
            some 0.1 ms of its time.
        host: waits for the GPU before a cold call, so that the host's time counts.
    """
    if device != "cpu":
        return _gpu_seconds(call, cold, host)
    from torch.utils.benchmark import Timer

    # one call a block, so that the quantiles are those of calls
    call()
    times = [
        Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()).timeit(1).mean for _ in range(20)
    ]
    return tuple(torch.tensor(times).quantile(torch.tensor(QUANTILES)).tolist())


def _gpu_seconds(call: Callable[[], object], cold: bool, host: bool, repeats: int = 60) -> tuple[float, float, float]:
    l2 = torch.empty(2**28, dtype=torch.uint8, device="cuda") if cold else None
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for _ in range(3):
        call()
    for start, end in events:
        if l2 is not None:
            l2.zero_()
            if host:
                torch.cuda.synchronize()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = torch.tensor([start.elapsed_time(end) * 1e-3 for start, end in events])
    return tuple(times.quantile(torch.tensor(QUANTILES)).tolist())


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


def extra_memory(call: Callable[[], object], device: str) -> int | None:
    """Bytes that a call allocates at its peak; None on a CPU."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _timings(device: str) -> list[tuple[str, bool]]:
    """(way to call, whether the L2 is cold) for each time that is taken."""
    return (
        [("call", False)] if device == "cpu" else [(way, cold) for way in ("call", "graph") for cold in (True, False)]
    )


def measure(tokens: int, d: int, dtype: torch.dtype, device: str) -> list[dict]:
    """One record for each implementation, pass and way to time it; one that runs out of memory has one that says so."""
    batch = inputs(*shape(tokens), d, dtype, device)
    moved = bytes_moved(batch)
    about = {"tokens": tokens, "d": d, "dtype": str(dtype).removeprefix("torch.")}
    records = []
    for way in dict.fromkeys(way for way, _ in _timings(device)):
        torch.compiler.reset()
        keys = [torch.tensor(part, device=device) if way == "graph" else part for part in (SEED, 1)]
        for name, make in implementations(batch, device, *keys):
            try:
                functions = graphed(make) if way == "graph" else make()
                for name_of_pass, function in functions.items():
                    memory = None if way == "graph" else extra_memory(function, device)
                    for cold in (cold for known, cold in _timings(device) if known == way):
                        median, low, high = seconds(function, device, cold, host=way == "call")
                        records.append(
                            about
                            | {
                                "implementation": name,
                                "pass": name_of_pass,
                                "timed": f"{way}, {'cold' if cold else 'warm'}",
                                "seconds": median,
                                "seconds_10_90": (low, high),
                                "gb_per_s": moved[name_of_pass] / median * 1e-9,
                                "extra_bytes": memory,
                            }
                        )
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
    copies_of = {
        (r["pass"], r["timed"]): r["seconds"] for r in records if r["implementation"] == "copy" and "pass" in r
    }
    for record in records:
        if "pass" in record:
            timed = {record["timed"], record["timed"].replace("graph", "call")}
            if seconds := [copies_of[record["pass"], way] for way in timed if (record["pass"], way) in copies_of]:
                record["share_of_copy"] = min(seconds) / record["seconds"]


def aims(records: list[dict]) -> list[str]:
    """How far a benchmark on a GPU is from the aims, by `AIM_TIMING` in bfloat16 at d >= 768 and 32k tokens or more.

    Each line names the worst of these sizes; without such sizes there are no lines.
    """
    sizes: dict[tuple, dict] = {}
    for r in records:
        if r["dtype"] == "bfloat16" and r["d"] >= 768 and r["tokens"] >= 32768 and r["timed"] == AIM_TIMING:
            sizes.setdefault((r["tokens"], r["d"]), {})[r["implementation"], r["pass"]] = r
    lines = []
    for base, name, aim in (
        ("copy", "forward", 0.95),
        ("copy", "backward", 0.95),
        ("compiled", "both", 1.5),
        ("eager", "both", 8.0),
    ):
        ratios = [
            (r["share_of_copy"] if base == "copy" else t[base, name]["seconds"] / r["seconds"], *size)
            for size, t in sizes.items()
            if (base, name) in t and (r := t["fused", name])
        ]
        if ratios:
            ratio, tokens, d = min(ratios)
            where = f"{tokens} tokens, d = {d}"
            verdict = "met" if ratio >= aim else "missed"
            lines.append(f"{name}: {ratio:.2f} times the speed of {base} at {where}; aim {aim:g}, {verdict}")
    return lines


def noise_ablation(tokens: int, d: int) -> dict[str, float]:
    """Median seconds of a copy of the same bytes and of the variants of noise_ablation.py: bfloat16, on a GPU."""
    from .noise_ablation import variants

    batch = inputs(*shape(tokens), d, torch.bfloat16, "cuda")
    tensors = [batch[name].detach() for name in ("embeddings", "params", "mask", "sample_ids")]
    functions = {"copy": copies(batch)["forward"]} | variants(*tensors, ALPHA)
    return {name: seconds(call, "cuda")[0] for name, call in functions.items()}


def share_of_update() -> dict[str, float]:
    """Median seconds on this CPU, measured in turns: `fused` and `eager` forward + backward, and `update`.

    `update` is a SWEP update of an encoder with random weights: clean and noisy pass, forward and backward, and AdamW's
    step; its noise comes from `fused`.
    """
    n, t, d, layers, rounds = 8, 192, 384, 6, 7
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(d, 12, 4 * d, dropout=0.0, activation="gelu", batch_first=True)
    words = torch.nn.Embedding(30522, d)
    encoder = torch.nn.TransformerEncoder(layer, layers)
    noise = torch.nn.Sequential(torch.nn.Linear(d, d), torch.nn.ReLU(), torch.nn.Linear(d, 2 * d))
    head = torch.nn.Linear(d, 2)
    optimizer = torch.optim.AdamW([p for module in (words, encoder, noise, head) for p in module.parameters()])
    tokens, mask, ids = torch.randint(30522, (n, t)), torch.ones(n, t, dtype=torch.bool), torch.arange(n)

    def update():
        hidden = encoder(words(tokens))
        head(hidden).square().mean().backward()
        e = words(tokens)
        perturbed, kl = perturb(e, noise(hidden.detach()), mask, ids, seed=SEED, draw=1, prior_variance=ALPHA)
        (head(encoder(perturbed)).square().mean() + 1e-4 * kl.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = inputs(n, t, d, torch.float32, "cpu")
    both = {name: make()["both"] for name, make in implementations(batch, "cpu") if name in ("fused", "eager")}
    times = in_turns(both | {"update": update}, rounds)
    return {name: sorted(values)[rounds // 2] for name, values in times.items()}


def in_turns(functions: dict[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, list[float]]:
    """Host seconds of one call of each function, `rounds` times in turns; each time is the mean of `calls` calls."""
    times = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, call in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if number:  # the first round warms up
                times[name].append((time.perf_counter() - start) / calls)
    return times


class _Least(torch.autograd.Function):
    """The least that an autograd function around the two passes can do: no checks, no dispatch, no key handling."""

    @staticmethod
    def forward(ctx, run, key, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.settings = run, key
        return run.forward(*tensors, *key)

    @staticmethod
    def backward(ctx, grad_perturbed, grad_kl):
        run, key = ctx.settings
        return None, None, *run.backward(grad_perturbed, grad_kl, *ctx.saved_tensors, *key), None, None


def host_times(device: str, rounds: int = 40, calls: int = 100) -> dict[str, dict[str, float]]:
    """Host seconds of an eager call, by entry point and by what is called.

    Entry points: `least` (the implementation in the plainest autograd function), `perturb`, and `operator` (the
    registered operator, which `perturb` bypasses in eager mode). Called: `forward` and `both` of an empty batch, which
    computes and launches nothing, and of 4 tokens of width 8. The minimum of many turns, because other work on the
    machine only ever adds.
    """
    functions = {}
    for name, n in (("empty", 0), ("4 tokens", 1)):
        batch = inputs(n, 4, 8, torch.float32, device)
        tensors = [batch[key] for key in ("embeddings", "params", "mask", "sample_ids")]
        run, key = implementation(batch["mask"].device.type, torch.float32), (SEED, 1, ALPHA, MODES["learned"])
        on_device = [torch.tensor(part, device=device) for part in key[:2]]
        entry_points = {
            "least": functools.partial(_Least.apply, run, key, *tensors),
            "perturb": functools.partial(perturb, *tensors, seed=SEED, draw=1, prior_variance=ALPHA),
            "operator": functools.partial(perturb_op, *tensors, *on_device, ALPHA, "learned"),
        }
        for entry_point, call in entry_points.items():
            passes = calls_of(batch, call)
            functions |= {(entry_point, f"{name}, {p}"): passes[p] for p in ("forward", "both")}
    times: dict[str, dict[str, float]] = {}
    for (entry_point, called), values in in_turns(functions, rounds, calls).items():
        times.setdefault(entry_point, {})[called] = min(values)
    return times
