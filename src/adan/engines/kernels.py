"""The Triton kernels of the CUDA engine; `cuda.py` launches them and lays out their table.

Every kernel finds its tensors through two tables of 64-bit integers, column by column, a row for each tensor: one of
what stays where it is from step to step, one of what moves.
"""

import triton
import triton.language as tl

# Columns of the table of what stays; 0 where a tensor has no such thing.
PARAM = tl.constexpr(0)
EXP_AVG = tl.constexpr(1)
EXP_AVG_DIFF = tl.constexpr(2)
EXP_AVG_SQ = tl.constexpr(3)
STEP = tl.constexpr(4)
PREV_SCALE = tl.constexpr(5)
EXPONENTS = tl.constexpr(6)
COMPENSATION = tl.constexpr(7)
STREAM = tl.constexpr(8)
NUMEL = tl.constexpr(9)
GROUP = tl.constexpr(10)
START = tl.constexpr(11)  # the first chunk of a tensor, counted from the first tensor of its launch
NORM_START = tl.constexpr(12)  # the same in chunks of `sum_of_squares`

# Columns of the table of what moves; the options of the groups follow.
GRAD = tl.constexpr(0)
PREV_GRAD = tl.constexpr(1)

# Options of a group, fp64.
OPTIONS = tl.constexpr(15)

# Coefficients of a tensor, all tensors' in fp64, then all in fp32; the names are those of `adan.scalars.Scalars`, and
# from WAY on of `adan.scalars.Way`.
COEFS = tl.constexpr(24)
WAY = tl.constexpr(16)

# What a kernel does for `adan.restart`: take states for zeros at a first gradient, and measure the way of the step.
FORGET = tl.constexpr(1)
MEASURE = tl.constexpr(2)

# How a parameter of half precision is rounded.
NEAREST = tl.constexpr(0)
STOCHASTIC = tl.constexpr(1)
KAHAN = tl.constexpr(2)

# `adan.lowbit`: elements that share exponents; shift, base and δ of the codes of m, v, g, and of √n.
CODES = tl.constexpr(32)
SIGNED_SHIFT = tl.constexpr(18)
SIGNED_BASE = tl.constexpr(((127 << 5) - 124) << 18)
SIGNED_DELTA = tl.constexpr(0.0703125)
ROOT_SHIFT = tl.constexpr(17)
ROOT_BASE = tl.constexpr(((127 << 6) - 250) << 17)
ROOT_DELTA = tl.constexpr(0.068359375)


# Integers that are 1 in one model and 292 in another must not be compiled in.
_NUMBERS = ["rows", "n_partials", "first_row", "end_row", "chunks", "first_way"]


