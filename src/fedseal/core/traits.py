"""What a defence declares of itself for composition, and how a pipeline's declaration follows from its members'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

Combine: TypeAlias = Callable[[Sequence["Traits"], str], bool]
"""Maps the members' traits and the name of one to what the whole has of it."""


def _if_any(members: Sequence[Traits], name: str) -> bool:
    return any(getattr(member, name) for member in members)


def _if_all(members: Sequence[Traits], name: str) -> bool:
    return all(getattr(member, name) for member in members)


def _if_all_that_choose(members: Sequence[Traits], name: str) -> bool:
    """Hold if a member chooses coordinates, and all that do have it."""
    choosing = [member for member in members if member.data_dependent_mask or member.common_support]
    return bool(choosing) and _if_all(choosing, name)


def _trait(default: bool, combine: Combine) -> Any:
    return field(default=default, metadata={"combine": combine})


@dataclass(frozen=True)
class Traits:
    """What a defence can be composed with follows from these (`defences.rules`); by default it claims nothing.

    Attributes:
        linear: the plain mean of the uploads is the aggregate; false if the server must treat each one by itself.
        protects_labels: label inference from the upload is answered too.
        data_dependent_mask: which coordinates are sent, or sent in clear, is chosen by the client's own values.
        common_support: that choice is the same for all clients of a round.
        accounts_epsilon: it states an epsilon for what it releases.
        keeps_residual: what was not sent is added to a later upload (error feedback).
        rescales: what is sent is a step with a size of its own, as under AdaDefense: servers apply it as it is.
        mixes_samples: a sample enters several of the images that are fed.
        reads_batch: `on_gradient` or `on_update` looks at the private batch, or at its true gradient, again.
        masks_upload: a whole upload means nothing before it is added to the others.
    """

    linear: bool = _trait(True, _if_all)
    protects_labels: bool = _trait(False, _if_any)
    data_dependent_mask: bool = _trait(False, _if_any)
    common_support: bool = _trait(False, _if_all_that_choose)
    accounts_epsilon: bool = _trait(False, _if_any)
    keeps_residual: bool = _trait(False, _if_any)
    rescales: bool = _trait(False, _if_any)
    mixes_samples: bool = _trait(False, _if_any)
    reads_batch: bool = _trait(False, _if_any)
    masks_upload: bool = _trait(False, _if_any)

    @classmethod
    def combine(cls, members: Sequence[Traits]) -> Traits:
        """Return the traits of members applied one after the other."""
        return cls(**{one.name: one.metadata["combine"](members, one.name) for one in fields(cls)})

    def named(self) -> tuple[str, ...]:
        """Return the names of the traits that differ from a defence that does nothing."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is not one.default)
