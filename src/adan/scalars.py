"""The numbers of one step: what Algorithm 1 multiplies its tensors with.

This is the only file that knows how the coefficients depend on the step count: the de-bias, the paper's footnote for
the first two gradients, the two forms of weight decay. Engines only multiply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

#: A coefficient: a plain number, or a 0-dim tensor when it is decided on the device.
Number: TypeAlias = float | Tensor

_ONE: Number = 1.0

#: Added to the gradient norm before the division, as `torch.nn.utils.clip_grad_norm_` does.
CLIP_EPS = 1e-6

#: A learning rate must be above it. `LinearLR` to 0 ends a rounding error below 0.
LEAST_LR = -1e-9

#: Options that must be at least 0. A step also takes them as tensors.
NOT_NEGATIVE = ("eps", "weight_decay", "max_grad_norm")


class Options(NamedTuple):
    """The options of a parameter group that enter the arithmetic."""

    lr: Number
    betas: tuple[float, float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    no_prox: bool
    bias_correction: bool
    maximize: bool
    stochastic_rounding: bool
    last_lr: Number | None = None  #: of the step before, where the displacement of y is measured; see `Displacement`
    share: float = 1.0  #: this process's share of that displacement: less than 1 where other processes hold the same
    cycle: Number = 0.0  #: the restarts so far, where something is rounded at random; see `lowbit.RandomBits`

    @classmethod
    def of(
        cls, group: Mapping[str, Any], last_lr: Tensor | None = None, share: float = 1.0, cycle: Number = 0.0
    ) -> Options:
        lr, (b1, b2, b3) = group["lr"], group["betas"]
        lr = _read(lr) if isinstance(lr, Tensor) else lr + 0.0
        # A wrong number must come to light here, before anything is written. `Adan` explains the error. Tensors are not
        # read: that would be a synchronization.
        if not (0 <= b1 < 1 and 0 <= b2 < 1 and 0 <= b3 < 1):
            raise ValueError(f"betas must be in [0, 1), got {group['betas']!r}")
        for name in NOT_NEGATIVE:
            if not (isinstance(group[name], Tensor) or 0 <= group[name] < math.inf):
                raise ValueError(f"{name} must be finite and at least 0, got {group[name]!r}")
        if not (isinstance(lr, Tensor) or LEAST_LR < lr < math.inf):
            raise ValueError(f"lr must be finite and at least 0, got {lr!r}")
        last = None if last_lr is None else _read(last_lr)
        cycle = _read(cycle) if isinstance(cycle, Tensor) else cycle
        values: list[Any] = [lr, *[group[name] for name in _FROM_GROUP], last, share, cycle]
        return cls(*values)

    def to(self, device: torch.device) -> Options:
        """A copy with its tensors on a device; 0-dim tensors on the CPU mix with any device and stay."""
        numbers = {"lr": self.lr, "last_lr": self.last_lr, "cycle": self.cycle}
        tensors = {name: x for name, x in numbers.items() if isinstance(x, Tensor) and x.device.type != "cpu"}
        return replaced(self, **{name: x.to(device, non_blocking=device.type != "cpu") for name, x in tensors.items()})


#: Between `lr` and what is no option.
_FROM_GROUP = Options._fields[1:-3]


def _read(lr: Tensor) -> Number:
    """A number where the host can read it for free."""
    return lr.item() if not lr.requires_grad and host_readable(lr) else lr.reshape(())


Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


def replaced(old: Tuple, **changes: Any) -> Tuple:
    """`NamedTuple._replace`, which `torch.compile` of torch 2.8 and older cannot trace."""
    kind: Any = type(old)
    values = [changes.pop(name, value) for name, value in zip(kind._fields, old, strict=True)]
    assert not changes, changes.keys()
    return kind(*values)  # type: ignore[no-any-return]


class Signals(NamedTuple):
    """Facts about all gradients of a step together."""

    norm: Tensor | None = None  #: the global norm of the gradients as they are, when a group clips
    grad_scale: Tensor | None = None  #: the loss scale that the gradients still carry
    skip: Tensor | None = None  #: 1: this step must change nothing. 0 or None: it goes ahead
    check_finite: bool = False  #: the engine itself must skip the step if a gradient is not finite
    forget: bool = False  #: where a count is 0 the states may hold anything, and must be read as zeros

    def to(self, device: torch.device) -> Signals:
        # A copy to the host must be waited for before the host reads it; a copy to a device is ordered by its stream.
        non_blocking = device.type != "cpu"
        tensors = (self.norm, self.grad_scale, self.skip)
        norm, grad_scale, skip = (x if x is None else x.to(device, non_blocking=non_blocking) for x in tensors)
        return replaced(self, norm=norm, grad_scale=grad_scale, skip=skip)


class Scalars(NamedTuple):
    """The coefficients of one step of one parameter. In the notation of ``docs/algorithm.md``::

    g = grad_scale·grad              d = has_prev·(g − g_prev)
    m += w_m·(g − m)                 v += w_v·(d − v)               n += w_n·((g + lookahead·d)² − n)
    θ  = shrink·(keep·θ − (step_m·m + step_v·v) / (root_n·√n + eps))

    In the coupled form (b1 = b2) one average stands for m + lookahead·v, and v is left out::

    m += w_m·(g − m) + lookahead·w_v·d
    """

    grad_scale: Number
    has_prev: Number
    lookahead: float
    w_m: Number
    w_v: Number
    w_n: Number
    step_m: Number
    step_v: Number
    root_n: Number
    eps: Number
    keep: Number
    shrink: Number


def grad_scale(options: Options, signals: Signals) -> Number:
    """c: the clip coefficient, 1 / the loss scale and the sign of `maximize`, as one factor."""
    c: Number = 1.0 if signals.grad_scale is None else 1.0 / signals.grad_scale
    if options.max_grad_norm > 0:
        assert signals.norm is not None
        clip = options.max_grad_norm / (signals.norm * c + CLIP_EPS)
        c = c * clip.clamp(max=1.0)
    return -c if options.maximize else c


def step_scalars(options: Options, signals: Signals, t: Number) -> Scalars:
    """The coefficients of a parameter's `t`-th gradient, `t` ≥ 1. A tensor `t` gives tensors, unread."""
    b1, b2, b3 = options.betas
    lr = options.lr
    run = 1.0 if signals.skip is None else 1.0 - signals.skip
    has_prev = _is_after(t, 1)
    if not options.bias_correction:
        # The footnote of Algorithm 1: m0 = g0, n0 = g0², v1 = g1 − g0. A weight of 1 makes an average the value itself.
        w_m, w_v, w_n = 1 - b1 * has_prev, 1 - b2 * _is_after(t, 2), 1 - b3 * has_prev
        debias_m = debias_v = debias_n = _ONE
    else:
        w_m, w_v, w_n = 1 - b1, 1 - b2, 1 - b3
        debias_m, debias_v, debias_n = _debias(b1, t), _debias(b2, t), _debias(b3, t)
    decay = lr * options.weight_decay * run
    return Scalars(
        grad_scale=grad_scale(options, signals),
        has_prev=has_prev,
        lookahead=b2,
        w_m=w_m * run,
        w_v=w_v * run,
        w_n=w_n * run,
        step_m=lr * run / debias_m,
        step_v=lr * run * b2 / debias_v,
        root_n=debias_n**-0.5,
        # A skipped step divides zero by the denominator: keep it away from zero even where eps = 0.
        eps=options.eps + (0.0 if signals.skip is None else signals.skip),
        keep=1 - decay if options.no_prox else 1.0,
        shrink=1.0 if options.no_prox else 1 / (1 + decay),
    )


