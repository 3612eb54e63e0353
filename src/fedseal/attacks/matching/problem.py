"""The function an attack minimises: matching distance plus priors, of one lane's variable."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedseal.attacks.matching.captures import Captured, CaptureHooks, nothing_captured, together
from fedseal.attacks.matching.objectives import Layout, Objective, ProductObjective, ReadsWithheld
from fedseal.attacks.matching.parameterisation import Parameterisation
from fedseal.attacks.matching.priors import Priors, Statistics
from fedseal.core.batch import IDENTITY, Normalisation
from fedseal.core.defence import AttackerView
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.optimiser import PLAIN, Optimiser
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.federation.loss import training_loss

_CACHE_LINE = 64


@dataclass(frozen=True)
class Lanes:
    """The constants of each lane.

    Attributes:
        observed: observed updates in gradient units, [L, N].
        labels: labels [L, B] the dummy images carry; None when they are optimised with the images.
        numbers: of the lanes [L], which stay with them when others leave; counted from 0 if not given.
    """

    observed: Tensor
    labels: Tensor | None
    numbers: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.numbers is None:
            object.__setattr__(self, "numbers", torch.arange(len(self.observed), device=self.observed.device))

    @cached_property
    def rows(self) -> list[Tensor]:
        """The observed update of each lane, at the start of a cache line, where PyTorch puts fresh vectors."""
        return [row if row.data_ptr() % _CACHE_LINE == 0 else row.clone() for row in self.observed]

    def pick(self, indices: Tensor) -> Lanes:
        """Return some of the lanes."""
        labels = None if self.labels is None else self.labels[indices]
        return Lanes(self.observed[indices], labels, self.numbers[indices])


@dataclass(frozen=True)
class Unroll:
    """Local steps to be simulated one by one instead of as one gradient.

    Attributes:
        steps: number of steps in a pass; the dummy images are dealt to them in order.
        learning_rate: of those steps.
        epochs: passes over the batches.
        rule: by which steps are taken.
    """

    steps: int
    learning_rate: float
    epochs: int = 1
    rule: Optimiser = PLAIN


@dataclass(frozen=True)
class Surrogate:
    """The point between the weights sent and returned at which one gradient stands for all local steps (SME).

    w_alpha = (1 - alpha) w_0 + alpha w_1, alpha sought with the images, from `start`. In z it is a number a with
    alpha = start + rate a, so that steps of one size move it by `rate` where they move a pixel by one.

    Attributes:
        rate: of alpha, relative to that of the inputs.
        start: of alpha.
    """

    rate: float = 1e-3
    start: float = 0.5

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers a keeps alpha in [0, 1]."""
        return -self.start / self.rate, (1 - self.start) / self.rate

    def alpha(self, a: Tensor) -> Tensor:
        """Return alpha."""
        return self.start + self.rate * a


