"""Dual gradient pruning (Xue et al., AAAI 2024, Alg. 1 and 2): neither the largest nor the smallest entries are sent.

Per tensor, with P = gradient + residual: the share k1 of largest |P| and the share k2 of smallest are removed, the
middle is sent, and what was removed is the next round's residual. Threat model: passive and active (imprint) servers.
k1 = k2 = 0 is the identity. The paper's "layer" is a parameter tensor, and n1 = ceil(k1 n), since 5 % of a small bias
would be nothing and leave the entry in that names the label. The literal rule starves what it withholds as largest (it
grows and is withheld again), hence the share of coordinates unsent for long in the cost report, and the options that
choose by the gradient alone or feed back the small entries only.

Cost: two selections per tensor and a residual per client; uploads are sparse.

Known breaks: what is sent is exact, so an aware attacker matches those entries alone and may use that the others lie
outside their range (`hinge`); the withheld largest entries hardly change over rounds; with feedback later uploads carry
earlier gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.pruning import ErrorFeedback, match_observed_support
from fedseal.defences.selection import largest_and_middle

PAPER = "Xue et al., AAAI 2024"
STALE_ROUNDS = 100
"""A coordinate that was not sent for so many of a client's rounds is stale."""

Feedback: TypeAlias = Literal["all", "bottom", "none"]


def removed_count(size: int, share: float, rounding: Literal["ceil", "nearest"]) -> int:
    """Return how many of `size` entries a share is, safe from the rounding of their product."""
    wanted = round(share * size, 9)
    return math.ceil(wanted) if rounding == "ceil" else round(wanted)


