"""Adan on the CPU in one pass: one call of `cpu.c` updates all tensors of a step.

This file makes sure that memory is what the C takes it for, and fills the table of where it is.
"""

from __future__ import annotations

import ctypes
import math
import sys
from array import array
from collections.abc import Iterable
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan import lowbit
from adan.columns import Columns, addresses, compute_dtype, is_laid_out_as, laid_out_as
from adan.engines import FusedEngine, Memo
from adan.grad_norm import measure
from adan.scalars import Displacement, Scalars, Signals, displacement_scalars, replaced, step_scalars

#: Where the build leaves the library.
LIBRARY = str(Path(__file__).with_name("_cpu.so"))

#: The fields of `struct tensor` in `cpu.c`, a row of the table: addresses, then numbers.
ADDRESSES = Columns._fields[Columns._fields.index("param") :]
FIELDS = (*ADDRESSES, "size", "type", "grad_type", "state_type", "stochastic", "rng_offset", "cycle", "scalars")

#: What the library must say of itself: the same fields and the same codes.
_ALL_CODES = (lowbit.SIGNED, lowbit.ROOT, lowbit.SIGNED6, lowbit.ROOT6, lowbit.SIGNED4)
_CODES = [x for code in _ALL_CODES for x in (code.shift, code.base)]
_WORDS = (*lowbit.SPREAD, lowbit.ADVANCE, lowbit.ADVANCE_CYCLE, lowbit.OF_WEIGHT)
_CONSTANTS = (*_CODES, lowbit.BLOCK, *map(hex, _WORDS))
_PARTS = {"tensor": FIELDS, "scalars": Scalars._fields, "displacement": Displacement._fields, "codes": _CONSTANTS}
INTERFACE = " ".join(f"{name}: {' '.join(map(str, words))}" for name, words in _PARTS.items())

#: The types of a parameter, its gradient and its states, by their numbers in `cpu.c`; formats where they are quantized.
_FLOATS: tuple[torch.dtype | str, ...] = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TYPES: dict[torch.dtype | str, int] = {name: i for i, name in enumerate((*_FLOATS, "8bit", "4bit"))}


@cache
def _load(path: str) -> tuple[Any, str | None]:
    """The library, or None and the reason."""
    remedy = "install a C compiler and reinstall adan from source"
    if not Path(path).exists():
        remedy = "it is not built on Windows" if sys.platform == "win32" else f"{remedy}, with ADAN_PURE unset"
        return None, f"adan was installed without its C library {path}; {remedy}"
    try:
        library = ctypes.CDLL(path)
        library.adan_cpu_interface.restype = ctypes.c_char_p
        interface = library.adan_cpu_interface().decode()
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        library.adan_cpu_counts.argtypes = [pointer, count, pointer]
        library.adan_cpu_counts.restype = None
        library.adan_cpu_run.argtypes = [pointer, count, pointer, pointer, ctypes.c_int, pointer]
    except (OSError, AttributeError) as error:
        return None, f"its C library cannot be loaded ({error}); {remedy}"
    if interface != INTERFACE:
        return None, f"its C library {path} was built from another version of adan; {remedy}"
    return library, None


class Table(NamedTuple):
    """The tensors of a step as the C library takes them, reused while a plan holds."""

    rows: array[int]  #: by the fields of `struct tensor`; gradients and coefficients are filled in by each step
    grad_types: list[torch.dtype]  #: in which they are read: the parameter's type, else that of the arithmetic
    fits: bool  #: whether gradients are of these types, and laid out as their parameters


