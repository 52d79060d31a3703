"""What misled somebody who used `adan-bench` for the first time."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.absent import packages, without
from support.scripts import one_weight, renamed

import adan_bench
from adan_bench.config import RunProgress
from adan_bench.records.store import read_run
from adan_bench.reports.conclusions import assignments
from adan_bench.studies.arms import Planner
from adan_bench.training.jobs import Event, Tally
from adan_bench.training.optimizers import defaults, get_optimizer
from adan_bench.workloads import registry

SRC = Path(adan_bench.__file__).parent


@pytest.mark.usefixtures("inline_pool")
def test_the_page_of_a_failed_run_has_the_exception_and_where_it_was_raised(bench: Any, tmp_path: Path) -> None:
    script = one_weight(tmp_path / "fails.py", "fails", loss='raise ValueError("labels are not one-hot")')
    code, _, _ = bench("compare", "--script", script, "--optimizers", "adam,sgd", "--seeds", "2", "--out", tmp_path)
    assert code == 1
    page, text = ((tmp_path / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    for content in (page, text):
        assert (
            "adam seed 0, adam seed 1, sgd seed 0, sgd seed 1 failed: ValueError: labels are not one-hot (" in content
        )
        assert "fails.py, line 12, in loss: raise ValueError(" in content.replace("&quot;", '"')
        assert "2 failed" in content
        assert "unfinished" not in content.partition("<style>")[0]
    assert 'class="chart"' not in page


def test_a_missing_package_is_named_before_the_first_run(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mujoco" else find(name, *more)
    )
    err = bench.refused("compare", "ppo-hopper", "--optimizers", "adan,adam", "--out", tmp_path / "a")
    assert err == "adan-bench: ppo-hopper needs the package mujoco; run: pip install '.[paper]'\n"
    assert not (tmp_path / "a").exists()


def test_list_says_which_extra_a_workload_needs(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words only where a package of the extra is not installed."""
    find = importlib.util.find_spec
    for gone in ({"mujoco"}, set()):
        hidden = {"torchvision", *gone}
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *more, hidden=hidden: None if name in hidden else find(name, *more),
        )
        _, out, _ = bench("list")
        text = " ".join(out.split())
        assert text.count("needs: pip install '.[paper]'") == (4 if gone else 0)  # the workloads of MuJoCo
        assert text.count("needs: pip install '.[paper,vision]'") == 1
    _, out, _ = bench("list", "--json")
    extras = {row["name"]: row["extra"] for row in json.loads(out)}
    assert (extras["ppo-hopper"], extras["ptb-lstm"], extras["mask-rcnn"]) == ("paper", "", "paper,vision")


def _imported(path: Path, seen: set[Path]) -> set[str]:
    """Packages that importing a file of ours imports, through other files of ours as well."""
    seen.add(path)
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            parts = module.split(".")
            names.add(parts[0])
            file = SRC.parent.joinpath(*parts).with_suffix(".py")
            if parts[0] == "adan_bench" and file.exists() and file not in seen:
                names |= _imported(file, seen)
    return names


@pytest.mark.parametrize("file", sorted((SRC / "workloads" / "parts").glob("*.py")), ids=lambda file: file.stem)
def test_the_packages_of_a_workload_are_those_that_its_file_imports(file: Path) -> None:
    bench = {"numpy", "scipy", "matplotlib", "rich", "typer", "schedulefree", "pytorch_optimizer"}
    known = bench | {"torch", "adan", "adan_bench"} | set(sys.stdlib_module_names)
    used = {w.build.__qualname__.partition(".")[0] for w in registry.workloads().values()}
    if file.stem in used:
        assert _imported(file, set()) - known <= set(registry.PACKAGES.get(file.stem, ()))


@pytest.mark.usefixtures("inline_pool")
def test_a_wrong_import_of_ours_is_not_called_a_missing_package(bench: Any, tiny: Path, tmp_path: Path) -> None:
    broken = ("    g = torch", "    import adan_bench.no_such_file\n    g = torch")
    script = renamed(tiny, tmp_path / "wrong.py", "wrong", broken)
    code, _, err = bench("run", "wrong", "--script", script, "--out", tmp_path / "a")
    assert code == 1
    assert "wrong: No module named 'adan_bench.no_such_file'; it imports, or built_by names, a wrong file" in err
    assert "pip install" not in err