class Displacement(NamedTuple):
    """The coefficients of y_{k+1} − y_k of `adan.restart`, where y_{k+1} = θ_{k+1} + η∘(u − (1 − b1)·g). A prime marks
    a value from before the step, and x is the step's u / (root_n·√n + eps)::

    y_{k+1} − y_k = theta·θ' + step·x − grad·g / (root_n·√n + eps)
                    − (prev_m·m' + prev_v·v' − prev_grad·g') / (prev_root·√n' + prev_eps)

    In this form no digits cancel where θ is large and the step is small. As in Algorithm 2, y_0 = θ_0 and y_1 = θ_1.
    """

    theta: Number
    step: Number
    grad: Number
    prev_m: Number
    prev_v: Number
    prev_grad: Number
    prev_root: Number
    prev_eps: Number


def displacement_scalars(options: Options, t: Number) -> Displacement:
    """The coefficients of the displacement of y at a parameter's `t`-th gradient."""
    b1, b2, _ = options.betas
    lr = options.lr
    assert options.last_lr is not None
    weight = options.share**0.5  # the displacement is squared
    has_prev, has_last = _is_after(t, 1), _is_after(t, 2)
    decay = lr * options.weight_decay
    shrink = 1.0 if options.no_prox else 1 / (1 + decay)
    last = options.last_lr * has_last * weight
    before = (t - 1).clamp(min=1) if isinstance(t, Tensor) else max(t - 1, 1)
    debias_m = debias_v = debias_n = _ONE
    if options.bias_correction:
        debias_m, debias_v, debias_n = (_debias(b, before) for b in options.betas)
    return Displacement(
        theta=-decay * shrink * weight,
        step=(has_prev - shrink) * weight,
        grad=lr * (1 - b1) * has_prev * weight,
        prev_m=last / debias_m,
        prev_v=last * b2 / debias_v,
        prev_grad=last * (1 - b1),
        prev_root=debias_n**-0.5,
        # A term that does not exist yet is 0 / 1, also where eps = 0.
        prev_eps=options.eps + (1 - has_last),
    )


def is_plain(x: Tensor) -> bool:
    """Whether a tensor is its own memory: that of a DTensor or a FakeTensor is elsewhere, or nowhere."""
    return type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def host_readable(number: Tensor) -> bool:
    """Whether the host may read a number: it is in host memory, and the step is being run, not traced."""
    return number.device.type == "cpu" and not torch.compiler.is_compiling() and is_plain(number)


def next_count(step: Tensor, dtype: torch.dtype) -> Number:
    """The count with this step's gradient: a number where the host can read it for free, else a tensor."""
    return step.item() + 1 if host_readable(step) else (step + 1).to(dtype)


def _is_after(t: Number, when: int) -> Number:
    return (t > when).to(t.dtype) if isinstance(t, Tensor) else float(t > when)


def _debias(b: float, t: Number) -> Number:
    """1 − bᵗ, through expm1: at b = 0.999 and t = 1 the plain difference has lost four digits in fp32."""
    if b == 0.0:
        return torch.ones_like(t) if isinstance(t, Tensor) else 1.0
    exponent = t * math.log(b)
    return -torch.expm1(exponent) if isinstance(exponent, Tensor) else -math.expm1(exponent)
