"""Step time and peak memory of the paper's models with different optimizers, on one device or shared among ranks.

Models are those that workloads train, with random weights; batches are random, and a step is forward, backward and
update. The paper states neither batch sizes nor precision, nor shapes of its GPT-2 and mixtures: these are ours.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from adan.sharding import local
from adan_bench.config import RunConfig
from adan_bench.data.settings import PLAIN
from adan_bench.errors import UsageError, unknown
from adan_bench.studies.competitors import Competitor, competitors
from adan_bench.task import SCALES
from adan_bench.training import optimizers
from adan_bench.training.distributed import ALONE, Ranks, joined
from adan_bench.training.roles import by_role
from adan_bench.workloads.images import image_sizes
from adan_bench.workloads.language import MIXTURES, TextSizes

OPTIMIZERS = ("adan", "adamw", "lamb", "adabelief")
LENGTH, TINY_LENGTH = 1024, 16  # tokens of a sequence
CLASSES, PIXELS, TINY_PIXELS = 1000, 224, 32  # of images
WARMUP = 5  # steps before the first that counts
GB = 1e9
STEPS = {"smoke": 5, "small": 10, "paper": 200}  # of the paper's tables
ROUNDS = 3  # the optimizers take turns, so that other load on the machine affects them equally

OnCase = Callable[[Mapping[str, Any]], None]
Key = tuple[str, str, str, int]  # kind of table, model, optimizer, the paper's GPUs


@dataclass(frozen=True)
class TimedModel:
    """A model as workloads train it: with images of 224 pixels, or sequences of 1,024 tokens.

    sizes: tiny ones, for the scale "smoke", and the published ones.
    """

    family: str
    batch_size: int
    sizes: tuple[Any, Any]

    @property
    def text(self) -> bool:
        return self.family in ("gpt2", "mixtral")

    def build(self, tiny: bool = False) -> Any:
        try:
            from transformers import AutoModelForCausalLM

            from adan_bench.workloads.parts import gpt, networks
        except ModuleNotFoundError as error:
            raise UsageError(f"speed needs the package {error.name}; run: pip install '.[paper]'") from error
        sizes = self.sizes[0 if tiny else 1]
        if self.text:
            config = (gpt.gpt2_config if self.family == "gpt2" else gpt.mixtral_config)(sizes, sizes.vocabulary)
            return AutoModelForCausalLM.from_config(config)
        images: Any = SimpleNamespace(size=TINY_PIXELS if tiny else PIXELS, channels=3, classes=CLASSES)
        return networks.BUILDERS[self.family](PLAIN, sizes, images)


def _images(family: str, width: int, *depths: int) -> TimedModel:
    tiny, _, published = image_sizes(family, width, depths, shrink=max(depths))
    return TimedModel(family, 128, (tiny, published))


def _text(family: str, sizes: TextSizes) -> TimedModel:
    tiny = replace(sizes, layers=2, width=32, heads=2, vocabulary=256, expert=64, key_heads=2)
    return TimedModel(family, 8, (tiny, sizes))


MODELS = {
    "ResNet-50": _images("bottleneck", 64, 3, 4, 6, 3),
    "ResNet-101": _images("bottleneck", 64, 3, 4, 23, 3),
    "ViT-B": _images("vit", 768, 12),
    "Swin-B": _images("swin", 128, 2, 2, 18, 2),
    "ConvNeXt-B": _images("convnext", 128, 3, 3, 27, 3),
    "Swin-L": _images("swin", 192, 2, 2, 18, 2),
    "ConvNeXt-L": _images("convnext", 192, 3, 3, 27, 3),
    "ViT-L": _images("vit", 1024, 24),
    "GPT-2-670M": _text("gpt2", TextSizes(21, 1536, 24, LENGTH, 50_257, dropout=0.1)),
    "GPT-2-1B": _text("gpt2", TextSizes(24, 1792, 28, LENGTH, 50_257, dropout=0.1)),
    "MoE-8x0.1B": _text("mixtral", MIXTURES["8x0.1B"]),
    "MoE-8x0.3B": _text("mixtral", MIXTURES["8x0.3B"]),
}


def check(models: Sequence[str], names: Sequence[str], scale: str, parallel: str | None) -> None:
    if scale not in SCALES:
        raise UsageError(f"--scale {scale}: no such scale; there are: {', '.join(SCALES)}")
    for model in models:
        if model not in MODELS:
            raise unknown("model", model, MODELS)
        if parallel is not None and not MODELS[model].text:
            raise UsageError(f"--parallel {parallel}: {model} reads no tokens; use a GPT-2 or an MoE")
    for rival in map(_competitor, names):
        optimizers.check_settings(rival.spec, rival.settings)
        if rival.spec.passes > 1:
            raise UsageError(f"--optimizers {rival.name}: its update takes {rival.spec.passes} gradients; leave it out")
        if parallel == "fsdp" and not rival.spec.shards:
            raise UsageError(f"{rival.name} cannot step on sharded parameters (DTensors); use --parallel ddp")


def _competitor(name: str) -> Competitor:
    """An optimizer or a variant of one, such as adan:state_format=8bit."""
    (competitor,) = competitors(name, most=1)
    return competitor


def measure(
    models: Sequence[str],
    names: Sequence[str],
    chosen: RunConfig,
    warmup: int = WARMUP,
    on_case: OnCase = lambda case: None,
) -> list[dict[str, Any]]:
    """The cases of every model with every optimizer; one that cannot be measured says why."""
    check(models, names, chosen.scale, chosen.parallel)
    cases = []
    with joined(chosen.parallel, chosen.device) as ranks:
        for model in models:
            for case in _measure(model, names, chosen, warmup, ranks):
                cases.append(case)
                if ranks.rank == 0:
                    on_case(case)
    return cases


@dataclass(frozen=True)
class Sample:
    """Steps of a model with an optimizer: seconds of whole steps and of updates alone, and sizes by name."""

    times: list[float]
    alone: list[float]
    sizes: Mapping[str, float | None]


def _measure(
    name: str, names: Sequence[str], chosen: RunConfig, warmup: int, ranks: Ranks = ALONE
) -> list[dict[str, Any]]:
    """A model's cases, one for each optimizer. Only one optimizer is in memory at a time, whose peak is measured."""
    device, tiny = torch.device(ranks.device or chosen.device), chosen.scale == SCALES[0]
    batch_size = chosen.batch_size or (2 if tiny else MODELS[name].batch_size)
    samples: dict[str, list[Sample]] = {optimizer: [] for optimizer in names}
    errors: dict[str, str] = {}
    rounds = min(ROUNDS, chosen.steps)
    for i in range(rounds):
        steps = chosen.steps * (i + 1) // rounds - chosen.steps * i // rounds
        part = replace(chosen, steps=steps, batch_size=batch_size)
        for optimizer in [optimizer for optimizer in names if optimizer not in errors]:
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
            torch.manual_seed(0)
            try:
                samples[optimizer].append(_train(MODELS[name], optimizer, part, warmup, ranks, device))
            except torch.OutOfMemoryError:
                errors[optimizer] = f"out of memory with a batch of {batch_size}"
    common: dict[str, Any] = {"tiny": tiny, "batch_size": batch_size, "bf16": chosen.bf16, "steps": chosen.steps}
    common |= {"parallel": chosen.parallel, "ranks": ranks.count}
    tokens = batch_size * (TINY_LENGTH if tiny else LENGTH) if MODELS[name].text else None
    return [
        {"model": name, "optimizer": optimizer, **common}
        | ({"error": errors[optimizer]} if optimizer in errors else _pooled(samples[optimizer], tokens))
        for optimizer in names
    ]


