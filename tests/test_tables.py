"""Figures in the README and the docs are those of the records."""

import re
import sys
from statistics import mean

import pytest
import readme
from common import read
from stored import studies
from support.pages import ROOT, flat

from adan_bench.records.stats import interval
from adan_bench.tables import tables


def test_tables_are_those_of_the_records(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["readme.py", "--check"])
    with pytest.raises(SystemExit) as end:
        readme.main()
    assert end.value.code == 0, f"{capsys.readouterr().out}: run `make tables`"


def test_records_name_no_folder_of_the_machine_they_were_made_on():
    for path in (ROOT / "results").rglob("*.json*"):
        for words in re.findall(r'"(?:command|data)": ?"([^"]*)"', path.read_text(encoding="utf-8")):
            assert not re.search(r"(^|\s)/", words), path.name


def test_what_the_faq_says_of_short_runs_is_in_the_records():
    runs = [group.first for group in studies()["b1-length-gpt"].groups if group.first.config.steps == 500]
    best = {b1: min(r.final for r in runs if r.config.settings["betas"][0] == b1) for b1 in (0.98, 0.9)}
    said = "was {:.3f} with b1 = 0.98, the default, and {:.3f} with 0.9".format(*best.values())
    assert said in flat("docs/faq.md")


def whole_steps(unit):
    """Milliseconds or gigabytes of a training step, by model and optimizer."""
    (table,) = read("reproduce/small-step-time.json")["tables"]
    cells = [(cell["column"].partition(", "), cell) for cell in table["cells"]]
    return {(model, cell["row"]): cell["values"][0] for (model, _, of), cell in cells if of == unit}


def finals(study, batch_size=20):
    """Each optimizer's final values over the seeds of a study.

    Where these have changed: `make tables` draws the figure, the sentences are written by hand.
    """
    groups = [group for group in studies()[study].groups if group.first.config.batch_size == batch_size]
    return {group.optimizer: group.by_seed().values() for group in groups}


def test_results_in_the_readme_are_those_of_the_records():
    text = flat("README.md")
    assert (
        "it was better than AdamW on two workloads of eight, worse on none" in text
    )  # tests/benchmarks/test_tuning.py
    leads = {}
    for size in (1024, 4096):
        usual = finals("batch-size-vit", size)
        smaller = finals("batch-size-vit-b1", size)
        leads[size] = [round(100 * (mean(by_name["adan"]) - mean(usual["adamw"]))) for by_name in (usual, smaller)]
    assert leads == {1024: [1, 2], 4096: [-10, -3]}
    assert "ten points behind AdamW](docs/results.md#batch-sizes), three with the suggested b1 = 0.9" in text
    lstm = finals("lstm-8-again")
    assert all(mean(lstm["adan"]) > mean(lstm[name]) for name in ("adamw", "adam", "adabelief"))
    times = [f"×{of['GPT-2-1B', 'Adan'] / of['GPT-2-1B', 'AdamW']:.2f}" for of in map(whole_steps, ("ms", "GB"))]
    assert "GPT-2 1B with eight sequences takes {} in time and {} in peak memory".format(*times) in text


def test_what_the_page_on_memory_says_of_other_libraries_is_in_the_record():
    rows = read("bench-gpu-others.json")["models"]["GPT-2 1.1B"]["rows"]
    torchao, bitsandbytes = (rows[f"AdamW 8 bit ({name})"] for name in ("torchao", "bitsandbytes"))
    text = flat("docs/memory.md")
    assert f"of its {torchao['ms']:.0f} ms the GPU works {torchao['kernels_ms']:.0f};" in text
    assert f"works for {bitsandbytes['kernels_ms']:.0f} of {bitsandbytes['ms']:.0f} ms" in text


