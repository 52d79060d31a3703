"""Runs on a Ray cluster: two nodes on this machine, one of which is lost in the middle."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.learning import chosen, curve, settings
from support.pools import always
from support.scripts import one_weight

from adan_bench.records.store import RunStore, read_run
from adan_bench.studies import arms
from adan_bench.studies.comparison import compared
from adan_bench.studies.competitors import competitors
from adan_bench.training.cluster import RayPool, files_for, make, receive
from adan_bench.training.jobs import Event, Job, Tally
from adan_bench.training.scripts import load_script
from adan_bench.training.trainer import run


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes with a core each, of which the first is the head."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    bare = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args={**bare, **small})
    cluster.add_node(**small)
    yield cluster
    cluster.shutdown()


#: Two runs meet at their 250th step, so that both are under way when the node is lost.
GATE = """
    made = []
    pathlib.Path({gate!r} + f".{{os.getppid()}}").touch()  # the process of the node
    def loss(model, batch):
        made.append(time.monotonic())
        while len(made) > 250 and not pathlib.Path({gate!r}).exists() and time.monotonic() < made[-1] + 60:
            time.sleep(0.01)
"""


def test_a_lost_node_costs_no_run(nodes: Any, bench: Any, tiny: Path, tmp_path: Path) -> None:
    """A node is killed while each of the two has a run: both end with the numbers of an undisturbed process.

    Then --resume adds a third seed; the first two stay as they are.
    """
    gate, script = tmp_path / "gate", tmp_path / "gated.py"
    text = tiny.read_text(encoding="utf-8").replace('"tiny"', '"gated"').replace("def tiny(", "def gated(")
    loss = "\n    def loss(model, batch):\n"
    assert loss in text
    script.write_text("import os, pathlib, time\n" + text.replace(loss, GATE.format(gate=str(gate))), encoding="utf-8")
    load_script(script)
    out, lengths = tmp_path / "a", {"steps": 400, "eval_every": 100, "checkpoint_every": 100}
    paths = [out / "gated" / "adan" / f"seed-{seed}" for seed in range(3)]
    began: dict[Path, list[list[int]]] = {path: [] for path in paths}  # the steps seen, by attempt
    checkpoints: dict[Path, int] = {}

    def watch(event: Event) -> None:
        if event.progress is not None:
            began[event.job.path][-1].append(event.progress.step)
        elif event.result is None:
            began[event.job.path].append([])
        there = {path: RunStore(path).resume_step for path in paths[:2]}
        if not checkpoints and all(there.values()):
            checkpoints.update(there)
            nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
            while all(Path(f"/proc/{file.suffix[1:]}").exists() for file in tmp_path.glob("gate.*")):
                time.sleep(0.01)  # else the lost run may end before its node does
            gate.touch()

    options = chosen(cluster=f"ray:{nodes.address}", script=script, **lengths)
    groups = [[*compared(["gated"], competitors("adan"), options, out=out, seeds=2).values()]]
    arms.make(groups, options, out, on_event=watch)
    (line,) = (out / "study.jsonl").read_text(encoding="utf-8").splitlines()
    facts = json.loads(line)
    assert (facts["runs"], facts["steps"], facts["retries"], facts["cluster"]) == (2, 800, 1, options.cluster)
    assert facts["steps_per_second"] > 0
    (lost,) = [path for path in paths[:2] if len(began[path]) == 2]
    assert began[lost][1][0] > checkpoints[lost]
    for path in paths[:2]:
        config = read_run(path).config
        run(config, RunStore(tmp_path / path.name))
        assert curve(path) == curve(tmp_path / path.name)
        assert read_run(path).status == "finished"
        assert not RunStore(path).checkpoints()

    flags = [part for name, value in lengths.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = ["compare", "gated", "--script", script, "--optimizers", "adan", "--seeds", "3", "--out", out, *flags]
    command += ["--cluster", options.cluster, "--resume"]
    written = [(path / "result.json").stat().st_mtime_ns for path in paths[:2]]
    assert bench(*command)[0] == 0
    assert [read_run(path).status for path in paths] == ["finished"] * 3
    assert [(path / "result.json").stat().st_mtime_ns for path in paths[:2]] == written


def test_a_stream_that_ends_without_a_result_is_a_lost_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray may end that of a node that was killed; the study ended as if someone had pressed Ctrl-C."""
    job = Job(settings("digits-vit"), tmp_path / "run")
    result = {"status": "finished", "step": 1}
    streams = iter([iter(()), iter([{"names": [], "node": "b"}, {"names": [], "result": result}])])
    ended: list[Any] = []
    tally = Tally(always([job]), lambda event: ended.append(event.result))
    pool = object.__new__(RayPool)
    errors = SimpleNamespace(RayError=OSError, RayTaskError=ValueError)
    pool.ray = SimpleNamespace(wait=lambda all_, **_: (all_, []), get=lambda x: x, exceptions=errors, nodes=list)
    pool.stores, pool.deadline, pool.chosen = {}, None, job.config
    monkeypatch.setattr(pool, "_submit", lambda job: next(streams))
    pool._make(tally)
    assert (tally.retries, tally.left, ended) == (1, 0, [None, result])


