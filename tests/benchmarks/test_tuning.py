"""The numbers of `suggest_from_adamw` and of docs/tuning.md are those of the records."""

import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

from adan import recipes, suggest_from_adamw
from adan.suggestion import B1, DECAY_RATIO, LR_RATIO, WARMUP

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import held_out
import tuning
from evidence.jobs import read, score
from evidence.problems import Problem
from evidence.search import Study
from evidence.studies import STUDIES

ROOT = Path(__file__).parents[2]
RECORDS = read(tuning.RUNS)
PAGE = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
POINTS = [pytest.param(setting, point, id=f"{setting}: {point}") for setting, _, point in tuning.rows()]


def loss(study, optimizer, **settings):
    """The validation result of one trial."""
    (value,) = {
        record["final"][record["metric"]]
        for record in RECORDS.values()
        if record["job"]["study"] == study
        and record["job"]["optimizer"] == optimizer
        and record["job"]["tuning"]
        and settings.items() <= record["job"]["settings"].items()
    }
    return value


@pytest.mark.parametrize(("setting", "point"), POINTS)
def test_a_point_is_what_its_source_says(setting, point):
    value, words = tuning.derived(setting, point, RECORDS)
    assert point.value == float(f"{value:.3g}")
    assert words in PAGE


@pytest.mark.parametrize(("setting", "point"), POINTS)
def test_a_point_has_the_length_of_its_runs(setting, point):
    if point.steps == 0:
        return
    if not point.paper:
        assert {record["steps"] for record in tuning.trials(point.source, RECORDS)} == {point.steps}
    elif point.steps == 100_000:
        assert "100k" in recipes["transformer-xl"].length
    else:
        assert point.steps == 100 * 1_280_000 / recipes["vit"].batch_size  # the shortest run of ViT, 100 epochs


def test_other_records_give_another_value():
    """Had the trial with b1 = 0.95 been the best, the rule would be wrong, and this is how it would be noticed."""
    point = B1["lm"].short
    records = {
        key: {**r, "final": {**r["final"], r["metric"]: 0.1}}
        if r["job"]["study"] == "gpt" and r["job"]["settings"]["betas"][0] == 0.95
        else r
        for key, r in RECORDS.items()
    }
    assert tuning.derived("b1", point, records)[0] == 0.95 != point.value


def test_the_smallest_b1_is_best_in_all_shorter_runs():
    lengths = {record["job"]["length"] for record in tuning.trials("b1-length-gpt", RECORDS)}
    assert lengths >= {500, 1_000}
    for length in lengths:
        by_b1 = tuning.by_b1(tuning.trials("b1-length-gpt", RECORDS, length=length))
        if length <= B1["lm"].short.steps:
            assert min(by_b1, key=by_b1.get) == B1["lm"].short.value


def test_warm_up_is_that_of_every_tuned_run():
    assert WARMUP == Problem.__dataclass_fields__["warmup"].default


