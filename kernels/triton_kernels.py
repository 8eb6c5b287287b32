"""The perturbation as two Triton kernels: one launch forward, one backward, nothing of the size of the noise stored.

A program takes BLOCK_ROWS tokens of one sample and BLOCK_COLS of the d/4 Philox counters of a row. The forward, which
sums the KL of a row, walks over all of its counters. A counter yields four words, hence four dimensions d/4 apart, so
no value leaves the thread that drew it. What keeps the kernels at the memory limit, and what
`benchmarks/kernels/report.py` holds to a budget:

- one Philox call for four normals; words that depend only on the row or the column stay [rows, 1] or [1, columns]
  through the first two rounds;
- the hardware's own log2, sqrt, sin and cos, because Box-Muller's arguments are bounded;
- `_tie`, which spares a trip of every normal through shared memory;
- loads in a row, so that a warp waits for memory once and draws meanwhile: of a tile forward, of two words backward.

MATH is "nvidia", "amd" or "portable"; the last one is plain Triton, for the interpreter.
"""

import triton
import triton.language as tl
from triton.language import core

# what changes from call to call; specialised on their values, kernels would compile anew
VARYING = ["seed_low", "seed_high", "draw", "T", "mask_n", "grad_kl_n"]


@core.extern
def _ocml(name: core.constexpr, x, _semantic=None):
    """A float32 function of AMD's device library: the `native` ones are single instructions, v_log_f32 and so on."""
    types = {(core.dtype("fp32"),): (f"__ocml_native_{name.value}_f32", core.dtype("fp32"))}
    return core.extern_elementwise("", "", [x], types, is_pure=True, _semantic=_semantic)


