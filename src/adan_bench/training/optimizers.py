"""Adan, every optimizer that the paper compares it with, newer ones, and the user's own, with their search spaces.

The defaults are for runs of hundreds of steps. Adan's are betas (0.9, 0.92, 0.99) and about three times AdamW's
learning rate. With those of the paper's long runs, (0.98, 0.92, 0.99), which stay in the search space, it is far behind
after 500 steps (docs/faq.md).
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from adan_bench.errors import UsageError, check_name, unknown
from adan_bench.task import OptimizerSpec, Settings
from adan_bench.training.schedules import schedule as check_schedule

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

BETAS = ({"betas": (0.9, 0.95)}, {"betas": (0.95, 0.99)}, {"betas": (0.8, 0.99)})
ADAN = ({"betas": (0.95, 0.92, 0.99)}, {"betas": (0.98, 0.92, 0.99)}, {"betas": (0.9, 0.92, 0.95)})
DECAYS = ({"weight_decay": 1e-4}, {"weight_decay": 5e-4}, {"weight_decay": 5e-3})
MOMENTA = ({"weight_decay": 5e-4}, {"momentum": 0.95}, {"weight_decay": 5e-3})
LARS = ({"momentum": 0.95}, {"weight_decay": 1e-3}, {"nesterov": True})
LAST_RATES = ({"final_lr": 0.01}, {"final_lr": 1.0}, BETAS[0])
RADII = ({"rho": 0.02}, {"rho": 0.1}, DECAYS[1])
DECAY, MOMENTUM = {"weight_decay": 0.02}, {"momentum": 0.9}
TORCH, OTHERS, OURS = "torch.optim", "pytorch_optimizer", "adan_bench.training.rivals"
MUON = "adan_bench.training.muon"
ADAN_ENGINES = {"cuda": "fused", "cpu": "fused", "loop": "single-tensor"}
ON_HOST = "pytorch_optimizer's {} reads its learning rate and step count on the host"
TODAY = 2023  # the first year of those that the paper, of 2022, does not compare with


def _specs() -> Iterator[OptimizerSpec]:
    """Name, class, center of the learning rates, defaults, what is tried after the learning rate, year and paper."""
    spec = OptimizerSpec
    usual: Mapping[str, Any]
    tried: tuple[Mapping[str, Any], ...]
    how: dict[str, Any]

    def other(name: str, kind: str, *rest: Any, **more: Any) -> OptimizerSpec:
        """One of pytorch_optimizer's."""
        return spec(name, f"{OTHERS}:{kind}", *rest, **{"eager": ON_HOST.format(kind), **more})

    yield spec("adan", "adan:Adan", 3e-3, {"betas": (0.9, 0.92, 0.99), **DECAY}, ADAN, 2022, "arXiv:2208.06677")
    yield spec("adamw", f"{TORCH}:AdamW", 1e-3, DECAY, BETAS, 2017, "arXiv:1711.05101")
    yield spec("adam", f"{TORCH}:Adam", 1e-3, {}, BETAS, 2014, "arXiv:1412.6980")
    yield spec("amsgrad", f"{TORCH}:Adam", 1e-3, {"amsgrad": True}, BETAS, 2018, "arXiv:1904.09237")
    yield spec("nadam", f"{TORCH}:NAdam", 1e-3, {}, BETAS, 2016, "Dozat, ICLR workshop")
    yield spec("radam", f"{TORCH}:RAdam", 1e-3, {}, BETAS, 2019, "arXiv:1908.03265")
    alphas = ({"alpha": 0.9}, {"momentum": 0.9}, {"alpha": 0.999})
    yield spec("rmsprop", f"{TORCH}:RMSprop", 1e-3, {}, alphas, 2012, "Tieleman and Hinton, lecture 6.5")
    yield spec("sgd", f"{TORCH}:SGD", 0.3, {}, DECAYS, 1951, "Robbins and Monro")
    yield spec("sgd-momentum", f"{TORCH}:SGD", 0.1, MOMENTUM, MOMENTA, 1964, "Polyak")
    nesterov = {**MOMENTUM, "nesterov": True}
    yield spec("sgd-nesterov", f"{TORCH}:SGD", 0.1, nesterov, MOMENTA, 2013, "Sutskever et al., ICML")
    yield spec("lamb", f"{OURS}:Lamb", 1e-2, DECAY, BETAS, 2019, "arXiv:1904.00962", shards=False)
    yield other("lars", "LARS", 3.0, {"weight_decay": 1e-4}, LARS, 2017, "arXiv:1708.03888", shards=False)
    beliefs = ({"betas": (0.9, 0.95)}, {"eps": 1e-8}, BETAS[1])
    yield spec("adabelief", f"{OURS}:AdaBelief", 1e-3, {}, beliefs, 2020, "arXiv:2010.07468")
    yield other("adabound", "AdaBound", 1e-3, {}, LAST_RATES, 2019, "arXiv:1902.09843")
    yield other("yogi", "Yogi", 3e-3, {}, BETAS, 2018, "Zaheer et al., NeurIPS")
    powers = ({"partial": 0.125}, BETAS[0], DECAYS[1])
    yield spec("padam", f"{OURS}:Padam", 0.03, {}, powers, 2018, "arXiv:1806.06763")
    inertia = ({"betas": (0.1, 0.9)}, {"betas": (0.5, 0.99)}, DECAYS[1])
    yield spec("adai", f"{OURS}:Adai", 0.3, {}, inertia, 2020, "arXiv:2006.15815")
    radius, driven = {"rho": 0.05, **MOMENTUM}, {"passes": 2, "base": f"{TORCH}:SGD"}
    yield other("sam", "SAM", 0.1, radius, RADII, 2020, "arXiv:2010.01412", shards=False, eager="", **driven)
    # Rate and decay of AdamW (arXiv:2502.16982), betas of AdamW and what is worth tuning: github.com/KellerJordan/Muon.
    how = {"shards": False, "by_role": True}
    tried = ({"weight_decay": 0.1}, {"momentum": 0.9}, {"betas": (0.9, 0.99)})
    yield spec("muon", f"{MUON}:muon", 1e-3, DECAY, tried, 2024, "Jordan et al.; arXiv:2502.16982", **how)
    tried = (*tried[:2], {"rest_factor": 1.0})
    yield spec("muon-adan", f"{MUON}:muon_adan", 1e-3, DECAY, tried, 2024, "Jordan et al.; arXiv:2208.06677", **how)
    # The defaults of github.com/nikhilvyas/SOAP; by its paper, a basis that is renewed more often is better and dearer.
    usual = {"betas": (0.95, 0.95), "weight_decay": 0.01}
    tried = ({"precondition_frequency": 5}, {"betas": (0.9, 0.95)}, {"betas": (0.95, 0.99)})
    on_host = "SOAP decomposes matrices and counts its steps on the host"
    yield other("soap", "SOAP", 3e-3, usual, tried, 2024, "arXiv:2409.11321", shards=False, eager=on_host)
    # github.com/facebookresearch/schedule_free: 1 to 10 times the rate of AdamW; β1 of 0.95 or 0.98 for long runs.
    tried = ({"betas": (0.95, 0.999)}, {"betas": (0.98, 0.999)}, {"weight_decay": 0.1})
    on_host, free = "schedulefree's AdamW counts its steps and weighs its average on the host", "AdamWScheduleFree"
    how = {"eager": on_host, "schedule": "constant"}
    yield spec("schedule-free", f"schedulefree:{free}", 2.5e-3, DECAY, tried, 2024, "arXiv:2405.15682", **how)
    # Its paper: α of 2 to 10, β3 0.9999, both warmed up over the whole run.
    usual = {"betas": (0.9, 0.999, 0.9999), "alpha": 5.0, "weight_decouple": True, **DECAY}
    tried = ({"betas": (0.9, 0.999, 0.999)}, {"alpha": 8.0}, {"alpha": 2.0})
    yield other("ademamix", "AdEMAMix", 1e-3, usual, tried, 2024, "arXiv:2409.03137", horizon="t_alpha_beta3")
    # github.com/google/automl/tree/master/lion: a rate 3 to 10 times smaller than AdamW's, a decay as much larger.
    tried = ({"betas": (0.95, 0.98)}, {"weight_decay": 0.3}, {"weight_decay": 0.02})
    yield other("lion", "Lion", 2e-4, {"weight_decay": 0.1}, tried, 2023, "arXiv:2302.06675")
    # AlgoPerf's momentum is b1 from the start; torch's grows towards it for thousands of steps unless this is large.
    usual = {"decoupled_weight_decay": True, "momentum_decay": 1e3, **DECAY}
    yield spec("nadamw", f"{TORCH}:NAdam", 1e-3, usual, BETAS, 2023, "Dozat 2016; arXiv:2306.07179")
    # github.com/AGI-Arena/MARS: its defaults, and the decay and lr_1d of its GPT-2 runs.
    tried = ({"lr_1d": 1e-3}, {"gamma": 0.05}, {"gamma": 0.01})
    yield other("mars", "MARS", 3e-3, {"weight_decay": 0.01}, tried, 2024, "arXiv:2411.10438", shards=False)
    # github.com/konstmish/prodigy: lr 1, d_coef to be tuned, safeguard_warmup under a warm-up, decay 0.01 as AdamW's.
    usual = {"weight_decay": 0.01, "safeguard_warmup": True}
    tried = ({"d_coef": 0.5}, {"d_coef": 2.0}, {"betas": (0.9, 0.99)})
    on_host = "pytorch_optimizer's Prodigy reads its estimate of the distance on the host"
    how = {"shards": False, "eager": on_host, "one_rate": True}
    yield other("prodigy", "Prodigy", 1.0, usual, tried, 2023, "arXiv:2306.06101", **how)


