"""SVDefense (Luo, Yau and Song, NDSS 2026): send each layer's gradient at low rank.

Every weight, as a matrix [outputs, the rest], is cut to its leading singular directions, as few as hold a share
`energy` of its squared size. Clients whose singular values are concentrated, as those of few classes are, are thought
more vulnerable and withhold more. Channels count by their size in the approximation. `energy=1` is the identity.
Threat model: honest-but-curious server.

Equations: G = U S V'; H = -sum_i p_i ln p_i / ln r with p_i = s_i / sum s, the mean of H over layers; withheld share
(1 - energy) (1 + stretch (1 - H)); k is the least rank that leaves no more; sent is D^-1 [D G]_k with
D = diag(|G_c|^power) over output channels c.

Departures: of the paper we have its summaries only, which name an energy threshold adapted by the entropy of singular
values, channel weights and layer weights on the server. How entropy becomes a threshold and what a channel weighs are
our choice (`stretch`, `power`; 0 leaves either out). The server's layer weights are left out: the plain mean is taken.
Vectors, such as biases, are of rank one and sent as they are.

Cost: one singular value decomposition per weight and round; uploads can be sent as factors, which is counted where it
is shorter.

Known breaks: rows of what is sent are combinations of the rows of the gradient, and those of a linear layer are
combinations of its inputs: truncation leaves the span, so tests of membership (`dager`) and inversion of rows
(`first-layer`, `spear`) go on. The gradient of one image at a linear layer has rank one and passes untouched.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.truncation import Decomposed, decomposed, truncated

FLOAT_BYTES = 4
_LEAST_WEIGHT = 1e-3


@DEFENCES.register(
    "svdefense",
    Info(
        "cut each layer's gradient to the rank that holds most of its energy",
        paper="Luo, Yau and Song, NDSS 2026",
        threat="passive",
        strengths=("energy=0.99", "energy=0.9", "energy=0.7", "energy=0.5"),
    ),
)
class SVDefense(Defence):
    """Truncated singular value decomposition of every weight.

    Args:
        energy: share of a layer's squared size that is sent at least, by a client of many classes; 1 sends all.
        stretch: how much more a client withholds whose singular values are all but one zero; 0 for all clients alike.
        power: of its norm, by which a channel counts in the approximation; 0 for all channels alike.
    """

    stage = "update"

    def __init__(self, energy: float = 0.9, stretch: float = 1.0, power: float = 0.5) -> None:
        if not 0 < energy <= 1 or not stretch >= 0 or not 0 <= power <= 1:
            raise UsageError(
                f"svdefense needs 0 < energy <= 1, stretch >= 0 and 0 <= power <= 1, got {energy:g}, {stretch:g} and "
                f"{power:g}.",
                hint="energy is the share that is sent; 1 is no defence at all.",
            )
        self.energy = energy
        self.stretch = stretch
        self.power = power
        self.traits = Traits()

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Truncate every weight."""
        if self.energy == 1:
            return update
        sent = self._truncated(update)
        return {name: sent[name].to(tensor.dtype) for name, tensor in update.items()}

    def protocol_bytes(self, update: Tensors) -> int:
        """Return by how much factors U S and V' are shorter than the weights they make, which is less than zero."""
        saved = 0
        for tensor in update.values():
            if self.energy < 1 and _is_matrix(tensor):
                rows, columns = tensor.shape[0], tensor[0].numel()
                rank = int(torch.linalg.matrix_rank(_as_matrix(tensor).float()))
                saved += max(0, rows * columns - rank * (rows + columns)) * FLOAT_BYTES
        return -saved

    def report(self) -> CostReport:
        """Say what the counted bytes leave out."""
        if self.energy == 1:
            return super().report()
        return CostReport(remarks=("uploads are counted whole; as factors of their rank they would be shorter",))

    def attacker_view(self) -> AttackerView:
        """Publish the rule, which is applied to dummy gradients; its derivative is that of the truncation."""
        parameters = {"energy": self.energy, "stretch": self.stretch, "power": self.power}
        if self.energy == 1:
            return AttackerView(self.name, parameters)
        return AttackerView(self.name, parameters, lambda gradient, observed: self._truncated(gradient))

    def _truncated(self, update: Tensors) -> Tensors:
        """Return low ranks of all weights; differentiable once, and the rest as it is."""
        weights = {name: self._channel_weights(tensor) for name, tensor in update.items() if _is_matrix(tensor)}
        parts = {name: decomposed(_as_matrix(update[name]) * weights[name]) for name in weights}
        share = self._withheld(list(parts.values()))
        sent = dict(update)
        for name, part in parts.items():
            low = truncated(part, part.leading(1 - share)) / weights[name]
            sent[name] = low.reshape(update[name].shape)
        return sent

    def _channel_weights(self, tensor: Tensor) -> Tensor:
        """Return what each output channel counts, [outputs, 1], 1 for the largest."""
        norms = torch.linalg.vector_norm(_as_matrix(tensor), dim=1, keepdim=True)
        relative: Tensor = norms / norms.detach().amax().clamp(min=torch.finfo(norms.dtype).tiny)
        return relative.clamp(min=_LEAST_WEIGHT) ** self.power

    def _withheld(self, parts: list[Decomposed]) -> Tensor | float:
        """Return the share of energy that is withheld, given all layers of a client."""
        if not parts or self.stretch == 0:
            return 1 - self.energy
        entropy = torch.stack([part.entropy() for part in parts]).mean()
        return ((1 - self.energy) * (1 + self.stretch * (1 - entropy))).clamp(max=1.0)


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and min(tensor.shape[0], math.prod(tensor.shape[1:])) > 1


def _as_matrix(tensor: Tensor) -> Tensor:
    """Return a weight as [outputs, the rest], in at least single precision."""
    return tensor.reshape(len(tensor), -1).to(torch.promote_types(tensor.dtype, torch.float32))
