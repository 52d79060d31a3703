"""Runs that several processes share: the numbers of one process, at any number of ranks, through any interruption."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from support import processes
from support.forked import Program
from support.shared_runs import KINDS, SCRIPT, configuration, every_kind, lines, lose_a_rank, shared_run, with_fewer

from adan_bench.data.batching import moved
from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore, read_lines, read_run
from adan_bench.training.distributed import Ranks
from adan_bench.training.optimizers import SPECS
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.registry import get_workload


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "plain.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun says it to the second of three processes."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)


def assert_same(path: Path, expected: Path, tolerance: float = 1e-5) -> None:
    for mine, wanted in zip(lines(path), lines(expected), strict=True):
        assert mine.pop("kind") == wanted.pop("kind")
        assert mine == pytest.approx(wanted, rel=tolerance), path.name


def in_processes(count: int, cases: dict[str, Any]) -> None:
    done, error = processes.run(count, cases)
    assert done == set(cases), error


def test_two_ranks_train_as_one_process(script: Path, tiny: Path, tmp_path: Path) -> None:
    """Digits, parts of a batch, every optimizer that takes shards, SAM's two passes; noise resumed bit for bit."""
    rows: dict[str, dict[str, Any]] = {
        "digits fsdp": {"workload": "digits-vit", "steps": 6, "eval_every": 3, "parallel": "fsdp"}
    }
    plain = {"workload": "plain", "script": script, "steps": 4, "eval_every": 2}
    for strategy in ("ddp", "fsdp"):
        rows[f"parts {strategy}"] = {**plain, "accumulate": 4, "parallel": strategy}
        rows[f"clipped {strategy}"] = {**plain, "settings": {"max_grad_norm": 0.1}, "parallel": strategy}
    for name, spec in SPECS.items():
        settings = {"lr": min(spec.lr, 0.01)}  # plain SGD's own is for other losses: it would blow rounding up
        rows[name] = {**plain, "optimizer": name, "settings": settings, "parallel": "fsdp" if spec.shards else "ddp"}
    cases = {name: partial(shared_run, tmp_path / name, **row) for name, row in rows.items()}
    for strategy in ("ddp", "fsdp"):
        noisy = {"workload": "tiny", "script": tiny, "steps": 20, "checkpoint_every": 6, "parallel": strategy}
        cases[f"noisy {strategy}"] = partial(shared_run, tmp_path / f"noisy {strategy}", **noisy)
        resumed = partial(shared_run, tmp_path / f"resumed {strategy}", **noisy)
        cases |= {f"left {strategy}": partial(resumed, stop=15), f"resumed {strategy}": resumed}
    in_processes(2, cases)
    for name, row in rows.items():
        alone = tmp_path / f"{name} alone"
        shared_run(alone, **{**row, "parallel": None})
        # SOAP's bases are arbitrary where its statistics are 0, as nearly all are at first: rounding turns them
        assert_same(tmp_path / name, alone, 1e-2 if name == "soap" else 1e-5)
        record = read_run(tmp_path / name)
        assert (record.status, record.config.parallel, record.config.ranks) == ("finished", row["parallel"], 2)
        sizes = [(r.result or {})["state_bytes_per_parameter"] for r in (record, read_run(alone))]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.05), name  # every rank has its own counts of steps
    for strategy in ("ddp", "fsdp"):
        assert lines(tmp_path / f"resumed {strategy}") == lines(tmp_path / f"noisy {strategy}")


def test_one_two_and_four_ranks_have_the_same_curve(tmp_path: Path) -> None:
    """One workload of each kind, and one with a memory that goes from four ranks to two and to one."""
    data = tmp_path / "data"
    data.mkdir()
    widths, depths = get_workload("deformable-detr").scales["smoke"].sizes.backbone
    sizes = {"embedding_size": widths[0], "hidden_sizes": widths, "depths": depths, "layer_type": "basic"}
    backbone = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    torch.save(backbone.state_dict(), data / "backbone.pt")
    one, two, four = (tmp_path / name for name in ("one", "two", "four"))
    cases = {"four": partial(every_kind, data, four, "ddp", stop=2)}
    cases["two"] = partial(with_fewer, 2, tmp_path, partial(every_kind, data, two, "ddp", stop=3))
    in_processes(4, cases)
    every_kind(data, one)
    assert_same(data / "moved", one / "tokens with memory", 2e-6)
    assert [line["ranks"] for line in read_run(data / "moved").metrics if line["kind"] == "resume"] == [2, 1]
    for name in KINDS:
        for folder in (two, four):
            assert_same(folder / name, one / name, 2e-6)
        results = [read_run(folder / name).result or {} for folder in (one, four)]
        assert all(result["examples_per_second_per_rank"] > 0 for result in results)


