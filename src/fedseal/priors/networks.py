"""The networks behind priors: a denoiser (U-Net), a DCGAN and its critic, and an auto-encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

_SPREAD = 0.5
"""Deviation of pixels around the middle grey, by which a denoiser scales its inputs."""
_SPARE = 16
"""Directions by which a random projection is wider than the components wanted of it."""


class Denoiser(nn.Module):
    """Returns clean images of noisy ones, given the noise's deviation: a small U-Net on half the resolution.

    Inputs and outputs are scaled as by Karras et al. (NeurIPS 2022, Table 1): one network serves all deviations.

    Args:
        channels: of the images.
        width: of its first level.
    """

    def __init__(self, channels: int, width: int = 48) -> None:
        super().__init__()
        wide = width + width // 2
        self.level = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.stem = nn.Conv2d(4 * channels, width, 3, padding=1)
        self.down = _Block(width, width, width)
        self.middle = nn.ModuleList([_Block(width, wide, width), _Block(wide, wide, width)])
        self.up = _Block(width + wide, width, width)
        self.head = nn.Conv2d(width, 4 * channels, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
        """Return clean images of noisy ones [N, C, H, W] under deviations [N]."""
        height, width = noisy.shape[2:]
        extra = (0, -width % 4, 0, -height % 4)
        x = F.pad(noisy - 0.5, extra, mode="replicate")
        s = sigma.view(-1, 1, 1, 1)
        total = (s.square() + _SPREAD**2).sqrt()
        told = torch.stack([sigma.log() / 4, sigma], 1)
        h = self._body(F.pixel_unshuffle(x / total, 2), self.level(told))
        clean = x * (_SPREAD / total).square() + F.pixel_shuffle(h, 2) * (s * _SPREAD / total)
        return clean[:, :, :height, :width] + 0.5

    def denoise(self, images: Tensor, sigma: float) -> Tensor:
        """Return images without noise of deviation `sigma`."""
        result: Tensor = self(images, images.new_full((len(images),), max(sigma, 1e-3)))
        return result

    def _body(self, x: Tensor, told: Tensor) -> Tensor:
        top = self.down(self.stem(x), told)
        h = F.avg_pool2d(top, 2)
        for block in self.middle:
            h = block(h, told)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        result: Tensor = self.head(F.silu(self.up(torch.cat([top, h], 1), told)))
        return result


class _Block(nn.Module):
    """Two normalised convolutions beside a shortcut, shifted by what is told of the noise."""

    def __init__(self, inputs: int, outputs: int, told: int) -> None:
        super().__init__()
        self.first = _normalised(inputs, outputs)
        self.shift = nn.Linear(told, outputs)
        self.second = _normalised(outputs, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        h = self.first(x) + self.shift(told)[:, :, None, None]
        result: Tensor = self.shortcut(x) + self.second(h)
        return result


def _normalised(inputs: int, outputs: int) -> nn.Sequential:
    groups = next(count for count in (8, 6, 4, 3, 2, 1) if inputs % count == 0)
    return nn.Sequential(nn.GroupNorm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, 1, 1))


class DCGAN(nn.Module):
    """The generator of DCGAN (Radford et al., ICLR 2016) as in PyTorch's example, whose weights it can hold.

    Args:
        latent: numbers of noise.
        width: ngf, channels before the last layer.
        channels: of the images.
        side: of the images, 4 x 2^n.
    """

    def __init__(self, latent: int, width: int, channels: int, side: int) -> None:
        super().__init__()
        self.latent = latent
        doublings = side.bit_length() - 3
        widths = [width << place for place in range(doublings - 1, -1, -1)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, widths[0], 4, 1, 0, bias=False)]
        for inputs, outputs in zip(widths, [*widths[1:], channels], strict=True):
            layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=False)]
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False)]
        self.main = nn.Sequential(*layers, nn.Tanh())

    def decode(self, latents: Tensor) -> Tensor:
        """Draw images in [0, 1]."""
        drawn: Tensor = self.main(latents[:, :, None, None])
        return (drawn + 1) / 2


class Critic(nn.Module):
    """DCGAN's discriminator, with spectral normalisation (Miyato et al., ICLR 2018) in the place of batch statistics.

    Args:
        channels: of the images.
        width: of the first layer.
        side: of the images.
    """

    def __init__(self, channels: int, width: int, side: int) -> None:
        super().__init__()
        doublings = side.bit_length() - 3
        widths = [width << place for place in range(doublings)]
        layers: list[nn.Module] = []
        for inputs, outputs in zip([channels, *widths[:-1]], widths, strict=True):
            layers += [spectral_norm(nn.Conv2d(inputs, outputs, 4, 2, 1)), nn.LeakyReLU(0.2)]
        self.main = nn.Sequential(*layers, spectral_norm(nn.Conv2d(widths[-1], 1, 4)))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each image [N, C, H, W] in [0, 1]."""
        scores: Tensor = self.main(images * 2 - 1)
        return scores.flatten()


class AutoEncoder(nn.Module):
    """A linear encoder in closed form (principal components, whitened) and a decoder that refines what it keeps.

    The latents of natural images are uncorrelated with variance 1 by construction, so a Gaussian is their prior.

    Args:
        shape: C, H, W.
        latent: components kept.
        width: of the refining layers.
    """

    mean: Tensor
    basis: Tensor

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        self.latent = latent
        self.shape = shape
        self.register_buffer("mean", torch.zeros(math.prod(shape)))
        self.register_buffer("basis", torch.zeros(latent, math.prod(shape)))
        self.refine = nn.Sequential(
            nn.Conv2d(shape[0], width, 5, padding=2),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, shape[0], 3, padding=1),
        )
        nn.init.zeros_(self.refine[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.refine[-1].bias)  # type: ignore[arg-type]

    def set_components(self, images: Tensor) -> None:
        """Take the principal components of images [N, C, H, W], scaled so that their coefficients have variance 1.

        They are found by a random projection, drawn from the global generator.
        """
        rows = images.flatten(1)
        self.mean.copy_(rows.mean(0))
        kept = min(self.latent, *rows.shape)
        _, sizes, directions = torch.svd_lowrank(rows - self.mean, min(kept + _SPARE, *rows.shape), niter=4)
        scale = (sizes[:kept] / math.sqrt(max(1, len(rows) - 1))).clamp(min=1e-6)
        self.basis[:kept].copy_(directions.t()[:kept] * scale[:, None])

    def encode(self, images: Tensor) -> Tensor:
        """Return the latents [N, latent] of images."""
        squares = self.basis.square().sum(1).clamp(min=1e-12)
        return (images.flatten(1) - self.mean) @ self.basis.t() / squares

    def decode(self, latents: Tensor) -> Tensor:
        """Return the images of latents, in [0, 1] but for a little."""
        coarse = (self.mean + latents @ self.basis).view(-1, *self.shape)
        result: Tensor = coarse + self.refine(coarse)
        return result

    def denoise(self, images: Tensor, sigma: float) -> Tensor:
        """Return the nearest images it can draw, coefficients shrunk as noise of deviation `sigma` asks for."""
        squares = self.basis.square().sum(1)
        return self.decode(self.encode(images) * (squares / (squares + sigma**2).clamp(min=1e-12)))
