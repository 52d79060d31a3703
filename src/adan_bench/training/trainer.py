"""The only training loop: joins a workload and an optimizer, keeps the record, survives being killed.

The loop counts gradients, not updates: an optimizer that needs two gradients for one update (SAM) advances by two.
The clock runs while the loop trains; it is stopped during evaluation, checkpoints and reports.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adan_bench.config import SHARING, RunConfig, RunProgress, RunRecord, as_json
from adan_bench.data.batching import mapped
from adan_bench.errors import UsageError, WorkloadError, short
from adan_bench.records.environment import describe
from adan_bench.records.store import NoStore, RunStore, read_run
from adan_bench.task import Task, Workload, weights_file
from adan_bench.training import optimizers
from adan_bench.training.configure import checksum, threads
from adan_bench.training.distributed import ALONE, Ranks, joined
from adan_bench.training.graph import side_stream
from adan_bench.training.interrupts import Pause
from adan_bench.training.randomness import rng_state, seed_everything, set_rng_state
from adan_bench.training.roles import summary
from adan_bench.training.schedules import schedule
from adan_bench.training.scripts import load_script
from adan_bench.training.updater import Updater
from adan_bench.workloads.registry import get_workload, is_bundled

CHECKPOINT_SECONDS = 15.0
MEETING_SECONDS = 1.0  # between two questions of the ranks whether to stop
CHECKPOINT_SHARE = 0.05  # of the time, at most: where writing one takes longer than 0.75 s, they are further apart
NVML_PERIOD = 1.0  # seconds over which NVML averages: of less it may say 0%

OnProgress = Callable[[RunProgress], None]


def run(
    config: RunConfig,
    store: RunStore,
    on_progress: OnProgress | None = None,
    resume: bool = False,
    pause: Pause | None = None,
) -> Mapping[str, Any]:
    """Train as the configuration says, from the last checkpoint where `resume` finds one; the result that was recorded.

    A run that pauses leaves a checkpoint and no result on disk; what is returned has the status "unfinished".

    A loss that is not finite ends the run with the status "diverged", which a run whose metric at the end is not finite
    has too; it is a finding, not an error. A run that has ended stays as it is, unless it failed. Where ranks share the
    run, the first alone reads and writes the record.
    """
    with joined(config.parallel, config.device) as ranks, contextlib.closing(store):
        begun, result = ranks.from_first(lambda: _begun(config, store) if resume and store.exists else (None, None))
        if result is not None:
            return result
        config = replace(config, threads=threads(config, begun))
        trainer = Trainer(config, ranks)
        if begun is None:
            ranks.from_first(lambda: _create(trainer, store))
        elif (state := ranks.from_first(lambda: _restored(trainer, store))) is not None:
            trainer.load_state_dict(state)
        if ranks.rank > 0:
            store, on_progress = NoStore(store.path), None
        elif begun is not None and (changed := _changed(config, read_run(store.path))):
            store.append({"kind": "resume", "step": trainer.state.step, **changed})
        # DistributedDataParallel was made on the usual stream, and a run among ranks is never captured.
        with contextlib.nullcontext() if config.parallel else side_stream(trainer.device):
            try:
                return trainer.train(store, on_progress, pause)
            finally:
                del trainer.updater.forward  # DistributedDataParallel can hang if its process group ends first


def _begun(config: RunConfig, store: RunStore) -> tuple[RunConfig | None, Mapping[str, Any] | None]:
    """The configuration that a run on disk was begun with, and its result where nothing is left to do."""
    store.lock()
    result, begun = store.result(), store.check_same(config)
    if begun is None:
        store.discard()
        return None, None
    return begun, result if result and result["status"] != "failed" else None


def _create(trainer: Trainer, store: RunStore) -> None:
    store.lock()
    store.create(trainer.config, trainer.workload.facts(), trainer.spec.facts(), trainer.environment())


def _restored(trainer: Trainer, store: RunStore) -> dict[str, Any] | None:
    """The state of the last checkpoint; None where there is none, and the run begins again."""
    if store.checkpoints() and store.described:
        store.check_data(trainer.task.note, trainer.config.data)
    store.reopen()
    state = store.restore()
    if state is None:
        store.describe(trainer.environment())
        print(f"adan-bench: {store.path} has no checkpoint to continue from; it starts at step 0", file=sys.stderr)
    return state


def _changed(config: RunConfig, record: RunRecord) -> dict[str, Any]:
    """What a run that is resumed elsewhere has to note; empty where all is as it was."""
    before, now = (record.surroundings or [{}])[-1], as_json(describe(config.device))
    shared = {name: getattr(config, name) for name in SHARING}
    moved = {key: now[key] for key in now if key not in ("command", "started") and now[key] != before.get(key)}
    if not moved and all(before.get(name) == value for name, value in shared.items()):
        return {}
    return {**shared, "environment": moved}


@dataclass
class RunState:
    """How far a run has come: what a checkpoint holds beside the weights, the optimizer's state and the generators."""

    step: int = 0
    seconds: float = 0.0
    in_window: int = 0  # updates since the last line of the training loss
    last: dict[str, float] = field(default_factory=dict)  # the newest evaluation
    best: float | None = None
    seen: list[float] = field(default_factory=list)  # the metric of every evaluation, smaller is better
    lowered: float = 1.0  # the factor of the schedule when the first rate returned