SPECS = {spec.name: spec for spec in _specs()}
OWN: dict[str, OptimizerSpec] = {}  # those of the user's script
SCRIPT = "adan_bench_script_"  # begins the name of its module
Maker = TypeVar("Maker", bound=Callable[..., Any])


def optimizer(
    name: str,
    *,
    lr: float,
    defaults: Mapping[str, Any] | None = None,
    choices: Iterable[Mapping[str, Any]] = (),
    capturable: bool = False,
    schedule: str = "",
) -> Callable[[Maker], Maker]:
    """Make a class of optimizers, or a function (params, lr, …) that returns one, known to `adan-bench`.

    Args:
        name: what `adan-bench` calls it.
        lr: the learning rate without tuning, and the center of the rates that tuning tries.
        defaults: other settings, where they are to differ from those of the class or function.
        choices: what tuning tries after the rates, in this order, for example [{"momentum": 0.95}, {"momentum": 0.8}].
        capturable: whether a CUDA graph may hold its step: nothing in it waits for the GPU, and whatever changes from
            step to step, the learning rate and a count of steps included, is a tensor there.
        schedule: its own, "constant" for example, which it has unless the user gives --schedule.
    """
    check_name("@optimizer", name)
    if name in SPECS:
        raise UsageError(f"{name!r} is a bundled optimizer; give yours another name")
    where = f"@optimizer({name!r})"
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 < lr < math.inf:
        raise ValueError(f"{where}: lr must be a number above 0, got {lr!r}; for example 1e-3")
    if defaults is not None and not isinstance(defaults, Mapping):
        raise TypeError(f"{where}: defaults must be a dictionary of settings, got {defaults!r}")
    tried = () if isinstance(choices, Mapping) else tuple(choices)
    if isinstance(choices, Mapping) or not all(isinstance(choice, Mapping) for choice in tried):
        raise TypeError(f"{where}: choices must be a list of dictionaries, got {choices!r}")
    if not isinstance(capturable, bool):
        raise TypeError(f"{where}: capturable must be True or False, got {capturable!r}")
    if schedule:
        check_schedule(schedule, 1)
    eager = "" if capturable else f"{where} does not declare capturable=True"

    def register(maker: Maker) -> Maker:
        if not (inspect.isclass(maker) or inspect.isfunction(maker)):
            raise TypeError(f"{where} decorates a class of optimizers, or a function that returns one, got {maker!r}")
        target = f"{maker.__module__.removeprefix(SCRIPT)}:{maker.__qualname__}"
        spec = OptimizerSpec(name, target, lr, dict(defaults or {}), tried, eager=eager, own=maker, schedule=schedule)
        for settings in ({"lr": lr, **spec.defaults}, *tried):
            check_settings(spec, settings)
        OWN[name] = spec
        return maker

    return register


