"""RandAugment by timm itself: it distorts, more with the magnitude, and as the position says."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from PIL import Image

from adan_bench.data.images import Augmented, Batches, Folder, _center, _rand_augment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    root = tmp_path_factory.mktemp("gray")
    (root / "ramp").mkdir()
    for i in range(8):
        Image.linear_gradient("L").save(root / "ramp" / f"{i}.png")
    return Folder.read(root)


def drawn(folder: Folder, magnitude: int | None) -> Batches:
    distort = None if magnitude is None else _rand_augment(magnitude, 32)
    return Batches(Augmented(folder, partial(_center, 32, 1.0), distort), batch_size=8, seed=0, workers=0)


def test_batches_depend_on_the_position_alone(folder: Folder) -> None:
    ordered, jumping = drawn(folder, 9), drawn(folder, 9)
    first = [ordered(position) for position in range(3)]
    for position in (2, 0, 1):
        images, labels = jumping(position)
        assert torch.equal(images, first[position][0])
        assert torch.equal(labels, first[position][1])


def test_it_distorts(folder: Folder) -> None:
    plain, seen = (torch.cat([drawn(folder, magnitude)(i)[0].float() for i in range(4)]) for magnitude in (None, 9))
    changed = (plain != seen).flatten(1).any(1).float().mean().item()
    assert changed > 0.5
