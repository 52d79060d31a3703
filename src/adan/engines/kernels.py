"""The Triton kernels of the CUDA engine; `cuda.py` launches them and lays out their table.

Every kernel finds its tensors through two tables of 64-bit integers, column by column, a row for each tensor: one of
what stays where it is from step to step, one of what moves.
"""

import triton
import triton.language as tl

# Columns of the table of what stays.
PARAM = tl.constexpr(0)
EXP_AVG = tl.constexpr(1)
EXP_AVG_DIFF = tl.constexpr(2)
EXP_AVG_SQ = tl.constexpr(3)
STEP = tl.constexpr(4)
PREV_SCALE = tl.constexpr(5)
NUMEL = tl.constexpr(6)
GROUP = tl.constexpr(7)
START = tl.constexpr(8)  # the first chunk of a tensor, counted from the first tensor of its launch
NORM_START = tl.constexpr(9)  # the same in chunks of `sum_of_squares`

# Columns of the table of what moves; the options of the groups follow.
GRAD = tl.constexpr(0)
PREV_GRAD = tl.constexpr(1)

# Options of a group, fp64.
OPTIONS = tl.constexpr(13)

# Coefficients of a tensor, fp64; the names are those of `adan.scalars.Scalars`.
COEFS = tl.constexpr(16)


# Integers that are 1 in one model and 292 in another must not be compiled in.
_NUMBERS = ["rows", "n_partials", "first_row", "end_row", "chunks"]


