"""Aligned dual gradient pruning (Xue et al., AAAI 2024, Sec. 6.4): one location set per round, sparse both ways.

One client of the round broadcasts the locations I of its 2k largest entries. Every client removes its own k1 largest
and sends its k largest inside I; what it withholds is fed back. All download only what lies in I. Threat model: passive
and active servers that see I; the broadcaster must be honest. k1 = 0, k = 1 is the identity. Per tensor, as in dgp. A
client that receives no set (a single audited one, or the first of a round) is its own broadcaster, so who broadcasts
is whom the federation lets begin. The paper leaves open what I tells of the broadcaster: the cost report says it.

Cost: one selection per tensor, a residual per client, the location set once per round; uploads and downloads are
sparse.

Known breaks: the location set names the broadcaster's largest entries, and a malicious broadcaster chooses what all
send; sent entries carry true values and are matched as they are; residuals appear in later uploads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.defences.dual_pruning import PAPER, FeedbackPruning, hinge, removed_count
from fedseal.defences.pruning import match_observed_support
from fedseal.defences.selection import largest
from fedseal.federation.wire import payload_size


@DEFENCES.register(
    "adgp",
    Info(
        "dual pruning inside one location set for all clients",
        paper=PAPER,
        threat="passive, active",
        strengths=("k=0.4", "k=0.2", "k=0.1"),
    ),
)
class AlignedDualGradientPruning(FeedbackPruning):
    """Aligned dual gradient pruning per tensor.

    Args:
        k1: share of a client's largest entries removed.
        k: share of entries sent; twice as many locations are broadcast.
        feedback: whether what was not sent is added to the next round's gradient.
        hinge: weight, for an attacker who knows the defence, of what I tells of entries that were not sent; none by
            default, as under dgp.
    """

    stage = "update"

    def __init__(self, k1: float = 0.05, k: float = 0.2, feedback: bool = True, hinge: float = 0.0) -> None:
        if not (0 <= k1 < k and k1 + k <= 1):
            raise UsageError(
                f"adgp needs 0 <= k1 < k and k1 + k <= 1, got k1 = {k1:g} and k = {k:g}.",
                hint="They are shares of entries: 0.05 removed, 0.2 sent.",
            )
        self.k1 = k1
        self.k = k
        super().__init__(feedback, active=k < 1, hinge=hinge)
        self.traits = replace(self.traits, common_support=self.traits.data_dependent_mask)
        self._received: tuple[int, dict[str, Tensor]] | None = None
        self._location: dict[str, Tensor] = {}
        self._chosen_here = False
        self._dtype = torch.float32

    def receive(self, message: Tensors, round_number: int) -> None:
        """Take the location set of a round."""
        self._received = (round_number, {name: tensor != 0 for name, tensor in message.items()})

    def broadcast(self) -> Tensors | None:
        """Return the location set this client chose: 1 where it holds, in the shapes of the update."""
        if not self._chosen_here:
            return None
        return {name: mask.to(torch.float32) for name, mask in self._location.items()}

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Add the residual, and send the largest entries inside the location set that are not the client's largest."""
        if not self._active:
            return update
        full = self._withheld.add_to(update)
        self._location = self._location_set(full, context.round)
        kept = {name: self._kept(tensor, self._location[name]) for name, tensor in full.items()}
        sent = {name: torch.where(kept[name], tensor, 0.0) for name, tensor in full.items()}
        self._withheld.keep(full, sent)
        self._unsent_before = self._record.note(kept)
        self._dtype = next(iter(update.values())).dtype
        return sent

    def report(self) -> CostReport:
        """Add the download (the aggregate's values in I), and what I tells of who broadcast it.

        I itself goes up once and down to the others; the cohort counts it as it counts any broadcast.
        """
        report = super().report()
        if not self._location:
            return report
        values = {name: _any_values(int(mask.sum()), self._dtype) for name, mask in self._location.items()}
        remarks = report.remarks
        if self._chosen_here:
            share = sum(int(m.sum()) for m in self._location.values()) / sum(m.numel() for m in self._location.values())
            remarks += (
                f"this client broadcast the locations of its {100 * share:.0f} % largest entries: all others and the "
                "server know which of its entries are large, also those it did not send",
            )
        return replace(report, bytes_down=payload_size(values), remarks=remarks)

    def attacker_view(self) -> AttackerView:
        """Publish the shares and the location set.

        What lies in I and was not sent is above the largest or below the smallest sent magnitude. What lies outside I
        is known only of the broadcaster, where it is below. Both count by the weight `hinge`. Residuals of later rounds
        are treated as under dgp.
        """
        parameters = {"k1": self.k1, "k": self.k, "broadcaster": self._chosen_here}
        if not self._active:
            return AttackerView(self.name, parameters)
        location, own = dict(self._location), self._chosen_here

        def contradiction(gradient: Tensors, observed: Tensors) -> Tensor:
            inside = hinge(gradient, observed, location)
            return self.hinge * (inside + _excess(gradient, observed, location) if own else inside)

        known = self.hinge > 0 and bool(location) and not self.residual_is_unknown
        return AttackerView(
            self.name,
            parameters,
            match_observed_support,
            read=self.without_residuals,
            penalty=contradiction if known else None,
            personal=known,
        )

    def _location_set(self, full: Tensors, round_number: int) -> dict[str, Tensor]:
        """Return the set received for this round, or choose one."""
        received, self._received = self._received, None
        self._chosen_here = received is None or received[0] != round_number
        if received is None or self._chosen_here:
            return {name: self._largest_two_k(tensor) for name, tensor in full.items()}
        if {n: m.shape for n, m in received[1].items()} != {n: t.shape for n, t in full.items()}:
            raise InputError("adgp: the broadcast location set is of another model.", hint="Check who broadcasts.")
        return received[1]

    def _largest_two_k(self, tensor: Tensor) -> Tensor:
        count = removed_count(tensor.numel(), min(2 * self.k, 1.0), "ceil")
        return largest(tensor.reshape(-1).abs(), count).view_as(tensor)

    def _kept(self, tensor: Tensor, location: Tensor) -> Tensor:
        magnitude = tensor.reshape(-1).abs()
        allowed = location.reshape(-1) & ~largest(magnitude, removed_count(tensor.numel(), self.k1, "ceil"))
        count = min(removed_count(tensor.numel(), self.k, "nearest"), int(allowed.sum()))
        return largest(torch.where(allowed, magnitude, -1.0), count).view_as(tensor)


def _any_values(count: int, dtype: torch.dtype) -> Tensor:
    """Return values that no codec shortens, as an aggregate's are."""
    return torch.arange(2, count + 2, dtype=torch.float64).sqrt().to(dtype)


def _excess(gradient: Tensors, observed: Tensors, location: Tensors) -> Tensor:
    """Return by how much entries outside the broadcaster's set exceed its smallest sent magnitude, in [0, 1].

    Per tensor, relative to the way up to the largest sent one; the mean over all entries outside.
    """
    costs, counts = [], []
    for name, tensor in gradient.items():
        seen = observed[name].abs()
        low, high = torch.where(seen != 0, seen, torch.inf).amin(), seen.amax()
        outside = ~location[name] & (high > low)
        width = torch.where(high > low, high - low, torch.ones_like(high))
        above = (tensor.abs() - torch.where(high > low, low, torch.zeros_like(high))) / width
        costs.append((above.clamp(0, 1) * outside).sum())
        counts.append(outside.sum())
    return torch.stack(costs).sum() / torch.stack(counts).sum().clamp(min=1)
