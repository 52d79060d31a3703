"""Is Adan, at what `suggest_from_adamw` says, worse than AdamW on workloads that no rule was fitted to?

    ADAN_DATA=DIR python benchmarks/held_out.py     # Penn Treebank in DIR/ptb

AdamW has the settings of the harness, tuned in eight trials. Adan has the
suggestion for exactly those settings, and no trial. Both have the schedule, warm-up and clipping of the workload at the
scale smoke. Writes results/held-out.json, from which `make tables` writes the table of docs/tuning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, environment

from adan import suggest_from_adamw
from adan.suggestion import Task
from adan_bench.config import RunConfig
from adan_bench.records.store import read_run
from adan_bench.studies.comparison import Study
from adan_bench.studies.competitors import Competitor
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload

#: Workload → the task that a user would name. None of them is a model or a data set of results/evidence that a rule
#: was fitted to: those are a ViT on CIFAR-10, a GPT on Python source and PPO.
WORKLOADS: dict[str, Task | None] = {
    "digits-resnet": "vision",
    "convnext-t": "vision",
    "ptb-lstm": "lm",
    "transformer-xl": "lm",
    "bert-pretrain": "lm",
    "moe": "moe",
    "deepgcn": None,
}


def compared(name: str, task: Task | None, seeds: int, chosen: RunConfig, out: Path) -> dict[str, Any]:
    """Both optimizers on one workload: settings, where AdamW's come from, and the metric of every seed."""
    workload, adamw, adan = get_workload(name), get_optimizer("adamw"), get_optimizer("adan")
    base = configure(workload, adamw, chosen)
    settings = base.settings
    suggestion = suggest_from_adamw(
        settings["lr"],
        weight_decay=settings["weight_decay"],
        betas=settings.get("betas", (0.9, 0.999)),
        total_steps=base.steps,
        warmup_steps=round(base.warmup * base.steps),
        task=task,
        batch_size=base.batch_size,
    )
    competitors = [Competitor("adamw", adamw), Competitor("adan", adan, suggestion.options())]
    with Study([name], competitors, chosen, out=out) as study:
        study.compare(seeds)
    by_optimizer = {
        who: [read_run(out / name / who / f"seed-{seed}") for seed in range(seeds)] for who in ("adamw", "adan")
    }
    return {
        "task": task,
        "steps": base.steps,
        "batch_size": base.batch_size,
        "metric": workload.metric,
        "higher_is_better": workload.higher_is_better,
        "data": by_optimizer["adan"][0].environment["data"],
        "origin": base.origin.to_json(),
        **{
            who: {"settings": dict(runs[0].config.settings), "values": [run.final for run in runs]}
            for who, runs in by_optimizer.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="all unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=os.environ.get("ADAN_DATA"))
    args = parser.parse_args()
    path = ROOT / "results" / "held-out.json"
    chosen = RunConfig(data=args.data, threads=1)
    record: dict[str, Any] = {"environment": environment(), "seeds": args.seeds, "workloads": {}}
    for name in args.workloads or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            row = compared(name, WORKLOADS[name], args.seeds, chosen, Path(folder) / "runs")
        record["workloads"][name] = row
        print(f"{name}: AdamW {row['adamw']['values']}, Adan {row['adan']['values']}", flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
