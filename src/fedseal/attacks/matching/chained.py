"""Exact values and gradients for networks that are chains, written out instead of differentiated twice.

With v the gradient of the matching distance in update space, the gradient in x of S = <dL/dw, v> is wanted. S is the
derivative of the loss along v: a tangent pass z'_i = W_i h'_{i-1} + V_i h_{i-1} beside the forward pass. The adjoints
of its z' are the k_i = dL/dz_i known from the backward pass, so one more pass backwards gives dS/dx:

    h_bar_{i-1} = W_i^T z_bar_i + V_i^T k_i,    z_bar_i = a'(z_i) h_bar_i + a''(z_i) z'_i (W_{i+1}^T k_{i+1})

All lanes run as matrix products, without graphs: several times faster than general second-order differentiation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedseal.attacks.matching.evaluation import Evaluation
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.errors import CapabilityError
from fedseal.federation.loss import CrossEntropy
from fedseal.models.chains.activations import IDENTITY
from fedseal.models.chains.maps import LinearMap, linear_map
from fedseal.models.chains.stages import Link, read_chain

_LANES_AT_ONCE = 64


@dataclass(frozen=True)
class _Pass:
    """What the forward and backward passes leave behind, per stage.

    Attributes:
        columns: of the inputs.
        outputs: behind the activation, [L, B, ...].
        slopes: a'(z).
        k: dL/dz.
        windows: of k.
        pulled: W^T k of the stage above; unused for the last.
        probabilities: softmax of the logits.
    """

    columns: list[Tensor]
    outputs: list[Tensor]
    slopes: list[Tensor]
    k: list[Tensor]
    windows: list[Tensor]
    pulled: list[Tensor]
    probabilities: Tensor


class Chained:
    """Evaluates lanes of a problem whose model is a chain.

    Args:
        problem: what to evaluate.
        stages: its model, read as a chain in the problem's precision.
    """

    def __init__(self, problem: MatchingProblem, stages: list[Link]) -> None:
        self._problem = problem
        self._stages = stages
        self._maps: list[LinearMap] = [linear_map(stage) for stage in stages]
        names = [name for stage in stages for name in (stage.weight_name, stage.bias_name)]
        spans = dict(zip(problem.parameters, problem.layout.spans, strict=True))
        self._spans = {name: spans[name] for name in names if name in spans}
        self._distance = vmap(self._one_distance, in_dims=(0, 0, 0))
        self._free_distance = vmap(self._one_distance, in_dims=(0, 0, None))
        self._activation = problem.priors.activation > 0
        self._activated = [place for place, stage in enumerate(stages) if stage.activation is not IDENTITY]
        self._written_out = problem.has_image_prior and not problem.believes_more
        self._prior = vmap(problem.image_prior) if problem.believes_more else None

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate the lanes, in parts if there are very many."""
        if len(z) <= _LANES_AT_ONCE:
            return self._evaluate(z, lanes, weight, selections)
        parts = [
            self._evaluate(z[part], lanes.pick(part), weight, None if selections is None else selections[part])
            for part in torch.split(torch.arange(len(z), device=z.device), _LANES_AT_ONCE)
        ]
        return Evaluation(
            torch.cat([part.values for part in parts]),
            torch.cat([part.gradients for part in parts]),
            torch.cat([part.selections for part in parts]),
        )

    def _evaluate(self, z: Tensor, lanes: Lanes, weight: float, selections: Tensor | None) -> Evaluation:
        problem = self._problem
        variable = z.detach().requires_grad_()
        with torch.enable_grad():
            inputs = problem.inputs_of_lanes(variable)
            priors = self._prior(inputs) if self._prior is not None else None
            soft = problem.label_logits(variable).softmax(-1) if lanes.labels is None else None
        target = F.one_hot(lanes.labels, problem.num_classes).to(z) if lanes.labels is not None else soft
        assert target is not None
        with torch.no_grad():
            done = self._passes(inputs.detach(), target.detach())
            dummy = self._dummy(done)
        distances, direction, chosen = self._match(dummy, lanes.observed, selections)
        with torch.no_grad():
            weighted = direction if weight == 1 else direction * weight
            to_inputs, to_target = self._second_order(done, weighted, target.detach())
        values = distances * weight
        if self._written_out:
            believed, slope = problem.priors.of_lanes(inputs.detach())
            values, to_inputs = values + believed, to_inputs.reshape(inputs.shape) + slope
        outputs, seeds = [inputs], [to_inputs.reshape(inputs.shape)]
        if soft is not None:
            outputs, seeds = [*outputs, soft], [*seeds, to_target]
        if priors is not None:
            outputs, seeds = [*outputs, priors], [*seeds, torch.ones_like(priors)]
            values = values + priors.detach()
        if self._activation:
            values = values + sum(
                self._cost(done.outputs[i]) * done.outputs[i].abs().flatten(1).sum(1) for i in self._activated
            )
        (gradient,) = torch.autograd.grad(outputs, variable, seeds)
        return Evaluation(values, gradient, chosen)

    def _cost(self, outputs: Tensor) -> float:
        """Return what a unit of magnitude costs in a layer's outputs [L, B, ...]."""
        return self._problem.priors.activation_weight(outputs[0].numel())

    def _passes(self, inputs: Tensor, target: Tensor) -> _Pass:
        h = inputs
        columns, outputs, slopes = [], [], []
        for stage, linear in zip(self._stages, self._maps, strict=True):
            h = h.reshape(*h.shape[:2], *stage.input_shape)
            columns.append(linear.columns(h))
            h = stage.activation.forward(stage.biased(linear.push(h)))
            outputs.append(h)
            slopes.append(stage.activation.slope(h))
        probabilities = h.softmax(-1)
        k = [(probabilities * target.sum(-1, keepdim=True) - target) * self._problem.sample_weight]
        windows, pulled = [self._maps[-1].windows(k[0])], [k[0]]
        for index in range(len(self._stages) - 1, 0, -1):
            back = self._maps[index].pull(k[0]).reshape(outputs[index - 1].shape)
            k.insert(0, back * slopes[index - 1])
            windows.insert(0, self._maps[index - 1].windows(k[0]))
            pulled.insert(0, back)
        return _Pass(columns, outputs, slopes, k, windows, pulled, probabilities)

    def _dummy(self, done: _Pass) -> Tensor:
        """Return the dummy updates [L, N] in the order of the problem's parameters."""
        dummy = done.probabilities.new_empty(len(done.probabilities), self._problem.layout.total)
        for stage, linear, k, columns in zip(self._stages, self._maps, done.k, done.columns, strict=True):
            if (span := self._spans.get(stage.weight_name)) is not None:
                dummy[:, span] = linear.weight_gradient(k, columns)
            if (span := self._spans.get(stage.bias_name)) is not None:
                dummy[:, span] = k.flatten(3).sum((1, 3)) if k.dim() > 3 else k.sum(1)
        return dummy

    def _match(self, dummy: Tensor, observed: Tensor, selections: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return each lane's distance, its gradient in update space, and the selection it compared."""
        objective = self._problem.product_objective
        if objective is not None:
            distances, direction = objective.with_direction(dummy, observed)
            return distances, direction, dummy.new_zeros(len(dummy), 0)
        fixed = None if selections is None or selections.shape[1] == 0 else selections
        dummy.requires_grad_()
        with torch.enable_grad():
            run = self._free_distance if fixed is None else self._distance
            distances, chosen = run(dummy, observed, fixed)
            (direction,) = torch.autograd.grad(distances.sum(), dummy)
        return distances.detach(), direction, chosen.detach()

    def _one_distance(self, dummy: Tensor, observed: Tensor, selection: Tensor | None) -> tuple[Tensor, Tensor]:
        distance, chosen = self._problem.distance(dummy, observed, selection)
        return distance, dummy.new_zeros(0) if chosen is None else chosen

    def _second_order(self, done: _Pass, direction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return dS/dx [L, B, ...] and dS/dtarget [L, B, classes]."""
        ways = [self._part(direction, stage.weight_name) for stage in self._stages]
        tangents = self._tangents(done, direction, ways)
        top, p = tangents[-1], done.probabilities
        mean = (p * top).sum(-1, keepdim=True)
        share = self._problem.sample_weight
        to_target = (mean - top) * share
        z_bar = p * (top - mean) * target.sum(-1, keepdim=True) * share
        for index in range(len(self._stages) - 1, -1, -1):
            linear, way = self._maps[index], ways[index]
            h_bar = linear.pull(z_bar) if way is None else linear.pull_each(done.windows[index], way, z_bar)
            if index == 0:
                break
            below = index - 1
            h_bar = h_bar.reshape(done.outputs[below].shape)
            if self._activation and below in self._activated:
                h_bar = h_bar + done.outputs[below].sign() * self._cost(done.outputs[below])
            z_bar = h_bar * done.slopes[below]
            if (curvature := self._stages[below].activation.curvature) is not None:
                bend = curvature(done.outputs[below], done.slopes[below])
                z_bar.addcmul_(done.pulled[below] * bend, tangents[below])
        return h_bar, to_target

    def _tangents(self, done: _Pass, direction: Tensor, ways: list[Tensor | None]) -> list[Tensor]:
        """Return z' of every stage along the direction."""
        tangents: list[Tensor] = []
        moved: Tensor | None = None
        for index, (stage, linear) in enumerate(zip(self._stages, self._maps, strict=True)):
            way, shift = ways[index], self._part(direction, stage.bias_name)
            below = None if moved is None else moved.reshape(*moved.shape[:2], *stage.input_shape)
            if way is not None:
                tangent = linear.push_each(done.columns[index], way, below)
            else:
                tangent = torch.zeros_like(done.k[index]) if below is None else linear.push(below)
            if shift is not None:
                tangent = tangent + shift.view(len(shift), 1, -1, *([1] * (tangent.dim() - 3)))
            tangents.append(tangent)
            moved = tangent * done.slopes[index]
        return tangents

    def _part(self, direction: Tensor, name: str) -> Tensor | None:
        span = self._spans.get(name)
        return None if span is None else direction[:, span]


def chained(problem: MatchingProblem) -> Chained | None:
    """Return the written-out evaluation, or None if the problem's model is no chain or more than it is asked for."""
    if (
        not problem.is_one_gradient
        or problem.clients != 1
        or problem.priors.needs_statistics
        or problem.num_classes == 1
        or not isinstance(problem.training_loss, CrossEntropy)
    ):
        return None
    dtype = next(iter(problem.parameters.values())).dtype
    shape = problem.parameterisation.shape
    try:
        stages = read_chain(problem.model, (shape[1], shape[2], shape[3]), dtype)
    except CapabilityError:
        return None
    names = {name for stage in stages for name in (stage.weight_name, stage.bias_name)}
    complete = stages[-1].output_shape == (problem.num_classes,) and names >= set(problem.parameters)
    return Chained(problem, stages) if complete else None
