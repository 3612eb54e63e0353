"""Adap DP-FL (Fu et al., TrustCom 2022): the clip bound follows the sample norms, sigma falls with the loss.

Per client k and round t the bound is C = alpha x the noised mean of the last round's clipped sample norms; sigma is
multiplied by beta after three falls of the loss in a row. What that norm costs is accounted too. Threat model:
honest-but-curious server (local differential privacy).

Cost: per-sample gradients, B x N of memory, and one number of state per client.

Known breaks: noise that falls as training goes on protects late rounds less than a constant sigma of the same start;
beyond that as for `dp-sgd`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, CostReport, NoiseLaw, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.defences.dp.clipping import sample_norms
from fedseal.defences.dp.mechanism import PrivateGradients
from fedseal.defences.noise import with_noise


@DEFENCES.register(
    "dp-adaptive",
    Info(
        "DP-SGD whose clip bound follows the sample norms and whose noise falls with the loss",
        paper="Fu et al., TrustCom 2022",
        threat="passive",
    ),
)
@dataclass(eq=False)
class AdaptiveDP(PrivateGradients):
    """Adap DP-FL: C of a round is alpha times the noisy mean norm of the last; sigma falls by beta as the loss falls.

    Sigma is multiplied by beta in every round whose last three losses all fell. Departures: noise goes on the sum of
    clipped norms, one number of sensitivity C (std `norm_sigma` x sigma x C, and accounted), because norms of
    noised gradients grow by sigma sqrt(N) a round; C changes by at most a factor of two a round.

    Attributes:
        alpha: clip bound over mean norm; above 1 the bound can grow again.
        beta: factor on sigma.
        norm_sigma: noise on the norms relative to that on the gradients; smaller costs more privacy.
        loss: where the loss comes from: the client's `batch` before training (which the accountant does not cover),
            or the `server`, which calls `record_loss` with that of public validation data.
    """

    alpha: float = 1.0
    beta: float = 0.999
    norm_sigma: float = 5.0
    loss: Literal["batch", "server"] = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf or not 0 < self.beta <= 1 or not 0 < self.norm_sigma < math.inf:
            raise UsageError(
                f"{self.name} needs alpha > 0, 0 < beta <= 1 and norm_sigma > 0, got {self.alpha:g}, {self.beta:g} "
                f"and {self.norm_sigma:g}."
            )
        if self.clipping != "flat":
            raise UsageError(f"{self.name} follows the norm of whole gradients.", hint="Leave out `clipping`.")
        self._sigma, self._clip = self.sigma, self.clip
        self._losses: tuple[float, ...] = ()
        self._norms: list[float] = []

    def record_loss(self, value: float) -> None:
        """Take the loss before a round; after three falls in a row sigma goes down."""
        self._losses = (*self._losses, value)[-4:]
        if len(self._losses) == 4 and all(
            late < early for early, late in zip(self._losses, self._losses[1:], strict=False)
        ):
            self._sigma *= self.beta

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Leave the update alone, and set the clip bound of the next round."""
        if self._norms:
            wanted = self.alpha * sum(self._norms) / len(self._norms)
            self._clip = min(max(wanted, self._clip / 2), self._clip * 2)
            self._norms = []
        return super().on_update(update, context)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the ledger, sigma, the clip bound and the last losses."""
        if not self.needs_sample_grads:
            return {}
        now = {"sigma": self._sigma, "clip": self._clip, "losses": self._losses}
        return super().state_dict() | {name: torch.tensor(value, dtype=torch.float64) for name, value in now.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        own = {"sigma", "clip", "losses"}
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        if own <= set(state):
            self._sigma, self._clip = float(state["sigma"]), float(state["clip"])
            self._losses = tuple(state["losses"].tolist())
        elif own & set(state):
            raise InputError(f"the state of {self.name} is incomplete: it holds {sorted(state)} only.")

    def report(self) -> CostReport:
        """Add the forward pass for the loss, a third of a training pass."""
        cost = super().report()
        passes = 1 / 3 if self.loss == "batch" and self._steps else 0.0
        return CostReport(**{**vars(cost), "extra_passes": passes})

    def _strength(self, context: RoundContext) -> tuple[float, float]:
        if context.step == 0:
            self._norms = []  # of a round that was given up
        if context.step == 0 and self.loss == "batch":
            if context.batch is None:
                raise InputError(f"{self.name} has no batch to compute a loss on.", hint="Or use loss=server.")
            with torch.no_grad():
                self.record_loss(float(context.loss(context.model, context.batch)))
        return self._sigma, self._clip

    def _multiplier(self, sigma: float, tensors: int) -> float:
        return sigma / math.sqrt(1 + self.norm_sigma**-2)

    def _end_step(self, grads: Tensors, sigma: float, bound: float, context: RoundContext) -> None:
        """Take the clipped norms' sum with its own noise."""
        joint = torch.linalg.vector_norm(torch.stack([sample_norms(grad) for grad in grads.values()], dim=1), dim=1)
        total = {"norms": joint.clamp(max=bound).sum()}
        law = NoiseLaw("gaussian", self.norm_sigma * sigma * bound)
        self._norms.append(
            float(with_noise(total, law, context.generator)["norms"]) / (self.batch_size or max(1, len(joint)))
        )

    def _remarks(self, private: bool) -> list[str]:
        sigma, bound = self._used
        remarks = [*super()._remarks(private), f"sigma {sigma:.4g} and clip bound {bound:.4g} in this round"]
        if self.loss == "batch" and self.beta < 1:
            remarks.append("sigma follows the loss on private batches, which epsilon does not cover; see loss=server")
        elif self.beta < 1 and len(self._losses) < 4:
            remarks.append(f"{len(self._losses)} losses were recorded by the server; sigma cannot have fallen yet")
        return remarks
