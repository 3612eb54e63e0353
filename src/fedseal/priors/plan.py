"""How a prior of each kind is trained, sized for minutes on two cores at 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from fedseal.core.errors import UsageError
from fedseal.core.specs import near_matches
from fedseal.priors.prior import Kind


@dataclass(frozen=True)
class Plan:
    """A training.

    Attributes:
        kind: of prior.
        steps: of the optimiser, or of expectation and maximisation.
        batch: images per step; for `patch`, patches in thousands.
        lr: learning rate at the start.
        width: of the network's layers; for `patch`, components of the mixture.
        latent: numbers behind an image; for `patch`, the side of a patch.
        seed: of everything drawn.
    """

    kind: Kind
    steps: int
    batch: int
    lr: float
    width: int
    latent: int
    seed: int = 0


PLANS: Mapping[Kind, Plan] = MappingProxyType(
    {
        plan.kind: plan
        for plan in (
            Plan("patch", 15, 40, 1.0, 32, 4),
            Plan("ae", 300, 32, 1e-3, 24, 192),
            Plan("gan", 800, 32, 2e-4, 32, 64),
            Plan("diffusion", 400, 32, 2e-3, 48, 0),
        )
    }
)
"""What is trained unless something else is asked for."""


def plan_for(kind: str, steps: int = 0, lr: float = 0.0, seed: int = 0) -> Plan:
    """Return the plan of a kind, with other steps or another learning rate where they are given."""
    known = {str(one): plan for one, plan in PLANS.items()}
    if kind not in known:
        raise UsageError(f"there is no kind of prior called {kind!r}.", hint=near_matches(kind, known))
    plan = replace(known[kind], seed=seed)
    plan = replace(plan, steps=steps) if steps else plan
    return replace(plan, lr=lr) if lr else plan