class Trainer:
    """One run in memory: the task, its updates, and how far they have come."""

    def __init__(self, config: RunConfig, ranks: Ranks = ALONE) -> None:
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")  # a script may set another
        if config.script is not None:
            load_script(config.script, config.script_sha256)
        if config.init_sha256 and config.init is not None and checksum(weights_file(config.init)) != config.init_sha256:
            raise UsageError(f"--init {config.init}: it has changed since the study began; choose a new --out")
        torch.set_num_threads(threads(config))
        seed_everything(config.seed)
        self.config, self.ranks = config, ranks
        self.workload = get_workload(config.workload, config.scale)
        self.spec = optimizers.get_optimizer(config.optimizer)
        self.factor = schedule(config.schedule, config.steps, config.warmup, config.floor, config.cooldown)
        self.device = torch.device(ranks.device or config.device)
        if self.device.type == "cuda":
            prepare_gpu(self.device)
        self.task = self._task()
        self.updater = Updater(self.task, self.spec, config, ranks, self.device)
        self.state = RunState()
        self.looked = (0, 0.0)  # step and seconds at the last look at the speed
        self.began = (0, 0.0)  # the same where this process began to train
        self.meeting = 0  # the step at which ranks agree next on whether to stop
        if ranks.rank > 0:
            seed_everything(config.seed + 10**5 * ranks.rank)  # another dropout on every share of a batch

    def _task(self) -> Task:
        config = self.config
        task = task_of(self.workload, config, str(self.device), self.ranks.rank, self.ranks.count)
        if hasattr(task.batches, "state_dict"):
            if config.accumulate > 1:
                raise UsageError(f"{config.workload}: its batches carry a state to the next; leave out --accumulate")
            if self.ranks.count > 1 and not hasattr(task.batches, "joined"):
                raise UsageError(f"{config.workload}: its batches have a state that ranks cannot share; use one")
        return task

    @property
    def model(self) -> nn.Module:
        return self.updater.model

    @property
    def optimizer(self) -> Optimizer:
        return self.updater.optimizer

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def environment(self) -> dict[str, Any]:
        """Where the run is made, and of what; for the record."""
        parts = {"parameters": self.size, "roles": summary(self.model, self.task.roles)}
        return {**describe(self.config.device), "data": self.task.note, **parts}

    def update(self) -> None:
        """One update: one gradient, or as many as the optimizer needs."""
        state, rate = self.state, self.task.rate
        position = state.step // self.spec.passes * self.config.accumulate
        self.updater(position, self.factor(state.step) / state.lowered * (rate(position) if rate else 1.0))
        state.in_window += 1
        state.step += self.spec.passes

    # The loop

    def train(
        self, store: RunStore, on_progress: OnProgress | None = None, pause: Pause | None = None
    ) -> Mapping[str, Any]:
        """Train to the end, to a pause or to a loss that is not finite; the result."""
        config, state, pause = self.config, self.state, pause or Pause()
        last = config.stop_after or config.steps
        clock, began = CheckpointClock(not config.checkpoint_every), (time.monotonic(), state.step)
        self.began = state.step, state.seconds
        warm = False
        self.looked = state.step, state.seconds
        self.updater.forward.train()
        with recorder(store, config.tensorboard and self.ranks.rank == 0, state.step) as record:
            while state.step + self.spec.passes <= last:
                tick, before = time.perf_counter(), state.step
                self.update()
                end = state.step + self.spec.passes > last
                logs, evaluates, saves = self._due(before, end)
                stops = self._stops(clock, pause, began)
                if not (logs or evaluates or saves or stops):
                    state.seconds += time.perf_counter() - tick
                    continue
                loss = self._mean_loss()
                state.seconds += time.perf_counter() - tick
                sound = loss is None or math.isfinite(loss)
                lines = [self._loss_line(loss)] if logs or not sound else []
                lines += [self._evaluation_line()] if evaluates and sound else []
                for line in lines:
                    record(line)
                if not sound:
                    return self._finish(store, "diverged")
                pauses = self._save(store, clock, saves, pause, end)
                if on_progress is not None:
                    on_progress(self._progress(last, loss, began if warm else None))
                    if not warm:  # the first step takes longer, and tells nothing about the others
                        began, warm = (time.monotonic(), state.step), True
                if pauses:
                    self.ranks.from_all(None)  # no rank leaves before the first has written the checkpoint
                    return {"status": "unfinished", "step": state.step, "seconds": state.seconds, "final": state.last}
        sound = math.isfinite(state.last.get(self.workload.metric, math.nan))
        return self._finish(store, "finished" if sound else "diverged")

    def _due(self, before: int, end: bool) -> list[bool]:
        """Whether to log, evaluate and write a checkpoint, after an update that began at a step."""
        config = self.config
        return [
            end or (every > 0 and self.state.step // every > before // every)
            for every in (config.log_every, config.eval_every, config.checkpoint_every)
        ]

    def _stops(self, clock: CheckpointClock, pause: Pause, began: tuple[float, int]) -> bool:
        """Whether to stop for a checkpoint by the clock, or for a pause. Ranks ask the first about once a second.

        began: the time and the step at which the training began here.
        """
        if self.ranks.count == 1:
            return clock.due() or pause.due(self.state.step)
        if self.state.step < self.meeting:
            return False

        def agreed() -> tuple[bool, int]:
            made, seconds = self.state.step - began[1], time.monotonic() - began[0]
            following = self.state.step + max(self.spec.passes, int(made / seconds * MEETING_SECONDS))
            return clock.due() or pause.due(self.state.step), following

        stops, self.meeting = self.ranks.from_first(agreed)
        return stops

    def _mean_loss(self) -> float | None:
        """The mean loss since the last line, which waits for the device; None where no update was made since."""
        window, count = self.updater.window, self.state.in_window
        self.ranks.average(window)
        return (window / count).item() if count else None

    def _loss_line(self, loss: float | None) -> dict[str, Any]:
        self.updater.window.zero_()
        self.state.in_window = 0
        return self._line("train", {"loss": loss, "lr": float(self.optimizer.param_groups[0]["lr"])})

    def _evaluation_line(self) -> dict[str, Any]:
        state = self.state
        state.last = self.evaluate()
        value = state.last.get(self.workload.metric, math.nan)
        if math.isfinite(value):
            better = max if self.workload.higher_is_better else min
            state.best = value if state.best is None else better(state.best, value)
        self._return_to_first_rate(value)
        return self._line("eval", state.last)

    def _line(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": kind, "step": self.state.step, "seconds": self.state.seconds, **values}

    def _save(self, store: RunStore, clock: CheckpointClock, saves: bool, pause: Pause, end: bool) -> bool:
        """Write a checkpoint where one is due; whether the run pauses here."""
        now = time.monotonic()
        timed, pauses = self.ranks.from_all((clock.due(now), pause.due(self.state.step)))[0]
        if end or not (saves or timed or pauses):
            return False
        store.checkpoint(self.state.step, self.state_dict())
        clock.written(now)
        return pauses

    def evaluate(self) -> dict[str, float]:
        """The workload's numbers on its held-out data, of the averaged weights where there are some."""
        average = self.updater.average
        model = self.updater.forward if average is None else average.module
        model.eval()
        with torch.no_grad(), self.updater.autocast(), self.updater.scored_weights():
            values = self.task.evaluate(model)
        model.train()
        metrics = [self.workload.metric, self.workload.tune_metric if self.config.role == "tune" else ""]
        return _checked(values, self.workload.name, list(filter(None, metrics)))

    def _return_to_first_rate(self, value: float) -> None:
        """AWD-LSTM's switch from SGD to averaged SGD (arXiv:1708.02182), as AdaBelief's code has it.

        Once the newest value is worse than the best of all but the last `nonmono` before it, averaged SGD begins with
        the first rate. Its average is never evaluated there, so what remains of it is plain SGD with the rate restored.
        """
        state, config, wait = self.state, self.config, self.config.nonmono
        value = -value if self.workload.higher_is_better else value
        if wait and state.lowered == 1.0 and len(state.seen) > wait and value > min(state.seen[:-wait]):
            lower = self.factor(state.step)
            if state.step >= config.warmup * config.steps and lower > 0:  # or there is nothing to return from
                state.lowered = lower
        state.seen.append(value)

    def _progress(self, last: int, loss: float | None, began: tuple[float, int] | None) -> RunProgress:
        """Where the run stands: its speed since the last look; on a GPU, how busy that was and its memory.

        began: a time and the step then, by which the time left is told.
        """
        step, metric = self.state.step, self.state.last.get(self.workload.metric)
        left = None if began is None else (time.monotonic() - began[0]) / (step - began[1]) * (last - step)
        steps, seconds = step - self.looked[0], max(1e-9, self.state.seconds - self.looked[1])
        self.looked = step, self.state.seconds
        gpu: dict[str, Any] = {}
        if self.device.type == "cuda":
            gpu["gpu_bytes"] = torch.cuda.max_memory_allocated(self.device)
            if seconds >= NVML_PERIOD:
                with contextlib.suppress(ImportError, RuntimeError):  # torch asks pynvml
                    gpu["gpu_share"] = torch.cuda.utilization(self.device) / 100
        return RunProgress(step, last, loss, metric, steps / seconds, left, **gpu)

    def _finish(self, store: RunStore, status: str) -> Mapping[str, Any]:
        state = self.state
        optimizer: Any = self.optimizer
        result = {
            "status": status,
            "step": state.step,
            "seconds": state.seconds,
            "final": state.last,
            "best": state.best,
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            "graph": self.updater.words(),
            "implementation": optimizers.implementation(optimizer),
            "state_bytes_per_parameter": optimizers.state_bytes(optimizer),
        }
        updates, seconds = (state.step - self.began[0]) / self.spec.passes, state.seconds - self.began[1]
        if updates and seconds:
            per_rank = self.config.batch_size / self.ranks.count
            result["examples_per_second_per_rank"] = updates * per_rank / seconds
            result["data_wait_share"] = self.updater.waited / seconds
        if getattr(optimizer, "restart_rule", None) is not None:  # Adan's
            result["restarts"] = {"count": optimizer.restarts, "radius": optimizer.restart_progress.radius}
        if self.config.keep_weights:
            average = self.updater.average
            scored = self.model if average is None else average.module
            with self.updater.scored_weights():
                store.keep_weights(self.ranks.whole(scored.state_dict()))
        store.finish(result)
        return result

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on."""
        batches: Any = self.task.batches
        states = [batches.state_dict() if hasattr(batches, "state_dict") else None]
        if self.ranks.count > 1:  # from the host: a tensor of another rank's GPU would come back on that GPU
            states = self.ranks.from_all(mapped(states[0], Tensor.cpu))
        return {
            **asdict(self.state),
            **self.updater.state_dict(),
            "batches": batches.joined(states) if states[1:] and states[0] is not None else states[0],
            "rng": self.ranks.from_all(rng_state(self.device)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = RunState(**copy.deepcopy({f.name: state[f.name] for f in fields(RunState)}))
        self.updater.load_state_dict(state)
        if state["batches"] is not None:
            batches: Any = self.task.batches
            batches.load_state_dict(state["batches"])
        if self.ranks.rank < len(state["rng"]):
            set_rng_state(state["rng"][self.ranks.rank], self.device)


class CheckpointClock:
    """When a checkpoint is due by the clock: so rarely that writing them takes a small share of the time."""

    def __init__(self, runs: bool) -> None:
        self.next = time.monotonic() + CHECKPOINT_SECONDS if runs else math.inf

    def due(self, now: float | None = None) -> bool:
        return (time.monotonic() if now is None else now) >= self.next

    def written(self, began: float) -> None:
        """Note that a checkpoint was written, from `began` to now."""
        took = time.monotonic() - began
        self.next = max(self.next, began + took + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE))


def task_of(workload: Workload, config: RunConfig, device: str, rank: int, ranks: int) -> Task:
    """The task of a configuration, for one of the ranks that share its run."""
    size, tuning = config.batch_size // config.accumulate, config.role == "tune"
    try:
        return workload.task(config.seed, size, config.data, device, config.init, config.training, tuning, rank, ranks)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("adan"):
            raise WorkloadError(f"{workload.name}: {error}; it imports, or built_by names, a wrong file") from error
        remedy = "run: pip install '.[paper]'" if is_bundled(workload) else f"run: pip install {error.name}"
        raise UsageError(f"{workload.name} needs the package {error.name}; {remedy}") from error


def _checked(values: Any, name: str, metrics: list[str]) -> dict[str, float]:
    """What the evaluation of a workload of this name returned, as numbers; those of `metrics` must be there."""
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


@contextlib.contextmanager
def recorder(store: RunStore, tensorboard: bool, step: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes a line into the record, and as TensorBoard events where they are asked for."""
    if not tensorboard:
        yield store.append
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs the package tensorboard; run: pip install tensorboard") from error
    with SummaryWriter(str(store.path / "tensorboard"), purge_step=step) as writer:

        def write(line: dict[str, Any]) -> None:
            store.append(line)
            for key, value in line.items():
                if isinstance(value, float) and key != "seconds":
                    writer.add_scalar(f"{line['kind']}/{key}", value, line["step"])

        yield write
