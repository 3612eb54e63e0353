"""What a server makes of AdaDefense's uploads (docs/methods/adadefense.md): the adaptive attacks, as an attacker's
view.

Single precision, round 1: with y = |u| / u_max, u_max what an infinite gradient would send, |g| = e y / (1 - y), or
e y / sqrt(1 - y^2) with eps in the root, where e is eps as seen by |g|: the tiny gap to u_max holds the magnitude.
Single precision, later rounds: with m and v of the round before, g solves a quadratic equation; the root of smaller
magnitude is read, and a dummy that is nearer to the other is compared with that one. That m and v are known is an upper
bound: a server has them from reading earlier rounds, nearly exactly in round 2.
Half precision: only signs are left; a dummy gradient is sent through tanh, relative to its mean magnitude.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jvp

from fedseal.core.channel import Channel
from fedseal.core.defence import AttackerView
from fedseal.core.tensors import Tensors
from fedseal.defences.adadefense_rule import Moments, StandIn

_SOFTNESS = 0.2
_UNRESOLVED = 4


def attack_view(name: str, rule: StandIn, before: Moments, rounds: int, precision: torch.dtype) -> AttackerView:
    """Return the strongest view there is of the last upload.

    Args:
        name: of the defence.
        rule: public.
        before: moments before that upload; empty in round 1.
        rounds: the exponent of its corrections; 0 if there was none.
        precision: of the uploaded values.
    """
    rounds = max(rounds, 1)
    channel = _channel(rule, before, rounds, precision)
    parameters = {
        "variant": rule.variant,
        "scale": rule.scale,
        "eps": rule.eps,
        "eps_at": rule.eps_at,
        "precision": str(precision).removeprefix("torch."),
    }
    if precision.itemsize < 4:
        return AttackerView(
            name,
            {**parameters, "read": "signs"},
            lambda gradient, observed: soft_signs(gradient),
            read=lambda observed: {key: tensor / rule.factor(rounds) for key, tensor in observed.items()},
            channel=channel,
        )
    if not before.first:
        return AttackerView(
            name,
            {**parameters, "read": "magnitudes in closed form"},
            read=lambda observed: {key: first_round(rule, tensor, rounds) for key, tensor in observed.items()},
            channel=channel,
        )
    roots = _TwoRoots(rule, before, rounds)
    words = "two roots, moments of the round before known"
    return AttackerView(
        name, {**parameters, "read": words}, roots.simulate, read=roots.read, personal=True, channel=channel
    )


def _channel(rule: StandIn, before: Moments, rounds: int, precision: torch.dtype) -> Channel:
    """Return what passes through the rule and back: the gradient, as uncertain as its rounded stand-in leaves it.

    An entry is known to the rounding of what was sent over the slope of the rule there, or, where that is worse, to its
    sign: as after rounding to two levels 2 mean|g| apart.
    """

    def variance(update: Tensors, observed: Tensors) -> Tensors:
        found = {}
        for name, tensor in update.items():
            g = tensor.detach().double()
            first, second = ({name: part[name].double()} if part else {} for part in (before.first, before.second))
            held = Moments(first, second, 0)

            def sent(x: Tensor, name: str = name, held: Moments = held) -> Tensor:
                return rule.step(held, {name: x}, rounds)[1][name]

            value, slope = jvp(sent, (g,), (torch.ones_like(g),))[:2]
            step = torch.finfo(precision).eps * value.abs()
            slope = torch.where(g == 0, torch.inf, slope)  # zero is sent as zero; the root has no slope there
            sign = g.abs().mean().square() / 3
            found[name] = torch.minimum(step.square() / (12 * slope.square()).clamp(min=1e-300), sign).to(tensor)
        return found

    return Channel(variance=variance)


def soft_signs(gradient: Tensors) -> dict[str, Tensor]:
    """Return tanh(g / (softness * mean|g|)) per tensor: signs, with a derivative, whatever the gradient's scale."""
    return {
        name: torch.tanh(tensor / (_SOFTNESS * tensor.abs().mean()).clamp(min=1e-30))
        for name, tensor in gradient.items()
    }


def first_round(rule: StandIn, upload: Tensor, rounds: int = 1) -> Tensor:
    """Return the gradient behind a first upload, by the closed form.

    An entry that rounded to u_max or beyond is taken to be half a rounding step away from it: a lower bound of |g|.
    """
    limit = rule.factor(rounds) * (1 - rule.beta1) / math.sqrt(rule.gain)
    y = upload.double().abs() / limit
    gap = (1 - y).clamp(min=torch.finfo(upload.dtype).eps / 4)
    epsilon = rule.epsilon(rounds)
    if rule.eps_at == "inside":
        magnitude = math.sqrt(epsilon / rule.gain) * y / (gap * (1 + y)).sqrt()
    else:
        magnitude = epsilon / math.sqrt(rule.gain) * y / gap
    return torch.copysign(magnitude, upload.double()).to(upload.dtype)


