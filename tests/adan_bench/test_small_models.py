"""The small models of CIFAR-10, Python source, English and Cora: sizes, what they hand on, what trials hold out."""

from __future__ import annotations

import json
import lzma
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.learning import prepared, settings, trainer
from torch import Tensor

from adan_bench.data import installed
from adan_bench.data.coco import splits
from adan_bench.data.graphs import Citations, citations
from adan_bench.data.installed import MASK, SPECIAL, START, as_bytes, english, prose
from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore
from adan_bench.task import Context
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads.images import SMALL_VIT
from adan_bench.workloads.language import ENGLISH, KINDS, TextSizes
from adan_bench.workloads.parts.english import examples, masked
from adan_bench.workloads.parts.transformer import (
    BERT,
    GPT,
    Experts,
    MaskedAutoencoder,
    SentenceClassifier,
    ViT,
)
from adan_bench.workloads.registry import get_workload

ROOT = Path(__file__).parents[2]


def test_a_position_of_the_gpt_sees_nothing_after_it() -> None:
    torch.manual_seed(0)
    model = GPT(TextSizes(2, 32, 2, 16, experts=4)).eval()
    tokens = torch.randint(256, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = 0
    first, second = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(first[:, :9], second[:, :9])
    assert not torch.allclose(first[:, 9:], second[:, 9:])


def test_experts_are_two_of_all_for_each_token() -> None:
    """Against a loop over tokens; a router that prefers none has a loss of 1."""
    torch.manual_seed(0)
    experts = Experts(8, 4)
    torch.nn.init.normal_(experts.router.weight)
    x = torch.randn(2, 5, 8)
    result, balance = experts(x)
    for row, got in zip(x.flatten(0, 1), result.flatten(0, 1), strict=True):
        shares = (experts.router.weight @ row).softmax(0)
        best = shares.topk(2).indices.tolist()
        expected = sum(
            shares[i] / shares[best].sum() * (torch.nn.functional.gelu(row @ experts.up[i]) @ experts.down[i])
            for i in best
        )
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)
    assert balance.item() > 1.001
    torch.nn.init.zeros_(experts.router.weight)
    assert experts(x)[1].item() == pytest.approx(1)


