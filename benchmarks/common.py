"""Parts of several benchmarks: records and their environment, a copy's bandwidth, timing in turns, shapes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adan import Adan, Restart
from adan_bench.records.environment import describe
from adan_bench.reports.html import markdown_table

ROOT = Path(__file__).resolve().parent.parent
BASE = "AdamW fused"  # the row that others are compared with
SEED = 0
#: What a part of a row's name, such as "Adan, 8 bit, clipped", means to Adan.
OPTIONS: dict[str, dict[str, Any]] = {
    "clipped": {"max_grad_norm": 1.0},
    "coupled": {"betas": (0.92, 0.92, 0.99)},
    "restart": {"restart": Restart.probe()},
    "bf16 states": {"state_format": "bf16"},
    "8 bit": {"state_format": "8bit"},
    "4 bit": {"state_format": "4bit"},
    "bf16 weights": {"stochastic_rounding": True},
}
#: Bytes of states per parameter: all of Adan's, and the coupled form's.
STATE_BYTES = {"fp32": (16, 12), "bf16": (8, 6), "8bit": (4.125, 3.125), "4bit": (2.625, 2.125)}


def environment() -> dict[str, Any]:
    """The machine and versions, as `adan-bench` describes them, and how busy the machine was."""
    facts = describe("cuda" if torch.cuda.is_available() else "cpu")
    # A record is published: of the folders of this machine it has the names alone.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    facts["command"] = " ".join([Path(sys.executable).name, *words])
    facts["commit"] = os.environ.get("ADAN_COMMIT") or facts["commit"]
    return {**facts, "threads": torch.get_num_threads(), "load_average": os.getloadavg()}


def write(name: str, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (ROOT / "results" / name).write_text(text + "\n", encoding="utf-8")
    print(f"written: results/{name}")


def read(name: str) -> Any:
    """A record under results/."""
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts in Markdown."""
    return markdown_table(head, rows, len(head))


def where(data: Mapping[str, Any]) -> str:
    """The machine and the versions of a record."""
    e = data["environment"]
    versions = {**e, **e.get("packages", {})}
    more = f", Triton {versions['triton']}" if e.get("gpu") else f", {e['threads']} thread{'s' * (e['threads'] != 1)}"
    place = e.get("gpu") or e["cpu"]
    return f"{place}, torch {versions['torch']}{more}, Python {e['python']}, commit {e['commit'][:7]}"


def numbers(head: Sequence[str], rows: Iterable[Sequence[str]], below: str = "") -> str:
    """A table of numbers, with a line below."""
    return markdown_table(head, rows) + (f"\n\n{below}" if below else "")


Run: TypeAlias = Callable[[], object]
Timer: TypeAlias = Callable[[Run], float]  #: milliseconds of one call
Shapes: TypeAlias = list[tuple[int, ...]]
Maker: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]


def options(name: str) -> dict[str, Any]:
    """Adan's options by the name of a row."""
    return {key: value for part in name.split(", ") for key, value in OPTIONS.get(part, {}).items()}


def optimizer(name: str, params: list[Tensor]) -> torch.optim.Optimizer:
    """The optimizer that a row is named after, fused unless the name says "foreach"."""
    engine: dict[str, Any] = {"foreach" if "foreach" in name else "fused": True}
    make = torch.optim.AdamW if name.startswith("AdamW") else Adan
    return make(params, lr=1e-4, **engine, **options(name))


def moved(name: str) -> float:
    """Bytes to move per fp32 parameter: itself and its states to and fro, its gradient once, or twice if clipped."""
    states = STATE_BYTES[options(name).get("state_format", "fp32")]["coupled" in name]
    return 12 + 2 * (8 if name.startswith("AdamW") else states) + 4 * ("clipped" in name)


def copy_bandwidth(timer: Timer, device: str = "cpu", size: int = 64_000_000) -> float:
    """Bytes per millisecond, read and written, by `copy_` between two large fp32 tensors: the median of nine."""
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * 4 * size / statistics.median(timer(lambda: target.copy_(source)) for _ in range(9))


def clocked(run: Run) -> float:
    """Milliseconds by the clock on the wall."""
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def tensors(shapes: Shapes, device: str = "cpu") -> tuple[list[Tensor], list[Tensor]]:
    """Random parameters and gradients, the same in every call."""
    torch.manual_seed(SEED)
    params = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    return params, [torch.randn_like(p) for p in params]


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