# ---- progress


@pytest.mark.usefixtures("inline_pool")
def test_runs_are_numbered_over_the_whole_study_and_trials_say_what_varies(
    bench: Any, tiny: Path, tmp_path: Path
) -> None:
    arguments = ("--optimizers", "adan,sgd-momentum", "--tune", "4", "--seeds", "2", "--steps", "10")
    _, out, _ = bench("compare", "tiny", "--script", tiny, *arguments, "--out", tmp_path / "a")
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert [line.partition(" ")[0] for line in lines] == [f"[{i}/12]" for i in range(1, 13)]
    assert all("left" in line for line in lines[:-1])
    assert "left" not in lines[-1]
    settings = read_run(tmp_path / "a" / "tiny" / "sgd-momentum" / "tune-03").config.settings
    usual = defaults(get_optimizer("sgd-momentum"))
    changed = {key: value for key, value in settings.items() if key != "lr" and value != usual.get(key)}
    assert changed
    varied = f"sgd-momentum tune-03 {assignments({'lr': settings['lr'], **changed})}:"
    assert any(varied in line for line in lines)


def test_a_study_of_seeds_and_trials_expects_them_all(config: Any, tmp_path: Path) -> None:
    from adan_bench.studies.arms import Arm, Search

    search = Search((0.1, 0.2), 4, {"lr": 0.1}, ({"weight_decay": 0.1},))
    planner = Planner(
        [[Arm(config("adan"), tmp_path / "a", range(3), search), Arm(config("sgd"), tmp_path / "b", [0])]]
    )
    assert planner.expected == 8
    events: list[Event] = []
    tally = Tally(planner, events.append)
    tally.begin(tally.waiting[0])
    assert (events[0].total, len(tally.known)) == (8, 3)
    tally.waiting.clear()
    assert tally.total == 3  # nothing will follow: what failed had others after it


