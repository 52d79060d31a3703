"""Every optimizer takes steps, survives a checkpoint, and refuses settings that it does not have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.learning import curve, killed_run

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore
from adan_bench.studies.comparison import DECADES, WIDEST, learning_rates
from adan_bench.training import optimizers
from adan_bench.training.optimizers import SPECS, get_optimizer
from adan_bench.training.trainer import Trainer, run


@pytest.mark.parametrize("name", SPECS)
def test_learns_and_resumes_exactly(config: Any, tmp_path: Path, name: str) -> None:
    """Killed between two checkpoints, after an evaluation: the record of an undisturbed run, to the bit."""
    settings = config(name, steps=60, checkpoint_every=7, log_every=3, eval_every=5)
    # A tenth of the default, which is for networks with normalization: plain SGD at 0.3 explodes on a regression.
    settings = replace(settings, settings={**settings.settings, "lr": settings.settings["lr"] / 10})
    run(settings, RunStore(tmp_path / "a"))
    killed_run(settings, tmp_path / "b", 16)
    run(settings, RunStore(tmp_path / "b"), resume=True)
    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    losses = [line["loss"] for line in curve(tmp_path / "a") if line["kind"] == "train"]
    assert losses[-1] < losses[0]


def test_two_passes_count_as_two(config: Any, tmp_path: Path) -> None:
    """SAM has half the updates for the same budget, and each of them uses one batch twice."""
    trainer = Trainer(config("sam", steps=10))
    asked = []
    batches = trainer.task.batches
    trainer.task.batches = lambda position: asked.append(position) or batches(position)
    result = trainer.train(RunStore(_created(config("sam", steps=10), tmp_path)))
    assert asked == [0, 1, 2, 3, 4]
    assert trainer.state.step == 10
    examples = result["examples_per_second_per_rank"] * result["seconds"]
    assert examples == pytest.approx(5 * trainer.config.batch_size)


def _created(config: Any, path: Path) -> Path:
    RunStore(path / "run").create(config, {}, {}, {})
    return path / "run"


def test_unknown_setting() -> None:
    with pytest.raises(UsageError, match="adamw has no setting 'momentum'; it has: lr, betas"):
        optimizers.check_settings(get_optimizer("adamw"), {"momentum": 0.9})
    optimizers.check_settings(get_optimizer("sam"), {"rho": 0.1, "momentum": 0.9, "lr": 0.1})


@pytest.mark.parametrize("name", ["lamb", "adabelief", "padam", "adai"])
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lr": -0.01}, "lr must be at least 0 and finite, got -0.01"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"lr": float("nan")}, "lr must be at least 0 and finite, got nan"),
        ({"betas": 5}, "betas must be two numbers, for example 0.9,0.999, got 5"),
        ({"betas": ("0.9", 0.99)}, r"betas\[0\] must be a number, got '0.9'"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] must be at least 0 and below 1, got 1.0"),
        ({"eps": -1}, "eps must be at least 0 and finite, got -1"),
        ({"weight_decay": True}, "weight_decay must be a number, got True"),
    ],
    ids=lambda value: "=".join(f"{key}={text}" for key, text in value.items()) if isinstance(value, dict) else "",
)
def test_our_rivals_refuse_wrong_values(name: str, setting: dict[str, Any], words: str) -> None:
    spec = get_optimizer(name)
    with pytest.raises(UsageError, match=f"{name} rejects .*: {words}"):
        optimizers.check_values(spec, {**optimizers.defaults(spec), **setting})


def test_a_flag_of_a_rival_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="always_adapt must be True or False, got 'maybe'"):
        optimizers.check_values(get_optimizer("lamb"), {"always_adapt": "maybe"})


@pytest.mark.parametrize("name", SPECS)
def test_search_spaces_are_even(name: str) -> None:
    """The same width of learning rates and the same number of other choices for everyone."""
    spec = get_optimizer(name)
    low, *_, high = learning_rates(spec, 6)
    assert high / low == pytest.approx(10**DECADES, rel=0.01)
    assert len(spec.choices) == 3
    for choice in spec.choices:
        assert len(choice) == 1
        optimizers.check_settings(spec, choice)


def test_more_trials_widen_the_search_before_they_refine_it() -> None:
    spec = get_optimizer("adan")
    widths = [rates[-1] / rates[0] for count in range(2, 30) for rates in [learning_rates(spec, count)]]
    assert all(wide <= wider * 1.01 for wide, wider in pairwise(widths))
    assert widths[-1] == pytest.approx(10**WIDEST, rel=0.01)


def test_the_page_has_every_optimizer() -> None:
    """With what a CUDA graph and fsdp take, and the year's paper."""
    page = Path(__file__).parents[2] / "docs" / "optimizers.md"
    rows = [line.strip("|").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    names = [row[0].strip(" `") for row in rows]
    assert names == list(SPECS)
    for row, spec in zip(rows, SPECS.values(), strict=True):
        assert [cell.strip() for cell in row[-2:]] == [
            "gradient" if spec.eager else "step",
            "yes" if spec.shards else "no",
        ]
        assert len(row[1].split()) <= 10
        assert (spec.paper.rpartition(":")[2] in row[-3]) or not spec.paper.startswith("arXiv")


def test_list_tells_the_generations_apart(bench: Any) -> None:
    import json

    rows = json.loads(bench("list", "optimizers", "--json")[1])
    newer = [row for row in rows if row["generation"] == "Newer ones"]
    assert {row["name"] for row in newer} >= {"muon", "soap", "schedule-free", "lion"}
    assert all(row["year"] >= 2023 and row["paper"] for row in newer)
    found = {row["name"]: (row["package"], row["extra"]) for row in rows}
    assert found["schedule-free"] == ("schedulefree", "bench")
    assert found["muon"] == ("adan", "")
    assert found["lamb"] == ("adan", "")
    text = bench("list", "optimizers")[1]
    assert text.index("its paper compares") < text.index("sam ") < text.index("Newer ones") < text.index("muon ")
