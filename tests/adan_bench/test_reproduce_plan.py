"""Which runs `adan-bench reproduce` plans for a table, at every scale, and with which settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen
from support.made_up_tables import ADAMW, ADAN, made_up

from adan_bench.config import Origin, RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.reports.conclusions import said
from adan_bench.studies import paper
from adan_bench.studies.paper import figure_of, missing, present
from adan_bench.studies.plan import check_only, plan
from adan_bench.tables import PaperTable
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload


@pytest.fixture
def configs(regressions: Path) -> Callable[..., list[RunConfig]]:
    """The configurations that tables need, without a folder: planning touches none."""

    def make(*found: PaperTable, scale: str = "smoke", **more: Any) -> list[RunConfig]:
        return [*plan(found, chosen(script=regressions, scale=scale, **more), Path("/nowhere")).runs.values()]

    return make


def test_a_plan_is_pure_and_in_order(regressions: Path, tmp_path: Path) -> None:
    """Every run stands after those that it waits for, pre-training and pilots; the folder is not touched."""
    rows = [ADAN, {"head": "restart", "optimizer": "adan", "restart": True}]
    found = plan(
        [made_up([{"head": "tuned", "workload": "later"}], rows)], chosen(script=regressions), tmp_path / "out"
    )
    paths = list(found.runs)
    names = [(config.workload, config.role) for config in found.runs.values()]
    assert names == [("earlier", "run"), ("later", "run"), ("later", "pilot"), ("later", "run")]
    waits = [[paths.index(path) for path in arm.waits_for(arm.seeds[0])] for arm in found.arms.values()]
    assert waits == [[], [0], [0], [0, 2]]
    pilot = next(config for config in found.runs.values() if config.role == "pilot")
    assert (pilot.steps, pilot.stop_after, pilot.seed) == (60, 10, 1000)
    assert not (tmp_path / "out").exists()
    again = plan([cell.table for cell in found.cells][:1], chosen(script=regressions), tmp_path / "out")
    assert found.runs == again.runs


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
    assert plain.origin == Origin(kind="published", source="here; there")
    earlier = by["earlier", "adan"]
    assert (earlier.settings["lr"], earlier.origin.source, earlier.batch_size) == (0.125, "before", 64)
    assert (earlier.steps, by["later", "adan"].steps) == (300, 200)
    assert by["plain", "adamw"].origin == Origin(kind="untuned", guesses=("lr",))
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
    table = made_up(columns, [ADAN, ADAMW], settings=stated, run={"schedule": "step", "warmup": [0, 1]})
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
        assert config.origin == Origin(kind="published", source="here", guesses=("lr",))
    (smoke,) = (c for c in configs(made_up(columns, [ADAN], settings=stated)) if c.seed == 0)
    assert (smoke.schedule, smoke.clip, smoke.ema, smoke.floor, smoke.cooldown) == ("cosine", -1, 0, 0, 0)
    with pytest.raises(UsageError, match="plain has no option 'repeats'; it has: none"):
        configure(get_workload("plain", "paper"), get_optimizer("adan"), replace(found[0], training={"repeats": 3}))


def test_the_reported_evaluation(regressions: Path, tmp_path: Path) -> None:
    """At paper scale a column may choose an evaluation as the published code does; elsewhere it is the last."""
    column = {"head": "a", "workload": "plain", "metric": "test", "chosen_by": "valid"}
    table = made_up([column], [ADAN])
    (found,) = plan([table], chosen(script=regressions), tmp_path).cells
    common = {"kind": "eval", "seconds": 0.0}
    lines = [{**common, "step": 1, "valid": 9.0, "test": 1.0}, {**common, "step": 2, "valid": 5.0, "test": 2.0}]
    record = RunRecord(tmp_path, RunConfig(scale="paper"), {}, {}, {}, lines, {"final": lines[-1]})
    assert table.higher_is_better
    assert figure_of(record, "test", found) == 1
    assert figure_of(replace(record, config=RunConfig()), "test", found) == 2


def test_the_folder_of_a_run_depends_on_no_threads(regressions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer --jobs, and so more threads, --resume finds the runs that there are."""
    monkeypatch.setattr("adan_bench.training.configure.cores", lambda: 4)
    table, folders = made_up([{"head": "a", "workload": "plain"}], [ADAN]), []
    for options in ({"jobs": 4}, {"jobs": 1}, {"threads": 3}):
        found = plan([table], RunConfig(script=regressions, **options), Path("/nowhere"))
        folders.append(sorted(found.runs))
    assert folders[0] == folders[1] == folders[2]


