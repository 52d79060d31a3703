"""Write the tables of README.md and docs/ from the records under results/: `make tables`.

A table stands between `<!-- table NAME -->` or `<!-- table NAME:KIND -->` and `<!-- end -->`; the figures of the
results are drawn, too. `--check` only says whether all are up to date.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))  # this script needs no installation

import field
import figures
import ladder
import paper_plan
import planner
import results_details
import results_page
import scaling
import short
import tuning
from common import BASE, ROOT, numbers, read, table, where
from results_page import Unit
from stored import studies

from adan_bench.config import RunRecord
from adan_bench.records.archive import read_archive
from adan_bench.records.stats import grouped, interval
from adan_bench.tables import tables

ON_GPU = [BASE, "Adan", "Adan, clipped", "Adan, 8 bit", "Adan, 4 bit"]


def gpu() -> str:
    data, rows = read("bench-gpu.json"), []
    for model, result in data["models"].items():
        cells = [f"{model}, {result['parameters'] / 1e6:.0f} M in {result['tensors']} tensors"]
        for name in ON_GPU:
            row = result["rows"][name]
            ratio = "" if name == BASE else f", ×{row['ratio']:.2f}"
            cells.append(f"{row['ms']:.2f} ms, {row['share_of_copy']:.0%}{ratio}")
        rows.append(cells)
    steps = min(result["steps"] for result in data["models"].values())
    return numbers(["fp32 parameters", *ON_GPU], rows, f"{where(data)}; medians of at least {steps} steps.")


def wall() -> str:
    data = read("bench-gpu.json")
    kernels, rows = data["launches"]["kernels"], data["wall"]["rows"].items()
    lines = [
        [name, f"{row['ms']:.2f} ms", f"×{row['ratio']:.2f}", str(kernels.get(name, ""))]
        for name, row in rows
        if "bit, " not in name  # quantized states with another option: their effects add up
    ]
    head = ["ResNet-50, `zero_grad(); fresh gradients; step()`", "wall time", f"÷ {BASE}", "kernels per step"]
    return numbers(head, lines)


def cpu() -> str:
    """A table for each machine."""
    tables, cell = [], "{median_ms:.2f} ms, ×{ratio_of_medians:.2f}"
    for name in ("", "-x86-8-threads"):
        data = read(f"bench-cpu{name}.json")
        by_model = {model: result["rows"] for model, result in data["models"].items()}
        lines = [[model, *(cell.format(**row) for row in rows.values())] for model, rows in by_model.items()]
        tables.append(numbers(["fp32 parameters", *next(iter(by_model.values()))], lines, f"{where(data)}."))
    return "\n\n".join(tables)


def memory() -> str:
    """Other libraries' times are of a run in which they were installed; each ratio is within its own run."""
    data = read("memory-gpu.json")
    timed, lines = [read("bench-gpu-others.json"), read("bench-gpu.json")], []
    speed = {name: row for record in timed for name, row in record["models"]["GPT-2 1.1B"]["rows"].items()}
    for name, row in data["rows"].items():
        time = f"{speed[name]['ms']:.2f} ms, ×{speed[name]['ratio']:.2f}" if name in speed else ""
        peaks = [
            f"{row[peak] / 1e9:.2f} GB, ×{row[peak] / data['rows'][BASE][peak]:.2f}"
            for peak in ("peak_bytes", "recompute_peak_bytes")
        ]
        lines.append([name, f"{row['state_bytes_per_parameter']:.3f}", *peaks, time])
    head = ["", "state bytes per parameter", "peak memory, GPT-2 345M, one sequence of 1,024 tokens"]
    head += ["with activation checkpointing", "optimizer step, 1.1 B fp32 parameters"]
    times = " and ".join(record["environment"]["commit"][:7] for record in timed)
    return numbers(head, lines, f"{where(data)}; step times at {times}.")


def summary() -> str:
    """The cost of Adan compared with AdamW's on a GPU."""
    speed, peak = read("bench-gpu.json")["models"], read("memory-gpu.json")["rows"]
    rows = []
    for name in ("Adan", "Adan, coupled", "Adan, 8 bit", "Adan, 4 bit"):
        ratios = [peak[name]["peak_bytes"] / peak[BASE]["peak_bytes"]]
        ratios.append(speed["GPT-2 1.1B"]["rows"][name]["ratio"])
        label = name.replace("coupled", "`betas[0] == betas[1]`")
        rows.append([label, f"{peak[name]['state_bytes_per_parameter']:.1f}", *(f"×{ratio:.2f}" for ratio in ratios)])
    head = ["", "state bytes per parameter", "peak memory, GPT-2 345M", "optimizer step, GPT-2 1.1B"]
    return numbers(head, rows)


def quality() -> str:
    records = {name: read(f"quality-{name}.json") for name in ("pycode-gpt2", "ptb-lstm", "cifar-resnet34")}

    def cell(variant: str, rows: dict[str, Any]) -> str:
        losses, base = ([run["loss"] for run in rows.get(name, ())] for name in (variant, "fp32"))
        if not losses:
            return ""
        gap = (statistics.mean(losses) - statistics.mean(base)) / statistics.stdev(base)
        return f"{statistics.mean(losses):.4f} ({gap:+.1f})"

    variants = records["pycode-gpt2"]["rows"]
    rows = [[variant, *(cell(variant, data["rows"]) for data in records.values())] for variant in variants]
    head = [f"{name}, {data['steps']} steps, n = {data['seeds']}" for name, data in records.items()]
    return numbers(["", *head], rows, "; ".join(sorted({where(data) for data in records.values()})) + ".")


