"""Figures as data: panels of lines, their digest, and the SVG drawn from them.

A figure holds the digest of what it shows, so that a test can tell whether it is up to date without drawing it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Curve:
    """A line of a panel. low, high: its band, the lowest and the highest seed."""

    color: str
    label: str
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    dashed: bool = False
    points: bool = False


@dataclass
class Panel:
    """Axes with curves. bottom, top: ends of the vertical axis, outside of which nothing is shown."""

    title: str
    x_label: str
    y_label: str
    lines: list[Curve]
    bottom: float
    top: float
    log_x: bool = False

    def draw(self, axes: Any) -> None:
        for line in self.lines:
            style = {"linestyle": "--" if line.dashed else "-", "marker": "o" if line.points else None}
            axes.plot(line.x, line.y, color=line.color, label=line.label, linewidth=1.6, markersize=3, **style)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=line.color, alpha=0.15, linewidth=0)
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label, ylim=(self.bottom, self.top))
        if self.log_x:
            axes.set_xscale("log")
            places = sorted({x for line in self.lines for x in line.x})
            if len(places) <= FEW:  # else powers of ten
                axes.set_xticks(places, [f"{x:g}" for x in places])
                axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if len(self.lines) > FEW else {}
        axes.legend(frameon=False, fontsize=8, **beside)


@dataclass
class Effect:
    """A row of a forest plot: a difference with its interval, and a text beside it; is_open: an empty circle."""

    label: str
    mean: float
    low: float
    high: float
    color: str
    text: str
    is_open: bool = False


@dataclass
class Forest:
    """Differences one below the other; intervals are cut off at ±widest, where an arrow says so."""

    x_label: str
    widest: float
    effects: list[Effect]

    def draw(self, axes: Any) -> None:
        widest = self.widest
        axes.axvline(0, color="#888888", linewidth=0.8)
        for at, effect in enumerate(self.effects):
            low, high = max(effect.low, -widest), min(effect.high, widest)
            axes.plot([low, high], [at, at], color=effect.color, linewidth=1.6)
            for end, cut, marker in ((low, effect.low < -widest, "<"), (high, effect.high > widest, ">")):
                if cut:
                    axes.plot(end, at, marker, color=effect.color, markersize=4, clip_on=False)
            fill = {"markerfacecolor": "white"} if effect.is_open else {}
            axes.plot(effect.mean, at, "o", color=effect.color, markersize=4, **fill)
            place = {"xycoords": ("axes fraction", "data"), "verticalalignment": "center", "fontsize": 8}
            axes.annotate(effect.text, (1.02, at), **place)
        axes.set_yticks(range(len(self.effects)), [effect.label for effect in self.effects])
        axes.set(xlabel=self.x_label, xlim=(-widest, widest), ylim=(len(self.effects) - 0.5, -0.5))
        ends = [share * widest for share in (-1, -0.5, 0, 0.5, 1)]
        axes.set_xticks(ends, [f"{end:g}".replace("-", "−") for end in ends])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)


Picture = Sequence[Panel | Forest]
#: Where a page is dark, so are its figures: inverted, with the colors that they have.
DARK = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.92) hue-rotate(180deg)}}"
FOREST = """\
Adan against the best baseline, with 95% intervals; right of 0, Adan is better
green: better, orange: worse (open circle: not confirmed), grey: not significant; at an arrow, the interval goes on"""
FEW = 6  # points on a logarithmic axis that have a tick each, lines whose legend has room among them


def digest(panels: Picture) -> str:
    return hashlib.sha256(json.dumps([asdict(panel) for panel in panels]).encode()).hexdigest()[:16]


def drawn(path: Path) -> str | None:
    """The digest of the panels that a figure shows."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.partition("drawn from ")[2][:16] or None


def write(pictures: Mapping[str, Picture], folder: Path, check: bool) -> list[str]:
    """Draw the figures that have changed; their names. check: draw none."""
    stale = [name for name, panels in pictures.items() if drawn(folder / name) != digest(panels)]
    for name in [] if check else stale:
        draw(pictures[name], folder / name)
    return stale


def draw(panels: Picture, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context({"svg.hashsalt": "adan", "font.size": 9, "svg.fonttype": "none"}):
        effects = [len(panel.effects) for panel in panels if isinstance(panel, Forest)]
        columns = 1 if effects else min(len(panels), 2)
        rows = math.ceil(len(panels) / columns)
        size = (8, 0.2 * sum(effects) + 0.55 * rows + 0.5) if effects else (4.6 * columns, 3.2 * rows)
        layout = ConstrainedLayoutEngine(h_pad=0.09 if rows > 1 else None)  # inches: room for a title
        figure = Figure(figsize=size, layout=layout)
        if effects:
            figure.suptitle(FOREST, size=9)
        heights = [count + 0.5 for count in effects] or None
        all_axes = list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)
        for at, panel in enumerate(panels):
            panel.draw(all_axes[at])
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        metadata = {"Date": None, "Creator": None, "Description": f"drawn from {digest(panels)}"}
        figure.savefig(path, format="svg", metadata=metadata)
    text = path.read_text(encoding="utf-8").replace("</style>", f"{DARK}</style>", 1)
    path.write_text("".join(line.rstrip() + "\n" for line in text.splitlines()), encoding="utf-8")
