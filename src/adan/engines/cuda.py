"""Adan on a GPU: Triton kernels over all tensors of all groups at once, from tables of addresses.

A step is one small copy to the device and two launches: the coefficients of every tensor, then the update. Clipping
adds a third, the sum of squares. Nothing is read back, so a CUDA graph can hold a step.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
from array import array
from collections import defaultdict
from itertools import accumulate, chain, pairwise
from operator import or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan import lowbit
from adan.columns import Columns, addresses, compute_dtype, is_laid_out_as, laid_out_as
from adan.engines import FusedEngine, Memo, slots
from adan.scalars import Options, Signals


class Tile(NamedTuple):
    """Elements of a chunk, which one program updates `block` by `block`."""

    chunk: int
    block: int
    warps: int
    registers: int | None = None  #: at most, per thread; None: as many as the compiler takes
    stages: int = 1  #: with more than one, the blocks that follow are on their way to shared memory


#: By the type or format of the states, whether they are coupled, and whether the displacement is measured. Of ten each
#: tried by `benchmarks/gpu.py --tune` on an H200 with 355 M parameters; registers are limited to what still compiles
#: without spilling, because what counts is how many loads are in flight. Milliseconds, and without that limit:
TILES: dict[tuple[torch.dtype | str, bool, bool], Tile] = {
    (torch.float32, False, False): Tile(1024, 1024, 8, registers=64),  # 3.91, 3.92; Tile(1024, 1024, 4) 3.95
    (torch.float32, True, False): Tile(1024, 1024, 8, registers=64),
    (torch.float32, False, True): Tile(2048, 1024, 8, registers=80),  # 4.03; Tile(1024, 1024, 4) without 4.99
    (torch.float32, True, True): Tile(2048, 1024, 8, registers=80),  # 3.37; Tile(1024, 1024, 4) without 3.73
    (torch.bfloat16, False, False): Tile(2048, 512, 4),
    (torch.bfloat16, True, False): Tile(2048, 512, 4),
    (torch.bfloat16, False, True): Tile(2048, 512, 4),  # 3.08
    (torch.bfloat16, True, True): Tile(2048, 512, 4),
    ("8bit", False, False): Tile(1024, 1024, 4, registers=64),  # 1.93; Tile(4096, 512, 2, 72, stages=3) 2.03
    ("8bit", True, False): Tile(4096, 1024, 4, registers=64, stages=3),  # 1.73; Tile(1024, 1024, 4, 64) 1.74
    ("8bit", False, True): Tile(4096, 512, 2, registers=96, stages=3),  # 2.28; with one stage 2.56
    ("8bit", True, True): Tile(4096, 512, 2, registers=96, stages=3),
    ("4bit", False, False): Tile(8192, 1024, 4, registers=72, stages=3),  # 1.65; Tile(1024, 512, 2, 72) 1.72
    ("4bit", True, False): Tile(4096, 1024, 4, registers=64, stages=3),  # 1.54; Tile(1024, 512, 2, 64) 1.58
    ("4bit", False, True): Tile(4096, 512, 2, registers=96, stages=3),  # 2.21; with one stage 2.41
    ("4bit", True, True): Tile(4096, 512, 2, registers=96, stages=3),
}

#: Tensors whose coefficients one program computes.
LANES = 128

#: Host buffers that each optimizer holds ready for captures: none may be allocated during one.
SPARES = 4

#: Per-step tables to remember: an allocator that hands out memory in turns makes a few.
MOST_SENT = 4


class Kind(NamedTuple):
    """The types and the form that a kernel is compiled for."""

    param: torch.dtype
    grad: torch.dtype
    state: torch.dtype
    quantized: str | None  #: "8bit", "4bit" or None
    coupled: bool
    rounding: int  #: how a parameter of half precision is rounded: NEAREST, STOCHASTIC or KAHAN


class Launch(NamedTuple):
    """Rows of the tables that one kernel takes: all of one kind, and aligned to 16 bytes or not."""

    first: int
    end: int
    chunks: int
    norm_chunks: int
    kind: Kind
    types: list[Any]  #: Triton's, of the parameter, the gradient, the states and the arithmetic
    norm_types: list[Any]  #: of the gradient, and of the arithmetic on it
    aligned: bool
    tile: Tile


class Tables(NamedTuple):
    """Addresses of parameters and states, and the order in which kernels process them; reused while a plan holds."""

    static: Tensor
    launches: list[Launch]
    order: list[int]  #: the row of `Columns` for each row of the tables
    fits: bool  #: whether gradients are laid out as their parameters
    spares: list[Tensor]
    sent: dict[tuple[int, bytes], tuple[Tensor, bool]]  #: recent per-step tables, by their streams and contents
    binaries: dict[Any, Any]  #: compiled kernels, by all that may change between two launches


class Cuda(FusedEngine):
    name = "cuda"
    device_type = "cuda"
    forgets = counts_on_device = True

    tiles = TILES
    tile = Tile(1024, 1024, 4)  #: where there is no other, as for fp64
    norm_chunk = 4096  #: elements of a chunk of squares
    norm_programs = 1056  #: how many programs add them up: eight on each of an H200's 132 multiprocessors

    def missing(self) -> str | None:
        return None if _has_triton() else "Triton is not installed; it is bundled with torch for CUDA"

    def update(self, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
        device = columns.param[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.update(columns, memo, signals)
        k = _kernels()
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if memo.tables is None:
            if capturing:
                remedy = "run one with the same parameters and options before the capture"
                raise RuntimeError(f"this step() is being captured in a CUDA graph: {remedy}")
            memo.tables = self._tables(columns, device)
        tables: Tables = memo.tables
        rows, launches = len(tables.order), tables.launches
        grads = columns.grad
        if not tables.fits:  # copies must outlive the launches that read them
            pairs = zip(columns.param, grads, strict=True)
            grads = [None if grad is None else laid_out_as(p, grad, grad.dtype) for p, grad in pairs]
        per_step, aligned = self._per_step_table(columns, grads, memo, device, capturing)

        clips = columns.clips()
        measures = columns.options[0].last_lr is not None
        measure_norm = signals.check_finite or (clips and signals.norm is None)
        programs = [min(launch.norm_chunks, self.norm_programs) if measure_norm else 0 for launch in launches]
        n_partials = sum(programs)
        coefs_size = rows * k.N_COEFS.value * 3 // 2  # in fp64, then in fp32
        coefs = torch.empty(coefs_size + 2 * n_partials, dtype=torch.float64, device=device)
        partials = coefs[coefs_size:] if measure_norm else coefs
        pointers: tuple[Tensor, ...] = (tables.static, per_step, partials)
        for launch, count, end in zip(launches, programs, accumulate(programs), strict=True):
            if count:
                numbers: tuple[int, ...] = (rows, launch.first, launch.end, launch.norm_chunks, end - count, n_partials)
                constants = (*launch.norm_types, aligned, signals.check_finite, self.norm_chunk)
                key: Any = ("norm", launch.first, aligned, signals.check_finite)
                _launch(k.sum_of_squares, count, pointers, numbers, constants, {}, tables.binaries, key)

        norm = 0 if not clips else 2 if signals.norm is None else 1
        restart = 0 if not signals.forget else (k.MEASURE if measures else k.FORGET).value
        on_device = (signals.norm, signals.grad_scale, signals.skip)
        pointers = (tables.static, per_step, coefs, partials, *(coefs if x is None else x for x in on_device))
        flags = (norm, signals.grad_scale is not None, signals.skip is not None, signals.check_finite, restart, LANES)
        key = ("scalars", norm, signals.check_finite) if on_device == (None, None, None) else None
        _launch(k.step_scalars, -(-rows // LANES), pointers, (rows, n_partials), flags, {}, tables.binaries, key)

        ends = list(accumulate(launch.chunks for launch in launches))
        squares = torch.empty(ends[-1], dtype=torch.float64, device=device) if measures else None
        for launch, end in zip(launches, ends, strict=True):
            if launch.chunks:
                kind, tile = launch.kind, launch.tile
                form = (kind.quantized == "4bit", kind.coupled, kind.rounding, restart)
                pointers = (tables.static, per_step, coefs, coefs if squares is None else squares)
                numbers = (rows, end - launch.chunks)
                limits = {"num_warps": tile.warps} | ({} if tile.registers is None else {"maxnreg": tile.registers})
                constants = (*launch.types, *form, aligned and launch.aligned, tile.chunk, tile.block, tile.stages)
                key = ("update", launch.first, aligned)
                _launch(k.update, launch.chunks, pointers, numbers, constants, limits, tables.binaries, key)
        # Autograd must know that what it may have saved has changed.
        torch.autograd.graph.increment_version(columns.param)
        return None if squares is None else squares.sum()

    def _per_step_table(
        self, columns: Columns, grads: list[Any], memo: Memo, device: torch.device, capturing: bool
    ) -> tuple[Tensor, bool]:
        """A table of the gradients' addresses and the options; and whether those are aligned to 16 bytes."""
        tables: Tables = memo.tables
        places = addresses("grad", grads)
        if len(tables.launches) > 1:
            places = [places[i] for i in tables.order]
        words = array("q", places)
        numbers = array("d", chain.from_iterable(map(_options_row, columns.options)))
        data = words.tobytes() + numbers.tobytes()
        if capturing:  # a graph has memory of its own, and copies from a host buffer that nothing else may use
            if not tables.spares:
                captured = f"this step() was captured in {SPARES} CUDA graphs without a step between them"
                raise RuntimeError(f"{captured}: run one before the next capture")
            staging = tables.spares.pop()
            memo.captured += [tables.static, staging]
            table, aligned = _upload(data, device, staging), functools.reduce(or_, places) % 16 == 0
        else:
            # The allocator often hands out the same memory for the next gradients: then the table is as it was.
            stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
            if (stream, data) not in tables.sent:
                if len(tables.sent) == MOST_SENT:
                    tables.sent.clear()
                tables.sent[stream, data] = _upload(data, device), functools.reduce(or_, places) % 16 == 0
            table, aligned = tables.sent[stream, data]
            while memo.capturable and len(tables.spares) < SPARES:
                tables.spares.append(_staging(len(data), device))
        for i, options in enumerate(columns.options):
            for name, value in zip(options._fields, options, strict=True):
                if isinstance(value, Tensor):
                    at = len(words) + i * len(slots.OPTIONS) + slots.OPTIONS.index(name)
                    table[at].view(torch.float64).copy_(value)
        return table, aligned

    def _tables(self, columns: Columns, device: torch.device) -> Tables:
        static: dict[str, list[int]] = {}
        for name in slots.ADDRESSED:
            tensors = getattr(columns, name)
            for x in tensors:
                if x is not None and x.device != device:
                    which = f"a {name} of shape {tuple(x.shape)} is on {x.device}, its parameter on {device}"
                    raise RuntimeError(f"{which}: move it there in optimizer.state[parameter]")
            static[name] = addresses(name, tensors)
        vectors = ("param", "exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad", "compensation")
        by_launch: dict[tuple[Kind, bool], list[int]] = defaultdict(list)
        for i in range(len(columns.param)):
            aligned = all(static[name][i] % 16 == 0 for name in vectors)
            by_launch[_kind(columns, i), aligned].append(i)
        static["numel"] = numels = [p.numel() for p in columns.param]
        static["group"], static["rng_offset"] = columns.group, columns.rng_offset
        order = list(chain.from_iterable(by_launch.values()))
        launches: list[Launch] = []
        starts: list[int] = []
        norm_starts: list[int] = []
        chunk_rows = array("i")
        measures = columns.options[0].last_lr is not None
        for (kind, aligned), rows in by_launch.items():
            tile = self.tiles.get((kind.quantized or kind.state, kind.coupled, measures), self.tile)
            chunks = list(accumulate((-(-numels[i] // tile.chunk) for i in rows), initial=0))
            norm_chunks = list(accumulate((-(-numels[i] // self.norm_chunk) for i in rows), initial=0))
            first, first_chunk = len(starts), len(chunk_rows)
            for row, (begin, end) in enumerate(pairwise(chunks), first):
                chunk_rows += array("i", [row]) * (end - begin)
            ends = chunks.pop(), norm_chunks.pop()
            starts += [first_chunk + chunk for chunk in chunks]
            norm_starts += norm_chunks
            types = kind.param, kind.grad, kind.state, compute_dtype(kind.param), kind.grad, compute_dtype(kind.grad)
            all_types = [getattr(_kernels().tl, str(x).removeprefix("torch.")) for x in types]
            launches.append(Launch(first, len(starts), *ends, kind, all_types[:4], all_types[4:], aligned, tile))
        in_order = {name: [column[i] for i in order] for name, column in static.items()}
        in_order |= {"start": starts, "norm_start": norm_starts}
        words = array("q", chain.from_iterable(zip(*map(in_order.__getitem__, slots.STATIC), strict=True)))
        if len(chunk_rows) % 2:
            chunk_rows.append(0)
        fits = all(map(is_laid_out_as, columns.param, columns.like_grads()))
        return Tables(_upload(words.tobytes() + chunk_rows.tobytes(), device), launches, order, fits, [], {}, {})


def _kind(columns: Columns, i: int) -> Kind:
    k, (m, n) = _kernels(), (columns.exp_avg[i], columns.exp_avg_sq[i])
    rounding = k.STOCHASTIC if columns.rounds_stochastically(i) else k.NEAREST
    rounding = rounding if columns.compensation[i] is None else k.KAHAN
    grad = columns.param[i] if columns.grad[i] is None else columns.grad[i]
    quantized = lowbit.format_of(m, n)
    coupled = columns.exp_avg_diff[i] is None
    return Kind(columns.param[i].dtype, grad.dtype, m.dtype, quantized, coupled, int(rounding.value))


def _options_row(options: Options) -> list[float]:
    """The options of a group, in the order of their slots; what is on the device is copied in later."""
    values = options._asdict()
    for i, b in enumerate(options.betas, 1):
        values[f"b{i}"], values[f"log_b{i}"] = b, math.log(b) if b > 0 else -math.inf
    values["last_lr"] = 0.0 if options.last_lr is None else options.last_lr
    row = [values[name] for name in slots.OPTIONS]
    return [math.nan if isinstance(x, Tensor) else x for x in row]


def _launch(
    kernel: Any, programs: int, pointers: tuple[Tensor, ...], numbers: tuple[int, ...], constants: tuple[Any, ...],
    limits: dict[str, int], binaries: dict[Any, Any], key: Any,
) -> None:  # fmt: skip
    """Launch a kernel, from the second time on without Triton's search for the right binary (33 µs per launch): equal
    keys must mean the same constants, types of pointers and alignments to 16 bytes. Addresses rather than tensors save
    it from asking the driver about each.
    """
    binary = binaries.get(key)
    if binary is None:
        binary = kernel[(programs,)](*pointers, *numbers, *constants, **limits)
        if key is not None and _binaries_take_constants():
            binaries[key] = binary
    else:
        binary[(programs, 1, 1)](*map(Tensor.data_ptr, pointers), *numbers, *constants)


@functools.cache
def _binaries_take_constants() -> bool:
    import triton

    major, minor = (int(number) for number in triton.__version__.split(".")[:2])
    return torch.cuda.is_available() and (major, minor) >= (3, 3)


def _upload(data: bytes, device: torch.device, staging: Tensor | None = None) -> Tensor:
    """Copy 64-bit words to the device without waiting."""
    staging = _staging(len(data), device) if staging is None else staging
    ctypes.memmove(staging.data_ptr(), data, len(data))
    return staging.to(device, non_blocking=True)


def _staging(nbytes: int, device: torch.device) -> Tensor:
    """A host buffer that the device can copy from; PyTorch does not reuse it before a copy from it is done."""
    return torch.empty(nbytes // 8, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> Any:
    from adan.engines import kernels

    return kernels
