"""What an experiment measured: values by arm, in groups that share weights or a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import Interval, nested_mean
from fedseal.metrics.shares import clustered_share


@dataclass(frozen=True)
class Sample:
    """One value.

    Attributes:
        arm: what was tried: an attack, a defence, a level of a factor.
        group: what several values share, such as the weights: groups are the independent draws.
        unit: what was tried on, within the group; equal units of two arms are compared with each other.
        value: measured.
    """

    arm: str
    group: int
    unit: int
    value: float


class Samples:
    """All values of an experiment, by arm.

    Args:
        found: in any order; a unit has one value per arm.
        shares: whether values are shares of successes, whose interval is another than that of a mean.
    """

    def __init__(self, found: Iterable[Sample], *, shares: bool = False) -> None:
        self._shares = shares
        self._arms: dict[str, dict[int, dict[int, float]]] = {}
        for one in found:
            self._arms.setdefault(one.arm, {}).setdefault(one.group, {})[one.unit] = one.value

    @property
    def arms(self) -> tuple[str, ...]:
        """Names, in the order they came."""
        return tuple(self._arms)

    def mean(self, arm: str, *, level: float = 0.95) -> Interval:
        """Return an arm's mean over its groups."""
        groups = [list(units.values()) for units in self._of(arm).values()]
        return clustered_share(groups, level=level, exact=True) if self._shares else nested_mean(groups, level=level)

    def difference(self, first: str, second: str, *, level: float = 0.95) -> Interval:
        """Return the mean of `first - second`: unit by unit where both have it, else mean by mean of a group."""
        return self.combination({first: 1.0, second: -1.0}, level=level)

    def slope(self, arms: tuple[str, ...], *, level: float = 0.95) -> Interval:
        """Return by how much values rise from the first arm to the last, by the least-squares line over places."""
        centre = (len(arms) - 1) / 2
        norm = sum((place - centre) ** 2 for place in range(len(arms)))
        return self.combination(
            {arm: (place - centre) / norm * (len(arms) - 1) for place, arm in enumerate(arms)}, level=level
        )

    def combination(self, weights: Mapping[str, float], *, level: float = 0.95) -> Interval:
        """Return the mean of a weighted sum of arms, in the groups that have them all."""
        chosen = {arm: self._of(arm) for arm in weights}
        groups = sorted(set.intersection(*(set(found) for found in chosen.values())))
        if not groups:
            raise InputError(f"no group of values has all of {', '.join(weights)}.")
        return nested_mean(
            [_combined(weights, {a: f[group] for a, f in chosen.items()}) for group in groups], level=level
        )

    def _of(self, arm: str) -> dict[int, dict[int, float]]:
        try:
            return self._arms[arm]
        except KeyError:
            had = ", ".join(self._arms) or "none"
            raise InputError(f"nothing was measured for {arm!r}; there is: {had}.") from None


def _combined(weights: Mapping[str, float], units: Mapping[str, Mapping[int, float]]) -> list[float]:
    shared = sorted(set.intersection(*(set(found) for found in units.values())))
    if shared and all(len(found) == len(shared) for found in units.values()):
        return [sum(weight * units[arm][unit] for arm, weight in weights.items()) for unit in shared]
    return [sum(weight * fmean(units[arm].values()) for arm, weight in weights.items())]
