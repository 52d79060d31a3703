"""The Triton kernels of the CUDA engine; `cuda.py` launches them and fills their tables.

Every kernel finds its tensors through two tables of 64-bit words: the static one, a row for each tensor, and the
per-step one, which begins with each tensor's gradient. The slots are those of `adan.engines.slots`: S_PARAM is the
column "param" of the static table, O_LR a group's option "lr", K_W_M a tensor's coefficient "w_m".
"""

import triton
import triton.language as tl

from adan import scalars
from adan.engines import slots
from adan.engines.codes import (
    ADVANCE,
    ADVANCE_CYCLE,
    OF_WEIGHT,
    SHARED,
    fetch,
    fetch_bytes,
    fetch_codes,
    random_words,
    root_codes,
    root_numbers,
    rotated,
    scaled,
    signed_codes,
    signed_numbers,
    six_bit_codes,
    six_bit_numbers,
    store_bytes,
    store_codes,
)

for _prefix, _names in (("S", slots.STATIC), ("O", slots.OPTIONS), ("K", slots.COEFS)):
    globals().update({f"{_prefix}_{name.upper()}": tl.constexpr(i) for i, name in enumerate(_names)})

N_STATIC, N_OPTIONS, N_COEFS = (tl.constexpr(len(x)) for x in (slots.STATIC, slots.OPTIONS, slots.COEFS))

CLIP_EPS = tl.constexpr(scalars.CLIP_EPS)

# What a kernel does for `adan.restart`: read states as zeros at a first gradient, and measure the displacement of y.
FORGET, MEASURE = tl.constexpr(1), tl.constexpr(2)

# How a parameter of half precision is rounded.
NEAREST, STOCHASTIC, KAHAN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

# Integers that are 1 in one model and 292 in another must not be compiled in.
_NUMBERS = ["rows", "n_partials", "first_row", "end_row", "chunks", "first_partial", "first_chunk"]


