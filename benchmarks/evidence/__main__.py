"""The command line of the evidence runner; see the package's documentation."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adan_bench.records.stats import MIN_SEEDS
from adan_bench.training.mps import multi_process_service
from evidence import data, documentation, gradients
from evidence.jobs import Job, Record, append, read, store
from evidence.pool import Outcome, Place, Pool
from evidence.search import Follow, Study
from evidence.sections.parts import RUNS
from evidence.studies import GPT_30M, STUDIES, TIANSHOU_HOPPER

GRACE = 20  # seconds that runs under way have after the deadline


class Runner:
    """Hands jobs to workers in the order of the studies, and writes every finished run to a file."""

    def __init__(self, studies: list[Study | Follow], out: Path, facts: dict[str, Any], deadline: float) -> None:
        self.studies = studies
        self.out, self.facts, self.deadline = out, facts, deadline
        self.began = time.monotonic()
        self.records = {key: record for key, record in read(out).items() if record["status"] != "failed"}
        self.eager: set[str] = set()  # keys of jobs that no graph could hold
        self.tried: dict[str, int] = {}
        self.costs: dict[tuple[str, ...], float] = {}  # wall seconds for each epoch or step
        for record in self.records.values():
            self.note_cost(record)

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def run(self, pool: Pool) -> None:
        while True:
            for worker in pool.idle():
                job = self.next_job(worker.lane, {w.job.key for w in pool.busy() if w.job})
                if job is not None:
                    self.tried[job.key] = self.tried.get(job.key, 0) + 1
                    worker.begin(job, job.key not in self.eager)
            if not pool.busy():
                return
            for outcome in pool.wait(1.0):
                self.finish(outcome)
            if self.elapsed() > self.deadline + GRACE:
                for worker in pool.busy():
                    print(f"stopped unfinished: {worker.job}", flush=True)
                return

    def next_job(self, lane: str, running: set[str]) -> Job | None:
        """The first job of the lane that nobody makes and that ends before the deadline, or that keeps checkpoints.

        Seeds beyond those without which nothing is reported come after all else.
        """
        left = self.deadline - self.elapsed()
        later = None
        for study in self.studies:
            for job in study.jobs(self.records):
                if job.lane == lane and job.key not in running and (lane == "cpu" or self.expected(job) < left):
                    if job.tuning or job.seed < MIN_SEEDS:
                        return job
                    later = later or job
        return later

    def expected(self, job: Job) -> float:
        """Seconds that a job may take: as the last of its kind, else of its problem, else half a minute."""
        similar = [cost for kind, cost in self.costs.items() if (kind[0], kind[-1]) == (job.problem, job.unit)]
        kind = _kind(job.problem, job.options, job.unit)
        return self.costs.get(kind, similar[-1] if similar else 30.0 / job.length) * job.length

    def note_cost(self, record: Record) -> None:
        job = record["job"]
        if record["status"] == "finished":
            kind = _kind(job["problem"], job["options"], job["unit"])
            self.costs.pop(kind, None)  # the last one comes last
            self.costs[kind] = record["wall_seconds"] / job["length"]

    def finish(self, outcome: Outcome) -> None:
        job, record = outcome.job, outcome.record
        if record is None and outcome.error is not None:
            print(f"[{self.elapsed():4.0f} s] FAILED {job}: {outcome.error}", flush=True)
            if outcome.graph and outcome.error.startswith("CaptureFailed"):
                self.eager.add(job.key)
                self.facts.setdefault("not captured", {})[job.key] = outcome.error.splitlines()[0]
            if outcome.fatal and self.tried[job.key] < 3:
                return
            record = {"key": job.key, "status": "failed", "error": outcome.error, "final": {}}
        assert record is not None
        if reason := self.facts.get("not captured", {}).get(job.key):
            record["mode"] = f"eager: {reason}"
        if record["status"] == "finished":
            self.note_cost(record)
            metric, train = record["final"][record["metric"]], record["final"]["train_loss"]
            print(
                f"[{self.elapsed():4.0f} s] {job}: {record['metric']} {metric:.4f}, train loss {train:.4f}, "
                f"{record['wall_seconds']:.1f} s, {record['steps_per_second'] or 0:g} steps/s, {record['mode']}",
                flush=True,
            )
        elif record["status"] == "diverged":
            print(f"[{self.elapsed():4.0f} s] {job}: diverged", flush=True)
        self.records[job.key] = record
        environment = {key: value for key, value in self.facts.items() if key != "not captured"}
        append(self.out, json.dumps({**record, "environment": environment}))


def _kind(problem: str, options: Mapping[str, Any], unit: str) -> tuple[str, ...]:
    return problem, json.dumps(dict(options), sort_keys=True), unit


def run(args: argparse.Namespace) -> None:
    unknown = [name for name in args.studies if name not in STUDIES]
    if unknown:
        raise SystemExit(f"no study {', '.join(unknown)}; there are: {', '.join(STUDIES)}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with multi_process_service() as shared:
        facts = environment(args, shared)
        runner = Runner([STUDIES[name] for name in args.studies or STUDIES], args.out, facts, args.deadline)
        pool = Pool({"gpu": args.gpu_workers, "cpu": args.cpu_workers}, Place(args.cache, args.device, args.site))
        try:
            runner.run(pool)
        finally:
            pool.close()
        print(f"{len(runner.records)} runs in {args.out} after {runner.elapsed():.0f} s", flush=True)


def environment(args: argparse.Namespace, shared: bool) -> dict[str, Any]:
    import torch
    from common import environment as describe

    facts = describe()
    if args.commit:
        facts["commit"] = args.commit
    stored = args.cache / "facts.json"
    facts["data"] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    facts["cudnn"] = torch.backends.cudnn.version()
    return facts | {"workers": args.gpu_workers, "cpu_workers": args.cpu_workers, "mps": shared}


#: Every kind of step once, small in length and full in size: problem, options, optimizer, settings, steps.
SMOKE: list[tuple[str, dict[str, Any], str, dict[str, Any], int]] = [
    ("vit", {}, "adan", {"lr": 2e-3, "betas": [0.98, 0.92, 0.99], "weight_decay": 0.02}, 200),
    ("gpt", {}, "adan", {"lr": 2e-3, "betas": [0.9, 0.92, 0.99], "weight_decay": 0.02}, 200),
    ("gpt", dict(GPT_30M.options), "adan", {"lr": 2e-3, "betas": [0.9, 0.92, 0.99], "weight_decay": 0.02}, 60),
    ("resnet34", {}, "adan", {"lr": 2.5e-3, "weight_decay": 0.02}, 200),
    ("mae", {}, "adan", {"lr": 2e-3, "weight_decay": 0.02}, 200),
    ("bert", {}, "adan", {"lr": 2e-3, "weight_decay": 0.02}, 200),
    ("glue", {"task": "cola"}, "adan", {"lr": 4e-4, "weight_decay": 0.02}, 200),
    ("lstm", {}, "adan", {"lr": 5e-3, "weight_decay": 0.02}, 300),
    ("transformer-xl", {}, "adan", {"lr": 2e-3, "betas": [0.9, 0.92, 0.99], "weight_decay": 0.02}, 300),
    ("detr", {}, "adan", {"lr": 2e-3, "weight_decay": 0.02}, 60),
    ("vit", {}, "adan", {"lr": 2e-3, "weight_decay": 0.02, "state_format": "8bit"}, 60),
    ("vit", {}, "adamw", {"lr": 1e-3, "weight_decay": 0.05}, 60),
    ("vit", {}, "lamb", {"lr": 5e-3, "weight_decay": 0.05}, 60),
    ("vit", {}, "adam", {"lr": 1e-3}, 60),
    ("vit", {}, "sgd", {"lr": 0.05, "weight_decay": 5e-4}, 60),
    ("lstm", {}, "adabelief", {"lr": 1e-3, "eps": 1e-12}, 60),
    ("harness", dict(TIANSHOU_HOPPER.options), "adan", {"lr": 3e-4}, 640),
]


def smoke(args: argparse.Namespace) -> None:
    """Captured beside eager, every problem and every optimizer: do the losses agree, and how fast is it?"""
    lanes = {"harness": "cpu"}
    jobs = [
        Job("smoke", problem, options, optimizer, settings, steps, "steps", 0, False, 1, lanes.get(problem, "gpu"))
        for problem, options, optimizer, settings, steps in SMOKE
    ]
    work = [(job, graph) for job in jobs for graph in (True, False)]
    outcomes: dict[tuple[str, bool], Record | str] = {}
    began = time.monotonic()
    with multi_process_service() as shared:
        pool = Pool({"gpu": args.gpu_workers, "cpu": 1}, Place(args.cache, args.device, args.site))
        try:
            while work or pool.busy():
                for worker in pool.idle():
                    if item := next((item for item in work if item[0].lane == worker.lane), None):
                        work.remove(item)
                        worker.begin(*item)
                for outcome in pool.wait(1.0):
                    outcomes[outcome.job.key, outcome.graph] = outcome.record or str(outcome.error)
                if time.monotonic() - began > args.deadline:
                    break
        finally:
            pool.close()
    print(
        f"MPS: {shared}; {time.monotonic() - began:.0f} s. Mean loss of the run, captured and eager, steps per second:"
    )
    for job in jobs:
        pair = [outcomes.get((job.key, graph), "not finished in time") for graph in (True, False)]
        finished = [record for record in pair if not isinstance(record, str)]
        name = f"{job.problem:9} {job.optimizer:9} {job.settings.get('state_format', ''):5}"
        if len(finished) < len(pair):
            print(f"{name} FAILED: " + " | ".join(p.splitlines()[0] if isinstance(p, str) else p["mode"] for p in pair))
            continue
        losses = [p["final"].get("train_loss", float("nan")) for p in finished]
        rates = " ".join(f"{p['steps_per_second'] or 0:7.1f}" for p in finished)
        gap = abs(losses[0] / losses[1] - 1)
        print(f"{name} {losses[0]:.5f} {losses[1]:.5f} relative gap {gap:.1e}  {rates}  {finished[0]['mode']}")
    for error in {error for error in outcomes.values() if isinstance(error, str)}:
        print(error)
    args.out.write_text(
        "".join(json.dumps(r) + "\n" for r in outcomes.values() if not isinstance(r, str)), encoding="utf-8"
    )


def prepare(args: argparse.Namespace) -> None:
    facts = data.prepare(args.data, args.cache, args.sources, args.processes)
    target = args.cache / "data"
    if not target.exists():
        shutil.copytree(args.data, target, ignore=shutil.ignore_patterns(data.PACKED, documentation.PACKED, "*.whl"))
    print(json.dumps(facts, indent=1))


def main() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    parser = argparse.ArgumentParser(prog="evidence", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, function: Any) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name)
        subparser.set_defaults(function=function)
        return subparser

    packing = command("pack", lambda args: data.pack(args.data, args.target))
    packing.add_argument("--data", type=Path, required=True)
    packing.add_argument("--target", type=Path, required=True)
    gathering = command("pack-english", lambda args: print(documentation.pack(args.tree, args.target, args.processes)))
    gathering.add_argument("--tree", type=Path, required=True, help="unpacked packages of Debian's documentation")
    gathering.add_argument("--target", type=Path, required=True)
    gathering.add_argument("--processes", type=int, default=8)
    preparing = command("prepare", prepare)
    preparing.add_argument("--data", type=Path, required=True)
    preparing.add_argument(
        "--sources", type=Path, nargs="*", help="folders of Python source, or none; all that is installed unless given"
    )
    preparing.add_argument("--processes", type=int, default=8)
    preparing.add_argument("--cache", type=Path, required=True)
    running, smoking = command("run", run), command("smoke", smoke)
    running.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; all unless given")
    running.add_argument("--commit", help="of the code, where this is no checkout")
    running.add_argument("--cpu-workers", type=int, default=0)
    for sub in (running, smoking):
        sub.add_argument("--cache", type=Path, required=True)
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--device", default="cuda")
        sub.add_argument("--gpu-workers", type=int, default=4)
        sub.add_argument("--site", type=Path, help="folder of further packages")
        sub.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which no run goes on")
    comparing = command("gradients", gradients.run)
    comparing.add_argument("--cache", type=Path, required=True)
    comparing.add_argument("--out", type=Path, required=True)
    comparing.add_argument("--device", default="cuda")
    storing = command("store", lambda args: print(f"{store(RUNS, args.paths)} runs in {RUNS}"))
    storing.add_argument("paths", type=Path, nargs="+", help="files of `run`, to be added to the repository's records")
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
