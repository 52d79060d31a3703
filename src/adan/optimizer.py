"""`Adan`: its options, its state and the order of a step. The arithmetic is in `adan.engines`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable

from adan import dispatch, states, validation
from adan.batch import Batch
from adan.grad_norm import global_norm
from adan.scalars import Options, Signals

Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]


class Adan(Optimizer):
    r"""Adaptive Nesterov momentum: the whole of Algorithm 1 of `Xie et al. <https://arxiv.org/abs/2208.06677>`_.

    With :math:`g_t` a parameter's t-th gradient, :math:`d_t = g_t - g_{t-1}`, :math:`d_1 = 0`, :math:`b_i` ``betas``:

    .. math::
        m_t &= b_1 m_{t-1} + (1 - b_1)\, g_t \\
        v_t &= b_2 v_{t-1} + (1 - b_2)\, d_t \\
        n_t &= b_3 n_{t-1} + (1 - b_3)\, (g_t + b_2 d_t)^2 \\
        \theta_t &= \Bigl(\theta_{t-1} - \eta\,
            \frac{\hat m_t + b_2 \hat v_t}{\sqrt{\hat n_t} + \varepsilon}\Bigr) \Big/ (1 + \eta\lambda)

    where a hat divides by :math:`1 - b_i^t`. The paper's β is :math:`1 - b`.

    Args:
        params: parameters, named parameters, or parameter groups, as for any ``torch.optim`` optimizer.
        lr: η. Adan likes 3 to 10 times AdamW's; see :func:`adan.suggest_from_adamw`. A tensor is read where it lies.
        betas: :math:`(b_1, b_2, b_3)`. The default suits long runs; for a few thousand steps take b1 = 0.9.
        eps: ε, outside the root.
        weight_decay: λ, decoupled from the gradient.
        max_grad_norm: clip the norm of all gradients of all groups together to this; 0 does not clip. Where groups
            differ, each is scaled for its own limit.
        no_prox: decay as AdamW does, :math:`(1 - \eta\lambda)\,\theta`, not by the proximal division.
        foreach: True for list operations, False for one tensor at a time, None to choose.
        fused: True for the one-pass kernels, on CUDA by Triton and on the CPU in C, or an error that says what is
            missing; False for none of them; None to use them wherever they fit. ``repr(opt)`` says what serves.
        bias_correction: False is Algorithm 1 with its footnote to the letter: :math:`m_0 = g_0, v_0 = 0,
            v_1 = g_1 - g_0, n_0 = g_0^2`, and no hats.
        maximize: ascend.
        capturable: keep the step count on the parameter's device, so that nothing synchronises and a CUDA graph can
            capture the step.
        differentiable: let autograd through the step.
        consume_grad: keep the gradient's own buffer as the previous gradient and set ``p.grad = None``: no copy of the
            gradient is written. Read gradients before the step, not after it.
        skip_nonfinite: a step in which any gradient is inf or NaN changes nothing at all; decided on the device.

    Gradients are read, never written to, unless consumed. States are fp32 for parameters of half precision.

    Example:
        >>> import torch, adan
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = adan.Adan(model.parameters(), lr=1e-2, weight_decay=0.02)
        >>> for _ in range(3):
        ...     opt.zero_grad()
        ...     model(torch.ones(8, 4)).square().mean().backward()
        ...     opt.step()
    """

    #: GradScaler hands over `grad_scale` and `found_inf` rather than writing to the gradients.
    _step_supports_amp_scaling: ClassVar[bool] = True
    grad_scale: Tensor | None
    found_inf: Tensor | None

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        no_prox: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        *,
        bias_correction: bool = True,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        consume_grad: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        if isinstance(params, (Tensor, torch.nn.Module)):
            raise TypeError(
                f"Adan: params must be an iterable such as model.parameters(), got a {type(params).__name__}"
            )
        params = list(params)  # type: ignore[assignment]
        if not params:
            raise ValueError("Adan: params is empty; was model.parameters() already consumed, or the model frozen?")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "no_prox": no_prox,
            "foreach": foreach,
            "fused": fused,
            "bias_correction": bias_correction,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "consume_grad": consume_grad,
            "skip_nonfinite": skip_nonfinite,
        }
        validation.check_options(defaults, "Adan")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        where = f"Adan, parameter group {len(self.param_groups)}"
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"{where}: must be a dict with the key 'params', got {type(param_group).__name__}")
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        group = {**self.defaults, **param_group, "params": params}
        validation.check_params(params, where)
        validation.check_options(group, where)
        for name in ("differentiable", "skip_nonfinite"):
            if group[name] != self.defaults[name]:
                raise ValueError(f"{where}: {name} holds for the whole step; pass it to Adan(...), not to a group")
        super().add_param_group(group)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the moments and the previous gradient: the next gradient of each parameter is its first again."""
        for state in self.state.values():
            for name, value in state.items():
                value.fill_(name == "prev_scale")

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; the others keep their state and their count."""
        validation.refuse_tracing(self.param_groups)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        groups = []
        for group in self.param_groups:
            batch = Batch.empty(Options.of(group))
            self._init_group(group, *batch.tensors())
            if batch.params:
                groups.append((group, batch.as_real()))
        if groups:
            dispatch.update(groups, self._signals([batch for _, batch in groups]))
            for group, _ in groups:
                if group["consume_grad"]:
                    self._consume_grads(group["params"])
        return loss

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_diffs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        prev_grads: list[Tensor],
        steps: list[Tensor],
        prev_scales: list[Tensor],
    ) -> None:
        """Fill the lists with the parameters that have gradients, and with their states, new ones where there are none.

        `torch.compile` knows this method by its name and runs it outside the graph.
        """
        for i, p in enumerate(group["params"]):
            grad = p.grad
            if grad is None:
                continue
            if grad.layout != torch.strided:
                name = validation.describe(group, i, next(k for k, g in enumerate(self.param_groups) if g is group))
                raise RuntimeError(
                    f"the gradient of parameter {name} is {grad.layout}: Adan needs dense gradients; "
                    "for an embedding, construct it with sparse=False"
                )
            if group["consume_grad"]:
                grad = p.grad = states.owned(grad, p)
            state = self.state[p]
            if not state:
                state.update(states.new_state(p, self._counter_device(group, p), group["consume_grad"]))
            elif dispatch.counts_on_device(group, p) and state["step"].device != p.device:
                state["step"] = state["step"].to(p.device)
            params.append(p)
            grads.append(grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_diffs.append(state["exp_avg_diff"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            prev_grads.append(state["prev_grad"])
            steps.append(state["step"])
            if group["consume_grad"]:
                prev_scales.append(state["prev_scale"])

    def _consume_grads(self, params: list[Tensor]) -> None:
        for p in params:
            if p.grad is not None:
                self.state[p]["prev_grad"] = p.grad
                p.grad = None

    def _signals(self, batches: list[Batch]) -> Signals:
        """What holds for the whole step: the norm to clip by, the loss scale, and whether to go ahead."""
        grads = [grad for batch in batches for grad in batch.grads]
        norm = global_norm(grads) if any(batch.options.max_grad_norm > 0 for batch in batches) else None
        skip: Tensor | None = getattr(self, "found_inf", None)
        if self.defaults["skip_nonfinite"]:
            # The largest magnitude, not the 2-norm: that one overflows where every gradient is finite.
            largest = global_norm(grads, float("inf"))
            nonfinite = torch.isfinite(largest).logical_not().to(largest.dtype)
            skip = nonfinite if skip is None else torch.maximum(nonfinite, skip.to(nonfinite))
        return Signals(norm, getattr(self, "grad_scale", None), skip)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class or of the authors' release (`docs/migration.md`).

        Hyper-parameters come from the checkpoint, as in ``torch.optim``; how to run (`foreach`, `capturable`, …) stays
        as this optimizer was constructed. A state dict that does not fit raises ValueError and changes nothing.
        """
        adopted: dict[str, Any] = {}

        def adopt(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            adopted.update(states.adopt(state_dict, self.param_groups))
            return adopted

        def keep_types(optimizer: Optimizer) -> None:
            # The base class has cast states to their parameters' types: take them once more, from the source.
            keys = [key for group in adopted["param_groups"] for key in group["params"]]
            for key, param in zip(keys, states.parameters(self.param_groups), strict=True):
                if key in adopted["state"]:
                    group = next(g for g in self.param_groups if any(param is p for p in g["params"]))
                    device = self._counter_device(group, param)
                    self.state[param] = states.place(adopted["state"][key], param, device, group["consume_grad"])

        # As hooks, so that they stand inside the user's own: the last before loading, the first after it.
        hooks = [
            self.register_load_state_dict_pre_hook(adopt),
            self.register_load_state_dict_post_hook(keep_types, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    @staticmethod
    def _counter_device(group: dict[str, Any], param: Tensor) -> torch.device | str:
        return param.device if dispatch.counts_on_device(group, param) else "cpu"
