"""Runs on a Ray cluster. Ray places them, notices lost nodes, and carries files; what a run is stays with `worker.py`.

A node needs this package and the data folder, but none of the records: a run works in a temporary folder of its node,
and every file that it writes is sent to the driver, which alone keeps the study. What the driver has, checkpoints
included, goes along with a run that begins again, so that a lost node costs the steps since the last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adan_bench.config import RunConfig, RunProgress
from adan_bench.errors import UsageError
from adan_bench.records.environment import COMMAND
from adan_bench.records.store import RunStore, write_bytes, write_json
from adan_bench.training.configure import threads
from adan_bench.training.jobs import Job, Tally, record_failure
from adan_bench.training.pool import LocalPool, Pool, Worker

LOSSES = 3  # a run that loses its node so often without a new checkpoint has failed
NEEDED = ("weights.pt", "environment.json")  # of the run that --init names

Files = dict[str, bytes]


class RayPool(Pool):
    """Every run is a task of Ray, on one node, with `--threads` cores and a GPU for each of its ranks.

    Of runs of one rank, `--jobs` share a GPU.
    """

    def __init__(self, folder: Path, chosen: RunConfig, deadline: float | None = None) -> None:
        super().__init__(folder, chosen, deadline)
        kind, _, address = str(chosen.cluster).partition(":")
        host, _, port = address.rpartition(":")
        if kind != "ray" or (address and not (host.strip("/") == host != "" and port.isdecimal())):
            raise UsageError(f"--cluster {chosen.cluster}: write ray or ray:ADDRESS, for example ray:10.0.0.1:6379")
        if chosen.device not in ("cpu", "cuda"):
            raise UsageError(f"--device {chosen.device} with --cluster: give cpu or cuda; Ray chooses the GPU")
        if chosen.ranks > 1 and chosen.jobs > 1:
            both = f"--jobs {chosen.jobs} with --ranks {chosen.ranks} and --cluster"
            raise UsageError(f"{both}: --jobs share a GPU there, and a rank has one of its own; leave out --jobs")
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UsageError("--cluster ray needs the package ray; run: pip install '.[cluster]'") from error
        try:
            if address:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"--cluster {chosen.cluster}: no Ray there ({reason}); run: ray start --head") from error
        self.ray = ray
        self.stores: dict[Path, RunStore] = {}  # of the runs under way, locked here: nodes write elsewhere
        if chosen.device == "cuda" and not ray.cluster_resources().get("GPU"):
            print("adan-bench: the Ray cluster has no GPU yet; the runs wait until one joins", file=sys.stderr)

    def _make(self, tally: Tally) -> Mapping[str, Any]:
        running: dict[Any, Job] = {}
        begun: set[Any] = set()  # streams, as the next
        ended: set[Any] = set()  # without that, the end of a stream is the loss of its node, as an error is
        losses: dict[Path, tuple[int, int]] = {}  # (step of the checkpoint then, times lost there)
        while True:
            while not self.late and tally.waiting and (job := tally.next()) is not None:
                running[self._submit(job)] = job
            if self.late:
                for stream in [stream for stream in running if stream not in begun]:
                    self.ray.cancel(stream)
                    tally.drop(running.pop(stream))
            if not running:
                break
            for stream in self.ray.wait(list(running), num_returns=1, timeout=5)[0]:
                job = running[stream]
                try:
                    message = self.ray.get(next(stream))
                except self.ray.exceptions.RayTaskError as error:  # raised on the node, by its disk for example
                    del running[stream]
                    tally.end(job, record_failure(job, str(error.cause)))
                except (StopIteration, self.ray.exceptions.RayError) as error:
                    del running[stream]
                    if stream in ended:
                        continue
                    step = RunStore(job.path).resume_step
                    before, count = losses.get(job.path, (step, 0))
                    losses[job.path] = step, count + 1 if step == before else 1
                    if losses[job.path][1] > LOSSES:
                        tally.end(job, record_failure(job, f"lost {LOSSES + 1} times with its node: {error}"))
                        continue
                    tally.lose(job)
                    again = replace(job, resume=True)
                    running[self._submit(again)] = again
                else:
                    if stream not in begun:
                        begun.add(stream)
                        self.stores.setdefault(job.path, RunStore(job.path)).lock()
                        tally.begin(job)
                    receive(job, message)
                    if "progress" in message:
                        tally.progress(job, RunProgress(**message["progress"]))
                    elif "died" in message or "result" in message:
                        ended.add(stream)
                        self.stores[job.path].close()
                        tally.end(job, message.get("result") or record_failure(job, message["died"]))
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        return {"jobs": self.chosen.jobs, "device": self.chosen.device, "cluster": self.chosen.cluster, "nodes": nodes}

    def _submit(self, job: Job) -> Any:
        # Ray's own retries would begin with the files of the first attempt.
        store = RunStore(job.path)
        begun = store.check_same(job.config) if job.resume and store.exists else None
        cpus = threads(job.config, begun) * job.config.ranks
        gpus = job.config.ranks / self.chosen.jobs if self.chosen.device == "cuda" else 0
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}
        task = self.ray.remote(num_returns="streaming", **options)(make)
        return task.remote(job, files_for(job), os.environ.get(COMMAND, ""))

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
        self.ray.shutdown()
        super().close()


def open_pool(folder: Path, chosen: RunConfig, deadline: float | None = None) -> Pool:
    """The pool that the choices ask for: worker processes of this machine, or a Ray cluster."""
    return (LocalPool if chosen.cluster is None else RayPool)(folder, chosen, deadline)


def files_for(job: Job) -> Files:
    """What a node needs of the driver's files."""
    files = _read(job.path) if job.resume else {}
    if (init := job.config.init) is not None:
        folder, names = (init, NEEDED) if init.is_dir() else (init.parent, (init.name,))
        files |= {f"init/{name}": content for name, content in _contents(folder, names).items()}
    return files


