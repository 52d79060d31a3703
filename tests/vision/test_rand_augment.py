"""RandAugment by timm itself: it distorts, more with the magnitude, and as the position says."""

from __future__ import annotations

from functools import partial

import torch

from adan_bench.data.images import Arrays, Augmented, Batches, _rand_augment, _shift


def drawn(magnitude: int | None) -> Batches:
    images = torch.arange(32).mul(8).to(torch.uint8).expand(8, 3, 32, 32).contiguous()
    distort = None if magnitude is None else _rand_augment(magnitude, 32)
    assert (distort is None) == (magnitude is None)
    return Batches(
        Augmented(Arrays(images, torch.arange(8)), partial(_shift, 0), distort), batch_size=8, seed=0, workers=0
    )


def test_batches_depend_on_the_position_alone() -> None:
    ordered, jumping = drawn(9), drawn(9)
    first = [ordered(position) for position in range(3)]
    for position in (2, 0, 1):
        images, labels = jumping(position)
        assert torch.equal(images, first[position][0])
        assert torch.equal(labels, first[position][1])


def test_it_distorts() -> None:
    plain, seen = (torch.cat([drawn(magnitude)(i)[0].float() for i in range(4)]) for magnitude in (None, 9))
    changed = (plain != seen).flatten(1).any(1).float().mean().item()
    assert changed > 0.5
