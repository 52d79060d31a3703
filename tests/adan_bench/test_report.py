"""The report in a real browser, and in Markdown and PNG."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import chromium
from support.learning import chosen
from support.pools import inline_pools, tune

from adan_bench.config import Origin
from adan_bench.records.stats import summarize
from adan_bench.records.store import read_runs
from adan_bench.reports import html, paper, theory
from adan_bench.reports.comparison import write_report, write_tuning
from adan_bench.reports.conclusions import caution, tuning
from adan_bench.reports.html import style_of
from adan_bench.studies.arms import make
from adan_bench.studies.competitors import competitors
from adan_bench.theory import check
from adan_bench.training.optimizers import SPECS

OPTIMIZERS = ["adan", "adamw", "sgd"]


@pytest.fixture(autouse=True)
def blank_figures() -> None:
    """Here figures are drawn."""


@pytest.fixture(scope="session")
def page(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison with tuning and three seeds at two batch sizes; sgd diverges at one of them."""
    out = tmp_path_factory.mktemp("report")
    who, options = competitors(",".join(OPTIMIZERS)), chosen(script=tiny, steps=40)
    with inline_pools():
        arms = tune(["tiny"], who, options, out, 4, batch_sizes=[16, 32])
        diverging = arms["tiny-b16", "sgd"]
        diverging.base = replace(diverging.base, settings={"lr": 1e30})
        for arm in arms.values():
            arm.seeds = range(3)
        make([[*arms.values()]], options, out, resume=True)
    return write_report(read_runs(out)[0], out)[0]


def test_markdown_and_figures(page: Path) -> None:
    text = page.with_suffix(".md").read_text(encoding="utf-8")
    for name in OPTIMIZERS:
        assert f"| {name} |" in text
    assert "3 of 3 diverged" in text
    assert "1 workload, 3 optimizers, 18 runs in 2 tables, 24 tuning trials." in text
    assert text.count("best: the best evaluation of a run, mean over seeds. Steps and seconds to target") == 1
    assert "validation" not in text
    assert "shaded" not in text
    figures = list(page.parent.glob("report-*.png"))
    assert len(figures) == 2
    for figure in figures:
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert figure.name in text