def make(job: Job, files: Files, command: str) -> Iterator[dict[str, Any]]:
    """Make a run on a node: messages with its progress, at last its result, and with all files that have changed."""
    with tempfile.TemporaryDirectory(prefix="adan-run-") as folder:
        path, config = Path(folder) / "run", job.config
        for name, content in files.items():
            file = Path(folder) / name if name.startswith("init/") else path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        path.mkdir(exist_ok=True)
        if config.init is not None:
            own = f"init/{config.init.name}"  # where it is a file
            config = replace(config, init=Path(folder) / (own if own in files else "init"))
            _say_init(path, config)
        seen = _stamps(path)
        yield {"node": socket.gethostname(), "names": list(seen)}
        worker = Worker(path / "worker.log", config.ranks, {COMMAND: command})
        try:
            answered = False
            for answer in worker.answers(replace(job, config=config, path=path)):
                answered = "result" in answer
                now = _stamps(path)
                changed = [name for name in now if now[name] != seen.get(name)]
                seen = now
                yield {**answer, "files": _contents(path, changed), "names": list(now)}
            if not answered:
                error = worker.obituary().replace(str(path), str(job.path))
                yield {"died": error, "files": _read(path), "names": list(_stamps(path))}
        finally:
            worker.kill()
            worker.close()


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of a run, which may go on meanwhile.

    Checkpoints first: the lines that they count are then in what is seen of the metrics.
    """
    stamps = {}
    for file in sorted(path.rglob("*"), key=lambda file: not file.name.startswith("checkpoint-")):
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            if file.is_file() and file.suffix not in (".part", ".lock"):
                stamps[str(file.relative_to(path))] = stat.st_size, stat.st_mtime_ns
    return stamps


def _contents(path: Path, names: Iterable[str]) -> Files:
    """The files with these names, but for those that are gone."""
    files = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            files[name] = (path / name).read_bytes()
    return files


def _read(path: Path) -> Files:
    """What a run needs to continue: of its checkpoints the newest."""
    old = {checkpoint.name for checkpoint in RunStore(path).checkpoints()[1:]}
    return _contents(path, [name for name in _stamps(path) if name not in old])


def receive(job: Job, message: Mapping[str, Any]) -> None:
    """Keep what a node has sent. Lines come before the checkpoint that counts them, and the result comes last."""
    files: Files = message.get("files", {})
    order = sorted(files, key=lambda name: (name == "result.json", name.startswith("checkpoint-"), name))
    for name in order:
        (job.path / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(job.path / name, files[name])
    if "config.json" in files and job.config.init is not None:
        _say_init(job.path, job.config)
    for name in _stamps(job.path).keys() - message["names"]:  # older checkpoints, the failure of an earlier attempt
        (job.path / name).unlink()


def _say_init(path: Path, config: RunConfig) -> None:
    """Let a record name the folder of its first weights as it is called here."""
    file = path / "config.json"
    if file.exists():
        facts = json.loads(file.read_text(encoding="utf-8"))
        facts["config"]["init"] = str(config.init)
        write_json(file, facts)
