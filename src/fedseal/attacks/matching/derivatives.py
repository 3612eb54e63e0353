"""How values and gradients of many lanes are computed: written out, exactly and vectorised, or by finite differences.

`Chained` (its own module) serves small networks that are plain chains, and is exact and fastest there.

The gradient of a matching distance needs d/dz <grad_w L(w, z), v>, a second-order product. `Exact` differentiates
twice. `FiniteDifference` (its own module) steps along v in weight space: only first-order passes, two to three times
as fast on convolutional networks. On the CPU both take lane by lane, so that a lane's bits do not depend on its
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedseal.attacks.matching.chained import chained
from fedseal.attacks.matching.differences import FiniteDifference
from fedseal.attacks.matching.evaluation import Evaluate, Evaluation, lane_by_lane
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.errors import CapabilityError
from fedseal.models.structure import multiply_adds

SecondOrder: TypeAlias = Literal["auto", "exact", "finite-difference"]

_MANY_MACS = 8_000_000
_MANY_PARAMETERS = 200_000
_AGREEMENT = 0.999
_LANE_BYTES = 1 << 30


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
            return lane_by_lane(self._single, z, lanes, weight, selections)
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
        numeric = FiniteDifference(problem, step=3e-3, central=True)
        return _fastest_of_each_lane(problem, numeric, error, z, lanes)
    if only_exact or (small and len(z) > 1 and z.device.type != "cpu"):
        return exact
    return _fastest_of_each_lane(problem, exact, exact, z, lanes)


def _fastest_of_each_lane(
    problem: MatchingProblem, reference: Evaluate, otherwise: Evaluate | RuntimeError, z: Tensor, lanes: Lanes
) -> Evaluate:
    """Return the finite differences that agree with the reference at z [L, D], for each lane the faster.

    Where none does it is `otherwise`; if that is why there is no double backward, the model is refused.
    """
    ways = (FiniteDifference(problem), FiniteDifference(problem, step=1e-3, central=True))
    chosen: list[Evaluate] = []
    for lane in torch.split(torch.arange(len(z), device=z.device), 1):
        own = lanes.pick(lane)
        truth = reference(z[lane], own).gradients
        agree = (way for way in ways if float(torch.cosine_similarity(truth, way(z[lane], own).gradients)) > _AGREEMENT)
        way = next(agree, otherwise)
        if isinstance(way, RuntimeError):
            raise _not_twice(way, ", and its finite differences do not agree with each other") from way
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


def _not_twice(error: RuntimeError, further: str = "") -> CapabilityError:
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return CapabilityError(
        f"the model cannot be differentiated twice: {reason}{further}.",
        hint="Use second_order=finite-difference, or a model without fused attention and operations in place.",
    )
