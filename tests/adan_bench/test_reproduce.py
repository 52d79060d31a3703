"""`adan-bench reproduce` on made-up tables: which runs, what they share, what came out, and what the report says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen
from support.pools import inline_pools

from adan_bench import tables
from adan_bench.cli import paper as cli_tables
from adan_bench.records.store import read_run
from adan_bench.reports import paper as reproduction_report
from adan_bench.spec import RunConfig, RunRecord, UsageError
from adan_bench.studies import paper
from adan_bench.studies.paper import failures, figure_of, reproduce
from adan_bench.studies.plan import plan
from adan_bench.tables import Table, parse
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload, load_script

SCRIPT = '''
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

def regression(context):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 4, generator=g)
    y = x @ torch.randn(4, 1, generator=g)
    model = nn.Linear(4, 1)
    if context.init is not None:
        model.load_state_dict(context.weights())
    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()
    def evaluate(model):
        return {"share": 1 / (1 + loss(model, (x, y)).item()), "other": 7.0}
    note = "regression" + (" from weights" if context.init else "")
    return Task(model, shuffled([x, y], context.batch_size, context.seed), loss, evaluate, note=note)

kind = dict(metric="share", higher_is_better=True, smoke=Scale(0.5, 60, 16), paper=Scale(0.5, 600, 64))

@workload("plain", **kind)
def plain(context):
    """A regression."""
    return regression(context)

@workload("earlier", **kind)
def earlier(context):
    """What comes first."""
    return regression(context)

@workload("later", after="earlier", **kind)
def later(context):
    """What starts from its weights."""
    return regression(context)

@workload("broken", **kind)
def broken(context):
    """It fails."""
    raise RuntimeError("no luck")

@workload("packageless", **kind)
def packageless(context):
    """It needs what is not there."""
    import no_such_package

@workload("orphan", after="packageless", **kind)
def orphan(context):
    """What it starts from needs what is not there."""
    return regression(context)
'''

ADAN, ADAMW = {"head": "Adan", "optimizer": "adan"}, {"head": "AdamW", "optimizer": "adamw"}
EVERYWHERE: dict[str, Any] = {"smoke": {}, "small": {}, "paper": {"seeds": 2}}


Ran = tuple[dict[str, Any], Path, list[Table]]


def made_up(columns: list[dict[str, Any]], rows: list[dict[str, Any]], name: str = "made-up", **more: Any) -> Table:
    content = {
        "title": "Made up",
        "place": "Table 99",
        "label": "tab:x",
        "caption": "A caption.",
        "metric": "share, %",
        "higher_is_better": True,
        "percent": True,
        "columns": columns,
        "rows": [{"values": ["79.8*"] * len(columns), **row} for row in rows],
        "settings": [],
        "runs": EVERYWHERE,
        "marks": {"*": "said by others"},
        **more,
    }
    return parse(name, content)


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    load_script(str(path))
    return path


@pytest.fixture
def configs(script: Path) -> Callable[..., list[RunConfig]]:
    """The configurations that tables need, without a folder: planning touches none."""

    def make(*found: Table, scale: str = "smoke", **more: Any) -> list[RunConfig]:
        runs = plan(found, chosen(script=script, scale=scale, **more), Path("/nowhere")).runs
        return [run.config for run in runs.values()]

    return make


@pytest.fixture(scope="session")
def ran(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Everything that a table may hold, run once."""
    columns = [
        {"head": "whole", "workload": "plain"},
        {"head": "half", "workload": "plain", "budget": [1, 2]},
        {"head": "other number", "workload": "plain", "metric": "other"},
        {"head": "no such number", "workload": "plain", "metric": "colour"},
        {"head": "loss", "workload": "plain", "metric": "training loss", "higher_is_better": False},
        {"head": "tuned", "workload": "later", "before": [1, 2]},
        {"head": "broken", "workload": "broken"},
        {"head": "packageless", "workload": "packageless"},
        {"head": "orphan", "workload": "orphan"},
        {"head": "published only"},
    ]
    rows = [
        ADAN,
        {**ADAMW, "values": ["70.1", *["figure"] * 4, None, "1.0", "1.0", "1.0", "1.0"]},
        {"head": "wild", "optimizer": "sgd", "fixed": {"lr": 1e30}, "values": ["1.0", *[None] * 9]},
        {"head": "quoted", "optimizer": "adan", "study": False},
    ]
    parts = [
        ADAN,
        {"head": "restart", "optimizer": "adan", "restart": True},
        {"head": "decay of AdamW", "optimizer": "adan", "fixed": {"no_prox": True}},
    ]
    found = [made_up(columns, rows), made_up(columns[:1], parts, name="parts")]
    out = tmp_path_factory.mktemp("reproduction")
    with inline_pools():
        summary = reproduce(found, chosen(script=script), out)
    return summary, out, found


