"""Models whose memory can be planned without building them: published shapes, or a number of parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from adan_bench.errors import UsageError, unknown
from adan_bench.studies.speed import MODELS
from adan_bench.task import SCALES
from adan_bench.workloads.registry import get_workload, workloads

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class Llama(NamedTuple):
    """The shape of a published Llama; keys and values of all heads together have the width `key_width`."""

    width: int
    hidden: int
    layers: int
    key_width: int
    words: int

    def parameters(self) -> list[nn.Parameter]:
        """On the meta device; the embeddings of the input and of the output are two tensors."""
        attention = [(self.width, self.width), (self.key_width, self.width)]
        mlp = [(self.hidden, self.width), (self.width, self.hidden)]
        layer = [*2 * attention, mlp[0], *mlp, (self.width,), (self.width,)]
        ends = [(self.words, self.width), (self.width,), (self.words, self.width)]
        return [nn.Parameter(torch.empty(shape, device="meta")) for shape in (*self.layers * layer, *ends)]


LLAMAS = {
    "Llama-2-7B": Llama(width=4096, hidden=11008, layers=32, key_width=4096, words=32000),
    "Llama-3.1-70B": Llama(width=8192, hidden=28672, layers=80, key_width=1024, words=128256),
    "Llama-3.1-405B": Llama(width=16384, hidden=53248, layers=126, key_width=1024, words=128256),
}


def find_model(name: str, scale: str = SCALES[0], data: Path | None = None) -> Any:
    """What `adan.plan_memory` takes, for a number such as 7B, a model of the paper, a Llama, or a workload."""
    if number := re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([KMBT]?)", name, re.IGNORECASE):
        return round(float(number[1]) * UNITS[number[2].upper()])
    if name in LLAMAS:
        return LLAMAS[name].parameters()
    if name in MODELS:
        with torch.device("meta"):
            return MODELS[name].build()
    if name not in workloads():
        error = unknown("model", name, [*LLAMAS, *MODELS, *workloads()], see="adan-bench memory --help")
        raise UsageError(f"{error} (or give a number of parameters, such as 7B)")
    return get_workload(name, scale).task(data=data).model