def test_accumulate_reaches_every_run(
    configs: Callable[..., list[RunConfig]], monkeypatch: pytest.MonkeyPatch, bench: Any, tmp_path: Path
) -> None:
    seen: list[RunConfig] = []

    def stop(tables: Any, chosen: RunConfig, *_: Any, **__: Any) -> None:
        seen.append(chosen)
        raise UsageError("enough")

    monkeypatch.setattr(paper, "reproduce", stop)
    assert bench("reproduce", "cnn", "--accumulate", "4", "--out", str(tmp_path / "x"))[0] == 2
    assert [choice.accumulate for choice in seen] == [4]
    found = configs(made_up([{"head": "a", "workload": "plain"}], [ADAN]), accumulate=4)
    assert {c.accumulate for c in found} == {4}


def test_batch_sizes_follow_the_square_root_rule(configs: Callable[..., list[RunConfig]]) -> None:
    columns = [
        {"head": size, "workload": "plain", "batch_size": 64 * n, "batch_factor": n} for size, n in (("a", 1), ("b", 4))
    ]
    for scale, batch, steps in (("smoke", 16, 60), ("paper", 64, 600)):
        small, large = [c for c in configs(made_up(columns, [ADAMW]), scale=scale) if c.seed == 0]
        assert (small.batch_size, small.steps, large.batch_size, large.steps) == (batch, steps, 4 * batch, steps // 4)
        assert large.settings["lr"] == 2 * small.settings["lr"]
        assert large.origin.batch_sizes == (4 * batch, batch)


def test_the_longest_run_has_the_budget_at_smaller_scales(configs: Callable[..., list[RunConfig]]) -> None:
    columns = [{"head": str(n), "workload": "plain", "budget": [n, 10]} for n in (3, 50, 100)]
    for scale, steps in (("smoke", [20, 30, 60]), ("paper", [180, 3000, 6000])):
        assert [c.steps for c in configs(made_up(columns, [ADAN]), scale=scale) if c.seed == 0] == steps


def test_the_lowest_rate_is_that_of_the_table_with_any_peak(configs: Callable[..., list[RunConfig]]) -> None:
    """Also where no learning rate is published for the row, or where the row fixes another one."""
    rows = [{"head": "Adan", "optimizer": "adan"}, {"head": "fixed", "optimizer": "adan", "fixed": {"lr": 0.2}}]
    stated = [{"optimizer": "adan", "settings": {"weight_decay": 0.1}, "source": "here", "min_lr": 0.001}]
    table = made_up([{"head": "a", "workload": "plain"}], rows, settings=stated)
    found = [c for c in configs(table, scale="paper") if c.seed == 0]
    assert [c.floor * c.settings["lr"] for c in found] == pytest.approx([0.001, 0.001])
    assert [c.settings["lr"] for c in found] == [get_optimizer("adan").lr, 0.2]


def test_a_plan_needs_no_data_and_no_packages(regressions: Path, tmp_path: Path) -> None:
    """They are looked for before the runs are made: what is absent takes its runs, and what only they need, away."""
    columns = [{"head": "here", "workload": "plain"}, {"head": "gone", "workload": "cifar-resnet34"}]
    found = plan([made_up(columns, [ADAN])], chosen(script=regressions, scale="paper"), tmp_path)
    assert all(len(cell.runs) == 2 and not cell.absent for cell in found.cells)
    here, gone = present(found, missing(found)).cells
    assert (here.absent, len(here.runs)) == ("", 2)
    assert "cifar-resnet34 needs cifar-10-batches-py, or cifar10/" in gone.absent
    assert {config.workload for config in present(found, missing(found)).runs.values()} == {"plain"}


def test_a_later_stage_is_checked_before_the_first(regressions: Path, tmp_path: Path) -> None:
    """A package that only the fine-tuning needs is missed before the pre-training, not after it."""
    columns = [{"head": "here", "workload": "later"}, {"head": "doomed", "workload": "doomed"}]
    found = plan([made_up(columns, [ADAN])], chosen(script=regressions), tmp_path)
    here, doomed = present(found, missing(found)).cells
    assert (here.absent, len(here.runs)) == ("", 1)
    assert doomed.absent.startswith("doomed needs the package no_such_package; run: pip install")
    alone = plan([made_up(columns[1:], [ADAN])], chosen(script=regressions), tmp_path)
    assert present(alone, missing(alone)).runs == {}
    found = plan([made_up(columns, [ADAN])], chosen(script=regressions), tmp_path)
    arm = found.cells[0].arm
    without, _ = present(found, {arm.start.folder: "no text"}).cells
    assert (without.absent, without.runs) == ("no text", [])


def test_the_users_steps_replace_published_ones(regressions: Path, tmp_path: Path) -> None:
    """Those at which a published schedule is broken off, too."""
    stated = {"optimizer": "adan", "settings": {"lr": 0.5}, "source": "here", "steps": 50, "stop_after": 30}
    table = made_up([{"head": "a", "workload": "plain"}], [ADAN], settings=[stated])
    for steps, expected in ((0, (50, 30)), (8, (8, 0))):
        found = plan([table], chosen(script=regressions, scale="paper", steps=steps), tmp_path, seeds=1)
        (config,) = found.runs.values()
        assert (config.steps, config.stop_after) == expected


def test_weights_and_ranks_are_checked_before_the_first_step(regressions: Path, tmp_path: Path) -> None:
    """Weights that do not fit, GPUs that are not there, a batch that ranks cannot share."""
    torch.save(torch.nn.Linear(9, 9).state_dict(), tmp_path / "other.pt")
    table = made_up([{"head": "a", "workload": "plain"}], [ADAN])

    def missing_with(**options: Any) -> str:
        _, (line,) = paper.prepare([table], chosen(script=regressions, scale="paper", **options), tmp_path / "out")
        return str(line["missing"])

    assert "other.pt" in missing_with(init=tmp_path / "other.pt")
    assert "--device cuda: not on this machine" in missing_with(device="cuda", ranks=8)
    assert re.search(r"5 ranks: a batch of 64 cannot be split into 5 equal parts", missing_with(ranks=5))
    assert missing_with() == ""


def test_a_plan_is_printed_before_anything_runs(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 2's ViT-S for eight devices: batch and examples of each, and what is missing; no folder is made."""
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "vit-s", "--scale", "paper", "--device", "cuda", "--ranks", "8", "--dry-run"]
    code, out, err = bench(*arguments, "--only", "Adan", "--json")
    assert (code, err) == (0, "")
    runs = [json.loads(line) for line in out.splitlines()]
    assert runs
    for run in runs:
        assert (run["event"], run["runs"], run["devices"], run["batch_per_device"]) == ("plan", 1, 8, 256)
        assert run["examples_per_rank"] == run["steps"] * 256
        assert "vit-s needs imagenet/train" in run["missing"]
    out = bench.ran(*arguments, "--only", "Adan", "--steps", "200")
    assert "(1) vit-s needs imagenet/train, imagenet/val: give --data DIR or set ADAN_DATA" in out
    assert not list(tmp_path.iterdir())


def test_only_some_cells_with_other_steps_and_settings(regressions: Path, tmp_path: Path) -> None:
    columns = [{"head": name, "workload": name} for name in ("plain", "later")] + [{"head": "average", "mean": True}]
    stated = [{"optimizer": "adan", "settings": {"lr": 0.5}, "source": "here", "min_lr": 0.005}]
    tables = [made_up(columns, [ADAN, ADAMW, {"head": "SAM", "optimizer": "sam"}], settings=stated)]

    def cells(*only: str, scale: str = "paper", **more: Any) -> dict[tuple[str, str], RunConfig | None]:
        options = chosen(script=regressions, scale=scale, steps=more.pop("steps", 0))
        found = plan(tables, options, tmp_path, only=only, **more).cells
        return {(c.row.head, c.column.head): c.arm and c.arm.base for c in found}

    assert set(cells("adan,PLAIN")) == {("Adan", "plain")}
    assert set(cells("adan , plain", "AdamW,later")) == {("Adan", "plain"), ("AdamW", "later")}
    assert set(cells("Adan")) == {("Adan", name) for name in ("plain", "later", "average")}
    assert set(cells("later")) == {(name, "later") for name in ("Adan", "AdamW", "SAM")}
    for name in ("adan,nothing", "nothing"):
        with pytest.raises(UsageError, match=f"--only {name}: no such cell .* rows: Adan, AdamW, SAM; columns: plain"):
            check_only(tables, "paper", [name])
    found = cells(steps=7, changed={"adan": {"lr": 0.25}})
    lengths = {head[0]: config.steps for head, config in found.items() if config is not None}
    assert lengths == {"Adan": 7, "AdamW": 7, "SAM": 14}
    config = found["Adan", "plain"]
    assert config.settings["lr"] == 0.25
    assert config.origin == Origin(kind="published", source="here", changed={"lr": 0.25, "steps": 7})
    assert said(config.origin) == "here; changed to lr=0.25 steps=7"
    later = next(iter(plan(tables, chosen(script=regressions, scale="paper"), tmp_path).runs.values()))
    assert later.origin.changed == {}
    before = plan(tables, chosen(script=regressions, scale="paper"), tmp_path, changed={"adan": {"lr": 0.25}}).runs
    rates = {config.workload: config.settings["lr"] for config in before.values() if config.optimizer == "adan"}
    assert rates == {"plain": 0.25, "later": 0.25, "earlier": 0.5}  # which pre-training keeps
