"""Loaders on tiny folders in the real formats: CIFAR-10 parquet, an ImageNet folder of JPEGs."""

from __future__ import annotations

import io
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image, ImageOps
from support.learning import prepared, resize, settings, sizes, trainer

from adan_bench.data import images as made
from adan_bench.data.files import CIFAR_FOLDER
from adan_bench.data.images import Augmented, Batches, Folder, _center, _resized_crop, cifar10, image_data, imagenet
from adan_bench.data.settings import PLAIN
from adan_bench.errors import UsageError
from adan_bench.task import Context, own_rows


def photograph(seed: int, width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, size in (("train", 40), ("test", 20)):
        rows = []
        for i in range(size):
            buffer = io.BytesIO()
            photograph(i, 32, 32).save(buffer, "PNG")
            rows.append({"img": {"bytes": buffer.getvalue(), "path": f"{i}.png"}, "label": i % 10})
        (folder / "cifar10").mkdir(exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(rows), folder / "cifar10" / f"{split}.parquet")
    for split, size in (("train", 6), ("val", 2)):
        for label, name in enumerate(("n01440764", "n01443537")):
            (folder / "imagenet" / split / name).mkdir(parents=True)
            for i in range(size):
                image = photograph(100 * label + i + 50 * (split == "val"), 60 + 10 * i, 50)
                image = image if i else image.convert("L")  # ImageNet has a few gray ones
                image.save(folder / "imagenet" / split / name / f"{name}_{i}.JPEG", "JPEG")
    return folder


def pixels(seeds: Iterable[int]) -> torch.Tensor:
    """CIFAR's photographs as bytes."""
    return torch.stack([torch.from_numpy(np.array(photograph(i, 32, 32))).permute(2, 0, 1) for i in seeds])


def context(data: Path, scale: str = "paper", batch_size: int = 4) -> Context:
    return Context(0, batch_size, data, scale=scale)


def alone(found: Any) -> Any:
    """The same batches without worker processes."""
    return Batches(found.batches.images, found.batches.batch_size, found.batches.seed, workers=0)


def test_cifar_is_shifted_flipped_and_the_same_again(data: Path) -> None:
    found = cifar10(context(data, "small", 8), PLAIN)
    images, labels = found.gather(*found.batches(0))
    assert images.shape == (8, 3, 32, 32)
    assert torch.equal(images, found.gather(*found.batches(0))[0])
    assert not torch.equal(images, found.gather(*found.batches(5))[0])
    held_out, answers = next(iter(found.held_out()))
    assert (len(held_out), answers.tolist()) == (20, [i % 10 for i in range(20)])
    source = found.normal(pixels(range(40)))
    for image, label in zip(images, labels, strict=True):
        middle = image[:, 8:24, 8:24]  # inside of whatever the shift was
        windows = source[:, :, 4:28, 4:28].unfold(2, 16, 1).unfold(3, 16, 1)
        views = torch.stack([windows, windows.flip(-1)]).permute(0, 1, 3, 4, 2, 5, 6)
        match = (views == middle).flatten(4).all(-1).nonzero()
        assert len(match) == 1
        assert match[0, 1].item() % 10 == label.item()


@pytest.mark.parametrize(("scale", "border"), [("small", 0.0), ("paper", -0.4914 / 0.2023)])
def test_shifts_squares_and_flips_of_cifar(scale: str, border: float, data: Path) -> None:
    """Against a loop over single images: what the drawn number means, and the colors of borders and squares."""
    found = cifar10(context(data, scale, 40), replace(PLAIN, cutout=8))
    chosen, draws = found.batches(0)
    images, _ = found.gather(chosen, draws)
    source = found.normal(pixels(range(40)))
    for image, index, number in zip(images, chosen.tolist(), draws.tolist(), strict=True):
        down, right, flip, y, x = (
            number // over % count for over, count in zip((1, 9, 81, 162, 5184), (9, 9, 2, 32, 32), strict=True)
        )
        wide = torch.full((3, 40, 40), torch.nan)
        wide[:, 4:36, 4:36] = source[index]
        expected = wide[:, down : down + 32, right : right + 32]
        if flip:
            expected = expected.flip(2)
        border_there = expected.isnan()
        expected[:, max(0, y - 4) : y + 4, max(0, x - 4) : x + 4] = 0
        inside = ~expected.isnan()
        assert torch.equal(image[inside], expected[inside])
        assert border_there.any() or (down, right) == (4, 4)
        assert image[0][expected[0].isnan()].tolist() == pytest.approx(
            [border] * int(expected[0].isnan().sum()), abs=1e-4
        )


def test_options_of_imagenet(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of a held-out photograph that is looked at, and how often a training image comes in a row."""
    monkeypatch.setattr(made, "decoders", lambda: 0)
    found = imagenet(context(data, batch_size=6), replace(PLAIN, center=0.5, repeats=3))
    (first, *_), _ = next(iter(found.held_out()))
    photo = Image.open(data / "imagenet" / "val" / "n01440764" / "n01440764_0.JPEG").convert("RGB")
    assert np.array_equal(first.permute(1, 2, 0), np.array(_center(224, 0.5, photo)))
    images = [index for index, _ in found.batches.keys(0)]
    assert images == [images[0]] * 3 + [images[3]] * 3
    draws = [draw for position in (0, 1) for _, draw in found.batches.keys(position)]
    assert len({*draws}) == 12  # another view of an image whenever it comes
    one, other = (found.batches.images[0, draw][0] for draw in draws[:2])
    assert not torch.equal(one, other)


def original(folder: Path, content: Any = None) -> Path:
    """The photographs as CIFAR-10's own files have them."""
    (folder / CIFAR_FOLDER).mkdir()
    splits = {"test_batch": range(20)} | {f"data_batch_{i + 1}": range(8 * i, 8 * i + 8) for i in range(5)}
    for name, seeds in splits.items():
        rows = pixels(seeds).flatten(1).numpy()
        batch = {
            b"batch_label": b"x",
            b"labels": [i % 10 for i in seeds],
            b"data": rows,
            b"filenames": [b"x.png"] * len(rows),
        }
        (folder / CIFAR_FOLDER / name).write_bytes(pickle.dumps(content or batch, protocol=2))
    return folder


def test_cifars_own_files(data: Path, tmp_path: Path) -> None:
    """The same images and labels as from parquet, and the record says from where."""
    found, other = (cifar10(context(original(tmp_path), "small", 8), PLAIN), cifar10(context(data, "small", 8), PLAIN))
    for a, b in zip(found.gather(*found.batches(3)), other.gather(*other.batches(3)), strict=True):
        assert torch.equal(a, b)
    for (images, labels), (more, answers) in zip(found.held_out(), other.held_out(), strict=True):
        assert torch.equal(images, more)
        assert torch.equal(labels, answers)
    assert found.note.startswith("CIFAR-10 from cifar-10-batches-py: 40 to train")
    settings("cifar-resnet34", scale="paper", data=tmp_path)
    (tmp_path / CIFAR_FOLDER).rename(tmp_path / "elsewhere")
    needs = r"needs cifar-10-batches-py, or cifar10/train\.parquet and cifar10/test\.parquet, which"
    with pytest.raises(UsageError, match=needs):
        settings("cifar-resnet34", scale="paper", data=tmp_path)


def test_a_pickle_that_names_code_is_not_loaded(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with pytest.raises(UsageError, match=r"data_batch_1: not a batch of CIFAR-10's own python version \(it names "):
        cifar10(context(original(tmp_path, Touch(ran)), "small"), PLAIN)
    assert not ran.exists()


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_cifar_is_normalized_as_by_adabelief_at_paper_scale(data: Path) -> None:
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    for scale, deviation in (("paper", (0.2023, 0.1994, 0.2010)), ("small", (0.2470, 0.2435, 0.2616))):
        found = cifar10(context(data, scale), PLAIN).normal(white).flatten().tolist()
        expected = [(1 - mean) / std for mean, std in zip((0.4914, 0.4822, 0.4465), deviation, strict=True)]
        assert found == pytest.approx(expected, rel=1e-6)


def test_trials_see_no_test_image(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits, CIFAR-10 and ImageNet: what a trial is evaluated on are training images that it does not train on."""
    monkeypatch.setattr("adan_bench.data.images.decoders", lambda: 0)
    for scale, make in (("smoke", image_data), ("small", image_data), ("paper", imagenet)):
        reported, trial = (make(replace(context(data, scale, 4), tuning=tuning), PLAIN) for tuning in (False, True))
        tests, apart = (
            [image.tobytes() for part, _ in found.held_out() for image in part.numpy()] for found in (reported, trial)
        )
        assert not {*tests} & {*apart}
        assert len(apart) >= 1
        if scale == "paper":
            names = [[*map(bytes, found.batches.images.source.names)] for found in (reported, trial)]
            assert len(names[0]) == len(names[1]) + len(apart)
        else:
            epoch = (1797 - 720) // 4 if scale == "smoke" else 5
            assert max(int(trial.batches(i)[0].max()) for i in range(epoch)) < (1797 - 720 if scale == "smoke" else 20)
    assert "20 held out of the training split" in cifar10(replace(context(data, "small"), tuning=True), PLAIN).note


def test_damaged_parquet_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    for split in ("train", "test"):
        (tmp_path / "cifar10" / f"{split}.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"train.parquet: not CIFAR-10"):
        cifar10(context(tmp_path, "small"), PLAIN)


def test_imagenet_is_decoded_by_position(data: Path) -> None:
    found = imagenet(context(data), PLAIN)
    assert (found.size, found.channels, found.classes) == (224, 3, 2)
    assert "12 to train (random crops and flips), 4 held out" in found.note
    batches = alone(found)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = [batches(position) for position in range(4)]
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert first[0][0].shape == (4, 3, 224, 224)
    assert sorted(torch.cat([labels for _, labels in first[:3]]).tolist()) == [0] * 6 + [1] * 6  # one epoch
    again = alone(found)
    for position in (2, 3, 0):
        assert torch.equal(again(position)[0], first[position][0])
    values = found.normal(first[0][0])
    assert values.min().item() >= -2.12
    assert values.max().item() <= 2.65


def test_imagenet_by_worker_processes_is_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run at paper scale of a small network, on two classes: one process decodes for training, one for evaluation."""
    resize(monkeypatch, "resnet18", replace(sizes("resnet18"), width=8, depths=(1, 1, 1, 1)))
    monkeypatch.setattr("adan_bench.data.images.decoders", lambda: 1)
    run = trainer("resnet18", scale="paper", steps=2, batch_size=4, data=data)
    found = imagenet(context(data), PLAIN)
    run.update()
    images, targets = prepared(run.task, 1, "cpu")  # the next, so that the same worker decodes it
    pixels, labels = alone(found)(1)
    assert torch.equal(images, found.normal(pixels))
    assert torch.equal(targets.argmax(1), labels)
    assert run.evaluate()["accuracy"] in (0.0, 0.25, 0.5, 0.75, 1.0)


def test_views() -> None:
    wide, tall = photograph(0, 300, 40), photograph(1, 20, 300)
    random.seed(0)
    for image in (wide, tall):
        assert _resized_crop(224, 0.08, image).size == (224, 224)
        assert _center(224, 0.875, image).size == (224, 224)
    half = Image.new("L", (200, 100))
    half.paste(255, (100, 0, 200, 100))  # the right half is white
    whole = np.asarray(_center(100, 1.0, half))
    assert (whole[:, :45] == 0).all()
    assert (whole[:, 55:] == 255).all()
    shares = [np.asarray(_resized_crop(32, 0.9, Image.new("L", (50, 50), 7))).mean() for _ in range(3)]
    assert shares == [7.0] * 3
    long = photograph(0, 400, 30)  # no crop of 4:3 fits: its middle, which may be mirrored
    middle = long.resize((32, 32), Image.Resampling.BICUBIC, box=(180, 0, 220, 30))
    found = {_resized_crop(32, 0.5, long).tobytes() for _ in range(20)}
    assert found == {middle.tobytes(), ImageOps.mirror(middle).tobytes()}


def test_rand_augment_is_imagenets_and_named_where_timm_is_not(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "timm.data.auto_augment", None)
    with pytest.raises(UsageError, match="needs timm and torchvision"):
        imagenet(context(data), replace(PLAIN, magnitude=9))

    asked = []
    fake: Any = ModuleType("timm.data.auto_augment")

    def rand_augment_transform(words: str, options: dict[str, Any]) -> Any:
        asked.append((words, options["translate_const"]))
        return ImageOps.invert

    fake.rand_augment_transform = rand_augment_transform
    for name in ("timm", "timm.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "timm.data.auto_augment", fake)
    plain, found = imagenet(context(data), PLAIN), imagenet(context(data), replace(PLAIN, magnitude=9))
    assert torch.equal(alone(found)(0)[0], 255 - alone(plain)(0)[0])
    assert "RandAugment 9" in found.note
    assert "RandAugment" not in cifar10(context(data, "small"), replace(PLAIN, magnitude=7)).note
    assert asked == [("rand-m9-n2-mstd0.5-inc1", 100)]


def test_what_an_imagenet_folder_lacks_is_one_line(data: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(data / "imagenet", tmp_path / name / "imagenet")
        return tmp_path / name

    damaged = copy("damaged")
    for file in (damaged / "imagenet" / "train" / "n01443537").iterdir():
        file.write_bytes(file.read_bytes()[:200])
    found = imagenet(context(damaged, batch_size=12), PLAIN)
    with pytest.raises(UsageError, match=r"n01443537_\d.JPEG: not an image that can be read .*; copy this file again$"):
        alone(found)(0)

    unlike = copy("unlike")
    (unlike / "imagenet" / "val" / "n01443537").rename(unlike / "imagenet" / "val" / "n99999999")
    with pytest.raises(UsageError, match="n01443537, n99999999 only in one of the two; move the validation images"):
        imagenet(context(unlike), PLAIN)

    missing = copy("missing")
    shutil.rmtree(missing / "imagenet" / "val")
    with pytest.raises(UsageError, match=r"holds no imagenet/val"):
        imagenet(context(missing), PLAIN)
    with pytest.raises(UsageError, match=r"resnet18 needs imagenet/val, which .* does not hold"):
        settings("resnet18", scale="paper", data=missing)

    flat = tmp_path / "flat"  # the validation archive unpacks to one folder
    flat.mkdir()
    (flat / "ILSVRC2012_val_00000001.JPEG").touch()
    with pytest.raises(UsageError, match=r"no folder of a class in it; it holds: ILSVRC2012_val_00000001.JPEG"):
        Folder.read(flat)
    (flat / "n01440764").mkdir()
    with pytest.raises(UsageError, match=r"n01440764: no .JPEG file in it"):
        Folder.read(flat)


def test_a_rank_decodes_its_own_images_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ImageNet on one, two and four ranks: every image of a batch once, with the same crop, on one of them."""
    monkeypatch.setattr("adan_bench.data.images.decoders", lambda: 0)
    decoded: list[int] = []
    read = Folder.image
    monkeypatch.setattr(Folder, "image", lambda self, index: (decoded.append(index), read(self, index))[1])
    whole = imagenet(context(data, batch_size=8), PLAIN).batches
    for position in (0, 1):
        images, labels = whole(position)
        for ranks in (2, 4):
            parts = []
            for rank in range(ranks):
                decoded.clear()
                found = imagenet(replace(context(data, batch_size=8), rank=rank, ranks=ranks), PLAIN)
                parts.append(found.batches(position))
                assert len(decoded) == 8 // ranks
            order = [row for rank in range(ranks) for row in own_rows(8, rank, ranks)]
            assert torch.equal(torch.cat([part[0] for part in parts]), images[order])
            assert torch.equal(torch.cat([part[1] for part in parts]), labels[order])


def test_a_batch_is_decoded_by_all_workers_together(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of at most as many images, in the same order and with the same crops as by one worker."""
    monkeypatch.setattr("adan_bench.data.images.decoders", lambda: 0)
    whole = imagenet(context(data, batch_size=8), PLAIN).batches(1)
    monkeypatch.setattr("adan_bench.data.images.PART", 3)
    collated: list[int] = []
    together = made._together
    monkeypatch.setattr(made, "_together", lambda found: (collated.append(len(found)), together(found))[1])
    parts = imagenet(context(data, batch_size=8), PLAIN).batches(1)
    assert collated == [3, 3, 2]
    assert all(torch.equal(x, y) for x, y in zip(parts, whole, strict=True))


def test_as_many_processes_decode_as_the_run_has_threads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert imagenet(context(data), PLAIN).batches.workers == 3


def test_an_incomplete_epoch_is_named(data: Path) -> None:
    seen = Augmented(Folder.read(data / "imagenet" / "train"), partial(_center, 8, 1.0), None)
    with pytest.raises(UsageError, match="batch_size=13 is more than the 12 examples"):
        Batches(seen, 13, 0, workers=0)


ENDLESS = """
import sys
from functools import partial
from pathlib import Path
from adan_bench.data.images import Augmented, Batches, Folder, _center
if __name__ == "__main__":
    images = Augmented(Folder.read(Path(sys.argv[1])), partial(_center, 8, 1.0), None)
    batches = Batches(images, 4, 0, workers=1)
    batches(0)
    print(batches.stream._workers[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_run_that_is_killed(data: Path, tmp_path: Path) -> None:
    (script := tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, str(script), str(data / "imagenet" / "train")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        worker = Path("/proc") / run.stdout.readline().decode().strip()
        assert "forkserver" in (worker / "cmdline").read_text()
        run.kill()
    patience = time.monotonic() + 30
    while worker.exists():
        assert time.monotonic() < patience, "the worker lives on"
        time.sleep(0.05)
