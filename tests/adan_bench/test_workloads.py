"""Every bundled workload builds, learns for a few steps, and resumes exactly."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen, resumes
from support.pools import tune

from adan_bench.config import Origin
from adan_bench.errors import UsageError
from adan_bench.records.stats import RANGES
from adan_bench.records.store import RunStore
from adan_bench.studies.comparison import compared, learning_rates, save_tuned
from adan_bench.studies.competitors import competitors
from adan_bench.training.configure import configure, tuned_defaults
from adan_bench.training.optimizers import SPECS
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads.registry import get_workload, workloads

OWN = [name for name, found in workloads().items() if found.build.__module__.startswith("adan_bench.workloads")]
#: Without what needs torchvision, where there is none: `make test-vision` has it.
HERE = [name for name in OWN if importlib.util.find_spec("torchvision") or name != "mask-rcnn"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a little of everything in the real formats."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ptb").mkdir()
    sentence = " the cat <unk> sat on the mat \n"
    for split in ("train", "valid", "test"):
        (folder / "ptb" / f"ptb.{split}.txt").write_text(sentence * 400, encoding="utf-8")
    return folder


def settings(name: str, data: Path | None, optimizer: str = "adan") -> Any:
    options = chosen(steps=6, eval_every=3, checkpoint_every=2, data=data)
    return configure(get_workload(name), SPECS[optimizer], options)


#: One of every builder, and of every family of networks and of generated sentences that a builder makes.
BUILDERS = [
    *("digits-vit", "digits-resnet", "resnet18", "resnet50", "convnext-t", "vit-s", "swin-t"),
    *("mae-pretrain-vit-b", "mae-finetune-vit-b", "deformable-detr", "deepgcn", "ppo-hopper"),
    *("bert-pretrain", "glue-cola", "glue-sst2", "glue-rte", "glue-stsb", "gpt2-code", "pycode-gpt2", "moe"),
    *("ptb-lstm", "lstm-2", "transformer-xl", "cifar-vit", "cifar-mae", "cifar-convnext", "pycode-gpt-1m"),
    *("english-bert", "english-cola", "cora-deepgcn"),
    *(name for name in HERE if name == "mask-rcnn"),
]
#: Words are carried from batch to batch: two passes must not advance them twice.
CASES = [*((name, "adan") for name in BUILDERS), ("ptb-lstm", "sam"), ("lstm-2", "sam"), ("transformer-xl", "sam")]


def test_every_builder_is_among_them() -> None:
    def made_by(name: str) -> object:
        return get_workload(name).build.__qualname__

    assert {made_by(name) for name in BUILDERS} == {made_by(name) for name in HERE}


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_resumes_exactly(name: str, optimizer: str, data: Path) -> None:
    """Three updates, or one, a checkpoint and two more in a new trainer."""
    assert resumes(lambda: Trainer(settings(name, data, optimizer)))


@pytest.mark.parametrize("name", [name for name in HERE if name not in BUILDERS])
def test_other_sizes_train(name: str) -> None:
    trainer = Trainer(settings(name, None))
    trainer.update()
    assert trainer.updater.window.isfinite()


@pytest.mark.parametrize("name", BUILDERS)
def test_learns(name: str, tmp_path: Path) -> None:
    """The loss over the last third of 18 steps, or of the budget, is below that over the first third."""
    workload = get_workload(name)
    steps = min(18, workload.steps)
    config = configure(workload, SPECS["adan"], chosen(steps=steps, eval_every=steps))
    result = run(config, RunStore(tmp_path / "a"))
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == steps
    third = steps // 3  # PPO's losses vary more from batch to batch than they fall in a few
    assert sum(losses[-third:]) < sum(losses[:third])
    assert result["final"].keys() >= {workload.metric}


def test_ptb_without_data_reads_documentation(tmp_path: Path) -> None:
    trainer = Trainer(settings("ptb-lstm", None))
    assert "documentation strings" in trainer.task.note
    trainer.update()


def test_runner_names_no_workload() -> None:
    """Adding a workload is adding a file: no file outside the folder mentions one."""
    source = Path(get_workload("digits-vit").build.__code__.co_filename).parents[1]
    others = [path for path in source.rglob("*.py") if "workloads" not in path.relative_to(source).parts]
    for path in others:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in OWN if name in text], path.name


def test_the_range_of_every_metric_is_known() -> None:
    unbounded = {"episode reward"}
    assert {get_workload(name).metric for name in OWN} == RANGES.keys() | unbounded


def test_tuned_defaults_are_even_and_valid() -> None:
    """On each workload the optimizers that have tuned defaults had the same trials at the same budget."""
    from adan_bench.training.optimizers import check_settings

    for name, found in tuned_defaults()["workloads"].items():
        workload = get_workload(name)
        assert {(e["trials"], e["steps"], e["batch_size"]) for e in found.values()} == {
            (8, workload.steps, workload.batch_size)
        }
        for optimizer, entry in found.items():
            check_settings(SPECS[optimizer], entry["settings"])
            # Where the best of the six rates was the first or last, one more was tried: only that one is at the edge.
            rates = learning_rates(SPECS[optimizer], 6)
            assert entry["at_edge"] == (not rates[0] <= entry["settings"]["lr"] <= rates[-1]), (name, optimizer)


@pytest.mark.usefixtures("inline_pool")
def test_a_tuned_default_at_the_edge_is_marked(tmp_path: Path) -> None:
    """Unless the rate is set, or tuned anew: then the trials tell."""
    arms = compared(["digits-resnet"], competitors("adamw,adam,adamw:lr=0.01"), chosen(), out=tmp_path)
    assert [arm.base.origin.at_edge for arm in arms.values()] == [True, False, False]
    arms = tune(["digits-resnet"], competitors("adamw"), chosen(steps=1), tmp_path, 1)
    assert not arms["digits-resnet", "adamw"].base.origin.at_edge


def test_batch_size_sweep(tiny: Path, tmp_path: Path) -> None:
    """Four times the batch: a quarter of the steps, twice the learning rate, for everyone."""
    options = chosen(script=tiny, stop_after=20)
    arms = compared(["tiny"], competitors("adan,sgd"), options, out=tmp_path, batch_sizes=[16, 64])
    for name in ("adan", "sgd"):
        small, large = arms["tiny-b16", name].base, arms["tiny-b64", name].base
        assert (small.steps, large.steps) == (60, 15)
        assert (small.stop_after, large.stop_after) == (20, 5)
        untuned = Origin(kind="untuned")
        assert (small.origin, large.origin) == (untuned, replace(untuned, batch_sizes=(64, 16)))
        assert large.settings["lr"] == pytest.approx(2 * small.settings["lr"])


@pytest.mark.usefixtures("inline_pool")
def test_tuning_gives_everyone_the_same(tiny: Path, tmp_path: Path) -> None:
    from adan_bench.records.store import read_runs

    who = competitors("adan,sgd", ["weight_decay=0.125"])  # chosen for all: every trial has it
    arms = tune(["tiny"], who, chosen(script=tiny, steps=10), tmp_path, 4)
    records = read_runs(tmp_path)[0]
    for name in ("adan", "sgd"):
        mine = [r for r in records if r.config.optimizer == name]
        assert len(mine) == 4
        assert {r.config.seed for r in mine} == {1000}
        assert {r.config.settings["weight_decay"] for r in mine} == {0.125}
        best = min((r for r in mine if r.final is not None), key=lambda r: r.final or 0.0)
        assert json.dumps(arms["tiny", name].base.settings) == json.dumps(best.config.settings)
    save_tuned(arms, tmp_path / "best.json")
    assert json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))["workloads"]["tiny"]["sgd"]["trials"] == 4


@pytest.mark.parametrize("name", BUILDERS)
def test_init_is_loaded_or_refused(name: str, tmp_path: Path) -> None:
    """Never recorded and ignored: a model's own weights arrive, or one line says why they do not; others never pass."""
    workload = get_workload(name)
    first = workload.task().model
    for parameter in first.parameters():
        torch.nn.init.constant_(parameter, 0.123)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    if name in ("deformable-detr", "mask-rcnn") or name.startswith(("glue-", "english-c")):
        with pytest.raises(UsageError, match=f"--init {tmp_path}"):  # a classifier's are wanted, or a tokenizer's name
            workload.task(init=tmp_path)
    else:
        parts = [bool((p == 0.123).all()) for p in workload.task(init=tmp_path).model.parameters()]
        assert all(parts) or (workload.after and sum(parts) > len(parts) / 2)  # a new head stays random
    torch.save({"strange": torch.zeros(3)}, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match=f"--init {tmp_path}") as refused:
        workload.task(init=tmp_path)
    assert str(refused.value).count('", "') < 5  # of all the names that are missing


def test_init_may_be_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {key: value + 1 for key, value in get_workload("digits-vit").task().model.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save({"model": weights, "epoch": 3}, tmp_path / "checkpoint.pth")
    for file in ("model.safetensors", "checkpoint.pth"):
        task = get_workload("digits-vit").task(init=tmp_path / file)
        assert all(torch.equal(value, weights[key]) for key, value in task.model.state_dict().items())
    for content in ("not one", ""):
        (tmp_path / "checkpoint.pth").write_text(content, encoding="utf-8")
        with pytest.raises(UsageError, match=r"checkpoint.pth is not a file of weights \(.+\); give a run"):
            get_workload("digits-vit").task(init=tmp_path / "checkpoint.pth")
    with pytest.raises(UsageError, match=r"--init .*nowhere.pt: no such file"):
        get_workload("digits-vit").task(init=tmp_path / "nowhere.pt")