def cell(summary: dict[str, Any], row: str, column: str, table: int = 0) -> dict[str, Any]:
    (found,) = [c for c in summary["tables"][table]["cells"] if (c["row"], c["column"]) == (row, column)]
    return dict(found)


def test_what_came_out(ran: Ran) -> None:
    summary, out, _ = ran
    whole = cell(summary, "Adan", "whole")
    assert (whole["status"], whole["seeds"], whole["steps"], whole["data"]) == ("done", 1, 60, "regression")
    assert 0 < whole["values"][0] < 1
    assert whole["origin"] == "untuned defaults"
    assert cell(summary, "Adan", "half")["steps"] == 30
    assert cell(summary, "Adan", "other number")["values"] == [7.0]
    assert "reports no colour" in cell(summary, "Adan", "no such number")["why"]
    lines = read_run(next((out / "runs" / "plain").glob("adan-*/seed-0"))).curve("train", "loss")
    assert len(cell(summary, "Adan", "loss")["values"]) == 1
    assert lines
    assert cell(summary, "Adan", "broken")["status"] == "failed"
    assert cell(summary, "Adan", "packageless")["status"] == "absent"
    assert "no_such_package" in cell(summary, "Adan", "packageless")["why"]
    orphan = cell(summary, "Adan", "orphan")
    assert (orphan["status"], orphan["values"]) == ("absent", [])
    assert orphan["why"].startswith("packageless, which comes before it: ")
    assert cell(summary, "wild", "whole")["status"] == "diverged"
    assert not [c for c in summary["tables"][0]["cells"] if c["row"] == "quoted" or c["column"] == "published only"]
    assert json.loads((out / "tables.json").read_text())["tables"] == summary["tables"]
    assert {line.split(":")[2].split()[0] for line in failures(summary)} == {"plain", "RuntimeError"}


def test_runs_are_shared_by_content(ran: Ran) -> None:
    """Four numbers and two tables need one run of Adan on the whole budget, one of half of it, two of its variants."""
    summary, out, _ = ran
    assert cell(summary, "Adan", "whole", table=1)["values"] == cell(summary, "Adan", "whole")["values"]
    assert len(list((out / "runs" / "plain").glob("adan-*"))) == 4


def test_weights_are_handed_on(ran: Ran) -> None:
    summary, out, _ = ran
    (first,), (second,) = (list((out / "runs" / name).glob("*/seed-0")) for name in ("earlier", "later"))
    assert (first / "weights.pt").exists()
    assert read_run(second).config.init == first
    tuned = cell(summary, "Adan", "tuned")
    assert tuned["data"] == "regression from weights"
    assert (tuned["before"]["workload"], tuned["before"]["steps"]) == ("earlier", 60)


@pytest.mark.usefixtures("inline_pool")
def test_init_replaces_what_comes_before(ran: Ran, script: Path, tmp_path: Path) -> None:
    """Weights from elsewhere reach every run of a table; no run is made in their place, and the record names them."""
    _, out, _ = ran
    (first,) = (out / "runs" / "earlier").glob("*/seed-0")
    table = made_up([{"head": "tuned", "workload": "later"}], [ADAN])
    summary = reproduce([table], chosen(script=script, init=first), tmp_path)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["later"]
    (found,) = summary["tables"][0]["cells"]
    assert (found["status"], found["init"]) == ("done", str(first))
    assert found["data"] == "regression from weights"
    (section,) = reproduction_report.sections(summary, {table.name: table})
    assert f"from the weights of {first}" in section.settings[0][1]
    paths = [set(plan([table], chosen(script=script, init=init), tmp_path).runs) for init in (first, tmp_path)]
    assert not paths[0] & paths[1]


