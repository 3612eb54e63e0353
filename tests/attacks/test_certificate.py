"""The single-record certificate: bins of one record have it, bins of two have not, and nobody looks at the truth."""

from __future__ import annotations

import re

import pytest
import torch

from fedseal.core.attack import ATTACKS
from fedseal.core.batch import Batch
from fedseal.core.reconstruction import Reconstruction

from .test_active_exact import SHAPE, Federation, alone_in_bins, net, recovered


def certified(found: Reconstruction) -> tuple[int, int]:
    """Return how many bins, or quotients, of how many are certified."""
    (words,) = [note for note in found.notes if note.startswith("certified")]
    one, all_of = re.findall(r"\d+", words)[:2]
    return int(one), int(all_of)


@pytest.mark.parametrize("labels", [None, torch.full((16,), 3)], ids=["any labels", "one class"])
@pytest.mark.parametrize("sparse", [False, True])
def test_imprint_certifies_the_bins_of_one_record_and_no_mixture(sparse: bool, labels: torch.Tensor | None) -> None:
    attack = ATTACKS.build(f"imprint:bins=32,sparse={sparse}")
    federation = Federation(net("lenet-relu"), batch=16, labels=labels)
    observation = federation.provoke(attack)
    alone = alone_in_bins(observation.model.front, federation.images, sparse=sparse)  # type: ignore[arg-type]
    found = attack.run(observation)
    count, bins = certified(found)
    assert 4 <= len(alone) <= 14
    assert bins > len(alone)  # some are shared
    assert count == len(alone) == len(recovered(found.images, federation.images))


@pytest.mark.parametrize("spec", ["imprint:bins=32", "loki:bins=32"])
@pytest.mark.parametrize("same_class", [True, False])
def test_two_records_that_share_a_bin_are_not_certified(spec: str, same_class: bool) -> None:
    attack = ATTACKS.build(spec)
    labels = torch.tensor([1, 1 if same_class else 2, 3, 4])
    federation = Federation(net("lenet"), batch=4, labels=labels)
    noise = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = noise - noise.mean((1, 2, 3), keepdim=True)
    level = torch.tensor([0.2, 0.2001, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1, 1)
    federation.images = (level + 0.2 * noise).clamp(0, 1)
    federation.batches = [Batch(federation.images, labels)]
    assert certified(attack.run(federation.provoke(attack))) == (2, 3)


def test_what_is_certified_in_single_precision_is_exact() -> None:
    attack = ATTACKS.build("imprint:bins=32")
    federation = Federation(net("lenet-relu"), batch=16)
    federation.model.float()
    federation.images = federation.images.float()
    federation.batches = [Batch(federation.images, federation.labels)]
    observation = federation.provoke(attack)
    found = attack.run(observation)
    alone = alone_in_bins(observation.model.front, federation.images, sparse=False)  # type: ignore[arg-type]
    assert len(alone) - 1 <= certified(found)[0] <= len(alone)


def test_loki_certifies_through_an_aggregate_what_one_client_alone_hit() -> None:
    attack = ATTACKS.build("loki:bins=64")
    federation = Federation(net("lenet"), batch=3, clients=2)
    count, bins = certified(attack.run(federation.provoke(attack)))
    assert 1 <= count <= bins <= 6


def test_trap_weights_certify_what_several_neurons_agree_on() -> None:
    attack = ATTACKS.build("cah:rows=256")
    federation = Federation(net("mlp"), batch=8)
    found = attack.run(federation.provoke(attack))
    count, quotients = certified(found)
    assert 1 <= count <= quotients
    assert len(recovered(found.images, federation.images)) >= count


def test_noise_and_local_steps_leave_nothing_certified() -> None:
    attack = ATTACKS.build("imprint:bins=32")
    found = attack.run(Federation(net("lenet"), batch=4, steps=2).provoke(attack))
    assert any(note.startswith("no certificate: the model moved") for note in found.notes)
    observation = Federation(net("lenet"), batch=8).provoke(attack)
    for value in observation.update.tensors.values():
        value += 0.1 * value.abs().mean() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    assert certified(attack.run(observation))[0] == 0
