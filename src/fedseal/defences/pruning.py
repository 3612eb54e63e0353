"""Magnitude pruning: only the largest entries of each tensor are uploaded (Aji and Heafield 2017).

Exactly ceil((1 - ratio) n) entries of every tensor survive, chosen by index, so ties and zeros keep the count. With
feedback, what was withheld is kept and added to the next round's update. Threat model: honest-but-curious server.
Ratio 0 is the identity. Departure: an exact selection instead of a threshold estimated on a sample.

Cost: one selection per tensor; with feedback a residual per client. Uploads shrink to values and places of what is
sent.

Known breaks: sent entries are exact and are matched alone; keeping 20 % hardly costs the attacker anything. Above 95 %
it does, and accuracy with it unless feedback is on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, check_like
from fedseal.core.traits import Traits


def check_ratio(name: str, ratio: float) -> None:
    """Refuse a share of withheld entries outside [0, 1)."""
    if not 0 <= ratio < 1:
        raise UsageError(f"{name} needs 0 <= ratio < 1, got {ratio:g}.", hint="ratio is the share withheld.")


def kept_count(size: int, ratio: float) -> int:
    """Return ceil((1 - ratio) size), safe from the rounding of 1 - ratio."""
    return math.ceil(round((1 - ratio) * size, 9))


def largest_mask(tensor: Tensor, ratio: float) -> Tensor:
    """Return True at the `kept_count` entries of largest magnitude, in the tensor's shape."""
    kept = kept_count(tensor.numel(), ratio)
    indices = tensor.reshape(-1).abs().topk(kept, sorted=False).indices
    mask = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
    return mask.index_fill(0, indices, True).view(tensor.shape)


def keep_largest(tensor: Tensor, ratio: float) -> Tensor:
    """Zero all but the ceil((1 - ratio) n) entries of largest magnitude."""
    if kept_count(tensor.numel(), ratio) >= tensor.numel():
        return tensor
    return torch.where(largest_mask(tensor, ratio), tensor, torch.zeros_like(tensor))


def match_observed_support(gradient: Tensors, observed: Tensors) -> Tensors:
    """Keep a dummy gradient only where the observed update is not zero: what a mask-aware attacker does."""
    return {name: tensor * (observed[name] != 0) for name, tensor in gradient.items()}


class ErrorFeedback:
    """What a lossy upload withheld, added to the next one; sent + residual is always what was to be sent.

    In a pipeline it holds the residual of what the defence was given, so noise added before stays accounted for.

    Args:
        owner: name of the defence, for messages.
        on: whether anything is kept.
    """

    def __init__(self, owner: str, on: bool) -> None:
        self._owner = owner
        self._on = on
        self._residual: dict[str, Tensor] = {}

    def add_to(self, update: Tensors) -> Tensors:
        """Return the update plus the residual; an entry without residual is returned bit for bit."""
        if not self._residual:
            return update
        check_like(self._residual, update, f"{self._owner}'s residual")
        return {name: torch.where(self._residual[name] == 0, t, t + self._residual[name]) for name, t in update.items()}

    def keep(self, full: Tensors, sent: Tensors) -> None:
        """Remember what of `full` was not sent."""
        if self._on:
            self._residual = {name: full[name] - sent[name] for name in full}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residual by tensor name."""
        return dict(self._residual)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residual; one that this configuration would never use is refused."""
        if state and not self._on:
            raise InputError(f"{self._owner} keeps no residual without feedback, got {sorted(state)}.")
        self._residual = dict(state)


@DEFENCES.register(
    "topk",
    Info(
        "upload only the largest entries of each tensor",
        paper="Aji and Heafield, EMNLP 2017",
        threat="passive",
        strengths=("ratio=0.5", "ratio=0.8", "ratio=0.9", "ratio=0.99"),
    ),
)
class TopK(Defence):
    """Magnitude pruning per tensor.

    Args:
        ratio: share of entries withheld.
        feedback: whether withheld values are added to the next round's update.
    """

    stage = "update"

    def __init__(self, ratio: float = 0.8, feedback: bool = False) -> None:
        check_ratio(self.name, ratio)
        self.ratio = ratio
        self.feedback = feedback
        self.traits = Traits(data_dependent_mask=ratio > 0, keeps_residual=feedback)
        self._withheld = ErrorFeedback(self.name, feedback)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Prune each tensor, and keep what was withheld if feedback is on."""
        full = self._withheld.add_to(update)
        sent = {name: keep_largest(t, self.ratio) for name, t in full.items()}
        self._withheld.keep(full, sent)
        return sent

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residual."""
        return self._withheld.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residual."""
        self._withheld.load_state_dict(state)

    def attacker_view(self) -> AttackerView:
        """Publish the ratio; the positions are visible in the upload itself."""
        mask: Literal["largest"] | None = "largest" if self.ratio and not self.feedback else None
        return AttackerView(self.name, {"ratio": self.ratio}, match_observed_support, mask=mask)
