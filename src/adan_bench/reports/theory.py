"""All studies of the theory, and the page that shows them: claims, numbers, plots, nothing else needed."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from adan_bench.records.environment import describe
from adan_bench.records.store import write_bytes
from adan_bench.spec import UsageError
from adan_bench.theory import complexity, lemma1, moments, propositions, proximal, reformulation, theorem1, theorem2
from adan_bench.theory.check import Check, Study, Table

STUDIES: dict[str, Callable[[], Study]] = {
    "lemma-1": lemma1.run,
    "moments": moments.run,
    "reformulation": reformulation.run,
    "proximal": proximal.run,
    "propositions": propositions.run,
    "theorem-1": theorem1.run,
    "theorem-2": theorem2.run,
    "complexity": complexity.run,
}


def choose(names: Sequence[str]) -> list[Callable[[], Study]]:
    """The studies of these names, all where there are none."""
    for name in names:
        if name not in STUDIES:
            raise UsageError(f"--only {name}: no such study; there are: {', '.join(STUDIES)}")
    return [STUDIES[name] for name in names or STUDIES]


def write(studies: Sequence[Study], folder: Path) -> Path:
    """theory.html, theory.json and the plots as PNG; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {name: _png(draw) for study in studies for name, draw in study.plots.items()}
    for name, data in images.items():
        write_bytes(folder / name, data)
    checks = [{"study": study.name, **check.to_json()} for study in studies for check in study.checks]
    tables = [asdict(table) for study in studies for table in study.tables]
    record = {"environment": describe(), "checks": checks, "tables": tables}
    write_bytes(folder / "theory.json", (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    page = folder / "theory.html"
    write_bytes(page, _page(studies, images).encode())
    return page


def number(value: float) -> str:
    return f"{value:.3g}"


def relation(check: Check) -> str:
    return f"{'≥' if check.at_least else '≤'} {number(check.bound)}"


def _png(draw: Callable[..., None]) -> bytes:
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    draw(figure)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100, metadata={"Software": None})
    return buffer.getvalue()


def _page(studies: Sequence[Study], images: dict[str, bytes]) -> str:
    style = (resources.files("adan_bench.reports") / "assets" / "style.css").read_text()
    checks = [check for study in studies for check in study.checks]
    failed = sum(not check.passed for check in checks)
    environment = describe()
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>adan-bench: the theory</title><link rel="icon" href="data:,"><style>
{style}
.claims th, .claims td {{ text-align: left; vertical-align: top; }}
.claims td:first-child, .claims td:last-child {{ white-space: normal; min-width: 14rem; }}
img {{ max-width: 100%; background: #fff; border-radius: 8px; }} .failed td {{ color: #d55e00; font-weight: 600; }}
</style></head><body>
<header><h1>The paper's theory, run</h1>
<p class="soft">Python {environment["python"]}, {versions}; commit {environment["commit"] or "unknown"}.</p></header>
<p class="conclusion">{len(checks)} checks, {failed} failed. Identities are checked to rounding, bounds by how much of
them is used. Rates are measured on a few problems: evidence, not proof.</p>
{"".join(_section(study, images) for study in studies)}
</body></html>
"""


def _section(study: Study, images: dict[str, bytes]) -> str:
    plots = "".join(
        f'<p><img alt="{html.escape(name)}" src="data:image/png;base64,{base64.b64encode(images[name]).decode()}"></p>'
        for name in study.plots
    )
    rows = "".join(
        f"<tr{'' if c.passed else ' class=failed'}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(c))
        + "</tr>"
        for c in study.checks
    )
    head = "".join(f"<th>{name}</th>" for name in ("claim", "measured", "bound", "", "remark"))
    return f"""<section><h2>{html.escape(study.title)}</h2><p>{html.escape(study.about)}</p>
<div class="scroll"><table class="claims"><tr>{head}</tr>{rows}</table></div>
{plots}{"".join(_table(table) for table in study.tables)}</section>
"""


def _cells(check: Check) -> list[str]:
    verdict = "holds" if check.passed else "FAILS"
    return [f"{check.name}: {check.claim}", number(check.measured), relation(check), verdict, check.note]


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in table.rows)
    return f'<h3>{html.escape(table.title)}</h3><div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
