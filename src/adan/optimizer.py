"""`Adan`: its options, its state and the course of a step. The arithmetic is in `adan.engines`."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from adan import checkpoints, lowbit, sharding, states
from adan.columns import NAMES, Columns
from adan.grad_norm import measure_together
from adan.guard import Guard
from adan.options import OPTIONS, check, check_group, describe, listed, rounds_at_random, warn_of_betas, warn_of_cycles
from adan.plan import Plan, choose, describe_engines, wants_loop
from adan.restart import Cycle, Progress, Restart
from adan.scalars import NOT_NEGATIVE, Number, Options, Signals, is_plain, replaced


class Adan(Optimizer):
    """Adaptive Nesterov momentum: the whole of Algorithm 1 of `Xie et al. <https://arxiv.org/abs/2208.06677>`_.

    With g a parameter's t-th gradient, d its difference from the one before, at first 0, and b1, b2, b3 the ``betas``::

        m ← b1·m + (1 − b1)·g
        v ← b2·v + (1 − b2)·d
        n ← b3·n + (1 − b3)·(g + b2·d)²
        θ ← (θ − η·(m̂ + b2·v̂) / (√n̂ + ε)) / (1 + η·λ)

    where a hat divides by 1 − bᵗ, with the b of that average. The paper's β is 1 − b.

    Args:
        params: parameters, named parameters, or parameter groups, as for any ``torch.optim`` optimizer.
        lr: η. Mostly two to four times AdamW's; see :func:`adan.suggest_from_adamw`. A tensor is read on its device.
        betas: (b1, b2, b3). The default suits long runs; for up to 4,000 steps use b1 = 0.9.
        eps: ε, outside the root.
        weight_decay: λ, decoupled from the gradient.
        max_grad_norm: clip the global norm of the gradients, over all groups, to this; 0 disables clipping. Groups with
            different limits are scaled by their own limit and the same norm.
        no_prox: decay as AdamW does, (1 − η·λ)·θ, not by the proximal division.
        foreach: how to update parameters that have no fused kernel: with list operations, or one tensor at a time if
            False. True without ``fused`` also disables fused kernels. ``foreach=False, fused=False`` is the plain loop.
        fused: True requires the one-pass kernels (Triton on CUDA, C on the CPU) and raises an error that says what is
            missing; False disables them; None uses them wherever possible. ``repr(opt)`` says which is used.
        bias_correction: False is Algorithm 1 with its footnote to the letter: m₀ = g₀, v₀ = 0, v₁ = g₁ − g₀,
            n₀ = g₀², and no hats.
        maximize: maximize the objective instead of minimizing it.
        capturable: keep the step count on the parameter's device, so that nothing synchronizes and a CUDA graph can
            capture the step.
        differentiable: let autograd differentiate through the step.
        restart: an :class:`adan.Restart`, the rule for automatic restarts: on the condition of the paper's Eqn 8, or
            at a fixed interval. Decided on the device. :attr:`restarts` counts them.
        skip_nonfinite: a step in which any gradient is inf or NaN changes nothing at all; decided on the device.
        state_format: ``"fp32"``, 16 bytes per parameter; ``"bf16"``, 8; ``"8bit"``, 4.125; ``"4bit"``, 2.625.
            Rounding is unbiased. Tensors of fewer than 4,096 elements, and double-precision and complex ones, have
            unquantized states.
        stochastic_rounding: round bfloat16 parameters without bias, so that updates below half a unit in their last
            place are not lost: half-precision training without a master copy.
        kahan_sum: the alternative, 2 bytes per parameter: store the rounding error of half-precision parameters, and
            add it to the next step.
        coupled: store one average instead of two, without approximation, where ``betas[0] == betas[1]``: states take 12
            bytes per parameter, not 16 (3.1 in 8 bits). None does so for groups whose betas are equal when they are
            added. Those betas must then not change: pass False if a schedule changes them, as ``OneCycleLR`` does by
            default. Once decided, ``param_groups[i]["coupled"]`` is the beta of the coupled states, or False.
        rounding_seed: seed of the random bits of stochastic rounding and quantized states. They otherwise depend only
            on the parameter's position, its step count, the restarts and the element, so runs are reproducible and
            data-parallel replicas stay identical.
        norm_group: where processes optimize different parameters, as under ``ZeroRedundancyOptimizer`` or FSDP1: the
            process group, its ``group_name`` or "world", over which the norm is computed and skipping is decided.
            DTensors need none: they know over which processes they are sharded.

    Gradients are read, never written to: under a ``GradScaler`` they stay scaled, since the step unscales what it
    reads. ``repr(opt)`` says how states are stored.

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
        params: ParamsT,
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
        skip_nonfinite: bool = False,
        state_format: str = "fp32",
        stochastic_rounding: bool = False,
        kahan_sum: bool = False,
        coupled: bool | None = None,
        rounding_seed: int = 0,
        norm_group: torch.distributed.ProcessGroup | str | None = None,
    ) -> None:
        options = {name: value for name, value in locals().items() if name in OPTIONS}
        params = listed(params)
        check(options, "Adan")
        warn_of_betas(betas, "Adan")
        super().__init__(params, {**options, "norm_group": sharding.group_name(norm_group)})
        self._cycle = None if restart is None else Cycle(restart)
        self._restarted = [0]  #: how often by `restart()`; in a list, which wrappers that copy `__dict__` share
        self._started = False
        self._reset()

    def _reset(self) -> None:
        """Create the attributes that are neither pickled nor saved."""
        self._plan: Plan | None = None
        self._captured: list[Any] = []  #: what CUDA graphs that captured a step read at every replay
        self._releases: list[Any] = []  #: `adan.GradientRelease`s
        self.register_state_dict_post_hook(_complete, prepend=True)  # the user's own see what is saved

    def __getstate__(self) -> dict[str, Any]:
        own = ("_cycle", "_restarted", "_started")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_plan" not in self.__dict__:  # a copy; loading a state dict comes here, too
            self._reset()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        where = f"Adan, parameter group {len(self.param_groups)}"
        constructed = "_plan" in self.__dict__
        check_group(param_group, self.defaults, where, others=self.param_groups if constructed else [])
        if "betas" in param_group:
            warn_of_betas(param_group["betas"], where)
        super().add_param_group(param_group)
        for name in ("restart", "norm_group"):  # or ZeroRedundancyOptimizer would put them into its state dict
            param_group.pop(name, None)

    def __repr__(self) -> str:
        kinds = [[p for p in group["params"] if p.is_floating_point() or p.is_complex()] for group in self.param_groups]
        trained = [{**group, "params": params} for group, params in zip(self.param_groups, kinds, strict=True)]
        engines, forms = describe_engines(trained), states.describe_forms(trained)
        return f"{super().__repr__()[:-1]}Engines: {engines}\nStates: {forms}\n)"

    # ---- a step
    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; the others keep their state and their count."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            self._explained(self._step)
        elif self._is_traceable():
            self._traced_step()
        else:
            self._untraced_step()
        return loss

    def _explained(self, run: Callable[..., None], *args: Any) -> None:
        """Run a step; if it fails because an option was changed to a wrong value, say so."""
        try:
            run(*args)
        except Exception:
            for i, group in enumerate(self.param_groups):  # a step takes numbers as tensors, too
                values = {name: x for name, x in group.items() if name == "lr" or not isinstance(x, Tensor)}
                check(values, f"Adan, parameter group {i}")
            raise

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _untraced_step(self) -> None:
        self._explained(self._step)

    def _step(self) -> None:
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if capturing and not all(group["capturable"] for group in self.param_groups):
            raise RuntimeError("step() is being captured in a CUDA graph, which needs Adan(..., capturable=True)")
        for release in self._releases:
            release.end_step(getattr(self, "grad_scale", None))
        params = [p for group in self.param_groups for p in group["params"]]
        plan, grads = self._planned(self._plan, self.param_groups, params)
        steps = any(grad is not None for grad in grads)
        signals = self._signals()
        norm_group = self.defaults["norm_group"]
        sharded = norm_group is not None or plan.is_sharded
        # `torch.distributed.checkpoint` makes states by a step with rates and gradients of 0, which must not count.
        # Told without looking at states, so that all processes agree: one of them may never have any.
        rates = (Options.of(group).lr for group in self.param_groups)
        first = not (self._started or any(isinstance(lr, Tensor) or lr for lr in rates))
        self._started |= steps or sharded  # decided locally, so that all ranks agree without communication
        if plan.is_fsdp1 and not sharded:
            sharding.check_fsdp1(self.param_groups, restarts=self._cycle is not None)
        if sharded or first:  # also without gradients: the other processes wait for this one
            clips = any(group["max_grad_norm"] > 0 for group in self.param_groups)
            by_param = dict(zip(plan.of_rows(params), plan.as_engines_take(grads), strict=True))
            signals = measure_together(params, by_param, clips, signals, norm_group, first)
        if self._cycle is not None:
            if steps or sharded:
                self._update_and_restart(self._cycle, plan, params, grads, signals, sharded)
        elif steps:
            options = [self._options(i) for i in plan.group_indices]
            plan.update(plan.columns(options, plan.group, plan.of_rows(params), grads, self.state), signals)
        self._plan = plan  # not before engines have made their tables of the gradients that its guard saw
        if self._releases:  # as of those inside backward: the loop has no zero_grad()
            for p in params:
                p.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients as in ``torch.optim``, and reset gradient release after a failed backward pass."""
        super().zero_grad(set_to_none)
        for release in self._releases:
            release.released.clear()

    def _is_traceable(self) -> bool:
        """Whether `torch.compile` can trace a step; else it runs in Python, after a graph break.

        A restart sets the counts of all parameters, and a step that is shared by several processes sends messages. The
        end of a step inside backward, and FSDP1, need checks that only Python makes. The loop's counts would stay at 0:
        from torch 2.9 on, a compiled graph drops what is written into a 0-dim fp64 tensor on the CPU other than by
        `torch._foreach`.
        """
        params = [p for group in self.param_groups for p in group["params"]]
        sharded = self.defaults["norm_group"] is not None or sharding.any_dtensor(params)
        eager = any(map(wants_loop, self.param_groups))
        checked = self._releases or any(map(sharding.is_fsdp1, params))
        return self._cycle is None and not sharded and not eager and not checked

    def _traced_step(self) -> None:
        """A step as `torch.compile` traces it: nothing is cached, its guards decide when to trace again."""
        columns, members, first = Columns.empty(), [], 0
        for i, group in enumerate(self.param_groups):
            # Lists of its own for each group: a list that is not empty torch.compile cannot hand to `_init_group`
            # (`OptimizerVariable.get_python_args`), which it would then trace.
            part = Columns.empty()
            self._init_group(group, part.param, part.grad, *(getattr(part, name) for name in NAMES))
            members += [i] * len(part.param)
            for j, p in enumerate(group["params"]):
                if p.grad is not None:
                    columns.rng_offset.append(lowbit.rng_offset(group["rounding_seed"], first + j))
            first += len(group["params"])
            for name in ("param", "grad", *NAMES):
                getattr(columns, name).extend(getattr(part, name))
        if members:
            plan = Plan(self.param_groups, members, columns, [])
            options = [self._options(i) for i in plan.group_indices]
            plan.update(replaced(columns, options=options, group=plan.group), self._signals())

    def _options(self, index: int, last_lr: Tensor | None = None, share: float = 1.0) -> Options:
        """A group's options that enter this step's arithmetic."""
        group = self.param_groups[index]
        cycle: Number = float(self._restarted[0])
        if self._cycle is not None and rounds_at_random(group):  # on its device, where an addition is a launch
            cycle = self._cycle.count + cycle if cycle else self._cycle.count
        return Options.of(group, last_lr, share, cycle)

    def _signals(self) -> Signals:
        found_inf = getattr(self, "found_inf", None)
        return Signals(
            grad_scale=getattr(self, "grad_scale", None),
            # GradScaler adds up those of several devices, and of none where no parameter has a gradient.
            skip=found_inf.clamp(max=1.0) if isinstance(found_inf, Tensor) else None,
            check_finite=any(group["skip_nonfinite"] for group in self.param_groups),
            forget=self._cycle is not None,
        )

    def _update_and_restart(
        self, cycle: Cycle, plan: Plan, params: list[Tensor], grads: list[Any], signals: Signals, sharded: bool
    ) -> None:
        """Run a step, then restart if the rule says so."""
        cycle.fit(self.param_groups)
        mesh, weights = sharding.weights(params) if sharded else (None, {})
        # A set of options for each group and share of the displacement that this process must count.
        mine = plan.of_rows(params)
        rows = [(plan.group_indices[i], weights.get(p, 1.0)) for i, p in zip(plan.group, mine, strict=True)]
        index = {row: i for i, row in enumerate(sorted(set(rows)))}
        measures = cycle.rule.radius is not None
        options = [self._options(group, cycle.last_lr(group) if measures else None, share) for group, share in index]
        stepping = {row for row, grad in zip(rows, grads, strict=True) if grad is not None}
        rates = [(row[0], options[i].lr) for row, i in index.items() if row in stepping]
        square, skip = None, signals.skip
        if stepping:
            columns = plan.columns(options, [index[row] for row in rows], mine, grads, self.state, forget=True)
            square, skip = plan.update(columns, signals)
        if sharded:
            square, skip = cycle.all_reduce(square, skip, bool(stepping), mesh, self.defaults["norm_group"])
        cycle.advance(square, skip, rates, [state["step"] for state in self._own_states()])

    # ---- plans and states
    def _planned(
        self, plan: Plan | None, groups: list[dict[str, Any]], params: list[Tensor], places: list[int] | None = None
    ) -> tuple[Plan, list[Any]]:
        """A plan for parameters, `places` being theirs among all (None: all), and the local gradients of its rows."""
        grads: list[Any] = [p.grad for p in params]
        if plan is not None and plan.is_sharded:
            grads = sharding.local_grads(params, grads, self._describe)
        if plan is None or plan.guard is None or not plan.guard.holds(groups, params, grads, self.state):
            if plan is None:
                warn_of_cycles(groups)
            is_sharded = sharding.any_dtensor(params)  # also where only one without a gradient is
            if is_sharded:
                grads = sharding.local_grads(params, [p.grad for p in params], self._describe)
            columns, members = Columns.empty(), []
            rows: list[int] = []
            group_of = [i for i, group in enumerate(groups) for _ in group["params"]] if places is None else [0]
            lists = (columns.param, columns.grad, *(getattr(columns, name) for name in NAMES))
            for i, (p, member) in enumerate(zip(params, group_of, strict=True)):
                if p.grad is not None or "step" in self.state.get(p, ()):
                    self._add_row(groups[member], p, *lists)
                    if len(columns.param) > len(rows):
                        members.append(member)
                        rows.append(i)
            seeds = [groups[member]["rounding_seed"] for member in members]
            columns.rng_offset.extend(map(lowbit.rng_offset, seeds, rows if places is None else places))
            plan = Plan(groups, members, columns, self._captured)
            plan.rows, plan.is_sharded = rows, is_sharded
            if all(is_plain(sharding.local(p)) for p in columns.param):
                plan.guard = Guard(groups, rows, columns.param, plan.of_rows(grads), self.state)
        return plan, plan.of_rows(grads)

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], *columns: list[Any]
    ) -> None:
        """Fill lists with what has a gradient, and its state. By its name `torch.compile` runs it outside the graph."""
        for p in group["params"]:
            if p.grad is not None:
                self._add_row(group, p, params, grads, *columns)

    def _add_row(
        self, group: dict[str, Any], param: Tensor, params: list[Tensor], grads: list[Any], *columns: list[Any]
    ) -> None:
        state: dict[str, Tensor] = self.state[param]
        try:
            states.check_grad(param)
            checkpoints.prepare(state, group, param, self._counter_device(group, param))
        except RuntimeError as error:
            if param.grad is None:  # that can wait until it has one
                return
            raise RuntimeError(f"parameter {self._describe(param)}: {error}") from None
        params.append(param)
        grads.append(param.grad)
        for name, column in zip(NAMES, columns, strict=True):
            column.append(state.get(name))

    def _own_states(self) -> list[dict[str, Tensor]]:
        """States of all parameters that have one; others, such as timm's Lookahead, may keep more in `state`."""
        return [state for p, state in self.state.items() if isinstance(p, Tensor) and "step" in state]

    def _describe(self, param: Tensor) -> str:
        groups = enumerate(self.param_groups)
        place = next((group, i, g) for g, group in groups for i, p in enumerate(group["params"]) if p is param)
        return describe(*place)

    def _counter_device(self, group: dict[str, Any], param: Tensor) -> torch.device | str:
        """Device of the step count: the parameter's where only the device knows it (capture, skipping, restarts)."""
        on_device = self._cycle is not None or group["capturable"] or group["skip_nonfinite"]
        return param.device if on_device or choose(group, param).counts_on_device else "cpu"

    # ---- restarts
    @torch.no_grad()
    def restart(self) -> None:
        """Forget the moments and the previous gradient: each parameter's next gradient counts as its first again."""
        for state in self._own_states():
            states.forget(state)
        self._restarted[0] += 1
        if self._cycle is not None:
            self._cycle.start()

    restart_opt = restart  #: the name of the authors' release

    @property
    def restart_rule(self) -> Restart | None:
        """The rule that was passed as ``restart``."""
        return None if self._cycle is None else self._cycle.rule

    @property
    def restarts(self) -> int:
        """Number of restarts by `restart=` so far. Reading it waits for the device."""
        return 0 if self._cycle is None else int(self._cycle.count.item())

    @property
    def restart_progress(self) -> Progress:
        """Progress of the current cycle: k, Σ, and the radius that would end it now. Waits for the device."""
        if self._cycle is None:
            raise RuntimeError("restart_progress: nothing is measured; construct Adan with restart=adan.Restart(...)")
        return self._cycle.progress

    # ---- checkpoints
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class or of the authors' release (`docs/migration.md`).

        Hyper-parameters come from the checkpoint, as in ``torch.optim``; how steps are executed and states stored
        (`foreach`, `capturable`, `state_format`, …) stays as this optimizer was constructed. A state dict that does not
        fit raises ValueError and changes nothing.
        """
        loaded: list[Any] = []

        def read(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            without_states, *others = checkpoints.load(state_dict, self.param_groups, self._counter_device)
            loaded.extend(others)
            return without_states

        def assign(_: Optimizer) -> None:
            new_states, cycles, self._restarted[0] = loaded
            self.state.update(new_states)
            if self._cycle is not None:
                self._cycle.fit(self.param_groups)
                self._cycle.load(cycles, [group["lr"] for group in self.param_groups])
            # Without states nothing has started, but for a process of ZeRO that has no parameter: it must agree with
            # the others.
            self._started |= bool(new_states) or not any(group["params"] for group in self.param_groups)
            self._plan = None
            for release in self._releases:
                release.forget()

        # As hooks, so that they stand inside the user's own: the last before loading, the first after it.
        before = self.register_load_state_dict_pre_hook(read)
        with before, self.register_load_state_dict_post_hook(assign, prepend=True):
            super().load_state_dict(state_dict)


def _complete(opt: Optimizer, saved: dict[str, Any]) -> None:
    """Complete what `torch.optim` saves: quantized states under their names, and the restarts in each group."""
    assert isinstance(opt, Adan)
    if opt._cycle is not None:
        opt._cycle.fit(opt.param_groups)
    for i, (group, mine) in enumerate(zip(saved["param_groups"], opt.param_groups, strict=True)):
        group.update({name: _of_python(value) for name, value in group.items()})
        tensors = {name: group[name] for name in NOT_NEGATIVE if isinstance(group.get(name), Tensor)}
        group.update({name: x.item() for name, x in tensors.items()})  # only `lr` may be loaded as a tensor
        for key, param in zip(group["params"], mine["params"], strict=True):
            if key in saved["state"]:
                saved["state"][key] = checkpoints.portable(saved["state"][key], param)
        if opt._cycle is not None:
            group["restart_state"] = opt._cycle.saved(i)
        if opt._restarted[0]:
            group["manual_restarts"] = opt._restarted[0]


def _of_python(value: Any) -> Any:
    """NumPy numbers, alone or in a list, as Python's: with `weights_only`, `torch.load` reads no others."""
    if type(value) in (tuple, list):
        return type(value)(map(_of_python, value))
    plain = type(value) in (bool, int, float) or not isinstance(value, Real)
    return value if plain else float(value)
