"""How fast `adan-bench` makes steps on a GPU: captured, eager and under torch.compile; one run and several at a time.

    python benchmarks/harness.py prepare --data DIR --cache CACHE    # once: CIFAR-10 as arrays
    python benchmarks/harness.py --cache CACHE                       # writes results/bench-harness.json

Every row has processes of its own. Those for single runs start at once, load, compile and make their first steps; then
they are timed one after the other. Losses of 200 steps tell whether a captured run makes the numbers of an eager one,
with kernels that have one order of summation. Several runs at a time come last. The record is written row by row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEED = 0
CURVE = 200  # first steps, whose losses are compared
LOOK = 10  # steps whose mean loss is one point of the curve
FIRST = 20  # steps before the clock starts
PROFILED = 10
LIMIT = 120  # seconds that a process may take until it is ready


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
    "ResNet-34": Case("cifar-resnet34", "small", 128, 300, {"bf16": True, "channels_last": True}),
    "ViT, 4.8 M": Case("cifar-vit", "small", 256, 300, {"bf16": True}),
    "GPT-2, 10 M": Case("gpt2-code", "small", 64, 200, {"bf16": True}),
    "LSTM, 1 layer": Case("lstm-1", "paper", 20, 600, {"bf16": True}),
}
COMPILED = "captured, --compile"
MODES = ("captured", "eager", "reduce-overhead", COMPILED)
ALONE = [(name, mode) for name in CASES for mode in MODES if (name, mode) != ("LSTM, 1 layer", COMPILED)]
TOGETHER = [  # runs at a time, and the percentage of the GPU's multiprocessors that MPS lets each of them use
    ("ResNet-34", COMPILED, 50, (3, 4)),
    ("ResNet-34", COMPILED, 34, (3,)),
    ("ResNet-34", COMPILED, 100, (3, 4)),
    ("ResNet-34", "captured", 50, (3,)),
    ("ResNet-34", "captured", 100, (3, 4)),
    ("LSTM, 1 layer", "captured", 100, (3,)),
]
KINDS = {  # of kernels, by their names
    "convolutions": "xmma|cudnn|conv|nhwc",
    "matrix products": "gemm|nvjet|cublas",
    "attention": "flash",
    "optimizer": "^(update|step_scalars)$",
    "other": "",
}


# A process


def serve(name: str, mode: str, cache: Path) -> None:
    """Load a case and make the first steps, say so, and do with it what is asked."""
    import torch

    use_arrays(cache)
    from adan_bench.training.graph import side_stream

    with side_stream(torch.device("cuda")):
        steps = Steps(CASES[name], mode, cache)
        steps.make(FIRST)
        answer(graph=steps.words(), implementation=steps.implementation, parameters=steps.trainer.size)
        for line in sys.stdin:
            answer(**getattr(steps, line.strip())())


def answer(**content: Any) -> None:
    print(json.dumps(content), flush=True)


class Steps:
    """The steps of a case in one of the modes."""

    def __init__(self, case: Case, mode: str, cache: Path) -> None:
        import torch

        from adan_bench.config import RunConfig
        from adan_bench.training.configure import configure
        from adan_bench.training.optimizers import get_optimizer, implementation
        from adan_bench.training.trainer import Trainer
        from adan_bench.workloads.registry import get_workload

        self.case, self.mode, self.cache, self.torch = case, mode, cache, torch
        graph = "on" if mode.startswith("captured") else "off"
        chosen = RunConfig(
            device="cuda", scale=case.scale, batch_size=case.batch_size, data=cache / "data", graph=graph, seed=SEED,
            threads=2, compile=mode.endswith("--compile"), **case.options,
        )  # fmt: skip
        config = configure(get_workload(case.workload, case.scale), get_optimizer(case.optimizer), chosen)
        self.trainer = Trainer(config)
        self.trainer.updater.forward.train()
        self.implementation = implementation(self.trainer.optimizer)
        self.update = self._plain_loop() if mode == "reduce-overhead" else self.trainer.update

    def _plain_loop(self) -> Any:
        """What a user would write: the model compiled with CUDA graphs of PyTorch's own, the rest as usual."""
        from adan_bench.data.batching import moved

        torch, trainer = self.torch, self.trainer
        params, optimizer, task = list(trainer.model.parameters()), trainer.optimizer, trainer.task
        compiled = torch.compile(trainer.model, mode="reduce-overhead")

        def update() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            factor = trainer.factor(trainer.state.step)
            for group, base in zip(optimizer.param_groups, trainer.updater.base_lr, strict=True):
                group["lr"] = base * factor
            optimizer.zero_grad(set_to_none=True)
            batch = trainer.updater.prepared(moved(task.batches(trainer.state.step), trainer.device))
            with trainer.updater.autocast():
                loss = task.loss(compiled, batch)
            loss.backward()
            if trainer.updater.clip is not None:
                torch.nn.utils.clip_grad_norm_(params, trainer.updater.clip)
            optimizer.step()
            trainer.updater.window += loss.detach()
            trainer.state.step += 1

        return update

    def make(self, count: int) -> None:
        for _ in range(count):
            self.update()
        self.torch.cuda.synchronize()

    def curve(self) -> dict[str, Any]:
        """The mean losses of the first steps of a new run whose kernels sum in one order."""
        torch = self.torch
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)
        del self.trainer, self.update
        steps, losses = Steps(self.case, self.mode, self.cache), []
        torch.backends.cudnn.benchmark = False  # what is fastest is another kernel in another process
        for _ in range(CURVE // LOOK):
            steps.trainer.updater.window.zero_()
            steps.make(LOOK)
            losses.append(steps.trainer.updater.window.item() / LOOK)
        return {"curve": losses, "graph": steps.words()}

    def words(self) -> str:
        return self.trainer.updater.words()

    def timed(self) -> dict[str, Any]:
        begin, count = time.time(), self.case.steps if self.mode.startswith("captured") else self.case.steps // 3
        self.make(count)
        end = time.time()
        peak = self.torch.cuda.max_memory_allocated()
        return {"begin": begin, "end": end, "steps_per_second": count / (end - begin), "peak_bytes": peak}

    def profiled(self) -> dict[str, Any]:
        """Milliseconds in which kernels of one step ran, by the profiler; gaps between them are not in it."""
        profile = self.torch.profiler
        with profile.profile(activities=[profile.ProfilerActivity.CUDA]) as trace:
            self.make(PROFILED)
        events = [e for e in trace.events() if str(e.device_type).endswith("CUDA")]
        spans = sorted((e.time_range.start, e.time_range.end) for e in events)
        kinds = dict.fromkeys(KINDS, 0.0)
        for event in events:
            kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, event.name))
            kinds[kind] += (event.time_range.end - event.time_range.start) / 1000 / PROFILED
        busy, until = 0.0, float("-inf")
        for start, stop in spans:  # of kernels that overlap, the time once
            busy += max(0.0, stop - max(start, until))
            until = max(until, stop)
        return {"kernel_ms": busy / 1000 / PROFILED, "kernels": len(spans) / PROFILED, "kernel_ms_by_kind": kinds}


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

    def __init__(self, name: str, mode: str, cache: Path, share: int = 100) -> None:
        self.name, self.mode = name, mode
        command = [sys.executable, __file__, "serve", name, mode, "--cache", str(cache)]
        self.log = cache / f"{name} {mode} {time.monotonic_ns()}.log".replace(", ", "-").replace(" ", "-")
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)},
            )

        self.watchdog = threading.Timer(LIMIT, self.process.kill)
        self.watchdog.start()

    def get_ready(self) -> None:
        """Wait until it is; a process that takes too long is stopped."""
        ready = self.hear()
        self.watchdog.cancel()
        self.alive = ready is not None
        self.facts = ready or {"error": self.error()}
        print(f"{self.name}, {self.mode}: {'ready' if self.alive else self.error()}", flush=True)

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()

    def hear(self) -> dict[str, Any] | None:
        """Its next answer; None where it died."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                answer: dict[str, Any] = json.loads(line)
                return answer
        return None

    def told(self, what: str) -> dict[str, Any] | None:
        self.ask(what)
        return self.hear()

    def error(self) -> str:
        lines = [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit code {self.process.poll()}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def alone(workers: list[Worker], save: Callable[[], None], cases: dict[str, dict[str, Any]]) -> None:
    """Cases in modes, timed one after the other."""
    for worker in workers:
        worker.get_ready()
    for worker in workers:
        row = cases.setdefault(worker.name, {})[worker.mode] = worker.facts
        if worker.alive and (timed := worker.told("timed")):
            row |= {**timed, **(worker.told("profiled") or {})}
            row["gpu_busy"] = row.get("kernel_ms", 0) * row["steps_per_second"] / 1000
            print(
                f"{worker.name}, {worker.mode}: {row['steps_per_second']:.1f} steps/s, GPU {row['gpu_busy']:.0%} busy",
                flush=True,
            )
        save()


def compare(workers: list[Worker], cases: dict[str, dict[str, Any]]) -> None:
    """Add the losses of captured and eager runs, and how far they are apart."""
    compared = [worker for worker in workers if worker.mode in ("captured", "eager") and worker.alive]
    for worker in compared:
        worker.ask("curve")
    for worker in compared:
        cases[worker.name][worker.mode] |= worker.hear() or {"error": worker.error()}
    for modes in cases.values():
        modes["relative_gap"] = gap(*(modes.get(mode, {}).get("curve") for mode in ("captured", "eager")))
    print({name: modes["relative_gap"] for name, modes in cases.items()}, flush=True)


def gap(a: list[float] | None, b: list[float] | None) -> float | None:
    return None if not a or not b else max(abs(x / y - 1) for x, y in zip(a, b, strict=True))


def together(workers: list[Worker], share: int) -> dict[str, Any]:
    """Several runs of a case at a time."""
    for worker in workers:
        worker.ask("timed")
    each = [row for worker in workers if (row := worker.hear())]
    seconds = max(row["end"] for row in each) - min(row["begin"] for row in each)
    name, mode, runs = workers[0].name, workers[0].mode, len(each)
    total, rates = runs * CASES[name].steps / seconds, [row["steps_per_second"] for row in each]
    print(f"{runs} × {name}, {mode}, {share}% each: {total:.1f} steps/s in total", flush=True)
    return {"case": name, "mode": mode, "share": share, "runs": runs, "steps_per_second": total, "each": rates}


def measure(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from common import environment

    from adan_bench.training.mps import multi_process_service

    names = args.cases or list(CASES)
    record: dict[str, Any] = {
        "environment": environment(),
        "seed": SEED,
        "curve_steps": CURVE,
        "cases": {name: asdict(CASES[name]) for name in names},
        "alone": {},
        "together": [],
    }

    def save() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    workers = [Worker(name, mode, args.cache) for name, mode in ALONE if name in names]
    alone(workers, save, record["alone"])
    compare(workers, record["alone"])
    save()
    for worker in workers:
        worker.stop()
    with multi_process_service() as record["mps"]:
        groups = [
            (share, counts, [Worker(name, mode, args.cache, share) for _ in range(max(counts))])
            for name, mode, share, counts in TOGETHER
            if name in names
        ]
        for _, _, workers in groups:
            for worker in workers:
                worker.get_ready()
        for share, counts, workers in groups:
            mine = [worker for worker in workers if worker.alive]
            for count in counts:
                if count <= len(mine):
                    record["together"].append(together(mine[:count], share))
                    save()
            for worker in workers:
                worker.stop()
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
    parser.add_argument("--data", type=Path, default=os.environ.get("ADAN_DATA") or None, help="ADAN_DATA unless given")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench-harness.json")
    args = parser.parse_args()
    if args.command == "prepare" and args.data is None:
        parser.error("prepare needs --data DIR or ADAN_DATA: a folder with cifar10 and ptb")
    if args.command == "serve":
        serve(args.case, args.mode, args.cache)
    else:
        {"measure": measure, "prepare": prepare}[args.command](args)


if __name__ == "__main__":
    main()
