"""Learning rate schedules: linear warm-up, then a descent to a lowest rate, as shares of the peak.

cosine          over the steps after the warm-up
full-cosine     over all steps; the warm-up replaces its beginning (timm, DeiT and Swin of 2021, Transformer-XL), so
that the rate falls at once when a long warm-up ends: to 50% after half of the steps
linear          to the lowest rate, over the steps after the warm-up; linear:1500 in so many equal stairs
constant
steps:30/90,60/90   divided by ten after these shares of all steps
step            steps:150/200, AdaBelief's on CIFAR-10
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from adan_bench.errors import UsageError, unknown

Factor = Callable[[int], float]
Descent = Callable[[float], float]
STEPS = "steps"
NAMES = ("cosine", "full-cosine", "linear", "linear:N", "constant", "step", f"{STEPS}:A/B,…")
OVER_ALL = ("full-cosine", STEPS)  # their descent counts from the first step, not from the end of the warm-up


def schedule(name: str, steps: int, warmup: float = 0.0, floor: float = 0.0, cooldown: float = 0.0) -> Factor:
    """The share of the learning rate for the update that follows so many gradients.

    warmup: share of the steps in which it rises; floor: the lowest rate; cooldown: share of the steps at the end that
    keep it.
    """
    kind, descent = _descent(name)
    rising = max(1, round(steps * warmup)) if warmup > 0 else 0
    first, last = 0 if kind in OVER_ALL else rising, steps - round(steps * cooldown)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return floor + (1 - floor) * descent(min(1.0, (step - first) / max(1, last - first)))

    return factor


def _descent(name: str) -> tuple[str, Descent]:
    if name == "step":
        name = f"{STEPS}:150/200"
    kind, _, points = name.partition(":")
    simple: dict[str, Descent] = {
        "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
        "full-cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
        "linear": lambda done: 1 - done,
        "constant": lambda done: 1.0,
    }
    if name in simple:
        return kind, simple[name]
    if kind == "linear" and points.isdecimal() and int(points) > 0:
        return kind, lambda done: 1 - math.floor(done * int(points) + 1e-9) / int(points)
    if kind != STEPS:
        raise unknown("schedule", name, NAMES)
    try:
        shares = [float(Fraction(point)) for point in points.split(",")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise UsageError(f"--schedule {name}: write shares of the run between 0 and 1, for example {STEPS}:30/90,60/90")
    return kind, lambda done: 0.1 ** sum(done >= share for share in shares)