def known() -> dict[str, OptimizerSpec]:
    """All optimizers by name: the bundled ones, then those of the user's script."""
    return {**SPECS, **OWN}


def get_optimizer(name: str) -> OptimizerSpec:
    specs = known()
    if name not in specs:
        raise UsageError(f"{unknown('optimizer', name, specs)}; to add one: @adan_bench.optimizer in --script FILE")
    return specs[name]


def defaults(spec: OptimizerSpec) -> Settings:
    """The settings of an optimizer that nobody has tuned.

    An optimizer of the user's own keeps its default weight decay: workloads with parameter groups set each group's.
    """
    option = _options(spec.own).get("weight_decay") if spec.own else None
    decay = {"weight_decay": option.default} if option and isinstance(option.default, (int, float)) else {}
    return {"lr": spec.lr, **decay, **spec.defaults}


def build(
    spec: OptimizerSpec,
    parameters: Iterable[nn.Parameter] | list[dict[str, Any]],
    settings: Mapping[str, Any],
    capturable: bool = False,
) -> Optimizer:
    """The optimizer itself, in its fastest exact form: torch's fused where there is one, else foreach on a GPU.

    Settings may come from JSON: lists become tuples, {"radius": R} an `adan.Restart`. {"restart": {"probe": True}}
    measures the restart condition and never restarts.
    capturable: a CUDA graph is to hold its step.
    """
    from torch.optim import Optimizer

    from adan import Restart

    check_settings(spec, settings)
    values: Settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    if isinstance(values.get("restart"), dict):
        rule = values["restart"]
        values["restart"] = Restart.probe() if rule.get("probe") else Restart(**rule)
    make, *base = _makers(spec)
    if base:
        values["base_optimizer"] = base[0]
    target, options = spec.base or spec.target, _options(base[0] if base else make)
    if "capturable" in options:
        values.setdefault("capturable", capturable)
    params: list[Any] = list(parameters)
    if target.startswith(TORCH) and "fused" in options and not values.keys() & {"fused", "foreach", "differentiable"}:
        first = params[0]["params"][0] if isinstance(params[0], dict) else params[0]
        # torch 2.13 shards no fused SGD
        values["fused"] = not (target.endswith(":SGD") and hasattr(first, "full_tensor"))
    optimizer = make(params, **values)
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"{spec.name}: {spec.target} made {optimizer!r}; return a torch.optim.Optimizer")
    if not all("lr" in group for group in optimizer.param_groups):
        raise UsageError(f"{spec.name}: its parameter groups have no 'lr' to schedule; put it into their defaults")
    if spec.one_rate and len({float(group["lr"]) for group in optimizer.param_groups}) > 1:
        raise UsageError(f"{spec.name} has one learning rate, and this workload's parameter groups have several")
    return optimizer


