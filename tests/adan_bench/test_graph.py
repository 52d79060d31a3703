"""The step as a CUDA graph, as far as it can be tested without a GPU: what may be captured, and the turns of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.learning import settings, trainer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adan_bench.data.batching import moved
from adan_bench.errors import UsageError
from adan_bench.training import graph, optimizers, updater
from adan_bench.training.configure import configure
from adan_bench.training.graph import StaticInputs, StepGraph, signature_of
from adan_bench.training.optimizers import SPECS, build, get_optimizer, implementation
from adan_bench.training.rivals import Rival
from adan_bench.training.trainer import Trainer

aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.nonzero, aten.equal, aten.masked_select, aten._unique2, aten.unique_dim}


class OnDevice(TorchDispatchMode):
    """Refuses what a captured step must not do: read a value, let it decide a shape, or copy host values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        assert packet not in READS, f"{func} reads a value back"
        if packet is aten.lift_fresh:  # a number is passed to the kernel
            assert args[0].dim() == 0, "torch.tensor() copies from the host"
        if packet in (aten.index, aten.index_put_, aten.index_put):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask as index has no constant size"
        return func(*args, **(kwargs or {}))


CAPTURED = [
    "cifar-resnet34", "cifar-vit", "vit-s", "vit-s-setting-i", "swin-t", "convnext-t", "resnet50", "digits-vit",
    "mae-pretrain-vit-b", "mae-finetune-vit-b", "gpt2-code", "pycode-gpt2", "bert-pretrain", "lstm-1", "ptb-lstm",
    "transformer-xl", "cifar-mae", "cifar-convnext", "pycode-gpt-1m", "pycode-moe", "english-bert",
    "english-cola", "cora-deepgcn",
]  # fmt: skip


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_step_reads_nothing_back(name: str) -> None:
    """Prepare, loss and gradient of these workloads stay on the device, and their batches are all of one kind."""
    found = trainer(name, batch_size=4)
    for _ in range(2):  # as many as make every buffer
        found.update()
    drawn = [found.task.batches(position) for position in range(2, 5)]
    assert all(signature_of(batch) == signature_of(drawn[0]) for batch in drawn)
    before = graph._host_random()
    loss = found.task.loss  # the rest of the mode's reach is the optimizer, which is not the CPU's on a GPU
    with OnDevice():
        loss(found.model, found.updater.prepared(moved(drawn[0], "cpu"))).backward()
    after = graph._host_random()
    assert before[:2] == after[:2]  # dropout draws from the device's generator, which here is the host's


@pytest.mark.parametrize("name", ["vit-s", "mae-pretrain-vit-b", "mae-finetune-vit-b", "gpt2-code", "pycode-gpt2"])
def test_a_capture_makes_no_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers makes one where it traces, and takes a capture for that: captured steps had other kernels."""
    from transformers.utils import import_utils

    attend, masks = torch.nn.functional.scaled_dot_product_attention, []

    def seen(*args: Any, attn_mask: Any = None, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    found = trainer(name, batch_size=2)
    found.task.loss(found.model, found.updater.prepared(found.task.batches(0)))
    assert masks
    assert all(mask is None for mask in masks)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own look, after a graph break
@pytest.mark.parametrize(("name", "graphs"), [("pycode-gpt2", [1, 0]), ("ptb-lstm", [3, 0]), ("vit-s", [1, 0])])
def test_a_capture_compiles_nothing(name: str, graphs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler would wait for the device. By the third step, which is watched, all that --compile makes is there.

    What prepares a batch and the loss are one graph; dynamo leaves torch.lstm to Python.
    """
    compile_, made = torch.compile, [0]

    def counted(module: Any, inputs: Any) -> Any:
        made[0] += 1
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, backend=counted, **options))
    found = trainer(name, batch_size=4, compile=True)
    counts = []
    for _ in range(graph.WARMUP + 2):
        made[0] = 0
        found.update()
        counts.append(made[0])
    assert counts == [*graphs, 0, 0, 0]


