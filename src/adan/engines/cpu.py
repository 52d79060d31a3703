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
from adan.scalars import Scalars, Signals, grad_scale, step_scalars

#: Where the build leaves the library, and the version of the interface that this file speaks.
LIBRARY = str(Path(__file__).with_name("_cpu.so"))
ABI = 2

#: The types of a parameter and its gradient, by their numbers in `cpu.c`.
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
SERVED = {*TYPES, torch.complex64, torch.complex128}

_dtype = attrgetter("dtype")
_on_cpu = attrgetter("is_cpu")


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
    library.adan_cpu_update.argtypes = [pointer, count, pointer, ctypes.c_int]
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


def update(batches: list[Batch], signals: Signals) -> None:
    signals = _measured(batches, signals)
    if signals.skip is not None:
        if float(signals.skip):
            for batch in batches:
                batch.keep_previous()
            return
        signals = signals._replace(skip=None)

    library = _library()
    write_back: list[tuple[Tensor, Tensor]] = []
    fitted = [part for batch in batches for part in _fit(batch, signals, write_back)]
    rows, coefficients = array("q"), array("d")
    for batch in fitted:
        _tabulate(library, batch, signals, rows, coefficients)
    threads = torch.get_num_threads()
    if library.adan_cpu_update(_address(rows), len(rows) // COLUMNS, _address(coefficients), threads):
        raise MemoryError("adan: no memory for the table of a step")
    for tensor, value in write_back:
        tensor.copy_(value)
    for batch in batches:
        # Autograd must know that what it may have saved has changed.
        torch.autograd.graph.increment_version(batch.params)


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
        rows.extend((0, x.data_ptr(), 0, 0, 0, 0, 0, 0, x.numel(), TYPES[x.dtype], 0))
    total = array("d", [0.0])
    if _library().adan_cpu_sum_of_squares(_address(rows), len(dense), torch.get_num_threads(), _address(total)):
        raise MemoryError("adan: no memory for the table of a norm")
    return total[0]


#: Of one tensor in the table: eight addresses, the number of elements, of the type, and of the coefficients.
COLUMNS = 11


def _tabulate(
    library: ctypes.CDLL, batch: Batch, signals: Signals, rows: array[int], coefficients: array[float]
) -> None:
    """Append a batch to the table, and to the coefficients a set for each different step count."""
    steps = array("q", map(Tensor.data_ptr, batch.steps))
    counts = array("f", bytes(4 * len(steps)))
    library.adan_cpu_counts(_address(steps), len(steps), _address(counts))
    sets: dict[float, int] = {}
    for t in set(counts):
        sets[t] = len(coefficients) // len(Scalars._fields)
        coefficients.extend(map(float, step_scalars(batch.options, signals, t + 1)))

    columns = [map(Tensor.data_ptr, tensors) for tensors in batch.tensors()[:6]]
    scales = map(Tensor.data_ptr, batch.prev_scales) if batch.prev_scales else repeat(0)
    sizes = map(Tensor.numel, batch.params)
    types = [TYPES[p.dtype] for p in batch.params]
    rows.extend(chain.from_iterable(zip(*columns, steps, scales, sizes, types, map(sets.__getitem__, counts))))  # noqa: B905


def _fit(batch: Batch, signals: Signals, write_back: list[tuple[Tensor, Tensor]]) -> list[Batch]:
    """The batch itself where the C can take it as it is; else with copies, of those tensors that need one.

    A gradient may lie otherwise than its parameter, a state too once a model has become channels_last, and types may
    differ where a program has set `grad_dtype`, or between a consumed gradient and a checkpoint's.
    """
    if not all(map(_on_cpu, chain(batch.exp_avgs, batch.steps))):
        raise RuntimeError(
            "a parameter is on the CPU and its state is not; after model.cpu(), move the state as well: "
            "optimizer.load_state_dict(optimizer.state_dict())"
        )
    if _is_plain(batch):
        return [batch]
    alike, wide = Batch.empty(batch.options), Batch.empty(batch.options)

    def own(tensor: Tensor, param: Tensor, dtype: torch.dtype) -> Tensor:
        copy = laid_out_as(param, tensor, dtype)
        if copy is not tensor:
            write_back.append((tensor, copy))
        return copy

    for i, (p, grad, prev, step) in enumerate(
        zip(batch.params, batch.grads, batch.prev_grads, batch.steps, strict=True)
    ):
        prev_scale = batch.prev_scales[i] if batch.prev_scales else None
        if prev_scale is not None and step.item() == 0:
            prev = grad  # not read: before the first gradient there is none
        same = grad.dtype == p.dtype and (prev_scale is None or prev.dtype == p.dtype)
        into, compute = alike if same else wide, compute_dtype(p.dtype)
        dtype = p.dtype if same else compute
        into.params.append(own(p, p, dtype))
        into.grads.append(laid_out_as(p, grad, dtype))
        into.exp_avgs.append(own(batch.exp_avgs[i], p, compute))
        into.exp_avg_diffs.append(own(batch.exp_avg_diffs[i], p, compute))
        into.exp_avg_sqs.append(own(batch.exp_avg_sqs[i], p, compute))
        into.steps.append(step)
        if prev_scale is None:
            into.prev_grads.append(own(prev, p, compute))
        elif same:
            into.prev_grads.append(laid_out_as(p, prev, dtype))
            into.prev_scales.append(prev_scale)
        else:
            into.prev_grads.append(laid_out_as(p, prev.to(compute) * prev_scale, compute))
            write_back.append((prev_scale, torch.as_tensor(grad_scale(batch.options, signals))))
    return [part for part in (alike, wide) if part.params]


def _is_plain(batch: Batch) -> bool:
    """Whether all is contiguous and of one type, the states of the type of the arithmetic: true of most models."""
    dtype = batch.params[0].dtype
    given = batch.params + batch.grads
    states = batch.exp_avgs + batch.exp_avg_diffs + batch.exp_avg_sqs
    (given if batch.prev_scales else states).extend(batch.prev_grads)
    return (
        set(map(_dtype, given)) == {dtype}
        and set(map(_dtype, states)) == {compute_dtype(dtype)}
        and all(map(Tensor.is_contiguous, chain(given, states)))
        and not any(map(Tensor.is_neg, batch.grads))
    )


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]
