"""The only training loop: joins a workload and an optimizer, keeps the record, survives being killed.

The loop counts gradients, not updates: an optimizer that needs two gradients for one update (SAM) advances by two.
The clock runs while the loop trains; it is stopped during evaluation, checkpoints and reports.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from adan_bench.config import NEVER, SHARING, Pause, Progress, RunConfig, RunRecord, as_json
from adan_bench.data.batching import mapped, moved
from adan_bench.errors import UsageError, WorkloadError, short
from adan_bench.records.environment import describe
from adan_bench.records.store import NoStore, RunStore, read_run
from adan_bench.task import weights_file
from adan_bench.training import optimizers
from adan_bench.training.configure import checksum, threads
from adan_bench.training.distributed import ALONE, Ranks, joined
from adan_bench.training.graph import StepGraph, side_stream
from adan_bench.training.schedules import schedule
from adan_bench.training.scripts import load_script
from adan_bench.workloads.registry import get_workload

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.05  # of the time, at most: where writing one takes longer than 0.75 s, they are further apart

OnProgress = Callable[[Progress], None]


def run(
    config: RunConfig,
    store: RunStore,
    on_progress: OnProgress | None = None,
    resume: bool = False,
    pause: Pause = NEVER,
) -> Mapping[str, Any]:
    """Train as the configuration says, from the last checkpoint where `resume` finds one; the result that was recorded.

    A run that pauses leaves a checkpoint and no result on disk; what is returned has the status "unfinished".

    A loss that is not finite ends the run with the status "diverged", which a run whose metric at the end is not finite
    has too; it is a finding, not an error. A run that has ended stays as it is, unless it failed. Where ranks share the
    run, the first alone reads and writes the record.
    """

    def begin() -> tuple[RunConfig | None, Mapping[str, Any] | None]:
        if not (resume and store.exists):
            return None, None
        store.lock()
        result, begun = store.result(), store.check_same(config)
        if begun is None:
            store.discard()
            return None, None
        return begun, result if result and result["status"] != "failed" else None

    def environment() -> dict[str, Any]:
        return {**describe(config.device), "data": trainer.task.note, "parameters": trainer.size}

    def restore() -> dict[str, Any] | None:
        if store.checkpoints() and store.described:
            store.check_data(trainer.task.note, config.data)
        store.reopen()
        state = store.restore()
        if state is None:
            store.describe(environment())
            print(f"adan-bench: {store.path} has no checkpoint to continue from; it starts at step 0", file=sys.stderr)
        return state

    def create() -> None:
        store.lock()
        store.create(config, trainer.workload.facts(), trainer.spec.facts(), environment())

    with joined(config.parallel, config.device) as ranks, contextlib.closing(store):
        begun, result = ranks.from_first(begin)
        if result is not None:
            return result
        config = replace(config, threads=threads(config, begun))
        trainer = Trainer(config, ranks)
        if begun is None:
            ranks.from_first(create)
        else:
            state = ranks.from_first(restore)
            if state is not None:
                trainer.load_state_dict(state)
        if ranks.rank > 0:
            store, on_progress = NoStore(store.path), None
        elif begun is not None and (changed := _changed(config, read_run(store.path))):
            store.append({"kind": "resume", "step": trainer.step, **changed})
        with side_stream(trainer.device):
            try:
                return trainer.train(store, on_progress, pause)
            finally:
                del trainer.forward  # DistributedDataParallel can hang if its process group ends first


def _changed(config: RunConfig, record: RunRecord) -> dict[str, Any]:
    """What a run that is resumed elsewhere has to note; empty where all is as it was."""
    before, now = (record.surroundings or [{}])[-1], as_json(describe(config.device))
    shared = {name: getattr(config, name) for name in SHARING}
    moved = {key: now[key] for key in now if key not in ("command", "started") and now[key] != before.get(key)}
    if not moved and all(before.get(name) == value for name, value in shared.items()):
        return {}
    return {**shared, "environment": moved}


class Trainer:
    """One run in memory: the task, the optimizer, and how far they have come."""

    def __init__(self, config: RunConfig, ranks: Ranks = ALONE) -> None:
        if config.script is not None:
            load_script(config.script, config.script_sha256)
        if config.init_sha256 and config.init is not None and checksum(weights_file(config.init)) != config.init_sha256:
            raise UsageError(f"--init {config.init}: it has changed since the study began; choose a new --out")
        torch.set_num_threads(threads(config))
        seed_everything(config.seed)
        self.config = config
        self.ranks = ranks
        self.workload = get_workload(config.workload, config.scale)
        self.spec = optimizers.get_optimizer(config.optimizer)
        self.factor = schedule(config.schedule, config.steps, config.warmup, config.floor, config.cooldown)
        self.device = torch.device(ranks.device or config.device)
        if self.device.type == "cuda":
            prepare_gpu(self.device)
        per_pass = config.batch_size // config.accumulate
        try:
            self.task = self.workload.task(
                config.seed, per_pass, config.data, str(self.device), config.init, config.training
            )
        except ModuleNotFoundError as error:
            own = not self.workload.build.__module__.startswith("adan_bench.")
            remedy = f"run: pip install {error.name}" if own else "run: pip install 'adan[paper]'"
            raise UsageError(f"{config.workload} needs the package {error.name}; {remedy}") from error
        if hasattr(self.task.batches, "state_dict") and ranks.count * config.accumulate > 1:
            raise UsageError(
                f"{config.workload}: its batches carry a state to the next; use one process, and no --accumulate"
            )
        self.model = self.task.model.to(self.device)
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward = ranks.spread(self.model)
        if config.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self.average = AveragedModel(self.model, use_buffers=True) if config.ema else None
        self.clip = (config.clip or None) if config.clip >= 0 else self.task.max_grad_norm
        groups = self.model.parameters() if self.task.groups is None else self.task.groups(self.model, config.settings)
        self.obstacle = self._obstacle()
        if self.obstacle and config.graph == "on":
            raise UsageError(f"--graph on: {self.obstacle}; use --graph auto")
        self.optimizer = optimizers.build(self.spec, groups, config.settings, capturable=not self.obstacle)
        self.base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        # --graph off leaves out the capture alone, so that it makes the same numbers.
        self.graph = None if self.obstacle else StepGraph(self._compute, self.device, config.graph != "off")
        self.peaks = torch.tensor(self.base_lr, device=self.device)
        self.rates = self.peaks.clone()  # the learning rate of each group, where a CUDA graph reads it
        self._bind_rates()
        self.size = sum(p.numel() for p in self.model.parameters())
        self.step = 0
        self.seconds = 0.0
        self.window = torch.zeros((), device=self.device)  # sum of the losses since the last line: no sync per step
        self.in_window = 0
        self.last: dict[str, float] = {}
        self.best: float | None = None
        self.seen: list[float] = []  # the metric of every evaluation, smaller is better
        self.lowered = 1.0  # the factor of the schedule when the first rate returned
        self.looked = (0, 0.0)  # step and seconds at the last look at the speed
        if ranks.rank > 0:
            seed_everything(config.seed + 10**5 * ranks.rank)  # another dropout on every share of a batch

    def _obstacle(self) -> str:
        """Why no CUDA graph can hold the step; empty: one may."""
        if self.device.type != "cuda":
            return f"the {self.device.type.upper()} has no CUDA graphs"
        if self.ranks.strategy is not None:
            return f"--parallel {self.ranks.strategy} sends messages between the ranks"
        return self.task.eager or self.spec.eager

    # What a step is

    def update(self) -> None:
        """One update: one gradient, or as many as the optimizer needs."""
        position = self.step // self.spec.passes * self.config.accumulate
        factor = self.factor(self.step) / self.lowered * (self.task.rate(position) if self.task.rate else 1.0)
        batches = [self.task.batches(position + i) for i in range(self.config.accumulate)]
        if self.graph is not None:
            self.graph((torch.tensor(factor), batches))
            if self.graph.obstacle and self.config.graph == "on":
                raise UsageError(f"--graph on: {self.graph.obstacle}; use --graph auto")
        else:
            for group, base in zip(self.optimizer.param_groups, self.base_lr, strict=True):
                group["lr"] = base * factor
            self._compute((None, moved(batches, self.device)))
        self.in_window += 1
        self.step += self.spec.passes

    def _compute(self, inputs: tuple[Tensor | None, list[Any]]) -> None:
        """What an update does on the device. A CUDA graph may hold it: nothing here waits for the device."""
        factor, drawn = inputs
        if factor is not None:
            torch.mul(self.peaks, factor, out=self.rates)
        batches = [self._prepared(batch) for batch in drawn]
        self._gradient(batches)
        if self.spec.passes == 1:
            self.optimizer.step()
        else:
            two: Any = self.optimizer
            two.first_step(zero_grad=True)
            self._gradient(batches, counted=False)
            two.second_step(zero_grad=True)
        if self.average is not None:
            self._average(self.average)

    def _gradient(self, batches: list[Any], counted: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            with self._autocast():
                loss = self.task.loss(self.forward, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else short(loss)
                raise WorkloadError(f"{self.workload.name}: loss() returned {got}; return the mean as a tensor")
            if len(batches) > 1:
                loss = loss / len(batches)
            loss.backward()
            if counted:
                self.window += loss.detach()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def _prepared(self, batch: Any) -> Any:
        """What the loss gets: this rank's share of the batch, in the layout of the model."""
        size = self.config.batch_size // self.config.accumulate
        local = self.ranks.share(self.task.prepare(batch), size)
        return mapped(local, _channels_last) if self.config.channels_last else local

    def _average(self, average: AveragedModel) -> None:
        """The exponential average of weights and buffers; AveragedModel's own update waits for the device."""
        means, values = ([*model.parameters(), *model.buffers()] for model in (average.module, self.model))
        with torch.no_grad():
            if self.step == 0:
                torch._foreach_copy_(means, values)
            for mean, value in zip(means, values, strict=True):
                if mean.is_floating_point():
                    mean.lerp_(value, 1 - self.config.ema)
                else:
                    mean.copy_(value)
        average.n_averaged += 1

    def _bind_rates(self) -> None:
        """Let the optimizer of a captured step read its learning rates on the device."""
        if self.graph is not None:
            for group, rate in zip(self.optimizer.param_groups, self.rates.unbind(), strict=True):
                group["lr"] = rate

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.config.bf16 else contextlib.nullcontext()

    # The loop

    def train(self, store: RunStore, on_progress: OnProgress | None = None, pause: Pause = NEVER) -> Mapping[str, Any]:
        config, passes = self.config, self.spec.passes
        writer = _tensorboard(store, self.step) if config.tensorboard and self.ranks.rank == 0 else None
        started, first = time.monotonic(), self.step
        due = math.inf if config.checkpoint_every else started + CHECKPOINT_SECONDS  # when the next is written
        self.looked = self.step, self.seconds
        self.forward.train()
        last = min(config.stop_after or config.steps, config.steps)
        while self.step + passes <= last:
            tick = time.perf_counter()
            before = self.step
            self.update()
            end = self.step + passes > last
            logs, evaluates, saves = (
                end or (every > 0 and self.step // every > before // every)
                for every in (config.log_every, config.eval_every, config.checkpoint_every)
            )
            stops = time.monotonic() >= due or pause.due(self.step)
            stops = stops and self.ranks.count == 1  # ranks agree where they write lines
            if not (logs or evaluates or saves or stops):
                self.seconds += time.perf_counter() - tick
                continue
            self.ranks.average(self.window)
            loss = (self.window / max(1, self.in_window)).item() if self.in_window else None  # waits for the device
            self.seconds += time.perf_counter() - tick
            lines: list[dict[str, Any]] = []
            if logs or (loss is not None and not math.isfinite(loss)):
                lr = self.optimizer.param_groups[0]["lr"]
                lines.append(
                    {"kind": "train", "step": self.step, "seconds": self.seconds, "loss": loss, "lr": float(lr)}
                )
                self.window.zero_()
                self.in_window = 0
            if loss is not None and not math.isfinite(loss):
                return self._finish(store, "diverged", lines, writer)
            if evaluates:
                self.last = self.evaluate()
                lines.append({"kind": "eval", "step": self.step, "seconds": self.seconds, **self.last})
                self._keep_best(self.last.get(self.workload.metric, math.nan))
                self._return_to_first_rate(self.last.get(self.workload.metric, math.nan))
            self._write(store, lines, writer)
            now = time.monotonic()
            timed, pauses = self.ranks.from_all((now >= due, pause.due(self.step)))[0]
            pauses = pauses and not end
            if (saves or timed or pauses) and not end:
                store.checkpoint(self.step, self.state_dict())
                took = time.monotonic() - now
                due = max(due, now + took + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE))
            if on_progress is not None:
                left = (time.monotonic() - started) / (self.step - first) * (last - self.step)
                metric = self.last.get(self.workload.metric)
                on_progress(Progress(self.step, last, loss, metric, seconds_left=left, **self._speed()))
            if pauses:
                self.ranks.from_all(None)  # no rank leaves before the first has written the checkpoint
                if writer is not None:
                    writer.close()
                return {"status": "unfinished", "step": self.step, "seconds": self.seconds, "final": self.last}
        sound = math.isfinite(self.last.get(self.workload.metric, math.nan))
        return self._finish(store, "finished" if sound else "diverged", [], writer)

    def evaluate(self) -> dict[str, float]:
        """The workload's numbers on its held-out data, of the averaged weights where there are some."""
        model = self.forward if self.average is None else self.average.module
        model.eval()
        with torch.no_grad(), self._autocast():
            values = self.task.evaluate(model)
        model.train()
        name, metrics = self.workload.name, [self.workload.metric, *filter(None, [self.workload.tune_metric])]
        if not isinstance(values, Mapping):
            raise WorkloadError(f"{name}: evaluate() returned {short(values)}; return {{{metrics[0]!r}: value}}")
        for metric in metrics:
            if metric not in values:
                got = ", ".join(map(str, values)) or "nothing"
                raise WorkloadError(f"{name}: evaluate() returned {got}, not the declared metric {metric!r}")
        for key in ("kind", "step", "seconds"):
            if key in values:
                raise WorkloadError(f"{name}: evaluate() returned {key!r}, a key of every record; rename this metric")
        try:
            return {key: float(value) for key, value in values.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise WorkloadError(f"{name}: evaluate() returned a value that is not one number ({error})") from error

    def _keep_best(self, value: float) -> None:
        if math.isfinite(value):
            better = max if self.workload.higher_is_better else min
            self.best = value if self.best is None else better(self.best, value)

    def _return_to_first_rate(self, value: float) -> None:
        """AWD-LSTM's switch from SGD to averaged SGD (arXiv:1708.02182), as AdaBelief's code has it.

        Once the newest value is worse than the best of all but the last `nonmono` before it, averaged SGD begins with
        the first rate. Its average is never evaluated there, so what remains of it is plain SGD with the rate restored.
        """
        value, wait = -value if self.workload.higher_is_better else value, self.config.nonmono
        if wait and self.lowered == 1.0 and len(self.seen) > wait and value > min(self.seen[:-wait]):
            lower = self.factor(self.step)
            if self.step >= self.config.warmup * self.config.steps and lower > 0:  # or there is nothing to return from
                self.lowered = lower
        self.seen.append(value)

    def _write(self, store: RunStore, lines: list[dict[str, Any]], writer: Any) -> None:
        for line in lines:
            store.append(line)
            if writer is not None:
                for key, value in line.items():
                    if isinstance(value, float) and key != "seconds":
                        writer.add_scalar(f"{line['kind']}/{key}", value, line["step"])

    def _speed(self) -> dict[str, Any]:
        """Steps per second of training since the last look; on a GPU, how busy it was and its memory."""
        steps, seconds = self.step - self.looked[0], max(1e-9, self.seconds - self.looked[1])
        self.looked = self.step, self.seconds
        numbers: dict[str, Any] = {"steps_per_second": steps / seconds}
        if self.device.type != "cuda":
            return numbers
        numbers["gpu_bytes"] = torch.cuda.max_memory_allocated(self.device)
        busy = None if self.graph is None else self.graph.busy_seconds()
        if busy is not None:
            numbers |= {"gpu_share": min(1.0, busy / seconds), "gpu_source": "replays"}
        with contextlib.suppress(ImportError, RuntimeError):  # torch asks pynvml
            numbers |= {"gpu_share": torch.cuda.utilization(self.device) / 100, "gpu_source": "NVML"}
        return numbers

    def _finish(self, store: RunStore, status: str, lines: list[dict[str, Any]], writer: Any) -> Mapping[str, Any]:
        self._write(store, lines, writer)
        if writer is not None:
            writer.close()
        result = {
            "status": status,
            "step": self.step,
            "seconds": self.seconds,
            "final": self.last,
            "best": self.best,
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            "graph": f"eager: {self.obstacle}" if self.graph is None else self.graph.words(),
            "implementation": optimizers.implementation(self.optimizer),
        }
        optimizer: Any = self.optimizer
        if getattr(optimizer, "restart_rule", None) is not None:  # Adan's
            result["restarts"] = {"count": optimizer.restarts, "radius": optimizer.restart_progress.radius}
        if self.config.keep_weights:
            scored = self.model if self.average is None else self.average.module
            store.keep_weights(self.ranks.whole(scored.state_dict()))
        store.finish(result)
        return result

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on."""
        batches: Any = self.task.batches
        return {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.ranks.whole(self.model.state_dict()),
            "optimizer": self.ranks.whole(self._optimizer_state()),
            "window": self.window,
            "in_window": self.in_window,
            "last": self.last,
            "best": self.best,
            "seen": self.seen,
            "lowered": self.lowered,
            "batches": batches.state_dict() if hasattr(batches, "state_dict") else None,
            "average": None if self.average is None else self.average.state_dict(),
            "rng": self.ranks.from_all(rng_state(self.device)),
        }

    def _optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state, with learning rates as numbers."""
        state = self.optimizer.state_dict()
        groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step, self.seconds = state["step"], state["seconds"]
        self.ranks.load_model(self.model, state["model"])
        # How the optimizer steps is this run's choice: a checkpoint of a captured run goes on eagerly and back.
        groups = [
            {**saved, **{name: own[name] for name in ("fused", "foreach", "capturable") if name in own}}
            for saved, own in zip(state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True)
        ]
        self.ranks.load_optimizer(self.optimizer, {**state["optimizer"], "param_groups": groups})
        self._bind_rates()
        if self.graph is not None:
            self.graph = StepGraph(self._compute, self.device, self.config.graph != "off")  # states are other tensors
        self.window.copy_(state["window"])
        self.in_window, self.last, self.best = state["in_window"], state["last"], state["best"]
        self.seen, self.lowered = list(state.get("seen", [])), state.get("lowered", 1.0)  # older ones have neither
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if state["batches"] is not None:
            batches: Any = self.task.batches
            batches.load_state_dict(state["batches"])
        if self.ranks.rank < len(state["rng"]):
            set_rng_state(state["rng"][self.ranks.rank], self.device)


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


def prepare_gpu(device: torch.device) -> None:
    """Fast kernels that are right: cuDNN tries its algorithms once for each shape, and its attention is left out.

    The backward pass of cuDNN's attention is reported to give NaN on Hopper for some lengths, 64 among them:
    https://github.com/pytorch/pytorch/issues/196678
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    gc.collect()
    torch.cuda.empty_cache()  # of the run before
    torch.cuda.reset_peak_memory_stats(device)


def seed_everything(seed: int) -> None:
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Every generator's state as tensors and plain values, so that it loads with weights_only=True."""
    import numpy as np

    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, [int(key) for key in keys], position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    import numpy as np

    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, words, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(words, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def _tensorboard(store: RunStore, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs the package tensorboard; run: pip install tensorboard") from error
    return SummaryWriter(str(store.path / "tensorboard"), purge_step=step)
