"""Outpost (Wang, Hugh and Li, INFOCOM 2023): prune every tensor and add noise where the Fisher information is large.

At iteration i a client acts with probability 1 / (1 + beta i). Acting, it zeroes what lies below each tensor's own
percentile and adds N(0, (rho noise)^2) to the entries with the highest `phi` percent of empirical Fisher information,
rho = min(variance of the tensor's weights, 1). Semantics of Plato's working versions of 2022 and 2023:
g^2 averaged over the first dimension. Threat model: passive server, several local steps. Departures: noise is fresh in
every step (Plato reseeds), the Fisher information over batches, as the paper has it, is an option.
`prune=0,noise=0` is the identity.

Cost: one selection per tensor and step, and the empirical Fisher information.

Known breaks: the chance to act falls as 1 / i, so late steps are plain; the largest entries survive pruning, and
default initialisations have so little weight variance that the noise is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy
import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.pruning import match_observed_support
from fedseal.defences.tally import StepTally, everything

Fisher: TypeAlias = Literal["dim0", "batches"]
"""What squared gradients are averaged over: a tensor's first dimension (Plato), or all steps so far (the paper)."""

Counter: TypeAlias = Literal["round", "total"]
"""Whether iterations are counted anew in every round (Plato), or over all rounds."""


@DEFENCES.register(
    "outpost",
    Info(
        "prune each tensor, add noise where the Fisher information is large, ever more rarely",
        paper="Wang, Hugh and Li, INFOCOM 2023",
        threat="passive",
        strengths=("prune=50", "prune=80", "prune=95"),
    ),
)
class Outpost(Defence):
    """Adaptive perturbation of each local step's gradient.

    Args:
        beta: how fast the probability of acting falls; 0 acts always.
        phi: percentage of Fisher entries that get noise.
        prune: percentile of a tensor's magnitudes below which entries are zeroed.
        noise: deviation of the noise as a multiple of the tensor's risk.
        fisher: see `Fisher`.
        counter: see `Counter`.
    """

    stage = "gradient"

    def __init__(
        self,
        beta: float = 0.125,
        phi: float = 40.0,
        prune: float = 80.0,
        noise: float = 0.8,
        fisher: Fisher = "dim0",
        counter: Counter = "round",
    ) -> None:
        if not (beta >= 0 and noise >= 0 and 0 <= phi <= 100 and 0 <= prune <= 100):
            raise UsageError(
                f"outpost needs beta, noise >= 0 and phi, prune <= 100, got {beta:g}, {noise:g}, {phi:g}, {prune:g}.",
                hint="phi and prune are percentages.",
            )
        self.beta = beta
        self.phi = phi
        self.prune = prune
        self.noise = noise
        self.fisher = fisher
        self.counter = counter
        self.traits = Traits(data_dependent_mask=prune > 0)
        self._iteration = 0
        self._fisher_sum: dict[str, Tensor] = {}
        self._steps = 0
        self._acted = 0
        self._tally = StepTally()

    def probability(self, iteration: int) -> float:
        """Return the probability of acting at an iteration, counted from 1."""
        return 1 / (1 + self.beta * iteration)

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Perturb, with the probability of this iteration."""
        self._iteration = context.step + 1 if self.counter == "round" else self._iteration + 1
        self._steps += 1
        self._tally.begin(context)
        if self.fisher == "batches":
            self._accumulate(gradient)
        chance = torch.rand((), generator=context.generator, device=context.generator.device)
        if self.prune == self.noise == 0 or float(chance) >= self.probability(self._iteration):
            untouched = {name: torch.zeros_like(g) for name, g in gradient.items()}
            self._tally.note(untouched, everything(gradient), context)
            return gradient
        self._acted += 1
        return self._perturbed(gradient, context)

    def _perturbed(self, gradient: Tensors, context: RoundContext) -> Tensors:
        weights = dict(context.model.named_parameters())
        information = self._information(gradient)
        every = torch.cat([values.flatten() for values in information.values()])
        threshold = _percentile(every, 100 - self.phi)
        sent: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        variance: dict[str, Tensor] = {}
        for name, g in gradient.items():
            kept[name] = ~(g.abs() < _percentile(g.abs(), self.prune))
            left = g.masked_fill(~kept[name], 0)
            draw = torch.randn(g.shape, generator=context.generator, dtype=g.dtype, device=g.device)
            where = (information[name] >= threshold).to(g.dtype)
            sent[name] = left + self.noise * risk(weights[name]) * draw * where if self.noise else left
            variance[name] = torch.zeros_like(g) + (self.noise * risk(weights[name])) ** 2 * where
        self._tally.note(variance, kept, context)
        return sent

    def _information(self, gradient: Tensors) -> Tensors:
        """Return the empirical Fisher information of each tensor, broadcastable to it."""
        if self.fisher == "batches":
            return self._fisher_sum
        squares = {name: g.float().square() for name, g in gradient.items()}
        return {name: s.mean(0) if s.ndim and len(s) else s for name, s in squares.items()}

    def _accumulate(self, gradient: Tensors) -> None:
        for name, g in gradient.items():
            squares = g.float().square()
            self._fisher_sum[name] = self._fisher_sum[name] + squares if name in self._fisher_sum else squares

    def state_dict(self) -> dict[str, Tensor]:
        """Return the iteration and the Fisher information gathered, where the next round depends on them."""
        state = {f"fisher.{name}": tensor for name, tensor in self._fisher_sum.items()}
        return state if self.counter == "round" else {"iteration": torch.tensor(self._iteration), **state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        foreign = [key for key in state if key != "iteration" and not key.startswith("fisher.")]
        if foreign:
            raise UsageError(f"outpost does not know the state {foreign[0]!r}.", hint="Load what outpost saved.")
        self._iteration = int(state.get("iteration", torch.tensor(0)))
        self._fisher_sum = {k.removeprefix("fisher."): v for k, v in state.items() if k.startswith("fisher.")}

    def report(self) -> CostReport:
        """Add the acting rate."""
        return CostReport(
            state_bytes=super().report().state_bytes,
            remarks=(f"outpost acted in {self._acted} of {self._steps} steps",) if self._steps else (),
        )

    def attacker_view(self) -> AttackerView:
        """Publish the parameters; pruned positions are visible in the upload, the noise differs between tensors."""
        parameters = {"beta": self.beta, "phi": self.phi, "prune": self.prune, "noise": self.noise}
        channel = self._tally.channel()
        if self.prune == 0:
            return AttackerView(self.name, parameters, channel=channel)
        return AttackerView(self.name, parameters, match_observed_support, channel=channel)


def risk(weights: Tensor) -> float:
    """Return the paper's leakage risk of a parameter tensor, the variance of its entries, at most 1."""
    values = weights.detach().float()
    if values.numel() == 0:
        return 0.0
    return min(float(values.var(unbiased=values.numel() > 1)), 1.0)


def _percentile(values: Tensor, percent: float) -> float:
    if values.numel() == 0:
        return 0.0
    return float(numpy.percentile(values.detach().float().cpu().numpy(), percent))
