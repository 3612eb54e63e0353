"""Additive noise on the clipped upload, the baseline of Refiner (Sec. 6.1) and FedLeak (Sec. 6.2).

The whole upload is clipped to norm C, then noise of a fixed scale is added to every coordinate, after clipping. Where
the papers call the amount "magnitude", it is read as the Gaussian's standard deviation, or Laplace's b (std b sqrt 2).
Threat model: honest-but-curious server. Scale 0 with clip `inf` is the identity. Epsilon protects the presence of the
client's whole update in a round, and is accounted as if the client had taken part in every round so far.

Equations: u = g min(1, C / |g|) + n, with n ~ N(0, sigma^2) or Laplace(b) in each coordinate.

Cost: O(N), no state, no bytes.

Known breaks: below the gradient's own size per coordinate noise hides little: matching by the noise's law (`bayes`) and
priors see through it, imprint blocks average it over rows, and repeated rounds on the same data average it away. A
public seed would take it off entirely.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, NoiseLaw, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.accounting import gaussian_epsilon

_DELTA = 1e-5


def clip_to_norm(tensors: Tensors, bound: float, order: float = 2.0) -> Tensors:
    """Scale all tensors jointly so that their norm is at most `bound`; differentiable, and the identity below it."""
    if math.isinf(bound):
        return tensors
    norms = torch.stack([torch.linalg.vector_norm(tensor, order) for tensor in tensors.values()])
    factor = (bound / (torch.linalg.vector_norm(norms, order) + 1e-12)).clamp(max=1.0)
    return {name: (tensor * factor).to(tensor.dtype) for name, tensor in tensors.items()}


def with_noise(tensors: Tensors, law: NoiseLaw, generator: torch.Generator) -> Tensors:
    """Add independent noise to every coordinate; scale 0 returns the tensors themselves."""
    if law.scale == 0:
        return tensors
    draw = _standard_normal if law.family == "gaussian" else _standard_laplace
    return {name: tensor + draw(tensor, generator).mul_(law.scale) for name, tensor in tensors.items()}


def _standard_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _standard_laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw as the difference of two exponentials, which is finite even where a logarithm of a uniform is not."""
    wide = torch.promote_types(like.dtype, torch.float32)
    first, second = (
        torch.empty(like.shape, dtype=wide, device=like.device).exponential_(generator=generator) for _ in range(2)
    )
    return (first - second).to(like.dtype)