def _pooled(samples: Sequence[Sample], tokens: int | None) -> dict[str, Any]:
    """Medians over all steps; rounds_ms has those of each round, whose differences are noise."""
    median = statistics.median(seconds for sample in samples for seconds in sample.times)
    return {
        **samples[0].sizes,
        "step_ms": 1e3 * median,
        "rounds_ms": [1e3 * statistics.median(sample.times) for sample in samples],
        "optimizer_ms": 1e3 * statistics.median(seconds for sample in samples for seconds in sample.alone),
        "tokens_per_second": None if tokens is None else tokens / median,
    }


def _train(model: TimedModel, name: str, chosen: RunConfig, warmup: int, ranks: Ranks, device: torch.device) -> Sample:
    tiny = chosen.scale == SCALES[0]
    with device:  # a billion random weights take the CPU half a minute
        net = model.build(tiny).to(device).train()
    size = sum(p.numel() for p in net.parameters())
    forward = ranks.spread(net)
    rival = _competitor(name)
    settings = {**optimizers.defaults(rival.spec), "lr": 1e-6, **rival.settings}
    parameters: Any = by_role(net.parameters(), net) if rival.spec.by_role else net.parameters()
    optimizer = optimizers.build(rival.spec, parameters, settings)
    inputs, labels = _batch(model, tiny, device, chosen.batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=chosen.bf16):
            logits = forward(inputs).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()

    times = _timed(step, warmup, chosen.steps, device)
    alone = _timed(optimizer.step, 1, chosen.steps, device)  # with the last gradients
    peaks = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
    peak, reserved = (most(device) / GB if device.type == "cuda" else None for most in peaks)
    stored = round(optimizers.state_bytes(optimizer) * sum(local(p).numel() for p in net.parameters()))
    return Sample(times, alone, {"parameters": size, "state_bytes": stored, "peak_gb": peak, "reserved_gb": reserved})