def test_the_time_left_does_not_count_the_start(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after --resume: a start of 100 s, then a second per step."""
    from adan_bench.records.store import RunStore
    from adan_bench.training import trainer

    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])
    update = trainer.Trainer.update

    def slow(self: Any) -> None:
        now[0] += 100.0 if self.state.step == 0 else 1.0
        update(self)

    monkeypatch.setattr(trainer.Trainer, "update", slow)
    told: list[RunProgress] = []
    trainer.run(replace(config("adam"), steps=40), RunStore(tmp_path / "a"), told.append)
    assert len(told) > 2
    assert told[0].seconds_left is None  # nothing follows from the first step
    assert told[-2].seconds_left <= 1.5 * (40 - told[-2].step)


def test_reproduce_says_how_long_all_runs_trained() -> None:
    from adan_bench.reports.paper import overview

    environment = {"packages": {}, "platform": "x", "cores": 2, "python": "3", "commit": "", "started": "now"}
    summary = {"scale": "smoke", "tables": [], "runs": 6, "seconds": 72.0, "jobs": 1, "device": "cpu", "bf16": False}
    summary["environment"] = environment
    assert "6 runs in 1.2 minutes, 1 at a time" in overview(summary)
    summary["training_seconds"] = 278.0
    assert "6 runs with 4.6 minutes of training in all, 1 at a time" in overview(summary)


def test_theory_keeps_what_was_checked_before_it_was_stopped(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adan_bench.reports import theory

    def stopped() -> Any:
        raise KeyboardInterrupt

    first = dict([next(iter(theory.STUDIES.items()))])
    monkeypatch.setattr(theory, "STUDIES", {**first, "later": stopped})
    code, _, err = bench("theory", "--out", tmp_path / "a")
    assert (code, "interrupted" in err) == (130, True)
    assert json.loads((tmp_path / "a" / "theory.json").read_text(encoding="utf-8"))["checks"]


def test_speed_writes_its_record_after_every_case(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adan_bench.studies import speed

    seen: list[int] = []

    def measured(models: Any, names: Any, how: Any, warmup: int, on_case: Any) -> dict[str, Any]:
        cases = [{"model": "m", "optimizer": name, "step_ms": 1.5} for name in names]
        for case in cases:
            on_case(case)
            seen.append(len(json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["cases"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "measure", measured)
    arguments = ("--optimizers", "adan,adamw", "--scale", "smoke", "--out", tmp_path / "a.json")
    code, out, _ = bench("speed", "ViT-S", *arguments)
    assert (code, seen) == (130, [1, 2])
    assert out.splitlines() == ["[1/2] m adan: 1.500 ms per step", "[2/2] m adamw: 1.500 ms per step"]


# ---- errors


def test_a_script_with_one_workload_names_it(bench: Any, tiny: Path) -> None:
    script = renamed(tiny, tiny.with_name("single.py"), "single")
    code, out, err = bench("memory", "--script", script)
    assert (code, err) == (0, "")
    assert "AdamW" in out
    bench.ran("theory", "constants", "--script", script, "--steps", "3")
    bench.ran("run", "--script", script, "--steps", "3", "--out", script.parent / "run")
    for words in (("memory",), ("theory", "constants"), ("compare",), ("run",)):
        code, _, err = bench(*words)
        assert (code, "was named; " in err, "Missing" in err) == (2, True, False), err


def test_a_typo_does_not_list_every_name(bench: Any, tmp_path: Path) -> None:
    code, _, err = bench("compare", "ptb-lstn", "--out", tmp_path / "a")
    own = "(a workload of your own needs --script FILE)"
    assert (code, err) == (2, f"adan-bench: no workload 'ptb-lstn'; did you mean ptb-lstm? {own}\n")


def test_a_folder_that_cannot_be_made_is_named_without_errno(bench: Any, tiny: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("no /proc on this system")
    code, _, err = bench("compare", "tiny", "--script", tiny, "--optimizers", "adam", "--out", "/proc/foo")
    assert code in (1, 2)
    assert "/proc/foo" in err
    assert "Errno" not in err
    assert "--out" in err


@pytest.mark.usefixtures("inline_pool")
def test_an_unfair_comparison_is_called_so_once(bench: Any, tiny: Path, tmp_path: Path) -> None:
    arguments = ("--optimizers", "adan,adam", "--seeds", "1", "--steps", "4", "--out", tmp_path / "a")
    _, out, _ = bench("compare", "tiny", "--script", tiny, *arguments)
    assert out.count("Untuned: not a fair comparison") == 1
    page = (tmp_path / "a" / "report.md").read_text(encoding="utf-8")
    assert page.count("Untuned: not a fair comparison") == 1


def test_the_template_of_a_workload_trains_and_keeps_to_the_layers(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import adan_bench.workloads.parts

    template = SRC.parents[1] / "tools" / "template"
    for package, folder in ((adan_bench.workloads, template), (adan_bench.workloads.parts, template / "parts")):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(registry, "_workloads", dict(registry._workloads))
    code, _, err = bench("run", "wine", "--steps", "60", "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    assert (read_run(tmp_path / "a").final or 0) > 0.8
    below = {"adan_bench.task", "adan_bench.data", "adan_bench.workloads"}
    for file in template.rglob("*.py"):
        nodes = [
            node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
        ]
        ours = {
            ".".join((node.module or "").split(".")[:2]) for node in nodes if (node.module or "").startswith("adan")
        }
        assert ours <= below
    assert not any(name.startswith("torch") for name in _imported(template / "wine.py", set()))


def test_the_path_of_a_new_user_with_only_the_extra_bench(tiny: Path, tmp_path: Path) -> None:
    """From a script to a report, without any package of the other extras."""
    names = {"scikit-learn": "sklearn", "stable-baselines3": "stable_baselines3"}
    others = packages("paper", "cluster", "examples", "vision") - {"adan"}  # pillow comes with matplotlib
    words = ["compare", "--script", str(tiny), "--out", "mine", "--optimizers", "adan,lamb", "--steps", "20"]
    absent = {names.get(name, name) for name in others} | {"mujoco"}
    done = without(absent, tmp_path, *words, "--tune", "1", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    assert "[6/6]" in done.stdout
    assert "no evidence of a difference" in (tmp_path / "mine" / "report.md").read_text(encoding="utf-8")
