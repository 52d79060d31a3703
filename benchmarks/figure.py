"""Draw the README's figure from results/evidence/runs.jsonl: `python benchmarks/figure.py`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from matplotlib.figure import Figure  # without pyplot: no window system, no global state

ROOT = Path(__file__).resolve().parent.parent
STUDY = "vit-25"
STYLES = {"adan": ("Adan", "#c1272d", "-"), "lamb": ("LAMB", "#0000a7", "--"), "adamw": ("AdamW", "#5f5f5f", "-.")}


def main() -> None:
    runs = [json.loads(line) for line in (ROOT / "results" / "evidence" / "runs.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(7, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for optimizer, (label, color, line) in STYLES.items():
        found = [r for r in runs if r["job"]["study"] == STUDY and r["job"]["optimizer"] == optimizer]
        seeds = [[100 * x for x in r["curve"]["accuracy"]] for r in found if not r["job"]["tuning"]]
        epochs = range(1, len(seeds[0]) + 1)
        final = [curve[-1] for curve in seeds]
        mean = [statistics.mean(values) for values in zip(*seeds, strict=True)]
        low, high = (list(map(edge, zip(*seeds, strict=True))) for edge in (min, max))
        text = f"{label}  {statistics.mean(final):.2f} ± {statistics.stdev(final):.2f}"
        axes.plot(epochs, mean, line, color=color, label=text)
        axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(50, 80), xlim=(1, len(epochs)))
    axes.legend(title="at the end, mean ± s.d. of 3 seeds", frameon=False, loc="lower right")
    axes.set_title("ViT of 4.8 M parameters, CIFAR-10, each optimizer tuned by 7 trials", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "figures" / "vit-cifar10.png")


if __name__ == "__main__":
    main()
