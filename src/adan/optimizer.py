"""`Adan`: its options, its state and the order of a step. The arithmetic is in `adan.engines`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable

from adan import dispatch, lowbit, sharding, states, validation
from adan.batch import Batch
from adan.grad_norm import measure_together
from adan.kept import Kept
from adan.restart import Cycle, Progress, Restart
from adan.scalars import Options, Signals

Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]


_LAYOUT = attrgetter("layout")


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
        restart: an :class:`adan.Restart`, by which the optimizer forgets its moments by itself: the condition of the
            paper's Eqn 8, or every so many steps. Decided on the device. :attr:`restarts` counts them.
        consume_grad: keep the gradient's own buffer as the previous gradient and set ``p.grad = None``: no copy of the
            gradient is written. Read gradients before the step, not after it.
        skip_nonfinite: a step in which any gradient is inf or NaN changes nothing at all; decided on the device.
        state_format: ``"fp32"``, 16 bytes a parameter; ``"bf16"``, 8; ``"8bit"``, 4.125. Rounded without bias. Tensors
            of fewer than 4,096 elements and of double precision keep plain states.
        stochastic_rounding: round bfloat16 parameters without bias, so that updates below half a unit in their last
            place are not lost: half-precision training without a master copy.
        kahan_sum: the other remedy, 2 bytes a parameter: keep what rounding a half-precision parameter has cut off,
            and add it to the next step.
        rounding_seed: of the random numbers of both; they also depend on the parameter's place, its step count and
            the element, and on nothing else, so runs repeat and data-parallel replicas stay equal.
        norm_group: where each process optimizes other parameters, as under ``ZeroRedundancyOptimizer``: the process
            group, its ``group_name`` or "world", over which the norm is taken and skipping is decided. DTensors need
            none: they know over which processes they are spread.

    Where ``betas[0] == betas[1]`` one average serves for two, exactly, and states take 12 bytes a parameter, not 16
    (3.1 in 8 bits). Gradients are read, never written to, unless consumed. ``repr(opt)`` says which states are kept.

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
        restart: Restart | None = None,
        consume_grad: bool = False,
        skip_nonfinite: bool = False,
        state_format: str = "fp32",
        stochastic_rounding: bool = False,
        kahan_sum: bool = False,
        rounding_seed: int = 0,
        norm_group: torch.distributed.ProcessGroup | str | None = None,
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
            "state_format": state_format,
            "stochastic_rounding": stochastic_rounding,
            "kahan_sum": kahan_sum,
            "rounding_seed": rounding_seed,
        }
        validation.check_options(defaults, "Adan")
        self._kept: dict[int | Tensor, Kept] = {}  #: by the number of a group, or by a parameter that steps alone
        self._norm_group = sharding.group_name(norm_group)
        self._started = False
        self._released: set[Tensor] = set()
        validation.check_restart(restart, differentiable)
        self._cycle = None if restart is None else Cycle(restart)
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_norm_group": self._norm_group,
            "_started": self._started,
            "_cycle": self._cycle,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._kept, self._released = {}, set()
        self.__dict__.setdefault("_norm_group", None)
        self.__dict__.setdefault("_started", True)
        self.__dict__.setdefault("_cycle", None)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        where = f"Adan, parameter group {len(self.param_groups)}"
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"{where}: must be a dict with the key 'params', got {type(param_group).__name__}")
        params = param_group["params"]
        if isinstance(params, (set, frozenset)):
            raise TypeError(f"{where}: params is a set, whose order changes from run to run; pass a list")
        params = [params] if isinstance(params, Tensor) else list(params)
        group = {**self.defaults, **param_group, "params": params}
        validation.check_options(group, where)
        validation.check_params(params, where, group["stochastic_rounding"])
        for name in ("differentiable", "skip_nonfinite"):
            if group[name] != self.defaults[name]:
                raise ValueError(f"{where}: {name} holds for the whole step; pass it to Adan(...), not to a group")
        if group["differentiable"] and any(map(sharding.is_spread, params)):
            raise ValueError(f"{where}: differentiable=True is for plain tensors, and a parameter is a DTensor")
        # ZeroRedundancyOptimizer puts every option into the groups as well, and the groups into its state dict.
        if group.pop("norm_group", self._norm_group) != self._norm_group:
            raise ValueError(
                f"{where}: norm_group={param_group['norm_group']!r} holds for the whole step; pass it to Adan(...), "
                "and through ZeroRedundancyOptimizer as 'world' or as the group's group_name"
            )
        if group.pop("restart", self.restart_rule) != self.restart_rule:
            raise ValueError(
                f"{where}: restart={param_group['restart']!r} holds for all parameters together; pass it to Adan(...)"
            )
        super().add_param_group(group)

    def __repr__(self) -> str:
        engines, forms = dispatch.engines_of(self.param_groups), states.describe_forms(self.param_groups)
        return f"{super().__repr__()[:-1]}Engines: {engines}\nStates: {forms}\n)"

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the moments and the previous gradient: the next gradient of each parameter is its first again."""
        for state in self.state.values():
            states.forget(state)
        if self._cycle is not None:
            self._cycle.start()

    @property
    def restart_rule(self) -> Restart | None:
        """What was passed as ``restart``."""
        return None if self._cycle is None else self._cycle.rule

    @property
    def restarts(self) -> int:
        """How many times `restart=` has restarted this optimizer. Reading it waits for the device."""
        return 0 if self._cycle is None else self._cycle.restarts

    @property
    def restart_progress(self) -> Progress:
        """How far the present cycle has come: (k, Σ), and the radius that would end it now. Waits for the device."""
        if self._cycle is None:
            raise RuntimeError("restart_progress: nothing is measured; construct Adan with restart=adan.Restart(...)")
        return self._cycle.progress

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; the others keep their state and their count."""
        validation.refuse_tracing(self.param_groups, self._cycle is not None)
        spread = self._norm_group is not None or sharding.any_spread(states.parameters(self.param_groups))
        if spread and torch.compiler.is_compiling():
            raise NotImplementedError("a step that is shared by several processes cannot be traced")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        self._released.clear()
        fresh = self._is_fresh()
        present, groups = [], []
        for i, group in enumerate(self.param_groups):
            batch = self._batch(i, group)
            if batch.params:
                present.append(i)
                groups.append((group, batch))
        signals = Signals(
            grad_scale=getattr(self, "grad_scale", None),
            skip=getattr(self, "found_inf", None),
            check_finite=self.defaults["skip_nonfinite"],
            forget=self._cycle is not None,
        )
        if spread or fresh:  # also without gradients: the other processes wait for this one
            signals = measure_together(self.param_groups, groups, signals, self._norm_group, fresh)
        if self._cycle is not None and (groups or spread):
            self._step_of_cycle(self._cycle, present, groups, signals, spread)
        elif groups:
            dispatch.update(groups, signals)
        for i, group in zip(present, (group for group, _ in groups), strict=True):
            if group["consume_grad"]:
                self._consume_grads(i, group["params"])
        return loss

    def _step_of_cycle(
        self,
        cycle: Cycle,
        present: list[int],
        groups: list[tuple[dict[str, Any], Batch]],
        signals: Signals,
        spread: bool,
    ) -> None:
        """A step after which the optimizer may restart; `present` are the numbers of the groups."""
        cycle.fit(self.param_groups)
        mesh, weights = sharding.weights(states.parameters(self.param_groups)) if spread else (None, {})
        measured = []
        for i, (group, batch) in zip(present, groups, strict=True):
            if cycle.rule.radius is None:
                measured.append((group, batch))
                continue
            # Parted by how much of the way this process is to count.
            shares = [weights[p] for p in group["params"] if p.grad is not None] if spread else [1.0]
            for share in sorted(set(shares)):
                alike = [k for k, x in enumerate(shares) if x == share]
                part = batch if len(alike) == len(shares) else batch.select(alike)
                measured.append((group, part._replace(options=batch.options.measured(cycle.last_lr(i), share))))
        way, skip = dispatch.update(measured, signals) if measured else (None, signals.skip)
        if spread:
            way, skip = cycle.together(way, skip, bool(measured), mesh, self._norm_group)
        rates = [(i, batch.options.lr) for i, (_, batch) in zip(present, groups, strict=True)]
        cycle.advance(way, skip, rates, [state["step"] for state in self.state.values() if state])

    def step_parameter(self, group: dict[str, Any], param: Tensor) -> None:
        """Update one parameter and free its gradient, inside backward; see :func:`adan.release_gradients`."""
        if param in self._released:
            raise RuntimeError(
                f"a parameter of shape {tuple(param.shape)} got a second gradient before step(), and its first is used "
                "and freed: with release_gradients gradients do not accumulate over backward passes; call step() after "
                "each, or remove() the release"
            )
        self._released.add(param)
        alone = {**group, "params": [param]}
        batch = self._batch(param, alone)
        if batch.params:
            dispatch.update([(group, batch)], Signals())
            self._consume_grads(param, [param])

    def _is_fresh(self) -> bool:
        """Whether gradients that are all zero do not count: `torch.distributed.checkpoint` has states made by such.

        Told without a look at the states, so that all processes say the same: one of them may never have any.
        """
        if self._started or torch.compiler.is_compiling():
            return False
        self._started = True
        rates = [Options.of(group).lr for group in self.param_groups]
        return not any(isinstance(lr, Tensor) or lr for lr in rates)

    def _batch(self, index: int | Tensor, group: dict[str, Any]) -> Batch:
        """The parameters of a group that have gradients, with their states; the last step's batch if it still holds."""
        kept = self._kept.get(index)
        grads = [p.grad for p in group["params"]]
        if kept is not None and not torch.compiler.is_compiling() and kept.holds(group, grads, self.state):
            grads = [grad for grad in grads if grad is not None]
            grads = self._checked(group, kept.params, grads, kept.entries, kept.spread)
            batch = kept.batch._replace(options=Options.of(group), grads=grads)
            if batch.prev_scales:
                prev_grads = [entry["prev_grad"] for entry in kept.entries]
                batch = batch._replace(prev_grads=list(map(sharding.local, prev_grads)) if kept.spread else prev_grads)
            return batch

        self._kept.pop(index, None)
        batch = Batch.empty(Options.of(group))
        self._init_group(group, *batch.tensors())
        batch.streams.extend(self._streams(group, batch.params))
        params, batch = batch.params, sharding.localised(batch)
        real = batch.as_real()
        if real is batch and not torch.compiler.is_compiling() and all(map(dispatch.is_plain, batch.params)):
            self._kept[index] = Kept.of(batch, params, group, self.state)
        return real

    def _streams(self, group: dict[str, Any], params: list[Tensor]) -> list[int]:
        """Where the random numbers of each parameter start: at its place among all parameters."""
        if group["state_format"] == "fp32" and not group["stochastic_rounding"]:
            return [0] * len(params)
        places = {p: i for i, p in enumerate(states.parameters(self.param_groups))}
        return [lowbit.stream(group["rounding_seed"], places[p]) for p in params]

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
        exponents: list[Tensor],
        compensations: list[Tensor],
    ) -> None:
        """Fill the lists with the parameters that have gradients, and with their states, new ones where there are none.

        `torch.compile` knows this method by its name and runs it outside the graph.
        """
        params += [p for p in group["params"] if p.grad is not None]
        for p in params:
            state, form = self.state[p], states.Form.of(group, p)
            if not state:
                state.update(states.new_state(p, form, self._counter_device(group, p)))
            elif not torch.compiler.is_compiling():
                device = self._counter_device(group, p) if state["step"].device != p.device else p.device
                states.fit(state, p, form, device)
        entries = [self.state[p] for p in params]
        found_grads = [p.grad for p in params if p.grad is not None]
        grads += self._checked(group, params, found_grads, entries, sharding.any_spread(params))
        lists = (exp_avgs, exp_avg_diffs, exp_avg_sqs, prev_grads, steps, prev_scales, exponents, compensations)
        for name, tensors in zip((*states.NAMES, "step", *states.EXTRAS), lists, strict=True):
            found = [entry.get(name) for entry in entries]
            if any(x is not None for x in found):
                tensors += found

    def _checked(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        entries: list[dict[str, Tensor]],
        spread: bool,
    ) -> list[Tensor]:
        if set(map(_LAYOUT, grads)) - {torch.strided}:
            raise validation.sparse_gradient(self.param_groups, group)
        if spread:
            grads = sharding.local_grads(params, grads)
        if group["consume_grad"]:
            self._own(params, grads, entries)
        return grads

    @staticmethod
    def _own(params: list[Tensor], grads: list[Tensor], entries: list[dict[str, Tensor]]) -> None:
        """Make the gradients that will be kept fit for it, in `grads` and as `p.grad`."""
        kept = [i for i, entry in enumerate(entries) if "prev_scale" in entry]
        chosen = [params[i] for i in kept]
        own = states.owned([grads[i] for i in kept], chosen, [entries[i]["prev_grad"] for i in kept])
        for i, p, grad in zip(kept, chosen, own, strict=True):
            if p.grad is None or sharding.local(p.grad) is not grad:
                p.grad = sharding.like(p, grad)
                grads[i] = grad

    def _consume_grads(self, index: int | Tensor, params: list[Tensor]) -> None:
        kept = self._kept.get(index)
        params = kept.params if kept is not None else [p for p in params if p.grad is not None]
        entries = kept.entries if kept is not None else [self.state[p] for p in params]
        for p, entry in zip(params, entries, strict=True):
            if "prev_scale" in entry and p.grad is not None:
                entry["prev_grad"] = p.grad
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As of any optimizer; 8-bit states of DTensors as fp32, so that they can be spread over other processes."""
        saved = super().state_dict()
        keys = [key for group in saved["param_groups"] for key in group["params"]]
        for key, param in zip(keys, states.parameters(self.param_groups), strict=True):
            if key in saved["state"]:
                saved["state"][key] = states.portable(saved["state"][key], param)
        if self._cycle is not None:
            self._cycle.fit(self.param_groups)
            for i, group in enumerate(saved["param_groups"]):
                group["restart_state"] = self._cycle.saved(i)
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class or of the authors' release (`docs/migration.md`).

        Hyper-parameters come from the checkpoint, as in ``torch.optim``; how to run (`foreach`, `capturable`, …) stays
        as this optimizer was constructed. A state dict that does not fit raises ValueError and changes nothing.
        """
        adopted: dict[str, Any] = {}
        cycles: list[Tensor | None] = []

        def adopt(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            adopted.update(states.adopt(state_dict, self.param_groups))
            cycles.extend(group.get("restart_state") for group in state_dict["param_groups"])
            return adopted

        def keep_types(optimizer: Optimizer) -> None:
            # The base class has cast states to their parameters' types: take them once more, from the source.
            keys = [key for group in adopted["param_groups"] for key in group["params"]]
            for key, param in zip(keys, states.parameters(self.param_groups), strict=True):
                if key in adopted["state"]:
                    group = next(g for g in self.param_groups if any(param is p for p in g["params"]))
                    form, device = states.Form.of(group, param), self._counter_device(group, param)
                    self.state[param] = states.place(adopted["state"][key], param, form, device)
            if self._cycle is not None:
                self._cycle.load(cycles, [group["lr"] for group in self.param_groups])

        # As hooks, so that they stand inside the user's own: the last before loading, the first after it.
        hooks = [
            self.register_load_state_dict_pre_hook(adopt),
            self.register_load_state_dict_post_hook(keep_types, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
            self._started = True
        finally:
            for hook in hooks:
                hook.remove()

    def _counter_device(self, group: dict[str, Any], param: Tensor) -> torch.device | str:
        # What sets a counter to 0 is known on the device alone.
        on_device = self._cycle is not None or dispatch.counts_on_device(group, param)
        return param.device if on_device else "cpu"