def test_the_mode_finds_what_it_is_for() -> None:
    x = torch.ones(3)
    for bad in (lambda: x.sum().item(), lambda: torch.tensor([1.0]), lambda: x[x > 0], lambda: x.nonzero()):
        with OnDevice(), pytest.raises(AssertionError):
            bad()


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.target.startswith(optimizers.OURS)])
def test_our_rivals_step_on_the_device(name: str) -> None:
    params = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
    lr = torch.tensor(0.1)
    optimizer = build(get_optimizer(name), params, {"lr": lr, "weight_decay": 0.1})
    for mode in (None, OnDevice()):
        for p in params:
            p.grad = torch.randn_like(p)
        if mode is None:
            optimizer.step()
            continue
        with mode:
            optimizer.step()
    before = params[0].detach().clone()
    lr.fill_(0.0)  # the rate is read where it lies
    optimizer.step()
    assert torch.equal(before, params[0])


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.target.startswith(optimizers.OURS)])
def test_rivals_count_gradients_of_each_parameter(name: str) -> None:
    """A parameter without a gradient stands still; steps are those of optimizers of their own."""
    torch.manual_seed(0)
    start, grads = torch.randn(3), torch.randn(6, 3)
    always, sometimes = (nn.Parameter(start.clone()) for _ in range(2))
    settings = {"lr": 0.1} | ({"betas": (0.1, 0.9)} if name == "adai" else {})
    together: Any = build(get_optimizer(name), [always, sometimes], settings)
    twin = nn.Parameter(start.clone())
    alone = build(get_optimizer(name), [twin], settings)
    for i, grad in enumerate(grads):
        always.grad = grad.clone()
        sometimes.grad = grad.clone() if i % 2 else None
        if i == 3:  # through a checkpoint
            together.load_state_dict({**together.state_dict()})
        together.step()
        if i % 2 and name != "adai":  # whose mean is over all parameters
            twin.grad = grad.clone()
            alone.step()
            assert torch.equal(sometimes, twin)
    assert [together.state[p]["step"].item() for p in (always, sometimes)] == [6, 3]
    assert isinstance(together, Rival)


def test_static_inputs_are_filled_in_place() -> None:
    def inputs(i: int) -> Any:
        return torch.tensor(0.5 + i), [{"a": torch.arange(3) + i, "b": torch.tensor([True, False])}, (None, 7)]

    static = StaticInputs(inputs(0), torch.device("cpu"))
    places = [leaf.data_ptr() for leaf in (static.batch[0], static.batch[1][0]["a"])]
    assert all(place % graph.ALIGNED == 0 for place in places) or places[1] - places[0] == graph.ALIGNED
    for i in range(5):
        static.fill(inputs(i))
        assert static.batch[0].item() == 0.5 + i
        assert static.batch[1][0]["a"].tolist() == [i, 1 + i, 2 + i]
        assert static.batch[1][0]["b"].tolist() == [True, False]
        assert static.batch[1][1] == (None, 7)
    assert places == [leaf.data_ptr() for leaf in (static.batch[0], static.batch[1][0]["a"])]


def test_signatures() -> None:
    one = (torch.zeros(2), 3, None)
    assert signature_of(one) == signature_of((torch.ones(2), 3, None))
    for other in ((torch.zeros(3), 3, None), (torch.zeros(2).long(), 3, None), (torch.zeros(2), 4, None), [*one]):
        assert signature_of(one) != signature_of(other)
    assert signature_of(object()) != signature_of(object())


class Pretended(StepGraph):
    """The turns of a graph without one: a capture runs nothing, a replay the step on what was copied."""

    def __init__(self, step: Any) -> None:
        super().__init__(step, torch.device("cpu"))
        self.captures = 0

    def _capture(self, inputs: Any) -> bool:
        self.captures += 1
        self.graph = SimpleNamespace(replay=lambda: self.step(inputs))
        return True

    def _replay(self) -> None:
        self.replays += 1
        self.graph.replay()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)


