"""The problems of the evidence runner at tiny size on the CPU: the same code as on a GPU but for the capture."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.evidence_data import OPTIONS, SETTINGS, job
from tokenizers import Tokenizer
from torch._subclasses import FakeTensorMode

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from evidence import data, documentation, english, gradients, models, optimizers, problems, training
from evidence.__main__ import main
from evidence.jobs import Job
from evidence.problems import language
from evidence.problems.images import augmented
from evidence.search import TUNING_SEED
from evidence.studies import LSTM_PUBLISHED, RESNET_PUBLISHED
from evidence.training import run

from adan_bench.data.batching import prepared


@pytest.mark.parametrize("problem", OPTIONS)
def test_every_problem_trains(problem, cache):
    steps = 12 if problem == "detr" else 30
    record = run(job(problem, steps=steps), "cpu", cache)
    first, last = (point["train_loss"] for point in record["curve"])
    assert last < first
    assert record["status"] == "finished"
    assert record["mode"] == "eager"
    assert [point["step"] for point in record["curve"]] == [steps // 2, steps]


@pytest.mark.parametrize("problem", sorted(OPTIONS.keys() - {"harness", "detr"}))
def test_no_loss_reads_a_value_or_has_a_shape_that_depends_on_one(problem, cache):
    """What a CUDA graph needs; tensors without values show it on a CPU."""
    built = problems.build(problem, OPTIONS[problem], problems.Setup(0, False, "cpu", cache))
    built.begin_epoch(0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert built.loss(torch.zeros(1, dtype=torch.int64)).shape == ()


@pytest.mark.parametrize("problem", ["vit", "resnet34", "convnext", "mae", "gpt", "bert"])
def test_a_loss_that_is_compiled_is_one_graph_and_the_same(problem, cache):
    built = problems.build(problem, OPTIONS[problem], problems.Setup(0, False, "cpu", cache))
    assert built.compiles
    built.begin_epoch(0)
    step, losses = torch.zeros(1, dtype=torch.int64), []
    torch.compiler.reset()
    for loss in (built.loss, torch.compile(built.loss, dynamic=False, fullgraph=True, backend="eager")):
        torch.manual_seed(0)
        losses.append(loss(step).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_every_optimizer_trains_and_repeats(optimizer, cache):
    first, again = (run(job(optimizer=optimizer, steps=20), "cpu", cache) for _ in range(2))
    assert first["final"] == again["final"]
    assert first["curve"][1]["train_loss"] < first["curve"][0]["train_loss"]


def command(*words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["evidence", *map(str, words)])
    main()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
def test_gradients_are_compared_on_one_batch_after_one_past(cache, tmp_path, monkeypatch):
    tiny = SimpleNamespace(name="tiny", job=lambda optimizer, settings, seed: job("transformer-xl", optimizer))
    monkeypatch.setattr(gradients, "CASES", ((tiny, "adam", {}, 3),))
    wrong = lambda loss, dynamic: lambda step: loss(step) * (1 + torch.is_autocast_enabled("cpu"))  # noqa: E731
    monkeypatch.setattr(torch, "compile", wrong)
    out = tmp_path / "gradients.jsonl"
    command("gradients", "--cache", cache, "--out", out, "--device", "cpu", monkeypatch=monkeypatch)
    (record,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert record["environment"]["packages"]["torch"] == torch.__version__
    assert record["distance"]["compiled"] < 1e-6  # with the same memory as the variant before
    assert 0 < record["distance"]["bf16"] < 0.1 < 0.9 < record["distance"]["compiled, bf16"] < 1.1
    assert len(record["worst"]["bf16"]) == gradients.WORST
    assert all(value > 0.9 for value, _ in record["worst"]["compiled, bf16"])


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


def test_a_node_weighs_its_neighbors_by_a_softmax():
    torch.manual_seed(0)
    block = models.GraphBlock(4).eval()
    x, neighbors = torch.randn(3, 4), torch.tensor([[1, 2], [0, 0]])
    with torch.no_grad():
        y = torch.relu(block.norm(x))
        messages = y[1:] + 1e-7
        aggregate = torch.zeros(3, 4)
        aggregate[0] = (messages.softmax(0) * messages).sum(0)
        assert torch.allclose(block(x, *neighbors), x + block.mlp(y + aggregate), atol=1e-6)


def test_a_masked_autoencoder_is_judged_by_the_patches_that_it_does_not_see():
    torch.manual_seed(0)
    model = models.MAE(models.ViT(16, 1, 2), 8, 1, 2)
    images, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 64)
    drawn = []
    model.head.register_forward_hook(lambda module, inputs, output: drawn.append(output))
    with torch.no_grad():
        loss = model(images, noise)
        errors = []
        for i, places in enumerate(noise.argsort(1)):
            for place in places[16:]:
                y, x = divmod(place.item(), 8)
                patch = images[i, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].flatten()
                normal = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
                errors.append(((drawn[0][i, place] - normal) ** 2).mean())
        assert loss == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)
        hidden = noise.argsort(1)[0, -1].item()  # what is not shown changes the target alone
        y, x = divmod(hidden, 8)
        images[0, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 1
        model(images, noise)
        assert torch.equal(drawn[0], drawn[1])


def test_masks_are_bert_s():
    tokens = torch.randint(5, english.VOCABULARY, (2_000, 128), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = english.START
    seen, places, right = language.masked(tokens, torch.Generator().manual_seed(1))
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
        f'"""{words} in a docstring.\n\n{words} twice."""\n\n# {words}\n# of a comment\nx = {{1: [2], 3: "[4]"}}\n',
        encoding="utf-8",
    )
    (folder / "b.py").write_text(
        f'def f():\n    """{words} twice.\n\n    >>> f(1, 2) == {{3: 4, 5: 6}} | {{}}\n    """\n', encoding="utf-8"
    )
    (folder / "c.md").write_text(f"# title\n\n{words} in a page.\n\n| 1 | 2 | 3 | 4 | 5 | 6 |\n", encoding="utf-8")
    (folder / "d.json").write_text(words, encoding="utf-8")
    facts = english.prepare("english", english.gather([folder], 1), tmp_path, cache, 1)
    tokens = np.concatenate([np.load(cache / f"english-{split}.npy") for split in data.SPLITS])
    shown = Tokenizer.from_file(str(cache / "english-vocabulary.json")).decode(tokens.tolist())
    counts = {words: 4, "docstring": 1, "twice": 1, "of a comment": 1, "page": 1, "title": 0, "4": 0}
    assert {part: shown.count(part) for part in counts} == counts
    assert "3 documents" in facts
    assert "no GLUE" in facts


def test_english_of_documentation_is_packed_and_read(tmp_path, monkeypatch, capsys):
    tree, target, cache = (tmp_path / name for name in ("tree", "data", "cache"))
    (tree / "wordnet").mkdir(parents=True), cache.mkdir()
    (tree / "page.html").write_text(
        "<head><title>the title of the page is left out</title></head><p>A page that has <b>words</b> of interest "
        "&amp; such.</p><pre>the code of the page is left out</pre><p>Une phrase qui parle des choses du monde</p>",
        encoding="utf-8",
    )
    (tree / "guide.txt.gz").write_bytes(gzip.compress(b"This guide is one of the guides.\n"))
    (tree / "broken.txt.gz").write_bytes(b"This is no archive of anything at all")
    (tree / "words.dict.dz").write_bytes(gzip.compress(b"Aa is\n  the first of the words.\nBb is the next of them.\n"))
    (tree / "wordnet" / "data.noun").write_text(
        "00001740 03 n 01 entity 0 | that which is one of the things\n", encoding="utf-8"
    )
    (tree / "again.rst").write_text("This guide is one of the guides.\n", encoding="utf-8")
    (tree / "code.c").write_text("the source of a program is no documentation of it\n", encoding="utf-8")
    words = ("pack-english", "--target", target, "--processes", 1, "--tree")
    command(*words, tree, monkeypatch=monkeypatch)
    assert capsys.readouterr().out == "163 bytes in 4 documents\n"
    with pytest.raises(SystemExit, match=r"--tree .*nowhere: no English documentation in it"):
        command(*words, tmp_path / "nowhere", monkeypatch=monkeypatch)  # and what was packed is still there
    paragraphs = [part for parts in documentation.unpack(target).values() for part in parts]
    assert sorted(paragraphs) == [
        "A page that has words of interest & such.",
        "Aa is the first of the words.",
        "Bb is the next of them.",
        "This guide is one of the guides.",
        "that which is one of the things",
    ]
    facts = data.prepare(target, cache, [], 1)
    assert facts["debian"].startswith("157 bytes, 4 documents")
    assert len(np.load(cache / "debian-train.npy")) > 30


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


def test_trials_of_detection_hold_out_training_photographs(cache):
    for tuning, note in ((True, "10 photographs"), (False, "12 photographs")):
        problem = problems.build("detr", OPTIONS["detr"], problems.Setup(0, tuning, "cpu", cache))
        assert note in problem.note
        assert ("2 held out of the training split" if tuning else "12 held out") in problem.note
        problem.model.eval()
        with torch.no_grad():
            metrics = problem.evaluate()
        assert metrics.keys() == {"box AP", "box AP50", "box AP75"} | ({"loss"} if tuning else set())
        assert (problem.metric, problem.higher_is_better) == (("loss", False) if tuning else ("box AP", True))


@pytest.mark.parametrize("optimizer", ["adan", "adamw"])
def test_slow_parameters_of_the_detector_learn_at_a_tenth_of_the_rate(optimizer, cache):
    """The first step of either optimizer moves every element by its rate, but for eps and decay."""
    trainer = training.Trainer(job("detr", optimizer, steps=4), "cpu", cache)
    parts = {name: p for name, p in trainer.problem.model.named_parameters() if name.endswith("bias")}
    before = {name: p.detach().clone() for name, p in parts.items()}
    trainer.update()
    moved = {name: (p.detach() - before[name]).abs().max().item() for name, p in parts.items()}
    fast, slow = ([v for name, v in moved.items() if ("sampling_offsets" in name) == is_slow] for is_slow in (0, 1))
    assert max(fast) == pytest.approx(trainer.lr.item(), rel=0.1)
    assert max(slow) == pytest.approx(0.1 * max(fast), rel=0.1)
    trainer.update()
    assert [g["lr"].item() / trainer.lr.item() for g in trainer.optimizer.param_groups] == pytest.approx([1, 0.1])


@pytest.mark.parametrize("name", ["lstm", "transformer-xl"])
def test_language_models_are_judged_as_the_harness_judges_them(name, cache, monkeypatch):
    setup = problems.Setup(0, False, "cpu", cache)
    tasks = []
    build = language.harness_task
    monkeypatch.setattr(
        language, "harness_task", lambda *values, **options: tasks.append(build(*values, **options)) or tasks[-1]
    )
    problem = problems.build(name, OPTIONS[name], setup)
    problem.model.eval()
    with torch.no_grad():
        assert problem.evaluate()["perplexity"] == pytest.approx(tasks[-1].evaluate(problem.model)["perplexity"])


def test_transformer_xl_takes_the_harness_s_steps(cache):
    """Its memory is empty where an epoch begins."""
    setup = problems.Setup(0, False, "cpu", cache)
    problem = problems.build("transformer-xl", OPTIONS["transformer-xl"], setup)
    task = language.harness_task(setup, "transformer-xl", "small", 2)
    task.model.load_state_dict(problem.model.state_dict())
    problem.model.eval(), task.model.eval()
    assert len(task.model.clusters) == 2
    for i in range(2 * problem.per_epoch + 1):
        expected = task.loss(task.model, prepared(task, i, "cpu")).item()
        assert problem.loss(torch.tensor([i])).item() == pytest.approx(expected, rel=1e-5)


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


@pytest.mark.parametrize(
    ("study", "rates"),
    [(LSTM_PUBLISHED, [1e-2] * 10 + [1e-3] * 5 + [1e-4] * 5), (RESNET_PUBLISHED, [1e-2] * 15 + [1e-3] * 5)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_published_schedules(study, rates, cache):
    options = {**study.options, **OPTIONS[study.problem]}
    trainer = training.Trainer(replace(job(study.problem, steps=20), options=options), "cpu", cache)
    assert trainer.rates.tolist() == pytest.approx(rates)


@pytest.mark.parametrize("fixed", [True, False])
def test_recurrent_weights_are_fixed_where_a_study_asks_for_it(fixed, cache):
    options = {**OPTIONS["lstm"], "fixed_recurrent": fixed}
    model = problems.build("lstm", options, problems.Setup(0, False, "cpu", cache)).model
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == ({"layers.0.weight_hh_l0"} if fixed else set())


def test_published_settings_of_the_resnet():
    settings = {entry.optimizer: {"lr": entry.lr, **entry.settings} for entry in RESNET_PUBLISHED.entries}
    assert settings["sgd"] == {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 5e-4}
    assert (settings["adamw"]["lr"], settings["adamw"]["weight_decay"]) == (1e-3, 1e-2)
    assert (settings["adan"]["lr"], settings["adan"]["weight_decay"]) == (1e-2, 0.02)


def test_augmentation_moves_pixels_and_makes_none():
    torch.manual_seed(0)
    images = torch.arange(1.0, 3 * 8 * 8 + 1).view(1, 3, 8, 8).repeat(50, 1, 1, 1)
    out = augmented(images, shift=2, cutout=0)
    for image in out:
        shown = image[image > 0]
        assert len(shown.unique()) == len(shown)  # every pixel at most once
        assert len(shown) >= 3 * 6 * 6
        steps = (image[0, 4, 2:6].diff()).tolist()
        assert steps in ([1.0] * 3, [-1.0] * 3)
    assert {tuple(image[0, 4, 2:6].diff().tolist()) for image in out} == {(1.0,) * 3, (-1.0,) * 3}


def test_cutout_is_a_square():
    torch.manual_seed(0)
    out = augmented(torch.ones(200, 3, 16, 16), shift=0, cutout=4)
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
