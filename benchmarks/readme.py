"""Write the tables of README.md and docs/ from the records under results/: `make tables`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; docs/paper-settings.md and docs/results-details.md are
written whole, and the figures of the results drawn. `--check` only says whether all are up to date.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))  # this script needs no installation

import figures  # noqa: E402
import paper_settings  # noqa: E402
import planner  # noqa: E402
import results_details  # noqa: E402
import results_page  # noqa: E402
import scaling  # noqa: E402
import tuning  # noqa: E402
from common import ROOT, read, table  # noqa: E402
from stored import studies  # noqa: E402

WHOLE: dict[str, Callable[[], str]] = {
    "docs/paper-settings.md": paper_settings.page,
    "docs/results-details.md": lambda: results_details.page(studies()),
}
BASE = "AdamW fused"
ON_GPU = [BASE, "Adan", "Adan, consume_grad", "Adan, clipped", "Adan, 8 bit", "Adan, 4 bit"]


def where(data: dict[str, Any]) -> str:
    e = data["environment"]
    versions = {**e, **e.get("packages", {})}
    more = f", Triton {versions['triton']}" if e.get("gpu") else f", {e['threads']} thread{'s' * (e['threads'] != 1)}"
    place = e.get("gpu") or e["cpu"]
    return f"{place}, torch {versions['torch']}{more}, Python {e['python']}, commit {e['commit'][:7]}"


def numbers(head: list[str], rows: Iterable[list[str]], below: str = "") -> str:
    """A table of numbers, with a line below."""
    return table(head, rows, left=1) + (f"\n\n{below}" if below else "")


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


def gpu_alone() -> str:
    lines = []
    for model, result in read("bench-gpu.json")["models"].items():
        rows = [result["rows"][name] for name in ON_GPU]
        lines.append([model, *(f"{row['alone_ms']:.2f} ms, ×{row['alone_ratio']:.2f}" for row in rows)])
    return numbers(["one step on an idle GPU", *ON_GPU], lines)


def wall() -> str:
    data = read("bench-gpu.json")
    kernels, rows = data["launches"]["kernels"], data["wall"]["rows"].items()
    lines = [[name, f"{row['ms']:.2f} ms", f"×{row['ratio']:.2f}", str(kernels.get(name, ""))] for name, row in rows]
    head = ["ResNet-50, `zero_grad(); fresh gradients; step()`", "wall time", f"÷ {BASE}", "kernels per step"]
    return numbers(head, lines)


def cpu() -> str:
    """A table for each machine and number of threads."""
    tables = []
    for name in ("", "-x86", "-x86-8-threads"):
        data, lines = read(f"bench-cpu{name}.json"), []
        for model, result in data["models"].items():
            rows = result["rows"]
            times = [f"{row['median_ms']:.2f} ms, ×{row['ratio_of_medians']:.2f}" for row in rows.values()]
            lines.append([model, *times])
        tables.append(numbers(["fp32 parameters", *rows], lines, f"{where(data)}."))
    return "\n\n".join(tables)


def memory() -> str:
    """Other libraries' times are of a run in which they were installed; each ratio is within its own run."""
    data = read("memory-gpu.json")
    others, own = (read(f"bench-gpu{name}.json")["models"]["GPT-2 1.1B"]["rows"] for name in ("-others", ""))
    speed, lines = others | own, []
    for name, row in data["rows"].items():
        time = f"{speed[name]['ms']:.2f} ms, ×{speed[name]['ratio']:.2f}" if name in speed else ""
        peaks = [
            f"{row[peak] / 1e9:.2f} GB, ×{row[peak] / data['rows'][BASE][peak]:.2f}"
            for peak in ("peak_bytes", "recompute_peak_bytes")
        ]
        lines.append([name, f"{row['state_bytes_per_parameter']:.3f}", *peaks, time])
    head = ["", "state bytes per parameter", "peak memory, GPT-2 345M, one sequence of 1,024 tokens"]
    head += ["with activation checkpointing", "optimizer step, 1.1 B fp32 parameters"]
    return numbers(head, lines, f"{where(data)}.")