@triton.jit
def _function(name: tl.constexpr, nvidia: tl.constexpr, x, MATH: tl.constexpr):
    """A function of float32: on a GPU the hardware's own instruction, on NVIDIA's in PTX `nvidia`."""
    if MATH == "nvidia":
        y = tl.inline_asm_elementwise(nvidia, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    elif MATH == "amd":
        y = _ocml(name, x)
    elif name == "log2":
        y = tl.log2(x)
    elif name == "exp2":
        y = tl.exp2(x)
    elif name == "sqrt":
        y = tl.sqrt(x)
    elif name == "cos":
        y = tl.cos(x)
    else:
        y = tl.sin(x)
    return y


@triton.jit
def _exp2(x, MATH: tl.constexpr):
    return _function("exp2", "ex2.approx.ftz.f32 $0, $1;", x, MATH)


@triton.jit
def _to_float32(x, MATH: tl.constexpr):
    """float32 of a loaded tile; a register that holds two bfloat16 is taken apart by one instruction each."""
    if MATH == "nvidia" and x.dtype == tl.bfloat16:
        y = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def philox(c0, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr):
    """Philox4x32 of uint32 words of broadcastable shapes: four uint32 words (see philox.py)."""
    for _ in tl.static_range(ROUNDS):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = p1.to(tl.uint32)
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = p0.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _box_muller(radius_word, angle_word, MATH: tl.constexpr):
    """Two standard normals from two words (philox.py); -2 ln u is taken as |2 ln 2 * log2 u|."""
    u = radius_word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10  # 2^-32, 2^-33
    theta = angle_word.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09  # pi * 2^-31
    # log2 u <= 0. The hardware's log2 has an absolute error, so next to u = 1 its sign must not be trusted:
    # the root of a negative number would be a NaN.
    x = _function("log2", "lg2.approx.ftz.f32 $0, $1;", u, MATH) * 1.3862943611198906
    if MATH != "nvidia":  # whose instruction takes |x| for x at no cost
        x = tl.abs(x)
    r = _function("sqrt", "abs.f32 $0, $1; sqrt.approx.ftz.f32 $0, $0;", x, MATH)
    cos = _function("cos", "cos.approx.ftz.f32 $0, $1;", theta, MATH)
    return r * cos, r * _function("sin", "sin.approx.ftz.f32 $0, $1;", theta, MATH)


@triton.jit
def _tie(columns, loaded):
    """`columns` as uint32, in the thread layout of `loaded`.

    Triton would give the noise a layout of its own and carry every normal through shared memory to the layout of the
    embeddings. The value mixed in is always 0, which LLVM sees and Triton's own passes do not.
    """
    if loaded.dtype.primitive_bitwidth == 32:
        bits = loaded.to(tl.uint32, bitcast=True)
    else:
        bits = loaded.to(tl.uint16, bitcast=True).to(tl.uint32)
    return columns.to(tl.uint32) | ((bits & 1) & 2)


@triton.jit
def _normals(columns, positions, sample, draw, k0, k1, ROUNDS: tl.constexpr, MATH: tl.constexpr):
    """Normals of the four dimensions w * d/4 + c of each counter c, each [rows, columns] float32."""
    w0, w1, w2, w3 = philox(columns, positions, sample, draw, k0, k1, ROUNDS)
    n0, n1 = _box_muller(w0, w1, MATH)
    n2, n3 = _box_muller(w2, w3, MATH)
    return n0, n1, n2, n3


@triton.jit
def _key(seed_low, seed_high, draw, KEY_ON_DEVICE: tl.constexpr):
    """Key words and draw word as uint32, from int32 arguments or from pointers to the int64 seed and draw."""
    if KEY_ON_DEVICE:
        seed = tl.load(seed_low)
        k0, k1, draw_word = seed.to(tl.uint32), (seed >> 32).to(tl.uint32), tl.load(draw).to(tl.uint32)
    else:
        k0, k1, draw_word = seed_low.to(tl.uint32), seed_high.to(tl.uint32), draw.to(tl.uint32)
    return k0, k1, draw_word


@triton.jit
def _rows(program, mask_ptr, mask_n, mask_t, T, HAS_MASK: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Sample index (int64), positions [rows] (int64), whether each is inside T and whether it is a real token."""
    tiles = tl.cdiv(T, BLOCK_ROWS)
    n = (program // tiles).to(tl.int64)
    t = (program % tiles).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inside = t < T
    live = inside
    if HAS_MASK:
        live = tl.load(mask_ptr + n * mask_n + t * mask_t, mask=inside, other=0) != 0
    return n, t, inside, live


@triton.jit
def _offset(i, stride):
    """i * stride in int64: the innermost stride of a transposed tensor can be large. A stride of 1 is a constant."""
    return i * tl.cast(stride, tl.int64)


@triton.jit
def _store_zeros(ptr, write, COUNT: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Zero COUNT tiles that lie STEP elements apart."""
    for number in tl.static_range(COUNT):
        tl.store(ptr + number * STEP, tl.zeros([ROWS, COLS], ptr.dtype.element_ty), mask=write)


@triton.jit
def _load_inputs(
    embeddings_row, params_row, i, read, embeddings_d, params_d, D: tl.constexpr,
    LEARNED_MU: tl.constexpr, LEARNED_SIGMA: tl.constexpr,
):  # fmt: skip
    """(e, v, delta) of the dimensions i as they are stored, 0 where not read; e in place of what is fixed."""
    e = tl.load(embeddings_row + _offset(i, embeddings_d), mask=read, other=0.0)
    v, delta = e, e
    if LEARNED_SIGMA:
        v = tl.load(params_row + _offset(D + i, params_d), mask=read, other=0.0)
    if LEARNED_MU:
        delta = tl.load(params_row + _offset(i, params_d), mask=read, other=0.0)
    return e, v, delta


# fmt: off
@triton.jit(do_not_specialize=[name for name in VARYING if name != "grad_kl_n"])
def perturb_forward(
    embeddings_ptr, params_ptr, mask_ptr, sample_ids_ptr, perturbed_ptr, kl_ptr,
    seed_low, seed_high, draw, inverse_alpha, log2_root_alpha, fixed_sigma, fixed_kl, T,
    embeddings_n, embeddings_t, embeddings_d, params_n, params_t, params_d, mask_n, mask_t, ids_n,
    D: tl.constexpr, LEARNED_MU: tl.constexpr, LEARNED_SIGMA: tl.constexpr, ADDITIVE: tl.constexpr,
    DRAWS: tl.constexpr, HAS_MASK: tl.constexpr, KEY_ON_DEVICE: tl.constexpr, ROUNDS: tl.constexpr,
    MATH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):
    # fmt: on
    """Perturbed embeddings and KL of a tile of tokens. Outputs are contiguous: [N, T, D] and [N, T]."""
    QUARTER: tl.constexpr = D // 4
    EVEN: tl.constexpr = QUARTER % BLOCK_COLS == 0
    TILES: tl.constexpr = tl.cdiv(QUARTER, BLOCK_COLS)
    n, t, inside, live = _rows(tl.program_id(0), mask_ptr, mask_n, mask_t, T, HAS_MASK, BLOCK_ROWS)
    perturbed_row = perturbed_ptr + (n * T + t)[:, None] * D
    kl_row = kl_ptr + n * T + t
    if HAS_MASK and tl.max(live.to(tl.int32), axis=0) == 0:
        for tile in range(TILES):
            c = tile * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
            _store_zeros(perturbed_row + c, inside[:, None] & (c < QUARTER), 4, QUARTER, BLOCK_ROWS, BLOCK_COLS)
        tl.store(kl_row, tl.zeros([BLOCK_ROWS], tl.float32), mask=inside)
    else:
        k0, k1, draw_word = _key(seed_low, seed_high, draw, KEY_ON_DEVICE)
        sample = tl.load(sample_ids_ptr + n * ids_n).to(tl.uint32)
        embeddings_row = embeddings_ptr + n * embeddings_n + t[:, None] * embeddings_t
        params_row = params_ptr + n * params_n + t[:, None] * params_t
        positions = t.to(tl.uint32)[:, None]
        kl_terms = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
        for tile in range(TILES):
            c = tile * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
            read, write = live[:, None], inside[:, None]
            if not EVEN:
                read, write = read & (c < QUARTER), write & (c < QUARTER)
            # all loads of the tile before the normals, which are drawn while the data are on their way
            loaded = ()
            for w in tl.static_range(4):
                loaded += (_load_inputs(
                    embeddings_row, params_row, w * QUARTER + c, read, embeddings_d, params_d,
                    D, LEARNED_MU, LEARNED_SIGMA,
                ),)
            if DRAWS:
                normals = _normals(_tie(c, loaded[0][0]), positions, sample, draw_word, k0, k1, ROUNDS, MATH)
            for w in tl.static_range(4):
                i = w * QUARTER + c
                e = _to_float32(loaded[w][0], MATH)
                z, sigma, kl_term, spread = 0.0, fixed_sigma, fixed_kl, 0.0  # z less the prior's mean
                if LEARNED_SIGMA:
                    v = _to_float32(loaded[w][1], MATH)
                    # sqrt(alpha) exp(v / 2) = 2^(v / (2 ln 2) + log2(sqrt(alpha)))
                    sigma = _exp2(v * 0.7213475204444817 + log2_root_alpha, MATH)
                    kl_term, spread = -1.0 - v, sigma * sigma
                if LEARNED_MU:
                    delta = _to_float32(loaded[w][2], MATH)
                    spread += delta * delta
                    z = delta
                if DRAWS:
                    z = sigma * normals[w] + z
                if ADDITIVE:
                    perturbed = tl.where(live[:, None], e + z, 0.0)
                else:
                    perturbed = e * z + e
                tl.store(perturbed_row + i, perturbed.to(perturbed_ptr.dtype.element_ty), mask=write)
                if LEARNED_MU or LEARNED_SIGMA:
                    kl_term = spread * inverse_alpha + kl_term
                    kl_terms += kl_term if EVEN else tl.where(c < QUARTER, kl_term, 0.0)
        tl.store(kl_row, tl.where(live, 0.5 * tl.sum(kl_terms, axis=1), 0.0), mask=inside)


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def perturb_backward(
    grad_perturbed_ptr, grad_kl_ptr, embeddings_ptr, params_ptr, mask_ptr, sample_ids_ptr,
    grad_embeddings_ptr, grad_params_ptr,
    seed_low, seed_high, draw, inverse_alpha, log2_root_alpha, fixed_sigma, T,
    grad_n, grad_t, grad_d, grad_kl_n, grad_kl_t,
    embeddings_n, embeddings_t, embeddings_d, params_n, params_t, params_d, mask_n, mask_t, ids_n,
    D: tl.constexpr, LEARNED_MU: tl.constexpr, LEARNED_SIGMA: tl.constexpr, ADDITIVE: tl.constexpr,
    DRAWS: tl.constexpr, HAS_MASK: tl.constexpr, KEY_ON_DEVICE: tl.constexpr, ROUNDS: tl.constexpr,
    MATH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):
    # fmt: on
    """Gradients of a tile of tokens (formulas: torch_impl.backward). Outputs are contiguous [N, T, D], [N, T, 2D]."""
    QUARTER: tl.constexpr = D // 4
    EVEN: tl.constexpr = QUARTER % BLOCK_COLS == 0
    PARAMS: tl.constexpr = LEARNED_MU or LEARNED_SIGMA
    TILES: tl.constexpr = tl.cdiv(QUARTER, BLOCK_COLS)  # a row's tiles, each a program: nothing is summed over them
    program = tl.program_id(0)
    n, t, inside, live = _rows(program // TILES, mask_ptr, mask_n, mask_t, T, HAS_MASK, BLOCK_ROWS)
    c = program % TILES * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    read, write = live[:, None], inside[:, None]
    if not EVEN:
        read, write = read & (c < QUARTER), write & (c < QUARTER)
    token = (n * T + t)[:, None]
    grad_embeddings_row = grad_embeddings_ptr + token * D
    grad_params_row = grad_params_ptr + token * (2 * D)
    if HAS_MASK and tl.max(live.to(tl.int32), axis=0) == 0:
        _store_zeros(grad_embeddings_row + c, write, 4, QUARTER, BLOCK_ROWS, BLOCK_COLS)
        if PARAMS:
            _store_zeros(grad_params_row + c, write, 8, QUARTER, BLOCK_ROWS, BLOCK_COLS)
    else:
        k0, k1, draw_word = _key(seed_low, seed_high, draw, KEY_ON_DEVICE)
        sample = tl.load(sample_ids_ptr + n * ids_n).to(tl.uint32)
        grad_row = grad_perturbed_ptr + n * grad_n + t[:, None] * grad_t
        embeddings_row = embeddings_ptr + n * embeddings_n + t[:, None] * embeddings_t
        params_row = params_ptr + n * params_n + t[:, None] * params_t
        positions = t.to(tl.uint32)[:, None]
        if PARAMS:
            grad_kl = tl.load(grad_kl_ptr + n * grad_kl_n + t * grad_kl_t, mask=live, other=0.0).to(tl.float32)
            half_kl = (0.5 * grad_kl)[:, None]
            kl_over_alpha = (grad_kl * inverse_alpha)[:, None]
        gradients, loaded = (), ()
        for w in tl.static_range(4):
            if w % 2 == 0:  # the loads of two words in a row; those of four would take registers from other warps
                for x in tl.static_range(w, w + 2):
                    i = x * QUARTER + c
                    gradients += (tl.load(grad_row + _offset(i, grad_d), mask=read, other=0.0),)
                    loaded += (_load_inputs(
                        embeddings_row, params_row, i, read, embeddings_d, params_d, D, LEARNED_MU, LEARNED_SIGMA
                    ),)
            if DRAWS and w == 0:
                normals = _normals(_tie(c, gradients[0]), positions, sample, draw_word, k0, k1, ROUNDS, MATH)
            i = w * QUARTER + c
            g = _to_float32(gradients[w], MATH)
            z, grad_z = 0.0, g
            grad_delta, grad_v = tl.zeros_like(g), tl.zeros_like(g)
            if PARAMS and not ADDITIVE:
                grad_z = g * _to_float32(loaded[w][0], MATH)
            sigma = fixed_sigma
            if LEARNED_SIGMA:
                v = _to_float32(loaded[w][1], MATH)
                sigma = _exp2(v * 0.7213475204444817 + log2_root_alpha, MATH)
            if DRAWS:
                noise = sigma * normals[w]
            if LEARNED_MU:
                delta = _to_float32(loaded[w][2], MATH)
                grad_delta = grad_z + kl_over_alpha * delta
                z = delta
            if LEARNED_SIGMA:
                # 0.5 * (grad_z * noise + k * (exp(v) - 1)), with exp(v) = sigma^2 / alpha
                grad_v = (0.5 * kl_over_alpha) * (sigma * sigma) + (0.5 * grad_z * noise - half_kl)
            if PARAMS:
                element = grad_params_ptr.dtype.element_ty
                tl.store(grad_params_row + i, grad_delta.to(element), mask=write)
                tl.store(grad_params_row + D + i, grad_v.to(element), mask=write)
            if DRAWS:
                z = noise + z
            grad_e = g if ADDITIVE else g * z + g
            tl.store(grad_embeddings_row + i, grad_e.to(grad_embeddings_ptr.dtype.element_ty), mask=write)
