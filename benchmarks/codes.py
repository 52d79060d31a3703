"""Which codes keep Adan's states best in 8 or 4 bits: the error they put into the update, along a real training run.

A model is trained with fp32 states; beside it, states in every candidate code are fed the same gradients. The error is
‖Δ − Δ₃₂‖ / ‖Δ₃₂‖ of the update Δ = (m̂ + b2·v̂) / (√n̂ + ε), over all tensors of at least 4,096 elements, in the second
half of the run; beside it the largest |Δ| of an element in the first ten steps. Writes results/codes.json, with
`--bits 4` results/codes-4bit.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import ROOT, environment
from torch import Tensor

from adan.lowbit import ADVANCE, averaging
from adan_bench.data.batching import prepared
from adan_bench.workloads.registry import get_workload

Code = Callable[
    [Tensor, Tensor], Tensor
]  #: values of shape (blocks, size of a block), uniform draws → what is read back


def floored(bits: int, codes: int) -> Code:
    """|x| + δ as a short float with `bits` of mantissa, blocks scaled by powers of two; near zero steps are even."""
    shift = 23 - bits
    # The last codes are for what δ lifts above 1; with fewer for the rest, δ is larger, and so are these few.
    one = next(k for k in range(codes, 0, -1) if k + math.ceil(_delta(bits, k) * 2**bits) <= codes)
    delta = _delta(bits, one)

    def code(x: Tensor, draw: Tensor) -> Tensor:
        exponent = x.abs().amax(1, keepdim=True).frexp().exponent
        z = torch.ldexp(x.abs(), -exponent) + delta
        word = z.view(torch.int32) + (draw * 2**shift).to(torch.int32)
        z = (word >> shift << shift).view(torch.float32)
        return torch.copysign(torch.ldexp(z - delta, exponent), x)

    return code


def _delta(bits: int, one: int) -> float:
    word = ((127 << bits) - one) << (23 - bits)
    return torch.tensor(word, dtype=torch.int32).view(torch.float32).item()


def table(values: Tensor) -> Code:
    """Any sorted list of non-negative values, the largest 1."""

    def code(x: Tensor, draw: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True).clamp(min=1e-38)
        y = x.abs() / scale
        above = torch.searchsorted(values, y.contiguous()).clamp(1, len(values) - 1)
        low, high = values[above - 1], values[above]
        y = torch.where(draw < (y - low) / (high - low), high, low)
        return torch.copysign(y * scale, x)

    return code


def powers(values: Sequence[float]) -> Code:
    """Any sorted list of values from 0, blocks scaled by powers of two so that the largest element has a code."""
    levels = torch.tensor(values)

    def code(x: Tensor, draw: Tensor) -> Tensor:
        scale = torch.exp2((x.abs().amax(1, keepdim=True).clamp(min=1e-38) / levels[-1]).log2().ceil())
        y = x.abs() / scale
        above = torch.searchsorted(levels, y.contiguous()).clamp(1, len(levels) - 1)
        low, high = levels[above - 1], levels[above]
        return torch.copysign(torch.where(draw < (y - low) / (high - low), high, low) * scale, x)

    return code


def positive(code: Code) -> Code:
    """What is above zero never becomes zero, but the smallest of its block that has not."""

    def nonzero(x: Tensor, draw: Tensor) -> Tensor:
        y = code(x, draw)
        smallest = torch.where(y > 0, y, math.inf).amin(1, keepdim=True)
        return torch.where((x > 0) & (y == 0), smallest, y)

    return nonzero


def nearest(code: Code) -> Code:
    return lambda x, draw: code(x, torch.full_like(draw, 0.5))


def rooted(code: Code) -> Code:
    return lambda x, draw: code(x.sqrt(), draw).square()


def dynamic(codes: int) -> Tensor:
    """Dynamic exponent: each leading zero of the code is a decade, the bits after it a linear fraction of it."""
    values = [0.0]
    for bits in range(codes.bit_length()):
        fractions = torch.linspace(0.1, 1, 2**bits + 1)
        means = (fractions[:-1] + fractions[1:]) / 2
        values += (means * 10.0 ** (bits - codes.bit_length() + 1)).tolist()
    return torch.tensor([*sorted(values)[:codes], 1.0])


def e4m3() -> Tensor:
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return values / values.max()


SIGNED = {
    "E4M3": table(e4m3()),
    "linear int8": table(torch.linspace(0, 1, 128)),
    "softsign int8": table(torch.linspace(0, 1, 128) / (2 - torch.linspace(0, 1, 128))),
    "dynamic exponent": table(dynamic(127)),
    "floored, 3 bits": floored(3, 127),
    "floored, 4 bits": floored(4, 127),
    "floored, 5 bits": floored(5, 127),
}
UNSIGNED = {
    "√n, E4M3": rooted(table(e4m3())),
    "√n, linear": rooted(table(torch.linspace(0, 1, 256))),
    "√n, dynamic exponent": rooted(table(dynamic(255))),
    "√n, floored, 4 bits": rooted(floored(4, 255)),
    "√n, floored, 5 bits": rooted(floored(5, 255)),
    "√n, floored, 6 bits": rooted(floored(6, 255)),
    "n, floored, 3 bits": floored(3, 255),
    "n, floored, 4 bits": floored(4, 255),
    "n, floored, 5 bits": floored(5, 255),
}
EXACT: Code = lambda x, draw: x  # noqa: E731

FOUR_BITS = {
    "linear": table(torch.linspace(0, 1, 8)),
    "E2M1": powers([0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    "floored, 1 bit": floored(1, 7),
    "floored, 2 bits": floored(2, 7),
}
FOUR_BIT_ROOTS = {
    "√n, linear": table(torch.linspace(0, 1, 16)),
    "√n, 15 levels in the logarithm down to 1/64": powers([0, *torch.logspace(-6, 0, 15, 2).tolist()]),
    "√n, floored, 1 bit": floored(1, 15),
    "√n, floored, 2 bits": floored(2, 15),
    "√n, floored, 3 bits": floored(3, 15),
}


def eight_bits() -> dict[str, tuple[Any, ...]]:
    """By name the size of a block, the codes of m, v, n and g, and whether a stands for v."""
    candidates: dict[str, tuple[Any, ...]] = {}
    for block in (32, 128):
        for name, code in SIGNED.items():
            candidates[f"m: {name}, {block}"] = (block, code, EXACT, EXACT, EXACT)
            candidates[f"v: {name}, {block}"] = (block, EXACT, code, EXACT, EXACT)
            candidates[f"g: {name}, {block}"] = (block, EXACT, EXACT, EXACT, code)
        for name, code in UNSIGNED.items():
            candidates[f"n: {name}, {block}"] = (block, EXACT, EXACT, code, EXACT)
        for name, root in (
            ("E4M3", "√n, E4M3"),
            ("floored, 4 bits", "√n, floored, 5 bits"),
            ("floored, 5 bits", "√n, floored, 6 bits"),
        ):
            codes = (SIGNED[name], SIGNED[name], UNSIGNED[root], SIGNED[name])
            candidates[f"all: {name}; {root}, {block}"] = (block, *codes)
            candidates[f"all, to nearest: {name}; {root}, {block}"] = (block, *map(nearest, codes))
    return candidates


def four_bits() -> dict[str, tuple[Any, ...]]:
    candidates: dict[str, tuple[Any, ...]] = {}
    for name, code in FOUR_BITS.items():
        candidates[f"m: {name}"] = (32, code, EXACT, EXACT, EXACT)
        candidates[f"v: {name}"] = (32, EXACT, code, EXACT, EXACT)
        candidates[f"a for v: {name}"] = (32, EXACT, code, EXACT, EXACT, True)
        candidates[f"g: {name}"] = (32, EXACT, EXACT, EXACT, code)
        candidates[f"g, a for v: {name}"] = (32, EXACT, EXACT, EXACT, code, True)
    for name, code in FOUR_BIT_ROOTS.items():
        candidates[f"n: {name}"] = (32, EXACT, EXACT, rooted(positive(code)), EXACT)
    m8, n8 = SIGNED["floored, 5 bits"], UNSIGNED["√n, floored, 6 bits"]
    m6, n6 = floored(3, 31), rooted(positive(floored(4, 63)))
    four, n4 = FOUR_BITS["floored, 2 bits"], rooted(positive(FOUR_BIT_ROOTS["√n, floored, 3 bits"]))
    ours = (32, m6, four, n6, four, True)
    candidates["m: floored, 6 bits in all"] = (32, m6, EXACT, EXACT, EXACT)
    candidates["n: floored, 6 bits in all"] = (32, EXACT, EXACT, n6, EXACT)
    candidates["all: 8 bits, independent draws (4.125 bytes per parameter)"] = (32, m8, m8, n8, m8)
    candidates["all: 8 bits (4.125): ours"] = (32, m8, m8, n8, m8, False, True)
    candidates["all: m, a, g, n in 4 bits (2.125)"] = (32, four, four, n4, four, True, True, True)
    candidates["all: m, a, g in 4 bits, n in 8 (2.625)"] = (32, four, four, n8, four, True, True, True)
    candidates["all: a, g, n in 4 bits, m in 8 (2.625)"] = (32, m8, four, n4, four, True, True, True)
    candidates["all: v, g in 4 bits, m, n in 6 (2.625)"] = (32, m6, four, n6, four, False, True)
    candidates["all: a, g in 4 bits, m, n in 6, independent draws (2.625)"] = ours
    candidates["all: a, g in 4 bits, m, n in 6, blocks of 128 (2.531)"] = (128, *ours[1:], True, True)
    candidates["all: a, g in 4 bits, m, n in 6, a and g with draws of their own (2.625)"] = (*ours, True)
    candidates["all: a, g in 4 bits, m, n in 6 (2.625): ours"] = (*ours, True, True)
    return candidates


class Shadow:
    """Adan's states in given codes, beside a run that does not see them.

    averaged: v is stored as a = g − 11.5·v.
    same_draws: a is rounded with the draws of g.
    advancing: draws are not independent from step to step, but advance by a constant, modulo 1.
    """

    def __init__(
        self,
        betas: tuple[float, float, float],
        block: int,
        m: Code,
        v: Code,
        n: Code,
        q: Code,
        averaged: bool = False,
        advancing: bool = False,
        same_draws: bool = False,
    ) -> None:
        self.betas, self.block, self.codes = betas, block, (m, v, n, q)
        self.state: tuple[Tensor, ...] | None = None
        self.averaged, self.advancing, self.same_draws = averaged, advancing, same_draws
        self.generator = torch.Generator().manual_seed(0)

    def update(self, g: Tensor, t: int) -> Tensor:
        b1, b2, b3 = self.betas
        zeros = torch.zeros_like(g)
        m, v, n, q = self.state or (zeros, g if self.averaged else zeros, zeros, g)
        d = g - q
        v = (q - v) / averaging(b2) if self.averaged else v
        m, v, n = m + (1 - b1) * (g - m), v + (1 - b2) * (d - v), n + (1 - b3) * ((g + b2 * d) ** 2 - n)
        u = m / (1 - b1**t) + b2 * v / (1 - b2**t)
        if self.advancing:
            self.generator.manual_seed(0)
        draws = torch.rand((4, *g.shape), generator=self.generator)
        draws = (draws + t * ADVANCE / 2**32) % 1 if self.advancing else draws
        draws = draws[[0, 3, 2, 3]] if self.same_draws else draws
        v = g - averaging(b2) * v if self.averaged else v
        self.state = tuple(
            code(x.view(-1, self.block), r.view(-1, self.block)).flatten()
            for code, x, r in zip(self.codes, (m, v, n, g), draws, strict=True)
        )
        return u / ((n / (1 - b3**t)).sqrt() + 1e-8)


def gradients(
    name: str, steps: int, data: Path | None, betas: tuple[float, float, float], lr: float
) -> Iterator[Tensor]:
    from adan import Adan

    torch.manual_seed(0)
    workload = get_workload(name)
    task = workload.task(data=data)
    opt = Adan(task.model.parameters(), lr=lr, betas=betas, weight_decay=0.02)
    for k in range(steps):
        task.loss(task.model, prepared(task, k, "cpu")).backward()
        grads = [p.grad for p in task.model.parameters() if p.grad is not None and p.numel() >= 4096]
        yield torch.cat([g[: g.numel() // 128 * 128 // g[0].numel()].flatten() for g in grads])
        opt.step()
        opt.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8)
    args = parser.parse_args()
    candidates = eight_bits() if args.bits == 8 else four_bits()
    errors: dict[str, dict[str, float]] = {name: {} for name in candidates}
    largest: dict[str, float] = dict.fromkeys(["fp32", *candidates], 0.0)
    for workload, lr in (("digits-vit", 3e-3), ("pycode-gpt2", 5e-3)):
        for betas in ((0.9, 0.92, 0.99), (0.98, 0.92, 0.99)):
            shadows = {name: Shadow(betas, *codes) for name, codes in candidates.items()}
            exact = Shadow(betas, 1, EXACT, EXACT, EXACT, EXACT)
            sums: dict[str, list[float]] = {name: [] for name in candidates}
            for t, g in enumerate(gradients(workload, args.steps, args.data, betas, lr), 1):
                truth = exact.update(g, t)
                deltas = {name: shadow.update(g, t) for name, shadow in shadows.items()}
                if t <= 10:
                    for name, delta in {"fp32": truth, **deltas}.items():
                        largest[name] = max(largest[name], delta.abs().max().item())
                if t > args.steps // 2:
                    for name, delta in deltas.items():
                        sums[name].append(((delta - truth).norm() / truth.norm()).item())
            for name, values in sums.items():
                errors[name][f"{workload}, b1 = {betas[0]}"] = statistics.mean(values)
    for name, row in sorted(errors.items(), key=lambda item: (item[0].split(":")[0], math.prod(item[1].values()))):
        print(f"{name:70s}", *(f"{value:8.4f}" for value in row.values()), f"{largest[name]:8.2f}")
    record = {"environment": environment(), "steps": args.steps, "seed": 0, "errors": errors, "largest": largest}
    name = "codes.json" if args.bits == 8 else "codes-4bit.json"
    (ROOT / "results" / name).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
