"""The evidence runner at tiny size on the CPU: the same code as on a GPU but for the capture."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch._subclasses import FakeTensorMode

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from evidence import compare, data, english, models, optimizers, problems, training
from evidence.__main__ import Runner
from evidence.jobs import Job, compact, read, store
from evidence.pool import Place, Pool
from evidence.studies import STUDIES, TUNING_SEED, Entry, Follow, Start, Study, Variant, next_rate
from evidence.training import run

OPTIONS = {
    "vit": {"batch_size": 8, "width": 16, "layers": 1, "heads": 2},
    "resnet34": {"batch_size": 8, "width": 4, "depths": [1, 1, 1, 1]},
    "mae": {"batch_size": 8, "width": 16, "layers": 1, "heads": 2},
    "bert": {"batch_size": 4, "width": 16, "layers": 1, "heads": 2, "length": 64},
    "glue": {"task": "sst2", "batch_size": 8, "width": 16, "layers": 1, "heads": 2, "length": 64},
    "gpt": {"batch_size": 4, "width": 16, "layers": 1, "heads": 2, "context": 16},
    "lstm": {"batch_size": 2, "scale": "small"},
    "cora": {"layers": 2, "channels": 16},
    "convnext": {"batch_size": 8, "width": 8, "depths": [1, 1]},
    "harness": {
        "workload": "transformer-xl",
        "scale": "smoke",
        "batch_size": 4,
        "schedule": "cosine",
        "warmup": 0.1,
        "validation": "valid_perplexity",
    },
}
SETTINGS = {
    "adan": {"lr": 1e-2, "betas": [0.9, 0.92, 0.99], "weight_decay": 0.02},
    "adamw": {"lr": 3e-3, "weight_decay": 0.02},
    "adam": {"lr": 3e-3},
    "sgd": {"lr": 0.1, "weight_decay": 5e-4, "nesterov": True},
    "lamb": {"lr": 1e-2, "weight_decay": 0.02},
    "adabelief": {"lr": 3e-3, "eps": 1e-12},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """64 images of noise whose brightness tells their class, this file, its English, and sentences of two words."""
    folder = tmp_path_factory.mktemp("cache")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        labels = rng.integers(0, 10, 64)
        images = np.clip(rng.integers(0, 20, (64, 3, 32, 32)) + 25 * labels[:, None, None, None], 0, 255)
        np.save(folder / f"cifar-{split}-images.npy", images.astype(np.uint8))
        np.save(folder / f"cifar-{split}-labels.npy", labels)
    text = np.frombuffer(Path(__file__).read_bytes(), dtype=np.uint8)
    for split in data.SPLITS:
        np.save(folder / f"python-{split}.npy", text)
    (folder / "data" / "ptb").mkdir(parents=True)
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        sentence = f"the {split} of the words is one of the words of the {split}\n"
        (folder / "data" / "ptb" / f"ptb.{split}.txt").write_text(sentence * lines)
    _graph(folder / "data" / "graphs" / "cora", rng)
    _glue(folder / "data" / "glue", rng)
    english.prepare(folder / "data", folder, [Path(__file__).parent], processes=1)
    for split in ("valid", "test"):  # so few files leave them empty
        shutil.copy(folder / "english-train.npy", folder / f"english-{split}.npy")
    return folder


def _glue(folder, rng):
    """CoLA and SST-2 in the layout of their files; the second word of a sentence is its answer."""
    for task, splits in (("CoLA", ("train", "dev")), ("SST-2", ("train", "dev", "test"))):
        (folder / task).mkdir(parents=True)
        for split in splits:
            lines = []
            for label in rng.integers(0, 2, 64):
                sentence = f"a {('test', 'seed')[label]} that {split} runs"
                lines.append(f"x\t{label}\t\t{sentence}" if task == "CoLA" else f"{sentence}\t{label}")
            (folder / task / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def _graph(folder, rng):
    """Sixty nodes of three classes, the words of each class its own, in the layout of Cora."""
    folder.mkdir(parents=True)
    labels = rng.integers(0, 3, 60)
    splits = ["train"] * 30 + ["valid"] * 10 + ["test"] * 20
    rows = [f"{i},{label},{split}" for i, (label, split) in enumerate(zip(labels, splits, strict=True))]
    (folder / "nodes.csv").write_text("\n".join(["node,label,split", *rows]))
    edges = [f"{i},{(i + 7) % 60}" for i in range(60)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]))
    words = {"data": np.ones(60), "indices": labels, "indptr": np.arange(61), "shape": np.array([60, 3])}
    np.savez(folder / "features.npz", **words)


def job(problem="vit", optimizer="adan", steps=12, **changes):
    values = {"seed": 0, "tuning": False, "evaluations": 2, **changes}
    return Job("test", problem, OPTIONS[problem], optimizer, SETTINGS[optimizer], steps, "steps", **values)


@pytest.mark.parametrize("problem", OPTIONS)
def test_every_problem_trains(problem, cache):
    record = run(job(problem, steps=30), "cpu", cache)
    first, last = (point["train_loss"] for point in record["curve"])
    assert last < first
    assert record["status"] == "finished"
    assert record["mode"] == "eager"
    assert [point["step"] for point in record["curve"]] == [15, 30]


@pytest.mark.parametrize("problem", sorted(OPTIONS.keys() - {"harness"}))
def test_no_loss_reads_a_value_or_has_a_shape_that_depends_on_one(problem, cache):
    """What a CUDA graph needs; tensors without values show it on a CPU."""
    built = problems.build(problem, OPTIONS[problem], problems.Setup(0, False, "cpu", cache))
    built.begin_epoch(0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert built.loss(torch.zeros(1, dtype=torch.int64)).shape == ()


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_every_optimizer_trains_and_repeats(optimizer, cache):
    first, again = (run(job(optimizer=optimizer, steps=20), "cpu", cache) for _ in range(2))
    assert first["final"] == again["final"]
    assert first["curve"][1]["train_loss"] < first["curve"][0]["train_loss"]


def test_a_mixture_trains_with_every_expert_at_work(cache):
    mixed = replace(job("gpt", steps=40), options={**OPTIONS["gpt"], "experts": 4})
    record = run(mixed, "cpu", cache)
    dense = run(job("gpt", steps=40), "cpu", cache)
    assert record["curve"][-1]["train_loss"] < record["curve"][0]["train_loss"]
    assert record["parameters"] - dense["parameters"] == 4 * (2 * 16 * 64 + 16) - (2 * 16 * 64 + 64 + 16)


def test_two_experts_share_a_token_and_an_even_router_has_balance_one():
    torch.manual_seed(0)
    experts = models.Experts(8, 4)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        shares = experts.router(x).softmax(-1)
        expected = torch.zeros_like(x)
        for place in np.ndindex(2, 5):
            best, chosen = shares[place].topk(2)
            for weight, e in zip(best / best.sum(), chosen, strict=True):
                expected[place] += weight * (torch.nn.functional.gelu(x[place] @ experts.up[e]) @ experts.down[e])
        assert torch.allclose(experts(x), expected, atol=1e-6)
        experts.router.weight.zero_()
        experts(x)
    assert experts.balance == pytest.approx(1.0)


def test_a_node_weighs_its_neighbours_by_a_softmax():
    torch.manual_seed(0)
    block = models.GraphBlock(4).eval()
    x, neighbours = torch.randn(3, 4), torch.tensor([[1, 2], [0, 0]])
    with torch.no_grad():
        y = torch.relu(block.norm(x))
        messages = y[1:] + 1e-7
        aggregate = torch.zeros(3, 4)
        aggregate[0] = (messages.softmax(0) * messages).sum(0)
        assert torch.allclose(block(x, *neighbours), x + block.mlp(y + aggregate), atol=1e-6)


def test_a_masked_autoencoder_is_judged_by_the_patches_that_it_does_not_see():
    torch.manual_seed(0)
    model = models.MAE(models.ViT(16, 1, 2), 8, 1, 2)
    images, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 64)
    drawn = []
    model.head.register_forward_hook(lambda module, inputs, output: drawn.append(output))
    with torch.no_grad():
        found = model(images, noise)
        errors = []
        for i, places in enumerate(noise.argsort(1)):
            for place in places[16:]:
                y, x = divmod(place.item(), 8)
                patch = images[i, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].flatten()
                normal = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
                errors.append(((drawn[0][i, place] - normal) ** 2).mean())
        assert found == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)
        hidden = noise.argsort(1)[0, -1].item()  # what is not shown changes the target alone
        y, x = divmod(hidden, 8)
        images[0, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 1
        model(images, noise)
        assert torch.equal(drawn[0], drawn[1])


def test_masks_are_bert_s():
    tokens = torch.randint(5, english.VOCABULARY, (2_000, 128), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = english.START
    seen, places, right = problems.masked(tokens, torch.Generator().manual_seed(1))
    assert places.shape == (2_000, 19)
    assert all(len(set(row)) == 19 for row in places.tolist())
    assert torch.equal(right, tokens.gather(1, places))
    assert torch.equal(seen[:, 0], tokens[:, 0])
    untouched = torch.ones_like(tokens, dtype=torch.bool).scatter(1, places, False)
    assert torch.equal(seen[untouched], tokens[untouched])
    said = seen.gather(1, places)
    assert (said == english.MASK).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (said == right).float().mean() == pytest.approx(0.1, abs=0.01)


def test_padding_does_not_change_what_bert_says():
    torch.manual_seed(0)
    model = models.Classifier(models.BERT(16, 2, 2, 32, 50), 2).eval()
    short = torch.randint(5, 50, (3, 8))
    with torch.no_grad():
        long = torch.nn.functional.pad(short, (0, 12))
        assert torch.allclose(model(short), model(long), atol=1e-6)


def test_english_is_prose_once_and_no_code(tmp_path):
    folder, cache = tmp_path / "package", tmp_path / "cache"
    folder.mkdir(), cache.mkdir()
    words = "this sentence has more than six words"
    (folder / "a.py").write_text(
        f'"""{words} in a docstring.\n\n{words} twice."""\n\n# {words}\n# of a comment\nx = {{1: [2], 3: "[4]"}}\n'
    )
    (folder / "b.py").write_text(
        f'def f():\n    """{words} twice.\n\n    >>> f(1, 2) == {{3: 4, 5: 6}} | {{}}\n    """\n'
    )
    (folder / "c.md").write_text(f"# title\n\n{words} in a page.\n\n| 1 | 2 | 3 | 4 | 5 | 6 |\n")
    (folder / "d.json").write_text(words)
    facts = english.prepare(tmp_path, cache, [folder], processes=1)
    tokens = np.concatenate([np.load(cache / f"english-{split}.npy") for split in data.SPLITS])
    shown = Tokenizer.from_file(str(cache / "english-vocabulary.json")).decode(tokens.tolist())
    counts = {words: 4, "docstring": 1, "twice": 1, "of a comment": 1, "page": 1, "title": 0, "4": 0}
    assert {part: shown.count(part) for part in counts} == counts
    assert "in 3 files" in facts
    assert "no GLUE" in facts


def test_trials_on_cola_hold_out_training_sentences(cache):
    options = {**OPTIONS["glue"], "task": "cola"}
    for tuning, note in ((True, "56 sentences to train, 8 held out"), (False, "64 sentences to train, 64 held out")):
        problem = problems.build("glue", options, problems.Setup(0, tuning, "cpu", cache))
        assert note in problem.note
        assert problem.metric == "matthews"


@pytest.mark.parametrize(("before", "after"), [("mae", "vit"), ("bert", "glue")])
def test_a_run_starts_from_the_weights_of_another(before, after, cache):
    first = job(before, steps=4)
    run(first, "cpu", cache)
    left = torch.load(cache / "weights" / f"{first.key}.pt", weights_only=True)
    options = {**OPTIONS[after], "start": first.key}
    torch.manual_seed(5)
    model = problems.build(after, options, problems.Setup(0, False, "cpu", cache)).model
    for name, value in getattr(model, "encoder", model).state_dict().items():
        assert torch.equal(value, left[name]) == (not name.startswith("head.weight"))
    assert run(replace(job(after, steps=4), options=options), "cpu", cache)["status"] == "finished"
    with pytest.raises(FileNotFoundError, match=r"start 123: .*make the run with that key again"):
        problems.build(after, {**options, "start": "123"}, problems.Setup(0, False, "cpu", cache))


def test_a_trial_leaves_no_weights(cache):
    trial = job("mae", steps=2, seed=TUNING_SEED, tuning=True)
    run(trial, "cpu", cache)
    assert not (cache / "weights" / f"{trial.key}.pt").exists()


def test_the_seed_decides(cache):
    assert run(job(seed=1), "cpu", cache)["final"] != run(job(), "cpu", cache)["final"]


def test_tuning_looks_at_held_out_training_images(cache):
    setup = problems.Setup(0, True, "cpu", cache)
    tuning, reported = (
        problems.build("vit", OPTIONS["vit"], replace(setup, tuning=tuning)) for tuning in (True, False)
    )
    assert tuning.per_epoch == 4
    assert reported.per_epoch == 8
    assert "of the training split" in tuning.note


def test_the_lstm_is_judged_as_the_harness_judges_it(cache, monkeypatch):
    setup = problems.Setup(0, False, "cpu", cache)
    tasks = []
    build = problems._task
    monkeypatch.setattr(problems, "_task", lambda *values: tasks.append(build(*values)) or tasks[-1])
    for tuning, name in ((False, "perplexity"), (True, "valid_perplexity")):
        problem = problems.build("lstm", OPTIONS["lstm"], replace(setup, tuning=tuning))
        problem.model.eval()
        with torch.no_grad():
            assert problem.evaluate()["perplexity"] == pytest.approx(tasks[-1].evaluate(problem.model)[name])


def test_tuning_looks_at_a_workload_s_validation_split(cache):
    trial, reported = (run(job("harness", steps=2, tuning=tuning), "cpu", cache)["final"] for tuning in (True, False))
    assert trial["perplexity"] == trial["valid_perplexity"]
    assert reported["perplexity"] != reported["valid_perplexity"]


def test_a_stopped_run_of_ppo_goes_on_where_it_was(cache, monkeypatch):
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("mujoco")
    options = {"workload": "ppo-hopper", "scale": "smoke", "batch_size": 64, "schedule": "linear", "warmup": 0.0}
    asked = Job("test", "harness", options, "adan", {"lr": 3e-4}, 200, "steps", 0, False, 4, "cpu")
    whole = run(asked, "cpu", cache)
    evaluate, calls = training.Trainer.evaluate, []

    def stops(self):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(self)

    monkeypatch.setattr(training.Trainer, "evaluate", stops)
    with pytest.raises(KeyboardInterrupt):
        run(asked, "cpu", cache)
    monkeypatch.setattr(training.Trainer, "evaluate", evaluate)
    again = run(asked, "cpu", cache)
    assert again["final"] == whole["final"]
    assert [point["step"] for point in again["curve"]] == [50, 100, 150, 200]
    assert not list((cache / "checkpoints").iterdir())


def test_a_run_whose_loss_is_not_finite_has_diverged(cache):
    wild = replace(job(optimizer="sgd", steps=40), settings={"lr": 1e9})
    assert run(wild, "cpu", cache)["status"] == "diverged"


def test_learning_rate_follows_the_schedule(cache):
    from evidence.training import Trainer

    trainer = Trainer(job(steps=20), "cpu", cache)
    trainer.problem.begin_epoch(0)
    seen = []
    for _ in range(20):
        trainer.update()
        seen.append(trainer.lr.item())
    assert seen[0] == pytest.approx(1e-2)  # the warm-up is one step
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 1e-4


def test_augmentation_moves_pixels_and_makes_none():
    torch.manual_seed(0)
    images = torch.arange(1.0, 3 * 8 * 8 + 1).view(1, 3, 8, 8).repeat(50, 1, 1, 1)
    out = problems.augmented(images, shift=2, cutout=0)
    for image in out:
        shown = image[image > 0]
        assert len(shown.unique()) == len(shown)  # every pixel at most once
        assert len(shown) >= 3 * 6 * 6
        steps = (image[0, 4, 2:6].diff()).tolist()
        assert steps in ([1.0] * 3, [-1.0] * 3)
    assert {tuple(image[0, 4, 2:6].diff().tolist()) for image in out} == {(1.0,) * 3, (-1.0,) * 3}


def test_cutout_is_a_square():
    torch.manual_seed(0)
    out = problems.augmented(torch.ones(200, 3, 16, 16), shift=0, cutout=4)
    removed = (out[:, 0] == 0).sum((1, 2))
    assert removed.max() == 16
    assert removed.min() >= 4
    assert torch.equal(out[:, 0], out[:, 2])


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_the_learning_rate_is_read_where_it_lies(optimizer):
    model, lr = torch.nn.Linear(2, 2), torch.tensor(1.0)
    settings = {key: value for key, value in SETTINGS[optimizer].items() if key != "lr"}
    built = optimizers.build(optimizer, model, settings, lr, decay_all=False)
    before = model.weight.detach().clone()
    for rate in (0.0, 1.0):
        lr.fill_(rate)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        built.step()
        assert torch.equal(model.weight, before) == (rate == 0.0)


def test_lamb_is_algorithm_2():
    weight = torch.nn.Linear(3, 2, bias=False)
    theta = weight.weight.detach().double().clone()
    lr, decay, eps = torch.tensor(0.1), 0.3, 1e-6
    optimizer = optimizers.build("lamb", weight, {"betas": [0.8, 0.9], "weight_decay": decay}, lr, True)
    m = v = torch.zeros_like(theta)
    for t in range(1, 4):
        grad = torch.randn(2, 3, generator=torch.Generator().manual_seed(t))
        weight.weight.grad = grad
        optimizer.step()
        g = grad.double()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        r = (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)).sqrt() + eps) + decay * theta
        theta = theta - 0.1 * theta.norm() / r.norm() * r
    assert torch.allclose(weight.weight.double(), theta, rtol=1e-5, atol=1e-7)


def test_adabelief_is_algorithm_2():
    weight = torch.nn.Linear(3, 2, bias=False)
    theta = weight.weight.detach().double().clone()
    lr, decay, eps = torch.tensor(0.1), 0.3, 1e-3
    settings = {"betas": [0.8, 0.9], "eps": eps, "weight_decay": decay}
    optimizer = optimizers.build("adabelief", weight, settings, lr, True)
    m = s = torch.zeros_like(theta)
    for t in range(1, 4):
        grad = torch.randn(2, 3, generator=torch.Generator().manual_seed(t))
        weight.weight.grad = grad
        optimizer.step()
        g = grad.double()
        m = 0.8 * m + 0.2 * g
        s = 0.9 * s + 0.1 * (g - m) ** 2 + eps
        theta = theta - 0.1 * ((m / (1 - 0.8**t)) / ((s / (1 - 0.9**t)).sqrt() + eps) + decay * theta)
    assert torch.allclose(weight.weight.double(), theta, rtol=1e-5, atol=1e-7)


# Studies

ENTRIES = tuple(
    Entry(name, SETTINGS[name]["lr"], {"weight_decay": 0.0}, ({"weight_decay": 0.1}, {"weight_decay": 0.2}))
    for name in ("adan", "adamw")
)
STUDY = Study("tiny", "vit", OPTIONS["vit"], 4, "steps", ENTRIES, seeds=(0, 1), evaluations=1)
AFTER = Follow("after", STUDY, (Variant("adan", {"state_format": "8bit"}, lr_factor=2.0),), seeds=(0,))


def pretend(jobs, best_lr=2e-2):
    """Records in which the learning rate nearest to `best_lr` and the larger decay are best."""
    return {
        job.key: {
            "status": "finished",
            "metric": "accuracy",
            "higher_is_better": True,
            "final": {"accuracy": -abs(np.log(job.settings["lr"] / best_lr)) + job.settings["weight_decay"]},
        }
        for job in jobs
    }


def test_every_optimizer_gets_the_same_trials_before_the_seeds():
    records, rounds = {}, []
    while jobs := list(STUDY.jobs(records)):
        rounds.append(jobs)
        records |= pretend(jobs)
    counts = {name: sum(j.optimizer == name and j.tuning for r in rounds for j in r) for name in ("adan", "adamw")}
    assert counts == {"adan": 7, "adamw": 7}
    assert all(job.seed == TUNING_SEED for jobs in rounds[:-1] for job in jobs)
    reported = rounds[-1]
    assert [job.seed for job in reported] == [0, 0, 1, 1]
    assert all(job.settings["weight_decay"] == 0.2 for job in reported)
    assert reported[0].settings["lr"] == 2e-2
    assert len({job.key for jobs in rounds for job in jobs}) == 2 * 7 + 4


def test_no_seed_begins_while_an_optimizer_has_trials_left():
    records = {}
    alone = replace(STUDY, entries=ENTRIES[:1])
    while jobs := [job for job in alone.jobs(records) if job.tuning]:
        records |= pretend(jobs)
    assert STUDY.best("adan", records) is not None
    assert {(job.optimizer, job.tuning) for job in STUDY.jobs(records)} == {("adamw", True)}
    assert list(AFTER.jobs(records)) == []


def test_optimizers_take_turns_in_trials():
    assert [job.optimizer for job in STUDY.jobs({})] == ["adan", "adamw"] * 4


def test_four_rates_can_be_all_of_tuning():
    study = replace(STUDY, rates_only=True)
    trials = list(study.jobs({}))
    assert len(trials) == 8
    assert {job.settings["lr"] for job in study.jobs(pretend(trials)) if job.optimizer == "adan"} == {2e-2}


def test_a_following_study_waits_for_the_first():
    records = {}
    assert list(AFTER.jobs(records)) == []
    while jobs := list(STUDY.jobs(records)):
        records |= pretend(jobs)
    (only,) = AFTER.jobs(records)
    assert only.settings["state_format"] == "8bit"
    assert only.settings["lr"] == 4e-2


@pytest.mark.parametrize("shared", [None, "adamw"])
def test_fine_tuning_waits_for_pre_training_and_names_its_weights(shared):
    tuned = replace(STUDY, name="tuned", length=3, seeds=(0, 1, 2), start=Start(STUDY, shared))
    records = {}
    while jobs := list(STUDY.jobs(records)):
        assert list(tuned.jobs(records)) == []
        records |= pretend(jobs)
    keys = {(job.optimizer, job.seed): job.key for job in STUDY.reported(records)}
    while jobs := list(tuned.jobs(records)):
        for made in jobs:
            seed = 0 if shared or made.seed not in STUDY.seeds else made.seed
            assert made.options["start"] == keys[shared or made.optimizer, seed]
        records |= pretend(jobs)
    own = Follow("own", tuned, (Variant("adan"),), start=Start(STUDY))
    assert [job.options["start"] for job in own.reported(records)] == [keys["adan", seed] for seed in (0, 1, 0)]
    assert [group.n for group in compare.compared(tuned, {k: {**r, "seed": 0} for k, r in records.items()})] == [3, 3]


def test_the_next_rate_goes_beyond_an_end_or_between():
    assert next_rate([(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]) == 0.5
    assert next_rate([(1.0, 2.0), (4.0, 3.0), (16.0, 1.0)]) == 2.0


def test_the_studies_are_sound():
    assert len(STUDIES) == len({study.name for study in STUDIES.values()})
    for study in STUDIES.values():
        for first in study.jobs({}):
            assert first.tuning
            json.dumps(dict(first.settings))
            model = torch.nn.Linear(2, 2)
            settings = {key: value for key, value in first.settings.items() if key != "lr"}
            optimizers.build(first.optimizer, model, settings, torch.tensor(first.settings["lr"]), True)


# The pool


def test_a_study_runs_resumes_and_keeps_its_deadline(cache, tmp_path):
    out = tmp_path / "runs.jsonl"
    early = Runner([STUDY], out, {}, deadline=0)
    pool = Pool({"gpu": 2}, Place(cache, gpu="cpu"))
    try:
        early.run(pool)
        assert not out.exists()
        Runner([STUDY, AFTER], out, {"commit": "abc"}, deadline=600).run(pool)
        records = read(out)
        assert len(records) == 2 * 7 + 4 + 1
        assert all(r["status"] == "finished" and r["environment"]["commit"] == "abc" for r in records.values())
        size = out.stat().st_size
        Runner([STUDY, AFTER], out, {}, deadline=600).run(pool)
        assert out.stat().st_size == size
    finally:
        pool.close()


def test_a_study_fine_tunes_what_another_pre_trained(cache, tmp_path):
    out = tmp_path / "runs.jsonl"
    entry = ENTRIES[:1]
    before = Study("before", "mae", OPTIONS["mae"], 4, "steps", entry, (0,), rates_only=True, evaluations=1)
    after = replace(before, name="after", problem="vit", start=Start(before))
    pool = Pool({"gpu": 1}, Place(cache, gpu="cpu"))
    try:
        Runner([after, before], out, {}, deadline=600).run(pool)
    finally:
        pool.close()
    records = read(out)
    assert all(record["status"] == "finished" for record in records.values())
    assert [record["job"]["study"] for record in records.values()] == ["before"] * 5 + ["after"] * 5
    (pre_trained,) = before.reported(records)
    assert {record["job"]["options"].get("start") for record in records.values()} == {None, pre_trained.key}


def test_a_run_that_raises_is_recorded_and_costs_only_itself(cache, tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    wrong = replace(STUDY, entries=(replace(ENTRIES[0], settings={"betas": [2, 2, 2]}),))
    pool = Pool({"gpu": 1}, Place(cache, gpu="cpu"))
    try:
        Runner([wrong], out, {}, deadline=600).run(pool)
    finally:
        pool.close()
    assert {record["status"] for record in read(out).values()} == {"failed"}
    assert "betas" in capsys.readouterr().out


# The records and the page


def test_a_stored_record_tells_of_no_folder_and_still_resumes(cache, tmp_path):
    full = tmp_path / "runs.jsonl"
    record = run(job(steps=30, evaluations=2), "cpu", cache)
    command = "python3 /a/b.py run vit-25 --cache /c --out /c/r.jsonl --site /s --commit abc --gpu-workers 5"
    environment = {"commit": "abc", "command": command, "load_average": [1, 2, 3], "workers": 5}
    full.write_text(json.dumps({**record, "environment": environment}) + "\n")
    target = tmp_path / "stored.jsonl"
    assert store(target, [full]) == 1
    assert store(target, [full, target]) == 1
    (stored,) = read(target).values()
    assert stored["environment"] == {"command": "python -m evidence run vit-25 --gpu-workers 5", "workers": 5}
    assert (stored["key"], stored["commit"], stored["seed"]) == (record["key"], "abc", 0)
    assert stored["curve"]["step"] == [15, 30]
    assert stored["final"]["accuracy"] == pytest.approx(record["final"]["accuracy"], rel=1e-4)


def test_a_long_curve_is_thinned_from_its_first_point_to_its_last():
    record = {
        "key": "k",
        "job": {"seed": 0},
        "final": {},
        "best": None,
        "curve": [{"step": i} for i in range(1_000)],
        "environment": {"commit": "c", "command": "python x run"},
    }
    steps = compact(record)["curve"]["step"]
    assert len(steps) == 60
    assert (steps[0], steps[-1]) == (0, 999)
