"""A mechanism as somebody configured it, in the terms an accountant needs, with the traps it fell into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedseal.core.privacy import PrivateRelease

Severity: TypeAlias = Literal["wrong", "warning", "note"]
"""Whether a claim fails by a finding, may fail by it, or must be read with it."""
Relation: TypeAlias = Literal["add-remove", "replace-one"]
"""How neighbouring inputs differ: by a unit that is there or not, or by one put in another's place."""
Trust: TypeAlias = Literal["local", "central"]
"""Whether the server sees noisy uploads only, or adds the noise itself."""

Vector: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Finding:
    """A named trap.

    Attributes:
        name: stable, for machines.
        severity: see `Severity`.
        sentence: what is wrong here, with the figures, and what to do.
    """

    name: str
    severity: Severity
    sentence: str


@dataclass(frozen=True)
class Rehearsal:
    """The library's own code, to be run on a canary.

    Attributes:
        of: what is run, in words.
        play: maps an update [D] in units of its clip bound, and a seed, to what is released of it, in the same units.
        size: D.
        spread: the canary fills all coordinates, and its opposite stands in its place; else it lies in the first one,
            and nothing stands there.
    """

    of: str
    play: Callable[[Vector, int], Vector]
    size: int = 8
    spread: bool = False


@dataclass(frozen=True)
class Mechanism:
    """What one configured mechanism claims and does.

    Attributes:
        name: of the library's class.
        releases: what one round releases, for neighbours that differ by an added or removed unit; none if there is no
            noise, or no bound on what it hides.
        replaced: the same for neighbours in which one unit stands in another's place; None if that is not known.
        relation: by which its authors count.
        trust: who has to be trusted.
        claimed: epsilon as configured; None if the configuration claims none.
        claims_total: the claim is about the whole training rather than one round.
        delta: at which epsilon is stated.
        findings: what can be said without accounting.
        own: what the library's own accountant would say of one round, by its name.
        rehearsal: how to run it; None where it cannot be.
    """

    name: str
    releases: tuple[PrivateRelease, ...]
    replaced: tuple[PrivateRelease, ...] | None
    trust: Trust
    delta: float
    relation: Relation = "add-remove"
    claimed: float | None = None
    claims_total: bool = False
    findings: tuple[Finding, ...] = ()
    own: Mapping[str, float] = field(default_factory=dict)
    rehearsal: Rehearsal | None = None

    @property
    def counted(self) -> tuple[PrivateRelease, ...]:
        """The releases by the relation its authors count by."""
        return self.releases if self.relation == "add-remove" or self.replaced is None else self.replaced


@dataclass(frozen=True)
class Weights:
    """What is known of the tensors that travel.

    Attributes:
        parameters: how many numbers; None if unknown.
        integers: names of tensors of whole numbers; None if unknown.
        scalars: names of tensors without dimensions; None if unknown.
        statistics: names of running statistics of batch normalisation; None if unknown.
    """

    parameters: int | None = None
    integers: tuple[str, ...] | None = None
    scalars: tuple[str, ...] | None = None
    statistics: tuple[str, ...] | None = None
