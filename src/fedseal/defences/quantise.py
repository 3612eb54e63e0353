"""Quantisation of the upload: sign and b - 1 magnitude bits per entry (QSGD, NeurIPS 2017; FedPAQ, AISTATS 2020).

|x| / scale is rounded to one of s = 2^(b-1) - 1 levels above zero: up with the fraction's probability (unbiased), or to
the nearest. The scale is max|x| per tensor, or its L2 norm. One bit is sign(x) mean|x| (zero counts as positive), or
the bare sign, whatever the rounding. Threat model: honest-but-curious server; no privacy guarantee. 32 bits are the
identity bit for bit, 25 and more lose nothing that float32 resolves next to max|x|. Zero tensors stay zero.

Cost: O(N); b bits per entry and one scale per tensor.

Known breaks: no privacy: matching through a straight-through estimate of the rounding recovers images from few bits,
and even signs alone keep the direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.pruning import ErrorFeedback

_IDENTITY_BITS = 32


def quantise_nearest(tensor: Tensor, unit: Tensor) -> Tensor:
    """Round to the nearest multiple of `unit` (half to even); a zero unit gives zeros."""
    wide = tensor.double()
    return (torch.round(wide / _nonzero(unit)) * unit).to(tensor.dtype)


def quantise_stochastic(tensor: Tensor, unit: Tensor, generator: torch.Generator) -> Tensor:
    """Round to one of the two neighbouring multiples of `unit`, unbiased; what lies on the grid stays there."""
    level = tensor.double().abs() / _nonzero(unit)
    whole = level.round()
    on_grid = (level - whole).abs() <= torch.finfo(tensor.dtype).eps * level
    draw = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device=tensor.device)
    rounded = torch.where(on_grid, whole, (level + draw).floor())
    return torch.copysign(rounded * unit, tensor.double()).to(tensor.dtype)


def quantise_sign(tensor: Tensor, scale: Tensor) -> Tensor:
    """Return +scale where an entry is not negative, -scale elsewhere."""
    return torch.where(tensor >= 0, scale, -scale).to(tensor.dtype)


def _nonzero(unit: Tensor) -> Tensor:
    return torch.where(unit == 0, torch.ones_like(unit), unit)


def _straight_through(tensor: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the derivative of `tensor`; exact, as the difference to itself is zero."""
    return value.detach() + (tensor - tensor.detach())