class UploadNoise(Defence):
    """Clipping and additive noise on the upload; subclasses choose the law and state epsilon.

    Args:
        law: of the noise.
        clip: norm the upload is clipped to first; `inf` for no clipping.
        order: of that norm.
    """

    stage = "update"

    def __init__(self, law: NoiseLaw, clip: float, order: float = 2.0) -> None:
        if not 0 <= law.scale < math.inf or not clip > 0:
            raise UsageError(
                f"{self.name} needs a finite scale >= 0 and clip > 0, got {law.scale:g} and {clip:g}.",
                hint="Scale 0 with clip=inf is no defence at all.",
            )
        self.law = law
        self.clip = clip
        self.order = order
        self.traits = Traits(accounts_epsilon=law.scale > 0 and not math.isinf(clip))
        self._rounds = 0
        self._coordinates = 0

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Clip, then add noise."""
        self._rounds = context.round + 1
        self._coordinates = sum(tensor.numel() for tensor in update.values())
        return with_noise(clip_to_norm(update, self.clip, self.order), self.law, context.generator)

    def releases(self) -> tuple[PrivateRelease, ...]:
        """State the mechanism: noise on a whole update of bounded norm; nothing is claimed without noise and bound."""
        sensitivity = self._sensitivity()
        if self.law.scale == 0 or not 0 < sensitivity < math.inf:
            return ()
        return (PrivateRelease("update", self.law.family, self.law.scale / sensitivity),)

    def _sensitivity(self) -> float:
        """Return the largest norm a clipped update has, in the norm of the law."""
        return self.clip

    def attacker_view(self) -> AttackerView:
        """Publish the clip bound, which is simulated, and the law of the noise."""
        return AttackerView(
            self.name,
            self._parameters(),
            lambda gradient, observed: clip_to_norm(gradient, self.clip, self.order),
            self.law if self.law.scale > 0 else None,
        )

    def _parameters(self) -> dict[str, float | str]:
        return {"clip": self.clip}


@DEFENCES.register(
    "gaussian",
    Info(
        "clip the upload, add Gaussian noise to every coordinate",
        paper="Abadi et al., CCS 2016",
        threat="passive",
        strengths=("sigma=0.0001", "sigma=0.001", "sigma=0.01", "sigma=0.1"),
    ),
)
class GaussianNoise(UploadNoise):
    """Clipping and Gaussian noise on the upload.

    Args:
        sigma: standard deviation of the noise.
        clip: L2 norm the upload is clipped to first; `inf` for no clipping.
    """

    def __init__(self, sigma: float = 0.01, clip: float = 1.0) -> None:
        super().__init__(NoiseLaw("gaussian", sigma), clip)
        self.sigma = sigma

    def report(self) -> CostReport:
        """State the nominal epsilon, by FedLeak's sigma = C sqrt(2 ln(1/delta)) / epsilon, and the exact one."""
        if not self.traits.accounts_epsilon:
            return CostReport()
        mu = math.sqrt(self._rounds) * self.clip / self.sigma
        return CostReport(
            epsilon_nominal=self.clip * math.sqrt(2 * math.log(1 / _DELTA)) / self.sigma,
            epsilon_accounted=gaussian_epsilon(mu, _DELTA) if self._rounds else None,
            remarks=(
                f"nominal epsilon for one round at delta = {_DELTA:g}; the formula is sound below 1 only",
                f"accounted epsilon exact for {self._rounds} rounds, per client",
            ),
        )

    def _parameters(self) -> dict[str, float | str]:
        return {"sigma": self.sigma, "clip": self.clip}


@DEFENCES.register(
    "laplace",
    Info(
        "clip the upload, add Laplace noise to every coordinate",
        paper="Dwork et al., TCC 2006",
        threat="passive",
        strengths=("scale=0.0001", "scale=0.001", "scale=0.01", "scale=0.1"),
    ),
)
class LaplaceNoise(UploadNoise):
    """Clipping and Laplace noise on the upload.

    Args:
        scale: b of the noise, whose standard deviation is b sqrt 2.
        clip: norm the upload is clipped to first; `inf` for no clipping.
        norm: which norm is clipped: `l2` as in Refiner, or `l1`, the one pure differential privacy asks for.
    """

    def __init__(self, scale: float = 0.01, clip: float = 1.0, norm: Literal["l1", "l2"] = "l2") -> None:
        super().__init__(NoiseLaw("laplace", scale), clip, 1.0 if norm == "l1" else 2.0)
        self.scale = scale
        self.norm = norm

    def report(self) -> CostReport:
        """State epsilon = sensitivity / b: nominal with C as the sensitivity, accounted with the L1 norm C allows."""
        if not self.traits.accounts_epsilon:
            return CostReport()
        sensitivity = self._sensitivity()
        loose = "" if self.norm == "l1" else ", for which clipping by L2 leaves an L1 sensitivity of C sqrt(N)"
        return CostReport(
            epsilon_nominal=self.clip / self.scale,
            epsilon_accounted=self._rounds * sensitivity / self.scale if self._rounds else None,
            remarks=(
                "nominal epsilon for one round takes the clip bound for the L1 sensitivity",
                f"accounted epsilon for {self._rounds} rounds at delta = 0, per client{loose}",
            ),
        )

    def _sensitivity(self) -> float:
        return self.clip * (1.0 if self.norm == "l1" else math.sqrt(self._coordinates))

    def _parameters(self) -> dict[str, float | str]:
        return {"scale": self.scale, "clip": self.clip, "norm": self.norm}
