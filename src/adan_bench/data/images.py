"""Images to learn from, by scale: scikit-learn's digits, CIFAR-10, an ImageNet folder.

Images travel as bytes and become numbers on the device. Which images a batch holds and how each is cropped,
flipped and distorted depends on the seed and on the batch's position alone. Digits and CIFAR-10 lie on the device: a
batch is drawn on the host as indices and shifts, and gathered there. A trial (`Context.tuning`) sees no test image: it
is evaluated on training images that it does not train on.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adan_bench.data.batching import decoders, epoch_order, generator
from adan_bench.data.cifar import read_cifar
from adan_bench.data.files import CIFAR_FOLDER, IMAGENET
from adan_bench.data.settings import PLAIN, Setting
from adan_bench.errors import UsageError, listing, reading
from adan_bench.task import Context

HELD_OUT_DIGITS = 360
HELD_OUT_CIFAR = 5_000  # of the training images, the last ones, from trials
PART = 64  # images that a worker decodes at a time
HELD_OUT_IMAGENET = 26  # from trials, one of so many training images: as many as the validation split has
EVAL_BATCH = 256
EVAL_SMALL = 2_000  # of images of 32×32 pixels
SHIFT = 4  # pixels

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ImageData:
    """Labeled images: how to draw batches, and what is held out.

    normal: bytes to numbers of about zero mean and unit variance, on the device.
    batches: what is drawn or decoded on the host for the batch at a position.
    gather: the normalized images and the labels of that, once it is on the device.
    held_out: images as bytes, and their labels.
    """

    size: int
    channels: int
    classes: int
    normal: Callable[[Tensor], Tensor]
    batches: Callable[[int], tuple[Tensor, ...]]
    gather: Callable[..., Batch]
    held_out: Callable[[], Iterable[Batch]]
    note: str


def normalizer(
    mean: Sequence[float], std: Sequence[float], device: str, white: int = 255
) -> Callable[[Tensor], Tensor]:
    """`ImageData.normal` for a mean and a deviation of each channel; white: the value of a white pixel."""
    center, spread = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (mean, std))
    return lambda images: (images.float() / white - center) / spread


def image_data(context: Context, setting: Setting = PLAIN) -> ImageData:
    if context.scale == "smoke":
        return digits(context)
    return cifar10(context, setting) if context.scale == "small" else imagenet(context, setting)


# Bundled with scikit-learn


def digits(context: Context) -> ImageData:
    """1,797 handwritten digits of 8×8 pixels; the last 360, other writers for the most part, are held out.

    From trials, the 360 before those are.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images).to(torch.uint8).unsqueeze(1).to(context.device)
    labels = torch.tensor(digits.target).to(context.device)
    last = len(images) - HELD_OUT_DIGITS * context.tuning
    first = last - HELD_OUT_DIGITS
    test = images[first:last], labels[first:last]
    order, own = epoch_order(first, context.batch_size, context.seed), context.own()
    normal = normalizer([0.5], [0.5], context.device, white=16)

    def gather(chosen: Tensor) -> Batch:
        return normal(images[chosen]), labels[chosen]

    note = f"scikit-learn digits: {first:,} to train, {HELD_OUT_DIGITS} held out, neither cropped nor flipped"
    return ImageData(8, 1, 10, normal, lambda position: (own(order(position)),), gather, lambda: [test], note)


# CIFAR-10


