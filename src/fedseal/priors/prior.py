"""A learned prior: what it is made of, what it can do, and what it was trained on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import CapabilityError

Kind: TypeAlias = Literal["patch", "ae", "gan", "diffusion"]
KINDS: tuple[Kind, ...] = ("patch", "ae", "gan", "diffusion")


@runtime_checkable
class Denoises(Protocol):
    """What takes noise away."""

    def denoise(self, images: Tensor, sigma: float) -> Tensor:
        """Return images [N, C, H, W] as they probably were before noise of deviation `sigma` was added."""


@runtime_checkable
class Generates(Protocol):
    """What draws images from latents that are N(0, I) a priori.

    Attributes:
        latent: numbers behind one image.
    """

    latent: int

    def decode(self, latents: Tensor) -> Tensor:
        """Return the images [N, C, H, W] in [0, 1] of latents [N, latent]; differentiable."""


@dataclass(frozen=True)
class Origin:
    """What a prior was trained on: named knowledge of the attacker who uses it.

    Attributes:
        words: for the ledger.
        digests: of its images, int64 [N], sorted; empty where they are not known.
    """

    words: str
    digests: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def holds(self, images: Tensor) -> int:
        """Return how many of images [N, C, H, W] it was trained on."""
        return int(torch.isin(digests_of(images), self.digests).sum())


def digests_of(images: Tensor) -> Tensor:
    """Return a number for each image [N, C, H, W] that its content determines at eight bits per pixel, int64 [N]."""
    pixels = (images.detach().cpu().double().clamp(0, 1) * 255).round().to(torch.uint8).contiguous()
    hashes = [hashlib.sha256(repr(tuple(one.shape)).encode() + one.numpy().tobytes()).digest()[:8] for one in pixels]
    numbers = [int.from_bytes(one, "big", signed=True) for one in hashes]
    return torch.tensor(numbers, dtype=torch.long)


@dataclass(frozen=True)
class Quality:
    """How good a prior is on public images it was not trained on.

    Attributes:
        reconstruction_db: PSNR of what it makes of them: denoised at deviation 0.1, or encoded and decoded, or the
            nearest image it can generate.
        distance: Frechet distance between its samples and those images, in their first principal components.
        reference: the same between training images and them: what a perfect sampler would have.
        images: so many were held out.
    """

    reconstruction_db: float
    distance: float
    reference: float
    images: int

    def __str__(self) -> str:
        return (
            f"{self.reconstruction_db:.1f} dB on {self.images} held-out images; samples differ from them by "
            f"{self.distance:.2f} (training images by {self.reference:.2f}) in Frechet distance"
        )


@dataclass(frozen=True)
class Prior:
    """A trained prior.

    Attributes:
        kind: which.
        shape: C, H, W of what it was trained on.
        engine: the network, or the mixture.
        origin: what it was trained on.
        quality: on held-out images; None where nobody measured.
    """

    kind: str
    shape: tuple[int, int, int]
    engine: nn.Module
    origin: Origin
    quality: Quality | None = None

    @property
    def generates(self) -> bool:
        """Whether it has latents to search in."""
        return isinstance(self.engine, Generates)

    @property
    def latent(self) -> int:
        """Numbers behind one image, of a prior that generates."""
        return self._generator.latent

    @torch.no_grad()
    def denoise(self, images: Tensor, sigma: float) -> Tensor:
        """Return images [N, C, H, W] in [0, 1] without the noise of deviation `sigma`."""
        if not isinstance(self.engine, Denoises):
            raise CapabilityError(
                f"a prior of the kind {self.kind} does not denoise.", hint="Use patch, diffusion or ae."
            )
        shape = tuple(images.shape[1:])
        if shape[0] != self.shape[0] or (self.generates and shape != self.shape):
            raise self.misfit(shape)
        return self.engine.denoise(images.float(), sigma).clamp(0, 1).to(images)

    def decode(self, latents: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """Return images of `shape` of latents [N, latent], resized and turned grey where the shape asks for it."""
        images = self._generator.decode(latents)
        if shape[0] == 1 and images.shape[1] == 3:
            images = images.mean(1, keepdim=True)
        if images.shape[1] != shape[0]:
            raise self.misfit(shape)
        return images if images.shape[2:] == shape[1:] else F.interpolate(images, size=shape[1:], mode="area")

    def fits(self, shape: tuple[int, int, int]) -> bool:
        """Return whether it can say anything of images of `shape`."""
        return self.shape[0] == shape[0] or (self.generates and shape[0] == 1)

    def misfit(self, shape: tuple[int, ...]) -> CapabilityError:
        """Return the refusal of images of another shape."""
        mine, theirs = ("x".join(map(str, one)) for one in (self.shape, shape))
        return CapabilityError(
            f"this {self.kind} prior is of {mine} images, the data are {theirs}.",
            hint="Fit one to public images of the data's own kind: `fedseal prepare prior --data NAME`.",
        )

    @property
    def _generator(self) -> Generates:
        if not isinstance(self.engine, Generates):
            raise CapabilityError(f"a prior of the kind {self.kind} has no latents.", hint="Use gan or ae.")
        return cast(Generates, self.engine)
