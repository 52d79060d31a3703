"""Optimizers with modes, schedules and horizons of their own: Schedule-Free, AdEMAMix, and one of a user's script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import Killed, chosen, curve

from adan_bench.config import RunConfig
from adan_bench.errors import UsageError
from adan_bench.records.stats import summarize
from adan_bench.records.store import RunStore, read_run
from adan_bench.reports.conclusions import tuning
from adan_bench.studies.study import arms, read
from adan_bench.training import optimizers
from adan_bench.training.configure import complete, configure
from adan_bench.training.optimizers import SPECS, build, get_optimizer
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads.registry import get_workload

MODAL = """
import torch
from adan_bench import optimizer

@optimizer("modal", lr=0.01, schedule="constant")
class Modal(torch.optim.SGD):
    def train(self):
        self.flip(-1)
    def eval(self):
        self.flip(1)
    @torch.no_grad()
    def flip(self, sign):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(0.1 * sign)
"""


def test_killed_in_the_middle_of_an_evaluation(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config("schedule-free", steps=24, checkpoint_every=7, log_every=3, eval_every=5)
    run(settings, RunStore(tmp_path / "a"))
    evaluate = Trainer.evaluate

    def killed(self: Trainer) -> dict[str, float]:
        if self.state.step == 15:
            self.task.evaluate = lambda model: (_ for _ in ()).throw(Killed)  # the optimizer is in its eval mode
        return evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", killed)
        with pytest.raises(Killed):
            run(settings, RunStore(tmp_path / "b"))
    assert read_run(tmp_path / "b").status == "unfinished"
    run(settings, RunStore(tmp_path / "b"), resume=True)
    assert curve(tmp_path / "a") == curve(tmp_path / "b")


def test_evaluation_leaves_the_training_as_it_was(config: Any) -> None:
    """And looks at other weights than the training's."""
    settings, averaged = config("schedule-free", steps=40), list[torch.Tensor]()

    def weights(evaluated: bool) -> list[torch.Tensor]:
        trainer = Trainer(settings)

        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            averaged[:] = [p.clone() for p in model.parameters()]
            return {"error": 0.0}

        trainer.task.evaluate = evaluate
        for _ in range(10):
            trainer.update()
            if evaluated:
                trainer.evaluate()
        return list(trainer.model.parameters())

    for p, q, average in zip(weights(evaluated=True), weights(evaluated=False), averaged, strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, average)


def test_ema_follows_the_evaluated_weights(config: Any) -> None:
    trainer = Trainer(config("schedule-free", steps=10, ema=0.5))
    means: list[torch.Tensor] = []
    for step in range(6):
        trainer.update()
        with trainer.updater.scored_weights():
            values = [p.detach().clone() for p in trainer.model.parameters()]
        means = [a.lerp(b, 0.5) for a, b in zip(means, values, strict=True)] if step else values
    for mean, p in zip(means, trainer.updater.average.module.parameters(), strict=True):
        torch.testing.assert_close(mean, p.detach())


def test_a_scripts_own_optimizer_has_modes_too(tiny: Path, tmp_path: Path) -> None:
    script = tmp_path / "modal.py"
    script.write_text(tiny.read_text(encoding="utf-8") + MODAL, encoding="utf-8")
    from adan_bench.training.scripts import load_script

    load_script(script)
    try:
        config = configure(get_workload("tiny"), get_optimizer("modal"), chosen(script=script, steps=6))
        assert config.schedule == "constant"
        trainer = Trainer(config)
        trainer.update()
        trained = [p.detach().clone() for p in trainer.model.parameters()]
        with trainer.updater.scored_weights():
            for p, before in zip(trainer.model.parameters(), trained, strict=True):
                torch.testing.assert_close(p.detach(), before + 0.1)
        assert all(torch.equal(p, before) for p, before in zip(trainer.model.parameters(), trained, strict=True))
    finally:
        load_script(tiny)
        del optimizers.OWN["modal"]


def test_own_schedule_unless_the_user_gives_another() -> None:
    def schedule(name: str, **choices: Any) -> RunConfig:
        return complete(get_workload("digits-vit"), SPECS[name], chosen(**choices))

    assert schedule("schedule-free").schedule == "constant"
    assert schedule("schedule-free", schedule="linear", floor=0.1).schedule == "linear"
    assert schedule("adamw").schedule == RunConfig.schedule
    assert schedule("schedule-free", floor=0.1).schedule == "constant"  # others of the comparison descend to that
    assert schedule("schedule-free").own_schedule
    assert not schedule("schedule-free", schedule="constant").own_schedule


@pytest.mark.usefixtures("inline_pool")
def test_a_schedule_that_is_given_counts_be_it_the_default(bench: Any, tiny: Path, tmp_path: Path) -> None:
    options = ("--optimizer", "schedule-free", "--steps", "4")
    for name, given in (("own", ()), ("given", ("--schedule", "cosine"))):
        bench.ran("run", "tiny", "--script", tiny, *options, *given, "--out", tmp_path / name)
    assert [read_run(tmp_path / name).config.schedule for name in ("own", "given")] == ["constant", "cosine"]
    text = 'workload = "digits-vit"\nseeds = 1\nsummary = "s"\n[optimizers.schedule-free]\nsettings = { lr = 0.01 }\n'
    for extra, schedule in (("", "constant"), ('[run]\nschedule = "cosine"\n', "cosine")):
        (tmp_path / "s.toml").write_text(text + extra, encoding="utf-8")
        (group,) = arms(read([str(tmp_path / "s.toml")]), ["s"], RunConfig(), tmp_path / "out")
        assert [arm.base.schedule for arm in group] == [schedule]


def test_one_table_for_those_with_a_schedule_of_their_own(config: Any, tmp_path: Path) -> None:
    names = ("adamw", "adan", "schedule-free")
    for name in names:
        run(config(name, steps=6), RunStore(tmp_path / name))
    (table,) = summarize([read_run(tmp_path / name) for name in names])
    assert table.schedule == "cosine (schedule-free: constant)"
    assert "its own schedule (cosine (schedule-free: constant), same warm-up)" in tuning([table])


def test_horizon_is_the_length_of_the_run(config: Any) -> None:
    assert Trainer(config("ademamix", steps=37)).optimizer.param_groups[0]["t_alpha_beta3"] == 37
    own = config("ademamix", steps=37)
    chosen_one = Trainer(replace(own, settings={**own.settings, "t_alpha_beta3": 5}))
    assert chosen_one.optimizer.param_groups[0]["t_alpha_beta3"] == 5


def test_prodigy_has_one_rate() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in (1.0, 0.5)]
    with pytest.raises(UsageError, match="prodigy has one learning rate"):
        build(get_optimizer("prodigy"), groups, {"lr": 1.0})


@pytest.mark.parametrize("name", ["muon", "soap", "prodigy", "mars"])
def test_fsdp_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot step on sharded parameters"):
        complete(get_workload("digits-vit"), SPECS[name], chosen(parallel="fsdp"))


@pytest.mark.parametrize("name", ["schedule-free", "soap"])
def test_a_missing_package_is_said_before_the_first_run(
    bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import sys

    package = SPECS[name].target.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, None)
    arguments = ("compare", "tiny", "--script", tiny, "--optimizers", f"adan,{name}", "--out", tmp_path / "out")
    assert f"{name} needs the package {package}; run: pip install '.[bench]'" in bench.refused(*arguments)
    assert not list(tmp_path.glob("out/**/config.json"))
