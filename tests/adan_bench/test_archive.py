"""Archives of runs: what `pack` writes reads as the folders do, and so do the stored records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.made_up_runs import record

from adan_bench.errors import UsageError
from adan_bench.records.archive import POINTS, pack, read_archive, read_records
from adan_bench.records.stats import summarize
from adan_bench.records.store import read_runs

EVIDENCE = Path(__file__).parents[2] / "results" / "evidence"


@pytest.fixture(scope="module")
def earlier() -> dict[str, Any]:
    return {record.path.name: record for record in read_archive(EVIDENCE / "runs.jsonl")[0]}


@pytest.mark.usefixtures("inline_pool")
def test_a_packed_study_reads_as_its_folder(bench: Any, tmp_path: Path) -> None:
    study = ("compare", "digits-vit", "--optimizers", "adan,sgd-momentum", "--seeds", 2, "--steps", 4)
    bench.ran(*study, "--batch-size", 8, "--eval-every", 2, "--out", tmp_path / "runs")
    code, out, err = bench("pack", tmp_path / "runs", "--into", tmp_path / "new" / "study.jsonl")
    assert (code, err) == (0, "")
    assert "study.jsonl: 4 runs" in out
    packed, damaged = read_records(tmp_path / "new" / "study.jsonl")
    runs = read_runs(tmp_path / "runs")[0]
    assert not damaged
    assert [r.path.relative_to(tmp_path / "runs" / "digits-vit") for r in runs] == [
        r.path.relative_to(tmp_path / "new" / "study.jsonl") for r in packed
    ]
    for before, after in zip(runs, packed, strict=True):
        assert replace(after.config, data=before.config.data) == before.config
        assert (after.result, after.workload, after.optimizer) == (before.result, before.workload, before.optimizer)
        assert after.curve("eval", "accuracy") == [
            (step, pytest.approx(seconds, rel=1e-5), pytest.approx(value, rel=1e-5))
            for step, seconds, value in before.curve("eval", "accuracy")
        ]
        assert [line["kind"] for line in after.metrics] == [line["kind"] for line in before.metrics]
        assert after.training_loss == pytest.approx(before.training_loss, rel=1e-5)
    text = (tmp_path / "new" / "study.jsonl").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    both, _ = read_records(tmp_path / "runs", tmp_path / "new" / "study.jsonl", tmp_path / "runs")
    assert len(both) == 8  # each once
    bench.ran("report", tmp_path / "new" / "study.jsonl", "--out", tmp_path / "report")
    assert (tmp_path / "report" / "report.html").exists()
    assert len(read_archive(tmp_path / "report" / "runs.jsonl")[0]) == 4
    assert "give --out DIR" in bench.refused("report", tmp_path / "new" / "study.jsonl")
    code, _, err = bench("report", tmp_path / "report" / "runs.jsonl", "--out", tmp_path / "report")
    assert code == 2, "the archive would be overwritten"
    bench.ran("pack", tmp_path / "runs", "--into", tmp_path / "new" / "study.jsonl")
    for content in (b"import torch\n", b"\xff"):  # of a script, of a picture
        other = tmp_path / "other.py"
        other.write_bytes(content)
        code, _, err = bench("pack", tmp_path / "runs", "--into", other)
        assert (code, other.read_bytes()) == (2, content)
        assert f"--into {other}: it exists and is not a packed file; name another" in err
    err = bench.refused("report", other, "--out", tmp_path / "report")
    assert "give a folder of records, or a file of adan-bench pack" in err


def test_curves_are_thinned_and_no_folder_is_kept(earlier: dict[str, Any]) -> None:
    record = next(iter(earlier.values()))
    lines = [{"kind": "train", "step": i, "seconds": i / 3, "loss": i / 7} for i in range(1, 1001)]
    resumed = {"kind": "resume", "step": 500, "environment": {"command": "adan-bench run --out /home/me/x/runs"}}
    environment = {**record.environment, "data": "from /data/sets/ptb", "ratio": "GB/s of 1/2"}
    long = replace(record, metrics=[*lines, resumed], environment=environment)
    line = json.loads(pack([long]))
    assert pack([]) == ""
    curve = line["curves"]["train"]
    assert len(curve["step"]) == POINTS
    assert (curve["step"][0], curve["step"][-1]) == (1, 1000)
    assert curve["loss"][-1] == float(f"{1000 / 7:.6g}")
    assert line["events"][0]["environment"]["command"] == "adan-bench run --out runs"
    assert (line["environment"]["data"], line["environment"]["ratio"]) == ("from ptb", "GB/s of 1/2")


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "JSONDecodeError"), ("[]", "it is no JSON object"), ('{"config": {}}', "it has no workload")],
)
def test_a_damaged_line_is_named_and_the_others_are_read(
    earlier: dict[str, Any], tmp_path: Path, text: str, why: str
) -> None:
    record = next(iter(earlier.values()))
    file = tmp_path / "a.jsonl"
    file.write_text(f"{text}\n{pack([record])}", encoding="utf-8")
    records, (error,) = read_archive(file)
    assert len(records) == 1
    assert str(error).startswith(f"{file} is damaged (line 1: {why}")
    assert str(error).endswith("remove that line, or pack the runs again")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no runs there"):
        read_archive(file)


def test_a_config_of_a_packed_run_is_checked(earlier: dict[str, Any], tmp_path: Path) -> None:
    line = json.loads(pack([next(iter(earlier.values()))]))
    line["config"]["steps"] = "many"
    (tmp_path / "a.jsonl").write_text(json.dumps(line), encoding="utf-8")
    with pytest.raises(UsageError, match="steps is 'many'"):
        read_archive(tmp_path / "a.jsonl")


def test_the_records_of_the_earlier_runner(earlier: dict[str, Any]) -> None:
    assert len(earlier) == 1011
    configs = [record.config for record in earlier.values()]
    assert {c.workload for c in configs} == {
        *("cifar-vit", "cifar-resnet34", "cifar-convnext", "cifar-mae", "pycode-gpt-1m", "pycode-gpt-11m"),
        *("pycode-gpt-26m", "pycode-moe", "english-bert", "english-cola", "english-sst2", "lstm-1", "transformer-xl"),
        *("cora", "deformable-detr", "ppo-hopper", "ppo-halfcheetah", "ppo-walker2d", "ppo-ant"),
    }
    assert {c.settings["momentum"] for c in configs if c.optimizer == "sgd"} == {0.0, 0.5, 0.9}
    assert {c.scale for c in configs if not c.workload.startswith("ppo")} == {"small"}
    assert all((c.role == "tune") == (c.seed == 1000) for c in configs)
    assert all(c.init is not None for c in configs if c.workload in ("english-cola", "english-sst2"))
    assert {c.training and c.training.get("fixed_recurrent") for c in configs if c.workload == "lstm-1"} == {None, True}
    assert {r.environment["packages"]["torch"][:4] for r in earlier.values()} == {"2.11", "2.13"}
    (diverged, *_) = [r for r in earlier.values() if r.diverged]
    assert diverged.result["step"] == diverged.metrics[-1]["step"]
    first = {c.bf16 for c in (r.config for r in read_archive(EVIDENCE / "transformer-xl-first.jsonl")[0])}
    assert (first, {c.bf16 for c in configs if c.workload == "transformer-xl"}) == ({True}, {False})


def test_packed_runs_and_runs_of_one_comparison_are_compared(tmp_path: Path) -> None:
    """An archive has lost all but the last part of the folder of the data; another folder stays another."""
    ran = [record(name, data=Path("/somewhere/images")) for name in ("adan", "adamw")]
    (tmp_path / "packed.jsonl").write_text(pack(ran[1:]), encoding="utf-8")
    both = [ran[0], *read_archive(tmp_path / "packed.jsonl")[0]]
    assert len(summarize(both)) == len(summarize(both[::-1])) == 1
    assert len(summarize([*both, record("sgd", data=Path("/elsewhere/images"))])) == 2


def test_reports_take_them(earlier: dict[str, Any]) -> None:
    """The optimizers of a study, and no runs of another length, schedule or start, are in one summary."""
    summaries = summarize([r for r in earlier.values() if r.config.workload == "lstm-1"])
    names = [s.name for s in summaries]
    assert len(names) == len(set(names)) == 3  # 8 epochs, 200, 200 with fixed recurrent weights
    published = next(s for s in summaries if "fixed_recurrent" in s.name)
    assert {o.name: o.n for o in published.optimizers} == dict.fromkeys(
        ("adan", "adamw", "adam", "sgd", "adabelief"), 3
    )


def test_a_run_that_was_cut_off_is_unfinished() -> None:
    records, _ = read_archive(EVIDENCE / "gpt-30m-cut-off.jsonl")
    assert {r.status for r in records} == {"unfinished"}
    assert min(r.metrics[-1]["step"] for r in records) == 2550


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_report_of_several_folders(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """In the first of them, or elsewhere, so that an archive stays as it is; a run in two of them counts once."""
    a, b, c = (tmp_path / name for name in ("a", "b [/b]", "c"))
    for folder, optimizer in ((a, "adan"), (b, "adamw")):
        options = ("--script", tiny, "--optimizer", optimizer, "--steps", 20, "--out", folder)
        code, out, err = bench("run", "tiny", *options)
        assert (code, f"record: {folder}\n" in out) == (0, True), err
    before = contents(tmp_path)
    code, out, err = bench("report", a, b, tmp_path / "a", tmp_path, "--out", c / "new", "--json")
    assert (code, json.loads(out)["path"]) == (0, str(c / "new" / "report.html")), err
    text = (c / "new" / "report.md").read_text(encoding="utf-8")
    assert "1 workload, 2 optimizers, 2 runs." in text
    assert "count once" not in text
    assert {path: content for path, content in contents(tmp_path).items() if c not in path.parents[:2]} == before
    bench.ran("report", a, b)
    assert "2 optimizers, 2 runs." in (a / "report.md").read_text(encoding="utf-8")
    assert not (b / "report.md").exists()


def test_records_written_before_still_open(bench: Any, tmp_path: Path) -> None:
    """An archive of `make demo` by earlier versions, with a flat configuration and nulls in it."""
    archive = Path(__file__).parents[1] / "support" / "earlier_runs.jsonl"
    for i, line in enumerate(archive.read_text(encoding="utf-8").splitlines()):
        found = json.loads(line)
        config, folder = found["config"], tmp_path / str(i)
        metric = "loss" if config["workload"] == "pycode-gpt2" else "accuracy"
        facts = {"metric": metric, "higher_is_better": metric != "loss", "target": 0.5, "summary": "", "name": ""}
        folder.mkdir()
        content = {"config": config, "workload": facts, "optimizer": {"name": config["optimizer"], "passes": 1}}
        for name, value in (("config", content), ("environment", found["environment"]), ("result", found["result"])):
            (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        end = {key: found["result"][key] for key in ("step", "seconds")} | found["result"]["final"]
        (folder / "metrics.jsonl").write_text(json.dumps({"kind": "eval", **end}) + "\n", encoding="utf-8")
    out = bench.ran("report", tmp_path)
    assert out.count("has the highest mean accuracy") + out.count("share the highest mean accuracy") == 2
    assert "(n=3)" in (tmp_path / "report.md").read_text(encoding="utf-8")
