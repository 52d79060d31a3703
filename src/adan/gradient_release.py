"""Steps inside backward: each parameter is updated as soon as its gradient is there, and the gradient is freed."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from adan.optimizer import Adan

_DDP = "DistributedDataParallel, which sums gradients after they were used here; use torch.distributed.fsdp.fully_shard"


class GradientRelease:
    """Handle returned by :func:`release_gradients`; :meth:`remove`, or leaving it as a context manager, undoes it."""

    def __init__(self, model: nn.Module, opt: Adan, places: dict[Tensor, tuple[int, int]]) -> None:
        def release(param: Tensor) -> None:
            with torch.no_grad():
                opt._step_parameter(param)

        self._opt, self._params = opt, list(places)
        opt._releases.update(places)
        self._handles = [model.register_forward_pre_hook(_Check(opt))]
        self._handles += [p.register_post_accumulate_grad_hook(release) for p in places]

    def remove(self) -> None:
        """Leave gradients to `step()` again."""
        for handle in self._handles:
            handle.remove()
        for p in self._params:
            self._opt._releases.pop(p, None)
        self._opt._plans.clear()  # each parameter had one of its own, which would keep it alive
        self._params.clear()

    def __enter__(self) -> GradientRelease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


class _Check:
    """What a model checks before it is run. Copies of the model, in memory or in a file, check nothing."""

    def __init__(self, opt: Adan) -> None:
        self._opt = opt

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        _check_options(self._opt)  # a checkpoint may have brought others
        _refuse_float16(model)
        if nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None:
            raise RuntimeError(f"release_gradients: model runs inside a {_DDP}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _Unchecked, ()


class _Unchecked:
    def __call__(self, model: nn.Module, inputs: Any) -> None:
        pass


def release_gradients(model: nn.Module, opt: Adan) -> GradientRelease:
    """Update each parameter inside backward and free its gradient: gradients are never all in memory at once.

    Call ``opt.step()`` after backward as usual: it updates parameters of the optimizer that are not the model's or were
    frozen, frees their gradients, too, and marks the end of a step. Whoever clips between backward and step
    (``clip_grad_norm_``, a trainer) finds no gradients and clips nothing.

    What needs all gradients at once is not possible and raises an error: clipping (``max_grad_norm``),
    ``skip_nonfinite``, ``restart=``, accumulating over several backward passes. So does float16 autocast, whose
    ``GradScaler`` would unscale gradients too late: use bfloat16. Under data parallelism use FSDP2's ``fully_shard``,
    which sums gradients first; ``DistributedDataParallel`` is refused.

    Example:
        >>> import torch, adan
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = adan.Adan(model.parameters(), lr=1e-2)
        >>> handle = adan.release_gradients(model, opt)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> print(model.weight.grad)
        None
        >>> opt.step()
        >>> handle.remove()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"release_gradients: model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(opt, Adan):
        raise TypeError(f"release_gradients: opt must be an adan.Adan, got {type(opt).__name__}")
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise ValueError(f"release_gradients: model is or holds a {_DDP}")
    _check_options(opt)
    wanted = {p for p in model.parameters() if p.requires_grad}
    # By index: loading a state dict replaces the groups.
    places = {
        p: (i, j) for i, group in enumerate(opt.param_groups) for j, p in enumerate(group["params"]) if p in wanted
    }
    if not places:
        raise ValueError(
            "release_gradients: no parameter of model that requires a gradient is one of opt's; pass the model that "
            "opt trains"
        )
    if not opt._releases.keys().isdisjoint(places):
        raise ValueError(
            "release_gradients: gradients of this model are released already; remove() what the first call returned"
        )
    return GradientRelease(model, opt, places)


def _check_options(opt: Adan) -> None:
    all_at_once = "needs all gradients at once, and each is used and freed before the next is there"
    graph = "needs the graph of the step, and here a step is made inside backward"
    reasons = {"max_grad_norm": all_at_once, "skip_nonfinite": all_at_once, "differentiable": graph}
    for group in opt.param_groups:
        for name, reason in reasons.items():
            if group[name]:
                raise ValueError(
                    f"release_gradients: {name}={group[name]!r} {reason}; construct Adan without {name}, or load a "
                    "checkpoint without it"
                )
    if opt.restart_rule is not None:
        raise ValueError(
            f"release_gradients: restart={opt.restart_rule!r} is decided when all parameters have made their step, and "
            "here each makes its own; construct Adan without restart, and call restart() where you want one"
        )


def _refuse_float16(model: nn.Module) -> None:
    """Before there is a gradient: float16 needs a GradScaler, and scaled gradients would be used as they are."""
    for kind in {p.device.type for p in model.parameters()} - {"meta"}:
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
            raise RuntimeError(
                "release_gradients: the model runs under float16 autocast, whose GradScaler scales the loss and would "
                "unscale gradients after they were used; take torch.autocast(..., dtype=torch.bfloat16) without a "
                "GradScaler, or remove() the release"
            )
