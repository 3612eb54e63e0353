"""How values and gradients of many lanes are computed: written out, exactly and vectorised, or by finite differences.

`Chained` (its own module) serves small networks that are plain chains, and is exact and fastest there.

The gradient of a matching distance needs d/dz <grad_w L(w, z), v>, a second-order product. `Exact` differentiates
twice. `FiniteDifference` uses that the product is the derivative of grad_z L along v in weight space, (grad_z L(w + h
v) - grad_z L(w)) / h: only first-order passes, about twice as fast on convolutional networks. Kinks are frozen
meanwhile. On the CPU both take lane by lane, so that a lane's bits do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedseal.attacks.matching.chained import chained
from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.models.kinks import FrozenKinks
from fedseal.models.structure import multiply_adds

SecondOrder: TypeAlias = Literal["auto", "exact", "finite-difference"]

_MANY_MACS = 8_000_000
_MANY_PARAMETERS = 200_000
_AGREEMENT = 0.999
_LANE_BYTES = 1 << 30
_CACHE_LINE = 64


class Exact:
    """Double backward: lane by lane on the CPU, all lanes in one `torch.func.vmap` elsewhere.

    Args:
        problem: what to evaluate.
    """

    def __init__(self, problem: MatchingProblem) -> None:
        self._problem = problem
        self._one = grad_and_value(problem.value, has_aux=True)

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes."""
        if z.device.type == "cpu":
            return _lane_by_lane(self._single, z, lanes, weight, selections)
        return self.vectorised(z, lanes, weight, selections)

    def vectorised(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes at once, in as few chunks as memory allows."""
        fixed = None if selections is None or selections.shape[1] == 0 else selections
        in_dims = (0, 0, None if lanes.labels is None else 0, None, None if fixed is None else 0)
        chunk = max(1, _LANE_BYTES // (64 * self._problem.layout.total + 256 * self._problem.size))
        run = vmap(self._one, in_dims=in_dims, chunk_size=chunk if chunk < len(z) else None)
        gradients, (values, chosen) = run(z, lanes.observed, lanes.labels, weight, fixed)
        return Evaluation(values.detach(), gradients.detach(), chosen.detach())

    def _single(
        self, z: Tensor, observed: Tensor, labels: Tensor | None, weight: float, selection: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate one lane by plain autograd, which costs less per operation than the transforms do."""
        z.requires_grad_()
        total, chosen = self._problem.value(z, observed, labels, weight, selection, plain=True)
        (gradient,) = torch.autograd.grad(total, z)
        return total.detach(), gradient, chosen.detach()


def _lane_by_lane(
    evaluate: Callable[[Tensor, Tensor, Tensor | None, float, Tensor | None], tuple[Tensor, Tensor, Tensor]],
    z: Tensor,
    lanes: Lanes,
    weight: float,
    selections: Tensor | None,
) -> Evaluation:
    """Evaluate the lanes in turn, each in memory of its own: where a vector lies decides a product's last bits."""
    results = [
        evaluate(
            z[lane].detach().clone(),
            _aligned(lanes.observed[lane]),
            None if lanes.labels is None else lanes.labels[lane],
            weight,
            None if selections is None or selections.shape[1] == 0 else selections[lane],
        )
        for lane in range(len(z))
    ]
    values, gradients, chosen = (torch.stack(parts) for parts in zip(*results, strict=True))
    return Evaluation(values, gradients, chosen)


def _aligned(vector: Tensor) -> Tensor:
    """Return a vector at the start of a cache line, where PyTorch puts fresh ones: itself or a copy."""
    return vector if vector.data_ptr() % _CACHE_LINE == 0 else vector.clone()


class FiniteDifference:
    """First-order passes only, one lane after the other.

    Args:
        problem: what to evaluate; it must be of a gradient at the weights that were sent.
        step: h |v| / |w|.
        central: use both sides, which costs a pass more; at this step one side agrees to four digits already.
    """

    def __init__(self, problem: MatchingProblem, *, step: float = 3e-4, central: bool = False) -> None:
        if not problem.is_one_gradient:
            raise CapabilityError(
                "finite differences neither unroll local steps nor move along them.", hint="Use second_order=exact."
            )
        self._problem = problem
        self._step = step
        self._central = central
        self._norm = flatten(problem.parameters).norm()
        self._parameters = {name: p.detach() for name, p in problem.parameters.items()}
        self._room = {name: torch.empty_like(p) for name, p in self._parameters.items()}

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate the lanes in turn."""
        return _lane_by_lane(self._evaluate, z, lanes, weight, selections)

    def _evaluate(
        self, z: Tensor, observed: Tensor, labels: Tensor | None, weight: float, selection: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        problem = self._problem
        kinks = FrozenKinks()
        z.requires_grad_()
        parameters = {name: p.detach().requires_grad_() for name, p in problem.parameters.items()}
        with kinks:
            loss, (captured, inputs) = problem.loss(parameters, z, labels)
        prior = problem.prior(inputs, captured) if problem.has_prior else None
        wanted = [*parameters.values()] if self._central else [*parameters.values(), z]
        gradients = torch.autograd.grad(loss, wanted, retain_graph=prior is not None, materialize_grads=True)
        dummy = dict(zip(parameters, gradients, strict=False))
        match = self._match_products(dummy, observed) or self._match(dummy, observed, selection)
        h = self._step * self._norm / match.norm.clamp(min=1e-30)
        ahead = self._input_gradient(match.shifted(h), z, labels, kinks)
        if self._central:
            second = (ahead - self._input_gradient(match.shifted(-h), z, labels, kinks)) / (2 * h)
        else:
            second = (ahead - gradients[-1]) / h
        total, gradient = match.distance * weight, second * weight
        if prior is not None:
            total = total + prior.detach()
            gradient = gradient + torch.autograd.grad(prior, z)[0]
        return total, gradient, match.selection

    def _match(self, dummy: Tensors, observed: Tensor, selection: Tensor | None) -> _Match:
        """Differentiate the distance of a dummy gradient, whatever it is."""
        flat = flatten(dummy).requires_grad_()
        distance, chosen = self._problem.distance(flat, observed, selection)
        (direction,) = torch.autograd.grad(distance, flat)
        along = unflatten(direction, self._problem.parameters)
        return _Match(
            distance.detach(),
            direction.norm(),
            lambda h: self._moved(along, h),
            flat.new_zeros(0) if chosen is None else chosen,
        )

    def _match_products(self, dummy: Tensors, observed: Tensor) -> _Match | None:
        """Differentiate a distance of inner products: v = a dummy + b observed, without ever forming it.

        With millions of parameters every pass over them costs as much as a layer; this way needs four.
        """
        objective = self._problem.product_objective
        if objective is None:
            return None
        seen = unflatten(observed, self._problem.parameters)
        products = torch.stack(
            [
                torch.stack([torch.dot(g.reshape(-1), g.reshape(-1)) for g in dummy.values()]).sum(),
                torch.stack([torch.dot(g.reshape(-1), seen[n].reshape(-1)) for n, g in dummy.items()]).sum(),
                torch.dot(observed, observed),
            ]
        ).requires_grad_()
        distance = objective.of_products(*products)
        (slopes,) = torch.autograd.grad(distance, products)
        own, cross, other = products.detach()
        a, b = 2 * slopes[0], slopes[1]
        return _Match(
            distance.detach(),
            (a * a * own + 2 * a * b * cross + b * b * other).clamp(min=0).sqrt(),
            lambda h: {name: p.addcmul_(dummy[name], h * a) for name, p in self._moved(seen, h * b).items()},
            products.new_zeros(0),
        )

    @torch.no_grad()
    def _moved(self, along: Tensors, h: Tensor) -> Tensors:
        """Return w + h v, valid until the next call: fresh memory for millions of numbers costs more than the sums."""
        return {name: torch.addcmul(p, along[name], h, out=self._room[name]) for name, p in self._parameters.items()}

    def _input_gradient(self, parameters: Tensors, z: Tensor, labels: Tensor | None, kinks: FrozenKinks) -> Tensor:
        kinks.rewind()
        with kinks:
            loss, _ = self._problem.loss(parameters, z, labels)
        return torch.autograd.grad(loss, z)[0]


@dataclass(frozen=True)
class _Match:
    """A matching distance with its gradient v in the space of updates.

    Attributes:
        distance: its value.
        norm: |v|.
        shifted: maps h to the parameters w + h v.
        selection: of the compared coordinates; empty for all.
    """

    distance: Tensor
    norm: Tensor
    shifted: Callable[[Tensor], Tensors]
    selection: Tensor


def choose_derivatives(problem: MatchingProblem, mode: SecondOrder, z: Tensor, lanes: Lanes) -> Evaluate:
    """Return the faster way that is right for this problem; on the CPU neighbours have no part in the choice.

    Small chains are written out. Otherwise `auto` takes finite differences in every lane where they agree, at its
    starting point, with the exact gradient; wherever they do not, double backward. A model that cannot be
    differentiated twice is attacked by finite differences if those of two kinds agree.
    """
    if mode == "finite-difference":
        return FiniteDifference(problem)
    small = _is_small(problem)
    if small and (written_out := chained(problem)) is not None:
        return written_out
    exact = Exact(problem)
    only_exact = mode == "exact" or not problem.is_one_gradient
    first = torch.zeros(1, dtype=torch.long, device=z.device)
    try:
        exact(z[:1], lanes.pick(first))
    except RuntimeError as error:
        if only_exact:
            raise _not_twice(error) from error
        return _fastest_of_each_lane(problem, FiniteDifference(problem, step=3e-3, central=True), None, z, lanes)
    if only_exact or (small and len(z) > 1 and z.device.type != "cpu"):
        return exact
    return _fastest_of_each_lane(problem, exact, exact, z, lanes)


def _fastest_of_each_lane(
    problem: MatchingProblem, reference: Evaluate, otherwise: Evaluate | None, z: Tensor, lanes: Lanes
) -> Evaluate:
    """Return the finite differences that agree with the reference at z [L, D], for each lane the faster; or else."""
    ways = (FiniteDifference(problem), FiniteDifference(problem, step=1e-3, central=True))
    chosen: list[Evaluate] = []
    for lane in torch.split(torch.arange(len(z), device=z.device), 1):
        own = lanes.pick(lane)
        truth = reference(z[lane], own).gradients
        agree = (way for way in ways if float(torch.cosine_similarity(truth, way(z[lane], own).gradients)) > _AGREEMENT)
        way = next(agree, otherwise)
        if way is None:
            raise _not_twice(RuntimeError("its finite differences do not agree either"))
        chosen.append(way)
    return chosen[0] if all(way is chosen[0] for way in chosen) else _EachItsOwn(chosen)


class _EachItsOwn:
    """Evaluates every lane in the way chosen for it."""

    def __init__(self, ways: Sequence[Evaluate]) -> None:
        self._ways = ways

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        places = torch.split(torch.arange(len(z), device=z.device), 1)
        parts = [
            self._ways[number](z[place], lanes.pick(place), weight, None if selections is None else selections[place])
            for number, place in zip(lanes.numbers.tolist(), places, strict=True)
        ]
        return Evaluation(
            torch.cat([part.values for part in parts]),
            torch.cat([part.gradients for part in parts]),
            torch.cat([part.selections for part in parts]),
        )


def _is_small(problem: MatchingProblem) -> bool:
    """Return whether overhead dominates, so that lanes are better run together than each in fewer passes."""
    few = problem.layout.total < _MANY_PARAMETERS
    return few and multiply_adds(problem.model, problem.parameterisation.shape) < _MANY_MACS


def _not_twice(error: RuntimeError) -> CapabilityError:
    reason = str(error).strip().splitlines()[0]
    return CapabilityError(
        f"the model cannot be differentiated twice: {reason}",
        hint="Use second_order=finite-difference, or a model without fused attention and operations in place.",
    )
