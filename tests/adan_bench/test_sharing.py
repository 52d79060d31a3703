"""What several runs on one machine share: a GPU through NVIDIA's service, and decoded data."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked import Program
from support.learning import chosen
from support.pools import always

from adan_bench.data.cache import decoded
from adan_bench.errors import UsageError
from adan_bench.records.store import RunLocked
from adan_bench.training import pool as pools
from adan_bench.training.configure import check_device
from adan_bench.training.jobs import Job
from adan_bench.training.placement import Places, gpu_names, multi_process_service
from adan_bench.training.pool import LocalPool
from adan_bench.training.worker import perform

CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES" >> {log}; exit {start}; fi
read command; echo "$command $CUDA_MPS_PIPE_DIRECTORY" >> {log}
if [ "$command" = get_server_list ]; then exit {running}; fi
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for nvidia-cuda-mps-control, and what it was told."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    log = tmp_path / "log"

    def install(start: int = 0, running: int = 1) -> Any:
        control = tmp_path / "nvidia-cuda-mps-control"
        control.write_text(CONTROL.format(log=log, start=start, running=running), encoding="utf-8")
        control.chmod(0o755)
        return lambda: log.read_text(encoding="utf-8").splitlines()

    return install


def test_a_service_of_our_own_ends_also_on_ctrl_c(service: Any) -> None:
    told = service()
    folders = []

    def interrupted() -> None:
        with multi_process_service("3") as environment:
            assert environment["CUDA_VISIBLE_DEVICES"] == "0"  # as the service numbers its only one
            folders.append(Path(environment["CUDA_MPS_PIPE_DIRECTORY"]))
            assert folders[0].is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert told() == ["get_server_list ", f"start {folders[0]} 3", f"quit {folders[0]}"]
    assert not folders[0].exists()


def test_a_running_service_is_used_and_left(service: Any) -> None:
    told = service(running=0)
    with multi_process_service() as environment:
        assert environment == {}
    assert told() == ["get_server_list "]


def test_without_the_service(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service(start=1)
    with multi_process_service() as environment:
        assert environment is None
    monkeypatch.setenv("PATH", "")
    with multi_process_service() as environment:
        assert environment is None


class InlineWorker:
    """A worker in this process."""

    usable = True
    environments: list[Any] = []  # noqa: RUF012

    def __init__(self, log: Path, ranks: int, environment: Any) -> None:
        self.environments.append(environment)

    def answers(self, job: Job) -> Any:
        yield {"result": perform(job)}

    def close(self) -> None: ...


@pytest.mark.parametrize(("device", "jobs", "expected"), [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)])
def test_several_runs_on_one_gpu_get_the_service(
    config: Any, tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch, device: str, jobs: int, expected: bool
) -> None:
    told = service()
    monkeypatch.setattr(pools, "Worker", InlineWorker)
    monkeypatch.setattr(InlineWorker, "environments", [])
    pool = LocalPool(tmp_path / "out", chosen(device=device, jobs=jobs))
    for seed in (0, 1):
        pool.run(always([Job(config(steps=4, seed=seed), tmp_path / "out" / str(seed))]))
    assert ["CUDA_MPS_PIPE_DIRECTORY" in environment for environment in InlineWorker.environments] == [expected]
    pool.close()
    said = [line.split()[0] for line in told()] if expected else []
    assert said == (["get_server_list", "start", "quit"] if expected else [])
    assert f'"mps": {str(expected).lower()}' in (tmp_path / "out" / "study.jsonl").read_text(encoding="utf-8")


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("eight_gpus")
def test_runs_go_to_the_least_used_gpu(service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight runs have a GPU each; of twelve, four GPUs have two, each such GPU with a service of its own."""
    assert gpu_names("cuda") == [str(i) for i in range(8)]
    assert (gpu_names("cuda:1"), gpu_names("cpu")) == ([], [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpu_names("cuda") == ["GPU-a", "GPU-b"]
    assert not Places(8, 1, [str(i) for i in range(8)]).crowded
    places = Places(12, 1, [str(i) for i in range(8)])
    taken = [places.take() for _ in range(12)]
    assert [places.gpus[place] for place in taken] == [(str(i % 8),) for i in range(12)]
    for place in (taken[3], taken[5], taken[1]):
        places.give(place)
    assert [places.gpus[places.take()] for _ in range(3)] == [("5",), ("1",), ("3",)]  # GPU 1 and 3 have another run
    assert Places(2, 4, [str(i) for i in range(8)]).gpus == [("0", "1", "2", "3"), ("4", "5", "6", "7")]
    told = service()
    pool = LocalPool(tmp_path, chosen(device="cuda", jobs=3))
    environments = pool._start_services()
    assert environments["GPU-a"]["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert [line.split()[-1] for line in told() if line.startswith("start")] == ["GPU-a"]
    pool.close()
    assert LocalPool(tmp_path, chosen(device="cuda", jobs=3, ranks=2))._start_services() == {}


@pytest.mark.usefixtures("eight_gpus")
def test_a_run_has_a_gpu_for_each_rank(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(pools, "Worker", lambda log, *rest: seen.append(rest) or InlineWorker(log, *rest))
    pool = LocalPool(tmp_path, chosen(device="cuda", jobs=2, ranks=4))
    pool._mps = {}
    pool._worker(1)
    assert seen == [(4, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})]
    pool.close()
    with pytest.raises(UsageError, match=r"--ranks 9 --device cuda: every rank takes a GPU of its own, .* has 8; use"):
        check_device("cuda", 9)
    with pytest.raises(UsageError, match="--ranks 2 --device cuda:1"):
        check_device("cuda:1", 2)


def test_a_second_study_leaves_the_runs_of_the_first_alone(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first has its pool, its folder is closed to others; later, without --resume, its runs are."""
    monkeypatch.setattr(pools, "Worker", InlineWorker)
    first, second = (LocalPool(tmp_path / "out", chosen()) for _ in range(2))
    job, other = (Job(config(steps=4, seed=seed), tmp_path / "out" / str(seed)) for seed in (0, 1))
    first.run(always([job]))
    made = (job.path / "result.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(
            UsageError, match=f"--out {tmp_path / 'out'}: another adan-bench is making runs there; wait"
        ):
            second.run(always([replace(other, resume=resume)]))
    first.close()
    with pytest.raises(RunLocked, match=f"{job.path} already holds a run; continue with --resume or"):
        second.run(always([other, job]))
    with pytest.raises(RunLocked):
        perform(job)  # of a worker whose driver looked before the run was there
    assert (job.path / "result.json").read_bytes() == made
    assert not other.path.exists()
    second.run(always([replace(entry, resume=True) for entry in (other, job)]))
    assert (job.path / "result.json").read_bytes() == made
    second.close()


DECODE = """
import os, sys, time, torch
from pathlib import Path
from adan_bench.data.cache import decoded
def decode():
    print("decoded", flush=True); time.sleep(0.5)
    return {"x": torch.arange(1000)}
found = decoded("numbers", [Path(sys.argv[1])], decode)["x"]
assert torch.equal(found, torch.arange(1000))
found[0] = 7  # private
"""


def test_processes_decode_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at the same time: one decodes, the other waits and reads; other content is another entry."""
    monkeypatch.setenv("ADAN_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_text("a", encoding="utf-8")
    program = tmp_path / "decode.py"
    program.write_text(DECODE, encoding="utf-8")
    processes = [Program([sys.executable, str(program), str(source)], stdout=subprocess.PIPE) for _ in range(2)]
    said = []
    for process in processes:
        with process.stdout:
            said.append(process.stdout.read())
    assert [process.wait() for process in processes] == [0] * 2
    assert sorted(said) == ["", "decoded\n"]
    (entry,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert [path.name for path in entry.iterdir()] == ["x.npy"]
    assert decoded("numbers", [source], lambda: {})["x"][0] == 0
    source.write_text("b", encoding="utf-8")
    assert decoded("numbers", [source], lambda: {"x": torch.tensor([1.5])})["x"].tolist() == [1.5]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADAN_CACHE", str(tmp_path / "file" / "cache"))
    source = tmp_path / "source"
    source.touch()
    assert decoded("numbers", [source], lambda: {"x": torch.ones(2)})["x"].tolist() == [1, 1]
