"""Reader of the first format of records: the runs under results/evidence, made before `adan-bench study` existed.

A line holds a `job` (problem, options, optimizer, settings, length), its end and a curve by columns. The problems are
workloads now, and became a record's configuration where they had the option that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adan_bench.config import Origin, RunConfig, RunRecord

#: The names that problems have as workloads, by their options where these tell them apart; the others keep theirs.
WORKLOADS = {problem: f"cifar-{problem}" for problem in ("vit", "resnet34", "convnext", "mae")}
WORKLOADS |= {"bert": "english-bert", "glue": "english-{task}", "lstm": "lstm-{layers}"}
WORKLOADS |= {"gpt": "pycode-{name}", "detr": "deformable-detr", "harness": "{workload}"}
GPT = {128: "gpt-1m", 384: "gpt-11m", 512: "gpt-26m"}  # by width
BATCH_SIZE = {"lstm": 20, "cora": 1}  # where no option said it
FP32 = ("transformer-xl", "detr", "cora", "harness")
OPTIONS = ("text", "fixed_recurrent")  # those that still are; the others are in the workload's name or in `RunConfig`


def from_first_format(line: Mapping[str, Any], file: Path) -> RunRecord:
    """The record of a line; its path is that of the file with the run's key behind it."""
    job, environment, curve = line["job"], line["environment"], line["curve"]
    problem, options, settings = job["problem"], job["options"], dict(job["settings"])
    if job["optimizer"] == "sgd":
        settings.setdefault("momentum", 0.9)
    on_cpu, compiled = job["lane"] == "cpu", "compiled" in line["mode"]
    gpt = "moe" if "experts" in options else GPT[options.get("width", 384)]
    config = RunConfig(
        workload=WORKLOADS.get(problem, problem).format(name=gpt, **options),
        optimizer=job["optimizer"],
        settings=settings,
        training={key: value for key, value in options.items() if key in OPTIONS} or None,
        steps=line["steps"],
        batch_size=options.get("batch_size") or BATCH_SIZE[problem],
        eval_every=max(1, line["steps"] // job["evaluations"]),
        schedule=options.get("schedule", "cosine"),
        warmup=options.get("warmup", 0.05),
        scale=options.get("scale", "small"),
        seed=job["seed"],
        role="tune" if job["tuning"] else "run",
        origin=Origin(kind="trial" if job["tuning"] else ""),
        init=Path(options["start"]) if "start" in options else None,
        device="cpu" if on_cpu else "cuda",
        bf16=problem not in FP32 or (problem == "transformer-xl" and compiled),
        compile=compiled,
        threads=1,
        jobs=environment["cpu_workers" if on_cpu else "workers"],
    )
    metrics: list[dict[str, Any]] = []
    for point in zip(*curve.values(), strict=True):
        values = dict(zip(curve, point, strict=True))
        at = {name: values.pop(name) for name in ("step", "seconds")}
        metrics.append({"kind": "train", **at, "loss": values.pop("train_loss")})
        metrics.append({"kind": "eval", **at, **values})
    result = None
    if line["status"] != "cut off":
        result = {
            "status": line["status"],
            "step": metrics[-1]["step"],
            "seconds": line["train_seconds"],
            "wall_seconds": line["wall_seconds"],
            "final": {name: value for name, value in line["final"].items() if name != "train_loss"},
            "best": line["best"],
            "graph": "captured" if "graph" in line["mode"] else "eager: an earlier runner",
        }
    versions = {name: environment[name] for name in ("torch", "triton") if name in environment}
    facts = {
        **environment,
        "commit": line["commit"],
        "packages": environment.get("packages", versions),
        "platform": environment.get("platform", environment.get("os")),
        "started": environment.get("started", environment.get("date")),
        "parameters": line["parameters"],
        "data": line["note"],
    }
    judged = {"metric": line["metric"], "higher_is_better": line["higher_is_better"]}
    workload = {"name": config.workload, **judged, "target": None, "summary": line["note"]}
    return RunRecord(file / line["key"], config, workload, {"name": config.optimizer}, facts, metrics, result)
