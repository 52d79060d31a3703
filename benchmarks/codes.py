"""Which codes keep Adan's states best in 8 or 4 bits: the error they put into the update, along a real training run.

`adan-bench` trains a model with fp32 states; beside it, states in every candidate code get the same gradients. The
error is ‖Δ − Δ₃₂‖ / ‖Δ₃₂‖ of the update Δ = (m̂ + b2·v̂) / (√n̂ + ε), over all tensors of at least 4,096 elements, in the
second half of the run; beside it the largest |Δ| of an element in the first ten steps. Writes results/codes.json, with
`--bits 4` results/codes-4bit.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from common import environment, write
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from adan import lowbit
from adan_bench.cli.app import app
from adan_bench.cli.common import Invocation

#: Values of shape (blocks, size of a block) and as many uniform draws → the values that the codes stand for.
Code: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def exact(x: Tensor, draw: Tensor) -> Tensor:
    return x


class Codes(NamedTuple):
    """The codes of the four states.

    averaged: v is stored as a = g − 11.5·v.
    advancing: draws are not independent from step to step, but advance by a constant, modulo 1.
    same_draws: a is rounded with the draws of g.
    """

    m: Code = exact
    v: Code = exact
    n: Code = exact
    g: Code = exact
    block: int = 32
    averaged: bool = False
    advancing: bool = False
    same_draws: bool = False


def floored(bits: int, codes: int) -> Code:
    """|x| + δ as a short float with `bits` of mantissa, blocks scaled by powers of two; near zero steps are even."""
    shift = 23 - bits
    # The last codes are for what δ lifts above 1; with fewer for the rest, δ is larger, and so are these few.
    every = (lowbit.Code.of(bits, one) for one in range(codes, 0, -1))
    delta = next(c.delta for c in every if c.one + math.ceil(c.delta * 2**bits) <= codes)

    def code(x: Tensor, draw: Tensor) -> Tensor:
        exponent = x.abs().amax(1, keepdim=True).frexp().exponent
        z = torch.ldexp(x.abs(), -exponent) + delta
        word = z.view(torch.int32) + (draw * 2**shift).to(torch.int32)
        z = (word >> shift << shift).view(torch.float32)
        return torch.copysign(torch.ldexp(z - delta, exponent), x)

    return code


def e4m3(x: Tensor, draw: Tensor) -> Tensor:
    """float8_e4m3fn, blocks scaled so that the largest element has the largest code."""
    levels = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-38) / levels[-1]
    y = x.abs() / scale
    above = torch.searchsorted(levels, y.contiguous()).clamp(1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    return torch.copysign(torch.where(draw < (y - low) / (high - low), high, low) * scale, x)


def positive(code: Code) -> Code:
    """Values above zero never become zero, but the smallest of their block that did not."""

    def nonzero(x: Tensor, draw: Tensor) -> Tensor:
        y = code(x, draw)
        smallest = torch.where(y > 0, y, math.inf).amin(1, keepdim=True)
        return torch.where((x > 0) & (y == 0), smallest, y)

    return nonzero


def nearest(code: Code) -> Code:
    return lambda x, draw: code(x, torch.full_like(draw, 0.5))


def rooted(code: Code) -> Code:
    return lambda x, draw: code(x.sqrt(), draw).square()


def eight_bits() -> dict[str, Codes]:
    candidates: dict[str, Codes] = {}
    for block in (32, 128):
        for name, code, root in (
            ("E4M3; √n, E4M3", e4m3, e4m3),
            ("floored, 4 bits; √n, floored, 5 bits", floored(4, 127), floored(5, 255)),
            ("floored, 5 bits; √n, floored, 6 bits", floored(5, 127), floored(6, 255)),
        ):
            codes = code, code, rooted(root), code
            rounded = nearest(code), nearest(code), nearest(rooted(root)), nearest(code)
            candidates[f"all: {name}, {block}"] = Codes(*codes, block)
            candidates[f"all, to nearest: {name}, {block}"] = Codes(*rounded, block)
    return candidates


def four_bits() -> dict[str, Codes]:
    m4, m6, m8 = floored(2, 7), floored(3, 31), floored(5, 127)
    n4, n6, n8 = rooted(positive(floored(3, 15))), rooted(positive(floored(4, 63))), rooted(floored(6, 255))
    eight = Codes(m8, m8, n8, m8)
    ours = Codes(m6, m4, n6, m4, averaged=True, advancing=True, same_draws=True)
    return {
        "m: floored, 2 bits": Codes(m=m4),
        "v: floored, 2 bits": Codes(v=m4),
        "a for v: floored, 2 bits": Codes(v=m4, averaged=True),
        "g: floored, 2 bits": Codes(g=m4),
        "g, a for v: floored, 2 bits": Codes(g=m4, averaged=True),
        "n: √n, floored, 3 bits": Codes(n=n4),
        "m: floored, 6 bits in all": Codes(m=m6),
        "n: floored, 6 bits in all": Codes(n=n6),
        "all: 8 bits, independent draws (4.125 bytes per parameter)": eight,
        "all: 8 bits (4.125): ours": eight._replace(advancing=True),
        "all: m, a, g, n in 4 bits (2.125)": ours._replace(m=m4, n=n4),
        "all: m, a, g in 4 bits, n in 8 (2.625)": ours._replace(m=m4, n=n8),
        "all: a, g, n in 4 bits, m in 8 (2.625)": ours._replace(m=m8, n=n4),
        "all: v, g in 4 bits, m, n in 6 (2.625)": ours._replace(averaged=False, same_draws=False),
        "all: a, g in 4 bits, m, n in 6, independent draws (2.625)": ours._replace(advancing=False, same_draws=False),
        "all: a, g in 4 bits, m, n in 6, blocks of 128 (2.531)": ours._replace(block=128),
        "all: a, g in 4 bits, m, n in 6, a and g with draws of their own (2.625)": ours._replace(same_draws=False),
        "all: a, g in 4 bits, m, n in 6 (2.625): ours": ours,
    }


class Shadow:
    """Adan's states in given codes, beside a run that does not see them."""

    def __init__(self, betas: tuple[float, float, float], codes: Codes) -> None:
        self.betas, self.codes, self.averaging = betas, codes, betas[1] / (1 - betas[1])
        self.state: tuple[Tensor, ...] | None = None
        self.generator = torch.Generator().manual_seed(0)

    def update(self, g: Tensor, t: int) -> Tensor:
        (b1, b2, b3), c = self.betas, self.codes
        zeros = torch.zeros_like(g)
        m, v, n, q = self.state or (zeros, g if c.averaged else zeros, zeros, g)
        d = g - q
        v = (q - v) / self.averaging if c.averaged else v
        m, v, n = m + (1 - b1) * (g - m), v + (1 - b2) * (d - v), n + (1 - b3) * ((g + b2 * d) ** 2 - n)
        u = m / (1 - b1**t) + b2 * v / (1 - b2**t)
        if c.advancing:
            self.generator.manual_seed(0)
        draws = torch.rand((4, *g.shape), generator=self.generator)
        draws = (draws + t * lowbit.ADVANCE / 2**32) % 1 if c.advancing else draws
        draws = draws[[0, 3, 2, 3]] if c.same_draws else draws
        v = g - self.averaging * v if c.averaged else v
        self.state = tuple(
            code(x.view(-1, c.block), r.view(-1, c.block)).flatten()
            for code, x, r in zip(c[:4], (m, v, n, g), draws, strict=True)
        )
        return u / ((n / (1 - b3**t)).sqrt() + 1e-8)