class SentRecord:
    """Counts for every coordinate in how many of a client's rounds it has not been sent, up to 255.

    Args:
        owner: name of the defence, for messages.
    """

    _LIMIT = 255

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._unsent: dict[str, Tensor] = {}

    def note(self, sent: Tensors) -> dict[str, Tensor]:
        """Count a round in which `sent` is True; return the counts before it, empty in the first round."""
        before = self._unsent
        if before and {n: c.shape for n, c in before.items()} != {n: mask.shape for n, mask in sent.items()}:
            raise InputError(f"{self._owner}: its state is of another model.", hint="Restore that of this very model.")
        self._unsent = {name: self._count(before.get(name), mask) for name, mask in sent.items()}
        return before

    def _count(self, unsent: Tensor | None, sent: Tensor) -> Tensor:
        if unsent is None:
            return (~sent).to(torch.uint8)
        return unsent.clamp(max=self._LIMIT - 1).add_(1).mul_(~sent)

    def stale_share(self) -> float:
        """Return the share of coordinates unsent for `STALE_ROUNDS` rounds."""
        total = sum(counts.numel() for counts in self._unsent.values())
        return sum(int((counts >= STALE_ROUNDS).sum()) for counts in self._unsent.values()) / max(total, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the counts by tensor name."""
        return dict(self._unsent)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the counts."""
        if any(counts.dtype != torch.uint8 for counts in state.values()):
            raise InputError(f"{self._owner}: its counts of unsent rounds must be bytes.")
        self._unsent = dict(state)


class FeedbackPruning(Defence):
    """What sparse uploads with error feedback share: residual, record of what was sent, and the later rounds' view.

    Args:
        feedback: whether anything is withheld for later.
        active: false at zero strength, where nothing is kept.
        hinge: weight of what is known of entries that were not sent, in the attacker's view.
    """

    def __init__(self, feedback: bool, active: bool, hinge: float) -> None:
        if hinge < 0:
            raise UsageError(f"{self.name} needs hinge >= 0, got {hinge:g}.", hint="0 leaves it out.")
        self.hinge = hinge
        self.traits = Traits(data_dependent_mask=active, keeps_residual=active and feedback)
        self._active = active
        self._withheld = ErrorFeedback(self.name, self.traits.keeps_residual)
        self._record = SentRecord(self.name)
        self._unsent_before: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residual, and for how many rounds each coordinate has not been sent."""
        kept = {"residual": self._withheld.state_dict(), "unsent": self._record.state_dict()}
        return {f"{kind}.{name}": tensor for kind, held in kept.items() for name, tensor in held.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        parts: dict[str, dict[str, Tensor]] = {"residual": {}, "unsent": {}}
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            if kind not in parts or not self._active:
                raise InputError(f"the state of {self.name} holds {key!r}, which it would never use.")
            parts[kind][name] = tensor
        self._withheld.load_state_dict(parts["residual"])
        self._record.load_state_dict(parts["unsent"])

    def report(self) -> CostReport:
        """Say how much of the model has not been updated for long."""
        remarks: tuple[str, ...] = ()
        if self._active:
            share = 100 * self._record.stale_share()
            remarks = (f"{share:.1f} % of coordinates were not sent in the client's last {STALE_ROUNDS} rounds",)
        held = sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())
        return CostReport(state_bytes=held, remarks=remarks)

    @property
    def residual_is_unknown(self) -> bool:
        """Whether the last upload held residuals that the server cannot know."""
        return self.traits.keeps_residual and bool(self._unsent_before)

    def without_residuals(self, observed: Tensors) -> Tensors:
        """Leave of an upload what was sent in the client's round before too, and so is the gradient and nothing else.

        Elsewhere an unknown residual has been added. Where nothing of the kind is left, the upload is taken as it is.
        """
        if not self.residual_is_unknown:
            return observed
        clean = {name: tensor * (self._unsent_before[name] == 0) for name, tensor in observed.items()}
        return clean if any(bool(tensor.any()) for tensor in clean.values()) else observed


def hinge(gradient: Tensors, observed: Tensors, within: Tensors | None = None) -> Tensor:
    """Return what magnitudes between the smallest and the largest sent one cost a dummy gradient where it was not sent.

    Per tensor, such an entry costs its distance to the nearer end relative to half of the way between them, in [0, 1];
    the result is the mean over all entries that were not sent.

    Args:
        gradient: of the dummy images.
        observed: the upload; what is not zero was sent.
        within: True where the rule holds; everywhere by default.
    """
    costs, counts = [], []
    for name, tensor in gradient.items():
        seen = observed[name].abs()
        sent = seen != 0
        low, high = torch.where(sent, seen, torch.inf).amin(), seen.amax()
        unsent = ~sent if within is None else ~sent & within[name]
        unsent = unsent & (high > low)
        half = torch.where(high > low, (high - low) / 2, torch.ones_like(high))
        middle = torch.where(high > low, (high + low) / 2, torch.ones_like(high))
        inside = torch.relu(1 - (tensor.abs() - middle).abs() / half)
        costs.append((inside * unsent).sum())
        counts.append(unsent.sum())
    return torch.stack(costs).sum() / torch.stack(counts).sum().clamp(min=1)


@DEFENCES.register(
    "dgp",
    Info(
        "upload neither the largest nor the smallest entries",
        paper=PAPER,
        threat="passive, active",
        strengths=("k1=0.03,k2=0.45", "k1=0.05,k2=0.75", "k1=0.06,k2=0.9", "k1=0.2,k2=0.6"),
    ),
)
class DualGradientPruning(FeedbackPruning):
    """Dual gradient pruning per tensor.

    Args:
        k1: share of largest entries removed.
        k2: share of smallest entries removed.
        feedback: what of the removed is added to the next round's gradient: all, the smallest only, nothing.
        mask: choose by P, gradient and residual together (the paper), or by the gradient alone.
        rounding: of k1 n; k2 n is rounded to the nearest.
        hinge: weight of `hinge` for an attacker who knows the defence; none by default, see `attacker_view`.
    """

    stage = "update"

    def __init__(
        self,
        k1: float = 0.05,
        k2: float = 0.75,
        feedback: Feedback = "all",
        mask: Literal["P", "gradient"] = "P",
        rounding: Literal["ceil", "nearest"] = "ceil",
        hinge: float = 0.0,
    ) -> None:
        if min(k1, k2) < 0 or not k1 + k2 < 1:
            raise UsageError(
                f"dgp needs k1 >= 0, k2 >= 0 and k1 + k2 < 1, got {k1:g} and {k2:g}.",
                hint="They are shares of entries: the paper's are 0.05 and 0.75.",
            )
        self.k1 = k1
        self.k2 = k2
        self.feedback = feedback
        self.mask = mask
        self.rounding = rounding
        super().__init__(feedback != "none", active=k1 + k2 > 0, hinge=hinge)

    def counts(self, size: int) -> tuple[int, int]:
        """Return n1 and n2, how many of the largest and smallest of `size` entries are removed."""
        top = min(removed_count(size, self.k1, self.rounding), size)
        return top, min(removed_count(size, self.k2, "nearest"), size - top)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Add the residual, send the middle, and keep the rest as the feedback says."""
        if not self._active:
            return update
        full = self._withheld.add_to(update)
        tops: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        for name, tensor in (full if self.mask == "P" else update).items():
            top, middle = largest_and_middle(tensor.reshape(-1).abs(), *self.counts(tensor.numel()))
            tops[name], kept[name] = top.view_as(tensor), middle.view_as(tensor)
        sent = {name: torch.where(kept[name], tensor, 0.0) for name, tensor in full.items()}
        if self.feedback == "bottom":
            full = {name: torch.where(tops[name], 0.0, tensor) for name, tensor in full.items()}
        self._withheld.keep(full, sent)
        self._unsent_before = self._record.note(kept)
        return sent

    def attacker_view(self) -> AttackerView:
        """Publish the shares, and what they say of entries that were not sent.

        A dummy gradient is compared where entries were sent. Elsewhere, in a client's first round and always without
        feedback, its magnitude must be below the smallest or above the largest sent one: that is `hinge`, which is left
        out by default because it makes the attack weaker (Inverting Gradients on faces, 12 images, weight 0.01: 25.4 to
        15.3 dB with a sigmoid LeNet, 16.8 to 17.9 dB with ReLU). In later rounds residuals are unknown, except that
        those of entries sent the round before are zero: only these are compared.
        """
        parameters = {"k1": self.k1, "k2": self.k2, "feedback": self.feedback, "mask": self.mask}
        if not self._active:
            return AttackerView(self.name, parameters)
        penalty = None
        if self.hinge and not self.residual_is_unknown:
            penalty = self._contradiction
        return AttackerView(
            self.name,
            parameters,
            match_observed_support,
            read=self.without_residuals,
            penalty=penalty,
            mask=None if self.residual_is_unknown else "middle",
        )

    def _contradiction(self, gradient: Tensors, observed: Tensors) -> Tensor:
        return self.hinge * hinge(gradient, observed)