@DEFENCES.register(
    "quantise",
    Info(
        "round the upload to a few bits per entry",
        paper="Alistarh et al., NeurIPS 2017",
        threat="passive",
        strengths=("bits=1", "bits=2", "bits=4", "bits=8"),
    ),
)
class Quantise(Defence):
    """Quantisation per tensor.

    Args:
        bits: per entry, 1 to 32, the sign included.
        rounding: up or down at random without bias, or to the nearest level.
        scale: the largest level: max|x|, or the L2 norm as in QSGD and FedPAQ.
        sign: what one bit is multiplied by: mean|x|, or nothing.
        feedback: whether the rounding error is added to the next round's update.
    """

    stage = "encoding"

    def __init__(
        self,
        bits: int = 8,
        rounding: Literal["stochastic", "nearest"] = "stochastic",
        scale: Literal["max", "l2"] = "max",
        sign: Literal["mean", "bare"] = "mean",
        feedback: bool = False,
    ) -> None:
        if not 1 <= bits <= _IDENTITY_BITS:
            raise UsageError(f"quantise needs 1 to 32 bits, got {bits}.", hint="32 bits are no defence at all.")
        self.bits = bits
        self.rounding = rounding
        self.scale = scale
        self.sign = sign
        self.traits = Traits(keeps_residual=feedback)
        self._error = ErrorFeedback(self.name, feedback)

    @property
    def levels(self) -> int:
        """s, the number of levels above zero; 0 for one bit."""
        return int(2 ** (self.bits - 1)) - 1

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Quantise each tensor, and keep the error if feedback is on."""
        full = self._error.add_to(update)
        sent = full
        if self.bits < _IDENTITY_BITS:
            sent = {name: self._quantise(tensor, context.generator) for name, tensor in full.items()}
        self._error.keep(full, sent)
        return sent

    def state_dict(self) -> dict[str, Tensor]:
        """Return the error kept for the next round."""
        return self._error.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the error."""
        self._error.load_state_dict(state)

    def attacker_view(self) -> AttackerView:
        """Publish the grid, which is visible in the upload, and how a dummy gradient meets it.

        Deterministic rounding is done to the dummy too, its derivative passing straight through. Stochastic rounding is
        without bias, so that the upload itself is what a dummy is matched to: to count every dummy within one unit as a
        match throws away most of what the upload says (2.6 dB less at two bits on a ReLU LeNet).
        """
        parameters = {"bits": self.bits, "rounding": self.rounding, "scale": self.scale}
        channel = Channel(variance=self._variance) if self.bits < _IDENTITY_BITS else Channel()
        rounding = self._rounding_variance if 1 < self.bits < _IDENTITY_BITS else None
        return AttackerView(self.name, parameters, self._simulate, channel=channel, rounding=rounding)

    def _quantise(self, tensor: Tensor, generator: torch.Generator) -> Tensor:
        if tensor.numel() == 0 or not bool(tensor.any()):
            return torch.zeros_like(tensor)
        wide = tensor.detach().double()
        if self.bits == 1:
            return quantise_sign(tensor, wide.abs().mean() if self.sign == "mean" else torch.ones_like(wide.mean()))
        unit = self._step(wide)
        if self.rounding == "nearest":
            return quantise_nearest(tensor, unit)
        return quantise_stochastic(tensor, unit, generator)

    def _step(self, wide: Tensor) -> Tensor:
        """Return the distance of neighbouring levels of one tensor, in double precision; 0 if it is all zeros."""
        if self.bits == 1:
            return 2 * wide.abs().mean()
        return (wide.abs().max() if self.scale == "max" else wide.norm()) / self.levels

    def _variance(self, update: Tensors, observed: Tensors) -> Tensors:
        """Return step^2 / 12 of each tensor, the variance of rounding to levels that are a step apart."""
        return {
            name: torch.full_like(tensor, float(self._step(tensor.double()).square()) / 12 if tensor.numel() else 0.0)
            for name, tensor in update.items()
        }

    def _rounding_variance(self, observed: Tensor) -> Tensor:
        """Return the variance of rounding one tensor, by the grid that is visible in it.

        Rounding to the nearest level is uniform over a step, step^2 / 12; at random to one of two neighbours it is
        f (1 - f) step^2 for a value that is the share f of a step above the lower, step^2 / 6 on average.
        """
        return self._observed_step(observed).square() / (12 if self.rounding == "nearest" else 6)

    def _observed_step(self, observed: Tensor) -> Tensor:
        """Return the step of one observed tensor: of its largest level, max|x|, or by L2 its smallest."""
        magnitude = observed.detach().double().abs()
        if self.scale == "max":
            return magnitude.amax() / self.levels
        smallest = torch.where(magnitude == 0, torch.inf, magnitude).amin()
        return torch.where(torch.isinf(smallest), torch.zeros_like(smallest), smallest)

    def _simulate(self, gradient: Tensors, observed: Tensors) -> Tensors:
        if self.bits == _IDENTITY_BITS or (self.rounding == "stochastic" and self.bits > 1):
            return gradient
        return {name: self._on_observed_grid(tensor, observed[name]) for name, tensor in gradient.items()}

    def _on_observed_grid(self, tensor: Tensor, observed: Tensor) -> Tensor:
        """Quantise to the grid of one observed tensor."""
        if tensor.numel() == 0:
            return tensor
        magnitude = observed.detach().double().abs()
        if self.bits == 1:
            return _straight_through(tensor, quantise_sign(tensor, magnitude.amax()))
        return _straight_through(tensor, quantise_nearest(tensor, self._observed_step(observed)))
