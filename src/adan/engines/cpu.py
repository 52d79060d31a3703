"""Adan on the CPU in one pass: the tensors of a whole step go to the C of `cpu.c` in one call.

This file checks that memory is what the C takes it for, and makes the table of where it lies.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Iterable
from functools import cache
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype, is_dense, laid_out_as
from adan.grad_norm import measure
from adan.scalars import Scalars, Signals, step_scalars, way_scalars

#: Where the build leaves the library, and the version of the interface that this file speaks.
LIBRARY = str(Path(__file__).with_name("_cpu.so"))
ABI = 4

#: The types of a parameter, its gradient and its states, by their numbers in `cpu.c`.
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3, torch.uint8: 4}
SERVED = {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128}

_dtype = attrgetter("dtype")


class _Loaded(NamedTuple):
    library: ctypes.CDLL | None
    missing: str | None  #: why there is no library


@cache
def _load(path: str) -> _Loaded:
    remedy = "install a C compiler and reinstall adan to have it built"
    try:
        library = ctypes.CDLL(path)
        abi = library.adan_cpu_abi()
    except (OSError, AttributeError):
        return _Loaded(None, f"its C library {path} is not there or cannot be loaded; {remedy}")
    if abi != ABI:
        return _Loaded(None, f"its C library {path} is of version {abi}, not {ABI}; {remedy}")
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.adan_cpu_counts.argtypes = [pointer, count, pointer]
    library.adan_cpu_counts.restype = None
    library.adan_cpu_update.argtypes = [pointer, count, pointer, pointer, ctypes.c_int, pointer]
    library.adan_cpu_sum_of_squares.argtypes = [pointer, count, ctypes.c_int, pointer]
    return _Loaded(library, None)


def _library() -> ctypes.CDLL:
    library, missing = _load(LIBRARY)
    if library is None:
        raise RuntimeError(f"the fused engine of the CPU: {missing}")
    return library


def refuses(param: Tensor) -> str | None:
    """Why this engine cannot serve a parameter; None when it can."""
    missing = _load(LIBRARY).missing
    if missing is not None:
        return missing
    if param.dtype not in SERVED:
        return f"it takes {', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in SERVED))}"
    if param.layout is not torch.strided or not is_dense(param):
        return "its elements do not lie side by side in memory; make it contiguous"
    return None


def update(batches: list[Batch], signals: Signals) -> Tensor | None:
    signals = _measured(batches, signals)
    if signals.skip is not None:
        if float(signals.skip):
            for batch in batches:
                batch.keep_previous()
            return None
        signals = signals._replace(skip=None)

    library = _library()
    rows, coefficients, ways, way = array("q"), array("d"), array("d"), array("d", [0.0])
    fitted = list(map(_fit, batches))  # copies must live until the C has read them
    for batch in fitted:
        _tabulate(library, batch, signals, rows, coefficients, ways)
    threads = torch.get_num_threads()
    tables = (_address(rows), len(rows) // COLUMNS, _address(coefficients), _address(ways) if ways else None)
    if library.adan_cpu_update(*tables, threads, _address(way)):
        raise MemoryError("adan: no memory for the table of a step")
    for batch in batches:
        # Autograd must know that what it may have saved has changed.
        torch.autograd.graph.increment_version(batch.params)
    return torch.tensor(way[0], dtype=torch.float64, device="cpu") if ways else None


def _measured(batches: list[Batch], signals: Signals) -> Signals:
    """The norm to clip by and the decision to skip, in one pass: in fp64 no sum of fp32 squares overflows."""
    clips = any(batch.options.max_grad_norm > 0 for batch in batches)
    if not signals.check_finite and (signals.norm is not None or not clips):
        return signals
    total = sum_of_squares(grad for batch in batches for grad in batch.grads)
    if not math.isfinite(total):
        return measure(batches, signals)
    return signals._replace(norm=torch.tensor(math.sqrt(total), dtype=torch.float64, device="cpu"), check_finite=False)


def sum_of_squares(grads: Iterable[Tensor]) -> float:
    """Σ x² over all elements, accumulated in fp64; the same for every number of threads."""
    dense = [x if is_dense(x) else x.contiguous() for x in map(Tensor.resolve_neg, grads)]
    rows = array("q")
    for x in dense:
        rows.extend((0, x.data_ptr(), *[0] * 8, x.numel(), 0, TYPES[x.dtype], *[0] * 4))
    total = array("d", [0.0])
    if _library().adan_cpu_sum_of_squares(_address(rows), len(dense), torch.get_num_threads(), _address(total)):
        raise MemoryError("adan: no memory for the table of a norm")
    return total[0]


#: The fields of `struct tensor` in `cpu.c`, which is a row of the table.
COLUMNS = 17


def _tabulate(
    library: ctypes.CDLL,
    batch: Batch,
    signals: Signals,
    rows: array[int],
    coefficients: array[float],
    ways: array[float],
) -> None:
    """Append a batch to the table, and a set for each different step count to the coefficients and those of the way."""
    steps = array("q", map(Tensor.data_ptr, batch.steps))
    counts = array("f", bytes(4 * len(steps)))
    library.adan_cpu_counts(_address(steps), len(steps), _address(counts))
    sets: dict[float, int] = {}
    for t in set(counts):
        sets[t] = len(coefficients) // len(Scalars._fields)
        coefficients.extend(map(float, step_scalars(batch.options, signals, t + 1)))
        if batch.options.last_lr is not None:
            ways.extend(map(float, way_scalars(batch.options, t + 1)))

    addresses = [map(Tensor.data_ptr, tensors) if tensors else repeat(0) for tensors in batch.tensors()]
    sizes = map(Tensor.numel, batch.params)
    types = [[TYPES[x.dtype] for x in tensors] for tensors in (batch.params, batch.grads, batch.exp_avgs)]
    columns = (
        *addresses,
        sizes,
        *types,
        repeat(int(batch.draws_weights)),
        batch.streams,
        map(sets.__getitem__, counts),
    )
    rows.extend(chain.from_iterable(zip(*columns)))  # noqa: B905


def _fit(batch: Batch) -> Batch:
    """The batch itself where the C can take its gradients as they are; else with copies of those that it cannot.

    A gradient may lie otherwise than its parameter, and types may differ where a program has set `grad_dtype`, or
    between a consumed gradient and a checkpoint's: then both are read in the type of the arithmetic.
    """
    if _is_plain(batch):
        return batch
    grads, prev_grads = [], list(batch.prev_grads)
    for i, (p, grad) in enumerate(zip(batch.params, batch.grads, strict=True)):
        if batch.prev_scales and batch.steps[i].item() == 0:
            prev_grads[i] = grad  # not read: before the first gradient there is none
        same = grad.dtype == p.dtype and (not batch.prev_scales or prev_grads[i].dtype == p.dtype)
        dtype = p.dtype if same else compute_dtype(p.dtype)
        grads.append(laid_out_as(p, grad, dtype))
        if batch.prev_scales:
            prev_grads[i] = laid_out_as(p, prev_grads[i], dtype)
    return batch._replace(grads=grads, prev_grads=prev_grads)


def _is_plain(batch: Batch) -> bool:
    """Whether all is contiguous and of one type: true of most models."""
    given = batch.params + batch.grads + (batch.prev_grads if batch.prev_scales else [])
    return (
        len(set(map(_dtype, given))) == 1
        and all(map(Tensor.is_contiguous, given))
        and not any(map(Tensor.is_neg, batch.grads))
    )


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]
