"""Today's optimizers on the results page, and its statistics, by made-up values whose answers are known."""

import json
import math
import random
import re
from dataclasses import replace
from itertools import product
from statistics import fmean

import field
import ladder
import numpy as np
import pytest
import readme
import recompute
import results_details as details
import results_page as results
import stored
from inference import PowerLaw, estimate, holm, random_effects, spread_of, steps_ratio
from scipy.stats import ttest_ind
from support.pages import ROOT, flat

from adan_bench.config import Origin
from adan_bench.records.archive import pack
from adan_bench.records.stats import best_trial

PAGE, README = flat("docs/results.md"), flat("README.md")
LENGTHS = (1_000, 2_000, 4_000, 8_000, 16_000)
LOSSES = {"muon": 0.80, "adan": 0.82, "adamw": 0.85, "lion": 0.851, "soap": 0.9}

# Statistics


def test_one_search_gives_welchs_test():
    a, b = [1.0, 2.0, 4.0, 4.5], [2.0, 2.5, 3.1]
    gap, test = estimate(a) - estimate(b), ttest_ind(a, b, equal_var=False)
    assert gap.p == pytest.approx(test.pvalue)
    for comparisons in (1, 7):
        found, known = gap.interval(comparisons), test.confidence_interval(1 - 0.05 / comparisons)
        assert (found.low, found.high) == pytest.approx((known.low, known.high))
    assert estimate([1.0, 2.0]).interval().low is None
    assert (estimate([1.0, 2.0]) - estimate(a)).p == 1


def test_searches_that_differ_widen_the_interval():
    seeds = [0.1, 0.3, 0.2, 0.6, 0.4]
    alike, apart = estimate(seeds, seeds), estimate(seeds, [value + 0.5 for value in seeds])
    assert alike.variance == pytest.approx(estimate(seeds).variance / 2)  # no less than that of the seeds
    assert apart.variance == pytest.approx(0.5**2 / 4)
    known = (0.04, 9)
    assert estimate(seeds, spread=known).variance == pytest.approx(0.04)  # of one search beside others with two
    assert (estimate(seeds, spread=known) - estimate(seeds, seeds, spread=known)).freedom == 9
    assert spread_of([[seeds, seeds], [seeds, [value + 0.5 for value in seeds]], [seeds]]) == pytest.approx((0.0625, 2))


@pytest.mark.parametrize("search", [0.0, 1.0, 20.0])
def test_how_often_intervals_of_two_searches_hold_the_truth(search):
    """As the protocol says: 95% and more at the uncorrected level, and at that of a page of 40 rows."""
    rng, found = random.Random(0), []
    for _ in range(1_500):
        centers = [[rng.gauss(0, search) for _ in range(2)] for _ in range(9)]
        nine = [[[center + rng.gauss(0, 1) for _ in range(5)] for center in own] for own in centers]
        found.append(estimate(*nine[0], spread=spread_of(nine)) - estimate(*nine[1], spread=spread_of(nine)))
    held = [[gap.low <= 0 <= gap.high for gap in (one.interval(rows) for one in found)] for rows in (1, 40)]
    assert 0.935 <= fmean(held[0]) <= 0.99
    assert 0.997 <= fmean(held[1]) <= 1


def test_holm_corrects_for_what_is_left():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [3, 2, 2, 4]
    assert holm([0.03, 0.03]) == [2, 2]
    assert holm([0.02, 0.04]) == [2, 1]


def test_random_effects_of_the_thirteen_trials_of_bcg():
    """Log risk ratios of Colditz et al. (1994), the example of meta-analysis; the answers are of R's metafor."""
    effects = [-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.012, -0.4694, -1.3713, -0.3394]
    effects += [0.4459, -0.0173]
    variances = [0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714]
    found = random_effects([*zip(effects, variances, strict=True)])
    assert found.mean.mean == pytest.approx(-0.7141, abs=5e-4)
    assert found.mean.half == pytest.approx(2.1788 * 0.1807, rel=0.01)
    assert found.one_more.half == pytest.approx(2.2010 * math.hypot(0.3088**0.5, 0.1807), rel=0.01)
    alike = random_effects([(1.0, 0.04), (1.0, 0.04), (1.0, 0.04)])
    assert alike.mean.half == pytest.approx(4.3027 * math.sqrt(0.04 / 3), rel=1e-3)


