"""The command line: one line and exit code 2 for what does not exist, and a comparison that nothing stops."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.scripts import one_weight, renamed

from adan_bench.cli.app import _usage_line
from adan_bench.cli.common import EXIT_TIME_LIMIT, Invocation, complain
from adan_bench.config import RunConfig, option
from adan_bench.errors import listing
from adan_bench.records.store import read_run, read_runs
from adan_bench.reports.theory import STUDIES
from adan_bench.training.configure import threads
from adan_bench.training.optimizers import SPECS
from adan_bench.workloads.registry import get_workload

TORCHRUN = "torchrun --nproc-per-node 2 -m adan_bench.cli"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "nope"], ["no workload 'nope'; see: adan-bench list workloads (", "needs --script FILE)\n"]),
        (["run", "digit-vit"], ["did you mean digits-vit"]),
        (["compare", "digits-vit", "--seeds", "1001"], ["--seeds 1001", "1000"]),  # the first seed of trials is 1000
        (["compare"], ["no workload was named", "adan-bench list", "--script FILE"]),
        (["run", "digits-vit", "--optimizer", "nope"], ["'nope'", *SPECS]),
        (["compare", "digits-vit", "--optimizers", "adan,nope"], ["'nope'", *SPECS]),
        (["run", "digits-vit", "--nope"], ["run has no option '--nope'; see: adan-bench run --help\n"]),
        (["compare", "digits-vit", "--optimizer", "adan"], ["no option '--optimizer'; did you mean --optimizers"]),
        (["compar"], ["Did you mean 'compare'? There are: list"]),
        (["list", "--jsn"], ["list has no option '--jsn'; did you mean --json? It has: --script, --json"]),
        (["run", "digits-vit", "--set", "nope=1"], ["'nope'", "lr", "betas"]),
        (["run", "digits-vit", "--set", "lr"], ["KEY=VALUE"]),
        (["run", "digits-vit", "--set", "lr=fast"], ["lr must be a number, got 'fast'"]),
        (["run", "digits-vit", "--set", "lr=-1"], ["lr must be finite and at least 0, got -1"]),
        (["compare", "digits-vit", "--set", "betas=0.9"], ["betas must be three numbers"]),
        (["run", "digits-vit", "--steps", "many"], ["--steps"]),
        (["run", "digits-vit", "--device", "tpu"], ["tpu", "cpu"]),
        (["run", "digits-vit", "--device", "gpu:1"], ["--device gpu:1: did you mean cuda:1?"]),
        (["run", "digits-vit", "--batch-size", "5000", "--out", "x"], ["5000", "1437"]),
        (["run", "digits-vit", "--accumulate", "3"], ["--accumulate 3: a batch of 64 cannot be split into 3"]),
        (["compare", "digits-vit", "--set", "lr=1", "--tune", "4", "--out", "x"], ["--set lr"]),
        (["tune", "digits-vit", "--optimizers", "adan:lr=1", "--out", "x"], ["adan:lr=1: the lr in its name fixes"]),
        (["run", "digits-vit", "--schedule", "nope"], ["'nope'", "cosine", "linear", "constant"]),
        (["run", "digits-vit", "--schedule", "steps:0"], ["--schedule steps:0", "30/90,60/90"]),
        (["run", "digits-vit", "--schedule", "steps:30,60"], ["--schedule steps:30,60", "between 0 and 1", "30/90"]),
        (["run", "digits-vit", "--steps", "4", "--stop-after", "9"], ["--stop-after 9", "after 4 steps"]),
        (
            ["run", "digits-vit", "--warmup", "0.7", "--cooldown", "0.6"],
            ["--warmup 0.7 and --cooldown 0.6", "at most 1"],
        ),
        (
            ["compare", "digits-vit", "--optimizers", "adan,", "adamw"],
            ["'adamw': it is an optimizer", "without spaces"],
        ),
        (["compare", "digits-vit", "--ema", "1"], ["--ema 1", "less than 1"]),
        (["run", "digits-vit", "--warmup", "2"], ["--warmup 2: must be at most 1\n"]),
        (["run", "digits-vit", "--steps", "-3"], ["--steps -3: must be at least 1\n"]),
        (["report"], ["Missing argument", "; see: adan-bench report --help\n"]),
        (["run", "digits-vit", "--seed", "-1"], ["--seed -1", "0"]),
        (["compare", "digits-vit", "--init", "/nowhere/w.pt"], ["--init /nowhere/w.pt", "no such file or folder"]),
        (["compare", "digits-vit", "--init", "."], ["--init .", "--keep-weights"]),
        (["reproduce", "lstm", "--init", "w.pt"], ["--init w.pt", "something.txt"]),
        (["run", "digits-vit", "--out", "something.txt"], ["--out something.txt", "is a file"]),
        (["compare", "digits-vit", "--out", "something.txt/a"], ["--out something.txt/a", "something.txt is a file"]),
        (["speed", "--out", "."], ["--out .", "it is a folder"]),
        (["tune", "digits-vit", "--save", "something.txt/a"], ["--save something.txt/a", "something.txt is a file"]),
        (["compare", "digits-vit", "--batch-size", "16", "--batch-sizes", "32,64"], ["--batch-size 16", "32,64"]),
        (["run", "cifar-resnet34", "--scale", "small", "--data", "/nowhere"], ["--data or ADAN_DATA /nowhere: no"]),
        (["run", "ptb-lstm", "--data", "nowhere"], ["--data or ADAN_DATA", "nowhere: no such folder"]),
        (["run", "cifar-resnet34", "--scale", "small", "--data", "."], ["cifar10/train.parquet", "something.txt"]),
        (["run", "digits-vit", "--script", "nope.py"], ["nope.py"]),
        (["compare", "digits-vit", "--batch-sizes", "a,b"], ["a,b"]),
        (["compare", "digits-vit", "--batch-sizes", "0"], ["--batch-sizes 0", "from 1 on"]),
        (["run", "digits-vit", "--optimizer", "sam", "--steps", "1"], ["--steps 1", "sam takes 2", "at least 2"]),
        (["run", "digits-vit", "--optimizer", "sam", "--stop-after", "1"], ["--stop-after 1", "at least 2"]),
        (["speed", "--optimizers", "adan,sam"], ["--optimizers sam", "2 gradients", "leave it out"]),
        (["tune", "digits-vit", "--save", "something.txt"], ["--save something.txt", "name another file"]),
        (["tune", "digits-vit", "--save", "."], ["--save .", "name another file"]),
        (["compare", "digits-vit", "--tuned", "something.txt"], ["--tuned something.txt", "best.json"]),
        (["compare", "digits-vit", "--tuned", "no.json"], ["--tuned no.json: no such file; give"]),
        (["report", "nope"], ["nope: no such folder", "holds: something.txt"]),
        (["list", "nope"], [": 'nope' is not one of 'workloads', 'optimizers', 'tables'"]),
        (["nope"], ["list", "run", "compare", "tune", "report"]),
        (["run", "digits-vit", "--time-limit", "5x"], ["--time-limit 5x", "90s, 25m, 2h"]),
        (["compare", "digits-vit", "--time-limit", "0s"], ["--time-limit 0s", "90s, 25m, 2h"]),
        (["compare", "digits-vit", "--jobs", "0"], ["--jobs 0", "1"]),
        (["compare", "digits-vit", "--resume"], ["--resume", "with --out"]),
        (["theory", "--json", "constants", "digits-vit"], ["--json", "before constants"]),
        (["run", "digits-vit", "--schedule", "constant", "--floor", "0.1"], ["--floor 0.1", "--schedule constant"]),
        (["run", "digits-vit", "--scale", "huge"], ["digits-vit has no scale 'huge'; it has: smoke\n"]),
        (["reproduce", "lstm", "--scale", "huge"], ["--scale huge: no such scale; there are: smoke, small, paper"]),
        (["reproduce", "lstm", "--data", "nowhere"], ["no such folder"]),
        (["reproduce", "cnn", "--accumulate", "0"], ["--accumulate"]),
        (["reproduce", "components", "--workload", "tinny"], ["no workload 'tinny'"]),
        (["reproduce", "resnet18", "--radius", "3"], ["--radius 3: no row"]),
        (["speed", "GPT-2-1B", "--optimizers", "adan:nope=1"], ["adan has no setting 'nope'"]),
        (["memory", "GPT-2-2B"], ["no model 'GPT-2-2B'; did you mean GPT-2-1B"]),
        (["memory", "Falcon"], ["adan-bench: no model 'Falcon'; see: adan-bench memory --help (", "such as 7B)\n"]),
        (["memory", "0"], ["whole and at least 1, got 0"]),
        (["memory", "7B", "--gpus", "0"], ["--gpus 0"]),
        (["memory", "7B", "--weights", "fp16"], ["'fp32', 'bf16'"]),
        (["memory", "vit-s", "--scale", "huge"], ["vit-s has no scale 'huge'"]),
        (["speed", "ViT-X"], ["no model 'ViT-X'; did you mean ViT-", "There are: ResNet-50"]),
        (["speed", "ViT-B", "--scale", "huge"], ["--scale huge: no such scale"]),
        (["study", "vit-26"], ["vit-26"]),
        (["study", "something"], ["no study 'something'; see: adan-bench list studies\n"]),
        (["study", "nothing.toml"], ["nothing.toml"]),
        (["theory", "--only", "nope"], [*STUDIES]),
        (["compare", "digits-vit", "--ranks", "3"], ["3 ranks: a batch of 64 cannot be", "as --batch-size 66"]),
        (["compare", "deepgcn", "--ranks", "2"], ["--ranks 2: a step trains on one graph", "deepgcn", "--jobs"]),
        (["tune", "ppo-hopper", "--ranks", "2"], ["simulators of one process", "ppo-hopper", "--jobs"]),
        (["run", "digits-vit", "--parallel", "ddp"], [f"{TORCHRUN} run digits-vit --parallel ddp"]),
        (["compare", "digits-vit", "--parallel", "fsdp"], ["--parallel fsdp with one rank: add --ranks N"]),
        (["compare", "digits-vit", "--cluster", "ray", "--ranks", "2", "--jobs", "2"], ["leave out --jobs"]),
        (["compare", "digits-vit", "--cluster", "slurm"], ["--cluster slurm", "ray:10.0.0.1:6379"]),
        (["compare", "digits-vit", "--cluster", "ray://host:10001"], ["ray://host:10001", "ray:10.0.0.1:6379"]),
        (["compare", "digits-vit", "--cluster", "ray", "--device", "cuda:1"], ["cuda:1", "cpu or cuda"]),
    ],
    ids=" ".join,
)
def test_what_does_not_exist(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "something.txt").touch()
    err = bench.refused(*arguments)
    for name in names:
        assert name in err
    assert [p.name for p in tmp_path.iterdir()] == ["something.txt"]


def test_a_command_that_does_not_exist_in_releases_whose_error_knows_the_others() -> None:
    """As click 8.4's does, which older releases of typer use."""
    context = SimpleNamespace(command=SimpleNamespace(commands=["list", "run"], params=[]))
    text = "No such command 'runn'. Did you mean 'run'?"
    error = SimpleNamespace(ctx=context, possibilities=["run"], command_name="runn", format_message=lambda: text)
    assert _usage_line(error, Invocation(["runn"])) == f"{text} There are: list, run"