def test_a_run_goes_from_four_ranks_to_two_to_one_and_back_to_two(script: Path, tmp_path: Path) -> None:
    """The same losses as in one go. Codes of 8 bits are drawn by their place in a part: there, closely."""
    tolerances = {"fp32": 1e-5, "8bit": 0.02}
    plain = {"workload": "plain", "script": script, "checkpoint_every": 4}
    runs = {name: partial(shared_run, settings={"state_format": name}, **plain) for name in tolerances}

    def leg(ranks: int, **options: Any) -> None:
        cases = {name: partial(case, tmp_path / name, **options) for name, case in runs.items()}
        in_processes(ranks, cases)

    leg(4, parallel="fsdp", stop=10)
    leg(2, parallel="ddp", stop=19)
    for name, case in runs.items():
        case(tmp_path / name, stop=26)
    leg(2, parallel="fsdp")
    for name, case in runs.items():
        case(tmp_path / f"{name} alone")
        assert_same(tmp_path / name, tmp_path / f"{name} alone", tolerances[name])
        record = read_run(tmp_path / name)
        notes = [(line["step"], line["parallel"], line["ranks"]) for line in record.metrics if line["kind"] == "resume"]
        assert (record.config.parallel, record.config.ranks) == ("fsdp", 4)
        assert notes == [(8, "ddp", 2), (16, None, 1), (24, "fsdp", 2)]


def test_kill_9_of_one_rank_under_torchrun(bench: Any, script: Path, tmp_path: Path) -> None:
    """The whole job ends with a message; one process goes on, and the curve is that of an undisturbed run.

    It is the rank that writes the record and the checkpoints; the next test is about the loss of the other.
    """
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run = ["run", "plain", "--script", str(script), "--steps", "240", "--eval-every", "40", "--checkpoint-every", "15"]
    run += ["--threads", "1", "--resume", "--out"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "adan_bench.cli"]
    log = tmp_path / "errors"
    with log.open("w", encoding="utf-8") as stderr:
        process = Program([*torchrun, *run, str(broken), "--parallel", "fsdp"], stderr=stderr)
    while process.poll() is None and len(read_lines(broken / "metrics.jsonl")) < 20:
        time.sleep(0.01)
    ranks = [
        int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    ]
    os.kill(ranks[0], signal.SIGKILL)
    assert process.wait(60) == 1, log.read_text(encoding="utf-8")
    assert "SIGKILL" in log.read_text(encoding="utf-8")
    assert read_run(broken).status in ("unfinished", "failed")  # by the first rank, where it outlived the other
    for out in (broken, straight):
        assert bench(*run, out)[0] == 0
    assert_same(broken, straight, 1e-4)
    assert read_run(broken).status == "finished"


def test_a_rank_that_is_left_alone_says_so(script: Path, tmp_path: Path) -> None:
    """Without torchrun to end it: one line, exit code 1."""
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=lose_a_rank, args=(rank, str(tmp_path), str(script))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [1, 9]
    (line,) = (tmp_path / "errors.0").read_text(encoding="utf-8").splitlines()
    assert "rank 0: another rank is gone" in line
    assert "--resume" in line


#: Once, in the fourth step: the second of two ranks is gone, or the first gets a Ctrl-C.
TROUBLE = """
    import os, pathlib, signal, time
    made = []
    def loss(model, batch):
        made.append(1)
        if len(made) == 4 and os.environ.get("RANK") == {rank!r} and not pathlib.Path({marker!r}).exists():
            pathlib.Path({marker!r}).touch()
            os.kill(os.getpid(), signal.{signal})
        time.sleep({seconds})
"""


def troubled(path: Path, **facts: Any) -> Path:
    loss = "    def loss(model, batch):\n"
    assert loss in SCRIPT
    path.write_text(SCRIPT.replace(loss, TROUBLE.format(marker=f"{path}.marker", **facts)), encoding="utf-8")
    return path


