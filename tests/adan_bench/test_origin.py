"""The origin of settings: facts in a record, and the words of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adan_bench.config import Origin, RunConfig
from adan_bench.records.cells import CellRecord
from adan_bench.reports.conclusions import described, said

RESULTS = Path(__file__).parents[2] / "results"

EVERYTHING = Origin(
    kind="saved",
    trials=8,
    source="best.json",
    at_edge=True,
    tuned_for={"steps": 30, "schedule": "linear"},
    changed={"lr": 0.5},
    batch_sizes=(8, 32),
    lr_factor=0.5,
    guesses=("clip",),
    fixed=("betas",),
)


def test_an_origin_survives_a_record() -> None:
    config = RunConfig(workload="w", optimizer="adan", origin=EVERYTHING)
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert Origin().to_json() == {}
    assert "origin" not in config.identity()


def test_every_fact_is_said() -> None:
    words = ("8 trials", "best.json", "30 steps", "linear", "lr=0.5", "√(8/32)", "lr × 0.5")
    for word in (*words, "guess: clip", "betas as the table says"):
        assert word in said(EVERYTHING)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (Origin(kind="here", trials=8), "tuned here in 8 trials with seed 1000"),
        (Origin(kind="here", trials=1, source="gpt"), "tuned for gpt in 1 trial with seed 1000"),
        (Origin(kind="study", source="gpt"), "as the study gpt says"),
        (Origin(kind="failed", source="gpt"), "as the study gpt says, none of its trials having a result"),
    ],
)
def test_settings_of_studies(origin: Origin, words: str) -> None:
    assert said(origin) == words


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("untuned defaults", Origin(kind="untuned")),
        ("trial", Origin(source="trial")),
        (
            "defaults tuned in 8 trials for 100 steps of 64, lr × √(256/64)",
            Origin(source="defaults tuned in 8 trials, lr × √(256/64)", tuned_for={"steps": 100, "batch_size": 64}),
        ),
        ("by hand", Origin(source="by hand")),
    ],
)
def test_words_of_earlier_versions(text: str, origin: Origin) -> None:
    found = Origin.from_json(text)
    assert (found.flaw, said(found), found.tuned_for) == (origin.flaw, said(origin), origin.tuned_for)


def test_cells_of_earlier_versions_are_read() -> None:
    """They had the fields of a run's configuration beside their own."""
    found = json.loads((RESULTS / "reproduce" / "smoke.json").read_text(encoding="utf-8"))
    cells = [CellRecord.from_json(cell) for table in found["tables"] for cell in table["cells"]]
    configs = [cell.config for cell in cells if cell.config is not None]
    assert len(configs) > 100
    assert all(config.steps and config.settings and "8 trials" in said(config.origin) for config in configs)
    assert any(cell.before is not None and cell.before.workload == "bert-pretrain" for cell in cells)
    for cell in cells:
        assert CellRecord.from_json(json.loads(json.dumps(cell.to_json()))) == cell


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("nonmono", 5, "nonmono 5"), ("ema", 0.99, "average of weights 0.99"), ("clip", 0.0, "no clip")],
)
def test_an_option_says_itself_wherever_a_run_is_described(field: str, value: float, words: str) -> None:
    config = RunConfig(settings={"betas": (0.9, 0.99)}, training={"random_rows": True}, **{field: value})
    assert described(config)[field] == words
    rest = {"betas": "betas 0.9/0.99", "schedule": "schedule cosine", "warmup": "warm-up 5%"}
    assert described(config) == {**rest, field: words, "random_rows": "random rows yes"}