@pytest.mark.usefixtures("no_gpu")
def test_warm_up_capture_and_eager_steps_between() -> None:
    """Every step is made once, whichever way; one of another shape is made eagerly among the replays."""
    seen: list[list[float]] = []
    steps = Pretended(lambda x: seen.append(x.tolist()))
    for i in range(10):
        steps(torch.full((3,) if i == 7 else (2,), float(i)))
    assert [row[0] for row in seen] == list(range(10))
    assert (steps.captures, steps.replays, steps.obstacle) == (1, 6, "")
    assert steps.words() == "captured: 86% of the steps, the others differ in shape"
    assert Pretended(lambda x: None).words() == "eager: too few steps for a capture"


@pytest.mark.usefixtures("no_gpu")
def test_uneven_batches_stay_eager() -> None:
    seen: list[int] = []
    steps = Pretended(lambda x: seen.append(len(x)))
    for i in range(30):
        steps(torch.zeros(i))
    assert seen == list(range(30))
    assert steps.words() == "eager: its batches differ from step to step, in shape or in values that are not tensors"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("draw", [random.random, lambda: __import__("numpy").random.rand(), lambda: torch.rand(1)])
def test_host_randomness_stays_eager(draw: Any) -> None:
    """A graph would repeat the number that it was captured with."""
    steps = Pretended(lambda x: draw())
    for _ in range(6):
        steps(torch.zeros(1))
    assert (steps.captures, steps.words()) == (0, "eager: it draws random numbers on the host")


class PretendedGradients(Pretended):
    """A replay writes the gradients where they were captured, and leaves the parameters' attributes alone."""

    def _capture(self, inputs: Any) -> bool:
        self.outputs = [torch.zeros_like(grad) for grad in self.step(inputs)]
        return super()._capture(inputs)

    def _replay(self) -> None:
        self.replays += 1
        for output, grad in zip(self.outputs, self.step(self.inputs.batch), strict=True):
            output.copy_(grad)
            grad.fill_(float("nan"))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["lion", "soap", "schedule-free"])
def test_an_optimizer_that_cannot_be_captured_steps_after_the_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the gradients of the replay, under the schedule's rate, with the average of weights after it."""
    options: dict[str, Any] = {"batch_size": 4, "ema": 0.5, "steps": 20}
    eager = trainer("digits-vit", name, **options)
    monkeypatch.setattr(updater.Updater, "_obstacle", lambda self: "")
    monkeypatch.setattr(updater, "StepGraph", lambda step, device, captures: PretendedGradients(step))
    captured = trainer("digits-vit", name, **options)
    for _ in range(8):
        eager.update()
        captured.update()
    assert captured.updater.words().startswith("captured; the optimizer eager: ")
    for one, other in ((eager.model, captured.model), (eager.updater.average, captured.updater.average)):
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)


def test_cpu_runs_say_that_they_are_eager(config: Any, tmp_path: Any) -> None:
    from adan_bench.records.store import RunStore
    from adan_bench.training.trainer import run

    result = run(config("adamw"), RunStore(tmp_path / "a"))
    assert result["graph"] == "eager: the CPU has no CUDA graphs"
    assert result["implementation"] == "fused"
    assert 8 < result["state_bytes_per_parameter"] < 8.1
    assert run(config("adan"), RunStore(tmp_path / "b"))["implementation"] in ("fused", "foreach")


def test_graph_is_checked(config: Any) -> None:
    from support.learning import chosen

    from adan_bench.workloads.registry import get_workload

    for value, words in (("yes", "--graph yes: write auto, on or off"), ("on", "--graph on: CUDA graphs need a GPU")):
        with pytest.raises(UsageError, match=words):
            configure(get_workload("digits-vit"), get_optimizer("adan"), chosen(graph=value))
    with pytest.raises(UsageError, match="--graph on: the CPU has no CUDA graphs; use --graph auto"):
        Trainer(config(graph="on"))
    assert not settings("digits-vit").differences(settings("digits-vit", graph="off"))


