"""Images to learn from, by scale: scikit-learn's digits, CIFAR-10 as parquet, an ImageNet folder.

Images travel as bytes; `ImageData.normal` makes numbers of them. Which images a batch holds and how each is cropped,
flipped and distorted depends on the seed and on the batch's position alone. Digits and CIFAR-10 lie on the device: a
batch is drawn on the host as indices and shifts, and gathered there.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from adan_bench.config import cores
from adan_bench.data.batching import epoch_order, generator
from adan_bench.data.cache import decoded
from adan_bench.data.files import CIFAR, IMAGENET
from adan_bench.errors import UsageError, listing
from adan_bench.task import Context

HELD_OUT_DIGITS = 360
EVAL_BATCH = 256

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ImageData:
    """Labeled images: how to draw batches, and what is held out.

    batches: what is drawn or decoded on the host for the batch at a position.
    gather: the images and labels of that, once it is on the device.
    """

    size: int
    channels: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batches: Callable[[int], tuple[Tensor, ...]]
    gather: Callable[..., Batch]
    held_out: Callable[[], Iterable[Batch]]
    note: str
    white: int = 255  # the value of a white pixel

    def normal(self, images: Tensor) -> Tensor:
        """Bytes to numbers of about zero mean and unit variance."""
        mean, std = (_channels(values, images.device) for values in (self.mean, self.std))
        return (images.float() / self.white - mean) / std


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number for each channel, copied to the device once: a captured step cannot copy from the host."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Augmentation:
    """How a training image is varied at the scales that have photographs.

    crop: the smallest share of an ImageNet photograph that a random crop covers; CIFAR's are shifted by 4 pixels.
    magnitude: of RandAugment (two operations, deviation 0.5, as timm has it); None: none.
    center: the share of the shorter side that evaluation looks at.
    repeats: how often each image comes in an epoch, in other crops: repeated augmentation.
    """

    crop: float = 0.08
    magnitude: int | None = None
    center: float = 0.875
    repeats: int = 1


def image_data(context: Context, augmentation: Augmentation | None = None) -> ImageData:
    """The images of a scale."""
    augmentation = augmentation or Augmentation()
    if context.scale == "smoke":
        return digits(context)
    return cifar10(context, augmentation) if context.scale == "small" else imagenet(context, augmentation)


# Bundled with scikit-learn


def digits(context: Context) -> ImageData:
    """1,797 handwritten digits of 8×8 pixels; the last 360, other writers for the most part, are held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images).to(torch.uint8).unsqueeze(1).to(context.device)
    labels = torch.tensor(digits.target).to(context.device)
    test = slice(-HELD_OUT_DIGITS, None)
    order = epoch_order(len(images) - HELD_OUT_DIGITS, context.batch_size, context.seed)
    return ImageData(
        8,
        1,
        10,
        (0.5,),
        (0.5,),
        lambda position: (order(position),),
        lambda chosen: (images[chosen], labels[chosen]),
        lambda: [(images[test], labels[test])],
        "scikit-learn digits: 1,437 to train, 360 held out, neither cropped nor flipped",
        white=16,
    )


# CIFAR-10


def cifar10(context: Context, augmentation: Augmentation) -> ImageData:
    """50,000 images of 32×32 pixels, in two parquet files as on the Hugging Face hub."""
    images, labels = read_cifar(context.path(CIFAR[0]))
    held_out, answers = (tensor.to(context.device) for tensor in read_cifar(context.path(CIFAR[1])))
    distort = None if augmentation.magnitude is None else _rand_augment(augmentation.magnitude, 32)
    batches: Callable[[int], tuple[Tensor, ...]]
    gather: Callable[..., Batch]
    if distort is None:
        batches, gather = _shifted(images.to(context.device), labels.to(context.device), context)
    else:
        training = Augmented(Arrays(images, labels), _Shift(4), distort)
        batches, gather = Batches(training, context.batch_size, context.seed, augmentation.repeats), _decoded
    done = "shifted and flipped" + (f", RandAugment {augmentation.magnitude}" if distort else "")
    return ImageData(
        32,
        3,
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        batches,
        gather,
        lambda: zip(held_out.split(EVAL_BATCH), answers.split(EVAL_BATCH), strict=True),
        f"CIFAR-10: {len(images):,} to train ({done}), {len(held_out):,} held out",
    )


@lru_cache(maxsize=2)  # a worker process makes many runs
def read_cifar(path: Path) -> Batch:
    """All images as N×3×32×32 bytes, and their labels; decoding them takes about 10 s, the cache no time."""
    arrays = decoded("cifar10", [path], lambda: dict(zip(("images", "labels"), _decode_cifar(path), strict=True)))
    return arrays["images"], arrays["labels"]