def test_ratios_in_the_faq_are_those_of_the_records():
    gpu, *cpus = (read(f"bench-{name}.json")["models"] for name in ("gpu", "cpu-x86-8-threads", "cpu"))
    large = gpu["GPT-2 1.1B"]["rows"]["Adan"]["ratio"]
    x86, arm = (cpu["ResNet-50, 25.6 M in 161 tensors"]["rows"]["Adan fused"]["ratio_of_medians"] for cpu in cpus)
    text = flat("docs/faq.md")
    assert f"×{large:.2f} for 1.1 B parameters on an H200; for ResNet-50, " in text
    assert f"there, ×{x86:.2f} on eight threads of an x86-64 CPU, ×{arm:.2f} on two of an Arm CPU." in text
    step = whole_steps("ms")
    ratios = [ms / step[model, "AdamW"] for (model, row), ms in step.items() if row == "Adan"]
    assert f"[at most ×{max(ratios):.2f}]" in text
    first = flat("docs/performance.md").split("## ")[0]
    coded = [gpu["GPT-2 1.1B"]["rows"][f"Adan, {bits} bit"]["ratio"] for bits in (8, 4)]
    assert (
        "×{:.2f} for 1.1 B parameters with fp32 states, ×{:.2f} with 8-bit and ×{:.2f} with".format(large, *coded)
        in first
    )
    assert f"[at most ×{max(ratios):.2f}]" in first
    assert f"the step of ResNet-50 takes ×{x86:.2f} to ×{arm:.2f}" in first


def test_what_the_page_on_the_theory_says_of_components_is_in_the_record():
    found = readme.components_by_row()
    heavy, nesterov, prox, restarted = (found[row.head] for row in tables()["components"].rows)
    assert all(ours.final > base.final for base, ours in zip(heavy, nesterov, strict=True))
    assert all(ours.training_loss < base.training_loss for base, ours in zip(heavy, nesterov, strict=True))
    assert all(base.training_loss < ours.training_loss for base, ours in zip(prox, restarted, strict=True))
    assert all(base.final >= ours.final for base, ours in zip(prox, restarted, strict=True))
    assert {run.result["restarts"]["count"] for run in restarted} == {6, 7}
    assert {round(run.config.settings["restart"]["radius"], 2) for run in restarted} == {0.52}
    for of in ("training_loss", "final"):
        ends = [interval([getattr(run, of) for run in own]) for own in (heavy, nesterov, prox, restarted)]
        assert max(end.low for end in ends) < min(end.high for end in ends)
    text = flat("docs/theory.md")
    assert "Nesterov's momentum helped in every seed, and six or seven restarts hurt rather than helped." in text
    assert "The 95% intervals overlap." in text
    assert "The radius R, 0.52, came from a pilot run" in text


def test_what_is_said_of_other_implementations():
    rows = read("others.json")["rows"]
    columns = ["adan", "authors", "timm", "optimi", "pytorch_optimizer"]
    page, first = ((ROOT / path).read_text(encoding="utf-8") for path in ("docs/migration.md", "README.md"))
    table, short = {}, {}
    for text, found in ((page, table), (first, short)):
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| ") and len(cells) == 6:
                found.setdefault(cells[0], dict(zip(columns, cells[1:], strict=True)))
    assert short["FSDP2"] == table["FSDP2, two CPU processes"]
    full = table["clipping by the global norm"]
    assert all(cell in full[name] for name, cell in short["clipping"].items())
    late, clip = table["first step of a layer unfrozen late"], table["clipping by the global norm"]
    for name in columns:
        row = rows[name]
        assert row["difference_from_adan"] < 3e-6
        assert late[name] == ("lr" if row["late_first_step"] == 1 else f"{row['late_first_step']:.1f} lr")
        states = {"float32": "fp32", "bfloat16": "bf16"}[row["bf16_parameters_have_states_in"]]
        assert table["states of bf16 parameters"][name] == states
        assert (clip[name] == "no") == (not row["clips"])
        assert ("overwritten" in clip[name]) == row["writes_gradients"]
        fails = [key for key in ("fsdp2", "fsdp2_clipped") if row[key] and not row[key].startswith("differs")]
        said = {"yes": [], "yes; error if clipped": ["fsdp2_clipped"], "error": ["fsdp2", "fsdp2_clipped"]}
        assert said[table["FSDP2, two CPU processes"][name]] == fails
        if name != "adan":
            assert row["version"] in page