def test_every_optimizer_runs_in_its_fastest_exact_form() -> None:
    """On the CPU: fused where torch has it, also below SAM; a choice of the user's stays."""
    p = [nn.Parameter(torch.zeros(2, 2))]
    words = {name: implementation(build(spec, p, {"lr": 0.1})) for name, spec in SPECS.items()}
    fused = {"adamw", "adam", "amsgrad", "sgd", "sgd-momentum", "sgd-nesterov", "sam"}
    assert {name for name, word in words.items() if word == "fused"} - {"adan"} == fused
    assert {word for name, word in words.items() if name in ("nadam", "radam", "rmsprop")} == {"single-tensor"}
    assert words["lamb"] == words["adabelief"] == words["padam"] == words["adai"] == "foreach"
    assert implementation(build(get_optimizer("adamw"), p, {"lr": 0.1, "foreach": True})) == "foreach"
    eager = {name for name, spec in SPECS.items() if spec.eager}
    newer = {"soap", "schedule-free", "ademamix", "lion", "mars", "prodigy"}
    assert eager == {"lars", "adabound", "yogi"} | newer
    assert all("on the host" in SPECS[name].eager for name in eager)


def test_checkpoints_say_nothing_of_the_implementation(config: Any) -> None:
    """A run goes on with its own variant of the optimizer, whichever wrote the checkpoint."""
    other: Any = config("adam", settings={"lr": 1e-3, "foreach": True})
    first, second = Trainer(other), Trainer(config("adam"))
    first.update()
    second.load_state_dict(first.state_dict())
    group = second.optimizer.param_groups[0]
    assert (group["fused"], group["foreach"]) == (True, None)
    second.update()
    assert isinstance(first.state_dict()["optimizer"]["param_groups"][0]["lr"], float)


def test_average_keeps_integer_buffers() -> None:
    found = trainer("digits-resnet", batch_size=4, ema=0.5)
    for _ in range(2):
        found.update()
    counts = [b for name, b in found.updater.average.module.named_buffers() if "num_batches" in name]
    assert counts
    assert all(int(count) == 2 for count in counts)
    assert isinstance(counts[0], Tensor)


def test_reports_say_whether_steps_were_captured() -> None:
    from adan_bench.reports.comparison import captures

    def of(device: str, *results: Any) -> Any:
        config = SimpleNamespace(device=device)
        return SimpleNamespace(records=[SimpleNamespace(result=result, config=config) for result in results])

    gpu, cpu = {"graph": "captured"}, {"graph": "eager: the CPU has no CUDA graphs"}
    assert captures(of("cuda", gpu, gpu, None)) == ["steps captured"]
    assert captures(of("cpu", cpu)) == captures(of("cuda", {})) == []  # of records from before, nothing


def test_state_bytes_per_parameter() -> None:
    """Of every optimizer by what it keeps; a count that parameters share counts once, tensors in lists count too.

    A tensor made of others, as quantized ones are, counts as these and not as what it looks like.
    """
    from torch.testing._internal.two_tensor import TwoTensor

    from adan_bench.training.optimizers import state_bytes

    def of(name: str, **settings: Any) -> float:
        weights = [nn.Parameter(torch.ones(256, 128)), nn.Parameter(torch.ones(256))]
        optimizer = build(get_optimizer(name), weights, {"lr": 0.1, **settings})
        assert state_bytes(optimizer) == 0
        for p in weights:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return state_bytes(optimizer)

    size = 256 * 129
    assert of("sgd") == 0
    assert of("sgd-momentum", momentum=0.9) == 4
    assert of("adamw") == 8 + 2 * 4 / size  # a count of 4 bytes for each tensor
    assert of("lamb") == 8 + 8 / size  # one of 8 bytes for both
    assert of("adan") == pytest.approx(16, rel=1e-3)
    assert of("adan", betas=(0.9, 0.9, 0.99)) == pytest.approx(12, rel=1e-3)
    assert of("adan", state_format="bf16") == pytest.approx(8, rel=1e-2)  # of a short tensor fp32
    assert 4 < of("adan", state_format="8bit") < 4.5
    nested: Any = torch.optim.SGD([nn.Parameter(torch.zeros(10))])
    nested.state[nested.param_groups[0]["params"][0]] = {"Q": [torch.zeros(5), None, (torch.zeros(5),)], "step": 3}
    assert state_bytes(nested) == 4
    nested.state[nested.param_groups[0]["params"][0]] = {"both": TwoTensor(torch.zeros(10), torch.zeros(10))}
    assert state_bytes(nested) == 8
