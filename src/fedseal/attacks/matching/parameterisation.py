"""What is optimised: pixels, or the weights of an untrained generator that draws them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator as seeded
from fedseal.core.tensors import flatten, unflatten

NOISE = 128
"""Numbers of noise a generator draws an image from."""


class Parameterisation(Protocol):
    """A map from variables [size] to dummy inputs of the model, [B, C, H, W]."""

    shape: tuple[int, int, int, int]
    size: int

    def decode(self, variables: Tensor) -> Tensor:
        """Return the inputs that variables stand for; differentiable."""

    def decode_many(self, variables: Tensor) -> Tensor:
        """Return the inputs [L, B, C, H, W] of several sets of variables [L, size]."""

    def start(self, source: torch.Generator) -> Tensor:
        """Return random variables to start from."""


class Pixels:
    """The inputs themselves.

    Args:
        shape: B, C, H, W.
        draw: returns starting inputs of that shape.
    """

    def __init__(self, shape: tuple[int, int, int, int], draw: Callable[[torch.Size, torch.Generator], Tensor]) -> None:
        self.shape = shape
        self.size = torch.Size(shape).numel()
        self._draw = draw

    def decode(self, variables: Tensor) -> Tensor:
        """Reshape."""
        return variables.reshape(self.shape)

    def decode_many(self, variables: Tensor) -> Tensor:
        """Reshape."""
        return variables.reshape(-1, *self.shape)

    def start(self, source: torch.Generator) -> Tensor:
        """Draw inputs."""
        return self._draw(torch.Size(self.shape), source).reshape(-1)


class DeepImagePrior:
    """The weights of a generator fed with fixed noise: natural images are easier to draw than noise.

    The noise is the same in every run, so that what differs between runs is the weights, and targets attacked together
    do not share a seed.

    The released FedLeak attack optimises these (docs/methods/fedleak-artifact.md): 128 numbers of noise per image,
    blocks of nearest upsampling, spectrally normalised 3x3 convolution, batch normalisation and leaky ReLU, sigmoid at
    the end.

    Args:
        shape: B, C, H, W with H = W = 4 x 2^n.
        normalisation: from images to the model's inputs.
        channels: of every block; the artifact has 256.
    """

    def __init__(self, shape: tuple[int, int, int, int], normalisation: Normalisation, channels: int) -> None:
        blocks = (shape[2] // 4).bit_length() - 1
        if shape[2] != shape[3] or shape[2] != 4 << blocks:
            raise CapabilityError(
                f"the generator draws square images of 4 x 2^n pixels, the data is {shape[2]} x {shape[3]}.",
                hint="Use data of 32 or 64 pixels, or the attack `fedleak`.",
            )
        self.shape = shape
        self._normalisation = normalisation
        self._channels, self._blocks = channels, blocks
        self._noise = torch.randn(shape[0], NOISE, generator=seeded(0, "generator-noise"))
        with torch.random.fork_rng(devices=[]):  # its own weights are never used
            self._net = self.network(shape[1], channels, blocks)
        self._like = {name: p.detach() for name, p in self._net.named_parameters()}
        self.size = sum(p.numel() for p in self._like.values())

    def decode(self, variables: Tensor) -> Tensor:
        """Draw the images with these weights and normalise them."""
        weights = unflatten(variables.clone(), self._like)  # where they lie decides a product's last bits
        noise = self._noise.to(variables)
        images: Tensor = functional_call(self._net, weights, (noise,))
        return self._normalisation(images)

    def decode_many(self, variables: Tensor) -> Tensor:
        """Draw each set."""
        return torch.stack([self.decode(one) for one in variables])

    def start(self, source: torch.Generator) -> Tensor:
        """Draw fresh weights: PyTorch's own initialisation of every layer."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=source)))
            fresh = self.network(self.shape[1], self._channels, self._blocks)
        return flatten({name: p.detach() for name, p in fresh.named_parameters()})

    def network(self, outputs: int, channels: int, blocks: int) -> nn.Module:
        """Return a generator with fresh weights, from noise [B, 128] to images with `outputs` channels."""
        return _Generator(outputs, channels, blocks)


class _SpectralConv(nn.Conv2d):
    """A convolution whose weight is divided by an estimate of its largest singular value; no state is kept."""

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.weight.flatten(1)
        with torch.no_grad():
            u = matrix.sum(1)
            for _ in range(3):
                v = F.normalize(matrix.t() @ u, dim=0)
                u = F.normalize(matrix @ v, dim=0)
        sigma = u @ (matrix @ v)
        return F.conv2d(x, self.weight / sigma, self.bias, padding=1)


class _Generator(nn.Module):
    def __init__(self, outputs: int, channels: int, blocks: int) -> None:
        super().__init__()
        self.channels = channels
        self.stem = nn.Linear(NOISE, channels * 16)
        layers: list[nn.Module] = []
        for _ in range(blocks):
            layers += [
                nn.Upsample(scale_factor=2),
                _SpectralConv(channels, channels, 3),
                nn.BatchNorm2d(channels, track_running_stats=False),
                nn.LeakyReLU(0.1),
            ]
        self.body = nn.Sequential(*layers)
        self.head = _SpectralConv(channels, outputs, 3)

    def forward(self, noise: Tensor) -> Tensor:
        x = self.stem(noise).reshape(len(noise), self.channels, 4, 4)
        return torch.sigmoid(self.head(self.body(x)))
