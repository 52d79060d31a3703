"""The page of the evidence: its numbers are those of the records, and its words follow them."""

import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from evidence import compare, experiments, figures, overview, page
from evidence.jobs import read
from evidence.sections import choices, images, language, others, parts, pretraining
from evidence.sections.language import CUT_OFF, cut_off
from evidence.studies import (
    BATCH_SIZE,
    BATCH_SIZE_B1,
    BERT_AGAIN,
    COLA_AGAIN,
    COLA_OWN_AGAIN,
    CONVNEXT_AGAIN,
    DETR,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    GPT_HALF,
    MAE,
    MAE_AGAIN,
    MAE_FINE_TUNED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    RESNET,
    SST2_AGAIN,
    SST2_OWN_AGAIN,
    STUDIES,
    VIT_25,
)


@pytest.fixture
def records():
    return read(page.RUNS)


def test_the_repository_s_records_name_no_folder(records):
    for record in records.values():
        assert "/" not in record["environment"]["command"]
        assert not re.search(r"(^|\s)/", record["note"])


def test_welch_is_scipy_s():
    from scipy.stats import ttest_ind

    a, b = [1.0, 2.0, 4.0, 3.5], [5.0, 5.1, 5.3]
    interval, expected = compare.welch(a, b), ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    wider = ttest_ind(a, b, equal_var=False).confidence_interval(1 - 0.05 / 3)
    assert compare.welch(a, b, 3).high == pytest.approx(wider.high)
    assert compare.welch(a, b[:2]).low is None


