"""The paper's tables and figures as data: what was published, under which settings, and which cells are run here.

One JSON file per table; its name is what `adan-bench reproduce` takes. A table is a grid: a column is a problem (a
workload, how much of its budget, which number), a row is an optimizer, and their cell is a published figure.

    title, caption   what it shows; place, label: where it stands in the paper, and LaTeX's name of it
    kind             "train" (runs of workloads), "speed" (one device), "parallel" (several processes) or "statement"
                     (of theory: nothing of it is run)
    metric           in words; higher_is_better; percent: ours are shares and are shown times a hundred
    marks            what a mark behind a figure means; notes: what the paper leaves open, or contradicts itself in
    columns          see `Column`;  rows: see `Row`
    settings         of the runs at the scale "paper": `PublishedSettings`; betas are the code's, 1 − the paper's β
    schedule, warmup the same for all rows that `settings` gives no other
    variances        by optimizer, the published variance over its rows (the table of betas alone)
    like             names of tables whose settings are this one's too
    curves           it is a figure of curves: ours are drawn, with a band where there are several seeds
    runs             by scale, the heads of the rows and columns that are run there (all unless named) and the seeds

A figure is kept as it is printed, with its mark: "79.8*". null: the paper has no such cell. "figure": it is drawn and
not printed. "unpublished": the paper has no such figure, and we measure one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from adan_bench.errors import UsageError, unknown
from adan_bench.task import Settings

KINDS = ("train", "speed", "parallel", "statement")
MARKS = "*⋄"
TRAINING_LOSS = "training loss"  # the metric that no evaluation reports: over the last tenth of a run
RECIPE_FIELDS = ("batch_size", "schedule", "warmup", "cooldown", "min_lr", "clip", "ema", "nonmono")


@dataclass(frozen=True)
class Column:
    """A problem. Without a workload or a model it is published only.

    budget: (100, 300) is 100 of the 300 epochs that the workload's own budget stands for; before: the same of the
        workload whose weights it starts from.
    metric: a number of the workload's evaluation, or "training loss" over the last tenth; None: its own metric.
    chosen_by: at the scale "paper", the number of an evaluation whose best value chooses the evaluation that is
        reported, as the published code does; None: the last one.
    batch_size: the paper's; batch_factor: what stands for it at smaller scales, as a multiple of the workload's.
    mean: the mean of the row's other columns that are run.
    evaluation: "humaneval", where the number comes from the final weights of a run and not from the run.
    recipe: the head under which the settings of the run are published, where it is another one.
    model: for the kinds "speed" and "parallel"; ranks: the GPUs that share it.
    """

    head: str
    workload: str | None = None
    budget: tuple[float, float] = (1, 1)
    before: tuple[float, float] = (1, 1)
    metric: str | None = None
    chosen_by: str | None = None
    batch_size: int | None = None
    batch_factor: float = 1.0
    mean: bool = False
    evaluation: str | None = None
    recipe: str | None = None
    model: str | None = None
    ranks: int = 1
    higher_is_better: bool | None = None


@dataclass(frozen=True)
class Row:
    """An optimizer, with a published figure (or none) for every column.

    fixed: settings that hold at every scale, because the table is about them; before: the same in pre-training.
    restart: with the restart condition, its radius by a pilot run.
    study: False for a row that quotes somebody's figures for an optimizer that has another row.
    """

    head: str
    optimizer: str
    values: tuple[str | None, ...]
    fixed: Settings = field(default_factory=dict)
    before: Settings = field(default_factory=dict)
    budget: tuple[float, float] = (1, 1)
    restart: bool = False
    study: bool = True


@dataclass(frozen=True)
class PublishedSettings:
    """How an optimizer was run, on all columns or on those of some workloads or heads; later ones win.

    source: a section of the paper, or a repository and a path in it; beside it, what another source says instead.
    guess: names of settings, or of fields below, that no public source states.
    warmup: (5, 300) is 5 of 300 epochs; cooldown: the same, of epochs that follow at the lowest rate.
    min_lr: the lowest learning rate; clip: the limit of the gradient's norm, 0 for none, None for the workload's.
    ema: the decay of the average of weights that is evaluated; nonmono: that of AWD-LSTM's switch to averaged SGD.
    training: options of the workload (`Workload.options`) that differ from its defaults.
    """

    optimizer: str
    settings: Settings
    source: str
    guess: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    column: tuple[str, ...] = ()
    batch_size: int | None = None
    schedule: str | None = None
    warmup: tuple[float, float] | None = None
    cooldown: tuple[float, float] | None = None
    min_lr: float | None = None
    clip: float | None = None
    ema: float | None = None
    nonmono: int | None = None
    training: Settings = field(default_factory=dict)

    def holds(self, optimizer: str, workload: str | None, column: str) -> bool:
        names = ((self.workload, workload), (self.column, column))
        return self.optimizer == optimizer and all(not these or name in these for these, name in names)


@dataclass(frozen=True)
class Recipe:
    """All that is published for the runs of a cell, put together: of each field the last entry that has it."""

    entries: tuple[PublishedSettings, ...]

    def last(self, name: str) -> Any:
        """A field of the last entry that has it, or None."""
        values = [value for entry in self.entries if (value := getattr(entry, name)) is not None]
        return values[-1] if values else None

    def merged(self, name: str) -> Settings:
        """The settings of the optimizer, or the options of the training."""
        return {key: value for entry in self.entries for key, value in getattr(entry, name).items()}

    @property
    def guesses(self) -> list[str]:
        """What of it is a guess: what no later entry states."""
        by_name: dict[str, bool] = {}
        for entry in self.entries:
            fields = {name for name in RECIPE_FIELDS if getattr(entry, name) is not None}
            stated = {*entry.settings, *entry.training, *fields}
            by_name |= {name: name in entry.guess for name in (*sorted(stated), *entry.guess)}
        return [name for name, guess in by_name.items() if guess]

    @property
    def sources(self) -> str:
        return "; ".join(entry.source for entry in self.entries)


@dataclass(frozen=True)
class Selection:
    """What of a table is run at a scale: heads of rows and columns, all where there are none."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: int = 1


