"""The paper's tables and figures as data: what was published, under which settings, and which cells are run here.

One JSON file per table; its name is what `adan-bench reproduce` takes. A table is a grid: a column is a problem (a
workload, how much of its budget, which number), a row is an optimizer, and their cell is a published figure.

    title, caption   what it shows; place, label: where it stands in the paper, and LaTeX's name of it
    kind             "train" (runs of workloads), "speed" (one device), "parallel" (several processes) or "statement"
                     (of theory: nothing of it is run)
    metric           in words; higher_is_better; percent: ours are shares and are shown times a hundred
    marks            what a mark behind a figure means; notes: what the paper leaves open, or contradicts itself in
    columns, rows    see `TableColumn` and `TableRow`
    settings         of the runs at the scale "paper": `PublishedSettings`; betas are the code's, 1 − the paper's β
    run              fields of all runs that `settings` gives no other
    variances        by optimizer, the published variance over its rows (the table of betas alone)
    like             names of tables whose settings are this one's too
    curves           it is a figure of curves: ours are drawn, with a band where there are several seeds
    runs             by scale, the heads of the rows and columns that are run there (all unless named) and the seeds (1)
    median           the paper's figures, and so ours, are medians over the seeds
    one_before       the seeds of a cell start from one pre-training, that of the first

A figure is kept as it is printed, with its mark: "79.8*". null: the paper has no such cell. "figure": it is drawn and
not printed. "unpublished": the paper has no such figure, and we measure one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from adan_bench.errors import UsageError, unknown
from adan_bench.task import SCALES, Settings

MARKS = "*⋄"
RESTARTS = "restarts"  # a metric that no evaluation reports, as the training loss is, over the last tenth of a run
OWN = ("optimizer", "source", "guess", "workload", "column", "rates")  # the rest of an entry of `settings` is the run's


@dataclass(frozen=True)
class TableColumn:
    """A problem. Without a workload or a model it is published only.

    budget: (100, 300) is 100 of the 300 epochs that the workload's own budget stands for; before: the same of the
        workload whose weights it starts from.
    metric: a number of the workload's evaluation, or "training loss" over the last tenth; None: its own metric.
    chosen_by: at the scale "paper", the number of an evaluation whose best value (of a loss the least) chooses the
        evaluation that is reported, as the published code does; None: the last one.
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
class TableRow:
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
    """A partial `RunConfig`: how an optimizer was run, on all columns or on those of some workloads or heads.

    source: a section of the paper, or a repository and a path in it; beside it, what another source says instead.
    run: fields of `RunConfig` by name, `settings` and `training` among them. Three are as papers state them: `warmup`
        (5, 300) is 5 of 300 epochs, `cooldown` likewise, of epochs that follow at the lowest rate, and `min_lr` is
        that rate, in place of `floor`. `steps` are updates, whatever the batch size; without it the run has as many
        examples as the workload's budget.
    guess: names of settings, options or fields that no public source states.
    rates: learning rates of which trials choose one, where none is published and a guess would mean nothing.
    """

    optimizer: str
    source: str
    run: Settings
    guess: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    column: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()

    def holds(self, optimizer: str, workload: str | None, column: str) -> bool:
        names = ((self.workload, workload), (self.column, column))
        return self.optimizer == optimizer and all(not these or name in these for these, name in names)

    @property
    def stated(self) -> list[str]:
        """The names of all settings, options and fields that it has."""
        parts = (value if isinstance(value, Mapping) else (key,) for key, value in self.run.items())
        return sorted({name for part in parts for name in part})


def merged(entries: Sequence[PublishedSettings], run: Settings) -> PublishedSettings:
    """Several entries as one: of each field the last that has it, and as guesses what no later entry states."""
    run, guesses = dict(run), dict[str, bool]()
    rates: tuple[float, ...] = ()
    for entry in entries:
        for name, value in entry.run.items():
            run[name] = {**run.get(name, {}), **value} if isinstance(value, Mapping) else value
        guesses |= {name: name in entry.guess for name in (*entry.stated, *entry.guess)}
        rates = entry.rates or rates
    sources = dict.fromkeys(entry.source for entry in entries)
    names = tuple(name for name, guess in guesses.items() if guess)
    optimizer = entries[0].optimizer if entries else ""
    return PublishedSettings(optimizer, "; ".join(sources), run, names, rates=rates)


