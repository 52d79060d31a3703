"""Curves: of a comparison, as PNG for a README and SVG for a paper, and of the paper's figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from adan_bench.records.cells import CellRecord
from adan_bench.records.stats import OptimizerSummary, WorkloadSummary, mean_curve
from adan_bench.reports.html import style_of

LEVEL = 0.75  # of the bands: the paper's figure of PPO


def write_figures(summaries: Sequence[WorkloadSummary], folder: Path) -> dict[str, str]:
    """A PNG and an SVG per workload beside the report; workload -> file name of the PNG."""
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    names = list(dict.fromkeys(o.name for s in summaries for o in s.optimizers))
    written: dict[str, str] = {}
    for summary in summaries:
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for o in summary.optimizers:
            style = style_of(o.name, names)
            _draw(left, o, "train", "loss", style)
            _draw(right, o, "eval", summary.facts["metric"], style)
        if summary.facts["target"] is not None:
            right.axhline(summary.facts["target"], color="gray", linewidth=0.8, linestyle=":")
        _label(left, f"{summary.name}: training loss", legend=False)
        _label(right, f"held-out {summary.facts['metric']}")
        stem = f"report-{re.sub('[^a-z0-9]+', '-', summary.name.lower())}"
        taken = f"{stem}.png" in written.values()  # another table's name has the same plain letters
        written[summary.name] = f"{stem}-{len(written) + 1}.png" if taken else f"{stem}.png"
        figure.savefig(folder / written[summary.name], dpi=120)
        figure.set_layout_engine("none")  # it is laid out
        figure.savefig((folder / written[summary.name]).with_suffix(".svg"))
    return written


def _label(axes: Any, title: str, legend: bool = True) -> None:
    axes.set(title=title, xlabel="steps")
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def _draw(axes: Any, o: OptimizerSummary, kind: str, key: str, style: dict[str, str]) -> None:
    curves = [[(step, value) for step, _, value in curve] for r in o.records if (curve := r.curve(kind, key))]
    if not curves:
        return
    for points in curves:
        axes.plot([p[0] for p in points], [p[1] for p in points], color=style["light"], linewidth=0.6, alpha=0.4)
    steps, means, _ = mean_curve(curves, LEVEL)
    dashes = tuple(float(part) / 2 for part in style["dash"].split())
    axes.plot(steps, means, color=style["light"], linewidth=1.8, linestyle=(0, dashes) if dashes else "-", label=o.name)


def curves_png(cells: Sequence[CellRecord]) -> bytes:
    """A panel for each column: each row's mean over its seeds, and the interval of that mean as a band."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(cell.column for cell in cells))
    names = list(dict.fromkeys(cell.optimizer for cell in cells))
    figure = Figure(figsize=(4.5 * len(columns), 3.6), layout="constrained")
    for axes, column in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        for cell in cells:
            if cell.column == column and any(cell.curves):
                steps, means, halves = mean_curve([curve for curve in cell.curves if curve], LEVEL)
                color = style_of(cell.optimizer, names)["light"]
                axes.plot(steps, means, color=color, linewidth=1.6, label=cell.row)
                low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
                axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        _label(axes, column)
    content = BytesIO()
    figure.savefig(content, dpi=120)
    return content.getvalue()