class Cpu(FusedEngine):
    name = "cpu"
    device_type = "cpu"
    forgets = counts_on_device = False

    def missing(self) -> str | None:
        return _load(LIBRARY)[1]

    def update(self, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
        if memo.tables is None:
            memo.tables = _table(columns)
        table: Table = memo.tables
        grads = _fitted(columns, table)  # copies must live until the C has read them
        _fill(table.rows, "grad", addresses("grad", grads))
        signals = _measured(columns, table, signals)
        if signals.skip is not None:
            if float(signals.skip):
                return None
            signals = replaced(signals, skip=None)
        if any(options.cycle for options in columns.options):
            cycles = [int(options.cycle) for options in columns.options]
            _fill(table.rows, "cycle", map(cycles.__getitem__, columns.group))
        coefficients, displacements = _coefficients(columns, table, signals)
        total = _run(table, _address(coefficients), _address(displacements) if displacements else None)
        # Autograd must know that what it may have saved has changed.
        torch.autograd.graph.increment_version(columns.param)
        return torch.tensor(total, dtype=torch.float64, device="cpu") if displacements else None


def _run(table: Table, coefficients: int | None, displacements: int | None) -> float:
    """Run one step, and measure its displacement if asked; without coefficients, Σ x² over all gradients."""
    total = array("d", [0.0])
    count, threads = len(table.rows) // len(FIELDS), torch.get_num_threads()
    library, _ = _load(LIBRARY)
    if library.adan_cpu_run(_address(table.rows), count, coefficients, displacements, threads, _address(total)):
        raise MemoryError("adan: no memory for the table of a step")
    return total[0]


def _measured(columns: Columns, table: Table, signals: Signals) -> Signals:
    """The norm to clip by and the decision to skip, in one pass: in fp64 no sum of fp32 squares overflows."""
    clips = columns.clips()
    if not signals.check_finite and (signals.norm is not None or not clips):
        return signals
    total = _run(table, None, None)
    if not math.isfinite(total):
        return measure([grad for grad in columns.grad if grad is not None], clips, signals)
    norm = torch.tensor(math.sqrt(total), dtype=torch.float64, device="cpu")
    return Signals(norm, signals.grad_scale, signals.skip, forget=signals.forget)


def _table(columns: Columns) -> Table:
    count = len(columns.param)
    rows = array("q", bytes(8 * len(FIELDS) * count))
    for name in ADDRESSES:
        if name != "grad":
            _fill(rows, name, addresses(name, getattr(columns, name)))
    like = columns.like_grads()
    types = [p.dtype for p in columns.param]
    grad_types = [t if grad.dtype == t else compute_dtype(t) for t, grad in zip(types, like, strict=True)]
    fits = grad_types == [grad.dtype for grad in like] and all(map(is_laid_out_as, columns.param, like))
    _fill(rows, "type", map(TYPES.__getitem__, types))
    _fill(rows, "grad_type", map(TYPES.__getitem__, grad_types))
    averages = zip(columns.exp_avg, columns.exp_avg_sq, strict=True)
    _fill(rows, "state_type", (TYPES[lowbit.format_of(m, n) or m.dtype] for m, n in averages))
    _fill(rows, "size", map(Tensor.numel, columns.param))
    _fill(rows, "stochastic", map(int, map(columns.rounds_stochastically, range(count))))
    _fill(rows, "rng_offset", columns.rng_offset)
    return Table(rows, grad_types, fits)


def _fill(rows: array[int], field: str, values: Iterable[int]) -> None:
    rows[FIELDS.index(field) :: len(FIELDS)] = array("q", values)


def _fitted(columns: Columns, table: Table) -> list[Any]:
    """Gradients that the C library can read: usually the gradients themselves, else copies."""
    if table.fits:
        return columns.grad
    rows = zip(columns.param, columns.grad, table.grad_types, strict=True)
    return [None if grad is None else laid_out_as(p, grad, dtype) for p, grad, dtype in rows]


def _coefficients(columns: Columns, table: Table, signals: Signals) -> tuple[array[float], array[float]]:
    """A set of coefficients for each group and step count, and the set that each row takes, filled into the table."""
    counts = array("d", bytes(8 * len(columns.group)))
    library, _ = _load(LIBRARY)
    library.adan_cpu_counts(_address(table.rows), len(counts), _address(counts))
    rows = list(zip(columns.group, counts, strict=True))
    coefficients, displacements = array("d"), array("d")
    sets: dict[tuple[int, float], int] = {}
    for group, t in dict.fromkeys(rows):
        sets[group, t] = len(sets)
        options = columns.options[group]
        coefficients.extend(map(float, step_scalars(options, signals, t + 1)))
        if options.last_lr is not None:
            displacements.extend(map(float, displacement_scalars(options, t + 1)))
    _fill(table.rows, "scalars", map(sets.__getitem__, rows) if len(sets) > 1 else repeat(0, len(rows)))
    return coefficients, displacements


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]