@pytest.mark.usefixtures("inline_pool")
def test_a_mean_of_columns(script: Path, tmp_path: Path) -> None:
    """Seed by seed over what the scale runs; where one of them is absent there is no mean."""
    columns = [
        {"head": "whole", "workload": "plain"},
        {"head": "half", "workload": "plain", "budget": [1, 2]},
        {"head": "not run", "workload": "broken"},
        {"head": "average", "mean": True},
    ]
    runs = {"smoke": {"columns": ["whole", "half", "average"], "seeds": 2}, "small": {}, "paper": {}}
    summary = reproduce([made_up(columns, [ADAN], runs=runs)], chosen(script=script), tmp_path / "out")
    whole, half, average = (cell(summary, "Adan", head) for head in ("whole", "half", "average"))
    assert average["values"] == pytest.approx(
        [(a + b) / 2 for a, b in zip(whole["values"], half["values"], strict=True)]
    )
    assert (average["seeds"], average["data"]) == (2, "the mean of whole, half")
    lacking = [columns[0], {"head": "lacking", "workload": "packageless"}, columns[-1]]
    table = made_up(lacking, [ADAN])
    summary = reproduce([table], chosen(script=script), tmp_path / "other")
    assert cell(summary, "Adan", "average")["status"] == "absent"
    assert cell(summary, "Adan", "average")["why"].startswith("lacking: packageless needs the package")


def test_curves_with_bands(script: Path, tmp_path: Path) -> None:
    columns = [
        {"head": "share", "workload": "plain"},
        {"head": "training", "workload": "plain", "metric": "training loss"},
    ]
    table = made_up(
        columns, [{**ADAN, "values": ["figure"] * 2}], curves=True, runs={**EVERYWHERE, "smoke": {"seeds": 3}}
    )
    summary = reproduce([table], chosen(script=script, jobs=2), tmp_path)
    for head, kind, key in (("share", "eval", "share"), ("training", "train", "loss")):
        records = [read_run(path) for path in sorted((tmp_path / "runs" / "plain").glob("*/seed-*"))]
        expected = [[[step, value] for step, _, value in record.curve(kind, key)] for record in records]
        assert cell(summary, "Adan", head)["curves"] == expected
        assert all(len(curve) > 3 for curve in expected)
    page = reproduction_report.write(summary, tmp_path, {table.name: table})
    assert (tmp_path / "table-99.png").read_bytes()[:4] == b"\x89PNG"
    assert "data:image/png;base64" in page.read_text()
    assert "](table-99.png)" in (tmp_path / "tables.md").read_text()


def test_report(ran: Ran) -> None:
    summary, out, found = ran
    page = reproduction_report.write(summary, out, {table.name: table for table in found})
    first, _ = reproduction_report.sections(summary, {table.name: table for table in found})
    lines = {(line.cells[0], line.cells[1]): line.cells[2:] for line in first.lines}
    value = 100 * cell(summary, "Adan", "whole")["values"][0]
    assert lines["whole", "Adan"] == ["79.8*", f"{value:.2f} (n=1)", "1/2", lines["whole", "Adan"][3]]
    assert lines["whole", "quoted"][1] == "not run at this scale"
    assert lines["packageless", "Adan"][1].startswith("absent (")
    assert "cells of this scale have a result. Pairs of rows that differ in both: 1;" in first.conclusion
    assert "With 1 seed an order is no evidence" in first.conclusion
    assert "Nobody tuned these settings for this scale: this is not a fair comparison." in first.how
    assert any("regression; 5 parameters" in line for line in first.how)
    assert any("no_such_package" in note for note in first.notes)
    text = (out / "tables.md").read_text()
    for content in (page.read_text(), text):
        assert "79.8*" in content
        assert "said by others" in content
        assert "Scale smoke" in content


def test_what_the_report_concludes() -> None:
    """Orders are counted pair by pair, never across ours and the paper's; a grid has its variance."""
    rows = [
        {"head": f"{name} {i}", "optimizer": name, "values": [value]}
        for name, values in (("adan", ("3.0", "2.0")), ("adamw", ("1.0*",)))
        for i, value in enumerate(values)
    ]
    table = made_up(
        [{"head": "grid", "workload": "plain"}], rows, higher_is_better=False, percent=False, variances={"adan": "9e-1"}
    )
    ours = {"adan 0": [30.0, 31.0, 32.0], "adan 1": [33.0, 35.0, 34.0], "adamw 0": [1.0, 1.5, 2.0]}
    common = {"column": "grid", "workload": "plain", "status": "done", "why": "", "data": "made up", "seeds": 3}
    cells = [
        {**common, "row": head, "optimizer": head.split()[0], "values": values, "origin": origin}
        for (head, values), origin in zip(
            ours.items(), ["defaults tuned in 8 trials"] * 2 + ["untuned defaults"], strict=True
        )
    ]
    summary = {"scale": "small", "tables": [{"name": "made-up", "cells": cells}]}
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert section.conclusion == (
        "3 of 3 cells of this scale have a result. Pairs of rows that differ in both: 3; in the paper's order: 2. "
        "Variance over the 2 settings of adan: 2.25e+00; paper: 9e-1."
    )
    assert section.lines[0].cells == ["grid", "adan 0", "3.0", "31.00 ± 2.48 (n=3)", "3/3", "2/3"]
    assert "Some settings are tuned and others are not: this is not a fair comparison." in section.how
    for cell_ in cells:
        cell_["tiny"] = True
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert "tiny versions: their times say nothing" in section.conclusion


