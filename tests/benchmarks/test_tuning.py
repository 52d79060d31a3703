"""The numbers of `suggest_from_adamw` and of docs/tuning.md are those of the records and of the paper."""

import json
import math
import statistics
from dataclasses import replace

import pytest
import results_page
import tuning
from inference import holm
from stored import EVIDENCE, studies
from support.pages import ROOT, flat

from adan import recipes, suggest_from_adamw
from adan.suggestion import DIVERGED_LR, LR_RATIO, WARMUP, first_beta
from adan_bench.records.archive import read_archive
from adan_bench.records.stats import best_trial, grouped, rank
from adan_bench.tables import tables

STORED = studies()
TEXT = flat("docs/tuning.md")
SEARCHES = tuning.searches()
FIELD = STORED["field-gpt"]
FIELDS = [STORED[name] for row in results_page.DATA["field"] for name in row["studies"].split() if name in STORED]
LADDER = (1_000, 2_000, 4_000, 8_000)
LADDERS = [f"ladder-gpt-{steps // 1_000}k" for steps in LADDER]


def trial(study, optimizer, **settings):
    """The validation result of one run on the tuning seed, of a search or of a sweep."""
    runs = [*STORED[study].search.get(optimizer, ()), *(r for g in STORED[study].groups for r in g.runs)]
    (value,) = {
        run.final
        for run in runs
        if run.config.role == "tune" and run.config.optimizer == optimizer
        if settings.items() <= json.loads(json.dumps(dict(run.config.settings))).items()
    }
    return value


def published(table, optimizer, workload=""):
    """The first settings of an optimizer in one of the paper's tables."""
    found = (entry for entry in tables()[table].settings if entry.optimizer == optimizer)
    return next(entry.run for entry in found if not workload or workload in (entry.workload or workload))


def test_every_search_beside_adamw_or_adam_belongs_to_a_family():
    tuned = {name: {who for who, trials in study.search.items() if trials} for name, study in STORED.items()}
    both = {name for name, names in tuned.items() if "adan" in names and names & {"adamw", "adam"}}
    assert {search.study for search in SEARCHES} == both


def test_the_ratio_is_the_geometric_mean_over_all_searches():
    ratios = [search.ratio for search in SEARCHES]
    assert f"{statistics.geometric_mean(ratios):.2g}" == f"{LR_RATIO:g}"
    late = ("field-gpt-again", "field-gpt-tiny", "field-moe")
    before = statistics.median(search.ratio for search in SEARCHES if search.study not in late)
    assert f"{before:.2g}" == f"{LR_RATIO:g}"
    said = f"everything at once; now that is {statistics.median(ratios):.2g}, and 2.5 is the geometric mean of all"
    assert f"{said} {len(ratios)}." in TEXT


def test_no_rule_by_length_beats_the_ratio_out_of_sample():
    off = {name: list(tuning.errors(predict).values()) for name, predict in tuning.RULES.items()}
    near = {name: sum(abs(error) < 1.001 for error in errors) for name, errors in off.items()}
    squares = {name: sum(error**2 for error in errors) for name, errors in off.items()}
    ours = f"**{LR_RATIO:g}**"
    assert near[ours] == max(near.values())
    assert squares[ours] == min(squares.values())
    assert (near[ours], len(off[ours])) == (29, 38)  # "in three of four searches"


def test_another_familys_searches_are_all_that_a_prediction_sees():
    seen = []
    tuning.errors(lambda search, others: seen.append((search, others)) or 1.0)
    assert len(seen) == len(SEARCHES)
    assert not [search for search, others in seen for other in others if other.family == search.family]


def test_b1_is_that_of_the_records():
    """Up to 4,000 steps 0.9 was the best of those tried, and no other was at 8,000."""
    best = {(name, steps): min(runs, key=lambda b1: rank(runs[b1])) for steps, name, runs in tuning.b1_runs()}
    for steps in (500, 1_000):
        assert best["b1-length-gpt", steps] == 0.9
    assert {best[study, 2_000] for study in ("gpt", "gpt-tiny", "moe")} == {0.9}
    assert {steps: b1 for (study, steps), b1 in best.items() if study.startswith("ladder-")} == dict.fromkeys(
        LADDER, 0.9
    )
    assert {b1 for (study, _), b1 in best.items() if not study.startswith("bert-")} == {0.8, 0.9, 0.95}
    assert "In none of our runs from scratch was 0.98 the best." in TEXT
    for steps, name, runs in tuning.b1_runs():
        suggested = suggest_from_adamw(1e-3, total_steps=steps).betas[0]
        near, constant = (min(runs, key=lambda b1: abs(math.log((1 - b1) / (1 - value)))) for value in (suggested, 0.9))
        assert near == constant, name


