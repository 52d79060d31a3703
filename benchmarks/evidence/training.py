"""One run: the step as a CUDA graph where that is possible, evaluations between its replays, the record of it all.

The loss in such a graph is compiled where that pays; evaluations are not.

The same function `Trainer.update` is the eager step and what the graph captures. Everything that changes from step to
step is a tensor on the device: the step count, the learning rate (looked up in a table of all of them), the random
state. The first steps are made eagerly on the stream of the capture; they count as steps.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from adan_bench.training.schedules import schedule
from evidence import optimizers, problems
from evidence.jobs import Job, Record

WARMUP_STEPS = 3  # cuDNN chooses algorithms, Triton compiles, optimizers make their states


class CaptureFailed(RuntimeError):
    """A CUDA graph could not hold the step. The process may be unusable: make the run eagerly in another."""


class Trainer:
    """A problem, its optimizer and the buffers that a step reads and writes. graph: whether a graph may hold a step."""

    def __init__(self, job: Job, device: str, folder: Path, graph: bool = False) -> None:
        torch.manual_seed(job.seed)
        self.problem = problems.build(job.problem, job.options, problems.Setup(job.seed, job.tuning, device, folder))
        self.steps = job.length * (self.problem.per_epoch if job.unit == "epochs" else 1)
        self.device = torch.device(device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        factor = schedule(self.problem.schedule, self.steps, self.problem.warmup)
        settings = dict(job.settings)
        peak = settings.pop("lr")
        self.rates = torch.tensor([peak * factor(step) for step in range(self.steps)], device=device)
        self.lr = self.rates[0].clone()
        self.total = torch.zeros((), device=device)
        model = self.problem.model
        self.optimizer = optimizers.build(
            job.optimizer, model, settings, self.lr, self.problem.decay_all, self.problem.groups
        )
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.captures = graph and self.device.type == "cuda" and self.problem.captures
        self.mode = "eager"
        self.loss = self.problem.loss
        if self.captures:
            self.mode = "graph"
            if self.problem.compiles:
                self.mode = "graph, compiled"
                torch.compiler.reset()  # the run before has another model
                self.loss = torch.compile(self.loss, dynamic=False)

    def update(self) -> None:
        """One step. No value is read back, and no reference to the loss stays."""
        self.lr.copy_(self.rates.index_select(0, self.count).squeeze(0))
        for group in self.optimizer.param_groups:
            if "share" in group:
                group["lr"].copy_(group["share"] * self.lr)
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss(self.count)
        loss.backward()
        if self.problem.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.problem.max_grad_norm)
        self.optimizer.step()
        self.total += loss.detach()
        self.count += 1

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        enabled = self.problem.bf16 and self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if enabled else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.problem.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "stream": self.problem.stream.state_dict(),
            "count": self.count,
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.problem.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            if "share" not in group:
                group["lr"] = self.lr
        self.problem.stream.load_state_dict(state["stream"])
        self.count.copy_(state["count"])
        torch.set_rng_state(state["random"])

    def captured(self, stream: Any) -> Any:
        """The graph of `update`; capturing makes no step."""
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # to free an older run's graph during the capture would end it
        try:
            with torch.cuda.graph(graph, stream=stream):
                self.update()
        except Exception as error:
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error
        finally:
            gc.enable()
        return graph

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.problem.model.eval()
        with self.autocast():
            metrics = dict(self.problem.evaluate())
        self.problem.model.train()
        return metrics


def run(job: Job, device: str, folder: Path, graph: bool = True) -> Record:
    """Train and return the record, without what the pool adds to it (environment, time of day)."""
    began = time.perf_counter()
    cuda = device.startswith("cuda")
    if cuda:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        gc.collect()
        torch.cuda.empty_cache()  # of the run before
    stream = _stream() if cuda else None
    with torch.cuda.stream(stream) if cuda else contextlib.nullcontext():
        trainer = Trainer(job, device, folder, graph)
        checkpoint = folder / "checkpoints" / f"{job.key}.pt" if trainer.problem.stream is not None else None
        record = _train(trainer, job, stream, checkpoint)
        if (handed := trainer.problem.handed_over) is not None and not job.tuning and record["status"] == "finished":
            _keep(handed.state_dict(), problems.weights_of(folder, job.key))
    if cuda:
        record["cudnn_attention"] = torch.backends.cuda.cudnn_sdp_enabled()
    record["wall_seconds"] = round(time.perf_counter() - began, 3)
    return record


def _train(trainer: Trainer, job: Job, stream: Any, checkpoint: Path | None = None) -> Record:
    """Train. checkpoint: its path, written at every evaluation; where the file is there, training goes on from it."""
    problem, steps = trainer.problem, trainer.steps
    marks = {round(steps * (i + 1) / job.evaluations) for i in range(job.evaluations)} | {steps}
    step_once, seconds, last_mark, status = trainer.update, 0.0, 0, "finished"
    curve: list[dict[str, Any]] = []
    first = 0
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        trainer.load_state_dict(state["trainer"])
        curve = state["curve"]
        first = last_mark = curve[-1]["step"]
        seconds = curve[-1]["seconds"]
    problem.model.train()
    _wait(trainer)
    tick, timed = time.perf_counter(), 0
    for step in range(first, steps):
        if step % problem.per_epoch == 0:
            problem.begin_epoch(step // problem.per_epoch)
        if trainer.captures and step == WARMUP_STEPS:
            step_once = trainer.captured(stream).replay
        if step == WARMUP_STEPS:
            _wait(trainer)
            tick, timed = time.perf_counter(), step
        step_once()
        if step + 1 in marks:
            loss = trainer.total.item() / (step + 1 - last_mark)
            seconds += time.perf_counter() - tick
            trainer.total.zero_()
            last_mark = step + 1
            if not math.isfinite(loss):
                status = "diverged"
                break
            curve.append({"step": step + 1, "seconds": round(seconds, 3), "train_loss": loss, **trainer.evaluate()})
            if checkpoint is not None:
                _keep({"trainer": trainer.state_dict(), "curve": curve}, checkpoint)
            _wait(trainer)
            tick = time.perf_counter()
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    values = [point[problem.metric] for point in curve]
    if not all(map(math.isfinite, values)):
        status = "diverged"
    return {
        "key": job.key,
        "job": asdict(job),
        "status": status,
        "metric": problem.metric,
        "higher_is_better": problem.higher_is_better,
        "final": {k: v for k, v in curve[-1].items() if k not in ("step", "seconds")} if curve else {},
        "best": (max if problem.higher_is_better else min)(values, default=None),
        "curve": curve,
        "steps": steps,
        "train_seconds": round(seconds, 3),
        "steps_per_second": round((last_mark - timed) / seconds, 2) if seconds > 0 else None,
        "mode": trainer.mode,
        "parameters": sum(p.numel() for p in trainer.params),
        "note": problem.note,
        **({"resumed_at": first} if first else {}),
    }


def _keep(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


@cache
def _stream() -> torch.cuda.Stream:
    """One for all runs of the process: the allocator keeps the memory of each stream apart."""
    return torch.cuda.Stream()


def _wait(trainer: Trainer) -> None:
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
