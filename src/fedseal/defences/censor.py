"""CENSOR (Zhang et al., NDSS 2025): send a random direction orthogonal to the gradient, the luckiest of several.

Every tensor is replaced by a random one, without its component along the true tensor and of its norm; of `trials` such
uploads the client sends the one with the lowest loss on its own batch after a small step (the cold posterior of the
paper). Zero trials are the identity. Threat model: honest-but-curious server.

Equations: r ~ N(0, I) in every tensor; printed: p = r - (r.g / |g|^2) g; released: p = r - (r.g / |g|) g;
candidate u = |g| p / |p|; sent is the u with the lowest loss at w - step u.

Departures: `variant=printed` is orthogonal, as the paper says. The authors' code divides by |g| once only and is
orthogonal where |g| = 1 alone: elsewhere p keeps (1 - |g|) of the component along g, and the choice by loss prefers
draws that happen to point along it; `variant=released` does that. A weight change is treated as a gradient is: the
step goes along it. How many trials the authors take is not known to us; a tensor of one entry has nothing orthogonal
and is sent as zero.

Cost: `trials` forward passes and draws of the model's size per round; no state, no bytes.

Known breaks: the norm of every tensor is sent exactly. What is sent lies across the gradient, so that uploads of the
same images fill its complement: after as many rounds as a tensor has entries less one, its direction is what they
leave open, exactly; a tensor of two entries is told by one. Under `variant=released` the plain mean of repeated uploads
turns to the gradient, first in the tensors that are largest. And little is learnt by the federation: to first order a
step across the gradient changes nothing.
"""

from __future__ import annotations

import copy
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits

Variant: TypeAlias = Literal["printed", "released"]
"""Orthogonal to the gradient, as the paper prints it; or as the authors' code computes it."""

_TINY = 1e-30


def across(direction: Tensor, gradient: Tensor, variant: Variant = "printed") -> Tensor:
    """Return a direction without its component along a gradient, scaled to the gradient's norm.

    Args:
        direction: random, in the shape of the gradient.
        gradient: whose norm the result has; zero gives zero.
        variant: see `Variant`.
    """
    norm = torch.linalg.vector_norm(gradient)
    along = (direction * gradient).sum()
    share = along / norm.square().clamp(min=_TINY) if variant == "printed" else along / norm.clamp(min=_TINY)
    return _scaled_to(direction - share * gradient, gradient)