def implementation(optimizer: Optimizer) -> str:
    """How an optimizer steps, in words: which of its variants runs, and whether a CUDA graph could hold it."""
    from adan import Adan
    from adan.plan import choose
    from adan_bench.training.muon import Composite
    from adan_bench.training.rivals import Rival

    if isinstance(optimizer, Composite):
        return "; ".join(f"{type(half).__name__} {implementation(half)}" for half in optimizer.halves)
    group = optimizer.param_groups[0]
    on_gpu = group["params"][0].is_cuda
    if isinstance(optimizer, Adan):
        engines = (choose(g, p).name for g in optimizer.param_groups for p in g["params"])
        words = [ADAN_ENGINES.get(name, name) for name in dict.fromkeys(engines)]
    elif type(optimizer).__module__.startswith(SCRIPT):
        words = ["the script's own step"]
    elif group.get("fused"):
        words = ["fused"]
    elif isinstance(optimizer, Rival) or group.get("foreach") or (on_gpu and group.get("foreach", False) is None):
        words = ["foreach"]
    else:
        words = ["single-tensor"]
    return ", ".join([*words, "capturable"] if group.get("capturable") else words)


def state_bytes(optimizer: Optimizer) -> float:
    """Bytes of an optimizer's state per trained parameter; of sharded ones, those of this rank.

    A tensor that parameters share counts once; a quantized or sharded one counts as the tensors inside it.
    """
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    from adan.sharding import local

    def stored(tensor: Any) -> int:
        tensor = local(tensor)
        if not hasattr(tensor, "__tensor_flatten__"):
            return int(tensor.nbytes)
        return sum(stored(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])

    leaves = tree_leaves(list(optimizer.state.values()))
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    trained = sum(local(p).numel() for group in optimizer.param_groups for p in group["params"])
    return sum(map(stored, tensors.values())) / max(1, trained)  # a late rank may have no part of a small model


def check_values(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    """Refuse a value that the optimizer refuses, by making it, before any run begins."""
    import torch

    try:
        build(spec, [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,))], settings)
    except UsageError:
        raise
    except Exception as error:  # each library has its own
        values = " ".join(f"{key}={value}" for key, value in settings.items())
        raise UsageError(f"{spec.name} rejects {values}: {' '.join(str(error).split())}") from error


def check_settings(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the optimizer does not take: dropping it in silence would make a false comparison."""
    options = {name: p for make in _makers(spec) for name, p in _options(make).items() if name != "base_optimizer"}
    if spec.own and any(p.kind is p.VAR_KEYWORD for p in options.values()):
        return  # only its own code can tell
    names = [name for name, p in options.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for key in settings:
        if key not in names:
            raise unknown("setting", key, names, of=spec.name)


def _makers(spec: OptimizerSpec) -> list[Callable[..., Any]]:
    """The class or function that makes the optimizer; for a wrapper, then the class of the one that it drives."""
    if spec.own is not None:
        return [spec.own]
    return [_import(target, spec.name) for target in (spec.target, spec.base) if target is not None]


def _options(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a class of optimizers or a function takes after the parameters to train."""
    return dict(list(inspect.signature(make).parameters.items())[1:])


def extra(spec: OptimizerSpec) -> str:
    """The extra of this package that an optimizer needs; empty: none."""
    return "bench" if package(spec) not in ("adan", "torch", "script") else ""


def package(spec: OptimizerSpec) -> str:
    """The package that the update comes from."""
    if spec.own is not None:
        return "script"
    name = spec.target.partition(":")[0].partition(".")[0]
    return "adan" if name == "adan_bench" else name


def _import(target: str, name: str) -> Any:
    module, attribute = target.split(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name} needs the package {error.name}; run: pip install '.[bench]'") from error