@triton.jit(do_not_specialize=_NUMBERS)
def step_scalars(
    table, moving, coefs, partials, norm, grad_scale, found_inf, rows, n_partials,
    NORM: tl.constexpr, GRAD_SCALE: tl.constexpr, FOUND_INF: tl.constexpr, CHECK: tl.constexpr, RESTART: tl.constexpr,
    LANES: tl.constexpr,
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

    # A consumed gradient is as backward left it: this is what it was multiplied with.
    scale_at = tl.load(table + PREV_SCALE * rows + row, mask=live, other=0)
    consumed = scale_at != 0
    scale_at = scale_at.to(tl.pointer_type(tl.float64))
    prev_scale = tl.load(scale_at, mask=consumed, other=1.0)
    tl.store(scale_at, tl.where(run > 0, c, prev_scale), mask=consumed)

    out = coefs + row * COEFS
    short = (coefs + rows * COEFS).to(tl.pointer_type(tl.float32), bitcast=True) + row * COEFS
    put(out, short, 0, c, live)
    put(out, short, 1, prev_scale, live)
    put(out, short, 2, has_prev, live)
    # Where there is no previous gradient the difference is to have no effect.
    put(out, short, 3, b2 * has_prev, live)
    put(out, short, 4, w_m, live)
    put(out, short, 5, w_v * has_prev, live)
    put(out, short, 6, w_n, live)
    put(out, short, 7, lr / debias_m, live)
    put(out, short, 8, lr * b2 / debias_v, live)
    put(out, short, 9, 1 / tl.sqrt(debias_n), live)
    put(out, short, 10, eps, live)
    put(out, short, 11, tl.where(no_prox, 1 - lr * weight_decay, 1.0), live)
    put(out, short, 12, tl.where(no_prox, 1.0, 1 / (1 + lr * weight_decay)), live)
    put(out, short, 13, run, live)
    if RESTART == MEASURE:
        last_lr = tl.load(h + 13, mask=live, other=0.0)
        weight = tl.sqrt(tl.load(h + 14, mask=live, other=1.0))
        has_last = tl.where(t > 2, 1.0, 0.0)
        decay = lr * weight_decay
        shrink = tl.where(no_prox, 1.0, 1 / (1 + decay))
        last = last_lr * has_last * weight
        before = tl.where(t > 2, t - 1, 1.0)
        put(out, short, WAY, -decay * shrink * weight, live)
        put(out, short, WAY + 1, (has_prev - shrink) * weight, live)
        put(out, short, WAY + 2, lr * (1 - b1) * has_prev * weight, live)
        put(out, short, WAY + 3, last / tl.where(bias_correction, 1 - tl.exp(before * log_b1), 1.0), live)
        put(out, short, WAY + 4, last * b2 / tl.where(bias_correction, 1 - tl.exp(before * log_b2), 1.0), live)
        put(out, short, WAY + 5, last * (1 - b1), live)
        put(out, short, WAY + 6, 1 / tl.sqrt(tl.where(bias_correction, 1 - tl.exp(before * log_b3), 1.0)), live)
        put(out, short, WAY + 7, eps + (1 - has_last), live)
    key = tl.load(table + STREAM * rows + row, mask=live, other=0) + t.to(tl.int64)
    tl.store(short.to(tl.pointer_type(tl.uint32), bitcast=True) + 14, mix(key.to(tl.uint32)), mask=live)


@triton.jit
def put(out, short, at: tl.constexpr, value, live):
    tl.store(out + at, value, mask=live)
    tl.store(short + at, value.to(tl.float32), mask=live)


@triton.jit
def mix(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


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
    table, moving, coefs, ways, rows, first_row, end_row, first_way,
    P: tl.constexpr, G: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, COMPUTE: tl.constexpr,
    COUPLED: tl.constexpr, CONSUME: tl.constexpr, WEIGHTS: tl.constexpr, RESTART: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of CHUNK elements of one tensor. P, G, Q, S: types of parameter, gradient, previous gradient, states."""
    chunk = tl.program_id(0).to(tl.int64)
    starts = table + START * rows
    row = find_row(starts, first_row, end_row, chunk)
    begin = (chunk - tl.load(starts + row)) * CHUNK
    left = tl.load(table + NUMEL * rows + row) - begin
    k = coefs + row * COEFS
    if COMPUTE == tl.float32:
        k = (coefs + rows * COEFS).to(tl.pointer_type(tl.float32), bitcast=True) + row * COEFS
    # Read once: between two blocks the compiler would have to read them again, as a store might have changed them.
    c, c_prev, has_prev, lookahead, w_m, w_v, w_n, step_m, step_v, root_n, eps, keep, shrink, run = coefficients(k)
    key = tl.load((coefs + rows * COEFS).to(tl.pointer_type(tl.uint32), bitcast=True) + row * COEFS + 14)
    p = address(table, rows, PARAM, row, P, ALIGNED) + begin
    g = address(moving, rows, GRAD, row, G, ALIGNED) + begin
    m = address(table, rows, EXP_AVG, row, S, ALIGNED) + begin
    v = address(table, rows, EXP_AVG_DIFF, row, S, ALIGNED) + begin
    n = address(table, rows, EXP_AVG_SQ, row, S, ALIGNED) + begin
    q = address(moving, rows, PREV_GRAD, row, Q, ALIGNED) + begin
    kept = address(table, rows, COMPENSATION, row, P, ALIGNED) + begin
    powers = address(table, rows, EXPONENTS, row, tl.int32, False) + begin // CODES
    way = tl.zeros((BLOCK // CODES, CODES), COMPUTE)
    if left >= CHUNK:
        for i in range(0, CHUNK, BLOCK):
            added = update_block(
                p + i, g + i, m + i, v + i, n + i, q + i, kept + i, powers + i // CODES,
                c, c_prev, has_prev, lookahead, w_m, w_v, w_n, step_m, step_v, root_n, eps, keep, shrink, run,
                key + (begin + i).to(tl.uint32), k + WAY, BLOCK, False, P, G, Q, S, COMPUTE, COUPLED, CONSUME, WEIGHTS,
                RESTART, BLOCK,
            )  # fmt: skip
            if RESTART == MEASURE:
                way += added
    else:
        for i in range(0, left.to(tl.int32), BLOCK):
            added = update_block(
                p + i, g + i, m + i, v + i, n + i, q + i, kept + i, powers + i // CODES,
                c, c_prev, has_prev, lookahead, w_m, w_v, w_n, step_m, step_v, root_n, eps, keep, shrink, run,
                key + (begin + i).to(tl.uint32), k + WAY, left - i, True, P, G, Q, S, COMPUTE, COUPLED, CONSUME,
                WEIGHTS, RESTART, BLOCK,
            )  # fmt: skip
            if RESTART == MEASURE:
                way += added
    if RESTART == MEASURE:
        tl.store(ways + first_way + chunk, tl.sum(tl.sum(way, 1), 0).to(tl.float64))


@triton.jit
def coefficients(k):
    return (
        tl.load(k), tl.load(k + 1), tl.load(k + 2), tl.load(k + 3), tl.load(k + 4), tl.load(k + 5), tl.load(k + 6),
        tl.load(k + 7), tl.load(k + 8), tl.load(k + 9), tl.load(k + 10), tl.load(k + 11), tl.load(k + 12),
        tl.load(k + 13),
    )  # fmt: skip


@triton.jit
def update_block(
    p, g, m, v, n, q, kept, powers,
    c, c_prev, has_prev, lookahead, w_m, w_v, w_n, step_m, step_v, root_n, eps, keep, shrink, run,
    key, w, left, MASKED: tl.constexpr,
    P: tl.constexpr, G: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, COMPUTE: tl.constexpr,
    COUPLED: tl.constexpr, CONSUME: tl.constexpr, WEIGHTS: tl.constexpr, RESTART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of a block; returns its part of the way of the step, or zeros."""
    block = tl.arange(0, BLOCK // CODES)
    at = block[:, None] * CODES + tl.arange(0, CODES)[None, :]
    # A whole block takes no mask: one that varies along the block breaks its accesses into single elements.
    inside = at < left if MASKED else None
    some = block * CODES < left if MASKED else None
    power = 0
    if S == tl.uint8:
        power = fetch(powers + block, some)[:, None]  # one word a block: m, v, n and g, a byte each

    g_prev = tl.zeros((BLOCK // CODES, CODES), COMPUTE)
    if has_prev > 0:  # at the first gradient there may be no buffer yet
        g_prev = read(q + at, power >> 24, inside, Q, COMPUTE)

    way = tl.zeros((BLOCK // CODES, CODES), COMPUTE)
    if run > 0:
        theta = fetch(p + at, inside).to(COMPUTE)
        if WEIGHTS == KAHAN:
            theta += fetch(kept + at, inside).to(COMPUTE)
        exp_avg = read(m + at, power, inside, S, COMPUTE)
        exp_avg_sq = read_square(n + at, power >> 16, inside, S, COMPUTE)
        new = fetch(g + at, inside).to(COMPUTE) * c
        exp_avg_diff = exp_avg
        if not COUPLED:
            exp_avg_diff = read(v + at, power >> 8, inside, S, COMPUTE)
        if RESTART > 0:
            exp_avg = tl.where(has_prev > 0, exp_avg, 0.0)
            exp_avg_diff = tl.where(has_prev > 0, exp_avg_diff, 0.0)
            exp_avg_sq = tl.where(has_prev > 0, exp_avg_sq, 0.0)
        if RESTART == MEASURE:
            back = tl.load(w + 3) * exp_avg - tl.load(w + 5) * (g_prev * c_prev)
            if not COUPLED:
                back += tl.load(w + 4) * exp_avg_diff
            way = tl.load(w) * theta - back / (tl.load(w + 6) * tl.sqrt(exp_avg_sq) + tl.load(w + 7))
        d = new - g_prev * c_prev
        exp_avg += w_m * (new - exp_avg)
        if COUPLED:
            exp_avg += lookahead * w_v * d
            u = step_m * exp_avg
        else:
            exp_avg_diff += w_v * (d - exp_avg_diff)
            u = step_m * exp_avg + step_v * exp_avg_diff
        ahead = new + lookahead * d
        exp_avg_sq += w_n * (ahead * ahead - exp_avg_sq)
        root = tl.sqrt(exp_avg_sq)
        denom = root_n * root + eps
        theta = shrink * (keep * theta - u / denom)
        if RESTART == MEASURE:
            way += (tl.load(w + 1) * u - tl.load(w + 2) * new) / denom
            way = denom * way * way
            if MASKED:
                way = tl.where(inside, way, 0.0)

        word = key
        if S == tl.uint8 or S == tl.bfloat16 or WEIGHTS == STOCHASTIC:
            word = mix(at.to(tl.uint32) + key)
        if WEIGHTS == STOCHASTIC:
            tl.store(p + at, to_bf16(theta, word * 0x9E3779B1), mask=inside)
        else:
            tl.store(p + at, theta.to(P), mask=inside)
        if WEIGHTS == KAHAN:
            tl.store(kept + at, (theta - theta.to(P).to(COMPUTE)).to(P), mask=inside)
        if S == tl.uint8:
            written = write_code(m + at, exp_avg, inside, word)
            written |= write_root(n + at, root, inside, rotated(word, 16)) << 16
            written |= write_code(q + at, new, inside, rotated(word, 24)) << 24
            if not COUPLED:
                written |= write_code(v + at, exp_avg_diff, inside, rotated(word, 8)) << 8
            tl.store(powers + block, written, mask=some)
        else:
            write(m + at, exp_avg, inside, S, word)
            if not COUPLED:
                write(v + at, exp_avg_diff, inside, S, rotated(word, 8))
            write(n + at, exp_avg_sq, inside, S, rotated(word, 16))
            if not CONSUME:
                write(q + at, new, inside, Q, rotated(word, 24))
    else:
        if CONSUME:
            tl.store(g + at, g_prev.to(G), mask=inside)  # this buffer is about to be the previous gradient
    return way


@triton.jit
def fetch(at, mask):
    """A load with zeros where the mask is off; None is no mask."""
    if mask is None:
        return tl.load(at)
    else:
        return tl.load(at, mask=mask, other=0)


@triton.jit
def rotated(word, by: tl.constexpr):
    return (word << by) | (word >> (32 - by))


@triton.jit
def read(at, power, inside, TYPE: tl.constexpr, COMPUTE: tl.constexpr):
    value = fetch(at, inside)
    if TYPE == tl.uint8:
        code = value.to(tl.int32)
        size = (((code & 127) << SIGNED_SHIFT) + SIGNED_BASE).to(tl.float32, bitcast=True) - SIGNED_DELTA
        scale = (((power & 255) << 23) ^ ((code & 128) << 24)).to(tl.float32, bitcast=True)
        return size * scale
    else:
        return value.to(COMPUTE)


@triton.jit
def read_square(at, power, inside, TYPE: tl.constexpr, COMPUTE: tl.constexpr):
    value = fetch(at, inside)
    if TYPE == tl.uint8:
        code = value.to(tl.int32)
        root = ((code << ROOT_SHIFT) + ROOT_BASE).to(tl.float32, bitcast=True) - ROOT_DELTA
        root *= power_of_two(power & 255)
        return root * root
    else:
        return value.to(COMPUTE)


@triton.jit
def power_of_two(exponent):
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def write(at, value, inside, TYPE: tl.constexpr, word):
    if TYPE == tl.bfloat16:
        tl.store(at, to_bf16(value, word), mask=inside)
    else:
        tl.store(at, value, mask=inside)


@triton.jit
def write_code(at, value, inside, word):
    """Store the codes of blocks; returns their exponents."""
    size = tl.abs(value)
    power = exponents(size)
    bits = (size * power_of_two(tl.maximum(254 - power, 0))[:, None] + SIGNED_DELTA).to(tl.int32, bitcast=True)
    bits += (word & 0x3FFFF).to(tl.int32) - SIGNED_BASE
    sign = (value.to(tl.int32, bitcast=True) >> 24) & 128
    tl.store(at, ((bits >> SIGNED_SHIFT) | sign).to(tl.uint8), mask=inside)
    return power


@triton.jit
def write_root(at, root, inside, word):
    power = exponents(root)
    bits = (root * power_of_two(tl.maximum(254 - power, 0))[:, None] + ROOT_DELTA).to(tl.int32, bitcast=True)
    bits += (word & 0x1FFFF).to(tl.int32) - ROOT_BASE
    code = bits >> ROOT_SHIFT
    code = tl.where(root > 0, tl.maximum(code, 1), code)  # a root that became 0 would be divided by
    tl.store(at, code.to(tl.uint8), mask=inside)
    return power


@triton.jit
def exponents(size):
    """Of each block the exponent of a power of two above all its elements, which are not negative; 255: not finite."""
    power = (tl.max(size.to(tl.int32, bitcast=True), 1) >> 23) + 1
    return tl.where(power >= 254, 255, power)


@triton.jit
def to_bf16(x, word):
    rounded = tl.where(x == x, (x.to(tl.uint32, bitcast=True) + (word & 0xFFFF)) >> 16, 0x7FC0)
    return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)


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
