"""Write the tables of README.md and docs/ from the records under results/: `make tables`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; docs/paper-settings.md and docs/results-details.md are
written whole, and the figures of the results drawn. `--check` only says whether all are up to date.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scaling

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # this script needs no installation

import figures  # noqa: E402
import paper_settings  # noqa: E402
import planner  # noqa: E402
import results_details  # noqa: E402
import results_page  # noqa: E402
import tuning  # noqa: E402
from stored import studies  # noqa: E402

PAGES = [
    "README.md",
    "docs/memory.md",
    "docs/memory-planner.md",
    "docs/performance.md",
    "docs/results.md",
    "docs/tuning.md",
    "docs/distributed.md",
    "docs/reproduce.md",
    "docs/bench.md",
]
WHOLE: dict[str, Callable[[], str]] = {
    "docs/paper-settings.md": paper_settings.page,
    "docs/results-details.md": lambda: results_details.page(studies()),
}
BASE = "AdamW fused"
CPU = ("bench-cpu.json", "bench-cpu-x86.json", "bench-cpu-x86-8-threads.json")


def record(name: str) -> dict[str, Any]:
    """A record, without the rows of an option that Adan no longer has."""

    def kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if "consume_grad" not in key}

    text = (ROOT / "results" / name).read_text(encoding="utf-8")
    return json.loads(text, object_pairs_hook=kept)  # type: ignore[no-any-return]


def where(data: dict[str, Any]) -> str:
    e = data["environment"]
    versions = {**e, **e.get("packages", {})}
    more = f", Triton {versions['triton']}" if e.get("gpu") else f", {e['threads']} thread{'s' * (e['threads'] != 1)}"
    place = e.get("gpu") or e["cpu"]
    return f"{place}, torch {versions['torch']}{more}, Python {e['python']}, commit {e['commit'][:7]}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gpu() -> str:
    data = record("bench-gpu.json")
    names = [BASE, "Adan", "Adan, clipped", "Adan, 8 bit", "Adan, 4 bit"]
    rows = []
    for model, result in data["models"].items():
        cells = [f"{model}, {result['parameters'] / 1e6:.0f} M in {result['tensors']} tensors"]
        for name in names:
            row = result["rows"][name]
            ratio = "" if name == BASE else f", ×{row['ratio']:.2f}"
            cells.append(f"{row['ms']:.2f} ms, {row['share_of_copy']:.0%}{ratio}")
        rows.append(cells)
    steps = min(result["steps"] for result in data["models"].values())
    return markdown(["fp32 parameters", *names], rows) + f"\n\n{where(data)}; medians of at least {steps} steps."


def gpu_alone() -> str:
    data = record("bench-gpu.json")
    names = [BASE, "Adan", "Adan, clipped", "Adan, 8 bit", "Adan, 4 bit"]
    rows = []
    for model, result in data["models"].items():
        cells = [f"{result['rows'][n]['alone_ms']:.2f} ms, ×{result['rows'][n]['alone_ratio']:.2f}" for n in names]
        rows.append([model, *cells])
    return markdown(["one step on an idle GPU", *names], rows)


def wall() -> str:
    data = record("bench-gpu.json")
    kernels = data["launches"]["kernels"]
    rows = [
        [name, f"{row['ms']:.2f} ms", f"×{row['ratio']:.2f}", str(kernels.get(name, ""))]
        for name, row in data["wall"]["rows"].items()
    ]
    return markdown(
        ["ResNet-50, `zero_grad(); fresh gradients; step()`", "wall time", f"÷ {BASE}", "kernels per step"], rows
    )


def cpu() -> str:
    """A table for each machine and number of threads."""
    tables = []
    for data in map(record, CPU):
        names = list(next(iter(data["models"].values()))["rows"])
        rows = [
            [model, *(f"{row['median_ms']:.2f} ms, ×{row['ratio_of_medians']:.2f}" for row in result["rows"].values())]
            for model, result in data["models"].items()
        ]
        tables.append(markdown(["fp32 parameters", *names], rows) + f"\n\n{where(data)}.")
    return "\n\n".join(tables)


def memory() -> str:
    """Other libraries' times are of a run in which they were installed; each ratio is within its own run."""
    data = record("memory-gpu.json")
    others, own = (record(f"bench-gpu{name}.json")["models"]["GPT-2 1.1B"]["rows"] for name in ("-others", ""))
    speed = others | own
    rows = []
    for name, row in data["rows"].items():
        time = f"{speed[name]['ms']:.2f} ms, ×{speed[name]['ratio']:.2f}" if name in speed else ""
        peaks = [
            f"{row[peak] / 1e9:.2f} GB, ×{row[peak] / data['rows'][BASE][peak]:.2f}"
            for peak in ("peak_bytes", "recompute_peak_bytes")
        ]
        rows.append([name, f"{row['state_bytes_per_parameter']:.3f}", *peaks, time])
    head = [
        "",
        "state bytes per parameter",
        "peak memory, GPT-2 345M, one sequence of 1,024 tokens",
        "with activation checkpointing",
        "optimizer step, 1.1 B fp32 parameters",
    ]
    return markdown(head, rows) + f"\n\n{where(data)}."