def step_time() -> str:
    """Adan ÷ AdamW over whole training steps: the paper's table of step times, and ours at the same sizes."""
    data = read("reproduce/small-step-time.json")
    cells = {(cell["column"], cell["row"]): cell for cell in data["tables"][0]["cells"]}
    rows = []
    for model in dict.fromkeys(column.removesuffix(", ms") for column, _ in cells if column.endswith(", ms")):
        line = [model]
        for unit in ("ms", "GB"):
            ours, base = (cells[f"{model}, {unit}", name] for name in ("Adan", "AdamW"))
            line.append(f"×{float(ours['paper']) / float(base['paper']):.2f}")
            line.append(f"{ours['values'][0]:.1f} {unit}, ×{ours['values'][0] / base['values'][0]:.2f}")
        rows.append(line)
    head = ["Adan ÷ AdamW", "step, paper", "step, here", "peak memory, paper", "peak memory, here"]
    e = data["environment"]
    place = "{gpu}, bf16 autocast, torch {packages[torch]}, transformers {packages[transformers]}".format(**e)
    return numbers(head, rows, f"{place}, commit {e['commit'][:7]}; the paper: one A800.")


def harness() -> str:
    """Steps per second of the harness on a GPU, one run: each way of making them, and how busy the GPU was."""
    data, rows = read("bench-harness.json"), []
    modes = dict.fromkeys(mode for rows in data["alone"].values() for mode in rows if mode != "relative_gap")
    for name, by_mode in data["alone"].items():
        cells = []
        for row in (by_mode.get(mode, {}) for mode in modes):
            busy = f" ({min(1, row['gpu_busy']):.0%})" if row.get("gpu_busy") else ""
            cells.append(f"{row['steps_per_second']:.0f}{busy}" if "steps_per_second" in row else "")
        rows.append([f"{name}, batch {data['cases'][name]['batch_size']}", *cells])
    return numbers(["steps per second (GPU busy)", *modes], rows, f"{where(data)}; Adan, bf16 autocast.")


def components() -> str:
    """What each component adds, in the runs of `adan-bench reproduce components` on a small workload."""
    found, unit, lines = components_by_row(), Unit("accuracy", digits=3), []
    for row in tables()["components"].rows:
        own = found[row.head]
        results = [[run.training_loss or math.nan for run in own], [run.final or math.nan for run in own]]
        restarts = [run.result["restarts"]["count"] for run in own if run.result and "restarts" in run.result]
        counts = ", ".join(map(str, restarts)) or "–"
        lines.append([row.head, *(unit.spread(interval(values)) for values in results), counts, row.values[0] or ""])
    first = f"{own[0].config.steps} steps of a small ViT, n = {len(own)}"
    return table([first, "training loss", "accuracy", "restarts", "paper (MoE, 10B tokens)"], lines)


def components_by_row() -> dict[str, list[RunRecord]]:
    def row(run: RunRecord) -> str:
        if run.config.optimizer == "adamw":
            return "AdamW: heavy ball"
        decay = "" if run.config.settings.get("no_prox") else ", proximal decay"
        return f"Adan: Nesterov{decay}" + (", restart" if "restart" in run.config.settings else "")

    records, _ = read_archive(ROOT / "results" / "theory" / "components.jsonl")
    return {row(own[0]): own for own in grouped((r for r in records if r.config.role == "run"), row)}


COSTS = (gpu, wall, cpu, memory, summary, quality, step_time, harness, components)
TABLES: dict[str, Callable[[], str]] = {
    **{table_of.__name__.replace("_", "-"): table_of for table_of in (*COSTS, *tuning.TABLES, *short.TABLES)},
    "paper-plan": paper_plan.table,
    "paper-settings": paper_plan.settings,
    "scaling": scaling.table,
    "planner": planner.large_models,
    "planner-measured": planner.measured,
}
#: Tables of the stored studies, of a KIND or of all.
OF_STUDIES: dict[str, Callable[..., str]] = {
    "families": results_page.families,
    "field": field.todays_optimizers,
    "field-in-short": field.field_in_short,
    "ladder": ladder.ladders,
    "ladder-in-short": ladder.in_short,
    "searches": field.searches,
    "other-studies": results_details.others,
    "compared": results_page.compared,
    "noisy": partial(results_page.compared, "rows", noisy=True),
    "study": results_details.described,
    "abandoned": results_details.abandoned,
}


def filled(match: re.Match[str]) -> str:
    name, *kind = match[2].split(":")
    text = OF_STUDIES[name](*kind, studies()) if name in OF_STUDIES else TABLES[name]()
    return f"{match[1]}\n{text}\n{match[3]}"


def main() -> None:
    check = "--check" in sys.argv
    pictures = results_page.pictures(studies()) | ladder.pictures(studies())
    stale = figures.write(pictures, ROOT / "docs" / "figures", check)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        new = re.sub(r"(<!-- table (\S+) -->)\n.*?(<!-- end -->)", filled, old, flags=re.DOTALL)
        if new != old:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(new, encoding="utf-8")
    print("out of date:" if check else "written:", ", ".join(stale) or "nothing")
    sys.exit(1 if stale and check else 0)


if __name__ == "__main__":
    main()