@dataclass(frozen=True)
class Selection:
    """The part of a table that is run at a scale: heads of rows and columns, all where there are none."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: int = 1
    first_seed: int = 0


@dataclass(frozen=True)
class PaperTable:
    """One table or figure of the paper; `run`: fields that all its published runs share."""

    name: str
    title: str
    place: str
    label: str
    caption: str
    metric: str
    higher_is_better: bool
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    settings: tuple[PublishedSettings, ...]
    runs: Mapping[str, Selection]
    kind: str = "train"
    percent: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    variances: Mapping[str, str] = field(default_factory=dict)
    run: Settings = field(default_factory=dict)
    like: tuple[str, ...] = ()
    curves: bool = False
    median: bool = False
    one_before: bool = False

    def cells(self) -> list[tuple[TableRow, TableColumn, str]]:
        """Every cell that the paper has, or that we add: (row, column, figure as printed)."""
        pairs = [
            (row, column, value) for row in self.rows for column, value in zip(self.columns, row.values, strict=True)
        ]
        return [(row, column, value) for row, column, value in pairs if value is not None]

    def planned(self, scale: str) -> list[tuple[TableRow, TableColumn, str]]:
        selection = self.runs[scale]
        return [
            (row, column, value)
            for row, column, value in self.cells()
            if (row.head in selection.rows or not selection.rows)
            and (column.head in selection.columns or not selection.columns)
            and row.study
            and (column.workload or column.model or column.mean)
        ]

    def published(self, optimizer: str, workload: str | None, column: TableColumn) -> PublishedSettings:
        """All that is published for a run; what is given for its workload by name replaces the rest."""
        head = column.recipe or column.head
        entries = [entry for entry in self.settings if entry.holds(optimizer, workload, head)]
        return merged([entry for entry in entries if entry.workload] or entries, self.run)

    def higher(self, column: TableColumn) -> bool:
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


def parse(name: str, content: Mapping[str, Any]) -> PaperTable:
    values = dict(content)
    values["columns"] = tuple(TableColumn(**_tuples(column)) for column in content["columns"])
    values["rows"] = tuple(TableRow(**_tuples(row)) for row in content["rows"])
    values["settings"] = tuple(_published(entry) for entry in content.get("settings", ()))
    chosen = {scale: Selection(**_tuples(entry)) for scale, entry in content.get("runs", {}).items()}
    values["runs"] = dict.fromkeys(SCALES, Selection()) | chosen
    values |= {name: tuple(content.get(name, ())) for name in ("notes", "like")}
    return PaperTable(name, **values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _published(entry: Mapping[str, Any]) -> PublishedSettings:
    """An entry of `settings`; one name where there may be several stands for a list of one."""
    own = {key: entry[key] for key in OWN if key in entry}
    several = {key: (own[key],) if isinstance(own[key], str) else tuple(own[key]) for key in OWN[2:] if key in own}
    return PublishedSettings(**{**own, **several}, run={key: value for key, value in entry.items() if key not in OWN})


def tables() -> dict[str, PaperTable]:
    """All tables by name, in the order of the paper, its figures last."""
    files = [entry for entry in resources.files(__name__).iterdir() if entry.name.endswith(".json")]
    all_tables = [parse(f.name.removesuffix(".json"), json.loads(f.read_text(encoding="utf-8"))) for f in files]
    own = {table.name: table.settings for table in all_tables}
    all_tables = [replace(t, settings=sum((own[name] for name in t.like), t.settings)) for t in all_tables]
    return {
        t.name: t for t in sorted(all_tables, key=lambda t: (t.place.startswith("Figure"), int(t.place.split()[1])))
    }


def choose(names: list[str]) -> list[PaperTable]:
    """The tables of these names; "all" is all of them."""
    there = tables()
    if not names:
        raise UsageError(f"no table was named; there are: all, {', '.join(there)}")
    for name in names:
        if name not in there and name != "all":
            raise unknown("table", name, ["all", *there])
    return [table for name, table in there.items() if name in names or "all" in names]
