"""Deep gradient compression (Lin et al., ICLR 2018): sparse uploads of a velocity that gathers what was not sent.

Per tensor, with g clipped first: u = momentum u + g; v = v + u; the largest entries of v are sent, and both u and v are
zeroed there (momentum correction and momentum factor masking, Sec. 3.1 and 3.3). During warm-up the share sent falls
exponentially to its final value. Threat model: honest-but-curious server. Ratio 0 without clip is the identity, as
masking then clears everything. Departures: an exact selection instead of a threshold from a 1 % sample; warm-up counts
rounds, not epochs; tensors sent dense are sent like any tensor at ratio 0.

Cost: one selection per tensor, momentum and velocity as state; uploads shrink to the share sent.

Known breaks: sent entries hold sums of several gradients, unscaled: matching them with the local steps in mind recovers
images where the share is not tiny. No privacy is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.noise import clip_to_norm
from fedseal.defences.pruning import check_ratio, kept_count, largest_mask, match_observed_support


@DEFENCES.register(
    "dgc",
    Info("upload the largest entries of an accumulated momentum", paper="Lin et al., ICLR 2018", threat="passive"),
)
class DeepGradientCompression(Defence):
    """Deep gradient compression per tensor.

    Args:
        ratio: share of entries withheld once warm-up is over.
        momentum: of the correction; 0 leaves plain accumulation.
        masking: whether momentum is cleared where an entry was sent.
        warmup: rounds in which the share sent falls to 1 - ratio.
        clip: L2 bound of an update before accumulation (the paper: threshold / sqrt(clients)); none by default.
        dense: whether tensors of at most one dimension, such as biases, are sent whole.
    """

    stage = "update"

    def __init__(
        self,
        ratio: float = 0.999,
        momentum: float = 0.9,
        masking: bool = True,
        warmup: int = 0,
        clip: float | None = None,
        dense: bool = True,
    ) -> None:
        check_ratio(self.name, ratio)
        clip = math.inf if clip is None else clip
        if not 0 <= momentum < 1 or warmup < 0 or not clip > 0:
            raise UsageError(
                f"dgc needs 0 <= momentum < 1, warmup >= 0 and clip > 0, got {momentum:g}, {warmup} and {clip:g}."
            )
        self.ratio = ratio
        self.momentum = momentum
        self.masking = masking
        self.warmup = warmup
        self.clip = clip
        self.dense = dense
        self.traits = Traits(data_dependent_mask=ratio > 0, keeps_residual=ratio > 0)
        self._momentum: dict[str, Tensor] = {}
        self._velocity: dict[str, Tensor] = {}

    def ratio_in(self, round_number: int) -> float:
        """Return the share withheld in a round: 1 - (1 - ratio)^((round + 1) / (warmup + 1)) while warming up."""
        progress = min((round_number + 1) / (self.warmup + 1), 1.0)
        return self.ratio if progress == 1 else float(1 - (1 - self.ratio) ** progress)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Accumulate, send the largest entries, and clear both buffers where they were sent."""
        ratio = self.ratio_in(context.round)
        clipped = clip_to_norm(update, self.clip)
        return {
            name: self._compress(name, tensor, 0.0 if self.dense and tensor.ndim <= 1 else ratio)
            for name, tensor in clipped.items()
        }

    def _compress(self, name: str, gradient: Tensor, ratio: float) -> Tensor:
        """Send from one tensor; a buffer that is cleared whole is dropped, so that nothing is added to what follows."""
        momentum, velocity = self._momentum.pop(name, None), self._velocity.pop(name, None)
        corrected = gradient if momentum is None else self.momentum * momentum + gradient
        gathered = corrected if velocity is None else velocity + corrected
        everything = kept_count(gradient.numel(), ratio) >= gradient.numel()
        if everything:
            if not self.masking and self.momentum:
                self._momentum[name] = corrected
            return gathered
        sent = largest_mask(gathered, ratio)
        nothing = torch.zeros_like(gathered)
        self._velocity[name] = torch.where(sent, nothing, gathered)
        if self.momentum:
            self._momentum[name] = torch.where(sent, nothing, corrected) if self.masking else corrected
        return torch.where(sent, gathered, nothing)

    def state_dict(self) -> dict[str, Tensor]:
        """Return momentum and velocity by tensor name."""
        buffers = {"momentum": self._momentum, "velocity": self._velocity}
        return {f"{kind}.{name}": tensor for kind, held in buffers.items() for name, tensor in held.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        buffers: dict[str, dict[str, Tensor]] = {"momentum": {}, "velocity": {}}
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            if kind not in buffers:
                raise InputError(f"the state of dgc holds {key!r}, which is neither momentum nor velocity.")
            buffers[kind][name] = tensor
        self._momentum, self._velocity = buffers["momentum"], buffers["velocity"]

    def attacker_view(self) -> AttackerView:
        """Publish the parameters; positions are visible, and in a client's first round values are gradient entries."""
        parameters = {"ratio": self.ratio, "momentum": self.momentum, "clip": self.clip}
        return AttackerView(
            self.name,
            parameters,
            lambda gradient, observed: match_observed_support(clip_to_norm(gradient, self.clip), observed),
        )