def summary() -> str:
    """What Adan costs compared with AdamW on a GPU."""
    speed, peak = record("bench-gpu.json")["models"], record("memory-gpu.json")["rows"]
    labels = {"Adan, coupled": "Adan, `betas[0] == betas[1]`"}
    rows = []
    for name in (BASE, "Adan", "Adan, coupled", "Adan, 8 bit", "Adan, 4 bit"):
        ratios = [peak[name]["peak_bytes"] / peak[BASE]["peak_bytes"]]
        ratios += [speed[model]["rows"][name]["ratio"] for model in ("ViT-B", "GPT-2 1.1B")]
        state = f"{peak[name]['state_bytes_per_parameter']:.1f}"
        rows.append([labels.get(name, name), state, *(f"×{ratio:.2f}" for ratio in ratios)])
    head = ["", "state bytes per parameter", "peak memory, GPT-2 345M, one sequence", "optimizer step, ViT-B"]
    return markdown([*head, "optimizer step, GPT-2 1.1B"], rows)


QUALITY = ("pycode-gpt2", "ptb-lstm", "cifar-resnet34")


def quality() -> str:
    records = {name: record(f"quality-{name}.json") for name in QUALITY}
    rows = []
    for variant in records[QUALITY[0]]["rows"]:
        cells = [variant]
        for data in records.values():
            if variant not in data["rows"]:
                cells.append("")
                continue
            losses = [row["loss"] for row in data["rows"][variant]]
            base = [row["loss"] for row in data["rows"]["fp32"]]
            gap = (statistics.mean(losses) - statistics.mean(base)) / statistics.stdev(base)
            cells.append(f"{statistics.mean(losses):.4f} ({gap:+.1f})")
        rows.append(cells)
    head = [f"{name}, {data['steps']} steps, n = {data['seeds']}" for name, data in records.items()]
    places = {where(data) for data in records.values()}
    return markdown(["", *head], rows) + "\n\n" + "; ".join(sorted(places)) + "."


def codes() -> str:
    data = record("codes.json")
    rows = [
        [name.removeprefix("all: "), *(f"{error:.3f}" for error in errors.values())]
        for name, errors in data["errors"].items()
        if name.startswith("all")
    ]
    head = list(next(iter(data["errors"].values())))
    return markdown(["codes of m, v, g; of n; block size", *head], rows) + f"\n\n{where(data)}."


def codes_4bit() -> str:
    data = record("codes-4bit.json")
    rows = [
        [name.removeprefix("all: "), *(f"{error:.3f}" for error in errors.values()), f"{data['largest'][name]:.1f}"]
        for name, errors in data["errors"].items()
        if name.startswith(("all", "n: √n, floored, 3"))
        or name.endswith("in all")
        or (name.endswith("floored, 2 bits") and name[0] != "n")
    ]
    head = [*next(iter(data["errors"].values())), "largest early update"]
    return markdown(["codes", *head], rows) + f"\n\n{where(data)}."


