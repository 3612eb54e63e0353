"""Whether a claim of samples agrees with the layer they went through: SPEAR's certificate, which needs no truth.

A basis Q of directions claims derivatives D = U Q diag(d) and inputs X^T = diag(1/d) Q^-1 S V^T, where d is what makes
the derivatives add up to the bias' gradient h: Q d = U^T h. The attacker knows the layer, hence which units the claimed
inputs fire; behind ReLU these are the ones with a derivative. The share of pairs (unit, sample) for which both agree is
1 for the true samples, and for nothing else that was ever seen (Dimitrov et al. 2024, Sec. 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.spectrum import Spectrum

_PASSES = 4
_ROUNDING = 1e-7
"""Of the root mean square of a sample's derivatives: what single precision makes of zeros stays below, at its worst."""


@dataclass(frozen=True)
class Claims:
    """What claims of one gradient are checked with.

    Attributes:
        found: the gradient's parts.
        total: U^T h, [B].
        seen: S V^T W^T, what the parts of the inputs become behind the weight, [B, m].
        shift: the layer's bias, [m].
    """

    found: Spectrum
    total: Tensor
    seen: Tensor
    shift: Tensor

    @classmethod
    def of(cls, found: Spectrum, bias: Tensor, layer: tuple[Tensor, Tensor]) -> Claims:
        """Prepare for a gradient's parts, the bias' gradient [m], and the layer's weight [m, n] and bias [m]."""
        weight, shift = (part.double() for part in layer)
        seen = (found.values.unsqueeze(1) * found.right) @ weight.T
        return cls(found, found.left.T @ bias.double(), seen, shift)

    def agreement(self, bases: Tensor) -> Tensor:
        """Return the share of pairs that agree for each of bases [k, B, B], whose rows are directions; [k]."""
        inverse, failed = torch.linalg.inv_ex(bases.transpose(1, 2))
        fires = self._unscaled(inverse, self.seen) + self.shift > 0  # [k, B, m]
        flat = bases.flatten(0, 1)
        least = _ROUNDING * len(self.found.left) ** -0.5
        there = (self.found.left @ flat.T).abs() >= self.found.silence(flat).clamp(min=least)
        shares = (fires == there.T.reshape(fires.shape)).double().mean((1, 2))
        return torch.where(failed == 0, shares, -torch.ones_like(shares))

    def inputs(self, basis: Tensor) -> Tensor:
        """Return the inputs that a basis [B, B] claims, [B, n]."""
        inverse = torch.linalg.inv(basis.T).unsqueeze(0)
        return self._unscaled(inverse, self.found.values.unsqueeze(1) * self.found.right)[0]

    def improved(self, basis: Tensor, pool: Tensor) -> tuple[Tensor, float]:
        """Exchange members of a basis [B, B] for those of a pool [k, B] as long as more pairs agree; say how many."""
        most = float(self.agreement(basis.unsqueeze(0)))
        for _ in range(_PASSES):
            if most == 1:
                break
            before = most
            for place in range(len(basis)):
                bases = basis.repeat(len(pool), 1, 1)
                bases[:, place] = pool
                shares = self.agreement(bases)
                best = int(shares.argmax())
                if float(shares[best]) > most:
                    basis, most = bases[best], float(shares[best])
            if most == before:
                break
        return basis, most

    def _unscaled(self, inverse: Tensor, parts: Tensor) -> Tensor:
        """Return diag(1/d) Q^-1 `parts` for inverses [k, B, B]."""
        scale = inverse @ self.total
        return torch.nan_to_num((inverse @ parts) / scale.unsqueeze(2), 0.0, 0.0, 0.0)
