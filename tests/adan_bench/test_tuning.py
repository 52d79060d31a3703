"""What a tuning spends its trials on, and what it saves."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen
from support.pools import tune
from support.scripts import one_weight

from adan_bench.config import Origin
from adan_bench.errors import UsageError
from adan_bench.records.store import read_runs
from adan_bench.studies.arms import make
from adan_bench.studies.comparison import tuned_json
from adan_bench.studies.competitors import competitors
from adan_bench.training.configure import tuned_defaults
from adan_bench.workloads.registry import get_workload

SCALED = {"scales": "smoke=Scale(1, 4, 1), small=Scale(1, 8, 2)"}


def distinct(out: Path, name: str) -> set[str]:
    """The different settings of an optimizer's trials."""
    return {json.dumps(r.config.settings, sort_keys=True) for r in read_runs(out)[0] if r.config.name == name}


@pytest.mark.usefixtures("inline_pool")
@pytest.mark.parametrize("trials", [4, 8, 12])
def test_a_fixed_setting_repeats_no_trial(tiny: Path, tmp_path: Path, trials: int) -> None:
    """Where the choices of an optimizer are fixed by the user, further learning rates take their place."""
    fixed = "adan:betas=0.9,0.92,0.99"
    tune(["tiny"], competitors(f"adan,{fixed}"), chosen(script=tiny, steps=4), tmp_path, trials)
    assert len(distinct(tmp_path, "adan")) == len(distinct(tmp_path, fixed)) == trials
    rates = {r.config.settings["lr"] for r in read_runs(tmp_path)[0] if r.config.name == fixed}
    assert len(rates) == trials


