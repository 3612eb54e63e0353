"""Soft thresholding: every entry of the upload moves towards zero, and small ones arrive there."""

from __future__ import annotations

from torch import Tensor

from fedseal import Defence, Info
from fedseal.core.defence import AttackerView, RoundContext
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits


class SoftThreshold(Defence):
    """Sends sign(x) max(|x| - amount max|x|, 0), tensor by tensor.

    Args:
        amount: share of a tensor's largest magnitude that is taken off; 0 sends the upload as it is.
    """

    info = Info(
        "take a share of the largest magnitude off every entry",
        threat="passive",
        strengths=("amount=0.01", "amount=0.1", "amount=0.3"),
    )

    def __init__(self, amount: float = 0.1) -> None:
        self.amount = amount
        self.traits = Traits(data_dependent_mask=amount > 0)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Shrink the upload."""
        return self._shrunk(update) if self.amount > 0 else update

    def attacker_view(self) -> AttackerView:
        """Let an attacker who knows the rule apply it to its dummy gradient."""
        return AttackerView(self.name, {"amount": self.amount}, lambda gradient, observed: self._shrunk(gradient))

    def _shrunk(self, update: Tensors) -> Tensors:
        return {name: _shrink(tensor, self.amount) for name, tensor in update.items()}


def _shrink(tensor: Tensor, amount: float) -> Tensor:
    size = tensor.abs()
    return tensor.sign() * (size - amount * size.amax()).clamp(min=0)
