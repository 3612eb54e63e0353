"""Search where images are few: in the latents of a generator, in its weights, or at a lower resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes
from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import flatten, unflatten
from fedseal.priors.prior import Prior


class Latents:
    """The latents of a generator, [B, latent] for each lane.

    Args:
        shape: B, C, H, W.
        normalisation: from images to the model's inputs.
        prior: that generates.
    """

    def __init__(self, shape: tuple[int, int, int, int], normalisation: Normalisation, prior: Prior) -> None:
        if not prior.fits(shape[1:]):
            raise prior.misfit(shape[1:])
        self.shape = shape
        self.size = shape[0] * prior.latent
        self._normalisation = normalisation
        self._prior = prior

    def decode(self, variables: Tensor) -> Tensor:
        """Draw the images of these latents and normalise them."""
        latents = variables.reshape(self.shape[0], self._prior.latent)
        return self._normalisation(self._prior.decode(latents, self.shape[1:]))

    def decode_many(self, variables: Tensor) -> Tensor:
        """Draw each lane's alone, so that its bits do not depend on its neighbours."""
        return torch.stack([self.decode(one.clone()) for one in variables])

    def start(self, source: torch.Generator) -> Tensor:
        """Draw latents as they are a priori: N(0, 1)."""
        return torch.randn(self.size, generator=source)


class Weights:
    """The weights of a trained generator at fixed latents (GIAS, stage 2): as many sets as there are images.

    Args:
        shape: B, C, H, W.
        normalisation: from images to the model's inputs.
        prior: that generates.
        latents: at which it does, [B, latent].
    """

    def __init__(
        self, shape: tuple[int, int, int, int], normalisation: Normalisation, prior: Prior, latents: Tensor
    ) -> None:
        self.shape = shape
        self._normalisation = normalisation
        self._prior = prior
        self._latents = latents
        self._like = {name: p.detach() for name, p in prior.engine.named_parameters()}
        if not self._like:
            raise CapabilityError(f"a prior of the kind {prior.kind} has no weights to adapt.", hint="Use gan or ae.")
        self.each = sum(p.numel() for p in self._like.values())
        self.size = shape[0] * self.each

    def decode(self, variables: Tensor) -> Tensor:
        """Draw each image by the weights of its own."""
        sets = variables.reshape(self.shape[0], self.each)
        drawn = [self._one(own.clone(), latent) for own, latent in zip(sets, self._latents, strict=True)]
        return self._normalisation(torch.cat(drawn))

    def decode_many(self, variables: Tensor) -> Tensor:
        """Draw each lane's."""
        return torch.stack([self.decode(one) for one in variables])

    def start(self, source: torch.Generator) -> Tensor:
        """Begin with the weights as they were trained."""
        return flatten(self._like).repeat(self.shape[0])

    def _one(self, weights: Tensor, latent: Tensor) -> Tensor:
        own = {f"_prior.{name}": value for name, value in unflatten(weights, self._like).items()}
        image: Tensor = functional_call(_Drawing(self._prior), own, (latent[None].to(weights), self.shape[1:]))
        return image


class _Drawing(torch.nn.Module):
    """A prior's engine as a module whose call draws, so that its weights can be replaced for the call."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self._prior = prior.engine
        self._decode = prior.decode

    def forward(self, latents: Tensor, shape: tuple[int, int, int]) -> Tensor:
        return self._decode(latents, shape)


class Upsampled:
    """Free pixels at a lower resolution, brought up bicubically (ROG).

    Args:
        shape: B, C, H, W.
        normalisation: from images to the model's inputs.
        factor: by which the resolution is lower.
    """

    def __init__(self, shape: tuple[int, int, int, int], normalisation: Normalisation, factor: int) -> None:
        self.shape = shape
        self._small = (*shape[:2], max(1, shape[2] // factor), max(1, shape[3] // factor))
        self.size = torch.Size(self._small).numel()
        self._normalisation = normalisation

    def decode(self, variables: Tensor) -> Tensor:
        """Interpolate."""
        small = variables.reshape(self._small)
        images = F.interpolate(small, size=self.shape[2:], mode="bicubic", align_corners=False)
        return self._normalisation(images)

    def decode_many(self, variables: Tensor) -> Tensor:
        """Interpolate each."""
        return torch.stack([self.decode(one) for one in variables])

    def start(self, source: torch.Generator) -> Tensor:
        """Draw pixels uniform in [0, 1]."""
        return torch.rand(self.size, generator=source)


class GaussianLatents:
    """An evaluation with weight x mean z^2 / 2 added: minus the logarithm of the latents' own probability.

    Args:
        evaluate: what is added to.
        weight: of the term.
        size: entries of z that are latents, the first ones.
    """

    def __init__(self, evaluate: Evaluate, weight: float, size: int) -> None:
        self._evaluate = evaluate
        self._weight = weight
        self._size = size

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes."""
        plain = self._evaluate(z, lanes, weight, selections)
        latents, gradients = z[:, : self._size], plain.gradients.clone()
        gradients[:, : self._size] += self._weight / self._size * latents
        return Evaluation(plain.values + self._weight / 2 * latents.square().mean(1), gradients, plain.selections)


class ScalarDivergence:
    """An evaluation with GGL's term added: how a Gaussian with a latent's mean and deviation differs from N(0, 1).

    KL = (s^2 + m^2 - 1) / 2 - log s, with m and s over the entries of one image's latent; zero for m = 0, s = 1.

    Args:
        evaluate: what is added to.
        weight: of the term; 0.1 in the paper's code.
        shape: B and the entries of a latent.
    """

    def __init__(self, evaluate: Evaluate, weight: float, shape: Sequence[int]) -> None:
        self._evaluate = evaluate
        self._weight = weight
        self._shape = tuple(shape)

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes."""
        plain = self._evaluate(z, lanes, weight, selections)
        size = torch.Size(self._shape).numel()
        latents = z[:, :size].detach().reshape(-1, *self._shape).requires_grad_()
        terms = scalar_divergence(latents).sum(1) * self._weight
        (slope,) = torch.autograd.grad(terms.sum(), latents)
        gradients = plain.gradients.clone()
        gradients[:, :size] += slope.flatten(1)
        return Evaluation(plain.values + terms.detach(), gradients, plain.selections)


def scalar_divergence(latents: Tensor) -> Tensor:
    """Return the divergences [...] of latents [..., D] (see `ScalarDivergence`)."""
    mean, deviation = latents.mean(-1), latents.std(-1, unbiased=False).clamp(min=1e-6)
    return (deviation.square() + mean.square() - 1) / 2 - deviation.log()