def step_time() -> str:
    """Adan ÷ AdamW over whole training steps: the paper's table of step times, and ours at the same sizes."""
    data = record("reproduce/small-step-time.json")
    cells = {(cell["column"], cell["row"]): cell for cell in data["tables"][0]["cells"]}
    models = [column.removesuffix(", ms") for column, _ in cells if column.endswith(", ms")]
    rows = []
    for model in dict.fromkeys(models):
        line = [model]
        for unit in ("ms", "GB"):
            ours, base = (cells[f"{model}, {unit}", name] for name in ("Adan", "AdamW"))
            line.append(f"×{float(ours['paper']) / float(base['paper']):.2f}")
            line.append(f"{ours['values'][0]:.1f} {unit}, ×{ours['values'][0] / base['values'][0]:.2f}")
        rows.append(line)
    head = ["Adan ÷ AdamW", "step, paper", "step, here", "peak memory, paper", "peak memory, here"]
    e = data["environment"]
    packages = e["packages"]
    place = f"{e['gpu']}, bf16 autocast, torch {packages['torch']}, transformers {packages['transformers']}"
    return markdown(head, rows) + f"\n\n{place}, commit {e['commit'][:7]}; the paper: one A800."


def harness() -> str:
    """Steps per second of the harness on a GPU, one run: each way of making them, and how busy the GPU was."""
    data = record("bench-harness.json")
    modes = list(dict.fromkeys(mode for rows in data["alone"].values() for mode in rows if mode != "relative_gap"))
    rows = []
    for name, by_mode in data["alone"].items():
        cells = []
        for row in (by_mode.get(mode, {}) for mode in modes):
            busy = f" ({min(1, row['gpu_busy']):.0%})" if row.get("gpu_busy") else ""
            cells.append(f"{row['steps_per_second']:.0f}{busy}" if "steps_per_second" in row else "")
        rows.append([f"{name}, batch {data['cases'][name]['batch_size']}", *cells])
    head = ["steps per second (GPU busy)", *modes]
    return markdown(head, rows) + f"\n\n{where(data)}; Adan, bf16 autocast."


def harness_together() -> str:
    """Steps per second of several runs on one GPU, all together."""
    data = record("bench-harness.json")
    rows = []
    for row in data["together"]:
        one, total = data["alone"][row["case"]][row["mode"]]["steps_per_second"], row["steps_per_second"]
        name = f"{row['case']}, {row['mode']}"
        rows.append([name, str(row["runs"]), f"{one:.0f}", f"{total:.0f}, ×{total / one:.2f}"])
    head = ["", "runs at a time", "one run", "steps per second in total"]
    return markdown(head, rows) + f"\n\n{where(data)}, MPS."


TABLES: dict[str, Callable[[], str]] = {
    "harness": harness,
    "harness-together": harness_together,
    **results_page.TABLES,
    "step-time": step_time,
    "summary": summary,
    "memory": memory,
    "quality": quality,
    "codes": codes,
    "codes-4bit": codes_4bit,
    "gpu": gpu,
    "gpu-alone": gpu_alone,
    "wall": wall,
    "cpu": cpu,
    "short-runs": tuning.short_runs,
    "rules": tuning.rules,
    "b1-length": tuning.b1_by_length,
    "held-out": tuning.held_out,
    "widths": tuning.widths,
    "other-studies": tuning.elsewhere,
    "scaling": scaling.table,
    "planner": lambda: "\n\n".join(markdown(*table) for table in planner.large_models()),
    "planner-measured": lambda: f"{markdown(*planner.measured())}\n\n{where(record('memory-gpu.json'))}.",
}


def rendered(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- table (\S+) -->)\n.*?(<!-- end -->)", table, text, flags=re.DOTALL)


def main() -> None:
    stale = figures.write(results_page.pictures(studies()), ROOT / "docs" / "figures", check="--check" in sys.argv)
    for name in [*PAGES, *WHOLE]:
        path = ROOT / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = WHOLE[name]() if name in WHOLE else rendered(old)
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    print("written:" if "--check" not in sys.argv else "out of date:", ", ".join(stale) or "nothing")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