def summary() -> str:
    """The cost of Adan compared with AdamW's on a GPU."""
    speed, peak = read("bench-gpu.json")["models"], read("memory-gpu.json")["rows"]
    rows = []
    for name in (BASE, "Adan", "Adan, coupled", "Adan, 8 bit", "Adan, 4 bit"):
        ratios = [peak[name]["peak_bytes"] / peak[BASE]["peak_bytes"]]
        ratios += [speed[model]["rows"][name]["ratio"] for model in ("ViT-B", "GPT-2 1.1B")]
        label = name.replace("coupled", "`betas[0] == betas[1]`")
        rows.append([label, f"{peak[name]['state_bytes_per_parameter']:.1f}", *(f"×{ratio:.2f}" for ratio in ratios)])
    head = ["", "state bytes per parameter", "peak memory, GPT-2 345M, one sequence", "optimizer step, ViT-B"]
    return numbers([*head, "optimizer step, GPT-2 1.1B"], rows)


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


def codes() -> str:
    data = read("codes.json")
    errors = {name: by_run for name, by_run in data["errors"].items() if name.startswith("all")}
    rows = [[name.removeprefix("all: "), *(f"{e:.3f}" for e in by_run.values())] for name, by_run in errors.items()]
    return numbers(["codes of m, v, g; of n; block size", *next(iter(errors.values()))], rows, f"{where(data)}.")


def codes_4bit() -> str:
    data, rows = read("codes-4bit.json"), []
    for name, errors in data["errors"].items():
        if re.match("all|n: √n, floored, 3|[^n].*floored, 2 bits$|.*in all$", name):
            numbers_of = [f"{error:.3f}" for error in errors.values()] + [f"{data['largest'][name]:.1f}"]
            rows.append([name.removeprefix("all: "), *numbers_of])
    return numbers(["codes", *errors, "largest early update"], rows, f"{where(data)}.")


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
    modes = list(
        dict.fromkeys(mode for by_mode in data["alone"].values() for mode in by_mode if mode != "relative_gap")
    )
    for name, by_mode in data["alone"].items():
        cells = []
        for row in (by_mode.get(mode, {}) for mode in modes):
            busy = f" ({min(1, row['gpu_busy']):.0%})" if row.get("gpu_busy") else ""
            cells.append(f"{row['steps_per_second']:.0f}{busy}" if "steps_per_second" in row else "")
        rows.append([f"{name}, batch {data['cases'][name]['batch_size']}", *cells])
    return numbers(["steps per second (GPU busy)", *modes], rows, f"{where(data)}; Adan, bf16 autocast.")


def harness_together() -> str:
    """Steps per second of several runs on one GPU, all together."""
    data, rows = read("bench-harness.json"), []
    for row in data["together"]:
        one, total = data["alone"][row["case"]][row["mode"]]["steps_per_second"], row["steps_per_second"]
        rates = [str(row["runs"]), f"{one:.0f}", f"{total:.0f}, ×{total / one:.2f}"]
        rows.append([f"{row['case']}, {row['mode']}", *rates])
    return numbers(["", "runs at a time", "one run", "steps per second in total"], rows, f"{where(data)}, MPS.")


COSTS = (gpu, gpu_alone, wall, cpu, memory, summary, quality, codes, codes_4bit, step_time, harness, harness_together)
TABLES: dict[str, Callable[[], str]] = {
    **{table_of.__name__.replace("_", "-"): table_of for table_of in (*COSTS, *tuning.TABLES)},
    **results_page.TABLES,
    "scaling": scaling.table,
    "planner": lambda: "\n\n".join(numbers(head, rows) for head, rows in planner.large_models()),
    "planner-measured": lambda: numbers(*planner.measured(), f"{where(read('memory-gpu.json'))}."),
}


def rendered(text: str) -> str:
    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- table (\S+) -->)\n.*?(<!-- end -->)", filled, text, flags=re.DOTALL)


def main() -> None:
    check = "--check" in sys.argv
    stale = figures.write(results_page.pictures(studies()), ROOT / "docs" / "figures", check)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name, old = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        new = WHOLE[name]() if name in WHOLE else rendered(old)
        if new != old:
            stale.append(name)
            if not check:
                path.write_text(new, encoding="utf-8")
    print("out of date:" if check else "written:", ", ".join(stale) or "nothing")
    sys.exit(1 if stale and check else 0)


if __name__ == "__main__":
    main()
