"""Adan's memory and messages, on paper, under each way of sharding a model: the table of `docs/distributed.md`.

A collective over P processes of S bytes makes each process send, by a ring, (P − 1)/P · S bytes for an all-gather or a
reduce-scatter, and twice that for an all-reduce.
"""

from __future__ import annotations

from typing import NamedTuple

from adan_bench.reports.html import markdown_table

PARAM, GRAD, STATES = 4, 4, 16  # fp32: parameter, gradient and four states of Adan, in bytes per parameter
MACHINE = 8  # GPUs of one machine; the most frequent exchanges stay inside it


class Cost(NamedTuple):
    held: float  #: bytes of parameters, gradients and states that a GPU keeps
    sent: float  #: bytes that a GPU sends in a step


def _ring(processes: int, size: float) -> float:
    return (processes - 1) / processes * size


def ddp(n: float, gpus: int) -> Cost:
    """Everything everywhere; gradients are all-reduced."""
    return Cost((PARAM + GRAD + STATES) * n, 2 * _ring(gpus, GRAD * n))


def zero(n: float, gpus: int) -> Cost:
    """As DDP, but states are cut; each process broadcasts the parameters that it has updated."""
    return Cost((PARAM + GRAD + STATES / gpus) * n, 2 * _ring(gpus, GRAD * n) + _ring(gpus, PARAM * n))


def fsdp(n: float, gpus: int) -> Cost:
    """Everything is cut; parameters are gathered twice, gradients are reduce-scattered."""
    return Cost((PARAM + GRAD + STATES) * n / gpus, 2 * _ring(gpus, PARAM * n) + _ring(gpus, GRAD * n))


def hsdp(n: float, gpus: int) -> Cost:
    """FSDP in each machine; between machines the parts of the gradients are all-reduced."""
    inside = fsdp(n, MACHINE)
    return Cost(inside.held, inside.sent + 2 * _ring(gpus // MACHINE, GRAD * n / MACHINE))


def fsdp_tp(n: float, gpus: int) -> Cost:
    """Matrices are cut within each machine, their parts by FSDP between machines; activations are not counted."""
    return fsdp(n / MACHINE, gpus // MACHINE)


STRATEGIES = {"DDP": ddp, "DDP + ZeRO-1": zero, "FSDP2": fsdp, "FSDP2, replicated": hsdp, "FSDP2 + TP": fsdp_tp}


def table() -> str:
    """For 10⁹ parameters: all of it is proportional to their number."""

    def gb(size: float) -> str:
        return f"{size / 1e9:.2g}"

    rows = []
    for gpus in (8, 64, 512, 4096):
        costs = [strategy(1e9, gpus) for strategy in STRATEGIES.values()]
        rows.append([f"{gpus:,}", *(f"{gb(cost.held)}, {gb(cost.sent)}" for cost in costs)])
    return markdown_table(["GPUs", *STRATEGIES], rows, left=0)
