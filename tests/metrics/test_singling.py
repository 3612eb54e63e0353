"""An original is ranked among strangers; without a leak each rank is as likely as any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.metrics.picked import Picked, Placed, picked
from fedseal.metrics.singling import FEWEST_STRANGERS, LineUp, draw_strangers, line_up, pointed

SIDE = 6


def pictures(count: int, seed: int) -> Batch:
    """Return smooth random pictures of 3 classes."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 3, 3, generator=source)
    labels = torch.randint(0, 3, (count,), generator=source)
    return Batch(torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear"), labels)


def read(batches: list[LineUp]) -> Picked:
    places = {
        name: [[Placed(*p) for p in zip(one.ranks[name], one.sizes, one.twins, strict=True)] for one in batches]
        for name in batches[0].ranks
    }
    found = picked(places)
    assert found is not None
    return found


def ranked(originals: Batch, rebuilt: torch.Tensor, strangers: Batch) -> LineUp:
    found = line_up(originals, rebuilt, strangers)
    assert found is not None
    return found


def test_a_noisy_copy_points_at_its_original():
    strangers, owners = pictures(199, 0), pictures(8, 1)
    noisy = (owners.images + 0.1 * torch.randn(owners.images.shape, generator=torch.Generator().manual_seed(2))).clamp(
        0, 1
    )
    found = [
        ranked(Batch(owners.images[i : i + 1], owners.labels[i : i + 1]), noisy[i : i + 1], strangers) for i in range(8)
    ]
    result = read(found)
    assert (result.count, result.n, result.size) == (8, 8, 200)
    assert result.chance == pytest.approx(1 / 200)
    assert result.significant
    assert all(one.top[0][0] == -1 for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["the same picture every time", "noise"])
@pytest.mark.parametrize("size", [1, 4])
def test_without_a_leak_it_is_significant_no_more_often_than_it_says(kind: str, size: int):
    alarms, firsts = [], []
    for seed in range(60):
        everyone = pictures(39 + 8 * size, seed)
        strangers = Batch(everyone.images[:39], everyone.labels[:39])
        found = []
        for t in range(8):
            own = slice(39 + t * size, 39 + (t + 1) * size)
            source = torch.Generator().manual_seed(10 * seed + t if kind == "noise" else 1000 + seed)
            rebuilt = torch.rand(size, 1, SIDE, SIDE, generator=source)
            found.append(ranked(Batch(everyone.images[own], everyone.labels[own]), rebuilt, strangers))
        result = read(found)
        alarms.append(result.significant)
        firsts.append(np.mean([one.ranks["mse"][0] == 1 for one in found]))
    assert np.mean(alarms) <= 0.06
    assert np.mean(firsts) == pytest.approx(1 / 40, abs=0.02)


def test_of_a_batch_every_candidate_counts_by_its_best_reconstruction():
    strangers, owners = pictures(50, 3), pictures(4, 4)
    shuffled = owners.images[torch.tensor([2, 0, 3, 1])]
    found = ranked(owners, shuffled, strangers)
    assert found.ranks["mse"] == (1, 1, 1, 1)
    lost = ranked(owners, shuffled[:1].expand(4, -1, -1, -1), strangers)  # only image 2 was rebuilt
    assert lost.ranks["mse"][2] == 1
    assert max(lost.ranks["mse"]) > 1


def test_likenesses_stand_beside_the_line_up_and_reconstructions_keep_their_score():
    strangers, owners = pictures(50, 3), pictures(2, 4)
    flat = torch.full_like(owners.images, 0.5)
    alone, helped = ranked(owners, flat, strangers), line_up(owners, flat, strangers, likenesses=owners.images)
    assert helped is not None
    assert helped.ranks["correlation"] == (1, 1) != alone.ranks["correlation"]
    assert helped.stranger_psnr == alone.stranger_psnr


def test_what_points_at_an_original_is_told_from_what_does_not():
    others, owners = pictures(50, 3), pictures(2, 4)
    assert bool((pointed(owners.images, owners.images, others.images) > 0).all())
    assert bool((pointed(owners.images, others.images[:2], others.images) < 0).all())
    assert bool((pointed(owners.images, torch.full_like(owners.images, 0.5), others.images) <= 0).all())


def test_near_duplicates_leave_the_line_up_and_are_paid_for():
    strangers, owners = pictures(40, 5), pictures(1, 6)
    strangers.images[7] = owners.images[0]
    found = ranked(owners, owners.images, strangers)
    assert (found.sizes, found.twins, found.ranks["mse"]) == ((41,), (1,), (1,))
    assert found.stranger_psnr[0] < 30
    assert read([found]).chance == pytest.approx(2 / 41)


def test_a_flat_answer_ties_with_everybody_and_wins_nothing():
    found = ranked(pictures(1, 7), torch.full((1, 1, SIDE, SIDE), 0.5), pictures(30, 8))
    assert found.ranks["correlation"] == (31,)


def test_given_labels_do_not_single_out():
    strangers, owners = pictures(300, 9), pictures(6, 10)
    means = torch.stack([strangers.images[strangers.labels == label].mean(0) for label in owners.labels])
    found = line_up(owners, means, strangers, by_class=True)
    assert found is not None
    assert found.sizes == tuple(1 + int((strangers.labels == label).sum()) for label in owners.labels)


def test_too_few_strangers_are_said_by_silence():
    owners = pictures(1, 11)
    assert line_up(owners, owners.images, pictures(FEWEST_STRANGERS - 1, 12)) is None
    assert (
        line_up(owners, owners.images, Batch(torch.empty(0, 1, SIDE, SIDE), torch.empty(0, dtype=torch.long))) is None
    )
    assert picked({}) is None


def test_strangers_are_drawn_in_order_and_by_class():
    labels = torch.tensor([0, 1, 0, 1, 2, 0])
    order = torch.tensor([5, 4, 3, 2, 1, 0])
    assert draw_strangers(labels, order, by_class=False, count=4).tolist() == [5, 4, 3, 2]
    assert draw_strangers(labels, order, by_class=True, count=2).tolist() == [5, 2, 3, 1, 4]
    assert draw_strangers(labels, order[:0], by_class=True).tolist() == []


def test_two_of_eight_among_two_hundred_are_no_chance_and_one_is():
    def firsts(count: int) -> Picked:
        places = [[Placed(1 if i < count else 100, 200)] for i in range(8)]
        found = picked({"mse": places})
        assert found is not None
        return found

    assert firsts(2).p_first == pytest.approx(28 * 2 / (200 * 201), rel=0.1)  # two of eight, shared strangers
    assert firsts(2).significant
    assert not firsts(1).significant