@pytest.mark.usefixtures("forked_workers")
def test_a_study_shares_each_run_among_ranks(bench: Any, tmp_path: Path) -> None:
    """A rank that is lost costs the run, --resume makes it again, and the record is that of one process."""
    script = troubled(tmp_path / "lost.py", rank="1", signal="SIGKILL", seconds=0)
    compare = ["compare", "plain", "--script", script, "--optimizers", "adan", "--seeds", "1", "--batch-size", "8"]
    code, _, error = bench(*compare, "--ranks", "2", "--out", tmp_path / "two", "--checkpoint-every", "2")
    path = tmp_path / "two" / "plain" / "adan" / "seed-0"
    assert code == 1, error
    result = read_run(path).result or {}
    assert result["status"] == "failed"
    assert "another rank is gone" in result["error"] or "rank 1 was killed (SIGKILL)" in result["error"]
    assert bench(*compare, "--ranks", "2", "--parallel", "fsdp", "--out", tmp_path / "two", "--resume")[0] == 0
    bench.ran(*compare, "--out", tmp_path / "one")
    assert_same(path, tmp_path / "one" / "plain" / "adan" / "seed-0")
    record = read_run(path)
    config = record.config
    assert (record.status, config.ranks, config.parallel, config.threads) == ("finished", 2, "ddp", 1)
    assert (record.metrics[-1]["step"], record.surroundings[-1]["parallel"]) == (40, "fsdp")
    assert '"ranks": 2' in (tmp_path / "two" / "study.jsonl").read_text(encoding="utf-8")


@pytest.mark.usefixtures("forked_workers")
def test_ctrl_c_leaves_ranks_the_time_for_a_checkpoint(bench: Any, tmp_path: Path) -> None:
    """They agree on the step about once a second, not only where they write lines, here every tenth."""
    script = troubled(tmp_path / "pressed.py", rank="0", signal="SIGINT", seconds=0.2)
    compare = ["compare", "plain", "--script", script, "--optimizers", "adan", "--seeds", "1", "--steps", "600"]
    code, _, error = bench(*compare, "--ranks", "2", "--out", tmp_path / "out")
    assert code == 130, error
    record = read_run(tmp_path / "out" / "plain" / "adan" / "seed-0")
    assert record.status == "unfinished"
    assert 4 <= RunStore(record.path).resume_step < 10


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "digits-vit"], ["3 ranks", "--parallel ddp or fsdp"]),
        (["compare", "digits-vit"], ["3 ranks", "run --parallel"]),
        (["run", "digits-vit", "--parallel", "nope"], ["'nope'", "ddp, fsdp"]),
        (["run", "digits-vit", "--parallel", "ddp"], ["3 ranks", "64"]),
        (["run", "digits-vit", "--parallel", "ddp", "--accumulate", "2"], ["--accumulate 2 × 3 ranks", "64"]),
        *(
            (["run", "digits-vit", "--parallel", "fsdp", "--batch-size", "60", *more], names)
            for more, names in (
                (["--optimizer", "lamb"], ["lamb", "--parallel ddp"]),
                (["--channels-last"], ["--channels-last", "--parallel ddp"]),
            )
        ),
    ],
    ids=" ".join,
)
def test_what_cannot_be_shared(bench: Any, launched: None, arguments: list[str], names: list[str]) -> None:
    err = bench.refused(*arguments)
    assert all(name in err for name in names), err


class Pair(NamedTuple):
    x: Any
    y: Any


def test_named_tuples_stay_what_they_are() -> None:
    batch = Pair(torch.arange(4), [torch.arange(4, 8)])
    shared = Ranks("ddp", "cpu", 1, 2).share(batch, 4)
    assert (shared.x.tolist(), shared.y[0].tolist()) == ([1, 2], [5, 6])
    assert moved(batch, "meta").y[0].device.type == "meta"


def test_shares_of_a_batch() -> None:
    x = torch.arange(12).reshape(6, 2)
    shares = [Ranks("ddp", "cpu", rank, 3).share({"x": [x], "rate": torch.tensor(0.5), "i": 7}, 6) for rank in range(3)]
    assert torch.equal(torch.cat([share["x"][0] for share in shares]), x[[0, 5, 1, 4, 2, 3]])  # mixup's pairs
    assert all((share["rate"], share["i"]) == (0.5, 7) for share in shares)
    with pytest.raises(UsageError, match=r"shape \(2, 6\) in a batch of 6 .* must be 6"):
        Ranks("ddp", "cpu", 0, 3).share(x.t(), 6)
    with pytest.raises(UsageError, match=r"16 .* on 16 ranks: they are mixed in pairs; .* multiple of 32"):
        Trainer(configuration("vit-s", batch_size=16), Ranks("ddp", "cpu", 0, 16))
