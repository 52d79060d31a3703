"""The one writer of reports: comparisons, the paper's tables and the theory are the same kinds of parts in one look.

Every part is both HTML and Markdown, so that a page and the text beside it are described once. Text is escaped here and
nowhere else. A page needs nothing but itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from adan_bench.records.store import write_bytes

# One look per optimizer, on the page and in the figures: Okabe and Ito's colors, which color-blind readers can tell
# apart, then dashes from the ninth on.
# (on white, on black): black turns white, and the yellow is darkened on white, where #F0E442 has a contrast of 1.3.
COLORS = (
    ("#D55E00", "#E8752A"),
    ("#0072B2", "#3E9BD6"),
    ("#56B4E9", "#8FD0F5"),
    ("#009E73", "#26BF94"),
    ("#CC79A7", "#DB97BC"),
    ("#000000", "#FFFFFF"),
    ("#E69F00", "#F0B429"),
    ("#A89F00", "#F0E442"),
)
DASHES = ("", "6 3", "2 3", "8 3 2 3")
FIXED = ("adan", "adamw", "adam", "sgd-momentum", "lamb")  # the same color in every report


class PagePart(NamedTuple):
    """A piece of a report, or all of it; empty where the page or the text does without."""

    html: str = ""
    markdown: str = ""

    def write(self, page: Path) -> Path:
        """Write the page, and the Markdown beside it where there is some; the path of the page."""
        write_bytes(page, self.html.encode())
        if self.markdown:
            write_bytes(page.with_suffix(".md"), self.markdown.encode())
        return page


def page(title: str, about: str, parts: Iterable[PagePart], data: Mapping[str, Any] | None = None) -> PagePart:
    """A whole report. Prose and tables are readable without scripts; with `data` the charts are drawn from it."""
    assets = resources.files("adan_bench.reports") / "assets"
    scripts = ""
    if data is not None:
        # "</" would end the script element early wherever a name contains it.
        payload = json.dumps(data, allow_nan=False).replace("</", "<\\/")
        script = (assets / "chart.js").read_text(encoding="utf-8")
        scripts = f'<script type="application/json" id="data">{payload}</script>\n<script>\n{script}</script>'
    intro, body = paragraph(about, "soft"), _joined(parts)
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>adan-bench: {escape(title)}</title><link rel="icon" href="data:,"><style>
{(assets / "style.css").read_text(encoding="utf-8")}</style></head><body>
<header><h1>{escape(title)}</h1>{intro.html}</header>
{body.html}
{scripts}</body></html>
"""
    return PagePart(text, f"# {title}\n\n{intro.markdown}\n\n{body.markdown}\n")


def _joined(parts: Iterable[PagePart]) -> PagePart:
    parts = list(parts)
    return PagePart("\n".join(p.html for p in parts if p.html), "\n\n".join(p.markdown for p in parts if p.markdown))


def section(title: str, *parts: PagePart, anchor: str | None = None) -> PagePart:
    name = "" if anchor is None else f' id="{escape(anchor)}"'
    body = _joined(parts)
    return PagePart(f"<section{name}><h2>{escape(title)}</h2>\n{body.html}</section>", f"## {title}\n\n{body.markdown}")


def heading(text: str) -> PagePart:
    return PagePart(f"<h3>{escape(text)}</h3>", f"### {text}")


def paragraph(text: str, kind: str = "") -> PagePart:
    return PagePart(f"<p{_class(kind)}>{_inline(text)}</p>", f"**{text}**" if kind == "warning" else text)


def items(lines: Sequence[str], kind: str = "soft") -> PagePart:
    if not lines:
        return PagePart()
    html = "".join(f"<li>{_inline(line)}</li>" for line in lines)
    return PagePart(f'<ul class="{kind}">{html}</ul>', "\n".join(f"- {line}" for line in lines))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    kinds: Sequence[str] = (),
    before: Sequence[str] = (),
    kind: str = "",
) -> PagePart:
    """A table that scrolls where it is wide; its first column is text, of the kind "text" its second one too.

    kinds: of its rows, of which "soft" ones are on the page only; before: HTML that stands before their first cells.
    """
    lines, left = [], 2 if kind == "text" else 1
    texts: list[Sequence[str]] = []
    for i, row in enumerate(rows):
        cells = [cell if column < left else _parts(cell) for column, cell in enumerate(map(escape, row))]
        if before:
            cells[0] = before[i] + cells[0]
        row_kind = kinds[i] if kinds else ""
        lines.append(f"<tr{_class(row_kind)}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        if row_kind != "soft":
            texts.append(row)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    markdown = markdown_table(head, texts, left) if texts else ""
    return PagePart(f'<div class="scroll"><table{_class(kind)}>{body}</table></div>', markdown)


def _parts(cell: str) -> str:
    """A cell whose line breaks only before brackets and after semicolons.

    >>> _parts("0.95 ± 0.02 (n=3)")
    '<span>0.95 ± 0.02</span> <span>(n=3)</span>'
    """
    return " ".join(f"<span>{part}</span>" for part in re.split(r" (?=[\[(])|(?<=;) ", cell)) if " " in cell else cell


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; its first `left` columns are text, the others numbers."""
    ruled = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruled, *rows))


def facts(pairs: Iterable[tuple[str, str]]) -> PagePart:
    pairs = list(pairs)
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in pairs)
    html = f'<table class="facts"><tbody>{rows}</tbody></table>'
    return PagePart(html, "\n".join(f"- {key}: {value}" for key, value in pairs))


def folded(summary: str, part: PagePart) -> PagePart:
    return part._replace(html=f"<details><summary>{escape(summary)}</summary>{part.html}</details>")


def link(anchor: str, text: str) -> str:
    return f'<a href="#{escape(anchor)}">{escape(text)}</a>'


def style_of(name: str, names: Sequence[str]) -> dict[str, str]:
    """Colors and dashes of one of the names of a report."""
    order = [n for n in FIXED if n in names] if len(names) > len(COLORS) else list(FIXED)
    order += [n for n in names if n not in order]
    index = order.index(name)
    light, dark = COLORS[index % len(COLORS)]
    return {"light": light, "dark": dark, "dash": DASHES[index // len(COLORS) % len(DASHES)]}


def swatch(light: str, dark: str, dash: str) -> str:
    """A piece of an optimizer's line, as the charts draw it."""
    line = f'<line x1="0" x2="24" y1="4" y2="4" stroke-width="3" stroke-dasharray="{dash}"/>'
    return f'<svg class="swatch" viewBox="0 0 24 8" style="--light:{light};--dark:{dark}">{line}</svg>'


def chart(kind: str, value: object) -> PagePart:
    """A place for chart.js to draw in; kind: "curves", "rates" or "profile"."""
    return PagePart(f'<div class="chart" data-{kind}="{value}"></div>')


def image(name: str, png: bytes, file: str) -> PagePart:
    """A figure: inside the page, and in Markdown the file beside it."""
    html = f'<p><img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></p>'
    return PagePart(html, f"![{name}]({file})")


def plain(value: Any) -> str:
    """A setting as text: betas as 0.9/0.99.

    >>> plain((0.9, 0.99)), plain(True), plain(1e-08), plain("8bit")
    ('0.9/0.99', 'yes', '1e-08', '8bit')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(plain(v) for v in value) if isinstance(value, (list, tuple)) else f"{value}"


def settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {plain(value)}" for key, value in values.items())


def _inline(text: str) -> str:
    """Text in HTML, with code where Markdown has it.

    >>> _inline("`a < b`, or not")
    '<code>a &lt; b</code>, or not'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