def later_round(rule: StandIn, upload: Tensor, m: Tensor, v: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Return both gradients that send `upload` from moments m and v, that of smaller magnitude first.

    Where there is one only, both are it; where rounding has left none, both are the nearest there is.
    """
    first, second = m.double(), v.double()
    quotient = upload.double() / rule.factor(rounds)
    branches = (_roots(rule, quotient, first, second, *branch, rounds) for branch in _branches(rule))
    candidates = torch.stack([root for pair in branches for root in pair])
    misfit = (_forward(rule, candidates, first, second, rounds) - quotient).abs()
    tolerance = 1e-4 * quotient.abs() + 1e-9 + misfit.amin(0)
    magnitude = torch.where(misfit <= tolerance, candidates.abs(), torch.inf)
    order = magnitude.argsort(dim=0)
    small, other = candidates.gather(0, order[:1])[0], candidates.gather(0, order[1:2])[0]
    other = torch.where(torch.isinf(magnitude.gather(0, order[1:2])[0]), small, other)
    untouched = (first == 0) & (second == 0)
    fresh = first_round(rule, upload, rounds).double()
    pair = (torch.where(untouched, fresh, root) for root in (small, other))
    small, other = (_bounded(root, quotient, rule, upload.dtype).to(upload.dtype) for root in pair)
    return small, other


def _bounded(root: Tensor, quotient: Tensor, rule: StandIn, dtype: torch.dtype) -> Tensor:
    """Bound what rounding leaves open: next to u_max any large gradient fits, so the largest resolved one is taken."""
    gap = (1 - quotient.abs() * math.sqrt(rule.gain) / (1 - rule.beta1)).abs()
    resolved = gap > _UNRESOLVED * torch.finfo(dtype).eps
    bound = torch.where(resolved, root.abs(), 0.0).amax()
    return torch.where(resolved | (bound == 0), root, root.clamp(-bound, bound))


class _TwoRoots:
    """Reads one later upload, and remembers the roots it did not choose for the dummies compared with it."""

    def __init__(self, rule: StandIn, before: Moments, rounds: int) -> None:
        self._rule = rule
        self._before = before
        self._rounds = rounds
        self._others: dict[str, Tensor] = {}

    def read(self, observed: Tensors) -> Tensors:
        """Return the roots of smaller magnitude."""
        pairs = {
            name: later_round(self._rule, u, self._before.first[name], self._before.second[name], self._rounds)
            for name, u in observed.items()
        }
        self._others = {name: other for name, (_, other) in pairs.items()}
        return {name: small for name, (small, _) in pairs.items()}

    def simulate(self, gradient: Tensors, observed: Tensors) -> Tensors:
        """Compare each dummy entry with the root it is nearer to."""
        if not self._others:
            return gradient
        return {name: _nearest(g, observed[name], self._others[name].to(g)) for name, g in gradient.items()}


def _nearest(tensor: Tensor, small: Tensor, other: Tensor) -> Tensor:
    """Move a dummy entry that is nearer to the other root by the way between them, so that it is compared there."""
    nearer = (tensor - other).abs() < (tensor - small).abs()
    return torch.where(nearer, tensor - other + small, tensor)


def _branches(rule: StandIn) -> tuple[tuple[float, float], ...]:
    """Return the ways (decay, gain) in which v(g) = decay v + gain g^2 can arise; Yogi subtracts where g^2 < v."""
    if rule.variant == "adam":
        return ((rule.beta2, rule.gain),)
    return ((1.0, rule.gain),) if rule.variant == "adagrad" else ((1.0, rule.gain), (1.0, -rule.gain))


def _roots(
    rule: StandIn, quotient: Tensor, m: Tensor, v: Tensor, decay: float, gain: float, rounds: int
) -> tuple[Tensor, Tensor]:
    """Solve q (sqrt(decay v + gain g^2) + e) = b1 m + (1 - b1) g, or with e in the root, for g: squared, a quadratic.

    Moving q e to the right leaves q^2 (decay v + gain g^2) = (b1 m - q e + (1 - b1) g)^2.
    """
    epsilon, b = rule.epsilon(rounds), 1 - rule.beta1
    inside = rule.eps_at == "inside"
    a = rule.beta1 * m if inside else rule.beta1 * m - quotient * epsilon
    square = quotient.square()
    x = square * gain - b * b
    z = square * (decay * v + (epsilon if inside else 0.0)) - a.square()
    x = torch.where(x.abs() < 1e-30, torch.full_like(x, 1e-30), x)
    half = -a * b
    far = -(half + torch.copysign((half.square() - x * z).clamp(min=0).sqrt(), half))
    return far / x, torch.where(far == 0, torch.zeros_like(far), z / torch.where(far == 0, 1.0, far))


def _forward(rule: StandIn, g: Tensor, m: Tensor, v: Tensor, rounds: int) -> Tensor:
    moments, _ = rule.step(Moments({"g": m.expand_as(g)}, {"g": v.expand_as(g)}, rounds - 1), {"g": g}, rounds)
    root = moments.second["g"].clamp(min=0)
    epsilon = rule.epsilon(rounds)
    return moments.first["g"] / ((root + epsilon).sqrt() if rule.eps_at == "inside" else root.sqrt() + epsilon)
