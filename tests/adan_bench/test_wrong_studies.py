"""A mistake in a study's file is one line that names the file, the place and what would be right, before any run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.study_files import FIRST, STUDIES

#: By the file that has the mistake: what stands there, the mistake, and what is said of it.
MISTAKES = {
    "first": [
        ("seeds = 4", "seeeds = 4", "top level: no key 'seeeds'"),
        ("[run]", "[run]\nstep = 3", "run: no key 'step'"),
        ("steps = 20", 'steps = "many"', "run: steps = 'many' is not of type int"),
        ("steps = 20", "steps = 20\ndevice = 'cuda'", "run: no key 'device'"),
        ("trials = 7", "trials = 7\ntrails = 3", "search: no key 'trails'"),
        ('workload = "tiny"', 'workload = "tinny"', "workload: no workload 'tinny'"),
        ("[optimizers.adan]", "[optimizers.adann]", "adann on tiny: no optimizer 'adann'"),
        ("weight_decay = 0.02 }\nalt", "decay = 0.02 }\nalt", "no setting 'decay'"),
        ("lr = 0.01, betas", "betas", "optimizers.adan.settings: no lr"),
        ("seeds = 4", "seeds = 0", "seeds: 0; give a number from 1 on"),
        ('summary = "A regression"', "", "top level: no summary"),
        ('workload = "tiny"', "", "top level: no workload"),
        ("steps = 20", "steps = -20", "adan on tiny: --steps -20: give a number from 1 on"),
        ("steps = 20", "steps = 20\nwarmup = nan", "adan on tiny: --warmup nan: give a number from 0 to 1"),
        ("[optimizers.adan]", "[[runs]]\noptimizer = 'adan'\n[optimizers.adan]", "runs: they are of a study that this"),
        ("steps = 20", "steps = true", "run: steps = True is not of type int"),
        ("trials = 7", "trials = 0", "search.trials: 0; give a number from 1 on"),
        ("trials = 7", 'trials = "7"', "search: trials = '7' is not of type int"),
        ("[0.98, 0.92, 0.99] }", "[0.98, 2.0, 0.99] }", "alternatives: adan rejects lr=0.01 betas=[0.98, 2.0,"),
        ("{ weight_decay = 0.1 }", "{ decay = 0.1 }", "adan on tiny: alternatives: adan has no setting 'decay'"),
        ("{ weight_decay = 0.1 }", "{ lr = 0 }", "adan on tiny: alternatives: lr = 0; give a number above 0"),
        ("{ weight_decay = 0.1 }", "0.1", "optimizers.adan.alternatives: 0.1; give tables of settings, such as"),
        ("lr = 0.01, betas", "lr = 0, betas", "adan on tiny: lr = 0; give a number above 0"),
        ("lr = 0.01, betas", "lr = -1e-3, betas", "adan on tiny: lr = -0.001; give a number above 0"),
        ("lr = 0.01, betas", "lr = '1e-3', betas", "adan on tiny: lr = '1e-3'; give a number above 0"),
        ('workload = "tiny"', 'follows = "first"', "optimizers: give them, or the study that this one follows"),
        ("seeds = 4", 'seeds = 4\nstart = { study = "nobody" }', "start.study: no study 'nobody'"),
        ("seeds = 4", "seeds = ", "not a study in TOML"),
        ("trials = 7", "trials = 7\nconfirm = 2", "search.confirm: 2 is for a search over ranges"),
    ],
    "second": [
        ('follows = "first"', 'follows = "frist"', "follows: no study 'frist'"),
        ('optimizer = "adan"', 'optimizer = "sgd"', "runs.optimizer: no optimizer 'sgd'"),
        ('follows = "first"', 'follows = "second"', "second → second is a circle"),
        ("lr_factor = 0.5", "lr_factor = -0.5", "runs: lr_factor = -0.5; give a number above 0"),
        ("lr_factor = 0.5", "factor = 0.5", "runs: no key 'factor'"),
        ("lr_factor = 0.5", "lr_factor = 0", "runs: lr_factor = 0; give a number above 0"),
        ("lr = [0.1, 0.2]", "lr_factor = [2, -1]", "runs: lr_factor = -1; give a number above 0"),
        ("lr = [0.1, 0.2]", "lr = [0.1, 0]", "adamw on tiny: lr = 0; give a number above 0"),
        ("lr = [0.1, 0.2]", "lr = [0.1, 0.1]", "runs: two of them are adamw-lr=0.1-batch_size=8; omit one"),
        ("lr = [0.1, 0.2]", "lr = []", "runs.grid: {'lr': [], 'batch_size': [8, 32]}; give a list of values for each"),
    ],
    "field": [
        ("decay = [0.01, 1.0]", "decay = [1.0, 0.01]", "search.ranges.decay: [1.0, 0.01]; give a range: [LOW, HIGH]"),
        ("[0.02, 0.2]", "[0.02, 2.0]", "search.ranges.b1: {'one_minus': [0.02, 2.0]}; give a range"),
        ("one_minus", "minus", "search.ranges.b1: {'minus': [0.02, 0.2]}; give a range"),
        ("lr = [0.001, 0.064]", "lr = 0.001", "optimizers.adan.settings.lr: 0.001; give a range"),
        ("lr = [0.001, 0.064]", "lr = { choice = [1, 2] }", "settings.lr: {'choice': [1, 2]}; give [LOW, HIGH]"),
        ("[optimizers.adan]", "[optimizers.adan]\nalternatives = []", "optimizers.adan.alternatives: the study"),
        ("decay = [", "eps = [1e-9, 1e-7]\ndecay = [", "search.ranges.eps: no setting has it"),
        ("0.05, 0.1]", '"0.1", 0.05, 0.1]', "run: warmup = '0.1' is not of type"),
        ("0.05, 0.1]", "0.05, 0.1, 5.0]", "adan on tiny: warmup: --warmup 5: give a number from 0 to 1"),
        ("[0.01, 1.0]", "{ choice = [0.01, 1.0, 1.0, -1.0] }", "adan on tiny: decay: adan rejects"),
        ("{ one_minus = [0.02, 0.2] }", "[0.5, 1.5]", "adan on tiny: b1: adan rejects"),
        ('betas = ["b1", 0.92, 0.99]', 'betas = ["b2", 0.92, 0.99]', "adan on tiny: adan rejects"),
        ("seeds = 2", "seeds = [0, 1001]", "seeds: 1001; those from 1000 on are for trials"),
        ("confirm = 2", "confirm = 2\nseed = 3", "search.seed: 3; give a number from 1000 on"),
        ("confirm = 2", "confirm = -1", "search.confirm: -1; give a number from 0 on"),
        ("confirm = 2", "confirm = 90", "search.confirm: 90; give at most the number of search.trials, "),
        ("[search.ranges]", "[search.range]", "search: no key 'range'"),
        ("seeds = 2", 'seeds = 2\nrepeats = "field"', "repeats: field repeats this study; name another"),
        ("seeds = 2", 'seeds = 2\nrepeats = "feld"', "repeats: no study 'feld'"),
    ],
    "again": [
        ('"field"', '"field"\noptimizers = ["adamw", "adamw"]', "optimizers: adamw, adamw: it names one twice"),
        ('"field"', '"field"\noptimizers = ["adamx"]', "optimizers: no optimizer 'adamx'"),
        ('"field"', '"field"\noptimizers = [1]', "optimizers: no optimizer '1'"),
        ("seed = 2000", "seed = 2000\n[search.ranges]\nb9 = [0.9, 0.99]", "search.ranges.b9: no setting has it"),
    ],
}


@pytest.mark.parametrize(
    ("name", "old", "new", "message"), [(name, *mistake) for name, found in MISTAKES.items() for mistake in found]
)
def test_a_mistake_in_the_file(
    bench: Any, folder: Path, tiny: Path, name: str, old: str, new: str, message: str
) -> None:
    file = folder / f"{name}.toml"
    text = STUDIES[name].replace(old, new, 1)
    assert text != STUDIES[name]
    file.write_text(text, encoding="utf-8")
    err = bench.refused("study", file, "--script", tiny, "--out", folder / "out")
    assert str(file) in err
    assert message in err
    assert not list((folder / "out").rglob("config.json"))


def test_two_studies_of_one_name(bench: Any, folder: Path) -> None:
    (folder / "vit-25.toml").write_text(FIRST, encoding="utf-8")
    for names in (["vit-25", folder / "vit-25.toml"], [folder / "vit-25.toml", "vit-50"]):
        assert "vit-25.toml has the same name" in bench.refused("study", *names, "--out", folder / "out")
