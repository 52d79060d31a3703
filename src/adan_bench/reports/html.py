"""The one writer of pages: comparisons, the paper's tables and the theory are the same kinds of parts in one look.

Every part is a string of HTML; text is escaped here and nowhere else. A page needs nothing but itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any


def page(title: str, heading: str, about: str, parts: Iterable[str], data: Mapping[str, Any] | None = None) -> str:
    """A whole page. Prose and tables are readable without scripts; with `data` the charts are drawn from it."""
    assets = resources.files("adan_bench.reports") / "assets"
    scripts = ""
    if data is not None:
        # "</" would end the script element early wherever a name contains it.
        payload = json.dumps(data, allow_nan=False).replace("</", "<\\/")
        script = (assets / "chart.js").read_text(encoding="utf-8")
        scripts = f'<script type="application/json" id="data">{payload}</script>\n<script>\n{script}</script>'
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>adan-bench: {escape(title)}</title><link rel="icon" href="data:,"><style>
{(assets / "style.css").read_text(encoding="utf-8")}</style></head><body>
<header><h1>{escape(heading)}</h1>{paragraph(about, "soft")}</header>
{body}
{scripts}</body></html>
"""


def section(title: str, *parts: str, anchor: str | None = None) -> str:
    name = "" if anchor is None else f' id="{escape(anchor)}"'
    body = "\n".join(part for part in parts if part)
    return f"<section{name}><h2>{escape(title)}</h2>\n{body}</section>"


def heading(text: str, level: int = 3) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(text)}</p>"


def items(lines: Sequence[str], kind: str = "soft") -> str:
    return f"<ul{_class(kind)}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    kinds: Sequence[str] = (),
    before: Sequence[str] = (),
    kind: str = "",
) -> str:
    """A table that scrolls where it is wide. kinds: of its rows; before: what stands before their first cells."""
    lines = []
    for i, row in enumerate(rows):
        cells = [escape(cell) for cell in row]
        if before:
            cells[0] = before[i] + cells[0]
        lines.append(f"<tr{_class(kinds[i] if kinds else '')}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table{_class(kind)}>{body}</table></div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in pairs)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def folded(summary: str, part: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{part}</details>"


def link(anchor: str, text: str) -> str:
    return f'<a href="#{escape(anchor)}">{escape(text)}</a>'


def swatch(light: str, dark: str, dash: str) -> str:
    """A piece of an optimizer's line, as the charts draw it."""
    line = f'<line x1="0" x2="24" y1="4" y2="4" stroke-width="3" stroke-dasharray="{dash}"/>'
    return f'<svg class="swatch" viewBox="0 0 24 8" style="--light:{light};--dark:{dark}">{line}</svg>'


def chart(kind: str, value: object) -> str:
    """A place for chart.js to draw in; kind: "curves", "rates" or "profile"."""
    return f'<div class="chart" data-{kind}="{value}"></div>'


def image(name: str, png: bytes) -> str:
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></p>'


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A table in Markdown; its first `left` columns are text."""
    lines = ["| " + " | ".join(head) + " |", "| --- " * left + "| ---: " * (len(head) - left) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def plain(value: Any) -> str:
    """A setting as text: betas as 0.9/0.99.

    >>> plain((0.9, 0.99)), plain(True), plain(1e-08), plain("8bit")
    ('0.9/0.99', 'yes', '1e-08', '8bit')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(plain(v) for v in value) if isinstance(value, (list, tuple)) else f"{value}"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
