"""All studies of the theory, and the page that shows them: claims, numbers, plots, nothing else needed."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from adan_bench.errors import unknown
from adan_bench.records.environment import describe
from adan_bench.records.store import write_bytes
from adan_bench.reports import html
from adan_bench.theory.check import Chapter, Check

NAMES = "lemma-1 moments reformulation package proximal propositions descent theorem-1 cycle theorem-2 complexity"
#: A module of `adan_bench.theory` for each.
STUDIES: dict[str, Callable[[], Chapter]] = {
    name: import_module(f"adan_bench.theory.{name.replace('-', '')}").run for name in NAMES.split()
}


def choose(names: Sequence[str]) -> dict[str, Callable[[], Chapter]]:
    """The studies of these names, all where there are none."""
    for name in names:
        if name not in STUDIES:
            raise unknown("study", name, STUDIES, of="--only")
    return {name: STUDIES[name] for name in names or STUDIES}


def write(studies: Sequence[Chapter], folder: Path) -> Path:
    """theory.html, theory.json and the plots as PNG; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {f"theory-{study.name}.png": _png(study.plot) for study in studies if study.plot}
    for name, data in images.items():
        write_bytes(folder / name, data)
    checks = [{"study": study.name, **check.to_json()} for study in studies for check in study.checks]
    tables = [asdict(table) for study in studies for table in study.tables]
    record = {"environment": describe(), "checks": checks, "tables": tables}
    write_bytes(folder / "theory.json", (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return html.PagePart(_page(studies, images).html).write(folder / "theory.html")


def numbers(check: Check) -> tuple[str, str, str]:
    """What was measured, the bound, and whether it holds."""
    bound = f"{'≥' if check.at_least else '≤'} {check.bound:.3g}"
    return f"{check.measured:.3g}", bound, "holds" if check.passed else "FAILS"


@functools.cache
def _png(draw: Callable[..., None]) -> bytes:
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    draw(figure)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(framealpha=0.8, edgecolor="none", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100, metadata={"Software": None})
    return buffer.getvalue()


def _page(studies: Sequence[Chapter], images: dict[str, bytes]) -> html.PagePart:
    checks = [check for study in studies for check in study.checks]
    failed = sum(not check.passed for check in checks)
    environment = describe()
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    about = f"Python {environment['python']}, {versions}; commit {environment['commit'] or 'unknown'}."
    conclusion = (
        f"{len(checks)} checks, {failed} failed. Identities are checked to rounding, bounds by how much of them is "
        "used. Rates are measured on a few problems: evidence, not proof."
    )
    parts = [html.paragraph(conclusion, "conclusion"), *(_section(study, images) for study in studies)]
    return html.page("The paper's theory, run", about, parts)


def _section(study: Chapter, images: dict[str, bytes]) -> html.PagePart:
    head = ("claim", "measured", "bound", "", "remark")
    kinds = ["" if check.passed else "failed" for check in study.checks]
    rows = [(f"{check.name}: {check.claim}", *numbers(check), check.note) for check in study.checks]
    title, about = study.texts
    parts = [html.paragraph(about), html.table(head, rows, kinds=kinds, kind="claims")]
    parts += [html.image(name, png, name) for name, png in images.items() if name == f"theory-{study.name}.png"]
    for table in study.tables:
        parts += [html.heading(table.title), html.table(table.head, table.rows)]
    return html.section(title, *parts)
