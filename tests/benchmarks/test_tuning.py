"""The numbers of `suggest_from_adamw` and of docs/tuning.md are those of the records and of the paper."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import results_page
import tuning
from stored import studies

from adan import recipes, suggest_from_adamw
from adan.suggestion import B1, DECAY_RATIO, LR_RATIO, WARMUP
from adan_bench.records.stats import Verdict, rank, welch

ROOT = Path(__file__).parents[2]
STORED = studies()
TEXT = " ".join((ROOT / "docs" / "tuning.md").read_text(encoding="utf-8").split())
POINTS = sorted(
    {(setting, point) for setting, of in tuning.RULES.items() for rule in of.values() for point in rule.points}, key=str
)
OURS = [pytest.param(setting, point, id=f"{setting}: {point}") for setting, point in POINTS if not point.paper]
PAPERS = [pytest.param(setting, point, id=f"{setting}: {point}") for setting, point in POINTS if point.paper]


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


def settings_of(table):
    path = ROOT / "src" / "adan_bench" / "tables" / f"{table}.json"
    return json.loads(path.read_text(encoding="utf-8"))["settings"]


def published(table, optimizer, workload=""):
    """The first settings of an optimizer in one of the paper's tables."""
    rows = settings_of(table)
    return next(r for r in rows if r["optimizer"] == optimizer and workload in r.get("workload", workload))


@pytest.mark.parametrize(("setting", "point"), OURS)
def test_a_point_of_a_study_is_what_its_trials_chose(setting, point):
    value, words = tuning.derived(setting, STORED[point.source])
    assert point.value == float(f"{value:.3g}")
    assert f"({point.source}: {words})" in TEXT
    assert point.steps in (0, *{run.config.steps for run in STORED[point.source].search["adan"]})


