"""Magnitude pruning: only the largest entries of each tensor are uploaded (DEFENCES.md 3; Aji and Heafield 2017).

Exactly ceil((1 - ratio) n) entries of every tensor survive, chosen by index, so ties and zeros keep the count. With
feedback, what was withheld is kept and added to the next round's update. Threat model: honest-but-curious server.
Ratio 0 is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors


def keep_largest(tensor: Tensor, ratio: float) -> Tensor:
    """Zero all but the ceil((1 - ratio) n) entries of largest magnitude."""
    kept = math.ceil(round((1 - ratio) * tensor.numel(), 9))
    if kept >= tensor.numel():
        return tensor
    flat = tensor.reshape(-1)
    indices = flat.abs().topk(kept, sorted=False).indices
    return torch.zeros_like(flat).index_copy(0, indices, flat[indices]).view_as(tensor)


def match_observed_support(gradient: Tensors, observed: Tensors) -> Tensors:
    """Keep a dummy gradient only where the observed update is not zero: what a mask-aware attacker does."""
    return {name: tensor * (observed[name] != 0) for name, tensor in gradient.items()}


@DEFENCES.register(
    "topk",
    Info("upload only the largest entries of each tensor", paper="Aji and Heafield, EMNLP 2017", threat="passive"),
)
class TopK(Defence):
    """Magnitude pruning per tensor.

    Args:
        ratio: share of entries withheld.
        feedback: whether withheld values are added to the next round's update.
    """

    name = "topk"
    stage = "update"

    def __init__(self, ratio: float = 0.8, feedback: bool = False) -> None:
        if not 0 <= ratio < 1:
            raise UsageError(f"topk needs 0 <= ratio < 1, got {ratio:g}.", hint="ratio is the share withheld.")
        self.ratio = ratio
        self.feedback = feedback
        self._residual: dict[str, Tensor] = {}

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Prune each tensor, and keep what was withheld if feedback is on."""
        full = {name: t + self._residual[name] if name in self._residual else t for name, t in update.items()}
        sent = {name: keep_largest(t, self.ratio) for name, t in full.items()}
        if self.feedback:
            self._residual = {name: full[name] - sent[name] for name in full}
        return sent

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residual."""
        return dict(self._residual)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residual."""
        self._residual = dict(state)

    def attacker_view(self) -> AttackerView:
        """Publish the ratio; the positions are visible in the upload itself."""
        return AttackerView(self.name, {"ratio": self.ratio}, match_observed_support)