@pytest.mark.usefixtures("inline_pool")
def test_an_optimizer_whose_trials_all_diverge(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Nothing is saved for it, and the exit code says so; the other's settings are saved."""
    bad, out = "sgd:momentum=1e30", tmp_path / "a"
    options = ("--script", tiny, "--steps", 20, "--trials", 4, "--out", out)
    code, text, _ = bench("tune", "tiny", "--optimizers", f"adan,{bad}", *options)
    assert code == 1
    assert f"nothing saved for tiny {bad}: no trial of it has a final value" in text
    assert list(json.loads((out / "best.json").read_text(encoding="utf-8"))["workloads"]["tiny"]) == ["adan"]
    assert len(distinct(out, bad)) == 4
    code, text, _ = bench("tune", "tiny", "--optimizers", f"adan,{bad}", *options, "--resume", "--json")
    assert code == 1
    *best, report = [json.loads(line) for line in text.splitlines()]
    assert [line["optimizer"] for line in best] == ["adan"]
    assert (report["untuned"], report["failed"]) == ([f"tiny {bad}"], [])


@pytest.mark.usefixtures("inline_pool")
def test_trials_that_all_fail(bench: Any, tmp_path: Path) -> None:
    """The reason is said once, the exit code is 1, and no file of settings is written."""
    out = tmp_path / "a"
    script = one_weight(tmp_path / "failing.py", "failing-often", built='raise RuntimeError("no such luck")')
    code, text, _ = bench("tune", "--script", script, "--optimizers", "adan", "--trials", 2, "--out", out)
    assert code == 1
    first, second = (line for line in text.splitlines() if line.startswith("["))
    assert "failed: RuntimeError: no such luck (" in first
    assert second.endswith("failed: the same error as above")
    assert text.count("RuntimeError: no such luck (") == 1
    assert "all 2 runs failed with the error above\n" in text
    assert text.count("\nOnce the cause is fixed, repeat the failed runs with --resume.\n") == 1
    assert "failed: /" not in text
    assert "best" not in text  # a column of the table
    assert "--tuned" not in text
    assert not (out / "best.json").exists()
    assert "all 2 runs failed: RuntimeError: no such luck (" in bench("report", out)[1]


@pytest.mark.usefixtures("inline_pool")
def test_a_comparison_after_a_tuning_without_result(tiny: Path, tmp_path: Path) -> None:
    """The optimizer keeps its defaults, and its origin does not claim that they were tuned here."""
    who = competitors("adan,sgd:momentum=1e30")
    arms = tune(["tiny"], who, chosen(script=tiny, steps=20), tmp_path, 2)
    assert arms["tiny", "adan"].base.origin == Origin(kind="here", trials=2)
    assert arms["tiny", "sgd:momentum=1e30"].base.origin.kind == "untuned"
    with pytest.raises(UsageError, match="it already holds runs; add --resume"):
        make([], chosen(script=tiny), tmp_path)


@pytest.mark.usefixtures("inline_pool")
def test_the_scales_of_a_workload_are_saved_apart(bench: Any, tmp_path: Path) -> None:
    script, file = one_weight(tmp_path / "scaled.py", "two-scales", **SCALED), tmp_path / "new [/n]" / "tuned.json"
    for scale in ("smoke", "small"):
        options = ("--script", script, "--optimizers", "adan", "--scale", scale)
        out = bench.ran("tune", *options, "--trials", 1, "--save", file, "--out", tmp_path / f"tune-{scale}")
    found = json.loads(file.read_text(encoding="utf-8"))["workloads"]
    assert f"settings: {file}; compare with them: --tuned {file}" in out
    assert {name: own["adan"]["steps"] for name, own in found.items()} == {"two-scales": 4, "two-scales@small": 8}
    out = bench.ran("compare", *options, "--seeds", 1, "--tuned", file, "--out", tmp_path / "compare")
    assert "tuned in 1 trial (tuned.json)" in out
    assert "for 4 steps" not in out


SPLIT = """
import torch
from adan_bench import Scale, Task, workload

likeness = dict(tune_higher_is_better=True) if "{judged}" == "likeness" else {}

@workload("split", metric="test", tune_metric="{judged}", higher_is_better=False, smoke=Scale(0.0, 20, 1), **likeness)
def split(context):
    model = torch.nn.Linear(1, 1, bias=False)
    weight = lambda model: model.weight.item()
    far = lambda model: abs(weight(model) + 3)
    numbers = lambda model: {"test": abs(weight(model) - 3), "validation": far(model), "likeness": -far(model)}
    return Task(model, lambda i: i, lambda model, batch: (model.weight - 100).abs().sum(), numbers)
"""


@pytest.mark.usefixtures("inline_pool")
def test_trials_are_judged_by_the_metric_of_the_tuning(bench: Any, tmp_path: Path) -> None:
    """The weight moves by the sum of the rates: the test wants 3, validation −3, so that the smallest rate is best."""
    script = tmp_path / "split.py"
    chosen_rates = {}
    for judged, arrow in (("validation", "↓"), ("likeness", "↑"), ("test", "↓")):
        script.write_text(SPLIT.replace("{judged}", judged), encoding="utf-8")
        out = tmp_path / judged
        bench.ran("tune", "--script", script, "--optimizers", "sgd", "--trials", 4, "--out", out)
        assert f"{judged} {arrow}" in (out / "tuning.md").read_text(encoding="utf-8")
        chosen_rates[judged] = json.loads((out / "best.json").read_text(encoding="utf-8"))["workloads"]["split"]["sgd"][
            "settings"
        ]["lr"]
    assert chosen_rates["likeness"] == chosen_rates["validation"] < chosen_rates["test"]
    script.write_text(SPLIT.replace("{judged}", "nothing like it"), encoding="utf-8")
    options = ("--script", script, "--optimizers", "sgd", "--trials", 1)
    code, text, _ = bench("tune", *options, "--out", tmp_path / "run")
    assert code != 0
    assert "evaluate() returned test, validation, likeness, not the declared metric 'nothing like it'" in text


@pytest.mark.usefixtures("inline_pool")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), ""),
        (("--schedule", "constant", "--clip", 0.1), "schedule cosine, default clip"),
        (("--steps", 8, "--ema", 0.9, "--warmup", 0), "4 steps, warm-up 5%, no average of weights"),
        (("--init", "weights"), "no init"),
    ],
)
def test_settings_tuned_for_another_training(bench: Any, tmp_path: Path, flags: tuple[Any, ...], said: str) -> None:
    """The report says what was different, and names no winner; a script that has changed is another training too."""
    script, file = one_weight(tmp_path / "scaled.py", "two-scales", **SCALED), tmp_path / "best.json"
    options = ("--script", script, "--optimizers", "adan,sgd")
    bench.ran("tune", *options, "--trials", 1, "--save", file, "--out", tmp_path / "tune")
    if "--init" in flags:
        flags = ("--init", tmp_path / "w.pt")
        torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "w.pt")
    words = f"Tuned for another training ({said}): not a fair comparison; add --tune 8."
    out = bench.ran("compare", *options, *flags, "--seeds", 1, "--tuned", file, "--out", tmp_path / "compare")
    assert (words if said else "With 1 seed") in " ".join(out.split())
    assert said or "another training" not in out
    one_weight(script, "two-scales", **SCALED, loss="pass  # changed")
    out = bench("compare", *options, "--seeds", 1, "--tuned", file, "--out", tmp_path / "changed")[1]
    assert "Tuned for another training (script " in out


