"""The family of learning rate schedules, the same for every optimizer: linear warm-up, then a descent."""

from __future__ import annotations

import math
from collections.abc import Callable

Factor = Callable[[int], float]


def _schedule(descent: Callable[[float], float]) -> Callable[[int, float], Factor]:
    def schedule(steps: int, warmup: float) -> Factor:
        rising = max(1, round(steps * warmup)) if warmup > 0 else 0

        def factor(step: int) -> float:
            """The share of the learning rate for the update that follows `step` gradients."""
            if step < rising:
                return (step + 1) / rising
            return descent((step - rising) / max(1, steps - rising))

        return factor

    return schedule


SCHEDULES = {
    "cosine": _schedule(lambda done: 0.5 * (1 + math.cos(math.pi * done))),
    "linear": _schedule(lambda done: 1 - done),
    "constant": _schedule(lambda done: 1.0),
    "step": _schedule(lambda done: 1.0 if done < 0.75 else 0.1),  # AdaBelief's on CIFAR-10: epoch 150 of 200
}
