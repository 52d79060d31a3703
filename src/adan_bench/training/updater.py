"""One update on the device: the loss of a batch as it was drawn, its gradient, and the optimizer's step.

A CUDA graph holds it where that is possible (`graph.py`); then nothing in it waits for the device. Where the optimizer
cannot be captured, the graph holds the loss and the gradient, and the optimizer steps after it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from adan_bench.config import RunConfig
from adan_bench.data.batching import mapped, moved
from adan_bench.errors import UsageError, WorkloadError, short
from adan_bench.task import OptimizerSpec, Task
from adan_bench.training import optimizers
from adan_bench.training.distributed import Ranks
from adan_bench.training.graph import StepGraph
from adan_bench.training.roles import by_role


class Updater:
    """A task's model and its optimizer. `window` is the sum of the losses since it was set to 0: no sync per step."""

    def __init__(self, task: Task, spec: OptimizerSpec, config: RunConfig, ranks: Ranks, device: torch.device) -> None:
        self.task, self.spec, self.config, self.ranks, self.device = task, spec, config, ranks, device
        self.model = task.model.to(device)
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward = ranks.spread(self.model)
        self.loss: Callable[[Any], Tensor] = self._loss
        if config.compile:
            self._compile()
        self.average = AveragedModel(self.model, use_buffers=True) if config.ema else None
        self.clip = (config.clip or None) if config.clip >= 0 else task.max_grad_norm
        self.obstacle = self._obstacle()
        if self.obstacle and config.graph == "on":
            raise UsageError(f"--graph on: {self.obstacle}; use --graph auto")
        self.held = not (self.obstacle or spec.eager)  # whether the graph may hold the optimizer's step, too
        groups: Any = self.model.parameters() if task.groups is None else task.groups(self.model, config.settings)
        if spec.by_role:
            groups = by_role(groups, self.model, task.roles)
        # A search starts from the optimizer's defaults: what depends on a run's length is known no earlier than here.
        horizon = {spec.horizon: config.steps // spec.passes} if spec.horizon else {}
        self.optimizer = optimizers.build(spec, groups, {**horizon, **config.settings}, capturable=self.held)
        self.has_modes = all(callable(getattr(self.optimizer, mode, None)) for mode in ("train", "eval"))
        if self.has_modes:
            self.optimizer.train()  # type: ignore[attr-defined]
        self.base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.peaks = torch.tensor(self.base_lr, device=device)
        self.rates = self.peaks.clone()  # the learning rate of each group, where a CUDA graph reads it
        self.window = torch.zeros((), device=device)
        self.waited = 0.0  # seconds until batches were there
        self.graph: StepGraph | None = None
        self._begin_graph()

    def _compile(self) -> None:
        """Compile the loss with what prepares its batch; where ranks share the run, the model that joins them."""
        torch.compiler.reset()  # the run before in this process had another model
        if self.ranks.strategy is None:
            self.loss = torch.compile(self._loss, dynamic=False)
        else:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]

    def _obstacle(self) -> str:
        """Why no CUDA graph can hold the step; empty: one may."""
        if self.device.type != "cuda":
            return f"the {self.device.type.upper()} has no CUDA graphs"
        if self.ranks.strategy is not None:
            return f"--parallel {self.ranks.strategy} sends messages between the ranks"
        return self.task.eager or (self.spec.eager if self.spec.passes > 1 else "")

    def _begin_graph(self) -> None:
        """Make a graph that is still to be captured; an optimizer inside it reads the learning rates on the device."""
        if self.obstacle:
            return
        # --graph off leaves out the capture alone, so that it makes the same numbers.
        self.graph = StepGraph(self._compute if self.held else self._gradients, self.device, self.config.graph != "off")
        if not self.held:
            return
        for group, rate in zip(self.optimizer.param_groups, self.rates.unbind(), strict=True):
            group["lr"] = rate

    def __call__(self, position: int, factor: float) -> None:
        """Make the update whose first batch stands at a position, with `factor` times the learning rates."""
        began = time.perf_counter()
        batches = [self.task.batches(position + i) for i in range(self.config.accumulate)]
        self.waited += time.perf_counter() - began
        if not self.held:
            for group, base in zip(self.optimizer.param_groups, self.base_lr, strict=True):
                group["lr"] = base * factor
        if self.graph is None:
            self._compute((None, moved(batches, self.device)))
        elif self.held:
            self.graph((torch.tensor(factor), batches))
        else:
            for p, grad in zip(self.model.parameters(), self.graph(batches), strict=True):
                p.grad = grad  # a replay writes where it was captured, whatever steps came between
            self._step()
        if self.graph is not None and self.graph.obstacle and self.config.graph == "on":
            raise UsageError(f"--graph on: {self.graph.obstacle}; use --graph auto")
        if self.average is not None and position == 0:
            with torch.no_grad(), self.scored_weights():
                torch._foreach_copy_(*self._averaged(self.average))  # the average begins with the first update

    def _compute(self, inputs: tuple[Tensor | None, list[Any]]) -> None:
        """Make an update on the device, with batches that lie there."""
        factor, batches = inputs
        if factor is not None:
            torch.mul(self.peaks, factor, out=self.rates)
        if self.spec.passes == 1:
            self._gradient(batches)
            self._step()
        else:
            two: Any = self.optimizer
            batches = [self.prepared(batch) for batch in batches]  # once for both gradients
            self._gradient(batches)
            two.first_step(zero_grad=True)
            self._gradient(batches, counted=False)
            two.second_step(zero_grad=True)
            self._follow()

    def _step(self) -> None:
        self.optimizer.step()
        self._follow()

    def _gradients(self, batches: list[Any]) -> list[Tensor | None]:
        self._gradient(batches)
        return [p.grad for p in self.model.parameters()]

    def _gradient(self, batches: list[Any], counted: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for number, batch in enumerate(batches, 1):
            with self.ranks.summing(self.forward, number == len(batches)):
                loss = self.loss(batch)
                if not isinstance(loss, Tensor) or loss.numel() != 1:
                    got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else short(loss)
                    raise WorkloadError(f"{self.config.workload}: loss() returned {got}; return the mean as a tensor")
                if not loss.requires_grad:
                    wrong = "loss() returned a tensor without a gradient; compute it with the model, and detach nothing"
                    raise WorkloadError(f"{self.config.workload}: {wrong}")
                if len(batches) > 1:
                    loss = loss / len(batches)
                loss.backward()
            if counted:
                self.window += loss.detach()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def _loss(self, batch: Any) -> Tensor:
        """The loss of a batch as it was drawn; of a prepared one where two gradients need the same."""
        batch = self.prepared(batch) if self.spec.passes == 1 else batch
        with self.autocast():
            loss = self.task.loss(self.forward, batch)
        if self.ranks.strategy is None or self.task.weight is None:
            return loss
        return self.ranks.weighted(loss, self.task.weight(batch))

    def prepared(self, batch: Any) -> Any:
        """What the task's loss gets: this rank's share of the batch, in the layout of the model."""
        size = self.config.batch_size // self.config.accumulate
        local = self.task.prepare(batch)
        local = local if self.task.split else self.ranks.share(local, size)
        return mapped(local, _channels_last) if self.config.channels_last else local

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.config.bf16 else contextlib.nullcontext()

    def _averaged(self, average: AveragedModel) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of the average, and those of the model that they follow."""
        means, values = ([*model.parameters(), *model.buffers()] for model in (average.module, self.model))
        return means, values

    @contextlib.contextmanager
    def scored_weights(self) -> Iterator[None]:
        """The weights that an optimizer with modes wants evaluated and kept; then those of the training, to the bit.

        Such an optimizer (Schedule-Free) has train() and eval(), which rewrite the weights and round them each time:
        without the copy the course of a training would depend on when it is evaluated.
        """
        if not self.has_modes:
            yield
            return
        optimizer: Any = self.optimizer
        trained = [(p, p.detach().clone()) for p in self.model.parameters()]
        optimizer.eval()
        try:
            yield
        finally:
            optimizer.train()
            with torch.no_grad():
                for p, value in trained:
                    p.copy_(value)

    def _follow(self) -> None:
        """Move the exponential average of weights and buffers; AveragedModel's own update waits for the device."""
        if self.average is None:
            return
        with torch.no_grad(), self.scored_weights():
            for mean, value in zip(*self._averaged(self.average), strict=True):
                if mean.is_floating_point():
                    mean.lerp_(value, 1 - self.config.ema)
                else:
                    mean.copy_(value)
        self.average.n_averaged += 1

    def words(self) -> str:
        """How the steps ran, for the record."""
        if self.graph is None:
            return f"eager: {self.obstacle}"
        words = self.graph.words()
        return words if self.held or words.startswith("eager") else f"{words}; the optimizer eager: {self.spec.eager}"

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        groups = [{**group, "lr": float(group["lr"])} for group in optimizer["param_groups"]]
        return {
            "model": self.ranks.whole(self.model.state_dict()),
            "optimizer": self.ranks.whole({**optimizer, "param_groups": groups}),
            "window": self.window,
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ranks.load_model(self.model, state["model"])
        # How the optimizer steps is this run's choice: a checkpoint of a captured run goes on eagerly and back.
        groups = [
            {**saved, **{name: own[name] for name in ("fused", "foreach", "capturable") if name in own}}
            for saved, own in zip(state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True)
        ]
        self.ranks.load_optimizer(self.optimizer, {**state["optimizer"], "param_groups": groups})
        self._begin_graph()  # the optimizer's states are other tensors
        self.window.copy_(state["window"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
