"""The cells of a reproduced table, as tables.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from adan_bench.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A published figure, and the results of the runs that repeat it.

    paper: the figure as it is printed; values: by seed.
    status: "done", "absent" (what it needs is not here), "failed" or "diverged"; why: the reason where it is not done.
    config, before: of its runs and of their pre-training, where there are any; data: on which data, in words.
    tiny: a time of a model that is smaller than the published one; curves: by seed, (step, value).
    """

    row: str
    column: str
    optimizer: str
    workload: str
    paper: str = ""
    status: str = "done"
    why: str = ""
    seeds: int = 0
    values: list[float] = field(default_factory=list)
    metric: str = ""
    data: str = ""
    parameters: int | None = None
    seconds: float = 0.0
    tiny: bool = False
    config: RunConfig | None = None
    before: RunConfig | None = None
    curves: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return bool(self.values) and len(self.values) == self.seeds

    def to_json(self) -> dict[str, Any]:
        configs = {name: c.to_json() for name in ("config", "before") if (c := getattr(self, name)) is not None}
        return {**vars(self), **configs}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CellRecord:
        """A cell of this version, or of an earlier one, which had the fields of `config` beside its own."""
        found: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        if "config" not in values and "origin" in values:
            found["config"] = {name: value for name, value in values.items() if name != "data"}
        found |= {name: RunConfig.from_json(found[name]) for name in ("config", "before") if name in found}
        return cls(**found)
