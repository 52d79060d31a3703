"""Killed, damaged, full: what a run survives."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.forked import Program
from support.learning import killed_run, settings
from support.scripts import one_weight

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore, check_empty, read_json, read_run, read_runs
from adan_bench.training.jobs import Job, record_failure
from adan_bench.training.scripts import load_script
from adan_bench.training.trainer import Trainer, run
from adan_bench.training.worker import perform
from adan_bench.workloads.registry import get_workload


def lines(path: Path) -> list[dict[str, Any]]:
    """The metrics without the clock, every line of the file whole."""
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def written(path: Path) -> int:
    """How many lines the metrics have so far."""
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


CLI = [sys.executable, "-m", "adan_bench.cli"]


def command(tiny: Path, out: Path, steps: int) -> list[str]:
    options = ["--steps", str(steps), "--eval-every", "50", "--checkpoint-every", "35", "--threads", "1", "--resume"]
    return ["run", "tiny", "--script", str(tiny), "--out", str(out), *options]


def test_kill_9_at_random_moments(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Three times kill -9, then the end: every line as without them, none lost, none doubled."""
    steps, straight, broken = 1500, tmp_path / "straight", tmp_path / "broken"
    bench.ran(*command(tiny, straight, steps))
    total = len(lines(straight))
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    kills = 0
    for threshold in sorted(chance.sample(range(1, int(total * 0.85)), 3)):
        words = [*CLI, *command(tiny, broken, steps)]
        process = Program(words)
        while process.poll() is None and written(broken) < threshold:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills == 3, f"the run ended before it could be killed (seed {seed})"
    assert read_run(broken).status == "unfinished"
    assert bench(*command(tiny, broken, steps))[0] == 0
    assert lines(broken) == lines(straight), f"seed {seed}"
    a, b = read_run(broken).result, read_run(straight).result
    assert (a["status"], a["final"], a["best"]) == ("finished", b["final"], b["best"])