def watch(words: list[str], see: Callable[[Tensor], None]) -> None:
    """Let `adan-bench run` train, and see the large tensors' gradients of every step, as one vector."""

    def before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in params if p.grad is not None and p.numel() >= 4096]
        see(torch.cat([g[: g.numel() // 128 * 128 // g[0].numel()].flatten() for g in grads]))

    hook = register_optimizer_step_pre_hook(before_step)
    with tempfile.TemporaryDirectory() as folder:
        call = Invocation(["run", *words, "--out", folder])
        app(call.words, standalone_mode=False, obj=call)
    hook.remove()


def measure(
    candidates: dict[str, Codes], workload: str, lr: float, betas: tuple[float, float, float], steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Each candidate's error in the second half of a run, and the largest update of its first ten steps."""
    truth, shadows = Shadow(betas, Codes(block=1)), {name: Shadow(betas, codes) for name, codes in candidates.items()}
    errors: dict[str, list[float]] = {name: [] for name in candidates}
    largest = dict.fromkeys(["fp32", *candidates], 0.0)
    count = itertools.count(1)

    def see(g: Tensor) -> None:
        t = next(count)
        exact_update = truth.update(g, t)
        updates = {name: shadow.update(g, t) for name, shadow in shadows.items()}
        if t <= 10:
            for name, update in {"fp32": exact_update, **updates}.items():
                largest[name] = max(largest[name], update.abs().max().item())
        if t > steps // 2:
            for name, update in updates.items():
                errors[name].append(((update - exact_update).norm() / exact_update.norm()).item())

    settings = [f"lr={lr}", f"betas={betas}", "weight_decay=0.02"]
    words = [workload, "--steps", str(steps), *(word for setting in settings for word in ("--set", setting))]
    watch([*words, *("--schedule", "constant", "--warmup", "0", "--clip", "0")], see)
    return {name: statistics.mean(values) for name, values in errors.items()}, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8)
    args = parser.parse_args()
    candidates = eight_bits() if args.bits == 8 else four_bits()
    errors: dict[str, dict[str, float]] = {name: {} for name in candidates}
    largest = dict.fromkeys(["fp32", *candidates], 0.0)
    for workload, lr in (("digits-vit", 3e-3), ("pycode-gpt2", 5e-3)):
        for b1 in (0.9, 0.98):
            means, tops = measure(candidates, workload, lr, (b1, 0.92, 0.99), args.steps)
            largest = {name: max(value, tops[name]) for name, value in largest.items()}
            for name, value in means.items():
                errors[name][f"{workload}, b1 = {b1}"] = value
    for name, row in sorted(errors.items(), key=lambda item: (item[0].split(":")[0], math.prod(item[1].values()))):
        print(f"{name:70s}", *(f"{value:8.4f}" for value in row.values()), f"{largest[name]:8.2f}")
    record = {"environment": environment(), "steps": args.steps, "seed": 0, "errors": errors, "largest": largest}
    write("codes.json" if args.bits == 8 else "codes-4bit.json", record)


if __name__ == "__main__":
    main()
