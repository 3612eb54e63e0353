"""Several accountants asked for the same epsilon: exact formula, Opacus, Google's dp-accounting where installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from scipy.optimize import brentq

from fedseal.core.privacy import PrivateRelease
from fedseal.defences.accounting import composed_epsilon, gaussian_epsilon, release_epsilon

_PLD_RANGE = 10.0
"""Epsilon beyond which privacy loss distributions take too long to be worth it."""


@lru_cache(maxsize=256)
def epsilons(releases: tuple[PrivateRelease, ...], rounds: int, delta: float) -> Mapping[str, float]:
    """Return epsilon over all rounds by every accountant that can say; the first is the one that counts."""
    if not releases:
        return {}
    answers = {_best_name(releases): release_epsilon(releases, rounds, delta)}
    gaussian = [(r.multiplier, r.rate, r.steps * rounds) for r in releases if r.family == "gaussian"]
    if len(gaussian) == len(releases) and importlib.util.find_spec("opacus"):
        answers["Opacus RDP"] = composed_epsilon(gaussian, delta, "rdp")
    if importlib.util.find_spec("dp_accounting"):
        answers |= _google(releases, rounds, delta)
    return {name: value for name, value in answers.items() if math.isfinite(value)}


def _best_name(releases: Sequence[PrivateRelease]) -> str:
    if any(release.family == "laplace" for release in releases):
        return "sum of pure epsilons"
    if all(release.rate == 1 for release in releases):
        return "analytic Gaussian mechanism"
    return "Opacus PRV"


def _google(releases: Sequence[PrivateRelease], rounds: int, delta: float) -> dict[str, float]:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    kinds = {"gaussian": dp_event.GaussianDpEvent, "laplace": dp_event.LaplaceDpEvent}
    renyi, distribution = RdpAccountant(), PLDAccountant()
    events = []
    for release in releases:
        event = kinds[release.family](release.multiplier)
        if release.rate < 1:
            event = dp_event.PoissonSampledDpEvent(release.rate, event)
        events.append((event, release.steps * rounds))
    for event, count in events:
        renyi.compose(event, count)
    found = {"dp-accounting RDP": float(renyi.get_epsilon(delta))}
    if found["dp-accounting RDP"] < _PLD_RANGE:
        for event, count in events:
            distribution.compose(event, count)
        found["dp-accounting PLD"] = float(distribution.get_epsilon(delta))
    return found


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the sensitivity over noise of the Gaussian mechanism that has exactly this epsilon."""
    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 1e-9, 2 * math.sqrt(2 * epsilon) + 20))