@pytest.mark.usefixtures("inline_pool")
def test_a_rate_at_the_edge_is_told_when_settings_are_read_from_a_file_too(bench: Any, tmp_path: Path) -> None:
    facts = {"metric": "-model.weight.item()", "scales": "smoke=Scale(1e9, 4, 1)"}
    script = one_weight(tmp_path / "edge.py", "ever-faster", **facts)
    options = ["--script", script, "--optimizers", "adan,sgd", "--seeds", 1]
    bench("tune", *options[:4], "--trials", 3, "--out", tmp_path / "tune")
    entry = json.loads((tmp_path / "tune" / "best.json").read_text(encoding="utf-8"))["workloads"]["ever-faster"][
        "adan"
    ]
    assert entry["at_edge"]
    (tmp_path / "tune" / "tuning.html").unlink()
    code, out, _ = bench("report", tmp_path / "tune")  # of trials alone: the report of the tuning
    assert (code, "(edge)" in out, "tuning.html" in out) == (0, True, True)
    assert (tmp_path / "tune" / "tuning.html").exists()
    assert not (tmp_path / "tune" / "report.html").exists()
    tuned = ["--tuned", tmp_path / "tune" / "best.json"]
    _, out, _ = bench("compare", *options, *tuned, "--out", tmp_path / "compare")
    assert "At the edge of the learning rates that were tried" in out
    _, out, _ = bench("compare", *options, *tuned, "--set", "lr=0.1", "--out", tmp_path / "set")
    assert "At the edge" not in out


def test_a_reported_test_score_chooses_no_defaults() -> None:
    """The stored defaults of workloads with a validation and a test split were tuned by the score of the first."""
    file = Path(__file__).parents[2] / "results" / "adan_bench" / "tuning-smoke-validation.jsonl"
    trials: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        trial = json.loads(line)
        trials.setdefault((trial["workload"], trial["optimizer"]), []).append(trial)
    assert {name for name, _ in trials} == {"lstm-1", "lstm-2", "lstm-3", "transformer-xl", "deepgcn"}
    for (name, optimizer), own in trials.items():
        assert {trial["metric"] for trial in own} <= {"valid_perplexity", "validation ROC-AUC"}
        higher = get_workload(name).higher_is_better
        finals = [trial["final"] for trial in own if trial["final"] is not None]
        best = (max if higher else min)(finals)
        chosen_ones = [trial["settings"] for trial in own if trial["final"] == best]
        assert tuned_defaults()["workloads"][name][optimizer]["settings"] in chosen_ones


def test_tuned_settings_have_a_line_for_each_workload_and_optimizer() -> None:
    text = (resources.files("adan_bench.training") / "tuned.json").read_text(encoding="utf-8")
    assert text == tuned_json(tuned_defaults())
    assert text.count("\n") == 4 + sum(2 + len(own) for own in tuned_defaults()["workloads"].values())