@dataclass(frozen=True)
class Table:
    """One table or figure of the paper."""

    name: str
    title: str
    place: str
    label: str
    caption: str
    metric: str
    higher_is_better: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    settings: tuple[PublishedSettings, ...]
    runs: Mapping[str, Selection]
    kind: str = "train"
    percent: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    variances: Mapping[str, str] = field(default_factory=dict)
    schedule: str | None = None
    warmup: tuple[float, float] | None = None
    like: tuple[str, ...] = ()
    curves: bool = False

    def cells(self) -> list[tuple[Row, Column, str]]:
        """Every cell that the paper has, or that we add: (row, column, figure as printed)."""
        pairs = [
            (row, column, value) for row in self.rows for column, value in zip(self.columns, row.values, strict=True)
        ]
        return [(row, column, value) for row, column, value in pairs if value is not None]

    def planned(self, scale: str) -> list[tuple[Row, Column, str]]:
        """The cells that are run at a scale."""
        selection = self.runs[scale]
        return [
            (row, column, value)
            for row, column, value in self.cells()
            if (row.head in selection.rows or not selection.rows)
            and (column.head in selection.columns or not selection.columns)
            and row.study
            and (column.workload or column.model or column.mean)
        ]

    def published(self, optimizer: str, workload: str | None, column: Column) -> Recipe:
        """What is published for a run; what is given for its workload by name replaces the rest."""
        head = column.recipe or column.head
        entries = tuple(settings for settings in self.settings if settings.holds(optimizer, workload, head))
        return Recipe(tuple(settings for settings in entries if settings.workload) or entries)

    def higher(self, column: Column) -> bool:
        return self.higher_is_better if column.higher_is_better is None else column.higher_is_better


def figure(printed: str) -> float | None:
    """The number of a figure as it is printed; None where there is none.

    >>> figure("79.8*"), figure("figure"), figure("O(ε⁻⁴)")
    (79.8, None, None)
    """
    try:
        return float(printed.rstrip(MARKS))
    except ValueError:
        return None


def parse(name: str, content: Mapping[str, Any]) -> Table:
    """A table from the content of its file."""
    values = dict(content)
    values["columns"] = tuple(Column(**_tuples(column)) for column in content["columns"])
    values["rows"] = tuple(Row(**_tuples(row)) for row in content["rows"])
    values["settings"] = tuple(PublishedSettings(**_tuples(_names(entry))) for entry in content["settings"])
    values["runs"] = {scale: Selection(**_tuples(entry)) for scale, entry in content["runs"].items()}
    values |= {name: tuple(content.get(name, ())) for name in ("notes", "like")}
    return Table(name, **values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _names(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One name where there may be several stands for a list of one."""
    several = ("workload", "column", "guess")
    return {key: [value] if key in several and isinstance(value, str) else value for key, value in entry.items()}


def tables() -> dict[str, Table]:
    """All tables by name, in the order of the paper, its figures last."""
    files = [entry for entry in resources.files(__name__).iterdir() if entry.name.endswith(".json")]
    all_tables = [
        parse(file.name.removesuffix(".json"), json.loads(file.read_text(encoding="utf-8"))) for file in files
    ]
    own = {table.name: table.settings for table in all_tables}
    all_tables = [replace(t, settings=sum((own[name] for name in t.like), t.settings)) for t in all_tables]
    return {table.name: table for table in sorted(all_tables, key=_order)}


def _order(table: Table) -> tuple[bool, int]:
    kind, _, number = table.place.partition(" ")
    return kind == "Figure", int(number)


def choose(names: list[str]) -> list[Table]:
    """The tables of these names; "all" is all of them."""
    there = tables()
    if not names:
        raise UsageError(f"no table was named; there are: all, {', '.join(there)}")
    for name in names:
        if name not in there and name != "all":
            raise unknown("table", name, ["all", *there])
    return [table for name, table in there.items() if name in names or "all" in names]