def test_resume(ran: Ran, script: Path, tmp_path: Path) -> None:
    """What has ended is taken as it is, by another folder's copy too."""
    summary, out, (_, parts) = ran
    shutil.copytree(out, tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*.json*")}
    with pytest.raises(UsageError, match="add --resume"):
        reproduce([parts], chosen(script=script), tmp_path / "out")
    again = reproduce([parts], chosen(script=script), tmp_path / "out", resume=True)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert [c["values"] for c in again["tables"][0]["cells"]] == [c["values"] for c in summary["tables"][1]["cells"]]


def test_a_plan_is_pure_and_in_stages(script: Path, tmp_path: Path) -> None:
    """Pre-training and pilots first, then what starts from them; the folder is not touched."""
    rows = [ADAN, {"head": "restart", "optimizer": "adan", "restart": True}]
    found = plan([made_up([{"head": "tuned", "workload": "later"}], rows)], chosen(script=script), tmp_path / "out")
    names = [[(run.config.workload, run.config.role) for run in stage] for stage in found.stages()]
    assert names == [
        [("earlier", "run")],
        [("later", "run"), ("later", "pilot")],
        [("later", "run")],
    ]
    pilot = next(run.config for run in found.runs.values() if run.config.role == "pilot")
    assert (pilot.steps, pilot.stop_after, pilot.seed) == (60, 10, 1000)
    assert not (tmp_path / "out").exists()
    assert found == plan([cell.table for cell in found.cells][:1], chosen(script=script), tmp_path / "out")


def test_paper_scale_takes_what_the_paper_states(configs: Callable[..., list[RunConfig]]) -> None:
    settings = [
        {"optimizer": "adan", "settings": {"lr": 0.5, "betas": [0.9, 0.8, 0.7]}, "source": "here", "batch_size": 32},
        {"optimizer": "adan", "column": "whole", "settings": {"lr": 0.25}, "source": "there", "warmup": [20, 100]},
        {"optimizer": "adan", "workload": "earlier", "settings": {"lr": 0.125}, "source": "before"},
    ]
    later = {"head": "tuned", "workload": "later", "budget": [1, 6], "before": [1, 2]}
    columns = [{"head": "whole", "workload": "plain"}, later]
    found = configs(made_up(columns, [ADAN, ADAMW], settings=settings), scale="paper")
    by = {(c.workload, c.optimizer): c for c in found if c.seed == 0}
    assert len(found) == 2 * len(by) == 12
    plain = by["plain", "adan"]
    assert (plain.settings["lr"], plain.settings["betas"]) == (0.25, [0.9, 0.8, 0.7])
    assert (plain.batch_size, plain.steps, plain.warmup) == (32, 1200, 0.2)  # half the batch, twice the steps
    assert plain.origin == "here; there"
    earlier = by["earlier", "adan"]
    assert (earlier.settings["lr"], earlier.origin, earlier.batch_size) == (0.125, "before", 64)
    assert (earlier.steps, by["later", "adan"].steps) == (300, 200)
    assert by["plain", "adamw"].origin == "guess: lr; untuned defaults"
    assert (by["plain", "adamw"].batch_size, by["plain", "adamw"].warmup) == (64, 0.05)


def test_schedules_at_paper_scale(configs: Callable[..., list[RunConfig]]) -> None:
    """A table's schedule is for all its rows; a warm-up is so many epochs, however long the run."""
    columns = [{"head": str(epochs), "workload": "plain", "budget": [epochs, 300]} for epochs in (100, 300)]
    stated = [{"optimizer": "adan", "settings": {"lr": 0.5}, "source": "here", "warmup": [5, 300]}]
    table = made_up(columns, [ADAN], settings=stated)
    for scale, shares in (("paper", [0.05, 5 / 300]), ("smoke", [0.05, 0.05])):
        found = configs(table, scale=scale)
        assert [c.warmup for c in found if c.seed == 0] == pytest.approx(shares)
        assert {c.schedule for c in found} == {"cosine"}
    table = made_up(columns, [ADAN, ADAMW], settings=stated, schedule="step", warmup=[0, 1])
    found = configs(table, scale="paper")
    assert {c.schedule for c in found} == {"step"}
    assert {c.warmup for c in found if c.optimizer == "adamw"} == {0.0}
    assert [c.warmup for c in found if c.optimizer == "adan" and c.seed == 0] == pytest.approx([0.05, 5 / 300])


def test_a_recipe_reaches_the_runs(configs: Callable[..., list[RunConfig]]) -> None:
    """Lowest rate, cooldown, clipping and average of weights; SAM has the epochs of the others, not their gradients."""
    columns = [{"head": "100", "workload": "plain", "budget": [100, 300]}]
    stated = [
        {
            "optimizer": name,
            "settings": {"lr": 0.5},
            "source": "here",
            "guess": "lr",
            "schedule": "full-cosine",
            "warmup": [60, 300],
            "cooldown": [10, 300],
            "min_lr": 0.005,
            "clip": 0,
            "ema": 0.99,
        }
        for name in ("adan", "sam")
    ]
    sam = {"head": "SAM", "optimizer": "sam"}
    found = [c for c in configs(made_up(columns, [ADAN, sam], settings=stated), scale="paper") if c.seed == 0]
    for config, passes in zip(found, (1, 2), strict=True):
        assert config.steps == 220 * passes
        assert (config.schedule, config.clip, config.ema) == ("full-cosine", 0, 0.99)
        assert (config.warmup, config.cooldown, config.floor) == pytest.approx((60 / 110, 10 / 110, 0.01))
        assert config.origin == "guess: lr; here"
    (smoke,) = (c for c in configs(made_up(columns, [ADAN], settings=stated)) if c.seed == 0)
    assert (smoke.schedule, smoke.clip, smoke.ema, smoke.floor, smoke.cooldown) == ("cosine", -1, 0, 0, 0)
    with pytest.raises(UsageError, match="plain has no option 'repeats'; it has: none"):
        configure(get_workload("plain", "paper"), get_optimizer("adan"), replace(found[0], training={"repeats": 3}))


def test_the_reported_evaluation(script: Path, tmp_path: Path) -> None:
    """At paper scale a column may choose an evaluation as the published code does; elsewhere it is the last."""
    column = {"head": "a", "workload": "plain", "metric": "test", "chosen_by": "valid"}
    table = made_up([column], [ADAN])
    (found,) = plan([table], chosen(script=script), tmp_path).cells
    common = {"kind": "eval", "seconds": 0.0}
    lines = [{**common, "step": 1, "valid": 9.0, "test": 1.0}, {**common, "step": 2, "valid": 5.0, "test": 2.0}]
    record = RunRecord(tmp_path, RunConfig(scale="paper"), {}, {}, {}, lines, {"final": lines[-1]})
    assert table.higher_is_better
    assert figure_of(record, "test", found) == 1
    assert figure_of(replace(record, config=RunConfig()), "test", found) == 2


def test_accumulate_reaches_every_run(
    configs: Callable[..., list[RunConfig]], monkeypatch: pytest.MonkeyPatch, bench: Any, tmp_path: Path
) -> None:
    seen: list[RunConfig] = []

    def stop(tables: Any, chosen: RunConfig, *_: Any) -> None:
        seen.append(chosen)
        raise UsageError("enough")

    monkeypatch.setattr(paper, "reproduce", stop)
    assert bench("reproduce", "cnn", "--accumulate", "4", "--out", str(tmp_path / "x"))[0] == 2
    assert [choice.accumulate for choice in seen] == [4]
    found = configs(made_up([{"head": "a", "workload": "plain"}], [ADAN]), accumulate=4)
    assert {c.accumulate for c in found} == {4}
    code, _, error = bench("reproduce", "cnn", "--accumulate", "0")
    assert code == 2
    assert "--accumulate" in error


def test_batch_sizes_follow_the_square_root_rule(configs: Callable[..., list[RunConfig]]) -> None:
    columns = [
        {"head": size, "workload": "plain", "batch_size": 64 * n, "batch_factor": n} for size, n in (("a", 1), ("b", 4))
    ]
    for scale, batch, steps in (("smoke", 16, 60), ("paper", 64, 600)):
        small, large = [c for c in configs(made_up(columns, [ADAMW]), scale=scale) if c.seed == 0]
        assert (small.batch_size, small.steps, large.batch_size, large.steps) == (batch, steps, 4 * batch, steps // 4)
        assert large.settings["lr"] == 2 * small.settings["lr"]
        assert f"lr × √({4 * batch}/{batch})" in large.origin


def test_the_longest_run_has_the_budget_at_smaller_scales(configs: Callable[..., list[RunConfig]]) -> None:
    columns = [{"head": str(n), "workload": "plain", "budget": [n, 10]} for n in (3, 50, 100)]
    for scale, steps in (("smoke", [20, 30, 60]), ("paper", [180, 3000, 6000])):
        assert [c.steps for c in configs(made_up(columns, [ADAN]), scale=scale) if c.seed == 0] == steps


def test_restarts_and_components(ran: Ran) -> None:
    """The radius comes from a pilot run, which is a run like any other and no evidence."""
    summary, out, _ = ran
    settings = {c["row"]: c["settings"] for c in summary["tables"][1]["cells"]}
    assert all(len(c["values"]) == 1 for c in summary["tables"][1]["cells"])
    (pilot,) = (out / "pilots" / "plain").glob("adan-*/seed-1000")
    record = read_run(pilot)
    assert (record.config.role, record.config.settings["restart"]) == ("pilot", {"probe": True})
    assert record.result is not None
    assert (record.result["step"], record.result["restarts"]["count"]) == (10, 0)
    radius = settings["restart"]["restart"]["radius"]
    assert radius == record.result["restarts"]["radius"] > 0
    assert settings["decay of AdamW"]["no_prox"] is True
    assert "restart" not in settings["Adan"]
    (restarted,) = [
        found
        for path in (out / "runs" / "plain").glob("adan-*/seed-0")
        if "restart" in (found := read_run(path)).config.settings
    ]
    assert restarted.result is not None
    assert restarted.result["restarts"]["count"] >= 1


def test_command(bench: Callable[..., Any], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on a table of a workload that needs data: absent, which is no failure; then one that fails."""
    gone = made_up([{"head": "whole", "workload": "cifar-resnet34"}], [ADAN], name="gone")
    lost = made_up([{"head": "whole", "workload": "no-such-workload"}], [ADAN], name="lost")
    for module in (tables, reproduction_report):
        monkeypatch.setattr(module, "tables", lambda: {"gone": gone, "lost": lost})
    code, out, err = bench("reproduce", "gone", "lost", "--scale", "paper", "--out", tmp_path / "a")
    assert code == 0, err
    assert "absent (1)" in out
    assert "79.8*" in out
    assert "toy" not in out
    assert "toy" not in (tmp_path / "a" / "tables.html").read_text()
    for scale, kind in (("smoke", "toy models and toy data"), ("small", "smaller models and data")):
        _, out, _ = bench("reproduce", "lost", "--scale", scale, "--out", tmp_path / scale)
        page, markdown = ((tmp_path / scale / f"tables.{suffix}").read_text() for suffix in ("html", "md"))
        assert f"<h1>The paper&#x27;s tables, run again ({kind})</h1>" in page
        assert markdown.startswith(f"# The paper's tables, run again ({kind})")
        assert kind in " ".join(out.split())
    code, _, err = bench("reproduce", "gone", "--scale", "huge", "--out", tmp_path / "b")
    assert (code, err) == (2, "adan-bench: --scale huge: no such scale; there are: smoke, small, paper\n")
    code, _, err = bench("reproduce", "gone", "--data", tmp_path / "nowhere", "--out", tmp_path / "b")
    assert code == 2
    assert "no such folder" in err


def test_list_tables(bench: Callable[..., Any], tmp_path: Path) -> None:
    code, out, _ = bench("list", "tables", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["name"] for row in rows} == set(tables.tables())
    cells = [{"values": [1.0]}, {"values": []}]
    summary = {"scale": "smoke", "tables": [{"name": "cnn", "cells": cells}]}
    (tmp_path / "two-cores.json").write_text(json.dumps(summary))
    state = {row["name"]: row["run here"] for row in cli_tables.rows(tmp_path)}
    assert state["cnn"] == "smoke 1/2: results/reproduce/two-cores.json"
    assert state["ppo"] == "not yet"
