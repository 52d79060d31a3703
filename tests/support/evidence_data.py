"""What the tests of the evidence runner share: every problem at tiny size, and data for all of them."""

import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from evidence import data, english
from evidence.jobs import Job

from adan_bench.data.files import BCCD
from support.coco_folder import write_coco

TESTS = Path(__file__).parents[1] / "benchmarks"
OPTIONS = {
    "vit": {"batch_size": 8, "width": 16, "layers": 1, "heads": 2},
    "resnet34": {"batch_size": 8, "width": 4, "depths": [1, 1, 1, 1]},
    "mae": {"batch_size": 8, "width": 16, "layers": 1, "heads": 2},
    "bert": {"batch_size": 4, "width": 16, "layers": 1, "heads": 2, "length": 64},
    "glue": {"task": "sst2", "batch_size": 8, "width": 16, "layers": 1, "heads": 2, "length": 64},
    "gpt": {"batch_size": 4, "width": 16, "layers": 1, "heads": 2, "context": 16},
    "lstm": {"batch_size": 2, "scale": "small"},
    "transformer-xl": {"batch_size": 2},
    "cora": {"layers": 2, "channels": 16},
    "detr": {"batch_size": 4, "scale": "smoke", "size": [64, 64]},
    "convnext": {"batch_size": 8, "width": 8, "depths": [1, 1]},
    "harness": {
        "workload": "transformer-xl",
        "scale": "small",
        "batch_size": 2,
        "schedule": "cosine",
        "warmup": 0.1,
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


def write_cache(folder):
    """64 images of noise whose brightness tells their class, a file of tests, English, sentences of two words."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        labels = rng.integers(0, 10, 64)
        images = np.clip(rng.integers(0, 20, (64, 3, 32, 32)) + 25 * labels[:, None, None, None], 0, 255)
        np.save(folder / f"cifar-{split}-images.npy", images.astype(np.uint8))
        np.save(folder / f"cifar-{split}-labels.npy", labels)
    text = np.frombuffer((TESTS / "test_evidence.py").read_bytes(), dtype=np.uint8)
    for split in data.SPLITS:
        np.save(folder / f"python-{split}.npy", text)
    (folder / "data" / "ptb").mkdir(parents=True)
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        sentence = f"the {split} of the words is one of the words of the {split}\n"
        (folder / "data" / "ptb" / f"ptb.{split}.txt").write_text(sentence * lines, encoding="utf-8")
    _graph(folder / "data" / "graphs" / "cora", rng)
    _glue(folder / "data" / "glue", rng)
    write_coco(folder / "data", 12, BCCD)
    english.prepare("english", english.gather([TESTS], 1), folder / "data", folder, 1)
    for split in ("valid", "test"):  # so few files leave them empty
        shutil.copy(folder / "english-train.npy", folder / f"english-{split}.npy")


def _glue(folder, rng):
    """CoLA and SST-2 in the layout of their files; the second word of a sentence is its answer."""
    for task, splits in (("CoLA", ("train", "dev")), ("SST-2", ("train", "dev", "test"))):
        (folder / task).mkdir(parents=True)
        for split in splits:
            lines = []
            for label in rng.integers(0, 2, 64):
                sentence = f"a {('test', 'seed')[label]} that {split} runs"
                lines.append(f"x\t{label}\t\t{sentence}" if task == "CoLA" else f"{sentence}\t{label}")
            (folder / task / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _graph(folder, rng):
    """Sixty nodes of three classes, the words of each class its own, in the layout of Cora."""
    folder.mkdir(parents=True)
    labels = rng.integers(0, 3, 60)
    splits = ["train"] * 30 + ["valid"] * 10 + ["test"] * 20
    rows = [f"{i},{label},{split}" for i, (label, split) in enumerate(zip(labels, splits, strict=True))]
    (folder / "nodes.csv").write_text("\n".join(["node,label,split", *rows]), encoding="utf-8")
    edges = [f"{i},{(i + 7) % 60}" for i in range(60)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]), encoding="utf-8")
    words = {"data": np.ones(60), "indices": labels, "indptr": np.arange(61), "shape": np.array([60, 3])}
    np.savez(folder / "features.npz", **words)


def job(problem="vit", optimizer="adan", steps=12, **changes):
    values = {"seed": 0, "tuning": False, "evaluations": 2, **changes}
    return Job("test", problem, OPTIONS[problem], optimizer, SETTINGS[optimizer], steps, "steps", **values)
