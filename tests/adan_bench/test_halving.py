"""Tuning that stops trials which cannot win: the same rule for every optimizer, survivors as if nobody had looked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen

from adan_bench.config import Origin
from adan_bench.records.store import read_runs
from adan_bench.reports.conclusions import said
from adan_bench.studies.comparison import Comparison
from adan_bench.studies.competitors import competitors
from adan_bench.studies.halving import rungs
from adan_bench.training.jobs import Event

NAMES = ("adan", "adam")


class Interrupted(Exception):
    pass


def tune(tiny: Path, out: Path, eta: int, after: int = 10**9, resume: bool = False) -> Comparison:
    """Eight trials each; interrupted after so many results."""
    seen = 0

    def on_event(event: Event) -> None:
        nonlocal seen
        seen += event.result is not None
        if seen > after:
            raise Interrupted

    options = chosen(script=tiny, steps=48, eval_every=4)
    with Comparison(["tiny"], competitors(",".join(NAMES)), options, out=out, resume=resume) as study:
        study.on_event = on_event
        study.make(8, eta)
    study.save(out / "best.json")
    return study


def outcome(out: Path) -> dict[str, tuple[Any, ...]]:
    return {
        f"{r.path.parent.name} {r.path.name}": (r.status, r.result and r.result["step"], r.final)
        for r in read_runs(out)[0]
    }


@pytest.mark.usefixtures("inline_pool")
def test_halving(tiny: Path, tmp_path: Path) -> None:
    tune(tiny, tmp_path / "grid", 1)
    halved = tune(tiny, tmp_path / "halved", 2)
    whole, parts = outcome(tmp_path / "grid"), outcome(tmp_path / "halved")
    best = json.loads((tmp_path / "halved" / "best.json").read_text(encoding="utf-8"))["workloads"]["tiny"]
    rule = rungs(2, 6, 48, 4)
    assert rule == [12, 24]
    for name in NAMES:
        first = [parts[f"{name} tune-{i:02d}"] for i in range(6)]
        ends = sorted((status, step) for status, step, _ in first)
        assert ends == [("finished", 48)] * 2 + [("stopped", 12)] * 3 + [("stopped", 24)]
        gradients = sum(step for key, (_, step, _) in parts.items() if key.startswith(name))
        assert gradients < 0.7 * sum(step for key, (_, step, _) in whole.items() if key.startswith(name))
        assert {key: best[name][key] for key in ("trials", "eta", "rungs", "gradients")} == {
            "trials": 8,
            "eta": 2,
            "rungs": rule,
            "gradients": gradients,
        }
        assert halved.arms["tiny", name].base.origin == Origin(kind="here", trials=8, eta=2, rungs=(12, 24))
    same = [key for key, found in parts.items() if found[0] == "finished" and int(key[-2:]) < 6]
    assert all(parts[key] == whole[key] for key in same)
    assert (
        "trials"
        in json.loads((tmp_path / "grid" / "best.json").read_text(encoding="utf-8"))["workloads"]["tiny"]["adan"]
    )
    assert all(found[0] != "stopped" for found in whole.values())
    with pytest.raises(Interrupted):
        tune(tiny, tmp_path / "broken", 2, after=14)  # in the second rung
    tune(tiny, tmp_path / "broken", 2, resume=True)
    assert outcome(tmp_path / "broken") == parts


@pytest.mark.usefixtures("inline_pool")
def test_tune_by_halving(bench: Any, tiny: Path, tmp_path: Path) -> None:
    command = ["tune", "tiny", "--script", tiny, "--optimizers", "adan", "--trials", "4", "--steps", "24"]
    code, out, err = bench(*command, "--halving", "2", "--out", tmp_path / "a")
    assert code == 0, err
    assert "│ adan " in out
    records = read_runs(tmp_path / "a")[0]
    assert {record.status for record in records} >= {"finished", "stopped"}


@pytest.mark.usefixtures("inline_pool")
def test_how_a_search_was_halved_is_remembered(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Where its settings are used, so that another search is not called the same, and where it is resumed."""
    command = ["tune", "tiny", "--script", tiny, "--optimizers", "adan", "--trials", "4", "--steps", "8"]
    command += ["--eval-every", "2", "--out", tmp_path / "a"]
    assert bench(*command, "--halving", "2")[0] == 0
    for halving in ([], ["--halving", "3"]):
        code, _, err = bench(*command, *halving, "--resume")
        assert code == 2
        assert re.search(r"--halving \d: .*tune-0\d was stopped at step 4 by --halving 2; give the same", err), err
    file = tmp_path / "best.json"
    best = json.loads((tmp_path / "a" / "best.json").read_text(encoding="utf-8"))
    own = best["workloads"]["tiny"]
    own["adam"] = {key: value for key, value in own["adan"].items() if key not in ("eta", "rungs", "gradients")}
    own["adam"]["settings"] = {"lr": 0.001}
    file.write_text(json.dumps(best), encoding="utf-8")
    options = chosen(script=tiny, steps=8, eval_every=2)
    study = Comparison(["tiny"], competitors("adan,adam"), options, out=tmp_path / "b", tuned=file)
    origins = [arm.base.origin for arm in study.arms.values()]
    assert [(origin.trials, origin.eta, origin.rungs) for origin in origins] == [(4, 2, (4,)), (4, 1, ())]
    assert said(origins[0]) == "tuned in 4 trials (best.json, halved by 2 at steps 4)"