@triton.jit(do_not_specialize=_NUMBERS)
def step_scalars(
    static, per_step, coefs, partials, norm, grad_scale, found_inf, rows, n_partials,
    NORM: tl.constexpr, GRAD_SCALE: tl.constexpr, FOUND_INF: tl.constexpr, CHECK: tl.constexpr, RESTART: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """`adan.scalars.step_scalars` and `displacement_scalars`, one lane per tensor, with the same names; a test compares
    them. Also advances the counts of gradients, unless the step is skipped.

    NORM: 0 no group clips, 1 `norm` holds it, 2 it is the root of the sum of `partials`. CHECK: `partials` also count
    what is not finite.
    """
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = row < rows
    options = (per_step + rows).to(tl.pointer_type(tl.float64), bitcast=True)
    h = options + fetch(static + row * N_STATIC + S_GROUP, live) * N_OPTIONS
    lr, weight_decay, eps = fetch(h + O_LR, live), fetch(h + O_WEIGHT_DECAY, live), fetch(h + O_EPS, live)
    max_grad_norm, maximize = fetch(h + O_MAX_GRAD_NORM, live), fetch(h + O_MAXIMIZE, live) > 0
    no_prox, bias_correction = fetch(h + O_NO_PROX, live) > 0, fetch(h + O_BIAS_CORRECTION, live) > 0
    b1, b2, b3 = fetch(h + O_B1, live), fetch(h + O_B2, live), fetch(h + O_B3, live)
    log_b1, log_b2, log_b3 = fetch(h + O_LOG_B1, live), fetch(h + O_LOG_B2, live), fetch(h + O_LOG_B3, live)

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
        clip = max_grad_norm / (size * c + CLIP_EPS)
        clipped = tl.where(clip >= 1.0, c, c * clip)  # a NaN must come through, not pass unclipped
        c = tl.where(max_grad_norm > 0, clipped, c)
    c = tl.where(maximize, -c, c)

    step_at = fetch(static + row * N_STATIC + S_STEP, live).to(tl.pointer_type(tl.float64))
    step = fetch(step_at, live)
    has_grad = fetch(per_step + row, live) != 0
    tl.store(step_at, step + run, mask=live & has_grad)
    t = step + 1
    has_prev = tl.where(t > 1, 1.0, 0.0)
    w_m = tl.where(bias_correction, 1 - b1, 1 - b1 * has_prev)
    w_v = tl.where(bias_correction, 1 - b2, tl.where(t > 2, 1 - b2, 1.0))
    w_n = tl.where(bias_correction, 1 - b3, 1 - b3 * has_prev)
    debias_m = tl.where(bias_correction, 1 - tl.exp(t * log_b1), 1.0)
    debias_v = tl.where(bias_correction, 1 - tl.exp(t * log_b2), 1.0)
    debias_n = tl.where(bias_correction, 1 - tl.exp(t * log_b3), 1.0)
    decay = lr * weight_decay
    shrink = tl.where(no_prox, 1.0, 1 / (1 + decay))

    out = coefs + row * N_COEFS
    short = (coefs + rows * N_COEFS).to(tl.pointer_type(tl.float32), bitcast=True) + row * N_COEFS
    put(out, short, K_GRAD_SCALE, c, live)
    put(out, short, K_HAS_PREV, has_prev, live)
    # Where there is no previous gradient the difference must have no effect.
    put(out, short, K_LOOKAHEAD, b2 * has_prev, live)
    put(out, short, K_W_M, w_m, live)
    put(out, short, K_W_V, w_v * has_prev, live)
    put(out, short, K_W_N, w_n, live)
    put(out, short, K_STEP_M, lr / debias_m, live)
    put(out, short, K_STEP_V, lr * b2 / debias_v, live)
    put(out, short, K_ROOT_N, 1 / tl.sqrt(debias_n), live)
    put(out, short, K_EPS, eps, live)
    put(out, short, K_KEEP, tl.where(no_prox, 1 - decay, 1.0), live)
    put(out, short, K_SHRINK, shrink, live)
    put(out, short, K_RUN, run, live)
    # The factor of v in the 4-bit format; 0 where there is none, or where nothing remains of v.
    averaging_at = fetch(static + row * N_STATIC + S_AVERAGING, live)
    averaging = tl.load(averaging_at.to(tl.pointer_type(tl.float64)), mask=averaging_at != 0, other=0.0)
    put(out, short, K_AVERAGING, averaging, live)
    put(out, short, K_PER_AVERAGING, tl.where(averaging > 0, 1 / tl.where(averaging > 0, averaging, 1.0), 0.0), live)
    if RESTART == MEASURE:
        weight = tl.sqrt(tl.load(h + O_SHARE, mask=live, other=1.0))
        has_last = tl.where(t > 2, 1.0, 0.0)
        last = fetch(h + O_LAST_LR, live) * has_last * weight
        before = tl.where(t > 2, t - 1, 1.0)
        put(out, short, K_Y_THETA, -decay * shrink * weight, live)
        put(out, short, K_Y_STEP, (has_prev - shrink) * weight, live)
        put(out, short, K_Y_GRAD, lr * (1 - b1) * has_prev * weight, live)
        put(out, short, K_Y_PREV_M, last / tl.where(bias_correction, 1 - tl.exp(before * log_b1), 1.0), live)
        put(out, short, K_Y_PREV_V, last * b2 / tl.where(bias_correction, 1 - tl.exp(before * log_b2), 1.0), live)
        put(out, short, K_Y_PREV_GRAD, last * (1 - b1), live)
        put(out, short, K_Y_PREV_ROOT, 1 / tl.sqrt(tl.where(bias_correction, 1 - tl.exp(before * log_b3), 1.0)), live)
        put(out, short, K_Y_PREV_EPS, eps + (1 - has_last), live)
    cycle = fetch(h + O_CYCLE, live)
    moved = t.to(tl.int64).to(tl.uint32) * ADVANCE + cycle.to(tl.int64).to(tl.uint32) * ADVANCE_CYCLE
    tl.store(short.to(tl.pointer_type(tl.uint32), bitcast=True) + K_RNG_MOVED, moved, mask=live)


@triton.jit
def put(out, short, at: tl.constexpr, value, live):
    tl.store(out + at, value, mask=live)
    tl.store(short + at, value.to(tl.float32), mask=live)


@triton.jit
def find_row(starts, begin, end, chunk):
    """The last row of [begin, end) that starts at or before a chunk; rows without elements are passed over."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if tl.load(starts + middle * N_STATIC) <= chunk:
            begin = middle
        else:
            end = middle
    return begin


@triton.jit
def address(slot, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    base = tl.load(slot).to(tl.pointer_type(TYPE))
    # 16-byte accesses: an address that comes from memory is otherwise taken to be aligned to its element only.
    return tl.multiple_of(base, 16) if ALIGNED else base


@triton.jit(do_not_specialize=_NUMBERS)
def update(
    static, per_step, coefs, squares, rows, first_chunk,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, COMPUTE: tl.constexpr, PACKED: tl.constexpr,
    COUPLED: tl.constexpr, WEIGHTS: tl.constexpr, RESTART: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One step of CHUNK elements of one tensor. P, G, S: types of parameter, gradient, states. PACKED: in 4 bits."""
    chunk = first_chunk + tl.program_id(0)
    row = tl.load((static + N_STATIC * rows).to(tl.pointer_type(tl.int32), bitcast=True) + chunk)
    begin = (chunk - tl.load(static + row * N_STATIC + S_START)) * CHUNK
    left = tl.load(static + row * N_STATIC + S_NUMEL) - begin
    k = coefs + row * N_COEFS
    if COMPUTE == tl.float32:
        k = (coefs + rows * N_COEFS).to(tl.pointer_type(tl.float32), bitcast=True) + row * N_COEFS
    # Read once: between two blocks the compiler would have to read them again, as a store might have changed them.
    c, has_prev, run = tl.load(k + K_GRAD_SCALE), tl.load(k + K_HAS_PREV), tl.load(k + K_RUN)
    lookahead, w_m, w_v, w_n = tl.load(k + K_LOOKAHEAD), tl.load(k + K_W_M), tl.load(k + K_W_V), tl.load(k + K_W_N)
    step_m, step_v, root_n = tl.load(k + K_STEP_M), tl.load(k + K_STEP_V), tl.load(k + K_ROOT_N)
    eps, keep, shrink = tl.load(k + K_EPS), tl.load(k + K_KEEP), tl.load(k + K_SHRINK)
    # One of the two decays is none: θ' = shrink·(keep·θ − u / denom).
    keep, step_m, step_v = keep * shrink, step_m * shrink, step_v * shrink
    if PACKED and not COUPLED:
        averaging, per_averaging = tl.load(k + K_AVERAGING), tl.load(k + K_PER_AVERAGING)
    if RESTART == MEASURE:
        y_theta, y_grad, y_step = tl.load(k + K_Y_THETA), tl.load(k + K_Y_GRAD), tl.load(k + K_Y_STEP) / shrink
        y_prev_m, y_prev_v, y_prev_grad = tl.load(k + K_Y_PREV_M), tl.load(k + K_Y_PREV_V), tl.load(k + K_Y_PREV_GRAD)
        y_prev_root, y_prev_eps = tl.load(k + K_Y_PREV_ROOT), tl.load(k + K_Y_PREV_EPS)
    short = (coefs + rows * N_COEFS).to(tl.pointer_type(tl.uint32), bitcast=True) + row * N_COEFS
    key = tl.load(static + row * N_STATIC + S_RNG_OFFSET).to(tl.uint32) + (begin // 4).to(tl.uint32)
    moved = tl.load(short + K_RNG_MOVED)
    PER_BYTE: tl.constexpr = 2 if PACKED else 1
    p = address(static + row * N_STATIC + S_PARAM, P, ALIGNED) + begin
    g = address(per_step + row, G, ALIGNED) + begin
    m = address(static + row * N_STATIC + S_EXP_AVG, S, ALIGNED) + begin
    v = address(static + row * N_STATIC + S_EXP_AVG_DIFF, S, ALIGNED) + begin // PER_BYTE
    n = address(static + row * N_STATIC + S_EXP_AVG_SQ, S, ALIGNED) + begin // PER_BYTE
    q = address(static + row * N_STATIC + S_PREV_GRAD, S, ALIGNED) + begin // PER_BYTE
    lost = address(static + row * N_STATIC + S_COMPENSATION, P, ALIGNED) + begin
    powers = address(static + row * N_STATIC + S_EXPONENTS, tl.int32, False) + begin // SHARED
    square = tl.zeros((BLOCK // SHARED, SHARED), COMPUTE)
    # A skipped step has nothing to do, nor has a row without a gradient.
    todo = tl.where((run > 0) & (tl.load(per_step + row) != 0), tl.minimum(left, CHUNK), 0)
    todo = todo.to(tl.int32)
    # The loop of a whole chunk, then that of any other: masks break a block's accesses into single elements.
    for MASKED in tl.static_range(2):
        if (todo < CHUNK) == (MASKED == 1):
            for i in tl.range(0, todo if MASKED else CHUNK, BLOCK, num_stages=1 if MASKED else STAGES):
                block = tl.arange(0, BLOCK // SHARED)
                at = block[:, None] * SHARED + tl.arange(0, SHARED)[None, :]
                inside = at < todo - i if MASKED else None
                some = block * SHARED < todo - i if MASKED else None

                # All loads before the first use of one: the block waits for memory once.
                if S == tl.uint8:
                    power = fetch(powers + i // SHARED + block, some)  # one word per block: m, v, n and g, a byte each
                theta = fetch(p + i + at, inside).to(COMPUTE)
                if WEIGHTS == KAHAN:
                    theta += fetch(lost + i + at, inside).to(COMPUTE)
                new = fetch(g + i + at, inside).to(COMPUTE) * c
                g_prev = fetch_codes(q + i // PER_BYTE, at, block, inside, some, PACKED, ALIGNED)
                if PACKED:
                    low, high = fetch_bytes(m + i, at, block, inside, ALIGNED)
                    exp_avg = low
                else:
                    exp_avg = fetch(m + i + at, inside)
                exp_avg_sq = fetch_codes(n + i // PER_BYTE, at, block, inside, some, PACKED, ALIGNED)
                exp_avg_diff = exp_avg
                if not COUPLED:
                    exp_avg_diff = fetch_codes(v + i // PER_BYTE, at, block, inside, some, PACKED, ALIGNED)

                # What remains of m and v is a factor of a block's scale: for each element an instruction less.
                REMAINS: tl.constexpr = S == tl.uint8 and RESTART == 0
                if S == tl.uint8:
                    g_prev = scaled(signed_numbers(g_prev, PACKED), power >> 24, 1.0)
                    if PACKED:
                        exp_avg, exp_avg_sq = six_bit_numbers(low, high, exp_avg_sq)
                    else:
                        exp_avg, exp_avg_sq = signed_numbers(exp_avg, False), root_numbers(exp_avg_sq)
                    exp_avg = scaled(exp_avg, power, 1 - w_m if REMAINS else 1.0)
                    exp_avg_sq = scaled(exp_avg_sq, power >> 16, 1.0)
                    exp_avg_sq *= exp_avg_sq
                    if COUPLED:
                        exp_avg_diff = exp_avg
                    else:
                        remains = 1 - w_v if REMAINS else 1.0
                        exp_avg_diff = signed_numbers(exp_avg_diff, PACKED)
                        if PACKED:
                            exp_avg_diff = (g_prev - scaled(exp_avg_diff, power >> 8, 1.0)) * (remains * per_averaging)
                        else:
                            exp_avg_diff = scaled(exp_avg_diff, power >> 8, remains)
                else:
                    g_prev, exp_avg, exp_avg_sq = g_prev.to(COMPUTE), exp_avg.to(COMPUTE), exp_avg_sq.to(COMPUTE)
                    exp_avg_diff = exp_avg_diff.to(COMPUTE)
                if RESTART > 0:
                    g_prev = tl.where(has_prev > 0, g_prev, 0.0)
                    exp_avg = tl.where(has_prev > 0, exp_avg, 0.0)
                    exp_avg_diff = tl.where(has_prev > 0, exp_avg_diff, 0.0)
                    exp_avg_sq = tl.where(has_prev > 0, exp_avg_sq, 0.0)
                if RESTART == MEASURE:
                    prev_u = y_prev_m * exp_avg - y_prev_grad * g_prev
                    if not COUPLED:
                        prev_u += y_prev_v * exp_avg_diff
                    y = y_theta * theta - quotient(prev_u, y_prev_root * tl.sqrt(exp_avg_sq) + y_prev_eps, S)
                d = new - g_prev
                exp_avg += w_m * (new if REMAINS else new - exp_avg)
                if COUPLED:
                    exp_avg += lookahead * w_v * d
                    u = step_m * exp_avg
                else:
                    exp_avg_diff += w_v * (d if REMAINS else d - exp_avg_diff)
                    u = step_m * exp_avg + step_v * exp_avg_diff
                ahead = new + lookahead * d
                exp_avg_sq += w_n * (ahead * ahead - exp_avg_sq)
                root = tl.sqrt(exp_avg_sq)
                denom = root_n * root + eps
                theta = keep * theta - quotient(u, denom, S)
                if RESTART == MEASURE:
                    y += quotient(y_step * u - y_grad * new, denom, S)
                    square += tl.where(inside, denom * y * y, 0.0) if MASKED else denom * y * y

                words = key
                # In two pairs: Triton compiles no chain of three before 3.4.
                if S == tl.uint8 or (S == tl.bfloat16 or WEIGHTS == STOCHASTIC):
                    words = random_words(key + i // 4, moved, block)
                if WEIGHTS == STOCHASTIC:
                    tl.store(p + i + at, to_bf16(theta, words * OF_WEIGHT), mask=inside)
                else:
                    tl.store(p + i + at, theta.to(P), mask=inside)
                if WEIGHTS == KAHAN:
                    tl.store(lost + i + at, (theta - theta.to(P).to(COMPUTE)).to(P), mask=inside)
                if S == tl.uint8:
                    if PACKED and not COUPLED:
                        exp_avg_diff = new - averaging * exp_avg_diff
                    if MASKED:  # the codes beyond the end are 0
                        exp_avg, exp_avg_diff = tl.where(inside, exp_avg, 0.0), tl.where(inside, exp_avg_diff, 0.0)
                        new = tl.where(inside, new, 0.0)
                    if PACKED:
                        low, high, codes, power = six_bit_codes(exp_avg, root, words)
                        store_bytes(m + i, at, block, low, high, inside, ALIGNED)
                    else:
                        codes, power = signed_codes(exp_avg, words, 0, False)
                        tl.store(m + i + at, codes, mask=inside)
                        codes, power_n = root_codes(root, words)
                        power |= power_n
                    store_codes(n + i // PER_BYTE, at, block, codes, inside, some, PACKED, ALIGNED)
                    if not COUPLED:
                        codes, power_v = signed_codes(exp_avg_diff, words, 1, PACKED)
                        store_codes(v + i // PER_BYTE, at, block, codes, inside, some, PACKED, ALIGNED)
                        power |= power_v
                    codes, power_g = signed_codes(new, words, 3, PACKED)
                    store_codes(q + i // PER_BYTE, at, block, codes, inside, some, PACKED, ALIGNED)
                    tl.store(powers + i // SHARED + block, power | power_g, mask=some)
                else:
                    write(m + i + at, exp_avg, inside, S, words)
                    if not COUPLED:
                        write(v + i + at, exp_avg_diff, inside, S, rotated(words, 8))
                    write(n + i + at, exp_avg_sq, inside, S, rotated(words, 16))
                    write(q + i + at, new, inside, S, rotated(words, 24))
    if RESTART == MEASURE:
        tl.store(squares + chunk, tl.sum(tl.sum(square, 1), 0).to(tl.float64))


@triton.jit
def quotient(x, y, S: tl.constexpr):
    """The ratio to a number that is not negative; for quantized states to a few ulps, in 3 instructions, not 8."""
    if S == tl.uint8:
        inverse_root = tl.rsqrt(y)
        return x * inverse_root * inverse_root
    else:
        return x / y


@triton.jit
def write(at, value, inside, TYPE: tl.constexpr, word):
    if TYPE == tl.bfloat16:
        tl.store(at, to_bf16(value, word), mask=inside)
    else:
        tl.store(at, value, mask=inside)


@triton.jit
def to_bf16(x, word):
    rounded = tl.where(x == x, (x.to(tl.uint32, bitcast=True) + (word & 0xFFFF)) >> 16, 0x7FC0)
    return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit(do_not_specialize=_NUMBERS)
def sum_of_squares(
    static, per_step, partials, rows, first_row, end_row, chunks, first_partial, n_partials,
    G: tl.constexpr, COMPUTE: tl.constexpr, ALIGNED: tl.constexpr, CHECK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Each program adds up the squares of every so many chunks, always in the same order, and counts the non-finite."""
    starts = static + S_NORM_START
    at = tl.arange(0, CHUNK)
    total = tl.zeros((CHUNK,), COMPUTE)
    nonfinite = tl.zeros((CHUNK,), tl.int32)
    chunk = tl.program_id(0).to(tl.int64)
    while chunk < chunks:
        row = find_row(starts, first_row, end_row, chunk)
        begin = (chunk - tl.load(starts + row * N_STATIC)) * CHUNK
        left = tl.load(static + row * N_STATIC + S_NUMEL) - begin
        left = tl.where(tl.load(per_step + row) != 0, left, 0)
        g = address(per_step + row, G, ALIGNED) + begin
        if left >= CHUNK:
            x = tl.load(g + at).to(COMPUTE)
        else:
            x = tl.load(g + at, mask=at < left, other=0.0).to(COMPUTE)
        total += x * x
        if CHECK:
            nonfinite += tl.where(tl.abs(x) < float("inf"), 0, 1)
        chunk += tl.num_programs(0)
    partials += first_partial + tl.program_id(0)
    tl.store(partials, tl.sum(total, 0).to(tl.float64))
    if CHECK:
        tl.store(partials + n_partials, tl.sum(nonfinite, 0).to(tl.float64))
