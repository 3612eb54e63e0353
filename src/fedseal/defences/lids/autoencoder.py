"""LIDS's autoencoder: 4x4 convolutions of stride 2 and padding 1, ReLU between them, none after latent or output.

On 32x32 images the filters are 64, 128, 256 and 64 (latent 64 x 2 x 2), mirrored by transposed convolutions; smaller
images take fewer stages, so that the latent keeps its 2 x 2 (or 3 x 3, ...) positions. Adam 1e-3, batches of 128, MSE.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import InputError
from fedseal.core.seeds import derive_seed

FILTERS = (64, 128, 256, 64)
"""Channels after each stage; with fewer stages the first of them, and the latent's 64."""

BATCH_SIZE = 128
LEARNING_RATE = 1e-3
_CHUNK = 1024


def stage_filters(height: int, width: int) -> tuple[int, ...]:
    """Return the channels after each stage for images of this size: as many halvings as leave two positions."""
    stages, side = 0, min(height, width)
    while stages < len(FILTERS) and side >= 4:
        stages, side = stages + 1, side // 2
    if not stages:
        raise InputError(
            f"LIDS cannot halve images of {height} x {width} pixels.", hint="Images need at least 4 x 4 pixels."
        )
    return (*FILTERS[: stages - 1], FILTERS[-1])


class Autoencoder(nn.Module):
    """Images [N, C, H, W] to latents and back.

    Args:
        shape: C, H, W.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        filters = (channels, *stage_filters(height, width))
        sizes = [(height, width)]
        for _ in filters[1:]:
            sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(filters):
            down += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.ReLU()]
        for stage in range(len(filters) - 1, 0, -1):
            (small_h, small_w), (large_h, large_w) = sizes[stage], sizes[stage - 1]
            odd = (large_h - 2 * small_h, large_w - 2 * small_w)  # an odd side was rounded down on its way in
            up += [nn.ConvTranspose2d(filters[stage], filters[stage - 1], 4, 2, 1, output_padding=odd), nn.ReLU()]
        self.encoder = nn.Sequential(*down[:-1])
        self.decoder = nn.Sequential(*up[:-1])

    def encode(self, images: Tensor) -> Tensor:
        """Return latents [N, 64, h, w]."""
        return torch.cat([self.encoder(part) for part in torch.split(images, _CHUNK)])

    def decode(self, latents: Tensor) -> Tensor:
        """Return images, not cut to [0, 1]."""
        return torch.cat([self.decoder(part) for part in torch.split(latents, _CHUNK)])

    def forward(self, images: Tensor) -> Tensor:
        """Return the images as they come back."""
        restored: Tensor = self.decoder(self.encoder(images))
        return restored


class AutoencoderTraining:
    """Training of a client's autoencoder on its own images, that can be interrupted between epochs.

    Args:
        images: [N, C, H, W] in [0, 1].
        seed: of weights and order.

    Attributes:
        epoch: passes done.
    """

    def __init__(self, images: Tensor, seed: int) -> None:
        self._images = images
        self._seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "lids-autoencoder"))
            self.network = Autoencoder((images.shape[1], images.shape[2], images.shape[3])).to(images)
        self._adam = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE, fused=True)
        self.epoch = 0

    def advance(self) -> float:
        """Pass once through the images and return the mean squared error on the way."""
        source = torch.Generator().manual_seed(derive_seed(self._seed, "lids-epoch", self.epoch))
        order = torch.randperm(len(self._images), generator=source).to(self._images.device)
        total = torch.zeros((), device=self._images.device)
        for part in torch.split(order, BATCH_SIZE):
            images = self._images[part]
            loss = F.mse_loss(self.network(images), images)
            self._adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._adam.step()
            total += loss.detach() * len(part)
        self.epoch += 1
        return float(total) / len(self._images)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state between two epochs."""
        moments = {
            f"adam.{index}.{name}": value
            for index, state in self._adam.state_dict()["state"].items()
            for name, value in state.items()
        }
        network = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        state = {**network, **moments, "epoch": torch.tensor(self.epoch)}
        return {name: value.detach().clone() for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        self.network.load_state_dict(
            {key.removeprefix("network."): value for key, value in state.items() if key.startswith("network.")}
        )
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            if key.startswith("adam."):
                _, index, name = key.split(".", 2)
                moments.setdefault(int(index), {})[name] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        self.epoch = int(state["epoch"])
