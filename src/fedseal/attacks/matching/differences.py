"""Second-order products by finite differences: first-order passes only.

d/dz <grad_w L(w, z), v> is the derivative of grad_z L along v in weight space, (grad_z L(w + h v) - grad_z L(w)) / h.
Kinks are frozen meanwhile. An iteration at batch 1 costs two forward and two backward passes and little else: where
the distance is a function of inner products, v = a g + b o of the dummy and the observed gradient is not formed, nor is
g in those layers that are few pixels and many weights (`fedseal.models.unfolded`), and w + h b o is kept for as long as
one h b will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluation, lane_by_lane
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.models.kinks import FrozenKinks
from fedseal.models.unfolded import Convolution, Factors, places


@dataclass(frozen=True)
class _Match:
    """A matching distance with what it takes to step along its gradient v in the space of updates.

    Attributes:
        distance: its value.
        step: h.
        shifted: maps plus or minus h to the parameters w + h v, but for the steps along `factors`.
        factors: parts of g by name that were not formed.
        along: what they count in v.
        selection: of the compared coordinates; empty for all.
    """

    distance: Tensor
    step: Tensor
    shifted: Callable[[Tensor], Tensors]
    selection: Tensor
    factors: dict[str, Factors]
    along: Tensor


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
        self._kept = _Kept(self._parameters)

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate the lanes in turn."""
        return lane_by_lane(self._evaluate, z, lanes, weight, selections)

    def _evaluate(
        self, z: Tensor, observed: Tensor, labels: Tensor | None, weight: float, selection: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        problem = self._problem
        z.requires_grad_()
        parameters = {name: p.detach().requires_grad_() for name, p in problem.parameters.items()}
        factored = {} if self._central or problem.product_objective is None else parameters
        passes = _Passes(factored)
        with passes:
            loss, (captured, inputs) = problem.loss(parameters, z, labels)
        prior = problem.prior(inputs, captured) if problem.has_prior else None
        wanted = [*parameters.values(), *([] if self._central else [z]), *passes.outputs]
        gradients = torch.autograd.grad(loss, wanted, retain_graph=prior is not None, allow_unused=True)
        dummy, factors = self._dummy(parameters, gradients, passes)
        match = self._match_products(dummy, factors, observed) or self._match(dummy, observed, selection)
        ahead = self._input_gradient(match, 1, z, labels, passes)
        if self._central:
            second = (ahead - self._input_gradient(match, -1, z, labels, passes)) / (2 * match.step)
        else:
            here = gradients[len(parameters)]
            second = (ahead if here is None else ahead - here) / match.step
        total, gradient = match.distance * weight, second * weight
        if prior is not None:
            total = total + prior.detach()
            gradient = gradient + torch.autograd.grad(prior, z)[0]
        return total, gradient, match.selection

    def _dummy(
        self, parameters: Tensors, gradients: tuple[Tensor | None, ...], passes: _Passes
    ) -> tuple[dict[str, Tensor], dict[str, Factors]]:
        """Return the dummy gradient by name: what was formed, zeros where nothing flows, and what was not formed."""
        factors = passes.factors(gradients[len(gradients) - len(passes.outputs) :])
        dummy: dict[str, Tensor] = {}
        for name, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None and name in factors:  # the weights are used in another way too
                dummy[name] = gradient + factors.pop(name).dense().view_as(gradient)
            elif name not in factors:
                dummy[name] = torch.zeros_like(parameters[name]) if gradient is None else gradient
        return dummy, factors

    def _match(self, dummy: Tensors, observed: Tensor, selection: Tensor | None) -> _Match:
        """Differentiate the distance of a dummy gradient, whatever it is."""
        flat = flatten(dummy).requires_grad_()
        distance, chosen = self._problem.distance(flat, observed, selection)
        (direction,) = torch.autograd.grad(distance, flat)
        v = unflatten(direction, self._problem.parameters)
        return _Match(
            distance.detach(),
            self._step * self._norm / direction.norm().clamp(min=1e-30),
            lambda h: self._moved(self._parameters, v, h),
            flat.new_zeros(0) if chosen is None else chosen,
            {},
            flat.new_zeros(()),
        )

    def _match_products(self, dummy: dict[str, Tensor], factors: dict[str, Factors], observed: Tensor) -> _Match | None:
        """Differentiate a distance of inner products: v = a g + b o, without ever forming it.

        With millions of parameters every pass over them costs as much as a layer.
        """
        objective = self._problem.product_objective
        if objective is None:
            return None
        seen, square = self._kept.seen(observed)
        own = [torch.dot(g.reshape(-1), g.reshape(-1)) for g in dummy.values()]
        cross = [torch.dot(g.reshape(-1), seen[name].reshape(-1)) for name, g in dummy.items()]
        own += [part.square() for part in factors.values()]
        cross += [part.dot(seen[name].flatten(1)) for name, part in factors.items()]
        products = torch.stack([torch.stack(own).sum(), torch.stack(cross).sum(), square]).requires_grad_()
        distance = objective.of_products(*products)
        (slopes,) = torch.autograd.grad(distance, products)
        g_g, g_o, o_o = products.detach()
        a, b = 2 * slopes[0], slopes[1]
        norm = (a * a * g_g + 2 * a * b * g_o + b * b * o_o).clamp(min=0).sqrt()
        step = self._step * self._norm / norm.clamp(min=1e-30)
        if not self._central:
            step = self._kept.rounded(step, b)
        return _Match(
            distance.detach(),
            step,
            lambda h: self._moved(self._kept.base(seen, h * b), dummy, h * a),
            products.new_zeros(0),
            factors,
            a,
        )

    @torch.no_grad()
    def _moved(self, start: Tensors, along: Tensors, h: Tensor) -> Tensors:
        """Return start + h along, valid until the next call: fresh memory for millions of numbers costs its sums."""
        moved = {name: torch.addcmul(start[name], value, h, out=self._room[name]) for name, value in along.items()}
        return {name: moved.get(name, value) for name, value in start.items()}

    def _input_gradient(self, match: _Match, sign: int, z: Tensor, labels: Tensor | None, passes: _Passes) -> Tensor:
        h = sign * match.step
        moved = match.shifted(h)
        passes.again(moved, match.factors, h * match.along)
        with passes:
            loss, _ = self._problem.loss(moved, z, labels)
        return torch.autograd.grad(loss, z)[0]


class _Kept:
    """What stays the same over iterations: an observed gradient by name, its square, and w + h b o.

    Args:
        parameters: w.
    """

    def __init__(self, parameters: Tensors) -> None:
        self._parameters = parameters
        self._observed: Tensor | None = None
        self._seen: Tensors = {}
        self._square = torch.zeros(())
        self._base: dict[str, Tensor] = {}
        self._beta: float | None = None

    def seen(self, observed: Tensor) -> tuple[Tensors, Tensor]:
        """Return o by name and <o, o>; of the lane that was asked for last they are at hand."""
        if self._observed is not observed:
            self._observed, self._beta = observed, None
            self._seen, self._square = unflatten(observed, self._parameters), torch.dot(observed, observed)
        return self._seen, self._square

    @staticmethod
    def rounded(step: Tensor, b: Tensor) -> Tensor:
        """Return a step within a factor of 1.4, such that h b is a power of two and so the same for many iterations."""
        beta = float(step * b)
        if beta == 0 or not math.isfinite(beta):
            return step
        return math.copysign(2.0 ** round(math.log2(abs(beta))), beta) / b

    @torch.no_grad()
    def base(self, seen: Tensors, beta: Tensor) -> Tensors:
        """Return w + beta o."""
        if self._beta != float(beta):
            self._base = self._base or {name: torch.empty_like(p) for name, p in self._parameters.items()}
            for name, p in self._parameters.items():
                torch.add(p, seen[name], alpha=float(beta), out=self._base[name])
            self._beta = float(beta)
        return self._base


class _Passes(FrozenKinks):
    """The passes of an iteration: kinks frozen, small convolutions unfolded, their weights' gradients not formed.

    Args:
        parameters: that are convolved with and of whose gradients two factors are enough.
    """

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}
        self._found: list[tuple[str, Tensor, Tensor]] = []
        self._steps: dict[int, Factors] = {}
        self._step = torch.zeros(())
        self._first = True

    @property
    def outputs(self) -> list[Tensor]:
        """Of the convolutions whose weights' gradients are to be found by these outputs' gradients."""
        return [output for _, output, _ in self._found]

    def factors(self, slopes: tuple[Tensor | None, ...]) -> dict[str, Factors]:
        """Return the gradients that are not formed, from those of the outputs."""
        parts: dict[str, list[Factors]] = {}
        for (name, _, patches), slope in zip(self._found, slopes, strict=True):
            if slope is not None:
                parts.setdefault(name, []).append(Factors(places(slope), patches))
        return {name: Factors.together(found) for name, found in parts.items()}

    def again(self, parameters: Tensors, factors: dict[str, Factors], step: Tensor) -> None:
        """Begin another pass, by parameters that these factors times the step are to be added to."""
        self.rewind()
        self._first, self._step = False, step
        self._steps = {id(parameters[name]): along for name, along in factors.items()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        convolution = Convolution.of(func, args, kwargs or {})
        if convolution is None:
            return super().__torch_function__(func, types, args, kwargs)
        patches = convolution.patches()
        weight = convolution.weight
        if self._first and convolution.x.requires_grad and (name := self._names.get(id(weight))) is not None:
            output = convolution.without_weight().output(patches)
            self._found.append((name, output, patches))
            return output
        return convolution.output(patches, self._steps.get(id(weight)), self._step)
