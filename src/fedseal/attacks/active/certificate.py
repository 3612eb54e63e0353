"""The single-record certificate: which of the records read off bins are one client's record, and not a mixture.

A bin hands the server one row [dL/dW | dL/db], the sum over its records of s_i [x_i | 1]. Its quotient is a record if
the bin holds one, and looks like one if it holds several: a single row has rank one either way. What the claimed record
would have sent, had it been alone, is another row for the same bin, and the server can compute it, as it made the
model. Both rows are one and the same exactly if the claim, with one of the labels, is all that the bin held. Rows of
several records are longer (two of one class: twice), but for accidents as rare as the tolerance is small.

The idea of a certificate an attacker has without the truth is that of VGIA (arXiv 2604.15063), whose ranks compare
several hyperplanes; here the second row is computed instead of provoked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedseal.attacks.reading import attack_model, attack_parameters, image_count
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.observation import Observation
from fedseal.federation.loss import training_loss

_TOLERANCE = 5e-4
"""By which share the two rows may differ in length: rounding of differences of sums, in single precision."""


@dataclass(frozen=True)
class Certificate:
    """What is certified of the records read.

    Attributes:
        alone: which are all that their bin held, [H]; empty where it cannot be told.
        why_not: why it cannot be told, in words; empty if it can.
    """

    alone: Tensor
    why_not: str = ""

    @property
    def words(self) -> str:
        """For the reader of a reconstruction."""
        if self.why_not:
            return f"no certificate: {self.why_not}"
        return f"certified: {int(self.alone.sum())} of {len(self.alone)} bins held a single record, exactly"

    @classmethod
    def joined(cls, parts: Sequence[Certificate]) -> Certificate:
        """Return what is certified of all parts."""
        missing = next((part for part in parts if part.why_not), None)
        return missing if missing is not None else cls(torch.cat([part.alone for part in parts]))


def certify(
    observation: Observation,
    bias: str,
    bins: Tensor,
    inputs: Tensor,
    seen: Tensor,
    between: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Certificate:
    """Compare what bins sent with what the records read off them would have sent alone.

    Args:
        observation: of the altered model.
        bias: name of the measuring layer's bias.
        bins: that were read, [H].
        inputs: read off them, as the model takes them, [H, C, H, W].
        seen: what the bias of these bins received, in units of the gradient, [H].
        between: makes of the gradient of that bias [bins] what lies in each bin.
    """
    known = observation.knowledge
    if (known.local_steps or 1) > 1 and observation.update.kind == "delta":
        return Certificate(seen.new_zeros(0), "the model moved between the client's local steps")
    if known.loss != CROSS_ENTROPY or known.num_classes < 2:
        return Certificate(seen.new_zeros(0), "it compares labels, and this loss has none")
    if known.bn_mode != "eval":
        return Certificate(seen.new_zeros(0), "batch normalisation mixes the records of a batch")
    if len(bins) == 0:
        return Certificate(torch.zeros(0, dtype=torch.bool))
    model, weights = attack_model(observation), attack_parameters(observation)
    compare = training_loss(known.loss)

    def sent(record: Tensor, label: Tensor) -> Tensor:
        def loss(at: Tensor) -> Tensor:
            outputs = functional_call(model, {**weights, bias: at}, (record.unsqueeze(0),))
            return compare(outputs, label.unsqueeze(0), "sum")

        return between(grad(loss)(weights[bias]))

    records = inputs.to(weights[bias])
    share = 1.0 / (image_count(observation) if known.loss_reduction == "mean" else known.clients or 1)
    found = torch.zeros(len(bins), dtype=torch.bool, device=seen.device)
    for label in range(known.num_classes):
        labels = torch.full((len(records),), label, device=records.device)
        rows = vmap(sent)(records, labels) * share
        own = rows.gather(1, bins.to(rows.device).unsqueeze(1)).squeeze(1)
        found |= (own - seen).abs() < _TOLERANCE * seen.abs()
    pixels = records if known.normalisation is None else known.normalisation.undo(records)
    outside = (pixels - pixels.clamp(0, 1)).abs().flatten(1).amax(1)
    return Certificate(found & (outside < _TOLERANCE).to(found.device))