@triton.jit(do_not_specialize=_NUMBERS)
def step_scalars(
    table, moving, coefs, partials, norm, grad_scale, found_inf, rows, n_partials,
    NORM: tl.constexpr, GRAD_SCALE: tl.constexpr, FOUND_INF: tl.constexpr, CHECK: tl.constexpr,
    CONSUME: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """`adan.scalars.step_scalars`, a lane for each tensor, and the count of its gradients advanced unless we skip.

    NORM: 0 no group clips, 1 `norm` holds it, 2 it is the root of the sum of `partials`. CHECK: `partials` also count
    what is not finite.
    """
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = row < rows
    hyper = (moving + 2 * rows).to(tl.pointer_type(tl.float64), bitcast=True)
    h = hyper + tl.load(table + GROUP * rows + row, mask=live, other=0) * OPTIONS
    lr = tl.load(h + 0, mask=live, other=0.0)
    eps = tl.load(h + 1, mask=live, other=0.0)
    weight_decay = tl.load(h + 2, mask=live, other=0.0)
    max_grad_norm = tl.load(h + 3, mask=live, other=0.0)
    no_prox = tl.load(h + 4, mask=live, other=0.0) > 0
    bias_correction = tl.load(h + 5, mask=live, other=0.0) > 0
    maximize = tl.load(h + 6, mask=live, other=0.0) > 0
    b1 = tl.load(h + 7, mask=live, other=0.0)
    b2 = tl.load(h + 8, mask=live, other=0.0)
    b3 = tl.load(h + 9, mask=live, other=0.0)
    log_b1 = tl.load(h + 10, mask=live, other=0.0)
    log_b2 = tl.load(h + 11, mask=live, other=0.0)
    log_b3 = tl.load(h + 12, mask=live, other=0.0)

    c = tl.full((LANES,), 1.0, tl.float64)
    run = tl.full((LANES,), 1.0, tl.float64)
    if GRAD_SCALE:
        c = c / tl.load(grad_scale).to(tl.float64)
    if FOUND_INF:
        run = tl.where(tl.load(found_inf) > 0, 0.0, run)
    if NORM == 2 or CHECK:
        total = tl.zeros((LANES,), tl.float64)
        nonfinite = tl.zeros((LANES,), tl.float64)
        for begin in range(0, n_partials, LANES):
            at = begin + tl.arange(0, LANES)
            total += tl.load(partials + at, mask=at < n_partials, other=0.0)
            if CHECK:
                nonfinite += tl.load(partials + n_partials + at, mask=at < n_partials, other=0.0)
        if CHECK:
            run = tl.where(tl.sum(nonfinite, 0) > 0, 0.0, run)
    if NORM > 0:
        if NORM == 1:
            size = tl.load(norm).to(tl.float64)
        else:
            size = tl.sqrt(tl.sum(total, 0))
        clip = max_grad_norm / (size * c + 1e-6)
        clipped = tl.where(clip >= 1.0, c, c * clip)  # a NaN must come through, not pass unclipped
        c = tl.where(max_grad_norm > 0, clipped, c)
    c = tl.where(maximize, -c, c)

    step_at = tl.load(table + STEP * rows + row, mask=live, other=0).to(tl.pointer_type(tl.float32))
    step = tl.load(step_at, mask=live, other=0.0)
    tl.store(step_at, step + run.to(tl.float32), mask=live)
    t = step.to(tl.float64) + 1
    has_prev = tl.where(t > 1, 1.0, 0.0)
    w_m = tl.where(bias_correction, 1 - b1, 1 - b1 * has_prev)
    w_v = tl.where(bias_correction, 1 - b2, tl.where(t > 2, 1 - b2, 1.0))
    w_n = tl.where(bias_correction, 1 - b3, 1 - b3 * has_prev)
    debias_m = tl.where(bias_correction, 1 - tl.exp(t * log_b1), 1.0)
    debias_v = tl.where(bias_correction, 1 - tl.exp(t * log_b2), 1.0)
    debias_n = tl.where(bias_correction, 1 - tl.exp(t * log_b3), 1.0)

    prev_scale = has_prev
    if CONSUME:
        scale_at = tl.load(table + PREV_SCALE * rows + row, mask=live, other=0).to(tl.pointer_type(tl.float64))
        prev_scale = tl.load(scale_at, mask=live, other=1.0)
        tl.store(scale_at, tl.where(run > 0, c, prev_scale), mask=live)

    out = coefs + row * COEFS
    tl.store(out + 0, c, mask=live)
    tl.store(out + 1, prev_scale, mask=live)
    tl.store(out + 2, has_prev, mask=live)
    tl.store(out + 3, b2, mask=live)
    tl.store(out + 4, w_m, mask=live)
    tl.store(out + 5, w_v, mask=live)
    tl.store(out + 6, w_n, mask=live)
    tl.store(out + 7, lr / debias_m, mask=live)
    tl.store(out + 8, lr * b2 / debias_v, mask=live)
    tl.store(out + 9, 1 / tl.sqrt(debias_n), mask=live)
    tl.store(out + 10, eps, mask=live)
    tl.store(out + 11, tl.where(no_prox, 1 - lr * weight_decay, 1.0), mask=live)
    tl.store(out + 12, tl.where(no_prox, 1.0, 1 / (1 + lr * weight_decay)), mask=live)
    tl.store(out + 13, run, mask=live)


@triton.jit
def find_row(starts, begin, end, chunk):
    """The last row of [begin, end) that starts at or before a chunk; rows without elements are passed over."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if tl.load(starts + middle) <= chunk:
            begin = middle
        else:
            end = middle
    return begin


@triton.jit
def address(table, rows, column: tl.constexpr, row, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    base = tl.load(table + column * rows + row).to(tl.pointer_type(TYPE))
    # 16-byte accesses: an address that comes from memory is otherwise taken to be aligned to its element only.
    return tl.multiple_of(base, 16) if ALIGNED else base


@triton.jit(do_not_specialize=_NUMBERS)
def update(
    table, moving, coefs, rows, first_row, end_row,
    P: tl.constexpr, G: tl.constexpr, Q: tl.constexpr, COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr, CONSUME: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of CHUNK elements of one tensor. P, G, Q: the types of parameter, gradient and previous gradient."""
    chunk = tl.program_id(0).to(tl.int64)
    starts = table + START * rows
    row = find_row(starts, first_row, end_row, chunk)
    begin = (chunk - tl.load(starts + row)) * CHUNK
    left = tl.load(table + NUMEL * rows + row) - begin
    k = coefs + row * COEFS
    p = address(table, rows, PARAM, row, P, ALIGNED) + begin
    g = address(moving, rows, GRAD, row, G, ALIGNED) + begin
    m = address(table, rows, EXP_AVG, row, COMPUTE, ALIGNED) + begin
    v = address(table, rows, EXP_AVG_DIFF, row, COMPUTE, ALIGNED) + begin
    n = address(table, rows, EXP_AVG_SQ, row, COMPUTE, ALIGNED) + begin
    q = address(moving, rows, PREV_GRAD, row, Q, ALIGNED) + begin
    if left >= CHUNK:
        for i in range(0, CHUNK, BLOCK):
            update_block(k, p + i, g + i, m + i, v + i, n + i, q + i, BLOCK, False, P, G, COMPUTE, CONSUME, BLOCK)
    else:
        for i in range(0, left.to(tl.int32), BLOCK):
            update_block(k, p + i, g + i, m + i, v + i, n + i, q + i, left - i, True, P, G, COMPUTE, CONSUME, BLOCK)


@triton.jit
def update_block(
    k, p, g, m, v, n, q, left, MASKED: tl.constexpr,
    P: tl.constexpr, G: tl.constexpr, COMPUTE: tl.constexpr, CONSUME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    # A whole block takes no mask: one that varies along the block breaks its accesses into single elements.
    inside = at < left if MASKED else None
    has_prev = tl.load(k + 2) > 0
    g_prev = tl.zeros((BLOCK,), COMPUTE)
    if has_prev:  # at the first gradient there may be no buffer yet
        g_prev = tl.load(q + at, mask=inside).to(COMPUTE)

    if tl.load(k + 13) > 0:
        grad = tl.load(g + at, mask=inside).to(COMPUTE)
        exp_avg = tl.load(m + at, mask=inside)
        exp_avg_diff = tl.load(v + at, mask=inside)
        exp_avg_sq = tl.load(n + at, mask=inside)
        theta = tl.load(p + at, mask=inside).to(COMPUTE)

        new = grad * tl.load(k + 0).to(COMPUTE)
        d = new - g_prev * tl.load(k + 1).to(COMPUTE)
        d = tl.where(has_prev, d, 0.0)
        exp_avg += tl.load(k + 4).to(COMPUTE) * (new - exp_avg)
        exp_avg_diff += tl.load(k + 5).to(COMPUTE) * (d - exp_avg_diff)
        ahead = new + tl.load(k + 3).to(COMPUTE) * d
        exp_avg_sq += tl.load(k + 6).to(COMPUTE) * (ahead * ahead - exp_avg_sq)
        u = tl.load(k + 7).to(COMPUTE) * exp_avg + tl.load(k + 8).to(COMPUTE) * exp_avg_diff
        root = tl.load(k + 9).to(COMPUTE) * tl.sqrt(exp_avg_sq) + tl.load(k + 10).to(COMPUTE)
        theta = tl.load(k + 12).to(COMPUTE) * (tl.load(k + 11).to(COMPUTE) * theta - u / root)

        tl.store(p + at, theta.to(P), mask=inside)
        tl.store(m + at, exp_avg, mask=inside)
        tl.store(v + at, exp_avg_diff, mask=inside)
        tl.store(n + at, exp_avg_sq, mask=inside)
        if not CONSUME:
            tl.store(q + at, new, mask=inside)
    else:
        if CONSUME:
            tl.store(g + at, g_prev.to(G), mask=inside)  # this buffer is about to be the previous gradient


@triton.jit(do_not_specialize=_NUMBERS)
def sum_of_squares(
    table, moving, partials, rows, first_row, end_row, chunks, n_partials,
    G: tl.constexpr, COMPUTE: tl.constexpr, ALIGNED: tl.constexpr, CHECK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Each program adds up the squares of every so many chunks, always in the same order, and counts the non-finite."""
    starts = table + NORM_START * rows
    at = tl.arange(0, CHUNK)
    total = tl.zeros((CHUNK,), COMPUTE)
    nonfinite = tl.zeros((CHUNK,), tl.int32)
    chunk = tl.program_id(0).to(tl.int64)
    while chunk < chunks:
        row = find_row(starts, first_row, end_row, chunk)
        begin = (chunk - tl.load(starts + row)) * CHUNK
        left = tl.load(table + NUMEL * rows + row) - begin
        g = address(moving, rows, GRAD, row, G, ALIGNED) + begin
        if left >= CHUNK:
            x = tl.load(g + at).to(COMPUTE)
        else:
            x = tl.load(g + at, mask=at < left, other=0.0).to(COMPUTE)
        total += x * x
        if CHECK:
            nonfinite += tl.where(tl.abs(x) < float("inf"), 0, 1)
        chunk += tl.num_programs(0)
    tl.store(partials + tl.program_id(0), tl.sum(total, 0).to(tl.float64))
    if CHECK:
        tl.store(partials + n_partials + tl.program_id(0), tl.sum(nonfinite, 0).to(tl.float64))