class MatchingProblem:
    """Maps a lane's variable z [D] to distance(simulate(update(z)), observed) + priors.

    z holds what the parameterisation turns into dummy inputs [B, C, H, W], behind it what the defence hides in the
    model (`AttackerView.unknowns`), the place of a surrogate point, and, if labels are not known, label logits
    [B, classes] (`TrainingLoss.relaxed`).

    Args:
        model: the attacker's copy of the model.
        parameters: its trainable parameters.
        parameterisation: of the dummy inputs.
        num_classes: number of logits.
        objective: the matching distance.
        priors: added to it.
        statistics: known batch normalisation statistics, for the prior on them.
        loss: that the client minimises.
        reduction: of it over the batch.
        soft_labels: whether z holds label logits.
        view: what a defence-aware attacker simulates; None for a naive one.
        scale: the update is `scale` times a gradient; views simulate on updates.
        clients: number of clients behind an aggregate; each normalises its own batch.
        normalisation: between images and dummy inputs, for the view's image prior.
        unroll: simulate local steps; None reads the update as one mean gradient.
        surrogate: where that gradient is taken; None for the weights that were sent.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Tensors,
        *,
        parameterisation: Parameterisation,
        num_classes: int,
        objective: Objective,
        priors: Priors,
        statistics: Statistics | None = None,
        loss: str = CROSS_ENTROPY,
        reduction: Literal["mean", "sum"] = "mean",
        soft_labels: bool = False,
        view: AttackerView | None = None,
        scale: float = 1.0,
        clients: int = 1,
        normalisation: Normalisation = IDENTITY,
        unroll: Unroll | None = None,
        surrogate: Surrogate | None = None,
    ) -> None:
        self.model = model
        self.parameters = dict(parameters)
        self.layout = Layout.of(parameters)
        self.parameterisation = parameterisation
        self.priors = priors
        self.soft_labels = soft_labels
        self.unroll = unroll
        self.surrogate = surrogate
        self.num_classes = num_classes
        self._objective = objective
        self._statistics = statistics
        self.training_loss = training_loss(loss)
        self._reduction = reduction
        self._view = view
        self._scale = scale
        self.clients = clients
        self.normalisation = normalisation
        self.unknowns = self._hidden()
        self._hooks = None
        if priors.needs_captures:
            self._hooks = CaptureHooks(model, statistics=priors.needs_statistics, activations=priors.activation > 0)

    @property
    def batch(self) -> int:
        """B, the number of dummy images in a lane."""
        return self.parameterisation.shape[0]

    @property
    def size(self) -> int:
        """D, the number of entries of z."""
        return self.place_of_surrogate + (self.surrogate is not None) + self._logits

    @property
    def place_of_surrogate(self) -> int:
        """Where in z the surrogate point is told, if there is one."""
        return self.parameterisation.size + sum(start.numel() for start in self.unknowns.values())

    @property
    def _logits(self) -> int:
        return self.batch * self.num_classes if self.soft_labels else 0

    @property
    def is_one_gradient(self) -> bool:
        """Whether the dummy update is a gradient at the weights that were sent."""
        return self.unroll is None and self.surrogate is None

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return how far on the way the surrogate point of one lane lies; None where there is none."""
        return None if self.surrogate is None else self.surrogate.alpha(z[self.place_of_surrogate])

    def _hidden(self) -> Tensors:
        """Return what the defence hides in the model, with where to start; of one client and one step only."""
        if self._view is None or self._view.unknowns is None or self.clients > 1 or self.unroll is not None:
            return {}
        return self._view.unknowns(self.model, self.batch)

    def guessed(self, z: Tensor) -> Tensors:
        """Return what one lane guesses of what is hidden in the model."""
        found, place = {}, self.parameterisation.size
        for name, start in self.unknowns.items():
            found[name] = z[place : place + start.numel()].view(start.shape)
            place += start.numel()
        return found

    def inputs(self, z: Tensor) -> Tensor:
        """Return the dummy inputs [B, C, H, W] of one lane."""
        return self.parameterisation.decode(z[: self.parameterisation.size])

    def inputs_of_lanes(self, z: Tensor) -> Tensor:
        """Return the dummy inputs [L, B, C, H, W] of all lanes."""
        return self.parameterisation.decode_many(z[:, : self.parameterisation.size])

    @property
    def sample_weight(self) -> float:
        """What one image counts in the client's loss."""
        return 1 / self.batch if self._reduction == "mean" else 1.0

    def label_logits(self, z: Tensor) -> Tensor:
        """Return the label logits [..., B, classes] in z [..., D]."""
        return z[..., -self.batch * self.num_classes :].reshape(*z.shape[:-1], self.batch, self.num_classes)

    def loss(self, parameters: Tensors, z: Tensor, labels: Tensor | None) -> tuple[Tensor, tuple[Captured, Tensor]]:
        """Return the clients' loss on one lane's dummy data, with the inner values and inputs behind it."""
        target = self.training_loss.relaxed(self.label_logits(z)) if labels is None else labels
        inputs = self.inputs(z)
        if self.clients == 1:
            loss, captured = self._loss_on({**parameters, **self.guessed(z)}, inputs, target)
            return loss, (captured, inputs)
        parts = zip(inputs.chunk(self.clients), target.chunk(self.clients), strict=True)
        losses, passes = zip(*(self._loss_on(parameters, *part) for part in parts), strict=True)
        return torch.stack(losses).mean(), (together(passes), inputs)

    def update(
        self, z: Tensor, labels: Tensor | None, observed: Tensor | None = None, *, plain: bool = False
    ) -> tuple[Tensor, Captured, Tensor]:
        """Return the dummy update in gradient units [N], inner values and inputs; differentiable in z (exactly).

        Args:
            z: of one lane.
            labels: [B], or None if z holds them.
            observed: the lane's update [N], by which a surrogate point is found.
            plain: by ordinary autograd, cheaper for one lane than the transforms that `vmap` can vectorise.
        """
        differentiate = _plain_gradient if plain else grad
        if self.unroll is None:
            where = self._where(z, observed)
            gradient, (captured, inputs) = differentiate(self.loss, has_aux=True)(where, z, labels)
            return flatten(gradient), captured, inputs
        return self._unrolled(self.unroll, z, labels, differentiate)

    def _where(self, z: Tensor, observed: Tensor | None) -> Tensors:
        """Return the weights at which one gradient stands for the update."""
        alpha = self.alpha(z)
        if alpha is None:
            return self.parameters
        assert observed is not None, "a surrogate point lies on the way to the observed weights"
        change = unflatten(observed * self._scale, self.parameters)
        return {name: value + alpha * change[name] for name, value in self.parameters.items()}

    def distance(
        self, dummy: Tensor, observed: Tensor, selection: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the matching distance of a dummy update, and the selection of coordinates it compared."""
        simulated = self._simulate(dummy, observed)
        if selection is None:
            selection = self._objective.select(simulated, observed, self.layout)
        distance = self._objective.distance(simulated, observed, self.layout, selection)
        if self._view is not None and isinstance(self._objective, ReadsWithheld):
            distance = distance + self._objective.withheld(dummy, observed, self.layout)
        return distance + self._penalty(dummy, observed), selection

    @property
    def product_objective(self) -> ProductObjective | None:
        """The matching distance, if it is a function of inner products of the raw dummy update; None otherwise."""
        return self._objective if self._view is None and isinstance(self._objective, ProductObjective) else None

    def prior(self, inputs: Tensor, captured: Captured) -> Tensor:
        """Return the prior terms of one lane's dummy inputs."""
        return self.priors.value(inputs, captured, self._statistics) + self._believed(inputs)

    def image_prior(self, inputs: Tensor) -> Tensor:
        """Return the prior terms that need nothing but one lane's dummy inputs."""
        return self.priors.of_images(inputs) + self._believed(inputs)

    def _believed(self, inputs: Tensor) -> Tensor:
        if self._view is None or self._view.image_prior is None:
            return inputs.new_zeros(())
        return self._view.image_prior(self.normalisation.undo(inputs))

    @torch.no_grad()
    def passes_activations(self, z: Tensor) -> bool:
        """Whether anything counts as an activation inside of the model, given one lane's variable; a prior may ask."""
        hooks = CaptureHooks(self.model, statistics=False, activations=True)
        with hooks.watching():
            functional_call(self.model, dict(self.parameters), (self.inputs(z),))
        return bool(hooks.latest.activations)

    @property
    def believes_more(self) -> bool:
        """Whether the view of a defence adds a belief about images to the priors."""
        return self._view is not None and self._view.image_prior is not None

    @property
    def has_image_prior(self) -> bool:
        """Whether anything is believed of the images as such, not of what happens inside the model."""
        return bool(self.priors.tv or self.priors.l2) or self.believes_more

    @property
    def has_prior(self) -> bool:
        """Whether anything is believed of the images before the update is seen."""
        return not self.priors.are_absent or self.believes_more

    def value(
        self,
        z: Tensor,
        observed: Tensor,
        labels: Tensor | None,
        weight: float,
        selection: Tensor | None,
        plain: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return weight x distance + priors of one lane, and the selection (empty when all is compared)."""
        dummy, captured, inputs = self.update(z, labels, observed, plain=plain)
        distance, chosen = self.distance(dummy, observed, selection)
        total = distance * weight
        if self.has_prior:
            total = total + self.prior(inputs, captured)
        return total, dummy.new_zeros(0) if chosen is None else chosen

    def _loss_on(self, parameters: Tensors, inputs: Tensor, target: Tensor) -> tuple[Tensor, Captured]:
        """Return the loss of one client's step, and what passed inside of the model."""
        with nullcontext() if self._hooks is None else self._hooks.watching():
            logits = functional_call(self.model, dict(parameters), (inputs,))
        loss = self.training_loss(logits, target, self._reduction)
        extra = None if self._view is None or self._view.extra_loss is None else self._view.extra_loss(self.model)
        captured = nothing_captured() if self._hooks is None else self._hooks.latest
        return loss if extra is None else loss + extra, captured

    def _unrolled(
        self, unroll: Unroll, z: Tensor, labels: Tensor | None, differentiate: Callable[..., Any]
    ) -> tuple[Tensor, Captured, Tensor]:
        """Simulate local steps with the graph kept (Inverting Gradients, federated averaging)."""
        inputs = self.inputs(z)
        targets = self.training_loss.relaxed(self.label_logits(z)) if labels is None else labels
        weights: Tensors = self.parameters
        passes: list[Captured] = []
        course = unroll.rule.begin()
        batches = list(zip(inputs.chunk(unroll.steps), targets.chunk(unroll.steps), strict=True))
        for part, target in batches * unroll.epochs:
            gradient, captured = differentiate(self._loss_on, has_aux=True)(weights, part, target)
            passes.append(captured)
            step = course.directions(weights, gradient)
            weights = {name: value - unroll.learning_rate * step[name] for name, value in weights.items()}
        change = {name: (weights[name] - value) / self._scale for name, value in self.parameters.items()}
        return flatten(change), together(passes[: unroll.steps]), inputs

    def _penalty(self, dummy: Tensor, observed: Tensor) -> Tensor:
        if self._view is None or self._view.penalty is None:
            return dummy.new_zeros(())
        seen = unflatten(observed * self._scale, self.parameters)
        return self._view.penalty(unflatten(dummy * self._scale, self.parameters), seen)

    def _simulate(self, dummy: Tensor, observed: Tensor) -> Tensor:
        if self._view is None:
            return dummy
        seen = unflatten(observed * self._scale, self.parameters)
        update = unflatten(dummy * self._scale, self.parameters)
        return flatten(self._view.simulate(update, seen)) / self._scale


def _plain_gradient(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """Return the gradient of a function in its first argument, by ordinary autograd; as `torch.func.grad`."""

    def differentiate(parameters: Tensors, *rest: Tensor | None) -> Any:
        leaves = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in parameters.items()}
        result = function(leaves, *rest)
        value = result[0] if has_aux else result
        found = torch.autograd.grad(value, list(leaves.values()), create_graph=True, materialize_grads=True)
        gradient = dict(zip(leaves, found, strict=True))
        return (gradient, result[1]) if has_aux else gradient

    return differentiate