def cifar10(context: Context, setting: Setting) -> ImageData:
    """50,000 images of 32×32 pixels; trials train on 45,000."""
    images, labels = read_cifar(context, "train")
    if context.tuning:
        cut = max(len(images) - HELD_OUT_CIFAR, len(images) // 2)
        held_out, answers, images, labels = images[cut:], labels[cut:], images[:cut], labels[:cut]
    else:
        held_out, answers = read_cifar(context, "test")
    held_out, answers = held_out.to(context.device), answers.to(context.device)
    # at paper scale as AdaBelief's PyTorch_Experiments/classification_cifar10/main.py has it: the mean of the images'
    # own deviations, where the other is over all pixels
    deviation = (0.2023, 0.1994, 0.2010) if context.scale == "paper" else (0.2470, 0.2435, 0.2616)
    normal = normalizer((0.4914, 0.4822, 0.4465), deviation, context.device)
    data = images.to(context.device), labels.to(context.device)
    batches, gather = _shifted(*data, context, normal, setting.cutout)
    done = "shifted and flipped"
    done += f", {setting.cutout}×{setting.cutout} pixels cut out" if setting.cutout else ""
    apart = " of the training split" if context.tuning else ""
    source = f"CIFAR-10 from {CIFAR_FOLDER}" if context.has(CIFAR_FOLDER) else "CIFAR-10"
    note = f"{source}: {len(images):,} to train ({done}), {len(held_out):,} held out{apart}"
    evaluated = partial(zip, held_out.split(EVAL_SMALL), answers.split(EVAL_SMALL), strict=True)
    return ImageData(32, 3, 10, normal, batches, gather, evaluated, note)


def _shifted(
    images: Tensor, labels: Tensor, context: Context, normal: Callable[[Tensor], Tensor], cutout: int
) -> tuple[Callable[[int], tuple[Tensor, ...]], Callable[..., Batch]]:
    """Batches of images shifted by up to 4 pixels, flipped by a fair coin, a square cut out; all stay on the device.

    What is drawn for an image is one number: its two shifts, whether it is flipped, and the center of the square.
    Squares have the mean color. So has what a shift brings in, but at the scale "paper": black, as in AdaBelief's code.
    """
    channels, side = images.shape[1], images.shape[-1]
    pixels = torch.arange(side, device=images.device)
    choices = (2 * SHIFT + 1, 2 * SHIFT + 1, 2, side, side)
    order, own = epoch_order(len(images), context.batch_size, context.seed), context.own()
    border = normal(torch.zeros(1, channels, 1, 1, device=images.device)) * (context.scale == "paper")

    def batches(position: int) -> tuple[Tensor, ...]:
        key = generator(context.seed, position, 1)
        draws = torch.randint(0, math.prod(choices), (context.batch_size,), generator=key)
        return own(order(position)), own(draws)

    def gather(chosen: Tensor, draws: Tensor) -> Batch:
        parts = []
        for most in choices:
            parts.append((draws % most).unsqueeze(1))
            draws = draws // most
        down, right, flipped, y, x = parts
        rows, columns = pixels + down - SHIFT, torch.where(flipped == 1, pixels.flip(0), pixels) + right - SHIFT
        places = side * rows.clamp(0, side - 1).unsqueeze(2) + columns.clamp(0, side - 1).unsqueeze(1)
        places = places.view(len(chosen), 1, -1).expand(-1, channels, -1)
        pixel = images.index_select(0, chosen).flatten(2).gather(2, places).view(-1, channels, side, side)
        result = torch.where(
            _box((rows >= 0) & (rows < side), (columns >= 0) & (columns < side)), normal(pixel), border
        )
        if cutout:
            near = [(pixels >= center - cutout // 2) & (pixels < center + cutout // 2) for center in (y, x)]
            result = result.masked_fill(_box(*near), 0.0)
        return result, labels.index_select(0, chosen)

    return batches, gather


def _box(rows: Tensor, columns: Tensor) -> Tensor:
    """Where both hold, by image, channel, row and column."""
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


# ImageNet


def imagenet(context: Context, setting: Setting) -> ImageData:
    """train/<class>/*.JPEG and val/<class>/*.JPEG, decoded while training by worker processes."""
    train, val = (Folder.read(context.path(name)) for name in IMAGENET)
    if train.classes != val.classes:
        odd = sorted({*train.classes} ^ {*val.classes})
        raise UsageError(
            f"{train.root} and {val.root} do not hold the same classes: {', '.join(odd[:5])} only in one of the two; "
            "move the validation images into one folder a class"
        )
    if context.tuning:
        apart = torch.arange(len(train)) % HELD_OUT_IMAGENET == 0
        train, val = train.subset(~apart), train.subset(apart)
    distort = None if setting.magnitude is None else _rand_augment(setting.magnitude, 224)
    training = Augmented(train, partial(_resized_crop, 224, setting.crop), distort)
    held_out = Augmented(val, partial(_center, 224, setting.center), None)
    loaded: list[Any] = []  # the workers that read the held-out images stay for all evaluations

    def evaluation() -> Iterator[Batch]:
        if not loaded:
            parts = [[(i, -1) for i in range(len(val))[j : j + EVAL_BATCH]] for j in range(0, len(val), EVAL_BATCH)]
            loaded.append(_loader(held_out, parts, decoders(), persistent=True))
        return (_checked(batch) for batch in loaded[0])

    done = "random crops and flips" + (f", RandAugment {setting.magnitude}" if distort else "")
    normal = normalizer((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), context.device)
    batches = Batches(training, context.batch_size, context.seed, setting.repeats, own=context.own())
    known = len(train.classes)
    note = f"ImageNet folder of {known:,} classes: {len(train):,} to train ({done}), {len(val):,} held out"
    return ImageData(224, 3, known, normal, batches, lambda images, labels: (normal(images), labels), evaluation, note)


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

    def subset(self, chosen: Tensor) -> Folder:
        return replace(self, names=self.names[chosen.numpy()], labels=self.labels[chosen])

    def image(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        label = int(self.labels[index])
        path = self.root / self.classes[label] / os.fsdecode(bytes(self.names[index]))
        with reading(path, "not an image that can be read", "copy this file again"), Image.open(path) as file:
            return file.convert("RGB"), label


# How one image is varied


def _resized_crop(size: int, share: float, image: Any) -> Any:
    """A random part of the image: at least `share` of its area, sides of 3:4 to 4:3, as a square; half are mirrored."""
    from PIL import Image, ImageOps

    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(share, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            break
    else:  # a photograph of very long sides: its middle, as in torchvision
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        x, y = (width - w) // 2, (height - h) // 2
    part = image.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
    return ImageOps.mirror(part) if random.random() < 0.5 else part


def _center(size: int, share: float, image: Any) -> Any:
    """The middle `share` of the shorter side, resized to a square."""
    from PIL import Image

    side = share * min(image.size)
    x, y = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))


def _rand_augment(magnitude: int, size: int) -> Callable[[Any], Any]:
    """RandAugment by timm: two operations, deviation 0.5, stronger with the magnitude."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError) as error:  # torchvision, which timm needs, raises either beside another torch
        need = f"RandAugment on ImageNet needs timm and torchvision ({error})"
        raise UsageError(f"{need}; run: pip install timm torchvision") from error
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
    """The images of a folder as training or evaluation gets them, by (index, draw)."""

    source: Folder
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
        self,
        images: Augmented,
        batch_size: int,
        seed: int,
        repeats: int = 1,
        workers: int | None = None,
        own: Callable[[Any], Any] = lambda keys: keys,
    ) -> None:
        """own: picks the images of this rank (`Context.own`)."""
        self.images, self.batch_size, self.seed, self.own = images, batch_size, seed, own
        self.workers = decoders() if workers is None else workers
        self.order = epoch_order(len(images), batch_size, seed, repeats)
        self.parts = len(_parts(self.keys(0)))  # of every batch
        self.next = -1
        self.stream: Iterator[Any] = iter(())

    def keys(self, position: int) -> list[tuple[int, int]]:
        """Images of a batch that this rank makes, each with the seed of its view."""
        draws = torch.randint(0, 2**62, (self.batch_size,), generator=generator(self.seed, position, 1))
        keys: list[tuple[int, int]] = self.own(list(zip(self.order(position).tolist(), draws.tolist(), strict=True)))
        return keys

    def __call__(self, position: int) -> Batch:
        if position != self.next:
            keys = (part for at in count(position) for part in _parts(self.keys(at)))
            self.stream = iter(_loader(self.images, keys, self.workers, ahead=2 * self.parts))
        self.next = position + 1
        images, labels = zip(*(_checked(next(self.stream)) for _ in range(self.parts)), strict=True)
        return torch.cat(images), torch.cat(labels)


def _parts(keys: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """What one worker decodes at a time: of whole batches, the first one of 2,048 images would take a minute."""
    return [keys[i : i + PART] for i in range(0, len(keys), PART)]


def _loader(images: Augmented, keys: Any, workers: int, ahead: int = 0, persistent: bool = False) -> Any:
    """ahead: how many parts are made before they are asked for; two for each worker at least."""
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"generator": torch.Generator()}  # it would draw a seed from that of the run
    if workers:
        options |= {"multiprocessing_context": _processes(images), "persistent_workers": persistent}
        options["worker_init_fn"] = _end_with_parent
        options["prefetch_factor"] = max(2, math.ceil(ahead / workers))
    loaded: Any = images
    return DataLoader(loaded, batch_sampler=keys, num_workers=workers, collate_fn=_together, **options)


def _processes(images: Augmented) -> Any:
    """How workers start: forked from a process that has imported what they need, and that does not train.

    A fork of the run itself would copy the locks of its threads.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__] + ["timm.data.auto_augment"] * (images.distort is not None))
    return processes


def _end_with_parent(_: int) -> None:
    """A worker forked from another process than the run ends with the run, even with one that is killed."""

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _together(examples: list[tuple[Tensor, int] | str]) -> Batch | str:
    for example in examples:
        if isinstance(example, str):
            return example
    images, labels = zip(*examples, strict=True)
    return torch.stack(images), torch.tensor(labels)


def _checked(batch: Batch | str) -> Batch:
    if isinstance(batch, str):
        raise UsageError(batch)
    return batch