def test_the_rule_for_b1_is_the_ladders():
    runs = {
        steps: {b1: run.final for b1, run in own.items()} for steps, name, own in tuning.b1_runs() if name in LADDERS
    }
    for steps in LADDER[:3]:
        assert min(runs[steps], key=runs[steps].get) == 0.9
        assert first_beta(steps) == 0.9
    assert abs(runs[8_000][0.98] - runs[8_000][0.9]) < 0.001
    assert 0.9 < first_beta(8_000) < 0.98
    lost = [runs[steps][0.98] - runs[steps][0.9] for steps in LADDER]
    assert f"it costs {lost[0]:.2f} nats at 1,000 steps and {lost[-1]:.3f} at 8,000" in TEXT
    sources = [suggest_from_adamw(1e-3, total_steps=steps).why[1].split(":")[0] for steps in (4_000, 8_000, 20_000)]
    assert sources == ["b1 = 0.9 (measured)", "b1 = 0.95 (assumption)", "b1 = 0.98 (paper)"]


def test_fine_tuning_a_bert_prefers_the_larger_b1():
    pairs = {name: runs for _, name, runs in tuning.b1_runs() if name.startswith("bert-")}
    gaps = {name: rank(runs[0.9]) - rank(runs[0.98]) for name, runs in pairs.items()}
    assert [sum(gap > 0 for gap in gaps.values()), sum(gap == 0 for gap in gaps.values()), len(gaps)] == [3, 1, 4]
    assert "0.98 was better than 0.9 in three searches and equal in one" in TEXT


def test_the_smallest_rate_of_adan_that_diverged():
    files = [*(ROOT / "results" / "studies").glob("*.jsonl"), *EVIDENCE.glob("*.jsonl")]
    runs = [run for file in files if file.stem not in ("gradients", "speed") for run in read_archive(file)[0]]
    diverged = [run for run in runs if run.config.optimizer == "adan" and run.diverged]
    assert min(run.lr for run in diverged) == DIVERGED_LR
    theirs, _ = tuning.tuned(STORED["vit-25"])
    assert DIVERGED_LR / theirs.lr == pytest.approx(16)
    assert f"a ViT at lr {DIVERGED_LR:g}, 16 times its AdamW's rate" in TEXT
    for file in (ROOT / "results" / "adan_bench").glob("tuning*.jsonl"):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            run = line.get("config", line)
            who = run.get("config", run).get("optimizer")
            assert (who, line.get("result", line).get("status")) != ("adan", "diverged"), file.name


def test_warm_up_is_that_of_every_search_but_ppos_the_ladders_and_the_fields():
    fields = {study.name for study in FIELDS}
    names = [search.study for search in SEARCHES if search.family != "PPO" and search.study not in fields]
    shares = {name: {run.config.warmup for run in STORED[name].search["adan"]} for name in names}
    assert {name: found for name, found in shares.items() if found != {WARMUP}} == {name: {0.1} for name in LADDERS}
    said = f"Our searches have {WARMUP:.0%}, except those of PPO, of the ladder (10%) and of today's optimizers."
    assert f"{said} The last try 2, 5 and 10%; 10% won in" in TEXT


def test_what_the_fields_search_chose_beside_rates():
    for study in FIELDS:
        assert {run.config.warmup for trials in study.search.values() for run in trials} == {0.02, 0.05, 0.1}
    best = [(name, best_trial(trials).config) for study in FIELDS for name, trials in study.search.items()]
    ours, theirs = ([config for name, config in best if name == who] for who in ("adan", "adamw"))
    long = [sum(config.warmup == 0.1 for config in of) for of in ([config for _, config in best], ours)]
    assert f"10% won in {long[0]} of {len(best)}, for Adan in {long[1]} of {len(ours)} (" in TEXT
    assert len({config.settings["weight_decay"] for _, config in best if config.warmup == 0.1}) == 5  # one per point
    assert "(five points in all)." in TEXT
    assert "Adan's 0.8492 above had 5%." in TEXT
    assert {run.config.warmup for group in STORED["default-gpt"].groups for run in group.runs} == {0.05}
    decays = [f(config.settings["weight_decay"] for config in of) for of in (theirs, ours) for f in (min, max)]
    assert "chose {:.2g} to {:.2g} for AdamW, {:.2g} to {:.2g} for Adan.".format(*decays) in TEXT
    b3 = [config.settings["betas"][2] for config in ours]
    assert f"chose a b3 of {min(b3):.3f} to {max(b3):.3f};" in TEXT