def _decode_cifar(path: Path) -> Batch:
    import numpy as np
    import pyarrow.parquet as parquet
    from PIL import Image

    try:
        table = parquet.read_table(path, columns=["img", "label"])
        pixels = [
            np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["img"].to_pylist()
        ]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(table["label"].to_pylist())
    except (OSError, KeyError, ValueError) as error:  # pyarrow's errors are ValueErrors and KeyErrors
        raise UsageError(f"{path}: not CIFAR-10 as parquet with columns img and label ({error})") from error


def _shifted(
    images: Tensor, labels: Tensor, context: Context
) -> tuple[Callable[[int], tuple[Tensor, ...]], Callable[..., Batch]]:
    """Batches of images shifted by up to 4 pixels and flipped half of the time; all images stay on the device."""
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    pixels = torch.arange(images.shape[-1], device=images.device)
    order = epoch_order(len(images), context.batch_size, context.seed)

    def batches(position: int) -> tuple[Tensor, ...]:
        key = generator(context.seed, position, 1)
        down, right = torch.randint(0, 9, (2, context.batch_size, 1), generator=key)
        return order(position), down, right, torch.rand(context.batch_size, 1, generator=key) < 0.5

    def gather(chosen: Tensor, down: Tensor, right: Tensor, flipped: Tensor) -> Batch:
        rows, columns = down + pixels, right + torch.where(flipped, pixels.flip(0), pixels)
        part = padded[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return part.permute(0, 3, 1, 2).contiguous(), labels[chosen]

    return batches, gather


def _decoded(images: Tensor, labels: Tensor) -> Batch:
    """A batch that worker processes have decoded is whole."""
    return images, labels


# ImageNet


def imagenet(context: Context, augmentation: Augmentation) -> ImageData:
    """train/<class>/*.JPEG and val/<class>/*.JPEG, decoded while training by worker processes."""
    train, val = (Folder.read(context.path(name)) for name in IMAGENET)
    if train.classes != val.classes:
        odd = sorted({*train.classes} ^ {*val.classes})
        raise UsageError(
            f"{train.root} and {val.root} do not hold the same classes: {', '.join(odd[:5])} only in one of the two; "
            "move the validation images into one folder a class"
        )
    distort = None
    if augmentation.magnitude is not None:
        distort = _rand_augment(augmentation.magnitude, 224)
        if distort is None:
            raise UsageError(
                "RandAugment on ImageNet needs the packages timm and torchvision; run: pip install timm torchvision"
            )
    training = Augmented(train, _ResizedCrop(224, augmentation.crop), distort)
    held_out = Augmented(val, _Center(224, augmentation.center), None)
    loaded: list[Any] = []  # the workers that read the held-out images stay for all evaluations

    def evaluation() -> Iterator[Batch]:
        if not loaded:
            parts = [[(i, -1) for i in range(len(val))[j : j + EVAL_BATCH]] for j in range(0, len(val), EVAL_BATCH)]
            loaded.append(_loader(held_out, parts, _workers(), persistent=True))
        return (_checked(batch) for batch in loaded[0])

    done = "random crops and flips" + (f", RandAugment {augmentation.magnitude}" if distort else "")
    return ImageData(
        224,
        3,
        len(train.classes),
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
        Batches(training, context.batch_size, context.seed, augmentation.repeats),
        _decoded,
        evaluation,
        f"ImageNet folder of {len(train.classes):,} classes: {len(train):,} to train ({done}), {len(val):,} held out",
    )


class Source(Protocol):
    """Images that can be had one by one, and sent to worker processes."""

    def __len__(self) -> int: ...
    def image(self, index: int) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class Arrays:
    """Images in memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return Image.fromarray(self.images[index].permute(1, 2, 0).numpy()), int(self.labels[index])


@dataclass(frozen=True)
class Folder:
    """One folder per class, one file per image.

    Names are kept as bytes: 1.3 million strings would be 100 MB per worker.
    """

    root: Path
    classes: tuple[str, ...]
    names: Any
    labels: Tensor

    @staticmethod
    @lru_cache(maxsize=4)
    def read(root: Path) -> Folder:
        import numpy as np

        classes = tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir()))
        if not classes:
            raise UsageError(f"{root}: no folder of a class in it; it holds: {listing(root)}")
        names: list[bytes] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            files = [os.fsencode(entry.name) for entry in os.scandir(root / name)]
            files = sorted(file for file in files if file.lower().endswith((b".jpeg", b".jpg", b".png")))
            if not files:
                raise UsageError(f"{root / name}: no .JPEG file in it; unpack this class or remove its folder")
            names += files
            labels += [label] * len(files)
        return Folder(root, classes, np.array(names), torch.tensor(labels))

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        label = int(self.labels[index])
        path = self.root / self.classes[label] / os.fsdecode(bytes(self.names[index]))
        try:
            with Image.open(path) as file:
                return file.convert("RGB"), label
        except OSError as error:  # PIL's errors on unknown, cut and damaged files are OSErrors
            raise UsageError(f"{path}: not an image that can be read ({error}); copy this file again") from error


# How one image is varied


@dataclass(frozen=True)
class _ResizedCrop:
    """A random part of the image: at least `share` of its area, sides of 3:4 to 4:3, resized to a square."""

    size: int
    share: float

    def __call__(self, image: Any) -> Any:
        from PIL import Image

        width, height = image.size
        for _ in range(10):
            area = width * height * random.uniform(self.share, 1)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:  # a photograph of very long sides: its middle
            w = h = min(width, height)
        x, y = random.randint(0, width - w), random.randint(0, height - h)
        crop = image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
        return _flipped(crop)


@dataclass(frozen=True)
class _Shift:
    """The image moved by up to `pixels` in either direction."""

    pixels: int

    def __call__(self, image: Any) -> Any:
        from PIL import ImageOps

        x, y = random.randint(0, 2 * self.pixels), random.randint(0, 2 * self.pixels)
        padded = ImageOps.expand(image, self.pixels)
        return _flipped(padded.crop((x, y, x + image.width, y + image.height)))


def _flipped(image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.mirror(image) if random.random() < 0.5 else image


@dataclass(frozen=True)
class _Center:
    """The middle `share` of the shorter side, resized to a square."""

    size: int
    share: float

    def __call__(self, image: Any) -> Any:
        from PIL import Image

        side = self.share * min(image.size)
        x, y = ((length - side) / 2 for length in image.size)
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))


def _rand_augment(magnitude: int, size: int) -> Callable[[Any], Any] | None:
    """RandAugment by timm: two operations, deviation 0.5, stronger with the magnitude; None without timm."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):  # timm needs torchvision, which raises either where it does not fit to torch
        return None
    options = {"translate_const": int(size * 0.45), "img_mean": (124, 116, 104)}
    transform: Callable[[Any], Any] = rand_augment_transform(f"rand-m{magnitude}-n2-mstd0.5-inc1", options)
    return transform


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Python's and NumPy's generators, from which timm draws, as the key says; afterwards as they were."""
    import numpy as np

    python, numbers = random.getstate(), np.random.get_state()
    digest = hashlib.sha256(repr(key).encode()).digest()
    random.seed(digest)
    np.random.seed(int.from_bytes(digest[:4], "big"))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


@dataclass(frozen=True)
class Augmented:
    """The images of a source as training or evaluation gets them, by (index, draw)."""

    source: Source
    view: Callable[[Any], Any]
    distort: Callable[[Any], Any] | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int] | str:
        import numpy as np

        try:
            image, label = self.source.image(key[0])
        except UsageError as error:  # an exception would come back from a worker with twenty lines of traceback
            return str(error)
        with _seeded(*key):
            image = self.view(image)
            if self.distort is not None:
                image = self.distort(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), label


class Batches:
    """Batches by position, decoded ahead by worker processes as long as positions follow each other."""

    def __init__(
        self, images: Augmented, batch_size: int, seed: int, repeats: int = 1, workers: int | None = None
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.workers = _workers() if workers is None else workers
        self.order = epoch_order(len(images), batch_size, seed, repeats)
        self.next = -1
        self.stream: Iterator[Any] = iter(())

    def keys(self, position: int) -> list[tuple[int, int]]:
        """The images of a batch, each with the seed of its view."""
        draws = torch.randint(0, 2**62, (self.batch_size,), generator=generator(self.seed, position, 1))
        return list(zip(self.order(position).tolist(), draws.tolist(), strict=True))

    def __call__(self, position: int) -> Batch:
        if position != self.next:
            self.stream = iter(_loader(self.images, _Positions(self, position), self.workers))
        self.next = position + 1
        return _checked(next(self.stream))


@dataclass(frozen=True)
class _Positions:
    """The keys of all batches from a position on."""

    batches: Batches
    first: int

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        position = self.first
        while True:
            yield self.batches.keys(position)
            position += 1


def _workers() -> int:
    """Processes that decode: one a core, shared among the ranks of this machine, and no more than 16."""
    return max(1, min(16, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _loader(images: Augmented, keys: Any, workers: int, persistent: bool = False) -> Any:
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"generator": torch.Generator()}  # it would draw a seed from that of the run
    if workers:  # a fork would copy the locks of the threads of a process that has begun to train
        options |= {"multiprocessing_context": "spawn", "persistent_workers": persistent}
    loaded: Any = images
    return DataLoader(loaded, batch_sampler=keys, num_workers=workers, collate_fn=_together, **options)


def _together(examples: list[tuple[Tensor, int] | str]) -> Batch | str:
    good = [example for example in examples if not isinstance(example, str)]
    if len(good) < len(examples):
        return next(example for example in examples if isinstance(example, str))
    return torch.stack([image for image, _ in good]), torch.tensor([label for _, label in good])


def _checked(batch: Batch | str) -> Batch:
    if isinstance(batch, str):
        raise UsageError(batch)
    return batch
