"""Reader of the first format of records: the runs under results/evidence, made before `adan-bench study` existed.

A line holds a `job` (problem, options, optimizer, settings, length), its end and a curve by columns. The problems are
workloads now, and became a record's configuration where they had the option that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adan_bench.config import Origin, RunConfig, RunRecord

WORKLOADS = {
    "vit": "cifar-vit",
    "resnet34": "cifar-resnet34",
    "convnext": "cifar-convnext",
    "mae": "cifar-mae",
    "bert": "english-bert",
    "transformer-xl": "transformer-xl",
    "detr": "deformable-detr",
    "cora": "cora",
}
GPT = {128: "pycode-gpt-1m", 384: "pycode-gpt-11m", 512: "pycode-gpt-26m"}  # by width
BATCH_SIZE = {"lstm": 20, "cora": 1}  # where no option said it
FP32 = ("transformer-xl", "detr", "cora", "harness")
#: Options that are no longer some: the workload's name or a field of `RunConfig` says it.
SAID = {"batch_size", "schedule", "warmup", "scale", "workload", "start", "task"}
SAID |= {"layers", "width", "heads", "context", "experts", "channels"}


def workload_of(problem: str, options: Mapping[str, Any]) -> str:
    """The name that a problem has as a workload."""
    if problem == "gpt":
        return "pycode-moe" if "experts" in options else GPT[options.get("width", 384)]
    made = {"lstm": "lstm-{layers}", "glue": "english-{task}", "harness": "{workload}"}
    return made[problem].format(**options) if problem in made else WORKLOADS[problem]


def from_first_format(line: Mapping[str, Any], file: Path) -> RunRecord:
    """The record of a line; its path is that of the file with the run's key behind it."""
    job, environment, curve = line["job"], line["environment"], line["curve"]
    problem, options, settings = job["problem"], job["options"], dict(job["settings"])
    if job["optimizer"] == "sgd":
        settings.setdefault("momentum", 0.9)
    on_cpu, compiled = job["lane"] == "cpu", "compiled" in line["mode"]
    config = RunConfig(
        workload=workload_of(problem, options),
        optimizer=job["optimizer"],
        settings=settings,
        training={key: value for key, value in options.items() if key not in SAID} or None,
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
    for at, (step, seconds) in enumerate(zip(curve["step"], curve["seconds"], strict=True) if curve else ()):
        values = {name: column[at] for name, column in curve.items() if name not in ("step", "seconds", "train_loss")}
        metrics.append({"kind": "train", "step": step, "seconds": seconds, "loss": curve["train_loss"][at]})
        metrics.append({"kind": "eval", "step": step, "seconds": seconds, **values})
    result = None
    if line["status"] != "cut off":
        result = {
            "status": line["status"],
            "step": metrics[-1]["step"] if metrics else 0,
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
        "platform": environment.get("platform") or environment["os"],
        "started": environment.get("started") or environment.get("date"),
        "parameters": line["parameters"],
        "data": line["note"],
    }
    judged = {"metric": line["metric"], "higher_is_better": line["higher_is_better"]}
    workload = {"name": config.workload, **judged, "target": None, "summary": line["note"]}
    optimizer = {"name": config.optimizer}
    return RunRecord(file / line["key"], config, workload, optimizer, facts, metrics, result)
