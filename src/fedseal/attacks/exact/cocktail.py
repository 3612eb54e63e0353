"""The cocktail party attack: batches from a linear layer behind any activation, by independent component analysis.

The rows of the weight's gradient are mixtures of the layer's inputs, as many as there are samples. Inputs of natural
data are far from normal and nearly independent of one another, their mixtures less so: the unmixing is the one whose
outputs are least normal (negentropy by log cosh) without being alike, and smooth where they are pictures. Signs and
sizes follow from the bias' gradient.

Equations: maximise E[(log cosh(a s) / a)^2] - mean(exp(T |cos(w_i, w_j)|) - 1) - TV(s) over unit rows w, s = W z, z the
whitened rows (Kariyappa et al. 2023, Sec. 4; a = 1, T = 5).

Threat model: passive server.

Departures: the published code overwrites its negentropy by zero and separates by the other two terms alone; here it
counts, as the paper says. Each mixture starts from a symmetric fixed-point solution, which needs fewer steps.

Cost: steps on matrices of batch times inputs; no pass through the model.

Known breaks: approximate, and without a certificate: mixtures remain where samples are alike or many. Needs as many
units as samples; pruning and noise hide the rank as for `spear`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedseal.attacks.exact.claims import Claims
from fedseal.attacks.exact.layer import LayerSeparation, LayerUpdate
from fedseal.attacks.exact.separation import Separated
from fedseal.attacks.spectrum import Spectrum
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import CapabilityError
from fedseal.core.ranges import Count, Weight
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.models.gates import LinearGate

_T = 5.0
_FIXED_POINT = 100


@ATTACKS.register(
    "cocktail",
    Info(
        "batches from a linear layer by independent components",
        paper="Kariyappa et al., ICML 2023",
        threat="passive",
        needs=("batch_size",),
    ),
)
class CocktailParty(LayerSeparation):
    """Separates samples by how far from normal their entries are.

    Args:
        iterations: steps of the unmixing.
        rate: of Adam.
        alike: what likeness of the unmixed counts.
        steps: of the inversion of features, where the layer does not see the images themselves.
    """

    def __init__(self, iterations: Count = 1000, rate: Weight = 3e-3, alike: Weight = 0.1, steps: int = 300) -> None:
        super().__init__(steps)
        self.iterations, self.rate, self.alike = iterations, rate, alike

    def choose(self, gates: Sequence[LinearGate]) -> LinearGate:
        """Return the first linear layer with a bias, whatever is behind it, unless it is the last."""
        for gate in gates[:-1]:
            if gate.bias_name is not None:
                return gate
        raise CapabilityError(
            "cocktail needs a hidden linear layer with a bias.",
            hint="Other models are attacked by the matching attacks, such as `ig`.",
        )

    def separate(self, layer: LayerUpdate, found: Spectrum, budget: Budget, seed: int) -> tuple[Separated | None, str]:
        """Unmix the rows of the gradient."""
        if not found.clear:
            return None, "the spectrum has no clear gap, so noise hides how many samples there are"
        claims = Claims.of(found, layer.bias, (layer.weight, layer.shift))
        unmixing = self._unmix(found, budget.iterations or self.iterations, seed)
        basis = (found.values.unsqueeze(1) * torch.linalg.pinv(unmixing)).T
        basis = basis / basis.norm(dim=1, keepdim=True).clamp(min=1e-300)
        if int(torch.linalg.inv_ex(basis.T).info):
            return None, "the components that were found are not independent, so they are no inputs"
        agreement = float(claims.agreement(basis.unsqueeze(0))) if layer.gate.gated else 0.0
        return Separated(claims.inputs(basis), agreement, 0), "separated by independence, which certifies nothing"

    def _unmix(self, found: Spectrum, iterations: int, seed: int) -> Tensor:
        """Return the rows [B, B] that make inputs, up to their sizes, of the rows of `found.right`."""
        centred = found.right - found.right.mean(1, keepdim=True)
        left, values, whitened = torch.linalg.svd(centred, full_matrices=False)
        usable = values > 1e-9 * values[0].clamp(min=1e-300)
        whiten = (left[:, usable] / values[usable]).T * centred.shape[1] ** 0.5
        z = whitened[usable] * centred.shape[1] ** 0.5
        rows = torch.randn(found.rank, len(z), generator=generator(seed, "cocktail"), dtype=z.dtype).to(z.device)
        rows = _fixed_point(z, rows)
        return torch.mm(self._descend(z, rows, iterations), whiten)

    def _descend(self, z: Tensor, rows: Tensor, iterations: int) -> Tensor:
        rows = rows.clone().requires_grad_()
        optimiser = torch.optim.Adam([rows], lr=self.rate)
        off = 1 - torch.eye(len(rows), dtype=z.dtype, device=z.device)
        with torch.enable_grad():
            for _ in range(iterations):
                unit = torch.nn.functional.normalize(rows, dim=1)
                distance = (_log_cosh(unit @ z).mean(1) - _NORMAL).square().mean()
                likeness = ((_T * (unit @ unit.T).abs()).exp() - 1).mul(off).sum() / off.sum().clamp(min=1)
                (rows.grad,) = torch.autograd.grad(self.alike * likeness / _T - distance, [rows])
                optimiser.step()
        return torch.nn.functional.normalize(rows.detach(), dim=1)


_NORMAL = 0.3745672
"""The mean of log cosh of a standard normal number."""


def _log_cosh(values: Tensor) -> Tensor:
    return values.abs() + torch.log1p(torch.exp(-2 * values.abs())) - 0.6931471805599453


def _fixed_point(z: Tensor, rows: Tensor) -> Tensor:
    """Return the symmetric fixed-point solution (Hyvarinen 1999) for whitened rows z [K, n], started at `rows`."""
    rows = _orthogonalised(rows)
    for _ in range(_FIXED_POINT):
        slope = torch.tanh(rows @ z)
        rows = _orthogonalised(slope @ z.T / z.shape[1] - (1 - slope.square()).mean(1, keepdim=True) * rows)
    return rows


def _orthogonalised(rows: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(rows, full_matrices=False)
    return torch.mm(left, right)
