"""Parts of several benchmarks: records and their environment, a copy's bandwidth, timing in turns, shapes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adan_bench.records.environment import describe
from adan_bench.reports.html import markdown_table

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, Any]:
    """The machine and versions, as `adan-bench` describes them, and how busy the machine was."""
    facts = describe("cuda" if torch.cuda.is_available() else "cpu")
    # A record is published: of the folders of this machine it has the names alone.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    facts["command"] = " ".join([Path(sys.executable).name, *words])
    facts["commit"] = os.environ.get("ADAN_COMMIT") or facts["commit"]
    return {**facts, "threads": torch.get_num_threads(), "load_average": os.getloadavg()}


def write(name: str, record: dict[str, Any]) -> None:
    """Store a record under results/."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (ROOT / "results" / name).write_text(text + "\n", encoding="utf-8")
    print(f"written: results/{name}")


def read(name: str) -> Any:
    """A record under results/, without the rows of `consume_grad`, an option that Adan no longer has."""

    def without(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if "consume_grad" not in key}

    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"), object_pairs_hook=without)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """A table in Markdown; its first `left` columns are text, or all."""
    return markdown_table(head, rows, len(head) if left is None else left)


Run: TypeAlias = Callable[[], object]
Timer: TypeAlias = Callable[[Run], float]  #: seconds or milliseconds of one call
Shapes: TypeAlias = list[tuple[int, ...]]
Maker: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]


def copy_bandwidth(seconds: Timer, device: str = "cpu", size: int = 64_000_000) -> float:
    """Bytes per second, read and written, by `copy_` between two large fp32 tensors: the median of nine."""
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * 4 * size / statistics.median(seconds(lambda: target.copy_(source)) for _ in range(9))


def stepper(make: Maker, params: list[Tensor], grads: list[Tensor]) -> Run:
    """A step of an optimizer on the same gradients again and again."""
    optimizer = make(params)

    def step() -> None:
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        optimizer.step()

    return step


def in_turns(candidates: Mapping[str, Run], rounds: int, timer: Timer) -> dict[str, list[float]]:
    """Times of each candidate, once per round after a first that does not count: a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, run in candidates.items():
            times[name].append(timer(run))
    return {name: own[1:] for name, own in times.items()}


def others_8bit() -> dict[str, Maker]:
    """Constructors of AdamW with 8-bit states, of other libraries as far as they are installed."""

    def maker(package: str) -> Maker:
        module = importlib.import_module(f"{package}.optim")
        return lambda params: module.AdamW8bit(params, lr=1e-4)

    packages = [package for package in ("torchao", "bitsandbytes") if importlib.util.find_spec(package)]
    return {f"AdamW 8 bit ({package})": maker(package) for package in packages}


def resnet50() -> Shapes:
    """161 tensors, 25.6 M parameters."""

    def convolution(inputs: int, outputs: int, size: int) -> Shapes:
        return [(outputs, inputs, size, size), (outputs,), (outputs,)]  # with the scale and shift of its norm

    shapes, inputs = convolution(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(inputs, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            if block == 0:
                shapes += convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def gpt2(layers: int, width: int) -> Shapes:
    return [(50257, width), (1024, width), *layers * _transformer_layer(width), (width,), (width,)]


def vit_b() -> Shapes:
    width = 768
    first: Shapes = [(1, 1, width), (1, 197, width), (width, 3, 16, 16), (width,)]
    return [*first, *12 * _transformer_layer(width), (width,), (width,), (1000, width), (1000,)]


def _transformer_layer(width: int) -> Shapes:
    layer: Shapes = [(width,)] * 2 + [(3 * width, width), (3 * width,), (width, width), (width,)]
    return layer + [(width,)] * 2 + [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]


#: The models whose steps are timed.
MODELS = {"ResNet-50": resnet50(), "ViT-B": vit_b(), "GPT-2 345M": gpt2(24, 1024), "GPT-2 1.1B": gpt2(36, 1536)}