def test_a_fit_over_lengths_gives_the_steps_for_a_loss():
    law = PowerLaw.of({t: 0.5 + 20 * t**-0.6 for t in LENGTHS}, dict.fromkeys(LENGTHS, 1.0))
    assert (law.a, law.b, law.c) == pytest.approx((0.5, 20, 0.6), rel=1e-3)
    assert law.steps(0.5 + 20 * 3_000**-0.6) == pytest.approx(3_000, rel=1e-4)
    assert law.steps(0.49) == math.inf


@pytest.mark.parametrize("falls", [0, 1])
def test_intervals_of_ratios_of_steps_hold_the_truth(falls):
    """Where errors are the same at all lengths, and where they fall as 1 / T."""
    rng, held, truth = np.random.default_rng(0), [], (36 / 40) ** (1 / 0.6)
    errors = {t: 0.002 * (2_000 / t) ** falls for t in LENGTHS}
    for at in [*LENGTHS] * 60:
        noisy = [{t: 0.5 + b * t**-0.6 + rng.normal(0, errors[t]) for t in LENGTHS} for b in (40, 36, 30)]
        laws = [PowerLaw.of(losses, errors) for losses in noisy]
        found = steps_ratio(laws[1], laws[0], at, laws, 99)
        assert found.mean == pytest.approx(truth, abs=0.15)
        held.append(found.low <= truth <= found.high)
    assert 0.91 <= np.mean(held) <= 0.98
    alone = steps_ratio(laws[1], PowerLaw.of({t: 0.4 + t**-0.6 for t in LENGTHS}, errors), 8_000, laws, 99)
    assert (alone.mean, alone.low) == (math.inf, None)


# The page


@pytest.fixture
def with_field(studies, tmp_path, monkeypatch):
    """Studies with made-up searches of the GPT: twelve trials each, of which the best two are confirmed, and seeds."""
    template = studies["default-gpt"].groups[0].first
    for kind in ("docs", "results/studies"):
        (tmp_path / kind).mkdir(parents=True)
    for name in ("evidence", "field-time.json"):
        (tmp_path / "results" / name).symlink_to(ROOT / "results" / name)
    for file in stored.NEWER.glob("*.jsonl"):
        if not file.name.startswith(("field-", "ladder-")):
            (tmp_path / "results" / "studies" / file.name).symlink_to(file)
    monkeypatch.setattr(recompute, "ROOT", tmp_path)
    monkeypatch.setattr(stored, "NEWER", tmp_path / "results" / "studies")

    def record(study, name, folder, loss, **config):
        settings = {"lr": config.pop("lr"), "betas": [0.9, 0.99], "weight_decay": 0.1}
        config = {"optimizer": name, "settings": settings, "study": study, "warmup": 0.1, "jobs": 7, **config}
        ended = {"status": "finished", "final": {"loss": loss}, "state_bytes_per_parameter": 8.0}
        curve = [(1_000, 30.0, 0.853), (config.get("steps", 2_000), 60.0, loss)]
        points = [{"kind": kind, "step": t, "seconds": s, "loss": v} for t, s, v in curve for kind in ("train", "eval")]
        result = {**template.result, **(ended if loss < 10 else {"status": "diverged", "final": {}})}
        own = replace(template.config, **config)
        return replace(template, path=tmp_path / study / name / folder, config=own, result=result, metrics=points)

    def make(study, shift=0.0, seed=1000, seeds=range(5), diverged=(), names=tuple(LOSSES)):
        records = []
        for number, (name, loss) in enumerate((name, LOSSES[name]) for name in names):
            trial = {"role": "tune", "origin": Origin(kind="trial", searched=("warmup",))}
            for i in range(12):
                value = 99.0 if i == 11 else loss + 0.01 * i
                records.append(record(study, name, f"tune-{i:02d}", value, seed=seed, lr=0.001 * 2**i, **trial))
            for i, more in ((0, 1), (0, 2), (1, 1), (1, 2)):
                at = {"seed": seed + more, "lr": 0.001 * 2**i, **trial}
                records.append(record(study, name, f"tune-{i:02d}-seed-{seed + more}", loss + 0.01 * i, **at))
            origin = Origin(kind="here", trials=12, confirmed=2, searched=("warmup",), at_edge=name == "lion")
            for i in seeds:
                value = 99.0 if name in diverged else loss + shift * (number % 2) + 0.002 * math.sin(9 * i + number)
                records.append(record(study, name, f"seed-{i}", value, seed=i, role="run", origin=origin, lr=0.001))
        (stored.NEWER / f"{study}.jsonl").write_text(pack(records), encoding="utf-8")

    def ladder(lengths):
        """Studies of some lengths; Adan needs 0.9 times AdamW's steps for a loss, Muon 0.6 times."""
        for t, (name, share) in product(lengths, {"adamw": 1, "adan": 0.9, "muon": 0.6}.items()):
            loss = 0.6 + (t / share / 200) ** -0.55
            made = {"steps": t, "role": "run", "lr": 0.001}
            runs = [record(f"ladder-gpt-{t}", name, f"seed-{i}", loss + 1e-4 * i, seed=i, **made) for i in range(3)]
            with (stored.NEWER / f"ladder-gpt-{t}.jsonl").open("a", encoding="utf-8") as file:
                file.write(pack(runs))

    def forget():
        recompute.runs_by_study.cache_clear()
        recompute.compared.cache_clear()

    def read():
        forget()
        return stored.studies.__wrapped__()

    make.ladder, make.read = ladder, read
    yield make
    forget()


