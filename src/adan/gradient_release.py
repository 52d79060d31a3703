"""Steps inside backward: each parameter is updated as soon as its gradient is computed, and the gradient is freed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from adan.optimizer import Adan
from adan.plan import Plan
from adan.scalars import Signals

_DDP = "DistributedDataParallel, which sums gradients after they were used here; use torch.distributed.fsdp.fully_shard"
_UNSCALED = "take bfloat16 without a GradScaler, or remove() the release"


class GradientRelease:
    """Handle returned by :func:`release_gradients`; :meth:`remove`, or leaving it as a context manager, undoes it."""

    def __init__(self, model: nn.Module, opt: Adan, params: Iterable[Tensor]) -> None:
        self.released: set[Tensor] = set()
        self._opt = opt
        self._params = set(params)
        self._plans: dict[Tensor, Plan] = {}
        self._places: dict[Tensor, tuple[int, int, int]] = {}  #: group, position in it, position among all
        opt._releases.append(self)
        self._handles = [model.register_forward_pre_hook(_Check(opt))]
        # Autograd holds on to its hooks where no garbage collector sees it, so they must not hold on to parameters.
        me = weakref.ref(self)

        def release(param: Tensor) -> None:
            handle = me()
            if handle is not None:
                with torch.no_grad():
                    handle._opt._explained(handle._step, param)

        self._handles += [p.register_post_accumulate_grad_hook(release) for p in self._params]

    def _step(self, param: Tensor) -> None:
        """Update one parameter and free its gradient, inside backward."""
        opt, (group, place) = self._opt, self._place(param)
        if param in self.released:
            second = f"parameter {opt._describe(param)} got a second gradient before step()"
            remedy = "gradients do not accumulate; call step() after each backward, or remove() the release"
            raise RuntimeError(f"{second}, when its first had been used and freed: {remedy}")
        plan, grads = opt._planned(self._plans.get(param), [opt.param_groups[group]], [param], [place])
        if grads and grads[0] is not None:
            columns = plan.columns([opt._options(group)], plan.group, [param], grads, opt.state)
            plan.update(columns, Signals())
            param.grad = None
        self._plans[param] = plan
        self.released.add(param)

    def _place(self, param: Tensor) -> tuple[int, int]:
        """A parameter's group and its position among all parameters, which may have changed since the last step."""
        groups = self._opt.param_groups
        group, position, place = self._places.get(param, (len(groups), 0, 0))
        params = groups[group]["params"] if group < len(groups) else []
        if not (position < len(params) and params[position] is param):
            self.forget()  # plans are of parameters at the old positions
            places = ((i, j, p) for i, members in enumerate(groups) for j, p in enumerate(members["params"]))
            self._places = {p: (i, j, number) for number, (i, j, p) in enumerate(places)}
            if param not in self._places:
                gone = f"a parameter of shape {tuple(param.shape)} is no longer one of the optimizer's"
                remedy = "remove() the release before you take parameters out of param_groups"
                raise RuntimeError(f"release_gradients: {gone}; {remedy}")
            group, _, place = self._places[param]
        return group, place

    def end_step(self, grad_scale: Tensor | None) -> None:
        if grad_scale is not None:
            used = "backward used the gradients as they were"
            raise RuntimeError(f"release_gradients: GradScaler scaled the loss, and {used}; {_UNSCALED}")
        self.released.clear()

    def forget(self) -> None:
        """Forget plans and places, after states or groups have changed."""
        self.released.clear()
        self._plans.clear()
        self._places.clear()

    def remove(self) -> None:
        """End the release: `step()` uses the gradients again."""
        for handle in self._handles:
            handle.remove()
        if self in self._opt._releases:
            self._opt._releases.remove(self)  # in place: wrappers that copy `__dict__` share the list
        self.forget()
        self._params.clear()

    def __enter__(self) -> GradientRelease:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class _Check:
    """Forward pre-hook that checks the options. In copies of the model it does nothing."""

    def __init__(self, opt: Adan | None = None) -> None:
        self._opt = opt

    def __reduce__(self) -> tuple[Any, ...]:
        return _Check, ()

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        if self._opt is None or not torch.is_grad_enabled():
            return
        _check_options(self._opt)  # a checkpoint may have brought others
        if nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None:
            raise RuntimeError(f"release_gradients: model runs inside a {_DDP}")
        # float16 needs a GradScaler, and scaled gradients would be used as they are.
        for kind in {p.device.type for p in model.parameters()} - {"meta"}:
            if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
                late = "whose GradScaler would unscale gradients after they were used"
                raise RuntimeError(f"release_gradients: model runs under float16 autocast, {late}; {_UNSCALED}")


def release_gradients(model: nn.Module, opt: Adan) -> GradientRelease:
    """Update each parameter inside backward and free its gradient: gradients are never all in memory at once.

    Call ``opt.step()`` after backward as usual: it updates parameters of the optimizer that are not the model's or were
    frozen, frees their gradients, too, and marks the end of a step. Clipping between backward and step, by
    ``clip_grad_norm_`` or a trainer, finds no gradients and does nothing.

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
        raise TypeError(f"release_gradients: opt must be an adan.Adan, not a wrapper of one, got {type(opt).__name__}")
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise ValueError(f"release_gradients: model is or holds a {_DDP}")
    _check_options(opt)
    wanted = {p for p in model.parameters() if p.requires_grad}
    params = [p for group in opt.param_groups for p in group["params"] if p in wanted]
    if not params:
        raise ValueError("release_gradients: no parameter of model is one that opt trains; pass the model of opt")
    if any(isinstance(x, GradientRelease) and not x._params.isdisjoint(params) for x in opt._releases):
        raise ValueError("release_gradients: gradients of model are released already; remove() the first release")
    return GradientRelease(model, opt, params)


def _check_options(opt: Adan) -> None:
    all_at_once = "needs all gradients at once, and each is freed before the next is computed"
    graph = "needs the graph of the step, and here parameters are updated inside backward"
    reasons = {"max_grad_norm": all_at_once, "skip_nonfinite": all_at_once, "differentiable": graph}
    for group in opt.param_groups:
        for name, reason in reasons.items():
            if group[name]:
                remedy = f"construct Adan without {name}, or load a checkpoint without it"
                raise ValueError(f"release_gradients: {name}={group[name]!r} {reason}; {remedy}")
    if opt.restart_rule is not None:
        remedy = "construct Adan without restart, and call restart() where you want one"
        raise ValueError(f"release_gradients: restart={opt.restart_rule!r} {all_at_once}; {remedy}")
