"""How fast `adan-bench` makes steps on a GPU: captured, eager and under torch.compile; one run and several at a time.

    python benchmarks/harness.py prepare --data DIR --cache CACHE    # once: CIFAR-10 as arrays
    python benchmarks/harness.py --cache CACHE                       # writes results/bench-harness.json

Every row has processes of its own. They all start at once, load, compile and make their first steps; then they are
timed one after the other, or together where that is the question. Losses of the first steps tell whether a captured run
makes the numbers of an eager one; a second eager run tells how much the kernels themselves vary.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEED = 0
CURVE = 200  # first steps, whose losses are compared
LOOK = 10  # steps whose mean loss is one point of the curve
PROFILED = 10
LIMIT = 150  # seconds that a process may take until it is ready


@dataclass(frozen=True)
class Case:
    """A run of the harness, and how many steps are timed."""

    workload: str
    scale: str
    batch_size: int
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adan"


CASES = {
    "ResNet-34": Case("cifar-resnet34", "small", 128, 500, {"bf16": True, "channels_last": True}),
    "ViT, 4.8 M": Case("cifar-vit", "small", 256, 500, {"bf16": True}),
    "GPT-2, 10 M": Case("gpt2-code", "small", 64, 300, {"bf16": True}),
    "LSTM, 1 layer": Case("lstm-1", "paper", 20, 1000, {"bf16": True}),
}
MODES = ("captured", "captured, --compile", "eager", "eager again", "reduce-overhead")
TIMED = tuple(mode for mode in MODES if mode != "eager again")
TOGETHER = [
    ("ResNet-34", "captured", 3),
    ("ResNet-34", "captured", 4),
    ("ResNet-34", "captured, --compile", 3),
    ("ResNet-34", "captured, --compile", 4),
    ("LSTM, 1 layer", "captured", 3),
]


# A process


def serve(name: str, mode: str, cache: Path) -> None:
    """Load a case and make the first steps, say so, and time more of them when asked."""
    import torch

    use_arrays(cache)
    from adan_bench.training.graph import side_stream

    with side_stream(torch.device("cuda")):
        steps = Steps(CASES[name], mode, cache)
        answer(curve=steps.curve(), graph=steps.words(), implementation=steps.implementation, size=steps.size)
        for line in sys.stdin:
            answer(**steps.timed() if line.strip() == "time" else steps.profiled())


def answer(**content: Any) -> None:
    print(json.dumps(content), flush=True)


class Steps:
    """The steps of a case in one of the modes."""

    def __init__(self, case: Case, mode: str, cache: Path) -> None:
        import torch

        from adan_bench.spec import RunConfig
        from adan_bench.training.configure import configure
        from adan_bench.training.optimizers import get_optimizer, implementation
        from adan_bench.training.trainer import Trainer
        from adan_bench.workloads.registry import get_workload

        self.case, self.torch = case, torch
        graph = "on" if mode.startswith("captured") else "off"
        chosen = RunConfig(
            device="cuda", scale=case.scale, batch_size=case.batch_size, data=cache / "data", graph=graph, seed=SEED,
            threads=2, compile=mode.endswith("--compile"), **case.options,
        )  # fmt: skip
        config = configure(get_workload(case.workload, case.scale), get_optimizer(case.optimizer), chosen)
        self.trainer = Trainer(config)
        self.size, self.implementation = self.trainer.size, implementation(self.trainer.optimizer)
        self.update = self._plain_loop() if mode == "reduce-overhead" else self.trainer.update

    def _plain_loop(self) -> Any:
        """What a user would write: the loss compiled with CUDA graphs of PyTorch's own, the rest as usual."""
        from adan_bench.data.batching import moved

        torch, trainer = self.torch, self.trainer
        params, optimizer, task = list(trainer.model.parameters()), trainer.optimizer, trainer.task

        def loss(batch: Any) -> Any:
            with trainer._autocast():
                return task.loss(trainer.model, trainer._prepared(batch))

        compiled = torch.compile(loss, mode="reduce-overhead")

        def update() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            factor = trainer.factor(trainer.step)
            for group, base in zip(optimizer.param_groups, trainer.base_lr, strict=True):
                group["lr"] = base * factor
            optimizer.zero_grad(set_to_none=True)
            found = compiled(moved(task.batches(trainer.step), trainer.device))
            found.backward()
            if trainer.clip is not None:
                torch.nn.utils.clip_grad_norm_(params, trainer.clip)
            optimizer.step()
            trainer.window += found.detach()
            trainer.step += 1

        return update

    def curve(self) -> list[float]:
        """The mean losses of the first steps."""
        found = []
        self.trainer.forward.train()
        for _ in range(CURVE // LOOK):
            self.trainer.window.zero_()
            for _ in range(LOOK):
                self.update()
            found.append(self.trainer.window.item() / LOOK)
        return found

    def words(self) -> str:
        return "eager" if self.trainer.graph is None else self.trainer.graph.words()

    def timed(self) -> dict[str, Any]:
        self.torch.cuda.synchronize()
        begin = time.time()
        for _ in range(self.case.steps):
            self.update()
        self.torch.cuda.synchronize()
        end = time.time()
        peak = self.torch.cuda.max_memory_allocated()
        return {"begin": begin, "end": end, "steps_per_second": self.case.steps / (end - begin), "peak_bytes": peak}

    def profiled(self) -> dict[str, Any]:
        """Milliseconds in which kernels of one step ran, by the profiler; gaps between them are not in it."""
        profile = self.torch.profiler
        with profile.profile(activities=[profile.ProfilerActivity.CUDA]) as found:
            for _ in range(PROFILED):
                self.update()
            self.torch.cuda.synchronize()
        events = [e for e in found.events() if str(e.device_type).endswith("CUDA")]
        spans = sorted((e.time_range.start, e.time_range.end) for e in events)
        busy, until = 0.0, float("-inf")
        for start, stop in spans:  # of kernels that overlap, the time once
            busy += max(0.0, stop - max(start, until))
            until = max(until, stop)
        return {"kernel_ms": busy / 1000 / PROFILED, "kernels": len(spans) / PROFILED}


def use_arrays(cache: Path) -> None:
    """CIFAR-10 from the arrays of `prepare`, so that a machine without pyarrow will do."""
    import numpy as np
    import torch

    from adan_bench.data import images

    def read(path: Path) -> Any:
        parts = (np.load(cache / f"cifar-{path.stem}-{part}.npy") for part in ("images", "labels"))
        return tuple(torch.from_numpy(part) for part in parts)

    images.read_cifar = read  # type: ignore[assignment]


# The processes together


class Worker:
    """A process that serves a case."""

    def __init__(self, name: str, mode: str, cache: Path) -> None:
        self.name, self.mode = name, mode
        command = [sys.executable, __file__, "serve", name, mode, "--cache", str(cache)]
        self.log = cache / f"{name} {mode} {time.monotonic_ns()}.log".replace(", ", "-").replace(" ", "-")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

        self.watchdog = threading.Timer(LIMIT, self.process.kill)
        self.watchdog.start()

    def ready(self) -> dict[str, Any] | None:
        """What it says once it is ready; None where it died, or was stopped because that took too long."""
        found = self._hear()
        self.watchdog.cancel()
        return found

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def _hear(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    def told(self, what: str) -> dict[str, Any] | None:
        self.ask(what)
        return self._hear()

    def error(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit code {self.process.poll()}"

    def stop(self) -> None:
        self.watchdog.cancel()
        self.process.kill()
        self.process.wait()


def alone(cache: Path, names: list[str], modes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Each case in each mode, timed one after the other."""
    workers = [Worker(name, mode, cache) for name in names for mode in modes]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    began = time.monotonic()
    for worker in workers:
        first = worker.ready()
        found[worker.name][worker.mode] = first or {"error": worker.error()}
        print(
            f"[{time.monotonic() - began:4.0f} s] {worker.name} {worker.mode}: {'ready' if first else worker.error()}"
        )
    for worker in workers:
        row = found[worker.name][worker.mode]
        if "error" not in row and worker.mode in TIMED:
            row |= worker.told("time") or {"error": worker.error()}
        if "error" not in row and worker.mode in TIMED:
            row |= worker.told("profile") or {}
            row["gpu_busy"] = row["kernel_ms"] * row["steps_per_second"] / 1000 if "kernel_ms" in row else None
            print(f"{worker.name} {worker.mode}: {row['steps_per_second']:.1f} steps/s, GPU {row['gpu_busy'] or 0:.0%}")
        worker.stop()
    for rows in found.values():
        rows["relative_gap"] = {
            mode: gap(rows[mode].get("curve"), rows["eager"].get("curve"))
            for mode in ("captured", "eager again")
            if mode in rows and "eager" in rows
        }
    return found


def gap(a: list[float] | None, b: list[float] | None) -> float | None:
    return None if not a or not b else max(abs(x / y - 1) for x, y in zip(a, b, strict=True))


def together(cache: Path, name: str, mode: str, count: int) -> dict[str, Any]:
    """So many runs of a case at a time."""
    workers = [Worker(name, mode, cache) for _ in range(count)]
    facts: dict[str, Any] = {"case": name, "mode": mode, "runs": count}
    try:
        if any(worker.ready() is None for worker in workers):
            return {**facts, "error": next(w.error() for w in workers)}
        for worker in workers:
            worker.ask("time")
        rows = [row for worker in workers if (row := worker._hear()) is not None]
    finally:
        for worker in workers:
            worker.stop()
    seconds = max(row["end"] for row in rows) - min(row["begin"] for row in rows)
    total = count * CASES[name].steps / seconds
    print(f"{count} × {name}, {mode}: {total:.1f} steps/s in total")
    return {**facts, "steps_per_second": total, "each": [row["steps_per_second"] for row in rows]}


def measure(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from common import environment

    from adan_bench.training.mps import multi_process_service

    names = args.cases or list(CASES)
    found = {"alone": alone(args.cache, names, tuple(args.modes or MODES))}
    with multi_process_service() as shared:
        several = [together(args.cache, *row) for row in TOGETHER if row[0] in names]
    record = {
        "environment": environment(),
        "seed": SEED,
        "curve_steps": CURVE,
        "cases": {name: asdict(CASES[name]) for name in names},
        **found,
        "mps": shared,
        "together": several,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {args.out}")


def prepare(args: argparse.Namespace) -> None:
    """CIFAR-10 as arrays, from the parquet files of a data folder or from `evidence pack`'s file."""
    import shutil

    import numpy as np

    sys.path.insert(0, str(ROOT / "benchmarks"))
    args.cache.mkdir(parents=True, exist_ok=True)
    from evidence import data as evidence

    if (args.data / evidence.PACKED).exists():
        evidence._decode_cifar(args.data / evidence.PACKED, args.cache, os.cpu_count() or 1)
    else:
        from adan_bench.data.files import CIFAR
        from adan_bench.data.images import read_cifar

        for name in CIFAR:
            for part, tensor in zip(("images", "labels"), read_cifar(args.data / name), strict=True):
                np.save(args.cache / f"cifar-{Path(name).stem}-{part}.npy", tensor.numpy())
    shutil.copytree(args.data / "ptb", args.cache / "data" / "ptb", dirs_exist_ok=True)
    for split in ("train", "test"):  # what stands in for the files that the harness looks for
        target = args.cache / "data" / "cifar10" / f"{split}.parquet"
        target.parent.mkdir(exist_ok=True)
        target.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="measure", choices=("measure", "prepare", "serve"))
    parser.add_argument("case", nargs="?")
    parser.add_argument("mode", nargs="?")
    parser.add_argument("--cases", nargs="*", choices=CASES)
    parser.add_argument("--modes", nargs="*", choices=MODES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench-harness.json")
    args = parser.parse_args()
    if args.command == "serve":
        serve(args.case, args.mode, args.cache)
    else:
        {"measure": measure, "prepare": prepare}[args.command](args)


if __name__ == "__main__":
    main()
