"""Adan on a GPU: Triton kernels over all tensors of all groups at once, from a table of addresses.

A step is one small copy to the device and two launches: the coefficients of every tensor, then the update. Clipping
adds a third, the sum of squares. Nothing is read back, so a CUDA graph can hold a step.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from array import array
from collections import defaultdict
from itertools import accumulate, chain
from operator import attrgetter, is_, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype, is_dense, laid_out_as
from adan.scalars import Options, Signals


class Tile(NamedTuple):
    """Elements of a chunk, which one program updates `block` by `block`."""

    chunk: int
    block: int
    warps: int
    registers: int | None = None  #: at most, of a thread; None: as many as the compiler takes


#: What serves where nothing below is said: fp64.
TILE = Tile(1024, 1024, 4)
#: By the type of the states, whether they are coupled, and whether the way of a step is measured. Of about ten each
#: tried by `benchmarks/gpu.py --tune` on an H200 with 355 M parameters; registers are limited to what still compiles
#: without spilling, because what counts is how many loads are under way. Milliseconds, and without that limit:
TILES = {
    (torch.float32, False, False): Tile(1024, 1024, 8, registers=64),  # 3.91, 3.92; Tile(1024, 1024, 4) 3.95
    (torch.float32, True, False): Tile(1024, 1024, 8, registers=64),
    (torch.float32, False, True): Tile(2048, 1024, 8, registers=80),  # 4.03; Tile(1024, 1024, 4) without 4.99
    (torch.float32, True, True): Tile(2048, 1024, 8, registers=80),  # 3.37; Tile(1024, 1024, 4) without 3.73
    (torch.bfloat16, False, False): Tile(2048, 512, 4),
    (torch.bfloat16, True, False): Tile(2048, 512, 4),
    (torch.bfloat16, False, True): Tile(2048, 512, 4),  # 3.08
    (torch.bfloat16, True, True): Tile(2048, 512, 4),
    (torch.uint8, False, False): Tile(1024, 512, 2, registers=72),  # 2.26, 2.65
    (torch.uint8, True, False): Tile(1024, 512, 2, registers=64),  # 2.00
    (torch.uint8, False, True): Tile(4096, 512, 4, registers=96),  # 3.29; Tile(1024, 512, 4) without 4.88
    (torch.uint8, True, True): Tile(4096, 512, 4, registers=96),
}

#: Elements of a chunk of squares, and how many programs add them up: eight on each of an H200's 132 multiprocessors.
NORM_CHUNK, NORM_PROGRAMS = 4096, 1056

#: Tensors whose coefficients one program computes.
LANES = 128

_DTYPE = attrgetter("dtype")


class Kind(NamedTuple):
    """What a kernel is compiled for."""

    param: torch.dtype
    grad: torch.dtype
    prev_grad: torch.dtype
    state: torch.dtype
    coupled: bool
    consume: bool
    weights: int  #: how a parameter of half precision is rounded: NEAREST, STOCHASTIC or KAHAN


_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128)

#: Compiled kernels, by what they were compiled for.
_binaries: dict[Any, Any] = {}

#: What captured steps read again at every replay.
_captured: list[Tensor] = []
#: Host buffers for the next steps to be captured: none may be allocated during a capture.
_spare: list[Tensor] = []
MOST_SPARES = 8


def refuses(param: Tensor) -> str | None:
    """Why this engine cannot serve a parameter; None when it can."""
    if param.dtype not in _TYPES:
        return f"it is made for {', '.join(map(str, _TYPES))}"
    if not is_dense(param):
        return "its elements do not fill a stretch of memory"
    return _missing()


@functools.cache
def _missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "Triton is not installed; it comes with torch for CUDA"


@functools.cache
def _kernels() -> Any:
    from adan.engines import kernels

    return kernels


def update(batches: list[Batch], signals: Signals) -> Tensor | None:
    device = batches[0].params[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _update(batches, signals, device)
    return _update(batches, signals, device)


class Launch(NamedTuple):
    """Rows of the tables that one kernel takes: all of one kind, and aligned to 16 bytes or not."""

    first: int
    end: int
    chunks: int
    norm_chunks: int
    kind: Kind
    aligned: bool
    tile: Tile


class Layout(NamedTuple):
    """What does not change from step to step: where parameters and states lie, in which order kernels take them."""

    caches: list[dict[str, Any]]
    key: list[object]
    watched: list[Tensor]
    addresses: list[int]
    prev_addresses: list[int]
    contiguous: bool
    single: list[int]
    order: list[int]
    launches: list[Launch]
    table: Tensor
    sent: dict[tuple[int, bytes], Tensor]  #: what the last step sent of what moves

    def stands(self) -> bool:
        """Whether states are where they were: `x.data = …` gives a tensor other memory. `adan.kept` asks parameters."""
        return list(map(Tensor.data_ptr, self.watched)) == self.addresses


def _update(batches: list[Batch], signals: Signals, device: torch.device) -> Tensor | None:
    k = _kernels()
    layout = _layout(batches, device)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if capturing:
        _captured.append(layout.table)
    rows, order, launches = len(layout.order), layout.order, layout.launches
    # Bound to a name because a gradient that had to be laid out anew must outlive the launches that read it.
    grads = batches[0].grads if len(batches) == 1 else [grad for batch in batches for grad in batch.grads]
    # A lazy negation comes with gaps, as it is the imaginary part of a conjugate; one element alone has none.
    negated = any(grads[i].is_neg() for i in layout.single)
    if negated or not (layout.contiguous and all(map(Tensor.is_contiguous, grads))):
        grads = [
            laid_out_as(p, grad, grad.dtype) for p, grad in zip(chain(*(b.params for b in batches)), grads, strict=True)
        ]
    moving = list(map(Tensor.data_ptr, grads))
    if layout.prev_addresses:
        aligned = functools.reduce(or_, moving) % 16 == 0
        moving += layout.prev_addresses
    else:
        moving += [q.data_ptr() for batch in batches for q in batch.prev_grads]
        aligned = functools.reduce(or_, moving) % 16 == 0
    if len(launches) > 1:
        moving = [moving[i] for i in order] + [moving[rows + i] for i in order]

    hyper = [x for batch in batches for x in _options_row(batch.options)]
    # The allocator often hands out the same memory for the next gradients: then all is as it was.
    data = array("q", moving).tobytes() + array("d", hyper).tobytes()
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    moving_table = None if capturing else layout.sent.get((stream, data))
    if moving_table is None:
        moving_table = _to_device(data, device)
        layout.sent.clear()
        if not capturing:  # a graph's memory is its own
            layout.sent[stream, data] = moving_table
    for i, batch in enumerate(batches):
        for column, lr in ((0, batch.options.lr), (13, batch.options.last_lr)):
            if isinstance(lr, Tensor):
                moving_table[2 * rows + i * k.OPTIONS.value + column].view(torch.float64).copy_(lr)

    clips = any(batch.options.max_grad_norm > 0 for batch in batches)
    measure = signals.check_finite or (clips and signals.norm is None)
    programs = [min(launch.norm_chunks, NORM_PROGRAMS) if measure else 0 for launch in launches]
    n_partials = sum(programs)
    coefs_size = rows * k.COEFS.value * 3 // 2  # in fp64, then in fp32
    coefs = torch.empty(coefs_size + 2 * n_partials, dtype=torch.float64, device=device)
    partials = coefs[coefs_size:] if measure else coefs

    for launch, count, end in zip(launches, programs, accumulate(programs), strict=True):
        if count:
            grad_type = launch.kind.grad
            k.sum_of_squares[(count,)](
                layout.table, moving_table, partials[end - count :], rows, launch.first, launch.end,
                launch.norm_chunks, n_partials, _triton_type(grad_type), _triton_type(compute_dtype(grad_type)),
                aligned, signals.check_finite, NORM_CHUNK,
            )  # fmt: skip

    given = tuple(coefs if x is None else x for x in signals[:3])
    norm = 0 if not clips else 2 if signals.norm is None else 1
    measured = batches[0].options.last_lr is not None
    restart = (k.MEASURE if measured else k.FORGET).value if signals.forget else 0
    flags = (norm, signals.grad_scale is not None, signals.skip is not None, signals.check_finite, restart, LANES)
    arguments = (layout.table, moving_table, coefs, partials, *given, rows, n_partials)
    _launch(k.step_scalars, -(-rows // LANES), arguments, flags, {"num_warps": 4}, signals[:3] == (None, None, None))

    ends = list(accumulate(launch.chunks for launch in launches))
    ways = torch.empty(ends[-1], dtype=torch.float64, device=device) if measured else None
    for launch, end in zip(launches, ends, strict=True):
        if launch.chunks:
            param, *types, coupled, consume, weights = launch.kind
            on_device = map(_triton_type, (param, *types, compute_dtype(param)))
            chunk, block, warps, registers = launch.tile
            constants = (*on_device, coupled, consume, weights, restart, aligned and launch.aligned, chunk, block)
            tables = (layout.table, moving_table, coefs, coefs if ways is None else ways)
            numbers = (rows, launch.first, launch.end, end - launch.chunks)
            limits = {"num_warps": warps, **({} if registers is None else {"maxnreg": registers})}
            _launch(k.update, launch.chunks, (*tables, *numbers), constants, limits)
    for batch in batches:
        # Autograd must know that what it may have saved has changed.
        torch.autograd.graph.increment_version(batch.params)
    return None if ways is None else ways.sum()


def _launch(
    kernel: Any,
    programs: int,
    arguments: tuple[Any, ...],
    constants: tuple[Any, ...],
    limits: dict[str, int],
    known: bool = True,
) -> None:
    """Launch a kernel, from the second time on without Triton's search for the right binary (33 µs a launch).

    The binary depends on the constants, and on the pointers only by their type and their alignment to 16 bytes: `known`
    says that these are always the same.
    """
    key = (
        (kernel, torch.cuda.current_device(), constants, *limits.values())
        if known and _binaries_take_constants()
        else None
    )
    binary = _binaries.get(key)
    if binary is None:
        binary = kernel[(programs,)](*arguments, *constants, **limits)
        if key is not None and binary is not None:  # the interpreter has none
            _binaries[key] = binary
    else:
        binary[(programs, 1, 1)](*arguments, *constants)


@functools.cache
def _binaries_take_constants() -> bool:
    import triton

    major, minor = (int(number) for number in triton.__version__.split(".")[:2])
    return torch.cuda.is_available() and (major, minor) >= (3, 3)


def _layout(batches: list[Batch], device: torch.device) -> Layout:
    """The layout of these batches, that of the last step if everything is where it was then."""
    measured = batches[0].options.last_lr is not None
    key: list[object] = [TILE, *TILES.values(), NORM_CHUNK, measured]
    for batch in batches:
        key += map(_DTYPE, batch.grads)
        if batch.prev_scales:
            key += map(_DTYPE, batch.prev_grads)
    layout: Layout | None = batches[0].cache.get("layout")
    caches = [batch.cache for batch in batches]
    same = layout is not None and len(layout.caches) == len(caches) and all(map(is_, layout.caches, caches))
    if layout is not None and same and layout.key == key and layout.stands():
        return layout

    params, grads, exp_avgs, exp_avg_diffs, exp_avg_sqs, prev_grads, steps, prev_scales, exponents, compensations = (
        _column(batches, i) for i in range(10)
    )
    stays = [params, exp_avgs, exp_avg_diffs, exp_avg_sqs, steps, prev_scales, exponents, compensations]
    for x in chain(*stays):
        if x is not None and x.device != device:
            raise RuntimeError(f"a tensor of shape {tuple(x.shape)} is on {x.device}, but its parameter on {device}")
    addresses = [[0 if x is None else x.data_ptr() for x in tensors] for tensors in stays]
    prev_addresses = [q.data_ptr() for q in prev_grads]
    groups = [i for i, batch in enumerate(batches) for _ in batch.params]
    shares: dict[tuple[Kind, bool], list[int]] = defaultdict(list)
    for i, p in enumerate(params):
        # A previous gradient that is consumed was a gradient, and is as aligned as gradients are.
        aligned = all(column[i] % 16 == 0 for column in (*addresses[:4], addresses[7], prev_addresses))
        flags = (
            exp_avg_diffs[i] is None,
            prev_scales[i] is not None,
            _rounding(batches[groups[i]], compensations[i]),
        )
        shares[Kind(p.dtype, grads[i].dtype, prev_grads[i].dtype, exp_avgs[i].dtype, *flags), aligned].append(i)
    numels = [p.numel() for p in params]
    starts: list[int] = []
    norm_starts: list[int] = []
    launches: list[Launch] = []
    for (kind, aligned), members in shares.items():
        tile = TILES.get((kind.state, kind.coupled, measured), TILE)
        first, end = len(starts), len(starts) + len(members)
        chunks = list(accumulate((-(-numels[i] // tile.chunk) for i in members), initial=0))
        norm_chunks = list(accumulate((-(-numels[i] // NORM_CHUNK) for i in members), initial=0))
        launches.append(Launch(first, end, chunks.pop(), norm_chunks.pop(), kind, aligned, tile))
        starts += chunks
        norm_starts += norm_chunks
    order = list(chain.from_iterable(shares.values()))
    streams = list(chain.from_iterable(batch.streams for batch in batches))
    table = [column[i] for column in (*addresses, streams, numels, groups) for i in order] + starts + norm_starts
    on_device = _to_device(array("q", table).tobytes(), device)
    contiguous = all(map(Tensor.is_contiguous, params))
    if any(launch.kind.consume for launch in launches):
        prev_addresses = []  # they are others at every step
    single = [i for i, count in enumerate(numels) if count == 1]
    # Of the states one is watched: who moves a parameter's states to other memory moves them all.
    layout = Layout(
        caches, key, exp_avgs, addresses[1], prev_addresses, contiguous, single, order, launches, on_device, {}
    )
    batches[0].cache["layout"] = layout
    return layout


def _column(batches: list[Batch], index: int) -> list[Any]:
    """One list of all batches; None where a batch has no such thing."""
    columns: Any = ((batch.tensors()[index] or [None] * len(batch.params)) for batch in batches)
    return list(chain.from_iterable(columns))


def _rounding(batch: Batch, compensation: Tensor | None) -> int:
    k = _kernels()
    if compensation is not None:
        return int(k.KAHAN.value)
    return int((k.STOCHASTIC if batch.draws_weights else k.NEAREST).value)


def _options_row(options: Options) -> list[float]:
    """In the order of `kernels.step_scalars`; learning rates on the device are copied in there."""
    lr = math.nan if isinstance(options.lr, Tensor) else options.lr
    limits = (options.eps, options.weight_decay, options.max_grad_norm)
    flags = (options.no_prox, options.bias_correction, options.maximize)
    logs = (math.log(b) if b > 0 else -math.inf for b in options.betas)
    last_lr = math.nan if isinstance(options.last_lr, Tensor) else options.last_lr or 0.0
    return [lr, *limits, *flags, *options.betas, *logs, last_lr, options.share]


def _to_device(data: bytes, device: torch.device) -> Tensor:
    """64-bit words on the device, by a transfer that waits for nothing."""
    words = torch.frombuffer(bytearray(data), dtype=torch.int64)
    return _staging(len(words), device).copy_(words).to(device, non_blocking=True)


def _staging(size: int, device: torch.device) -> Tensor:
    if device.type != "cuda":  # Triton's interpreter
        return torch.empty(size, dtype=torch.int64, device="cpu")
    if torch.cuda.is_current_stream_capturing():
        fitting = [spare for spare in _spare if spare.numel() >= size]
        if not fitting:
            raise RuntimeError("run a step of this optimizer before capturing one in a CUDA graph")
        _spare[:] = [spare for spare in _spare if spare is not fitting[0]]
        _captured.append(fitting[0])
        return fitting[0][:size]
    if len(_spare) < MOST_SPARES or _spare[0].numel() < size:
        _spare[:] = [torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=True) for _ in range(MOST_SPARES)]
    # The allocator keeps this buffer from being reused until the copy from it is done.
    return torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=True)


@functools.cache
def _triton_type(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return getattr(tl, str(dtype).removeprefix("torch."))