@pytest.mark.parametrize(
    ("device", "ranks", "jobs", "gpus", "cpus"), [("cuda", 1, 4, 0.25, 1), ("cuda", 8, 1, 8, 8), ("cpu", 4, 1, 0, 4)]
)
def test_a_task_has_a_gpu_and_cores_for_each_rank(
    tmp_path: Path, device: str, ranks: int, jobs: int, gpus: float, cpus: int
) -> None:
    asked: list[dict[str, Any]] = []
    chosen_options = replace(settings("digits-vit"), device=device, ranks=ranks, jobs=jobs, cluster="ray", threads=0)
    pool = object.__new__(RayPool)
    pool.chosen = chosen_options
    task = SimpleNamespace(remote=lambda *_: None)
    pool.ray = SimpleNamespace(remote=lambda **options: asked.append(options) or (lambda _: task))
    pool._submit(Job(chosen_options, tmp_path / "run"))
    assert [(options["num_gpus"], options["num_cpus"]) for options in asked] == [(gpus, cpus)]


@pytest.mark.usefixtures("forked_workers")
def test_what_a_node_gets_and_sends(tmp_path: Path) -> None:
    """The weights of another run go along; the record names their folder here, and says how a killed run ended."""
    load, kill = (
        "model.load_state_dict(context.weights())",
        "if context.seed == 1: os.kill(os.getpid(), signal.SIGKILL)",
    )
    script, init = one_weight(tmp_path / "again.py", "again", built=load, loss=kill), tmp_path / "before"
    load_script(script)
    init.mkdir()
    torch.save(torch.nn.Linear(1, 1).state_dict(), init / "weights.pt")
    last: dict[int, Any] = {}
    for seed in (0, 1):
        start = init if seed else init / "weights.pt"  # a run's folder, or a file
        config = replace(settings("again", script=script, init=start), seed=seed)
        job = Job(config, tmp_path / "out" / str(seed))
        for message in make(job, files_for(job), "adan-bench compare again"):
            receive(job, message)
            last[seed] = message
        assert not read_run(job.path).config.differences(config)
    record = read_run(tmp_path / "out" / "0")
    assert (record.status, record.environment["command"]) == ("finished", "adan-bench compare again")
    assert "fewer --jobs" in last[1]["died"]
    assert str(tmp_path / "out" / "1" / "worker.log") in last[1]["died"]
    assert (tmp_path / "out" / "1" / "worker.log").exists()


def test_a_cluster_that_does_not_answer(bench: Any, tmp_path: Path) -> None:
    out = tmp_path / "a"
    err = bench.refused("compare", "digits-vit", "--cluster", "ray:127.0.0.1:1", "--out", out)
    assert "ray:127.0.0.1:1" in err
    assert "ray start --head" in err
    assert not out.exists()


def test_without_ray(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    err = bench.refused("compare", "digits-vit", "--cluster", "ray", "--out", tmp_path / "a")
    assert "run: pip install '.[cluster]'" in err