def test_adan_data_may_be_absent_where_no_data_are_needed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAN_DATA", "nowhere")
    bench.ran("reproduce", "lstm", "--only", "Adan,1 layer", "--dry-run")
    out = bench.ran("reproduce", "lstm", "--only", "Adan,1 layer", "--dry-run", "--scale", "paper")
    assert "nowhere: no such folder" in " ".join(out.split())


@pytest.mark.parametrize("command", [["run", "digits-vit"], ["compare", "digits-vit"], ["theory"]], ids=" ".join)
def test_a_folder_that_cannot_be_written(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Refused before any work; root may write everywhere, so the answer of the operating system is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    code, _, err = bench(*command, "--out", tmp_path / "a" / "b")
    wanted = f"adan-bench: --out {tmp_path / 'a' / 'b'}: {tmp_path} cannot be written to; give another path\n"
    assert (code, err) == (2, wanted)


def test_a_default_folder_that_cannot_be_written(
    bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "runs")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = bench("compare", "tiny", "--script", tiny, "--optimizers", "adan")
    why = "runs: Permission denied; nothing was recorded; give a folder that can be written to with --out"
    assert (code, err) == (1, f"adan-bench: {why}\n")


def test_the_command_that_continues_starts_the_ranks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said by the first of them alone."""
    (tmp_path / "config.json").touch()
    call = Invocation(["run", "tiny", "--out", str(tmp_path), "--parallel", "ddp"])
    call.records = tmp_path
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in "10":
        monkeypatch.setenv("RANK", rank)
        complain(call.how_to_continue(), EXIT_TIME_LIMIT)
    words = f"{TORCHRUN} run tiny --out {tmp_path} --parallel ddp --resume"
    assert capsys.readouterr().err == f"adan-bench: continue with: {words}\n"
    for name, value in {"GROUP_WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.7"}.items():
        monkeypatch.setenv(name, value)
    meet = "--nnodes 3 --rdzv-backend c10d --rdzv-endpoint 10.0.0.7"
    words = words.replace("torchrun", f"torchrun {meet}")
    assert call.how_to_continue() == f"continue on each of the 3 nodes with: {words}"


def test_python_m_adan_bench() -> None:
    done = subprocess.run([sys.executable, "-m", "adan_bench", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("adan-bench ")


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_run_does_not_join_a_study(bench: Any, tmp_path: Path, resume: list[str]) -> None:
    """Its report would count the run as one of the study's seeds."""
    seed = tmp_path / "digits-vit" / "adan" / "seed-0"
    seed.mkdir(parents=True)
    (seed / "config.json").write_text('{"config": {}}', encoding="utf-8")
    err = bench.refused("run", "digits-vit", "--steps", "2", "--out", tmp_path, *resume)
    assert f"--out {tmp_path}: it already holds other runs, for example {seed}; name" in err
    assert [path.name for path in tmp_path.iterdir()] == ["digits-vit"]


@pytest.mark.parametrize("kind", ["workloads", "optimizers", "tables"])
@pytest.mark.parametrize("width", [80, 40])
def test_list_cuts_no_name(bench: Any, monkeypatch: pytest.MonkeyPatch, kind: str, width: int) -> None:
    names = [row["name"] for row in json.loads(bench("list", kind, "--json")[1])]
    monkeypatch.setenv("COLUMNS", str(width))
    lines = bench("list", kind)[1].splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == names
    assert max(map(len, lines)) <= width
    assert not any("…" in line.replace(" … ", "") for line in lines)  # rich's mark where it cuts


def test_list_shows_the_workloads_of_a_script(bench: Any, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from adan_bench import Scale, workload\nprint('loading')\n"
        "@workload('mine-alone', metric='m', higher_is_better=True, smoke=Scale(1, 3, 1))\n"
        "def mine(context): ...\n",
        encoding="utf-8",
    )
    listed = bench("list", "--script", script)[1]
    assert listed.startswith("mine-alone ")
    assert "data: its own" in listed
    assert "digits-vit" not in listed
    assert [row["name"] for row in json.loads(bench("list", "--script", script, "--json")[1])] == ["mine-alone"]
    assert "roles unknown: mine-alone: " in listed  # its function returns no task
    text = script.read_text(encoding="utf-8").replace("print('loading')", "")
    script.write_text(text.replace("mine-alone", "digits-vit"), encoding="utf-8")
    assert "'digits-vit' is a bundled workload; give yours another name" in bench.refused("list", "--script", script)
    assert get_workload("digits-vit").build.__module__.startswith("adan_bench.")


def test_list_says_where_a_script_fails(bench: Any, tmp_path: Path) -> None:
    script = one_weight(tmp_path / "failing.py", "failing-listed", built='raise RuntimeError("no such luck")')
    (row,) = json.loads(bench("list", "--script", script, "--json")[1])
    line = script.read_text(encoding="utf-8").splitlines().index('    raise RuntimeError("no such luck")') + 1
    assert row["unbuilt"].startswith(f"roles unknown: RuntimeError: no such luck ({script}, line {line}, in ")


def test_a_script_of_two_workloads_has_no_default(bench: Any, tiny: Path, tmp_path: Path) -> None:
    text = tiny.read_text(encoding="utf-8")
    script = tmp_path / "two.py"
    script.write_text(text.replace('"tiny"', '"one"') + text.replace('"tiny"', '"two"'), encoding="utf-8")
    for command in (["run"], ["memory"], ["theory", "constants"]):
        assert bench.refused(*command, "--script", script).endswith(": two.py registers one and two: name one\n")


def test_a_folder_is_listed_in_short(tmp_path: Path) -> None:
    for i in range(13):
        (tmp_path / f"{i:02}").touch()
    assert listing(tmp_path).endswith(", 11, …")


def test_run_as_json_and_diverged_exit_code(
    bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAN_DATA", str(tmp_path / "nowhere"))  # which is nothing to a workload that needs no data
    code, out, _ = bench("run", "tiny", "--script", tiny, "--out", tmp_path / "a", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert lines[-1]["result"]["status"] == "finished"
    assert lines[0]["event"] == "progress"
    arguments = ("--optimizer", "sgd", "--set", "lr=1e30", "--out", tmp_path / "b")
    assert bench("run", "tiny", "--script", tiny, *arguments)[0] == 3
    record = read_run(tmp_path / "b")
    assert (record.status, record.final, record.metrics[-1]["loss"]) == ("diverged", None, None)
    assert record.metrics[-1]["step"] < 60


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_metric_that_ends_infinite_is_a_diverged_run(bench: Any, tiny: Path, tmp_path: Path, value: str) -> None:
    """The loss is fine to the end: still what the report calls diverged is called so by the run, in valid JSON."""
    lost = ("(model(x) - y).square().mean().item()", f'float("{value}")')
    script = renamed(tiny, tmp_path / "lost.py", "lost", lost)
    code, out, _ = bench("run", "lost", "--script", script, "--out", tmp_path / "a", "--json")
    assert code == 3
    result = json.loads(out.splitlines()[-1], parse_constant=pytest.fail)["result"]
    assert (result["status"], result["step"], result["final"]) == ("diverged", 60, {"error": None})
    assert read_run(tmp_path / "a").diverged
    code, out, _ = bench("report", tmp_path / "a")
    assert (code, "1 of 1 diverged" in out) == (3, True)


@pytest.mark.usefixtures("inline_pool")
def test_an_exploding_optimizer_does_not_stop_the_comparison(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """The exit code is 3 only where every run diverged."""
    arguments = ("--optimizers", "adam,sgd", "--seeds", "2", "--steps", "20", "--script", tiny)
    for folder, lr, expected in (("some", "sgd.lr=1e30", 0), ("all", "lr=1e30", 3)):
        code, out, _ = bench("compare", "tiny", *arguments, "--set", lr, "--out", tmp_path / folder)
        assert code == expected
        records = read_runs(tmp_path / folder)[0]
        assert [r.status for r in records if r.config.optimizer == "sgd"] == ["diverged", "diverged"]
        assert len(records) == 4
        assert "sgd: 2 of 2 diverged" in out


def test_new_folders_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one second too; one without content is removed."""
    clock = SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5))
    monkeypatch.setattr("adan_bench.cli.common.datetime", clock)
    monkeypatch.chdir(tmp_path)
    call = Invocation([])
    assert [call.new_folder().name for _ in range(3)] == [f"2026-01-02-030405{end}" for end in ("", "-2", "-3")]
    call.remove_unused()
    assert len(list(Path("runs").iterdir())) == 2


@pytest.mark.usefixtures("forked_workers")
def test_records_hold_the_command(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """What the user typed, in this process and in a worker's."""
    shared = ["tiny", "--script", str(tiny), "--steps", "4", "--out"]
    commands = {
        "run/tiny": ["run", *shared, str(tmp_path / "run/tiny")],
        "compare/tiny/adan/seed-0": ["compare", *shared, str(tmp_path / "compare"), "--optimizers=adan", "--seeds=1"],
    }
    for folder, words in commands.items():
        bench.ran(*words)
        assert read_run(tmp_path / folder).environment["command"] == " ".join(["adan-bench", *words])


#: Another value than the default for every flag of a run; those that need another machine are left out.
VALUES: dict[str, Any] = {
    "steps": 8,
    "batch_size": 8,
    "eval_every": 4,
    "stop_after": 4,
    "schedule": "linear",
    "warmup": 0.5,
    "floor": 0.1,
    "cooldown": 0.25,
    "nonmono": 3,
    "clip": 2.0,
    "ema": 0.9,
    "bf16": True,
    "tf32": True,
    "channels_last": True,
    "accumulate": 2,
    "threads": 3,
    "graph": "off",
    "checkpoint_every": 2,
    "tensorboard": True,
    "keep_weights": True,
    "seed": 7,
    "data": "FOLDER",
}


def test_a_run_option_is_declared_once(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Every field with a help text is a flag, reaches the record, and is looked at when a run is resumed."""
    fields = {f.name: f for f in dataclasses.fields(RunConfig) if f.metadata.get("help")}
    rest = {"device", "compile", "parallel", "ranks", "cluster", "scale", "script", "init"}
    assert fields.keys() - VALUES.keys() == rest
    flags: dict[str, list[str]] = {}
    for name, value in VALUES.items():
        given = tmp_path if value == "FOLDER" else value
        flags[name] = [f"--{name.replace('_', '-')}", *([] if value is True else [str(given)])]
    command = ["run", "tiny", "--script", tiny, "--out", tmp_path / "a"]
    bench.ran(*command, *(part for flag in flags.values() for part in flag))
    config = read_run(tmp_path / "a").config
    assert {name: getattr(config, name) for name in VALUES} == {**VALUES, "data": tmp_path}
    assert read_run(tmp_path / "a").result["step"] == 4
    for name in VALUES:
        others = [part for key, flag in flags.items() if key != name for part in flag]
        code, _, err = bench(*command, *others, "--resume")
        assert (code == 2) == fields[name].metadata["decides"], name
        assert code == 0 or f"holds another run ({flags[name][0]}: " in err, err


def test_an_option_that_is_added_later_changes_no_record(tiny: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(RunConfig):
        cuda_graph: bool = option(False, "Replay the step as a CUDA graph.")

    earlier = RunConfig(workload="tiny", steps=5, settings={"betas": (0.9, 0.99)})
    later = Later.from_json(earlier.to_json())
    assert later.identity() == earlier.identity()
    assert later.differences(Later.from_json({**earlier.to_json(), "cuda_graph": True})) == ["cuda_graph"]
    old = {"workload": "tiny", "steps": 5, "checkpoint_every": None, "data": None, "forgotten": 1}
    assert RunConfig.from_json(old) == RunConfig(workload="tiny", steps=5)


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among runs at a time, and among the ranks of this machine; a run that is resumed keeps its threads."""
    monkeypatch.setattr("adan_bench.training.configure.cores", lambda: 12)
    assert threads(RunConfig()) == 12
    assert threads(RunConfig(jobs=3)) == 4
    begun = RunConfig(jobs=3, threads=4)
    assert threads(RunConfig(jobs=1), begun) == 4
    assert threads(RunConfig(jobs=1, threads=5), begun) == 5
    assert threads(RunConfig(jobs=1, ranks=2), begun) == 12
    assert threads(RunConfig(cluster="ray")) == 1
    assert threads(RunConfig(cluster="ray"), begun) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert threads(RunConfig(jobs=3)) == 2
    assert threads(RunConfig(jobs=3, threads=5)) == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\ndef f(:\n    pass\n", ["SyntaxError: invalid syntax", "line 2: def f(:"]),
        ("import os\nimport no_such_package\n", ["No module named 'no_such_package'", "line 2, in <module>: import"]),
        ("def f():\n    return 1 / 0\n\nf()\n", ["ZeroDivisionError: division by zero", "line 2, in f: return 1 / 0"]),
        ("x = 1\n", ["registers no workload"]),
        ("import sys\nsys.exit('usage: mine.py DATA')\n", ["SystemExit: usage: mine.py DATA", "line 2"]),
    ],
    ids=["syntax", "import", "error", "nothing", "exit"],
)
def test_a_script_that_cannot_be_imported(bench: Any, tmp_path: Path, text: str, words: list[str]) -> None:
    script = tmp_path / "mine.py"
    script.write_text(text, encoding="utf-8")
    err = bench.refused("compare", "--script", script, "--out", tmp_path / "a")
    for word in (f"--script {script}", str(script), *words):
        assert word in err
    assert not (tmp_path / "a").exists()