def _batch(model: TimedModel, tiny: bool, device: torch.device, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if model.text:
        shape = size, TINY_LENGTH if tiny else LENGTH
        tokens = torch.randint(256 if tiny else 32000, shape, device=device)
        return tokens, tokens
    pixels = TINY_PIXELS if tiny else PIXELS
    return torch.randn(size, 3, pixels, pixels, device=device), torch.randint(CLASSES, (size,), device=device)


def _timed(call: Callable[[], Any], warmup: int, steps: int, device: torch.device) -> list[float]:
    times = []
    for i in range(warmup + steps):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return times


def cases(
    wanted: Sequence[Key], chosen: RunConfig, on_case: OnCase = lambda case: None
) -> dict[Key, Mapping[str, Any]]:
    """What the paper's tables of speed want.

    A case that could not be measured has the reason as "absent" (what it needs is not here) or "failed".
    """
    results: dict[Key, Mapping[str, Any]] = {}
    chosen = replace(chosen, steps=STEPS[chosen.scale], parallel=None)
    for kind, gpus in dict.fromkeys((key[0], key[3]) for key in wanted):
        keys = [key for key in wanted if (key[0], key[3]) == (kind, gpus)]
        models, names = (list(dict.fromkeys(str(key[i]) for key in keys)) for i in (1, 2))
        try:
            if chosen.scale != SCALES[0] and chosen.device == "cpu":
                raise UsageError(f"at the scale {chosen.scale} these models are for a GPU: give --device cuda")
            if kind == "speed":
                found = measure(models, names, chosen, on_case=on_case)
            else:
                found = launch(models, names, replace(chosen, parallel="ddp"), _processes(gpus, chosen))
                for case in found:
                    on_case(case)
            results |= {(kind, case["model"], case["optimizer"], gpus): case for case in found}
        except (UsageError, RuntimeError) as error:
            reason = {"absent" if isinstance(error, UsageError) else "failed": str(error)}
            results |= dict.fromkeys(keys, reason)
    return results


def _processes(gpus: int, chosen: RunConfig) -> int:
    """How many processes stand for so many GPUs of the paper: an eighth on a CPU, at the scale "paper" as many."""
    if chosen.device == "cpu":
        return max(2, gpus // 8)
    there = torch.cuda.device_count()
    needed = gpus if chosen.scale == SCALES[-1] else max(2, there * gpus // 32)
    if there < needed:
        raise UsageError(f"it needs {needed} GPUs in one machine, and there {'is' if there == 1 else 'are'} {there}")
    return needed


def launch(models: Sequence[str], names: Sequence[str], chosen: RunConfig, ranks: int) -> list[dict[str, Any]]:
    """The cases of `adan-bench speed` among ranks that torchrun starts."""
    check(models, names, chosen.scale, chosen.parallel)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        flags: dict[str, Any] = {"optimizers": ",".join(names), "steps": chosen.steps, "scale": chosen.scale}
        flags |= {"device": chosen.device, "parallel": chosen.parallel, "out": file}
        if chosen.batch_size:
            flags["batch-size"] = chosen.batch_size
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*torchrun, "-m", "adan_bench", "speed", *models]
        command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        done = subprocess.run([*command, *["--bf16"] * chosen.bf16], capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("adan-bench: ")]
            last = " ".join(done.stderr[-300:].split())
            raise RuntimeError(lines[-1] if lines else f"torchrun ended with code {done.returncode}: {last}")
        found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cases"]
        return found