@pytest.mark.parametrize(("cost", "steps"), [(0, [15, 30, 45, 60]), (2, [15, 55])])
def test_checkpoints_are_timed_between_lines_too(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: int, steps: list[int]
) -> None:
    """Every 15 s, or 20 times as long as writing one takes, however rare lines are; resumed exactly."""
    settings = config(steps=90, log_every=90, eval_every=90)
    run(settings, RunStore(tmp_path / "a"))
    seconds, update, checkpoint = [0], Trainer.update, RunStore.checkpoint

    def second(trainer: Trainer) -> None:
        seconds[0] += 1
        update(trainer)

    def slow(store: RunStore, step: int, state: Any) -> None:
        seconds[0] += cost
        saved.append(step)
        checkpoint(store, step, state)

    saved: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: seconds[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("adan_bench.training.trainer.time", clock)
    monkeypatch.setattr(Trainer, "update", second)
    monkeypatch.setattr(RunStore, "checkpoint", slow)
    killed_run(settings, tmp_path / "b", steps[-1])
    assert saved == steps
    assert not lines(tmp_path / "b")
    run(settings, RunStore(tmp_path / "b"), resume=True)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


@pytest.mark.usefixtures("sigint")
def test_ctrl_c_leaves_a_checkpoint(bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step under way is finished first, so that the rest is exact; a second Ctrl-C does not wait."""
    options = ("run", "tiny", "--script", tiny, "--threads", 1, "--out")
    bench.ran(*options, tmp_path / "straight")
    update, presses = Trainer.update, [1]

    def pressed(trainer: Trainer) -> None:
        if trainer.state.step == 7:
            for _ in range(presses.pop() if presses else 0):
                signal.raise_signal(signal.SIGINT)
        update(trainer)

    monkeypatch.setattr(Trainer, "update", pressed)
    code, _, err = bench(*options, tmp_path / "a")
    assert (code, err.splitlines()[-1].endswith(f"--out {tmp_path / 'a'} --resume")) == (130, True)
    assert RunStore(tmp_path / "a").resume_step == 8
    assert bench(*options, tmp_path / "a", "--resume")[::2] == (0, "")
    assert lines(tmp_path / "a") == lines(tmp_path / "straight")
    presses.append(2)
    assert bench(*options, tmp_path / "b")[0] == 130
    assert not RunStore(tmp_path / "b").checkpoints()
    code, _, err = bench(*options, tmp_path / "b", "--resume")
    assert (code, f"{tmp_path / 'b'} has no checkpoint to continue from; it starts at step 0" in err) == (0, True)
    assert lines(tmp_path / "b") == lines(tmp_path / "straight")


def damaged(path: Path, content: Callable[[bytes], bytes]) -> None:
    path.write_bytes(content(path.read_bytes()))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:-100], lambda content: b""])
@pytest.mark.parametrize("count", [1, 2])
def test_damaged_checkpoints(config: Any, tmp_path: Path, damage: Callable[[bytes], bytes], count: int) -> None:
    """The newest is set aside and the one before it used; without one that is whole the run starts anew."""
    settings = config(steps=60, checkpoint_every=7, log_every=3)
    run(settings, RunStore(tmp_path / "a"))
    killed_run(settings, tmp_path / "b", 40)
    store, steps = RunStore(tmp_path / "b"), []
    newest, previous = store.checkpoints()
    for path in (newest, previous)[:count]:
        damaged(path, damage)
    run(settings, store, lambda progress: steps.append(progress.step), resume=True)
    before, after = (int(path.name.split("-")[1]) for path in (previous, newest))
    assert (before if count == 1 else 0) < steps[0] <= (after if count == 1 else before)
    assert len(list(store.path.glob("*.damaged"))) == count
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_metrics_that_lost_lines_fall_back(config: Any, tmp_path: Path) -> None:
    """A checkpoint that counts more lines than there are is not used."""
    settings = config(steps=60, checkpoint_every=7, log_every=3)
    run(settings, RunStore(tmp_path / "a"))
    killed_run(settings, tmp_path / "b", 40)
    damaged(tmp_path / "b" / "metrics.jsonl", lambda content: content[:200] + b'{"kind": "tr')
    run(settings, RunStore(tmp_path / "b"), resume=True)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_full_disk_keeps_what_was_written(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """The disk takes no more in the middle: exit code 1, one line, and --resume ends like an undisturbed run."""
    out, steps = tmp_path / "full", 400
    bench.ran(*command(tiny, tmp_path / "whole", steps))
    with (tmp_path / "errors").open("w", encoding="utf-8") as errors:
        failed = Program([*CLI, *command(tiny, out, steps)], stderr=errors)
    resource.prlimit(failed.pid, resource.RLIMIT_FSIZE, (6_000, 6_000))  # bytes: some lines, no checkpoint
    assert failed.wait() == 1
    (line,) = (tmp_path / "errors").read_text(encoding="utf-8").splitlines()
    assert "--resume" in line
    before = len(read_run(out).metrics)
    assert before > 0
    assert not list(out.glob("*.part"))
    assert bench(*command(tiny, out, steps))[0] == 0
    assert lines(out) == lines(tmp_path / "whole")


@pytest.mark.usefixtures("forked_workers")
def test_a_full_disk_that_takes_no_failure_ends_the_study(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers die, and so does the record of that: one line, exit code 1, no traceback of a thread."""

    def full(path: Path, value: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    script = tmp_path / "failing.py"
    script.write_text("import os\n" + FAILING.replace('sizes["width"]', "os._exit(9)"), encoding="utf-8")
    monkeypatch.setattr("adan_bench.training.jobs.write_json", full)
    options = ("--optimizers", "adan,adam", "--seeds", 2, "--jobs", 2, "--out", tmp_path / "a")
    code, _, err = bench("compare", "failing", "--script", script, *options)
    assert (code, len(err.splitlines())) == (1, 1), err
    assert "No space left on device" in err
    assert "--resume" in err


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_do_not_write_one_run(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """The second ends with one line and leaves no mark on the record; when the first has gone, it can go on."""
    other = RunStore(tmp_path / "a" / "tiny" / "adan" / "seed-0")
    options = ("tiny", "--script", tiny, "--steps", 20, "--resume", "--out")
    other.lock()
    for words in (("run", *options, other.path), ("compare", *options, tmp_path / "a", "--optimizers", "adan")):
        assert f"{other.path}: another process is writing this run; wait until it ends" in bench.refused(*words)
        assert [file.name for file in other.path.iterdir()] == ["run.lock"]
    other.close()
    bench.ran("run", *options, other.path)


@pytest.fixture(scope="module")
def two_runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, config = tmp_path_factory.mktemp("runs"), settings("tiny", script=tiny, steps=20)
    for seed in range(2):
        run(replace(config, log_every=1, eval_every=20, seed=seed), RunStore(folder / str(seed)))
    return folder


def test_a_damaged_record_is_named_and_left_out(bench: Any, two_runs: Path, tmp_path: Path) -> None:
    """The report names it first, counts it and ends with 1; a line that is torn after the end loses nothing."""
    shutil.copytree(two_runs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "1" / "result.json").write_text("[]", encoding="utf-8")
    with (tmp_path / "0" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    (record,), _ = read_runs(tmp_path)
    assert (record.config.seed, record.metrics[-1]["step"]) == (0, 20)
    code, out, _ = bench("report", tmp_path)
    page, text = ((tmp_path / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert code == 1
    assert text.index("1 record left out") < text.index("every optimizer ran")
    for said in (out, page, text):
        assert "1/result.json is damaged" in said


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        ("config.json", lambda found: found["workload"].pop("metric"), "it has no metric"),
        ("config.json", lambda found: found["config"]["settings"].pop("lr"), "it has no lr"),
        ("config.json", lambda found: found["config"].pop("workload"), "it has no workload"),
        ("config.json", lambda found: found["config"].update(seed="x"), "seed is 'x'"),
        ("config.json", lambda found: found["config"].update(steps=True), "steps is True"),
        ("config.json", lambda found: found.update(config=[]), "config is []"),
        ("environment.json", lambda found: found.update(packages=[]), "packages is []"),
        ("result.json", lambda found: found["final"].update(error="abc"), "error is 'abc'"),
        ("result.json", lambda found: found["final"].pop("error"), "final has no error"),
        ("result.json", lambda found: found.pop("step"), "it has no step"),
        ("result.json", lambda found: found.update(status="ended"), "status is 'ended', not one of finished, diverged"),
        ("metrics.jsonl", lambda found: found[-1].update(error="abc"), "line 21 is not one of a run"),
        ("metrics.jsonl", lambda found: found[0].pop("seconds"), "line 1 is not one of a run"),
        ("metrics.jsonl", lambda found: found.clear(), "it ends at step 0, the run at step 20"),
        ("metrics.jsonl", None, "it is missing"),
        ("config.json", None, "it is missing"),
        ("config.json", b"{", "Expecting property name"),
        ("result.json", b"\xff\xfe", "'utf-8' codec can't decode"),
        ("result.json", b"[]", "it is no JSON object"),
    ],
)
def test_what_is_no_record(two_runs: Path, tmp_path: Path, file: str, change: Any, why: str) -> None:
    """No file, no JSON, a key that is missing, a value of another type: the run is left out."""
    shutil.copytree(two_runs, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "1" / file
    if change is None:
        path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        lines = path.suffix == ".jsonl"
        found = [json.loads(line) for line in path.read_bytes().splitlines()] if lines else read_json(path)
        change(found)
        path.write_text("".join(f"{json.dumps(part)}\n" for part in (found if lines else [found])), encoding="utf-8")
    records, (damaged,) = read_runs(tmp_path)
    assert [record.config.seed for record in records] == [0]
    assert f"{path} is damaged ({why}" in str(damaged)


def test_files_of_other_programs_are_no_runs(bench: Any, config: Any, tmp_path: Path) -> None:
    """A checkpoint of transformers or a result.json of an evaluation beside the runs: nothing is wrong with them."""
    run(config(steps=20), RunStore(tmp_path / "a"))
    for name, text in (
        ("config.json", '{"model_type": "gpt2"}'),
        ("result.json", '{"acc": 0.5}'),
        ("config.json", "x"),
    ):
        folder = tmp_path / "others" / str(len(text))
        folder.mkdir(parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    bench.ran("report", tmp_path)
    assert [record.path for record in read_runs(tmp_path)[0]] == [tmp_path / "a"]
    assert "no runs there" in bench.refused("report", tmp_path / "others")
    check_empty(tmp_path / "others")
    with pytest.raises(UsageError, match="it already holds runs"):
        check_empty(tmp_path)


@pytest.mark.usefixtures("inline_pool")
def test_resume_names_a_damaged_record(bench: Any, tiny: Path, tmp_path: Path) -> None:
    options = ("compare", "tiny", "--script", tiny, "--optimizers", "adan", "--seeds", 1, "--steps", 20)
    bench.ran(*options, "--out", tmp_path / "a")
    result = tmp_path / "a" / "tiny" / "adan" / "seed-0" / "result.json"
    result.write_text("{", encoding="utf-8")
    err = bench.refused(*options, "--out", tmp_path / "a", "--resume")
    assert f"{result} is damaged" in err
    assert f"remove {result.parent}, and --resume makes this run again" in err
    shutil.rmtree(result.parent)
    bench.ran(*options, "--out", tmp_path / "a", "--resume")


FAILING = """
from adan_bench import Scale, workload

@workload("failing", metric="error", higher_is_better=False, smoke=Scale(0.5, 60))
def failing(context):
    return broken({})

def broken(sizes):
    return sizes["width"]
"""


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_failed_run_keeps_its_traceback(bench: Any, tmp_path: Path, command: str) -> None:
    """The user's own line is in the message, the whole traceback in the folder of the run."""
    script, out = tmp_path / "failing.py", tmp_path / "out"
    script.write_text(FAILING, encoding="utf-8")
    options = () if command == "run" else ("--optimizers", "adan", "--seeds", 1)
    code, shown, err = bench(command, "failing", "--script", script, "--out", out, *options)
    assert code == 1
    assert f"KeyError: 'width' ({script}, line 9, in broken: return sizes[\"width\"]" in shown + err
    (trace,) = out.rglob("traceback.txt")
    assert "in failing" in trace.read_text(encoding="utf-8")
    assert trace.with_name("result.json").exists()


@pytest.mark.usefixtures("inline_pool")
@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("where", ["    model = ", "        return {"], ids=["built", "evaluated"])
def test_after_a_bug_in_the_script(bench: Any, tiny: Path, tmp_path: Path, command: str, where: str) -> None:
    """The command that the last line names goes on once the script is right; what has a result is not made again."""
    script, out = tmp_path / "mine.py", tmp_path / "out"
    good = tiny.read_text(encoding="utf-8").replace('"tiny"', '"mended"')
    script.write_text(good.replace(where, where.replace(where.strip(), f"wrong(); {where.strip()} ")), encoding="utf-8")
    options = [command, "mended", "--script", script, "--out", out, "--steps", 20]
    options += [] if command == "run" else ["--optimizers", "adan,adam", "--seeds", 1]
    code, shown, err = bench(*options)
    assert code == 1
    assert "NameError: name 'wrong' is not defined" in shown + err
    script.write_text(good.replace("nn.Tanh()", "nn.Tanh(1)"), encoding="utf-8")  # another bug
    assert bench(*options, "--resume")[0] == 1
    script.write_text(good, encoding="utf-8")
    bench.ran(*options, "--resume")
    records = read_runs(out)[0]
    assert {r.status for r in records} == {"finished"}
    assert {r.config.script_sha256 for r in records} == {hashlib.sha256(good.encode()).hexdigest()}
    assert not list(out.rglob("traceback.txt"))
    assert all(r.metrics[-1]["step"] == 20 and r.environment["data"] == "made up" for r in records)
    script.write_text(good + "# edited\n", encoding="utf-8")
    err = bench.refused(*options, "--resume")
    assert f"the script {script} has changed" in err
    assert "undo that, or choose a new --out" in err


def test_a_failed_run_with_a_checkpoint_keeps_to_its_script(config: Any, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(config(), get_workload("tiny").facts(), {}, {})
    assert store.check_same(config(script_sha256="0" * 64)) is None  # killed before its first checkpoint
    assert store.check_same(config(script_sha256="0" * 64, steps=5)) is None  # which the script has, too
    store.checkpoint(5, {})
    store.finish({"status": "failed", "step": 5, "seconds": 1.0, "final": {}})
    with pytest.raises(UsageError, match=r"has changed, and this was made with the old one\); undo that"):
        store.check_same(config(script_sha256="0" * 64))
    with pytest.raises(UsageError, match=r"holds another run .*steps: 60 there, 5 now"):
        store.check_same(config(script_sha256="0" * 64, steps=5))


def test_a_usage_error_leaves_no_run_in_the_way(
    bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("run", "tiny", "--script", tiny, "--steps", 4, "--out", tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        assert "pip install tensorboard" in bench.refused(*command, "--tensorboard")
    (tmp_path / "a" / "result.json").write_text("of another program", encoding="utf-8")
    assert "5000" in bench.refused(*command, "--batch-size", 5000)  # before the run began
    (tmp_path / "a" / "result.json").unlink()
    bench.ran(*command)


def test_a_usage_error_in_the_middle_of_a_run_is_a_failure(tmp_path: Path) -> None:
    """Of a study's run: what was recorded is kept, and it does not count as absent, which is no failure."""
    wrong = 'if len(steps) > 2: raise __import__("adan_bench").errors.UsageError("image 7 is damaged")'
    script = one_weight(tmp_path / "late.py", "late", loss=wrong)
    load_script(script)
    result = perform(Job(settings("late", script=script), tmp_path / "a"))
    assert (result["status"], result["error"], result["absent"]) == ("failed", "image 7 is damaged", False)
    assert read_run(tmp_path / "a").metrics


def test_tensorboard(config: Any, tmp_path: Path) -> None:
    run(config(steps=20, tensorboard=True), RunStore(tmp_path / "a"))
    assert list((tmp_path / "a" / "tensorboard").glob("events.*"))


def test_a_run_that_could_not_be_built_is_described_once_it_can(config: Any, tmp_path: Path) -> None:
    """A package was missing; with it installed the run goes on, and its record says on which data."""
    store = RunStore(tmp_path / "a")
    record_failure(Job(config(), store.path), "tiny needs\nthe package x", absent=True)
    assert not store.described
    assert "tiny needs the package x" in (store.path / "result.json").read_text(encoding="utf-8")
    (store.path / "traceback.txt").touch()
    run(config(), store, resume=True)
    assert not (store.path / "traceback.txt").exists()
    assert read_run(store.path).environment["data"] == "made up"
    assert read_run(store.path).status == "finished"


def test_a_carried_state_is_not_accumulated(config: Any) -> None:
    with pytest.raises(UsageError, match=r"ptb-lstm: its batches carry a state to the next; leave out --accumulate"):
        Trainer(config(workload="ptb-lstm", accumulate=2))
