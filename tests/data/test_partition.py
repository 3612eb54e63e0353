"""Partitions: every image once, the skew that was asked for, the same by seed, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedseal.core.errors import InputError, UsageError
from fedseal.data.dataset import ImageDataset
from fedseal.data.partition import PARTITIONERS, Partition, partition
from fedseal.data.partition.dealing import apportion
from fedseal.data.partition.features import image_variation
from fedseal.data.registry import DATASETS

CLASSES = 5
SPECS = (
    "iid",
    "dirichlet",
    "dirichlet:alpha=0.05,at_least=1",
    "classes:per_client=2",
    "quantity",
    "quantity:power=0",
    "total-variation",
    "total-variation:strength=0.5",
)


def dataset_of(per_class: int = 60, classes: int = CLASSES) -> ImageDataset:
    """Images of all kinds of detail: the amplitude of a noise grows within a class."""
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat(per_class)
    strength = torch.linspace(0, 1, per_class).repeat_interleave(classes)
    noise = torch.rand(len(labels), 1, 6, 6, generator=source) - 0.5
    images = (255 * (0.5 + strength.view(-1, 1, 1, 1) * noise)).to(torch.uint8)
    return ImageDataset("made", images, labels, tuple("abcdefghij"[:classes]))


DATA = dataset_of()


def deal(spec: str, clients: int = 6, seed: int = 0, dataset: ImageDataset = DATA) -> Partition:
    return partition(dataset, spec, clients, seed)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("clients", [3, 7])
def test_every_image_belongs_to_exactly_one_client(spec: str, clients: int) -> None:
    dealt = deal(spec, clients)
    assert len(dealt) == clients
    assert sorted(torch.cat(dealt.indices).tolist()) == list(range(len(DATA)))
    assert min(dealt.sizes) > 0
    assert int(dealt.counts.sum()) == len(DATA)
    for places, counts, own in zip(dealt.indices, dealt.counts, dealt.datasets(DATA), strict=True):
        assert torch.equal(torch.bincount(DATA.labels[places], minlength=CLASSES), counts)
        assert torch.equal(own.labels, DATA.labels[places])


@pytest.mark.parametrize("spec", SPECS)
def test_a_seed_decides(spec: str) -> None:
    one, same, other = (deal(spec, seed=seed).indices for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    if spec != "total-variation":  # which has nothing to draw
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_every_registered_partitioner_is_tested() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} | {"file"} == set(PARTITIONERS.names())
    assert "iid" not in DATASETS.names()


def skew(dealt: Partition) -> float:
    """Return the mean total variation distance between a client's and everyone's classes, 0 to 1."""
    own = dealt.counts / dealt.counts.sum(1, keepdim=True)
    return float(0.5 * (own - 1 / CLASSES).abs().sum(1).mean())


def test_dirichlet_is_as_skewed_as_its_concentration_says() -> None:
    distances = [skew(deal(f"dirichlet:alpha={alpha},at_least=1")) for alpha in (0.05, 0.5, 5, 500)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.5
    assert distances[-1] < 0.1


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    """Of K clients, a share has the variance (K - 1) / (K^2 (K alpha + 1))."""
    alpha, clients = 2.0, 4
    shares = torch.cat(
        [(deal(f"dirichlet:alpha={alpha},at_least=1", clients, seed).counts / 60).T for seed in range(120)]
    )
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert float(shares.var()) == pytest.approx(expected, rel=0.15)
    assert float(shares.mean()) == pytest.approx(1 / clients, abs=1e-6)


def test_dirichlet_keeps_its_least_amount() -> None:
    assert min(deal("dirichlet:alpha=0.3,at_least=20", 5).sizes) >= 20
    with pytest.raises(InputError, match="cannot give 6 clients 60 each"):
        deal("dirichlet:at_least=60")
    with pytest.raises(InputError, match="fewer than 40 images, 1000 times"):
        deal("dirichlet:alpha=0.01,at_least=40")


@pytest.mark.parametrize(("per_client", "clients"), [(1, 5), (2, 6), (3, 4), (5, 3)])
def test_clients_hold_as_many_classes_as_asked_for_and_classes_as_many_clients(per_client: int, clients: int) -> None:
    dealt = deal(f"classes:per_client={per_client}", clients)
    assert (dealt.counts > 0).sum(1).tolist() == [per_client] * clients
    holders = (dealt.counts > 0).sum(0)
    assert int(holders.max() - holders.min()) <= 1
    for label in range(CLASSES):
        shared = dealt.counts[:, label][dealt.counts[:, label] > 0]
        assert int(shared.max() - shared.min()) <= 1


def test_classes_that_cannot_be_dealt_are_refused() -> None:
    with pytest.raises(InputError, match="more than the 5 there are"):
        deal("classes:per_client=6")
    with pytest.raises(InputError, match="cannot hold all 5 classes"):
        deal("classes:per_client=1", 4)
    with pytest.raises(InputError, match="class 'a' has 1 images for 5 clients"):
        deal("classes:per_client=5", 5, dataset=dataset_of(1))


def test_quantities_follow_the_power_law_and_classes_stay_mixed() -> None:
    sizes = sorted(deal("quantity:power=1", 6).sizes, reverse=True)
    harmonic = sum(1 / rank for rank in range(1, 7))
    assert sizes == pytest.approx([300 / harmonic / rank for rank in range(1, 7)], abs=1)
    assert skew(deal("quantity:power=1", 3)) < 0.15
    assert set(deal("quantity:power=0").sizes) == {50}
    assert min(deal("quantity:power=5,at_least=8").sizes) >= 8
    with pytest.raises(InputError, match="cannot give 6 clients 51 each"):
        deal("quantity:at_least=51")


def test_variation_is_the_sum_of_mean_differences() -> None:
    image = torch.tensor([[[[0, 255], [0, 0]]]], dtype=torch.uint8)
    assert image_variation(image).tolist() == pytest.approx([0.5 + 0.5])
    assert image_variation(DATA.images).argmin() < CLASSES


def test_smooth_images_go_to_the_first_client_and_classes_stay_balanced() -> None:
    def means(spec: str) -> list[float]:
        return [float(image_variation(DATA.images[places]).mean()) for places in deal(spec).indices]

    whole, half, none = (means(f"total-variation:strength={strength}") for strength in (1, 0.5, 0))
    assert whole == sorted(whole)
    assert whole[-1] - whole[0] > half[-1] - half[0] > 0.1
    assert max(none) - min(none) < 0.1
    assert torch.equal(deal("total-variation").counts, torch.full((6, CLASSES), 10))
    assert max(deal("total-variation", 7).sizes) - min(deal("total-variation", 7).sizes) <= 1


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_a_file_of_ones_own_is_taken_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"parts.{kind}"
    if kind == "json":
        path.write_text(json.dumps([[4, 2], [0], [299]]))
    else:
        np.savez(path, a=np.array([4, 2]), b=np.array([0]), c=np.array([299], dtype=np.uint16))
    dealt = deal(f"file:{path}", 3)
    assert [places.tolist() for places in dealt.indices] == [[2, 4], [0], [299]]
    assert dealt.note == "296 of 300 images belong to nobody"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[1, 2], [2]]", "image 2 to more than one client"),
        ("[[1, 1], [2]]", "image 1 to more than one client, or twice"),
        ("[[1], [300]]", "images outside of the 300"),
        ("[[1], [-1]]", "images outside of the 300"),
        ("[[1], []]", "leaves 1 of 2 clients without any image, client-1 first"),
        ("[[1]]", "1 parts for 2 clients"),
        ('[["a"], [2]]', "client 0 has no list of integers"),
        ("[[0.5], [2]]", "client 0 has no list of integers"),
        ("[[[1]], [2]]", "client 0 has no list of integers"),
        ('{"a": [1]}', "is no list of lists"),
        ("[[1], [2", "holds no partition"),
    ],
)
def test_a_file_that_is_no_partition_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        deal(f"file:{path}", 2)


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        deal(f"file:{tmp_path / 'missing.json'}", 2)
    (tmp_path / "pickled.npz").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InputError, match=r"pickled\.npz is no numpy archive"):
        deal(f"file:{tmp_path / 'pickled.npz'}", 2)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="cannot deal 300 images to 301 clients"):
        deal("iid", 301)
    for spec in ("dirichlet:alpha=0", "classes:per_client=0", "quantity:power=-1", "total-variation:strength=2"):
        with pytest.raises(UsageError, match=r"needs|cannot be"):
            deal(spec)
    with pytest.raises(UsageError, match="'dirichlet'"):
        deal("dirichle")


def test_apportioning_is_exact_and_nearest() -> None:
    assert apportion(10, torch.tensor([0.5, 0.26, 0.24])).tolist() == [5, 3, 2]
    assert apportion(7, torch.tensor([1.0, 0.0])).tolist() == [7, 0]
    counts = apportion(1000, torch.rand(9, generator=torch.Generator().manual_seed(0)).softmax(0))
    assert int(counts.sum()) == 1000