def test_weight_decay_is_the_papers_because_the_records_do_not_decide_it():
    deit = published("vit-swin", "adamw", "vit-s")["settings"]["weight_decay"]
    assert deit / recipes["vit"].weight_decay == pytest.approx(LR_RATIO)
    larger = []
    for search in SEARCHES:
        runs = STORED[search.study].search["adan"]
        for alike in grouped(runs, lambda r: [r.config.settings["lr"], r.config.settings["betas"]]):
            ranks = {run.config.settings.get("weight_decay"): rank(run) for run in alike}
            larger += [ranks[max(ranks)] < ranks[min(ranks)]] if len(ranks) > 1 else []
    assert (len(larger), sum(larger)) == (15, 8)
    assert "In our 15 comparisons of two decays the larger one was better in eight." in TEXT
    gpt = [trial("gpt", "adan", lr=0.004, betas=[0.9, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    vit = [trial("vit-25", "adan", lr=0.001414, betas=[0.98, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    assert gpt[0] < gpt[1]  # a loss: 0.02 is better
    assert vit[0] < vit[1]  # an accuracy: 0.1 is better
    assert max(abs(a - b) / a for a, b in (gpt, vit)) < 0.005
    assert "differ by less than 0.5%, and not in the same direction" in TEXT
    chosen = STORED["resnet34-30-again"].chosen
    assert [chosen[name].config.settings["weight_decay"] for name in ("adamw", "adan")] == [0.5, 0.1]


def test_b3_of_the_masked_autoencoder():
    def trials(study, b3):
        runs = STORED[study].search["adan"]
        same = {"betas": [0.98, 0.92, b3], "weight_decay": 0.02}
        return {run.lr: run.final for run in runs if {**run.config.settings, **same} == run.config.settings}

    usual, papers = trials("mae-50", 0.99), trials("mae-50-again", recipes["mae-pretrain"].betas[2])
    assert [usual[rate] < papers[rate] for rate in usual if rate in papers] == 4 * [True]
    assert "better with 0.99 than with the paper's 0.9 at all four rates" in TEXT


def test_what_the_page_says_of_wrong_rates_is_in_the_records():
    half, tuned = (trial("gpt", "adan", lr=lr, betas=[0.9, 0.92, 0.99], weight_decay=0.02) for lr in (0.002, 0.004))
    adamw = trial("gpt", "adamw", lr=0.002, betas=[0.9, 0.99], weight_decay=0.1)
    assert f"at AdamW's best lr, 0.002: {half:.3f}, AdamW {adamw:.3f}, Adan at 0.004 {tuned:.3f}" in TEXT
    plateau = trial("sensitivity-gpt", "adan", lr=0.018)
    assert f"at lr 0.018, {0.018 / 0.004:.1f} times the tuned one: {plateau:.2f}; the best is {tuned:.2f} |" in TEXT
    assert all(group.n == 1 for group in STORED["sensitivity-vit-25"].groups)  # every loss is finite
    best, last = trial("vit-25", "adan", lr=0.001414, weight_decay=0.1), trial("sensitivity-vit-25", "adan", lr=0.03)
    assert f"ViT at lr 0.03, {0.03 / 0.001414:.0f} times the tuned one: finite, accuracy {last:.0%}; " in TEXT
    assert f"the best is {best:.0%} |" in TEXT


def test_a_width_is_interpolated_in_the_logarithm_of_the_rate():
    runs = tuning.swept("gpt", "adan")[:3]
    runs = [
        replace(
            run,
            config=replace(run.config, settings={**run.config.settings, "lr": lr}),
            result={**run.result, "final": {run.metric: value}},
        )
        for run, lr, value in zip(runs, (1e-3, 1e-2, 1e-1), (1.04, 1.0, 1.01), strict=True)
    ]
    factor, seen = tuning.width(runs)
    assert factor == pytest.approx(10 * 10**0.5)  # 1.02 is halfway to 1e-3; at 1e-1 the result is still within 2%
    assert not seen


def test_robustness_to_the_rate_is_what_the_page_says():
    spans = {
        name: [tuning.width(tuning.swept(name, who))[0] for who in ("adan", "adamw")] for name in results_page.SWEEPS
    }
    assert [round(x, 1) for x in (*spans["gpt"], *spans["vit-25"], *spans["lstm-8-again"])] == [
        *(2.8, 3.3),
        *(4.2, 3.2),
        *(1.6, 2.4),
    ]
    wider = [name for name, (ours, theirs) in spans.items() if ours > theirs]
    assert wider == ["vit-25", "resnet34-30"]
    assert "Not in general: the good rates span more than AdamW's on two models and less on the other two." in TEXT
    assert "[wider](#learning-rates-and-betas) than AdamW's on two models of four" in flat("docs/results.md")
    counts = [len(tuning.swept(name, who)) for name in results_page.SWEEPS for who in ("adan", "adamw")]
    assert (min(counts), max(counts)) == (10, 14)
    assert "ten to fourteen rates" in TEXT


def test_ratios_of_the_papers_long_runs():
    said = "rate is 4 times the baseline's (Transformer-XL), 7.5 times (ViT) and 10 times (BERT, a one-layer LSTM)"
    for table, workload in (("bert", "bert-pretrain"), ("lstm", "lstm-1")):
        lr = {who: published(table, who, workload)["settings"]["lr"] for who in ("adan", "adam")}
        assert lr["adan"] / lr["adam"] == pytest.approx(10)
    assert recipes["transformer-xl"].lr / published("transformer-xl", "adam")["settings"]["lr"] == 4
    vit, row = recipes["vit"], published("vit-swin", "adamw", "vit-s")
    assert vit.lr / (row["settings"]["lr"] * vit.batch_size / row["batch_size"]) == 7.5
    assert said in TEXT


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("convnext-25-again", "A ConvNeXt (eight times, 4,375 steps)"),
        ("resnet34-30-again", "a ResNet-34 (fourteen times, 5,265 steps)"),
    ],
)
def test_what_cnns_chose(study, said):
    theirs, ours = tuning.tuned(STORED[study])
    assert {8: "eight", 14: "fourteen"}[round(ours.lr / theirs.lr)] in said
    assert f"{ours.config.steps:,}" in said
    assert said in TEXT
    assert ours.lr == max(run.lr for run in STORED[study].search["adan"])  # "the largest rate that was tried"


def test_what_the_page_says_of_defaults():
    """Verdicts corrected by Holm over the eight workloads, against AdamW and against NAdamW."""
    groups = {name: {g.optimizer: g for g in STORED[f"default-{name}"].groups} for name in tuning.DEFAULTS}
    assert {group.n for own in groups.values() for group in own.values()} == {3}
    found: dict[tuple[str, str], list[str]] = {}
    p_values = {}
    for other in ("adamw", "nadamw"):
        p_values[other] = {name: (own["adan"].result - own[other].result).p for name, own in groups.items()}
        for (name, own), left in zip(groups.items(), holm([*p_values[other].values()]), strict=True):
            found.setdefault((other, own["adan"].minus(own[other], left).word), []).append(name)
    assert found["adamw", "better"] == ["gpt", "vit-25"]
    assert ("adamw", "worse") not in found
    assert "corrected by Holm over the eight, Adan ends better than AdamW on 2, the 10.9 M GPT and the ViT" in TEXT
    assert "and worse on none." in TEXT
    assert found["nadamw", "worse"] == ["lstm-8"]
    assert f"better than Adan on 1, the LSTM, and worse on {len(found['nadamw', 'better'])}." in TEXT
    finals = [*groups["gpt"]["adan"].by_seed().values()]
    half = 4.303 * statistics.stdev(finals) / 3**0.5  # Student's t for two degrees of freedom
    assert f"| GPT, 10.9 M, loss | {statistics.fmean(finals):.4g} ± {half:.2g} |" in TEXT
    assert "± is half a 95% interval." in TEXT
    best = tuning.tuned(STORED["vit-25"])[0].lr
    assert groups["vit-25"]["adamw"].settings["lr"] / best == pytest.approx(3, rel=0.1)
    assert "the ViT (where AdamW's best learning rate is a third of 0.0014)" in TEXT


def test_one_setting_beat_a_search_of_twelve_points():
    (ours,) = (group for group in STORED["default-gpt"].groups if group.optimizer == "adan")
    first, second = (g for study in FIELDS[:2] for g in study.groups if g.optimizer == "adan")
    assert FIELD.planned_trials == first.first.config.origin.trials == 12
    gap = results_page.UNITS["loss"].gap(ours.minus(first))
    assert f"this setting reached {ours.final().mean:.4f} (n = {ours.n}), the two searches of" in TEXT
    assert f"{first.final().mean:.4f} and {second.final().mean:.4f} for Adan (n = {first.n})." in TEXT
    assert f"The first difference, {gap}, is significant, uncorrected; the second is not." in TEXT
    assert [ours.minus(theirs).word for theirs in (first, second)] == ["better", "not significant"]


def test_the_page_is_short():
    assert len([word for word in TEXT.split() if word not in ("|", "---")]) <= 1_800