def test_the_paired_test_is_scipy_s_and_its_sentence_is_of_the_rows(records):
    from scipy.stats import ttest_rel

    rows = overview.rows(records)
    row = next(r for r in rows if r.name == "ViT, batch size 128")
    left, right = row.adan.by_seed(), row.best.by_seed()
    expected = ttest_rel(*zip(*((left[seed], right[seed]) for seed in left), strict=True))
    interval = compare.paired(row.adan, row.best, 1).difference
    assert (interval.low, interval.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert "ViT, batch size 128: not significant" in overview.by_pairs(rows)
    assert overview.by_pairs([r for r in rows if r.name == "ConvNeXt"]) == "better in 1, worse in 0, no row changed"


def test_what_other_analyses_would_say(records):
    """Each against a computation of its own; the counts of the page stand beside them."""
    rows = {r.name: r for r in overview.rows(records)}
    comparisons = list(rows.values())
    assert sum(overview.tally([r.lead.word for r in comparisons])) == len(comparisons)
    tests = sum(r.baselines for r in comparisons)
    wide = compare.verdict(rows["ConvNeXt"].adan, rows["ConvNeXt"].best, tests)
    assert (rows["ConvNeXt"].lead.word, wide.word) == ("better", "not significant")
    assert "ConvNeXt: not significant" in overview.with_all_rows(comparisons)
    assert "MAE, fine-tuned: worse" in overview.with_first_searches(comparisons, records)
    adan, adamw = compare.compared(MAE_FINE_TUNED, records)
    assert compare.verdict(adan, adamw, 1).word == "worse"
    fewer = [rows["ViT, 25 epochs"]]
    seeds = [list(group.by_seed().values()) for group in (fewer[0].adan, fewer[0].best)]
    assert len(seeds[0]) > 3
    assert compare.welch(seeds[0][:3], seeds[1][:3], fewer[0].tests).low > 0
    assert overview.with_few_seeds(fewer) == "better in 1, worse in 0, no row changed"


def test_the_page_counts_by_how_settings_were_chosen(records):
    rows = {r.name: r.tuned for r in overview.rows(records)}
    assert rows["ViT, 25 epochs"] == rows["ConvNeXt"] == "at full length"
    assert rows["ViT, 50 epochs"] == rows["ViT, batch size 128"] == rows["Tianshou's PPO, Ant"] == "elsewhere"
    assert rows["ResNet-34, 30 epochs"] == rows["Tianshou's PPO, Hopper"] == "shorter trials"
    assert rows["ResNet-34, 200 epochs, untuned"] == "no"
    shown = [line.split(" | ")[1:] for line in overview.by_tuning(overview.rows(records)).splitlines()[2:]]
    numbers = [[int(cell.strip(" |")) for cell in line] for line in shown]
    assert all(total == sum(words) for total, *words in numbers)
    assert sum(total for total, *_ in numbers) == len(rows)


def test_welch_of_groups_that_do_not_vary():
    interval = compare.welch([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (interval.mean, interval.low, interval.high) == (1.0, 1.0, 1.0)
    assert compare.Verdict(compare.welch([1.0] * 3, [1.0] * 3), higher=True).word == "not significant"


@pytest.mark.parametrize(("problem", "length", "digits"), [("vit", 25, 2), ("gpt", 2_000, 4)])
def test_the_page_s_means_are_those_of_the_lines(problem, length, digits, records):
    """Taken from the lines without asking the studies which of them count."""
    text = page.PAGE.read_text(encoding="utf-8")
    options = {"batch_size": 256 if problem == "vit" else 64}
    rows = {}
    for record in records.values():
        task = record["job"]
        same = (task["problem"], task["length"], task["options"], task["tuning"]) == (problem, length, options, False)
        if same and record["status"] == "finished" and "state_format" not in task["settings"]:
            rows.setdefault(task["optimizer"], []).append(record["final"][record["metric"]])
    assert len(rows) == 3
    for optimizer, values in rows.items():
        mean = np.mean(values) * (100 if problem == "vit" else 1)
        assert re.search(rf"\| {page.NAMES[optimizer]} \| .* \| {len(values)} \| {mean:.{digits}f} ± ", text)


def test_what_the_page_on_memory_says_of_formats_is_in_the_records(records):
    def perplexities(state_format, source):
        return [
            r["final"]["perplexity"]
            for r in source.values()
            if r["job"]["study"] in ("formats-lstm-8", "four-bit-lstm-8")
            and r["job"]["settings"].get("state_format") == state_format
        ]

    _, first, second, _ = map(read, choices.GIVEN_UP)
    fp32 = perplexities(None, records)
    runs = [perplexities(*which) for which in
            (("4bit", second), ("4bit", first), ("4bit", records), ("8bit", records))]  # fmt: skip
    assert {len(fp32), *map(len, runs)} == {5}
    rises = [f"{np.mean(values) - np.mean(fp32):.2f}" for values in runs]
    text = " ".join((page.ROOT / "docs" / "memory.md").read_text(encoding="utf-8").split())
    assert f"(five seeds, fp32 {np.mean(fp32):.2f}, standard deviation {np.std(fp32, ddof=1):.2f}) the" in text
    assert (
        "rose by {} with 4 bits for m and 8 for √n, by {} with 8 and 4, and by {} with 6 and 6".format(*rises) in text
    )
    assert f"8-bit states cost {rises[3]} there, which is not significant" in text


def test_what_the_readme_says_of_formats_is_on_the_page():
    table = page.PAGE.read_text(encoding="utf-8").partition("## States of 8 and 4 bits")[2].partition("\n\n## ")[0]
    assert table.count("not significant (n = 5)") == 5
    ((fp32, rise),) = re.findall(r"LSTM.*? \| (\d+)\.\d+ ± .* \| \+([\d.]+) \[.*\]: worse \(n = 5\) \|$", table, re.M)
    readme = " ".join((page.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "With five seeds each on a GPT, a ViT and an LSTM, 4-bit states raised the LSTM's perplexity of" in readme
    assert (int(fp32), float(rise)) == (104, 0.70)
    assert "perplexity of 105 by 0.7; the other five differences" in readme


def test_what_the_readme_says_of_sizes_and_seeds(records):
    groups = [group for row in overview.rows(records) for group in (row.adan, row.best)]
    largest = max(r.get("parameters") or 0 for group in groups for r in group.records)
    counts = [group.n for group in groups]
    readme = " ".join((page.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"small models (at most {largest / 1e6:.0f} M parameters)" in readme
    assert f"and {min(counts)} to {max(counts)} seeds:" in readme


def test_the_page_says_where_adan_is_worse(records):
    def said():
        heads, _, cells = overview.verdicts(overview.rows(records)).splitlines()
        return dict(zip((head.split()[0] for head in heads.strip("| ").split(" | ")), cells.split(" | "), strict=True))

    assert "ViT (25 epochs" in said()["better"]
    assert "ViT (batch size 4,096)" in said()["worse"]
    for record in records.values():
        task = record["job"]
        if (task["problem"], task["optimizer"], task["tuning"]) == ("vit", "adan", False):
            record["final"]["accuracy"] -= 0.1
    assert "ViT" not in said()["better"]
    assert "ViT (25 epochs" in said()["worse"]


def test_what_the_page_says_of_the_detector_s_rates(records):
    """AdamW's chosen rate is the last but one of those tried, the last hardly trains, another has the best AP."""
    trials = DETR.asked(DETR.entry("adamw"), records)
    by_rate = sorted((job.settings["lr"], records[job.key]["final"]["box AP"]) for job in trials)
    assert DETR.best("adamw", records)["lr"] == by_rate[-2][0]
    assert by_rate[-1][1] < 0.1
    assert by_rate[-1][0] / by_rate[-2][0] <= 2
    assert max(by_rate, key=lambda trial: trial[1])[0] != by_rate[-2][0]
    said = "within a factor of two of one at which it hardly trains, and not the one with its best AP"
    assert said in " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_the_larger_gpt_s_lead_is_a_third_in_the_second_search(records):
    best = [
        min(records[job.key]["final"]["loss"] for job in GPT_30M_AGAIN.asked(entry, records))
        for entry in GPT_30M_AGAIN.entries
    ]
    adan, adamw = (group.final().mean for group in compare.compared(GPT_30M, records))
    assert (best[1] - best[0]) / (adamw - adan) == pytest.approx(1 / 3, abs=0.03)
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    assert "Adan is better, too, by a third of that" in text
    assert f"{best[0]:.4f} and {best[1]:.4f} are only {best[1] - best[0]:.4f} apart. Its seeds were cut off" in text
    step, ours, theirs = cut_off()
    assert step >= 0.85 * GPT_30M_AGAIN.length
    assert len(ours) == len(theirs) == 3
    assert compare.welch(ours, theirs).high < 0
    assert (np.mean(theirs) - np.mean(ours)) / (adamw - adan) == pytest.approx(1 / 3, abs=0.03)
    jobs = {job.key for job in GPT_30M_AGAIN.reported(records)}
    assert read(CUT_OFF).keys() <= jobs


def test_how_many_trials_mae_had_over_all_searches(records):
    def count(optimizer, *studies):
        return len({job.key for study in studies for job in study.asked(study.entry(optimizer), records)})

    before, after = (MAE, MAE_AGAIN, MAE_FULL), (MAE_FINE_TUNED, MAE_FULL_FINE_TUNED)
    assert [count(name, *which) for which in (before, after) for name in ("adan", "adamw")] == [17, 12, 10, 5]
    said = "17 against AdamW's 12 for MAE's pre-training, 10 against 5 for its fine-tuning"
    assert said in " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_a_half_length_at_which_the_others_do_as_well_is_said_to_say_little(records):
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    short, full = (compare.compared(images.VIT[epochs][0], records)[1] for epochs in (50, 100))
    alone = compare.verdict(short, full, 1)
    assert (short.optimizer, alone.word) == ("adamw", "not significant")
    assert f"their own result after 100 either (AdamW {parts.ACCURACY.change(alone.difference)} and LAMB" in text
    assert text.count("This says little: after") == 1  # from 25 to 50 epochs, both gain


def test_what_the_page_says_of_the_first_search_for_the_resnet(records):
    tried = [job.settings for job in RESNET.asked(RESNET.entry("adan"), records)]
    adamw = RESNET.best("adamw", records)
    assert max(s["lr"] * s["weight_decay"] for s in tried) < 0.5 * adamw["lr"] * adamw["weight_decay"]
    said = "lr × decay of every trial of Adan was less than half that of AdamW's chosen settings"
    assert said in " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_no_comparison_of_fewer_than_three_seeds(records):
    fewer = {key: r for key, r in records.items() if r["job"]["tuning"] or r["job"]["seed"] < 2}
    text, shown = page.page(fewer)
    assert not re.search(r": (better|worse|not significant) \|", text)
    assert "200 epochs of ResNet-34 and the LSTM; the paper's scale ([the" in " ".join(text.split())
    assert overview.rows(fewer) == []
    assert not {"results-vit.svg", "results-gpt.svg", "results-ppo.svg"} & shown.keys()


def test_seeds_of_a_study_that_cannot_be_compared_yet_are_listed(records):
    apart = {"study": "convnext-25-again", "seed": 2}
    fewer = {key: r for key, r in records.items() if not apart.items() <= r["job"].items()}
    by_seed = [compare.groups(CONVNEXT_AGAIN, fewer)[i].by_seed() for i in (0, 1)]
    adan, adamw = (f"{100 * values[0]:.2f} and {100 * values[1]:.2f}" for values in by_seed)
    text = " ".join(page.page(fewer)[0].split())
    begun = "without clipping. **Unfinished**, with too few seeds to compare them; test accuracy, %, so far:"
    assert f"{begun} Adan {adan}; AdamW {adamw}." in text


def test_a_figure_knows_the_records_that_it_shows(records, tmp_path):
    panels = page.page(records)[1]["results-gpt.svg"]
    figures.draw(panels, tmp_path / "a.svg")
    assert (
        figures.drawn(tmp_path / "a.svg") == figures.digest(panels) == figures.drawn(page.FIGURES / "results-gpt.svg")
    )
    panels[0].lines[0].y[-1] += 0.01
    assert figures.digest(panels) != figures.drawn(tmp_path / "a.svg")


def imagined(job):
    """A stored record of a run that was not made; Adan's is the better one."""
    metric, higher = {
        "lstm": ("perplexity", False),
        "transformer-xl": ("perplexity", False),
        "gpt": ("loss", False),
        "bert": ("loss", False),
        "mae": ("loss", False),
        "detr": ("box AP", True),
        "glue": ("matthews", True) if job.options.get("task") == "cola" else ("accuracy", True),
        "harness": ("episode reward", True),
    }.get(job.problem, ("accuracy", True))
    good = 0.01 * (job.optimizer == "adan") + 0.001 * job.seed % 0.003
    value = 0.6 + good if higher else 2.0 - good
    steps = job.length * (10 if job.unit == "epochs" else 1)
    curve = {"step": [steps // 2, steps], metric: [value, value], "train_loss": [1.0, 1.0]}
    return {
        "key": job.key,
        "seed": job.seed,
        "job": {**asdict(job), "options": dict(job.options), "settings": dict(job.settings)},
        "status": "finished",
        "metric": metric,
        "higher_is_better": higher,
        "final": {metric: value, "train_loss": 1.0, **({"box AP50": 0.9} if metric == "box AP" else {})},
        "curve": curve,
        "steps": steps,
        "parameters": 1_000_000,
        "wall_seconds": 1.0,
        "environment": {"gpu": "a GPU", "workers": 1},
    }


def test_the_page_of_all_studies_together():
    records = {}
    studies = [*STUDIES.values(), *others.PPO["stable-baselines3's PPO"]]
    while jobs := [job for study in studies for job in study.jobs(records)]:
        records |= {job.key: imagined(job) for job in jobs}
    text, shown = page.page(records)
    flat = " ".join(text.split())
    names = "all vit batch-size cnn mae gpt lstm transformer-xl tiny bert detr cora ppo lr b1"
    assert {f"results-{name}.svg" for name in names.split()} == {name for name, panels in shown.items() if panels}
    for part in (
        "100 epochs",
        "Mixture of 8 experts",
        "AdaBelief",
        "a restart every 333 steps",
        "b3 = 0.95",
        "Walker2d",
        "| 4,096 | 250 | 61.",
        "ResNet-34, 5 epochs",
        "Matthews correlation, %",
        "**Half the length**: Adan after 1,500 steps, 1.9",
        "PPO has only the four rates; ConvNeXt, MAE, the larger GPT, Transformer-XL, BERT's pre-training and",
        "- **CNNs on CIFAR-10**: `convnext-25` was tuned at 10 epochs",
        "Adan 64.6, Adam 58.5",
        "Box AP50, %: Adan 90.0 ± 0.0 and AdamW 90.0 ± 0.0. The paper's Table 8",
        "box AP 45.3 with Adan, 44.5 with AdamW after 50 epochs",
        "by the same optimizer and from the same seed",
        "| LSTM, 200 epochs, untuned, recurrent weights fixed: test perplexity ↓ |",
    ):
        assert part in flat
    assert "not run" not in text.partition("## States of 8 and 4 bits")[2].partition("##")[0]
    rest = "anything else at the paper's scale than 200 epochs of ResNet-34 and the LSTM ([the"
    assert f"**Not tested or unfinished**: Mask R-CNN (Table 9); {rest}" in flat
    assert "**worse in 0**" in text.split("\n\n")[2]


@pytest.mark.parametrize("status", ["diverged", "finished"])
def test_an_optimizer_with_diverged_seeds_is_not_called_better(status):
    """Adan's other seeds are better than AdamW's by far; a metric that is not finite is no better than a loss."""
    study = replace(VIT_25, seeds=(0, 1, 2, 3, 4))
    records = {}
    while jobs := [job for job in study.jobs(records) if job.key not in records]:
        records |= {job.key: imagined(job) for job in jobs}

    def rows():
        return parts.comparison(compare.compared(study, records), parts.ACCURACY).splitlines()[2:]

    assert [row.endswith(": better |") for row in rows()] == [False, True, True]
    seeds = [r for r in records.values() if r["job"]["optimizer"] == "adan" and not r["job"]["tuning"]]
    for record in seeds[3:]:
        record["status"], record["final"]["accuracy"] = status, float("nan")
    adan, *others = rows()
    assert "| 3 of 5, 2 diverged | 61." in adan
    assert all(row.endswith(": not significant |") for row in others)
    (row,) = overview.row("ViT", study, compare.compared(study, records), parts.ACCURACY)
    assert "(of 2) | 3 of 5, 2 diverged/5 |" in overview.summary([row])
    assert "better in 0" in overview.verdicts([row])
    for record in seeds[2:]:
        record["status"] = "diverged"
    assert compare.compared(study, records) == []
    assert compare.lost(study, records) == [("adan", 3, 5)]


def test_an_opponent_with_diverged_seeds_is_neither_better_nor_the_best_baseline():
    records = {}
    while jobs := [job for job in VIT_25.jobs(records) if job.key not in records]:
        records |= {job.key: imagined(job) for job in jobs}
    adan, adamw, lamb = (
        compare.Group(
            name, tuple(r for r in records.values() if r["job"]["optimizer"] == name and not r["job"]["tuning"])
        )
        for name in ("adan", "adamw", "lamb")
    )
    assert compare.verdict(lamb, adan, 1).word == "worse"
    lost = replace(adan, diverged=1)
    assert compare.verdict(lamb, lost, 1).word == "not significant"
    assert compare.verdict(lost, lamb, 1).word == "not significant"
    assert compare.verdict(adan, replace(lamb, diverged=1), 1).word == "better"
    assert compare.best_baseline([lamb, lost, adamw]) is adamw


def test_the_page_says_which_seeds_diverged(records):
    assert "Diverged seeds" not in page.page(records)[0]
    lost = [r for r in records.values() if r["job"]["study"] == "detr-bccd" and not r["job"]["tuning"]][:1]
    lost[0]["status"] = "diverged"
    text = " ".join(page.page(records)[0].split())
    name, n = page.NAMES[lost[0]["job"]["optimizer"]], len(compare.groups(DETR, read(page.RUNS))[0].records)
    assert f"- **Diverged seeds**: `detr-bccd` {name} 1 of {n}. Means are of the other seeds" in text
    assert f"| {n - 1} of {n}, 1 diverged |" in text


def test_batch_sizes_are_shown_one_by_one():
    """With two seeds of three at 4,096 the table ends at 1,024."""
    records = {}
    while jobs := [job for job in (*VIT_25.jobs(records), *BATCH_SIZE.jobs(records)) if job.key not in records]:
        records |= {job.key: imagined(job) for job in jobs}
    section = images.batch_sizes(records)
    assert section.panels[0].lines[0].x == [128, 256, 1_024, 4_096]
    (rows,) = (text.splitlines() for text in section.body if text.startswith("|"))
    assert len(rows) == 6
    fewer = {key: r for key, r in records.items() if r["job"]["options"]["batch_size"] < 4_096 or r["seed"]}
    section = images.batch_sizes(fewer)
    assert section.panels[0].lines[0].x == [128, 256, 1_024]
    assert all(len(line.low) == 3 for line in section.panels[0].lines)
    assert any("Adan 80.9, 81.1" in text for text in section.body)


def test_the_best_of_several_others_is_corrected_for_all_of_them(records):
    """The results choose between AdamW and LAMB, at two sizes: four comparisons, and two at half the length."""
    size = 1_024
    (adan,) = (g for g in compare.groups(BATCH_SIZE_B1, records) if g.options["batch_size"] == size)
    others = images.by_batch_size(records)[size]
    best = compare.best_baseline(others)
    (said,) = (text for text in images.batch_sizes(records).body if text.startswith("**With b1 = 0.9**"))
    assert parts.ACCURACY.change(compare.verdict(adan, best, 4).difference) in said
    (half,), results = compare.groups(GPT_HALF, records), compare.compared(GPT, records)
    assert len(results) == 3
    (said, _) = (text for text in language(records).body if text.startswith("**Half the length**"))
    for other in results[1:]:
        assert parts.LOSS.change(compare.verdict(half, other, 2).difference) in said


def test_a_task_that_guessing_solves_is_left_out():
    records = {}
    chain = BERT_AGAIN, COLA_AGAIN, SST2_AGAIN, COLA_OWN_AGAIN, SST2_OWN_AGAIN
    while jobs := [job for study in chain for job in study.jobs(records)]:
        records |= {job.key: imagined(job) for job in jobs}
    section = pretraining.bert(records)
    assert len(section.panels) == 3
    assert sum("BERT" in row.name for row in overview.rows(records)) == 5
    assert "BERT on GLUE (Table 11)" not in experiments.untested(records)
    for record in records.values():
        if record["job"]["problem"] == "glue":
            record["final"][record["metric"]] -= 0.57 if record["metric"] == "matthews" else 0.07
    section = pretraining.bert(records)
    assert len(section.panels) == 1
    text = " ".join(section.body)
    assert "CoLA is left out of the first table, whose rows require" in text
    assert "Matthews correlation, %: Adan 4.08 ± " in text
    assert [row.name for row in overview.rows(records)] == ["BERT, pre-training"]
    assert "BERT on GLUE (Table 11)" in experiments.untested(records)