@DEFENCES.register(
    "censor",
    Info(
        "send the luckiest of random directions orthogonal to the gradient",
        paper="Zhang et al., NDSS 2025",
        threat="passive",
        strengths=("trials=1", "trials=10", "trials=100"),
    ),
)
class Censor(Defence):
    """Orthogonal random directions, chosen by loss.

    Args:
        trials: candidates to choose from; 0 sends the gradient itself.
        variant: `printed`, orthogonal, or `released`, as the authors' code has it.
        step: how far along a candidate the loss is looked at.
    """

    stage = "update"

    def __init__(self, trials: int = 10, variant: Variant = "printed", step: float = 1e-4) -> None:
        if trials < 0 or not step > 0:
            raise UsageError(
                f"censor needs trials >= 0 and a positive step, got {trials} and {step:g}.",
                hint="trials=0 is no defence at all; the authors' step is 1e-4.",
            )
        self.trials = trials
        self.variant = variant
        self.step = step
        self.traits = Traits(reads_batch=trials > 0)
        self._component: dict[str, Tensor] = {}

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Draw candidates, and send the one with the lowest loss after a step."""
        if self.trials == 0:
            return update
        after = _LossAfter(update, context, self.step)
        best, lowest = self._candidate(update, context.generator), float("inf")
        for trial in range(self.trials):
            candidate = best if trial == 0 else self._candidate(update, context.generator)
            if self.trials == 1:
                break
            value = after(candidate)
            if value < lowest:
                best, lowest = candidate, value
        self._component = {name: _cosine(best[name], tensor) for name, tensor in update.items()}
        return {name: best[name].to(tensor.dtype) for name, tensor in update.items()}

    def _candidate(self, update: Tensors, generator: torch.Generator) -> Tensors:
        """Draw one upload, in at least single precision."""
        drawn = {}
        for name, tensor in update.items():
            wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            direction = torch.randn(wide.shape, generator=generator, dtype=wide.dtype, device=generator.device)
            drawn[name] = across(direction.to(wide), wide, self.variant) if wide.numel() > 1 else torch.zeros_like(wide)
        return drawn

    def report(self) -> CostReport:
        """Count the forward passes, a third of a forward-backward pass each."""
        return CostReport(extra_passes=self.trials / 3 if self.trials > 1 else 0.0)

    def attacker_view(self) -> AttackerView:
        """Publish the rule: norms are exact, and what was sent lies across what was not.

        A dummy gradient is given the observed draw, made orthogonal to it and of its norm, which for the true gradient
        is the upload itself. Of the released variant norms alone can be simulated.
        """
        parameters = {"trials": self.trials, "variant": self.variant}
        if self.trials == 0:
            return AttackerView(self.name, parameters)
        simulate = _made_orthogonal if self.variant == "printed" else _given_its_norm
        return AttackerView(
            self.name,
            parameters,
            simulate,
            channel=self._channel(),
            unused=("that of several draws the one of the lowest loss was sent",),
        )

    def _channel(self) -> Channel:
        """Return what passes: of each tensor the norm, and its component along what was sent, as if that were known."""
        component = dict(self._component)

        def passes(update: Tensors, observed: Tensors) -> Tensors:
            return {
                name: _with_component(tensor, observed[name].to(tensor), component.get(name))
                for name, tensor in update.items()
            }

        remark = "the component of what was sent along the update is taken as known, draws and their choice as not"
        return Channel(passes, remarks=(remark,))


class _LossAfter:
    """The loss of a client's last batch after a small step along an upload, from the weights it was sent.

    Args:
        update: the true one, by which a weight change is taken back.
        context: of the round.
        step: in units of a gradient; along a weight change it is divided by the learning rate.
    """

    def __init__(self, update: Tensors, context: RoundContext, step: float) -> None:
        assert context.batch is not None, "an update belongs to a batch"
        self._model = copy.deepcopy(context.model).eval()
        self._batch, self._loss = context.batch, context.loss
        trained = dict(context.model.named_parameters())
        is_delta = context.kind == "delta"
        self._start = {
            name: trained[name].detach() - tensor if is_delta else trained[name].detach()
            for name, tensor in update.items()
        }
        self._step = step / context.learning_rate if is_delta else -step

    @torch.no_grad()
    def __call__(self, candidate: Tensors) -> float:
        """Return the loss."""
        weights = {name: start + self._step * candidate[name].to(start) for name, start in self._start.items()}
        return float(self._loss(lambda images: functional_call(self._model, weights, (images,)), self._batch))


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine between two tensors; 0 where one of them is zero."""
    sizes: Tensor = torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other)
    return (one * other).sum() / sizes.clamp(min=_TINY)


def _made_orthogonal(gradient: Tensors, observed: Tensors) -> Tensors:
    return {name: across(observed[name].to(tensor), tensor) for name, tensor in gradient.items()}


def _given_its_norm(gradient: Tensors, observed: Tensors) -> Tensors:
    return {name: _scaled_to(observed[name].to(tensor), tensor) for name, tensor in gradient.items()}


def _scaled_to(direction: Tensor, gradient: Tensor) -> Tensor:
    """Return a direction at the norm of a gradient; zero stays zero."""
    factor: Tensor = torch.linalg.vector_norm(gradient) / torch.linalg.vector_norm(direction).clamp(min=_TINY)
    return direction * factor


def _with_component(update: Tensor, observed: Tensor, component: Tensor | None) -> Tensor:
    """Return what was sent, turned so that its cosine with an update stays the one it was, and of the update's norm."""
    norm = torch.linalg.vector_norm(update).clamp(min=_TINY)
    unit = observed / torch.linalg.vector_norm(observed).clamp(min=_TINY)
    ahead = update / norm
    wanted = 0.0 if component is None else component.to(update)
    turned = unit - ((unit * ahead).sum() - wanted) * ahead
    return _scaled_to(turned, update)