def test_the_autoencoder_draws_what_it_does_not_see() -> None:
    """The loss against a loop over hidden patches; what is hidden changes the target alone."""
    torch.manual_seed(0)
    model = MaskedAutoencoder(ViT(replace(SMALL_VIT, width=16, depths=(1,), head=8), 32, 3, 0), 8, 1, heads=2)
    drawn: list[Tensor] = []
    model.head.register_forward_hook(lambda module, inputs, output: drawn.append(output))
    images, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 64)
    with torch.no_grad():
        loss = model(images, noise).item()
        errors = []
        for i, order in enumerate(noise.argsort(1)):
            for place in order[16:].tolist():
                y, x = divmod(place, 8)
                patch = images[i, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].flatten()
                normal = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
                errors.append((drawn[0][i, place] - normal).square().mean())
        assert loss == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)
        y, x = divmod(int(noise.argsort(1)[0, -1]), 8)
        images[0, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 1
        model(images, noise)
    assert torch.equal(drawn[0], drawn[1])


def test_padding_does_not_change_what_the_bert_says() -> None:
    torch.manual_seed(0)
    model = SentenceClassifier(BERT(replace(ENGLISH, width=16, layers=2, heads=2, vocabulary=50)), 2).eval()
    short = torch.randint(5, 50, (3, 8))
    with torch.no_grad():
        torch.testing.assert_close(model(short), model(torch.nn.functional.pad(short, (0, 12))))


def test_the_encoder_of_the_autoencoder_is_fine_tuned(tmp_path: Path) -> None:
    run(settings("cifar-mae", steps=2, keep_weights=True), RunStore(tmp_path / "first"))
    weights = torch.load(tmp_path / "first" / "weights.pt", weights_only=True)
    model = trainer("cifar-vit", init=tmp_path / "first").model
    for name, value in model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(value, weights[f"encoder.{name}"]), name
    assert not any(name.startswith("encoder.head") for name in weights)
    torch.save({f"encoder.{name}": value[:1] for name, value in model.state_dict().items()}, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match=r"not the weights of this ViT \(.+\); name a run of cifar-mae or cifar-vit"):
        trainer("cifar-vit", init=tmp_path)


def test_the_bert_is_handed_on_with_its_tokens(tmp_path: Path) -> None:
    run(settings("english-bert", steps=2, keep_weights=True), RunStore(tmp_path / "first"))
    weights = torch.load(tmp_path / "first" / "weights.pt", weights_only=True)
    found = trainer("english-cola", init=tmp_path / "first")
    assert all(torch.equal(value, weights[name]) for name, value in found.model.state_dict().items() if name in weights)
    assert "starts at random" not in found.task.note
    facts = tmp_path / "first" / "environment.json"
    facts.write_text(json.dumps({"data": "another text"}), encoding="utf-8")
    with pytest.raises(UsageError, match="its text has another tokenizer than this run's tokenizer of 1,000"):
        trainer("english-cola", init=tmp_path / "first")
    with pytest.raises(UsageError, match="no text 'french'; there are: english, debian"):
        get_workload("english-bert").task(training={"text": "french"})


def test_masked_pieces() -> None:
    """15% of a row's pieces are asked about, never its first; 80% of these are masked, 10% replaced, 10% stay."""
    task = get_workload("english-bert").task(batch_size=256)
    seen, places, right = prepared(task, 0, "cpu")
    assert (seen[:, 0] == START).all()
    assert places.shape == (256, round(0.15 * 63))
    assert places.min() >= 1
    assert all(len(set(row)) == len(row) for row in places.tolist())
    said = seen.gather(1, places)
    assert (said == MASK).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (said == right).float().mean() == pytest.approx(0.1, abs=0.03)
    original = seen.scatter(1, places, right)
    noise, fate, other = task.batches(0)[1]
    assert torch.equal(masked(original, noise, fate, other)[0], seen)


# What trials hold out


def test_trials_of_python_source_see_no_test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"# file {i}\n" + "x = 1\n" * 40 for i in range(60)]
    paths = [tmp_path / f"{i}.py" for i in range(60)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(installed, "library_files", lambda: [*paths, tmp_path / "nowhere.py"])
    installed.as_bytes.cache_clear()
    try:
        splits, note = installed.as_bytes(None, False)
        assert note.startswith("60 files of Python source")
        parts = {name: set(bytes(split.tolist()).decode().split("\0")) for name, split in splits.items()}
        assert sum(map(len, parts.values())) == 60
        assert set.union(*parts.values()) == set(texts)
        for tuning, name in ((False, "test"), (True, "valid")):
            task = get_workload("pycode-gpt-1m").task(batch_size=4, tuning=tuning)
            cells = [cell.cell_contents for cell in task.evaluate.__closure__ or ()]
            (rows,) = [cell for cell in cells if isinstance(cell, torch.Tensor)]
            assert all(bytes(row.tolist()) in bytes(splits[name].tolist()) for row in rows)
            seen = prepared(task, 0, "cpu")
            assert all(bytes(row.tolist()) in bytes(splits["train"].tolist()) for row in seen)
    finally:
        installed.as_bytes.cache_clear()


@pytest.mark.parametrize("name", ["english-bert", "bert-pretrain", "gpt2-code", "deepgcn", "cora-deepgcn", "glue-cola"])
def test_trials_are_judged_by_other_data(name: str) -> None:
    """The same model has another score in a trial."""
    config = settings(name)
    reported, trial = (Trainer(replace(config, role=role)).evaluate() for role in ("run", "tune"))
    metric = "loss" if "loss" in trial else get_workload(name).metric
    assert reported.keys() == trial.keys()
    assert reported[metric] != trial[metric] or name == "glue-cola"  # of an untrained one both are 0
    if name == "glue-cola":
        notes = [get_workload(name).task(tuning=tuning).note for tuning in (False, True)]
        assert ["1,200 to train, 240 held out" in notes[0], "1,050 to train, 150 held out" in notes[1]] == [True, True]


def test_trials_of_a_detector_hold_out_training_images() -> None:
    """Every sixth, and they are judged by the loss, which reported runs do not compute."""
    context = Context(0, 4)
    (train, test, _), (rest, apart, _) = (splits(replace(context, tuning=t), (32, 12, 4)) for t in (False, True))
    assert (apart.ids, sorted({*rest.ids, *apart.ids})) == ([1, 7], train.ids)
    assert len(test.ids) == 4
    config = settings("deformable-detr", batch_size=4)
    found = {role: Trainer(replace(config, role=role)) for role in ("run", "tune")}
    for role, names in (("run", set()), ("tune", {"loss"})):
        assert found[role].evaluate().keys() == {"box AP", "box AP50", "box AP75"} | names


def test_trials_of_sentences(tmp_path: Path) -> None:
    """CoLA's hold out every eighth of those that train; SST-2's look at the development split."""
    for folder, line in (("CoLA", "gj04\t1\t\t{}\n"), ("SST-2", "{}\t0\n")):
        (tmp_path / "glue" / folder).mkdir(parents=True)
        for split in ("train", "dev", "test"):
            text = "".join(line.format(f"{split} {i}") for i in range(16))
            (tmp_path / "glue" / folder / f"{split}.tsv").write_text(text, encoding="utf-8")
    for name, tuning, expected in (
        ("cola", False, {"dev"}),
        ("cola", True, {"train"}),
        ("sst2", False, {"test"}),
        ("sst2", True, {"dev"}),
    ):
        kind = next(kind for kind in KINDS if kind.name == name)
        train, tests, _ = examples(Context(0, 2, tmp_path, scale="small", tuning=tuning), kind)
        assert {text.split()[0] for text, _, _ in tests} == expected
        assert not {text for text, _, _ in tests} & {text for text, _, _ in train}
        assert len(train) == (14 if (name, tuning) == ("cola", True) else 16)


# The texts and the graph


def test_english_is_prose_without_copies() -> None:
    """A docstring, a comment and a page are prose where they have six words and few other signs."""
    text = "A paragraph of prose has six words, or more.\n\nToo short.\n\nx = f(1) + g(2) * h[3] % 4 and 5 more of it"
    assert prose(text) == ["A paragraph of prose has six words, or more."]
    seen: set[str] = set()
    assert installed.unseen(["a", "b", "a"], seen) == ["a", "b"]
    assert installed.unseen(["b", "c"], seen) == ["c"]
    smoke = english(Context(0, 4), 1_000)
    assert smoke.tokenizer.get_vocab_size() == 1_000
    assert [smoke.tokenizer.token_to_id(token) for token in SPECIAL] == [*range(len(SPECIAL))]
    words = smoke.tokenizer.decode(smoke.splits["train"][:2000].tolist()).split()
    assert {"the", "of", "is"} <= {*words}


def test_documentation_is_packed_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "pack_documentation.py"))
    tree = tmp_path / "tree"
    tree.mkdir()
    sentence = "The handbook of this program says how it is used."
    (tree / "page.html").write_text(f"<p>{sentence}</p><pre>not the code of it in the page</pre>", encoding="utf-8")
    (tree / "copy.txt").write_text(f"{sentence}\n\nAnd this is one more paragraph of the text.\n", encoding="utf-8")
    (tree / "code.c").write_text("the source of a program is no documentation of it\n", encoding="utf-8")
    paragraphs = [part for path in sorted(tree.iterdir()) for part in tool["english_of"](path)]
    assert paragraphs == [sentence, "And this is one more paragraph of the text.", sentence]
    documents = "\n\n".join(
        f"Document {i} of the text has {i} words in it.\nAnd another paragraph." for i in range(300)
    )
    (tmp_path / "debian.txt.xz").write_bytes(lzma.compress(documents.encode()))
    context = Context(0, 4, tmp_path, scale="small", training={"text": "debian"})
    found = english(context, 300)
    assert "Debian's documentation" in found.note
    assert all(len(split) for split in found.splits.values())
    splits, note = as_bytes(tmp_path / "debian.txt.xz", True)
    assert note.startswith("300 documents of Debian's documentation")
    joined = b"\0".join(bytes(split.tolist()) for split in splits.values()).decode()
    assert sorted(joined.split("\0")) == sorted(documents.split("\n\n"))
    task = get_workload("pycode-gpt-1m", "small").task(data=tmp_path, training={"text": "debian"})
    assert "300 documents of Debian's documentation" in task.note
    monkeypatch.setattr("adan_bench.workloads.parts.gpt.as_bytes", lambda path, whole: as_bytes(path, False))
    task = get_workload("pycode-gpt-1m", "small").task(data=tmp_path, training={"text": "both"})
    code, note = as_bytes(None, False)
    assert task.note.startswith(f"{note} and 300 documents of Debian's documentation")
    assert f"{len(code['train']) + len(splits['train']):,} to train" in task.note
    with pytest.raises(UsageError, match="no text 'latin'"):
        get_workload("pycode-gpt-1m").task(training={"text": "latin"})
    (tmp_path / "debian.txt.xz").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"debian.txt.xz: not a packed text .*; make it by tools/pack_docu"):
        english(context, 301)


def test_citations_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "graphs" / "cora"
    folder.mkdir(parents=True)
    (folder / "edges.csv").write_text("source,target\n0,1\n1,2\n", encoding="utf-8")
    (folder / "nodes.csv").write_text("node,label,split\n0,0,train\n1,1,valid\n2,0,test\n", encoding="utf-8")
    arrays = {"data": [1.0, 1.0, 1.0], "indices": [0, 1, 1], "indptr": [0, 2, 3, 3], "shape": [3, 2]}
    np.savez(folder / "features.npz", **{key: np.array(value) for key, value in arrays.items()})
    found = citations(Context(0, 1, tmp_path))
    assert isinstance(found, Citations)
    assert found.x.tolist() == [[0.5, 0.5], [0, 1], [0, 0]]
    assert found.edges.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]
    assert {name: nodes.tolist() for name, nodes in found.split.items()} == {"train": [0], "valid": [1], "test": [2]}
    (folder / "nodes.csv").write_text("node,label\n0,0\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"not a graph of edges.csv, nodes.csv and features.npz"):
        citations(Context(0, 1, tmp_path))
