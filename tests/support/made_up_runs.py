"""Records of runs that nobody made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adan_bench.config import Origin, RunConfig, RunRecord

BY_HAND, UNTUNED = Origin(source="by hand"), Origin(kind="untuned")


def record(
    optimizer: str = "adan",
    final: float | None = 0.9,
    seed: int = 0,
    lr: float = 0.1,
    role: str = "run",
    curve: tuple[float, ...] = (),
    higher: bool = True,
    workload: str = "w",
    origin: Origin = BY_HAND,
    status: str = "",
    path: str = "nowhere",
    started: str = "",
    **more: Any,
) -> RunRecord:
    """A run of 100 steps with evaluations at equal distances, the last of them `final`."""
    config = RunConfig(
        workload=workload,
        optimizer=optimizer,
        settings={"lr": lr},
        steps=100,
        batch_size=8,
        eval_every=10,
        log_every=10,
        seed=seed,
        role=role,
        origin=origin,
        **more,
    )
    facts = {"metric": "m", "higher_is_better": higher, "target": 0.5, "name": workload, "summary": "made up"}
    values = curve or (0.0, final or 0.0)
    metrics: list[dict[str, Any]] = [
        {"kind": "eval", "step": 100 * (i + 1) // len(values), "seconds": float(i + 1), "m": value}
        for i, value in enumerate(values)
    ]
    status = status or ("finished" if final is not None else "diverged")
    result = {"status": status, "step": 100, "seconds": 2.0, "final": {"m": final}, "best": final}
    return RunRecord(Path(path), config, facts, {"passes": 1}, {"started": started}, metrics, result)


def three(optimizer: str, *finals: float | None, **more: Any) -> list[RunRecord]:
    return [record(optimizer, final, seed, **more) for seed, final in enumerate(finals)]


def trials(best: int) -> list[RunRecord]:
    return [
        record(name, 0.9 if i == best else 0.5, lr=lr, role="tune")
        for name in ("adan", "sgd")
        for i, lr in enumerate((0.01, 0.1, 1.0))
    ]
