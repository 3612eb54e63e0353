"""The span test on patches: what is public and stood in an image is named, at its place, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.attack import ATTACKS
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.models.registry import build_model

SHAPE, SIDE = (1, 16, 16), 4
VIT = "vit-tiny:width=48,depth=2,heads=3,patch=4"


def mosaic(pool: Tensor, seed: int) -> Tensor:
    """Return an image [1, 1, 16, 16] of patches of the pool."""
    chosen = torch.randint(len(pool), (16,), generator=torch.Generator().manual_seed(seed))
    tiles = pool[chosen].view(4, 4, SIDE, SIDE)
    return tiles.permute(0, 2, 1, 3).reshape(1, *SHAPE)


def seen(model: nn.Module, images: Tensor, public: Tensor) -> Observation:
    labels = torch.arange(len(images)) % 10
    loss = nn.functional.cross_entropy(model(images), labels)
    sent = {name: value for name, value in model.named_parameters() if value.requires_grad}
    update = dict(zip(sent, torch.autograd.grad(loss, list(sent.values())), strict=True))
    known = Knowledge(SHAPE, 10, batch_size=len(images), labels=labels, label_rule="true")
    known = Knowledge(**{**known.__dict__, "auxiliary": Batch(public, torch.arange(len(public)) % 10)})
    return Observation(model, Update(update), known)


@pytest.fixture
def pool() -> Tensor:
    return torch.rand(40, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_of_public_patches_comes_back_whole(pool: Tensor, dtype: torch.dtype) -> None:
    model = build_model(VIT, input_shape=SHAPE, num_classes=10, seed=0).to(dtype)
    image = mosaic(pool, 1).to(dtype)
    public = torch.cat([mosaic(pool, seed) for seed in range(2, 30)]).to(dtype)
    found = ATTACKS.build("patches").run(seen(model, image, public))
    assert torch.equal(found.images, image)
    assert "16 of 16 places" in found.notes[-1]


def test_patches_that_are_not_public_are_not_claimed(pool: Tensor) -> None:
    model = build_model(VIT, input_shape=SHAPE, num_classes=10, seed=0)
    image, public = mosaic(pool, 1), torch.cat([mosaic(pool, seed) for seed in range(2, 30)])
    image[:, :, :8] = torch.rand(1, 1, 8, 16, generator=torch.Generator().manual_seed(5))
    found = ATTACKS.build("patches").run(seen(model, image, public))
    assert "8 of 16 places" in found.notes[-1]
    assert torch.equal(found.images[:, :, 8:], image[:, :, 8:])


def test_more_tokens_than_the_layer_is_wide_leave_the_test_blind(pool: Tensor) -> None:
    model = build_model(VIT, input_shape=SHAPE, num_classes=10, seed=0)
    images = torch.cat([mosaic(pool, seed) for seed in range(4)])
    found = ATTACKS.build("patches").run(seen(model, images, images))
    assert "blind" in found.notes[-1]


def test_networks_without_tokens_are_refused_in_words(pool: Tensor) -> None:
    model = build_model("lenet", input_shape=SHAPE, num_classes=10, seed=0)
    with pytest.raises(CapabilityError, match="needs a vision transformer"):
        ATTACKS.build("patches").run(seen(model, mosaic(pool, 1), mosaic(pool, 2)))