def test_page_is_self_contained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert len(text) < 500_000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_chromium(browser: chromium.Browser, page: Path, width: int, dark: bool) -> None:
    """No console errors, no requests, every table and every curve there, nothing wider than the screen."""
    browser.open(page.as_uri(), width, 900, dark)
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    tables = browser.evaluate(
        "[...document.querySelectorAll('.scroll tbody')].map(t => [...t.rows].map(r => r.cells[0].innerText))"
    )
    assert [sorted(rows) for rows in tables] == [sorted(OPTIMIZERS)] * 2

    def curves() -> list[int]:
        charts = "[...document.querySelectorAll('.chart')]"
        drawn = "c => [...c.querySelectorAll('path.curve')].filter(p => p.getTotalLength() > 0).length"
        found: list[int] = browser.evaluate(f"{charts}.map({drawn})")
        return found

    # curves and learning rates of both workloads, then the profile; sgd diverged on one of them
    whole = curves()
    assert len(whole) == 5
    assert whole[0] == 2
    assert whole[2] == 3
    assert min(whole) >= 2
    for label, charts in (("training loss", 2), ("by second", 2), ("log", 4)):
        assert press(browser, label) == charts
        assert min(curves()) >= 2, label
    browser.evaluate("document.querySelector('.legend button').click()")
    assert curves()[0] == 1 or curves()[0] == whole[0] - 1
    browser.evaluate("document.querySelector('.legend button').click()")
    hover = (
        "(() => { const s = document.querySelector('.plot > svg'), b = s.getBoundingClientRect();"
        "s.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + b.width / 2, clientY: b.top + 50}));"
        "return document.querySelector('.tip').innerText; })()"
    )
    assert "adan" in browser.evaluate(hover)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != dark

    assert browser.of("Runtime.exceptionThrown", "Log.entryAdded") == []
    assert [call for call in browser.of("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")] == []
    requested = {event["request"]["url"] for event in browser.of("Network.requestWillBeSent")}
    assert requested - {page.as_uri(), "data:,"} == set()
    if folder := os.environ.get("ADAN_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"report-{width}-{'dark' if dark else 'light'}.png")


def test_on_paper(browser: chromium.Browser, page: Path) -> None:
    """Printed: no buttons to press, the settings unfolded, swatches in color, nothing cut off."""
    browser.open(page.as_uri(), 1280, 900)
    shown = "document.querySelector('details .facts').checkVisibility()"
    assert not browser.evaluate(shown)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(shown)
    assert browser.evaluate("document.querySelector('.controls').offsetHeight") == 0
    assert browser.evaluate("document.querySelector('summary').offsetHeight") == 0
    assert browser.evaluate("getComputedStyle(document.querySelector('.swatch')).printColorAdjust") == "exact"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    browser.call("Emulation.setEmulatedMedia", media="")


def test_a_trial_without_a_result_is_a_cross(browser: chromium.Browser, page: Path, tmp_path: Path) -> None:
    """Diverged trials stand on the chart of learning rates, and its legend says what they are."""
    names = ("adan", "adamw")
    records = [r for r in read_runs(page.parent)[0] if r.config.name in names]
    trials = [r for r in records if r.config.role == "tune" and r.config.batch_size == 16]
    for name in names:
        own = [i for i, r in enumerate(trials) if r.config.name == name]
        i = max(own, key=lambda i: trials[i].config.settings["lr"])
        trials[i] = replace(trials[i], result={**(trials[i].result or {}), "status": "diverged"})
    found, _ = write_tuning(trials, tmp_path)
    browser.open(found.as_uri(), 1280, 900)
    assert browser.evaluate("document.querySelectorAll('path.lost').length") == 2
    inside = (
        "(() => { const box = document.querySelector('.plot > svg').getBoundingClientRect();"
        "return [...document.querySelectorAll('path.lost')].map(p => p.getBoundingClientRect())"
        ".every(p => p.left >= box.left && p.right <= box.right && p.top >= box.top && p.bottom <= box.bottom); })()"
    )
    assert browser.evaluate(inside)
    assert "no result: diverged or failed" in browser.evaluate("document.querySelector('.legend').innerText")


@pytest.mark.parametrize("width", [1280, 400])
def test_labels_stand_inside_their_charts(browser: chromium.Browser, page: Path, width: int) -> None:
    browser.open(page.as_uri(), width, 900)
    outside = browser.evaluate(
        "[...document.querySelectorAll('.plot > svg text')].filter(t => { const a = t.getBoundingClientRect(),"
        "b = t.ownerSVGElement.getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1; })"
        ".map(t => t.textContent)"
    )
    assert outside == []


def test_no_axis_goes_beyond_what_a_metric_can_be(browser: chromium.Browser, page: Path) -> None:
    """Neither a tick above an accuracy of 1 nor one below a loss of 0, though all trials are as good as that."""
    browser.open(page.as_uri(), 1280, 900)
    for value, unthinkable in ((1, "1.02"), (0, "-0.5")):
        view = "{label: 'metric', axes: [{index: 0, title: 'lr'}], target: null, series: [{name: 'adan', color: 'red',"
        view += f"lines: [[[0, 0, {value}], [1, 1, {value}]]]}}]}}"
        new = f"const host = document.createElement('div'); document.body.append(host); new Chart(host, [{view}])"
        texts = f"(() => {{ {new}; return [...host.querySelectorAll('text')].map(t => t.textContent); }})()"
        ticks = browser.evaluate(texts)
        assert str(value) in ticks
        assert unthinkable not in ticks


def test_text_is_code_where_markdown_has_it() -> None:
    assert "<p><code>a &lt; b</code></p>" in html.paragraph("`a < b`").html
    assert html.items(["`a`"]).html.count("<code>") == 1


@pytest.mark.parametrize("kind", ["tune", "reproduce", "theory"])
def test_no_page_is_wider_than_a_phone(browser: chromium.Browser, page: Path, tmp_path: Path, kind: str) -> None:
    """A word of any length, such as a path or a claim, does not push the page beyond 400 px."""
    if kind == "tune":
        found, _ = write_tuning(read_runs(page.parent)[0], tmp_path)
    elif kind == "reproduce":
        record = Path(__file__).parents[2] / "results" / "reproduce" / "smoke.json"
        found = paper.write(json.loads(record.read_text(encoding="utf-8")), tmp_path)
    else:
        checks = [check.Check("a check", "a claim of many words " * 9 + "x" * 80, 1.0, 2.0)]
        found = theory.write([check.Chapter("complexity", checks)], tmp_path)
    browser.open(found.as_uri(), 400, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400


def test_eighteen_optimizers_look_different() -> None:
    names = list(SPECS)
    assert len(names) >= 18
    looks = [tuple(style_of(name, names).values()) for name in names]
    assert len(set(looks)) == len(names)


def press(browser: chromium.Browser, label: str) -> int:
    """Press the button of that name in every chart that has it; how many that are."""
    pressed: int = browser.evaluate(
        "(l => { const b = [...document.querySelectorAll('.group button')].filter(b => b.innerText === l);"
        f"b.forEach(x => x.click()); return b.length; }})({json.dumps(label)})"
    )
    return pressed


def test_a_folder_that_cannot_be_written_to(bench: Any, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    assert f"{page.parent}: the report cannot be written there; give --out DIR" in bench.refused("report", page.parent)


def test_trials_of_an_unfair_comparison_are_not_called_equal(page: Path) -> None:
    records, every = read_runs(page.parent)[0], "Every optimizer had 4 tuning trials"
    assert every in tuning(summarize(records))
    before = Origin(source="found before")
    other = [replace(r, config=replace(r.config, origin=before)) if "adan" in str(r.path) else r for r in records]
    assert "not a fair comparison" in caution(summarize(other))
    assert every not in tuning(summarize(other))
