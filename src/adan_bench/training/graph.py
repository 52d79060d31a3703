"""The training step as one CUDA graph: the host draws what is random, copies it once, and launches once.

A step is a function of its inputs, a nested structure of small tensors. The first steps run eagerly, and count; they
let cuDNN choose its algorithms, Triton compile and optimizers make their states. One of them is watched: where it waits
for the device or draws random numbers on the host, a graph would fail or repeat the same numbers for ever, so the run
stays eager and says why. Then the step is captured, and later ones replay it. Inputs of other shapes than the captured
ones make an eager step among the replays: both work on the same tensors.
"""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from adan_bench.data.batching import moved

WARMUP = 3  # eager steps of one signature before the capture; the last of them is watched
CHANGES = 8  # other signatures after which no capture is tried any more
RING = 3  # copies on their way to the device at a time
ALIGNED = 64

Step = Callable[[Any], Any]


class StepGraph:
    """Steps of a training, captured as soon as that is possible, unless `captures` is False."""

    def __init__(self, step: Step, device: torch.device, captures: bool = True) -> None:
        self.step, self.device = step, device
        self.obstacle = "" if captures else "--graph off"  # why no graph holds the step
        self.between = self.replays = 0  # steps since the capture: eager ones, and replays of it
        self.signature: Any = None
        self.outputs: Any = None  # of the captured step; a replay rewrites its tensors
        self.inputs: StaticInputs | None = None
        self.graph: Any = None
        self.left = WARMUP
        self.changes = 0

    def __call__(self, inputs: Any) -> Any:
        """Make a step, one way or another, and return what it returns."""
        static = None if self.obstacle else self._static(inputs)
        if static is None:
            self.between += self.graph is not None
            return self.step(moved(inputs, self.device))
        if self.graph is not None or (self.left == 0 and self._capture(static)):
            self._replay()
            return self.outputs
        if self.left == 1:
            self.left = 0
            self.obstacle, outputs = watched(self.step, static)
            return outputs
        self.left = max(0, self.left - 1)
        return self.step(static)

    def _static(self, inputs: Any) -> Any:
        """The inputs at the addresses that the graph reads; None where they are others than it can read."""
        signature = signature_of(inputs)
        if signature != self.signature:
            self.changes += self.graph is None
            if self.changes > CHANGES:
                self.obstacle = "its batches differ from step to step, in shape or in values that are not tensors"
            if self.graph is not None or self.obstacle:
                return None
            self.signature, self.left, self.inputs = signature, WARMUP, StaticInputs(inputs, self.device)
        assert self.inputs is not None
        self.inputs.fill(inputs)
        return self.inputs.batch

    def _capture(self, inputs: Any) -> bool:
        """Capture the step without making it; whether that succeeded."""
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        gc.collect()
        gc.disable()  # to free the graph of an earlier run would end the capture
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                self.outputs = self.step(inputs)
        except Exception as error:
            generator.graphsafe_set_state(before)  # it would stay in the mode of a capture
            self.obstacle = f"its capture failed ({_first_line(error)})"
            return False
        finally:
            gc.enable()
        self.graph = graph
        return True

    def _replay(self) -> None:
        self.replays += 1
        self.graph.replay()

    def words(self) -> str:
        """How the steps ran, for the record."""
        if self.obstacle:
            return f"eager: {self.obstacle}"
        if not self.replays:
            return "eager: too few steps for a capture"
        share = self.replays / (self.replays + self.between)
        return "captured" if share >= 0.99 else f"captured: {share:.0%} of the steps, the others differ in shape"


class StaticInputs:
    """Inputs at fixed addresses on the device, filled by one copy from pinned memory.

    batch: the inputs there, in the structure of those that were given.
    """

    def __init__(self, inputs: Any, device: torch.device) -> None:
        leaves, tree = tree_flatten(inputs)
        self.from_host = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"]
        self.on_device = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.device.type != "cpu"]
        self.places, size = [], 0
        for i in self.from_host:
            self.places.append((size, torch.empty_like(leaves[i], device="meta")))
            size += -(-leaves[i].nbytes // ALIGNED) * ALIGNED
        cuda = device.type == "cuda"
        self.target = torch.empty(size, dtype=torch.uint8, device=device)
        self.ring = [torch.empty(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(RING)]
        self.sources = [self._views(source) for source in self.ring]
        self.copied = [torch.cuda.Event() if cuda else None for _ in range(RING)]
        self.turn = 0
        for i, view in zip(self.from_host, self._views(self.target), strict=True):
            leaves[i] = view
        for i in self.on_device:
            leaves[i] = torch.empty_like(leaves[i])
        self.leaves = leaves
        self.batch = tree_unflatten(leaves, tree)

    def _views(self, memory: Tensor) -> list[Tensor]:
        return [memory[start : start + like.nbytes].view(like.dtype).view(like.shape) for start, like in self.places]

    def fill(self, inputs: Any) -> None:
        """Copy inputs of the same signature."""
        leaves = tree_flatten(inputs)[0]
        source, event = self.ring[self.turn], self.copied[self.turn]
        if event is not None:
            event.synchronize()  # the last copy from this memory
        for i, view in zip(self.from_host, self.sources[self.turn], strict=True):
            view.copy_(leaves[i])
        self.target.copy_(source, non_blocking=True)
        if event is not None:
            event.record()
        for i in self.on_device:
            self.leaves[i].copy_(leaves[i])
        self.turn = (self.turn + 1) % RING


def signature_of(inputs: Any) -> Any:
    """What a captured step depends on besides the values of its tensors; inputs of equal ones can share a graph."""
    leaves, tree = tree_flatten(inputs)
    return [_kind(leaf) for leaf in leaves], tree


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else object()  # which equals nothing


def watched(step: Step, inputs: Any) -> tuple[str, Any]:
    """Make a step, and say what about it a graph cannot hold (empty: nothing was seen), and what it returns."""
    random_before, mode = _host_random(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            outputs = step(inputs)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    reason = ""
    for warning in caught:
        text = str(warning.message)
        if "synchronizing CUDA operation" in text:
            reason = reason or f"{'/'.join(Path(warning.filename).parts[-2:])}:{warning.lineno} waits for the GPU"
        elif "Synchronization debug mode" not in text:  # what torch says about the mode itself
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not reason and _host_random() != random_before:
        reason = "it draws random numbers on the host"
    return reason, outputs


def _host_random() -> Any:
    import numpy as np

    numbers: Any = np.random.get_state()
    return random.getstate(), numbers[1].tolist(), numbers[2:], torch.get_rng_state().tolist()


def _first_line(error: BaseException) -> str:
    while error.__context__ is not None:  # the end of a failed capture fails too
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".rstrip(": ")


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream other than the default, which cannot be captured; on the CPU, nothing."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream, outer = _stream(torch.cuda.current_device()), torch.cuda.current_stream()
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)


@cache
def _stream(index: int) -> Any:
    """The stream of all runs of the process: the allocator keeps the memory of each stream apart."""
    return torch.cuda.Stream(index)
