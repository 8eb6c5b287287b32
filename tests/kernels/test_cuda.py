"""What only a GPU can show. Without a GPU these tests are skipped."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from swep_ds.kernels import perturb, standard_normal, torch_impl, triton_impl
from swep_ds.kernels.modes import MODES


def batch(n=4, t=64, d=768, dtype=torch.bfloat16):
    torch.manual_seed(0)
    embeddings = torch.randn(n, t, d, device="cuda", dtype=dtype, requires_grad=True)
    params = torch.randn(n, t, 2 * d, device="cuda", dtype=dtype, requires_grad=True)
    return embeddings, params, torch.ones(n, t, dtype=torch.bool, device="cuda"), torch.arange(n, device="cuda")


def test_the_normals_agree_with_float64():
    """e = 1, mu = 0, sigma = 1: the perturbed embeddings are the noise itself."""
    n, t, d = 64, 128, 1024
    params = torch.tensor([-1.0] * d + [0.0] * d, device="cuda").expand(n, t, 2 * d)
    mask, ids = torch.ones(n, t, dtype=torch.bool, device="cuda"), torch.arange(n, device="cuda")
    eps, _ = triton_impl.forward(torch.ones(n, t, d, device="cuda"), params, mask, ids, 5, 1, 1.0, MODES["learned"])
    exact = standard_normal(5, 1, ids[:, None], torch.arange(t, device="cuda"), d, torch.float64)
    error = (eps.double() - exact).abs()
    # float32 rounds u near 1 to 2^-24, where the radius is its square root: rare, and small in absolute terms
    assert error.max() < 1e-3
    assert error.mean() < 2e-6


def test_a_cuda_graph_reads_seed_and_draw_again():
    embeddings, params, mask, ids = (x.detach() for x in batch())
    seed, draw = torch.tensor(7, device="cuda"), torch.tensor(0, device="cuda")
    perturb(embeddings, params, mask, ids, seed=seed, draw=draw, prior_variance=0.1)  # compiles outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, kl = perturb(embeddings, params, mask, ids, seed=seed, draw=draw, prior_variance=0.1)
        draw += 1
    for number in range(3):
        graph.replay()
        expected = perturb(embeddings, params, mask, ids, seed=7, draw=number, prior_variance=0.1)
        assert torch.equal(captured, expected[0])
        assert torch.equal(kl, expected[1])


def test_another_padding_does_not_recompile():
    from swep_ds.kernels.triton_kernels import perturb_backward, perturb_forward

    def compiled():
        return [sum(len(cache[0]) for cache in k.device_caches.values()) for k in (perturb_forward, perturb_backward)]

    def step(t):
        embeddings, params, mask, ids = batch(t=t)
        perturbed, kl = perturb(embeddings, params, mask, ids, seed=1, draw=1, prior_variance=0.1)
        torch.autograd.grad((perturbed, kl), (embeddings, params), (torch.ones_like(perturbed), torch.ones_like(kl)))

    step(33)
    before = compiled()
    for length in (1, 16, 17, 48):
        step(length)
    assert compiled() == before


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_agrees_with_eager(mode):
    embeddings, params, mask, ids = batch()
    seed = torch.tensor(7, device="cuda")

    def loss(draw):
        perturbed, kl = perturb(embeddings, params, mask, ids, seed=seed, draw=draw, prior_variance=0.1)
        return perturbed.float().square().mean() + kl.mean()

    compiled = torch.compile(loss, fullgraph=True, mode=mode)
    for number in range(4):
        draw = torch.tensor(number, device="cuda")
        results, expected = compiled(draw).clone(), loss(draw)
        torch.testing.assert_close(results, expected, rtol=1e-5, atol=0)
        results = [g.clone() for g in torch.autograd.grad(compiled(draw), (embeddings, params))]
        for got, want in zip(results, torch.autograd.grad(expected, (embeddings, params)), strict=True):
            torch.testing.assert_close(got, want, rtol=2**-7, atol=1e-7)


def test_peak_memory_is_that_of_the_outputs():
    embeddings, params, mask, ids = batch(16, 512)
    perturb(embeddings, params, mask, ids, seed=1, draw=1, prior_variance=0.1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    outputs = perturb(embeddings, params, mask, ids, seed=1, draw=1, prior_variance=0.1)
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= sum(x.nbytes for x in outputs) + 4096


@pytest.mark.slow
def test_more_than_2_31_elements():
    free, _ = torch.cuda.mem_get_info()
    n, t, d = 1100, 512, 4096
    if free < 8 * n * t * d + 2**30:
        pytest.skip("needs about 20 GB of free GPU memory")
    embeddings = torch.ones(n, t, d, device="cuda", dtype=torch.bfloat16)
    mask, ids = torch.ones(n, t, dtype=torch.bool, device="cuda"), torch.arange(n, device="cuda")
    perturbed, _ = triton_impl.forward(embeddings, None, mask, ids, 5, 1, 0.1, MODES["prior"])
    last = (embeddings[-1:], None, mask[-1:], ids[-1:])
    exact, _ = torch_impl.forward(last[0].double(), *last[1:], 5, 1, 0.1, MODES["prior"])
    torch.testing.assert_close(perturbed[-1:].double(), exact, rtol=2**-7, atol=1e-3)