@pytest.mark.parametrize(("setting", "point"), PAPERS)
def test_a_point_of_the_paper_is_what_its_tables_have(setting, point):
    names = {
        "ViT on ImageNet": ("vit", 100 * 1_280_000 // 2048),  # its shortest runs: 100 epochs
        "Transformer-XL": ("transformer-xl", 100_000),
        "BERT on GLUE": ("bert-finetune", 0),
        "PPO": ("rl-ppo", 0),
        "default betas": ("default", 62_500),
    }
    name, steps = names[point.source]
    recipe = recipes[name]
    assert point.steps == steps
    if setting == "b1":
        assert point.value == recipe.betas[0]
    elif name == "vit":
        assert recipe.batch_size == 2048
        row = published("vit-swin", "adamw", "vit-s")
        assert point.value == recipe.lr / (row["settings"]["lr"] * recipe.batch_size / row["batch_size"])
    elif name == "transformer-xl":
        assert "100k" in recipe.length
        assert point.value == recipe.lr / published("transformer-xl", "adam")["settings"]["lr"]
    else:
        tasks = sorted({row["workload"] for row in settings_of("bert") if "glue" in row["workload"]})
        ratios = [
            published("bert", "adan", task)["settings"]["lr"] / published("bert", "adam", task)["settings"]["lr"]
            for task in tasks
        ]
        assert len(ratios) == 7
        assert point.value == statistics.median(ratios)


def test_other_records_give_another_value():
    """Had the trial with b1 = 0.95 been the best, the rule would be wrong, and this is how it would be noticed."""

    def changed(run):
        best = run.config.settings["betas"][0] == 0.95
        return replace(run, result={**run.result, "final": {run.metric: 0.1}}) if best else run

    gpt = STORED["gpt"]
    other = replace(gpt, search={**gpt.search, "adan": tuple(map(changed, gpt.search["adan"]))})
    assert tuning.derived("b1", other)[0] == 0.95 != B1["lm"].short.value


def test_the_smallest_b1_is_best_in_all_shorter_runs():
    runs = [run for group in STORED["b1-length-gpt"].groups for run in group.runs]
    for length in (500, 1_000):
        by_b1 = tuning.by_b1([run for run in runs if run.config.steps == length])
        assert min(by_b1, key=by_b1.get) == B1["lm"].short.value
        assert f"| {length:,} steps | {' | '.join(f'{value:.3f}' for value in by_b1.values())} |" in TEXT


def test_warm_up_is_that_of_every_tuned_run():
    names = {*tuning.SWEPT, *" ".join(names for task, names in tuning.OTHERS.items() if task != "rl").split()}
    assert {run.config.warmup for name in names for run in STORED[name].search["adan"]} == {WARMUP}


def test_weight_decay_is_the_papers_because_the_records_do_not_decide_it():
    deit = published("vit-swin", "adamw", "vit-s")["settings"]["weight_decay"]
    assert pytest.approx(recipes["vit"].weight_decay / deit) == DECAY_RATIO
    gpt = [trial("gpt", "adan", lr=0.004, betas=[0.9, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    vit = [trial("vit-25", "adan", lr=0.001414, betas=[0.98, 0.92, 0.99], weight_decay=x) for x in (0.02, 0.1)]
    assert gpt[0] < gpt[1]  # a loss: 0.02 is better
    assert vit[0] < vit[1]  # an accuracy: 0.1 is better
    assert max(abs(a - b) / a for a, b in (gpt, vit)) < 0.005
    assert "differ by less than 0.5%, and not in the same direction" in TEXT
    chosen = STORED["resnet34-30-again"].chosen
    assert [chosen[name]["weight_decay"] for name in ("adamw", "adan")] == [0.5, 0.1]


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


def test_half_the_best_rate_costs_less_than_twice_more_often_than_not():
    outcomes = []
    for study in STORED.values():
        trials = {tuning.lr(run): rank(run) for run in study.search.get("adan", ())[:5]}
        if study.planned_trials and len(trials) > 1 and next(iter(study.search)) == "adan":
            best = min(trials, key=trials.get)
            beside = [next((lr for lr in trials if lr / best == pytest.approx(x, rel=0.01)), None) for x in (0.5, 2)]
            if None not in beside:
                half, twice = (trials[lr] for lr in beside)
                outcomes.append(half < twice)
    assert f"In {sum(outcomes)} of our {len(outcomes)} searches that tried both, half the best rate cost less" in TEXT


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
    spans = {name: [tuning.width(tuning.swept(name, who))[0] for who in ("adan", "adamw")] for name in tuning.SWEPT}
    assert [round(x, 1) for x in (*spans["gpt"], *spans["vit-25"], *spans["lstm-8-again"])] == [
        *(2.8, 3.3),
        *(4.2, 3.2),
        *(1.6, 2.4),
    ]
    wider = [name for name, (ours, theirs) in spans.items() if ours > theirs]
    assert wider == ["vit-25", "resnet34-30"]
    assert "Not in general: the good rates span more than AdamW's on two models and less on the other two." in TEXT
    counts = [len(tuning.swept(name, who)) for name in tuning.SWEPT for who in ("adan", "adamw")]
    assert (min(counts), max(counts)) == (10, 14)
    assert "ten to fourteen rates" in TEXT
    adan, adamw = (group.final().mean for group in STORED["gpt"].compared()[:2])
    assert f"Adan's lead on the GPT is {1 - adan / adamw:.1%}" in TEXT


def test_what_else_the_paper_has_for_language_models():
    for table, workload in (("bert", "bert-pretrain"), ("lstm", "lstm-1")):
        lr = {who: published(table, who, workload)["settings"]["lr"] for who in ("adan", "adam")}
        assert lr["adan"] / lr["adam"] == pytest.approx(10)
    assert LR_RATIO["lm"].long.but == "10 for BERT and a one-layer LSTM"
    for table in ("gpt2", "bert", "lstm"):
        assert published(table, "adan")["settings"]["betas"][0] == 0.98
    assert B1["lm"].long.but == "0.98 for GPT-2, BERT and the LSTM"
    assert "The paper's GPT-2, BERT and LSTM have b1 = 0.98" in TEXT


def test_the_page_says_the_rules_in_short():
    assert (LR_RATIO["lm"].short.value, LR_RATIO["lm"].long.value) == (2, 4)
    assert (round(LR_RATIO["vision"].short.value, 1), LR_RATIO["vision"].long.value) == (2.8, 7.5)
    assert "two to four times AdamW's for language models (twice to begin with), 2.8 times for a vision" in TEXT
    assert "it is 4 times (Transformer-XL), 7.5 times (ViT) and 10 times (BERT, a one-layer LSTM)" in TEXT


def test_where_it_is_worth_it():
    """The page's first answer; where this fails, that sentence is to be written again."""
    words = {contest.label: contest.lead.word for contest in results_page.contests(STORED)}

    def found(*labels):
        return {word for label, word in words.items() if label.startswith(labels)}

    assert found("ViT, 25", "ViT, 50", "ConvNeXt", "GPT, ", "Transformer-XL", "mixture of experts") == {"better"}
    assert found("LSTM, 200 epochs, untuned") == {"better"}
    assert found("LSTM, 8 epochs", "ResNet-34, 30 epochs", "ViT, batch size 4,096") == {"worse"}
    assert found("ResNet-34, 200", "MAE", "BERT", "Deformable DETR", "DeepGCN", "Tianshou's PPO") == {"not significant"}


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
    theirs, ours = tuning.tuned(STORED[study])
    assert round(tuning.lr(ours) / tuning.lr(theirs)) == ratio
    assert f"{ours.config.steps:,}" in said
    assert said in TEXT
    if "ResNet" in said or "ConvNeXt" in said:  # "the largest rate tried"
        assert tuning.lr(ours) == max(map(tuning.lr, STORED[study].search["adan"]))


def test_large_batches():
    means = {}
    for name in ("batch-size-vit", "batch-size-vit-b1"):
        for group in STORED[name].groups:
            if group.first.config.batch_size == 4096:
                means[name, group.optimizer] = 100 * group.final().mean
    adamw = means["batch-size-vit", "adamw"]
    assert round(adamw - means["batch-size-vit", "adan"]) == 10
    assert "was [10 points behind AdamW](results.md#batch-sizes) in 300 steps of 4,096 images" in TEXT
    assert f"with b1 = 0.9 {adamw - means['batch-size-vit-b1', 'adan']:.1f} behind" in TEXT


def test_held_out_runs_have_the_suggestion_for_adamws_settings_and_do_not_differ():
    record = json.loads((ROOT / "results" / "held-out.json").read_text(encoding="utf-8"))
    assert (len(record["workloads"]), record["seeds"]) == (7, 3)
    for row in record["workloads"].values():
        theirs = row["adamw"]["settings"]
        s = suggest_from_adamw(
            theirs["lr"],
            weight_decay=theirs["weight_decay"],
            betas=tuple(theirs.get("betas", (0.9, 0.999))),
            total_steps=row["steps"],
            warmup_steps=round(0.05 * row["steps"]),
            task=row["task"],
            batch_size=row["batch_size"],
        )
        assert json.loads(json.dumps(s.options())) == row["adan"]["settings"]
        ours, base = row["adan"]["values"], row["adamw"]["values"]
        assert len(ours) == len(base) == record["seeds"]
        assert Verdict(welch(ours, base), row["higher_is_better"]).word == "not significant"


def test_no_rule_was_fitted_to_what_is_held_out():
    fitted = {point.source for _, point in POINTS if not point.paper}
    assert not fitted & {*" ".join(tuning.OTHERS.values()).split()}


def test_what_the_page_says_of_mixtures_of_experts_is_the_papers():
    rows = json.loads((ROOT / "src" / "adan_bench" / "tables" / "betas.json").read_text(encoding="utf-8"))["rows"]
    loss = {tuple(row["fixed"]["betas"]): row["values"][0] for row in rows if row["optimizer"] == "adan"}
    best = recipes["moe"].betas
    assert min(loss, key=loss.get) == best
    small = (0.9, 0.92, 0.95)
    assert f"a loss of {loss[best]} with b1 = {best[0]} and b3 = {best[2]}, {loss[small]} with b1 = 0.9" in TEXT


def test_the_page_is_short():
    assert len(TEXT.split()) <= 1_800