def lines(text):
    cells = [[cell.strip("* ") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return cells[0], {row[0]: row for row in cells[2:]}


def write_page(known, tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "studies", lambda: known)
    for name in ("results.md", "results-details.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        text = re.sub(
            r"(<!-- table ((?!study:|other-)\S+) -->)\n.*?(<!-- end -->)", readme.filled, text, flags=re.DOTALL
        )
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    return (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")


def test_without_a_search_there_is_no_section(with_field):
    known = with_field.read()
    assert (field.todays_optimizers("gpt", known), field.field_in_short(known)) == ("", "")


def test_a_search_of_the_field(with_field, tmp_path, monkeypatch):
    with_field("field-gpt")
    known = with_field.read()
    text = field.todays_optimizers("gpt", known)
    head, rows = lines(text)
    assert [*rows] == ["Muon", "Adan", "AdamW", "Lion", "SOAP"]
    assert rows["Muon"][2].endswith(": better (one search)")
    assert rows["SOAP"][2].endswith(": worse (one search)")
    assert rows["Lion"][2].endswith("]")
    assert rows["AdamW"][2] == ""
    assert rows["Adan"][3] == "8.0"
    assert len(head) == 4
    assert "| **Adan** |" in text
    assert (
        "One search, 5 seeds, 80 trials, 5 of them diverged; near an end of its range is the rate of Lion; NVIDIA H200."
        in text
    )
    head, short = lines(field.field_in_short(known))
    assert head == ["GPT, 10.9 M, 2,000 steps", "loss minus AdamW's, each search", "state bytes per parameter"]
    assert [*short] == ["Muon", "Adan", "AdamW"]
    assert all(rows[name][2].startswith(f"{lead} [") for name, lead, _ in short.values() if name != "AdamW")
    assert all(size == rows[name][-1] for name, _, size in short.values())
    page = write_page(known, tmp_path, monkeypatch)
    assert "## Today's optimizers" in page
    assert recompute.differences() == []
    broken = page.replace(rows["Muon"][2], rows["Muon"][2].replace("[−", "[−9"))
    (tmp_path / "docs" / "results.md").write_text(broken, encoding="utf-8")
    assert [said.split(":")[0] for said in recompute.differences()] == ["Muon"]


def test_two_searches_and_a_ladder(with_field, tmp_path, monkeypatch):
    with_field("field-gpt")
    once = results.against_adamw(with_field.read())["GPT, 10.9 M, 2,000 steps"]
    with_field("field-gpt-again", shift=0.01, seed=2000, seeds=range(5, 10))
    with_field.ladder(LENGTHS[:4])
    known = with_field.read()
    twice = results.against_adamw(known)["GPT, 10.9 M, 2,000 steps"]
    assert twice["adan"].difference.half > 1.5 * once["adan"].difference.half
    text = field.todays_optimizers("gpt", known)
    head, rows = lines(text)
    assert head[3:6] == ["AdamW's steps for this result", "ms per step", "time, AdamW's = 1"]
    inside = [row for name, row in rows.items() if name not in ("SOAP", "Lion")]
    needed, ms, times = ({row[0]: float(row[i].replace(",", "")) for row in inside} for i in (3, 4, 5))
    for name in needed:
        assert times[name] == pytest.approx(ms[name] / ms["AdamW"] * needed["AdamW"] / needed[name], abs=0.01)
    short = field.field_in_short(known).splitlines()
    assert short[2].endswith(f"| ×{times['Muon']:.2f} |")
    leads = [float(lead.replace("−", "-")) for lead in short[3].split("|")[2].strip(" *").split(", ")]
    assert leads == pytest.approx([-0.03, -0.02], abs=0.003)  # the second search's is less by its shift
    assert field.todays_optimizers("small", known) == ""
    assert 1_000 < float(rows["Adan"][3].replace(",", "")) < 8_000
    assert rows["Muon"][2].endswith("]: better")
    assert "Two searches, 5 seeds of each, 160 trials, 10 of them diverged;" in text
    write_page(known, tmp_path, monkeypatch)
    assert recompute.differences() == []
    found = results.by_family(known)["loss, or logarithm of perplexity"]["GPT"]
    assert len(found) == 1 + len(
        results.by_family(results_without_field(known))["loss, or logarithm of perplexity"]["GPT"]
    )


def ratios(text):
    return {steps: [cell.partition(" ")[0] for cell in row[4:]] for steps, row in lines(text)[1].items()}


def test_a_ladder_says_how_many_steps_are_saved(with_field, tmp_path, monkeypatch):
    with_field("field-gpt")
    for lengths in (LENGTHS[:0], LENGTHS[:1]):
        with_field.ladder(lengths)
        assert ladder.ladders(with_field.read()) == ladder.in_short(with_field.read()) == ""
        assert [*recompute.ladder_rows()] == []
    with_field.ladder(LENGTHS[1:2])
    text = ladder.ladders(known := with_field.read())
    assert ratios(text) == {"1,000": ["×0.89†", "×0.53†"], "2,000": ["×0.91", "×0.61"]}
    assert "Fits" not in text
    said = r"Steps to AdamW's loss\. Python source, 2,000 steps: Adan ×0\.91 \[0\.91, 0\.91\], Muon ×0\.61 \["
    assert re.match(said, ladder.in_short(known))
    assert ladder.pictures(known) == {}
    write_page(known, tmp_path, monkeypatch)
    assert recompute.differences() == []
    with_field.ladder(LENGTHS[2:4])
    text = ladder.ladders(known := with_field.read())
    head, _ = lines(text)
    assert head[1:] == ["Adan", "AdamW", "Muon", "Adan's steps for AdamW's loss", "Muon's steps for AdamW's loss"]
    inside = {steps: ["×0.90", "×0.60"] for steps in ("2,000", "4,000", "8,000")}
    assert ratios(text) == {"1,000": ["×0.90†", "×0.60†"], **inside}
    assert "AdamW 0.600 + 18.4·T^−0.550" in text
    page = write_page(known, tmp_path, monkeypatch)
    assert text in page
    assert recompute.differences() == []
    (tmp_path / "docs" / "results.md").write_text(page.replace("| ×0.90", "| ×0.91"), encoding="utf-8")
    assert len(recompute.differences()) == 4


def results_without_field(known):
    return {name: study for name, study in known.items() if not name.startswith("field-")}


def test_who_diverges_comes_last_and_is_not_called_better(with_field):
    with_field("field-gpt", diverged={"muon"})
    rows = lines(field.todays_optimizers("gpt", with_field.read()))[1]
    assert [*rows][-1] == "Muon"
    assert rows["Muon"][1:] == ["no seed finished", "", ""]
    assert "Muon" not in field.field_in_short(with_field.read())
    with_field("field-gpt-again", seed=2000, seeds=range(5, 10))
    rows = lines(field.todays_optimizers("gpt", with_field.read()))[1]
    assert [*rows][-1] == "Muon"
    assert rows["Muon"][1].endswith(" (5 diverged)")
    assert rows["Muon"][2].endswith("]")


def test_optimizers_of_a_later_search_alone_have_their_rows(with_field, tmp_path, monkeypatch):
    with_field("field-gpt", names=("adan", "adamw", "soap"))
    with_field("field-gpt-again", seed=2000, seeds=range(5, 10), names=("muon", "soap"))
    with_field.ladder(LENGTHS[:4])
    rows = lines(field.todays_optimizers("gpt", known := with_field.read()))[1]
    assert [*rows] == ["Muon", "Adan", "AdamW", "SOAP"]
    assert rows["Muon"][2].endswith("]")
    assert [row[0] for row in lines(field.field_in_short(known))[1].values()] == ["Muon", "Adan", "AdamW"]
    (panel,) = results.pictures(known)["results-field.svg"]
    assert {curve.label for curve in panel.lines} == {*rows}
    write_page(known, tmp_path, monkeypatch)
    assert recompute.differences() == []


def test_an_optimizer_that_was_not_timed_has_no_time(with_field, tmp_path, monkeypatch):
    times = field.read("field-time.json")
    del times["rows"]["muon"]
    (tmp_path / "results" / "field-time.json").unlink()
    (tmp_path / "results" / "field-time.json").write_text(json.dumps(times), encoding="utf-8")
    monkeypatch.setattr(field, "read", lambda _: times)
    with_field("field-gpt")
    with_field.ladder(LENGTHS[:4])
    rows = lines(field.todays_optimizers("gpt", known := with_field.read()))[1]
    assert rows["Muon"][4:6] == ["", ""]
    assert all(rows["Adan"])
    assert lines(field.field_in_short(known))[1]["Muon"][-1] == ""
    write_page(known, tmp_path, monkeypatch)
    assert recompute.differences() == []


def test_a_search_of_too_few_seeds_does_not_count_beside_another(with_field, tmp_path, monkeypatch):
    with_field("field-gpt")
    once = lines(field.todays_optimizers("gpt", with_field.read()))[1]
    with_field("field-gpt-again", shift=0.01, seed=2000, seeds=range(5, 7))
    text = field.todays_optimizers("gpt", known := with_field.read())
    assert lines(text)[1] == once
    assert "One search, 5 seeds, 160 trials" in text
    write_page(known, tmp_path, monkeypatch)
    assert recompute.differences() == []


def test_two_seeds_have_a_difference_without_an_interval(with_field):
    with_field("field-gpt", seeds=range(2))
    rows = lines(field.todays_optimizers("gpt", with_field.read()))[1]
    assert re.fullmatch(r"−0\.0\d+: too few seeds \(one search\)", rows["Muon"][2])
    assert re.fullmatch(r"0\.8\d+", rows["Muon"][1])


def test_how_often_searches_were_made_is_said(studies):
    adan, adamw, _ = results.rivals_by_workload(studies)["GPT, 0.9 M, 2,000 steps"]

    def said(*searches):
        own = [replace(r, groups=r.groups * n) for r, n in zip((adan, adamw), searches, strict=True)]
        return field._facts(own).partition(",")[0]

    counts = {(1, 1): "One search", (2, 2): "Two searches", (3, 3): "3 searches", (2, 1): "1 optimizer searched twice"}
    assert {n: said(*n) for n in counts} == counts
    assert said(3, 2) == "2 optimizers searched more than once"


def test_a_workload_with_accuracies_has_a_chapter_of_its_own(with_field, tmp_path, monkeypatch):
    with_field("field-gpt")
    with_field("field-vit")
    file = stored.NEWER / "field-vit.jsonl"
    text = file.read_text(encoding="utf-8").replace('"pycode-gpt-11m"', '"cifar-vit"')
    text = text.replace('"metric":"loss","higher_is_better":false', '"metric":"accuracy","higher_is_better":true')
    file.write_text(text.replace('"loss"', '"accuracy"'), encoding="utf-8")
    known = with_field.read()
    assert "ViT" not in field.todays_optimizers("gpt", known) + field.todays_optimizers("small", known)
    head, rows = lines(field.todays_optimizers("vit", known))
    assert head[1] == "test accuracy, % ↑"
    assert [*rows] == ["SOAP", "Lion", "AdamW", "Adan", "Muon"]
    assert rows["SOAP"][2].endswith("better (one search)")
    gpt, vit = results.pictures(known)["results-field.svg"]
    assert (gpt.x_label, gpt.lines[0].x[-1]) == ("step", 2_000)
    assert (vit.x_label, vit.lines[0].x[-1], vit.y_label) == ("epoch", 25, "test accuracy, %")
    monkeypatch.setitem(results.DATA, "searches", [{"label": "ViT: field", "studies": "field-vit"}])
    _, rows = lines(field.searches(known))
    assert rows["ViT: field, test accuracy, % ↑"][2].startswith("−")
    with pytest.raises(ValueError, match=r"a ladder is of losses, .* not of accuracy"):
        ladder.Ladder.of({g.optimizer: {2_000: g} for g in known["field-vit"].groups})


def test_a_confirmation_is_no_trial_of_other_settings(with_field):
    with_field("field-gpt")
    known = with_field.read()
    assert known["field-gpt"].planned_trials == 12
    text = details.described("field-gpt", known).replace("full\nlength", "full length")
    assert "12 trials per optimizer of full length, and 4 with the best on other seeds" in text
    assert "| Adan | lr 0.001, betas 0.9, 0.99, decay 0.1, warmup 0.1 | 5 | 0.8" in text
    assert "**lr 0.001: 0.82, 0.82, 0.82**; lr 0.002: 0.83, 0.83, 0.83; lr 0.004: 0.84;" in text


# Sentences


def test_the_lead_on_one_gpt_over_its_searches(studies):
    names = ("gpt", "field-gpt", "field-gpt-again", "ladder-gpt-2k")
    searched = [{g.optimizer: g.result.mean for g in studies[name].groups} for name in names]
    leads = [own["adamw"] - own["adan"] for own in searched]
    moved = [max(own[name] for own in searched) - min(own[name] for own in searched) for name in ("adan", "adamw")]
    assert min(leads) < max(moved) < max(leads)
    assert "**Searches move results as much as Adan's lead**" in PAGE


def test_how_many_steps_are_saved(studies):
    found = ladder.ladder(studies, "ladder-gpt")
    assert found.lengths == [*LENGTHS[:4]]
    saved = {
        name: [round(100 * (1 - found.ratio(name, steps).mean)) for steps in found.lengths] for name in ("adan", "muon")
    }
    assert saved == {"adan": [10, 7, 6, 9], "muon": [62, 47, 37, 37]}
    for name in saved:
        assert [found.is_inside(name, steps) for steps in found.lengths] == [False, True, True, True]
    english = ladder.ladder(studies, "ladder-english")
    also = [round(100 * (1 - english.ratio(name, 8_000).mean)) for name in ("adan", "muon")]
    assert also == [16, 38]
    assert [english.is_inside(name, steps) for name in saved for steps in english.lengths] == [False, True] * 2
    said = "that GPT needs [9% fewer steps with Adan on Python source and 16% on English](#how-many-steps-does-it-save)"
    assert f"for the loss that AdamW reaches after 8,000 steps, {said}; with Muon, 37 and 38%." in PAGE
    assert "Adan needs 6 to 9% fewer on Python source, 16% at 8,000 on English." in PAGE
    assert "Muon saves 37% at 4,000 and 8,000, more at 2,000." in PAGE
    assert "in three tests of five; [6 to 16% fewer](#how-many-steps-does-it-save)" in PAGE
    said = "For AdamW's loss after 8,000 steps, a GPT needs 9% fewer steps with Adan on Python source, 16% on English"
    assert f"{said} (untuned); Muon, 37 and 38%:" in README
    for steps, own in english.own["adan"].items():  # the settings that Python's ladder chose
        chosen = best_trial(studies[f"ladder-gpt-{steps // 1_000}k"].search["adan"]).config.settings
        assert {**own.settings, "lr": pytest.approx(own.settings["lr"], rel=1e-3)} == chosen
    apart = {steps: own.minus(english.own["adamw"][steps]) for steps, own in english.own["adan"].items()}
    assert [gap.word for gap in apart.values()] == ["not significant", "better"]
    assert f"is not significant (English's {-apart[8_000].difference.mean:.4f} is)" in PAGE
    assert all(english.ratio("adan", steps).low > 0.5 for steps in english.lengths)
    like_english = ladder.Ladder.of({who: {t: own[t] for t in english.lengths} for who, own in found.own.items()})
    assert f"fitted like English's, to two lengths, it saves {1 - like_english.ratio('adan', 8_000).mean:.0%}" in PAGE
    config = found.own["adamw"][8_000].first.config
    per_parameter = 8_000 * config.batch_size * 256 / found.own["adamw"][8_000].first.environment["parameters"]
    assert f"at most {per_parameter:.0f} bytes per parameter" in PAGE
    ends = [found.ratio("adan", steps) for steps in found.lengths]
    assert all(end.low > 0.5 and end.high < 1 for end in ends)
    assert "Half is never enough." in PAGE
    assert 0.999 < ends[-1].high < 1
    assert (ends[-1].high - ends[-1].low) / 2 < 0.1
    gaps = {
        name: [found.own[name][steps].minus(found.own["adamw"][steps]) for steps in (1_000, 8_000)] for name in saved
    }
    assert [gap.word for gap in gaps["adan"]] == ["better", "not significant"]
    leads = [
        f"{-gap.difference.mean:.{digits}f}" for own in gaps.values() for gap, digits in zip(own, (3, 4), strict=True)
    ]
    assert leads == ["0.026", "0.0055", "0.138", "0.0278"]
    assert "its lead of 0.0055 is not significant" in PAGE
    for name, who in product(map("ladder-gpt-{}k".format, (1, 2, 4, 8)), ("adan", "adamw")):
        best, *others = sorted(studies[name].search[who], key=lambda trial: trial.final)
        b1, tried = best.config.settings["betas"][0], {trial.config.settings["betas"][0] for trial in others}
        assert (b1, tried) == (0.9, {0.9, 0.98} if name == "ladder-gpt-8k" else {0.9, 0.98, 0.8})
        largest = next(trial for trial in others if trial.config.settings["betas"][0] == 0.98)
        assert (largest.final - best.final < 0.001) == ((name, who) == ("ladder-gpt-8k", "adan"))
    assert "b1 0.9 always won, at 8,000 over 0.98 alone (Adan: by 0.001, one seed)" in PAGE


def test_the_costs_of_todays_optimizers(studies):
    rivals = results.rivals_by_workload(studies)["GPT, 10.9 M, 2,000 steps"]
    assert set(times := field.read("field-time.json")["rows"]) == {rival.optimizer for rival in rivals}
    assert all(max(row["milliseconds"]) < 1.02 * min(row["milliseconds"]) for row in times.values())
    assert times["soap"]["graph"].endswith(
        "the optimizer eager: SOAP decomposes matrices and counts its steps on the host"
    )
    clock = field.Clock.of(studies, "GPT, 10.9 M, 2,000 steps", rivals)
    assert max(rivals, key=clock.same_loss).optimizer == "soap"
    assert "In time, SOAP, which decomposes matrices outside the CUDA graph, is last." in PAGE
    assert "AdEMAMix (ahead in one of two), NAdamW, Lion and Schedule-Free ended behind." in README
    assert [rival.optimizer for rival in rivals[-5:]] == ["adamw", "ademamix", "nadamw", "lion", "schedule-free"]
