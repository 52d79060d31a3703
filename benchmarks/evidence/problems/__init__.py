"""What is trained: data on the device, a model, a loss that reads its batch by a step count on the device, a metric.

Nothing in a `loss` waits for the device, reads host memory or depends on a Python number that changes from step to
step, so that a CUDA graph can hold it. Tuning looks at a validation split; what is reported, at the test split after
training on all training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from evidence.problems import images, language, others
from evidence.problems.problem import Problem, Setup, weights_of

__all__ = ["PROBLEMS", "Problem", "Setup", "build", "weights_of"]

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "vit": images.vit,
    "resnet34": images.resnet34,
    "convnext": images.convnext,
    "mae": images.mae,
    "gpt": language.gpt,
    "bert": language.bert,
    "glue": language.glue,
    "lstm": language.lstm,
    "transformer-xl": language.transformer_xl,
    "cora": others.cora,
    "detr": others.detr,
    "harness": others.harness,
}


def build(name: str, options: Mapping[str, Any], setup: Setup) -> Problem:
    if name not in PROBLEMS:
        raise ValueError(f"problem {name!r}: there are {', '.join(PROBLEMS)}")
    problem = PROBLEMS[name](setup, **options)
    problem.model = problem.model.to(setup.device)
    if problem.channels_last:
        problem.model = problem.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return problem
