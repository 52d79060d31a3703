"""Training Settings I and II on batches: what is mixed, erased and left out, and that the labels follow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from adan_bench.data.augment import StochasticDepth, applied, box_noise, drawn, erased, erasing, loss_of, mixed, mixing
from adan_bench.data.settings import PLAIN, SETTING_I, SETTING_II, Setting
from adan_bench.task import own_rows
from adan_bench.workloads.parts.networks import depth_shares


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Ten images, each of one value that tells it from the others."""
    values = torch.arange(10.0)
    return values.view(-1, 1, 1, 1).expand(10, 3, 16, 16).clone(), values.long()


def augmented(
    batch: tuple[torch.Tensor, torch.Tensor], setting: Setting, *key: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return applied(*batch, 10, setting, drawn(setting, 10, 16, key), box_noise(setting, 768, "cpu"))


def test_the_settings_are_those_of_the_paper() -> None:
    assert Setting("Training Setting I", 7, 0.1, 1.0, 0.0, 0.0, "bce") == SETTING_I
    assert Setting("Training Setting II", 9, 0.8, 1.0, 0.25, 0.1, "ce") == SETTING_II


@pytest.mark.parametrize("setting", [SETTING_I, SETTING_II])
def test_labels_say_what_the_images_are(setting: Setting, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """An image of value i mixed with one of value 9 − i has the mean that its labels predict, for mixup and cutmix."""
    setting = replace(setting, erasing=0.0, smoothing=0.0)
    cut = blended = 0
    for position in range(40):
        images, targets = augmented(batch, setting, 0, position)
        assert images.mean((1, 2, 3)) == pytest.approx((targets @ torch.arange(10.0)).tolist(), abs=1e-4)
        assert targets.sum(1) == pytest.approx([1.0] * 10)
        blended += int((images.flatten(1).std(1) < 1e-6).all() and targets.max() < 1)
        cut += int((images.flatten(1).std(1) > 0.1).any())
    assert cut > 8
    assert blended > 8


def test_a_batch_depends_on_seed_and_position_alone(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(1)
    one = augmented(batch, SETTING_II, 3, 4)
    random.seed(5)
    before = torch.get_rng_state()
    two = augmented(batch, SETTING_II, 3, 4)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(one[0], augmented(batch, SETTING_II, 3, 5)[0])
    assert not torch.equal(one[0], augmented(batch, SETTING_II, 4, 4)[0])


def test_plain_changes_nothing(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, targets = augmented(batch, PLAIN, 0, 0)
    assert torch.equal(images, batch[0])
    assert torch.equal(targets, torch.eye(10))


def test_smoothing_and_losses(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, targets = augmented(batch, replace(PLAIN, smoothing=0.1), 0, 0)
    logits = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    smoothed = torch.nn.functional.cross_entropy(logits, batch[1], label_smoothing=0.1)
    assert loss_of(SETTING_II)(logits, targets).item() == pytest.approx(smoothed.item(), rel=1e-5)
    p = logits.sigmoid()
    each = -(torch.eye(10) * p.log() + (1 - torch.eye(10)) * (1 - p).log()).mean()
    assert loss_of(SETTING_I)(logits, torch.eye(10)).item() == pytest.approx(each.item(), rel=1e-5)


def test_erasing_makes_rectangles_of_noise_in_a_quarter_of_the_images() -> None:
    images = torch.zeros(2000, 3, 16, 16)
    found = erased(images, erasing(2000, 16, 0.25, random.Random(0)), box_noise(SETTING_II, 768, "cpu"))
    hit = (found != 0).flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.25, abs=0.03)
    areas = (found[hit] != 0).all(1).flatten(1).float().mean(1)
    assert 0.01 < areas.min().item() < 0.04
    assert 0.28 < areas.max().item() < 0.36
    one = (found[hit][0, 0] != 0).nonzero()
    (top, left), (bottom, right) = one.min(0).values.tolist(), one.max(0).values.tolist()
    assert len(one) == (bottom - top + 1) * (right - left + 1)
    assert found[found != 0].std().item() == pytest.approx(1.0, abs=0.02)


def test_mixup_is_close_to_one_image_at_a_small_alpha(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Beta(0.1, 0.1) lies near 0 and 1, Beta(0.8, 0.8) does not."""

    def middle(setting: Setting) -> float:
        shares = []
        for i in range(200):
            images, targets = mixed(batch[0], torch.eye(10), mixing(10, 16, setting, random.Random(i)))
            if images.flatten(1).std(1).max() < 1e-6:  # not cut
                shares.append(targets[0, 0].item())
        return sum(0.1 < share < 0.9 for share in shares) / len(shares)

    assert middle(SETTING_I) < 0.35 < 0.6 < middle(SETTING_II)


def test_every_128_pairs_are_mixed_in_their_own_way() -> None:
    """As on eight GPUs of 256 images each, whose shares of the batch these are; fewer images have one draw."""
    kept = torch.eye(600).to(torch.float32)
    different = set()
    for position in range(6):
        draws = drawn(SETTING_I, 600, 16, (0, position))
        share = draws["weights"][:, 1]
        assert torch.equal(share, share.flip(0))  # partners agree
        for group in (slice(0, 128), slice(128, 256), slice(256, 300)):
            assert len(share[group].unique()) == 1
        different.add(len(share.unique()))
        _, targets = mixed(torch.zeros(600, 1, 16, 16), kept, draws)
        assert targets.diagonal() == pytest.approx(share.tolist())
        assert len(drawn(SETTING_I, 256, 16, (0, position))["weights"].unique(dim=0)) == 1
    assert max(different) == 3
    rows = own_rows(2048, 3, 8)
    own = drawn(SETTING_I, 2048, 16, (0, 0), lambda values: values[rows])
    assert own["weights"].shape == (256, 2)
    assert len(own["weights"].unique(dim=0)) == 1


def test_stochastic_depth_keeps_the_mean_and_rests_in_evaluation() -> None:
    torch.manual_seed(0)
    layer = StochasticDepth(0.25)
    found = layer(torch.ones(4000, 2, 3))
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert found.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(found[:, 0, 0], found[:, 1, 2])
    assert torch.equal(layer.eval()(torch.ones(4, 2)), torch.ones(4, 2))
    assert depth_shares(1, 0.1) == [0.0]