def test_weight_decay_is_the_papers_because_the_records_do_not_decide_it():
    row = next(r for r in tuning.published("vit-swin") if r["optimizer"] == "adamw" and "vit-s" in r["workload"])
    assert pytest.approx(recipes["vit"].weight_decay / row["settings"]["weight_decay"]) == DECAY_RATIO
    gpt = [loss("gpt", "adan", lr=0.004, betas=[0.9, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    vit = [loss("vit-25", "adan", lr=0.001414, betas=[0.98, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    assert gpt[0] < gpt[1]  # a loss: 0.02 is better
    assert vit[0] < vit[1]  # an accuracy: 0.1 is better
    assert max(abs(a - b) / a for a, b in (gpt, vit)) < 0.005
    assert "differ by less than 0.5%, and not in the same direction" in TEXT


def test_what_the_page_says_of_wrong_rates_is_in_the_records():
    tuned, half, twice = (loss("gpt", "adan", lr=lr, betas=[0.9, 0.92, 0.99], weight_decay=0.02)
                          for lr in (0.004, 0.002, 0.008))  # fmt: skip
    assert f"half the tuned rate costs {half - tuned:.3f} nats, twice {twice - tuned:.3f}" in TEXT
    adamw = loss("gpt", "adamw", lr=0.002, betas=[0.9, 0.99], weight_decay=0.1)
    assert f"at AdamW's best lr, 0.002: {half:.3f}, AdamW {adamw:.3f}, Adan at 0.004 {tuned:.3f}" in TEXT
    plateau = loss("sensitivity-gpt", "adan", lr=0.018)
    assert f"at lr 0.018, {0.018 / 0.004:.1f} times the tuned one: {plateau:.2f}; the best is {tuned:.2f} |" in TEXT
    swept = [r["status"] for r in RECORDS.values() if r["job"]["study"] == "sensitivity-vit-25"]
    assert swept == ["finished"] * 17  # the eighteenth is a trial of `vit-25`
    best, last = loss("vit-25", "adan", lr=0.001414, weight_decay=0.1), loss("sensitivity-vit-25", "adan", lr=0.03)
    assert f"ViT at lr 0.03, {0.03 / 0.001414:.0f} times the tuned one: all losses finite, " in TEXT
    assert f"accuracy {last:.0%}; the best is {best:.0%}." in TEXT
    runs = json.loads((ROOT / "results" / "short-runs.json").read_text(encoding="utf-8"))["runs"]
    best = {}
    for run in runs:
        loss_of_run = statistics.fmean(seed["validation"] for seed in run["seeds"])
        key = (run["optimizer"], *run["betas"])
        best[key] = min(best.get(key, math.inf), loss_of_run)
    slow, adamw, fast = (best[key] for key in (("Adan", 0.98, 0.92, 0.99), ("AdamW", 0.9, 0.99),
                                               ("Adan", 0.9, 0.92, 0.99)))  # fmt: skip
    assert f"{slow:.3f} with b1 = 0.98, AdamW {adamw:.3f}, {fast:.3f} with b1 = 0.9 (below)" in TEXT


def test_half_the_best_rate_costs_less_than_twice_more_often_than_not():
    outcomes = []
    for study in STUDIES.values():
        if isinstance(study, Study) and study.trials and study.entries[0].optimizer == "adan" and study.tuned(RECORDS):
            trials = {r["job"]["settings"]["lr"]: score(r) for r in tuning.search(study.name, "adan", RECORDS)[:5]}
            best = max(trials, key=trials.get)
            beside = [next((lr for lr in trials if lr / best == pytest.approx(x, rel=0.01)), None) for x in (0.5, 2)]
            if None not in beside:
                half, twice = (trials[lr] for lr in beside)
                outcomes.append(half > twice)
    assert f"in {sum(outcomes)} of our {len(outcomes)} searches that tried both, half the best rate cost less" in TEXT


def test_in_vision_a_b1_of_0_95_was_slightly_better_at_equal_decay():
    for study in ("vit-25", "resnet34-30", "resnet34-30-again"):
        trials = tuning.differing_in_b1(tuning.search(study, "adan", RECORDS))
        by_b1 = {r["job"]["settings"]["betas"][0]: r["final"]["accuracy"] for r in trials}
        assert 0 < by_b1[0.95] - by_b1[0.98] < 0.005


def test_what_else_the_paper_has_for_language_models():
    lr, b1 = LR_RATIO["lm"].long, B1["lm"].long
    for table, workload in (("bert", "bert-pretrain"), ("lstm", "lstm-1")):
        rows = tuning.published(table)
        adam = next(r for r in rows if r["optimizer"] == "adam" and workload in r["workload"])["settings"]["lr"]
        adan = next(r for r in rows if r["optimizer"] == "adan" and workload in r.get("workload", workload))
        assert adan["settings"]["lr"] / adam == pytest.approx(10)
    assert lr.but == "10 for BERT and a one-layer LSTM"
    for table in ("gpt2", "bert", "lstm"):
        assert next(r for r in tuning.published(table) if r["optimizer"] == "adan")["settings"]["betas"][0] == 0.98
    assert b1.but == "0.98 for GPT-2, BERT and the LSTM"


def test_the_width_of_good_rates_is_that_of_the_results():
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    gpt, vit, resnet, lstm = (
        dict(re.findall(rf"\| {name} \| (\w+) \|.*\(((?:≥ )?×[\d.]+)\)", results))
        for name in ("GPT, 2,000 steps", "ViT, 25 epochs", "ResNet-34, 5 epochs", "LSTM, 4 epochs")
    )
    assert (gpt, vit) == ({"Adan": "×1.9", "AdamW": "×3.0"}, {"Adan": "×3.0", "AdamW": "×3.1"})
    assert resnet == {"Adan": "≥ ×16.7", "AdamW": "×10.0"}
    assert "span a factor of 1.9 with Adan and 3.0 with AdamW; on the ViT 3.0 and 3.1; on a ResNet-34" in TEXT
    assert "on a ResNet-34 after 5 epochs at least 17, and 10. On the LSTM only the best rate does (one seed, " in TEXT
    assert lstm == {"Adan": "×1.0", "AdamW": "×1.0"}
    ((ours, theirs),) = re.findall(r"\| GPT, 10.9 M: .*? \| ([\d.]+) ± \S+ \| AdamW ([\d.]+) ±", results)
    assert f"Adan's lead on the GPT is {1 - float(ours) / float(theirs):.1%}" in TEXT
    wins = dict(re.findall(r"^(.*): Adan beats AdamW's best, trials included, at (.*); its", results, re.M))
    assert wins["GPT, 2,000 steps"] == "lr 0.003 and 0.0056"
    assert wins["ViT, 25 epochs"] == "lr 0.001, 0.0018 and 0.003"
    assert wins["ResNet-34, 5 epochs"] == "lr 0.0018 and 0.003"
    assert wins["LSTM, 4 epochs"] == "no rate"
    assert (
        "Three of Adan's nine rates on the ViT beat all of AdamW's, trials included, two on the GPT and two on the "
        "ResNet-34, none on an LSTM" in TEXT
    )


def test_the_page_says_the_rules_in_short():
    assert (LR_RATIO["lm"].short.value, LR_RATIO["lm"].long.value) == (2, 4)
    assert (round(LR_RATIO["vision"].short.value, 1), LR_RATIO["vision"].long.value) == (2.8, 7.5)
    assert (
        "two to four times AdamW's for language models (twice to begin with; a Transformer-XL chose eight times" in TEXT
    )
    assert "2.8 times for a vision transformer" in TEXT
    assert "it is 4 times (Transformer-XL), 7.5 times (ViT) and 10 times (BERT, a one-layer LSTM)" in TEXT


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("ViT, 25 epochs", "better"),
        ("ViT, 50 epochs", "better"),
        ("GPT, 25.7 M", "better"),
        ("GPT, 10.9 M", "better"),
        ("GPT, 0.9 M", "better"),
        ("mixture of experts", "better"),
        ("LSTM, 8 epochs", "worse"),
        ("LSTM, 200 epochs, untuned", "better"),
        ("ResNet-34, 200 epochs, untuned", "not significant"),
        ("ViT, batch size 4,096", "worse"),
        ("ResNet-34, 30 epochs", "worse"),
        ("ConvNeXt", "better"),
        ("Transformer-XL", "better"),
        ("ViT, 100 epochs", "not significant"),
        ("MAE, pre-training", "not significant"),
        ("MAE, fine-tuned", "not significant"),
        ("BERT, pre-training", "not significant"),
        ("BERT, CoLA", "not significant"),
        ("BERT, CoLA from its own pre-training", "not significant"),
        ("BERT, SST-2", "not significant"),
        ("BERT, SST-2 from its own pre-training", "not significant"),
        ("Deformable DETR", "not significant"),
        ("Tianshou's PPO, Hopper", "not significant"),
        ("Tianshou's PPO, HalfCheetah", "not significant"),
        ("Tianshou's PPO, Walker2d", "not significant"),
        ("DeepGCN", "not significant"),
    ],
)
def test_where_it_is_worth_it(model, word):
    """The page's first answer; where one of these fails, that sentence is to be written again."""
    (row,) = (
        line
        for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {model}:")
    )
    assert row.endswith(f": {word} |")


@pytest.mark.parametrize(
    ("study", "ratio", "said"),
    [
        ("mae-50-full", 2, "twice AdamW's rate (a masked autoencoder, 8,750 steps)"),
        ("convnext-25-again", 8, "eight times (a ConvNeXt, 4,375, and"),
        ("transformer-xl", 8, "Transformer-XL, 20,000, beside Adam) and"),
        ("resnet34-30-again", 14, "fourteen times (a ResNet-34, 5,265)"),
    ],
)
def test_what_other_models_chose(study, ratio, said):
    _, theirs, ours = tuning.tuned(study, RECORDS)
    assert round(ours["lr"] / theirs["lr"]) == ratio
    (steps,) = {record["steps"] for record in tuning.trials(study, RECORDS)}
    assert f"{steps:,}" in said
    assert said in TEXT


def test_held_out_runs_have_the_suggestion_for_adamws_settings():
    record = json.loads((ROOT / "results" / "held-out.json").read_text(encoding="utf-8"))
    assert len(record["workloads"]) >= 3
    assert record["seeds"] >= 3
    for name, row in record["workloads"].items():
        theirs = row["adamw"]["settings"]
        s = suggest_from_adamw(
            theirs["lr"],
            weight_decay=theirs["weight_decay"],
            betas=tuple(theirs.get("betas", (0.9, 0.999))),
            total_steps=row["steps"],
            warmup_steps=round(0.05 * row["steps"]),
            task=held_out.WORKLOADS[name],
            batch_size=row["batch_size"],
        )
        assert json.loads(json.dumps(s.options())) == row["adan"]["settings"]
        for who in ("adan", "adamw"):
            assert len(row[who]["values"]) == record["seeds"]
            assert None not in row[who]["values"]


def test_no_rule_was_fitted_to_what_is_held_out():
    fitted = {point.source for _, _, point in tuning.rows() if not point.paper}
    assert not fitted & set(tuning.OTHERS)
    assert not fitted & set(held_out.WORKLOADS)


def test_what_the_page_says_of_mixtures_of_experts_is_the_papers():
    rows = json.loads((ROOT / "src" / "adan_bench" / "tables" / "betas.json").read_text(encoding="utf-8"))["rows"]
    loss = {tuple(row["fixed"]["betas"]): row["values"][0] for row in rows if row["optimizer"] == "adan"}
    best = recipes["moe"].betas
    assert min(loss, key=loss.get) == best
    small = (0.9, 0.92, 0.95)
    assert f"a loss of {loss[best]} with b1 = {best[0]} and b3 = {best[2]}, {loss[small]} with b1 = 0.9" in TEXT
