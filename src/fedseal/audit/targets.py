"""Which private images are behind each target: of clients who hold random ones, or of those a partition makes.

Without a partition every client holds images of its own drawn from all private ones. With one (`client.partition`, of
`fedseal.data.partition`, as trainings use them) the private data are dealt to a population first, and the attacked
clients are members of it: FedLeak's heterogeneity (Sec. 6.3), label, quantity and feature skew alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedseal.audit.scenario import Scenario
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.data.dataset import Dataset
from fedseal.data.partition import partition
from fedseal.defences.pipeline import Pipeline, build_defence
from fedseal.federation.loss import is_class
from fedseal.metrics.singling import draw_strangers


@dataclass(frozen=True)
class Targets:
    """The places, in the private data, of the images of every target's clients.

    Args:
        private: the clients' data.
        scenario: what is asked for.
        images: that a target has for itself, whatever the defence (`images_per_target`).
    """

    private: Dataset
    scenario: Scenario
    images: int

    def clients(self, target: int, shape: RoundShape) -> list[Tensor]:
        """Return the places of all that each client of a target holds, what it uses in the round first.

        Clients of different targets share no image, and hold the same number whatever the defence.
        """
        if self._members is not None:
            return list(self._members[target][: shape.clients])
        order = self._order[target * self.images : (target + 1) * self.images]
        used, each = shape.images // shape.clients, self.images // shape.clients
        mine = torch.split(order[: shape.images], used)
        if each <= used:
            return list(mine)
        others = torch.split(order[shape.images :], each - used)
        return [torch.cat(parts) for parts in zip(mine, others, strict=False)]

    @cached_property
    def attacked(self) -> Tensor:
        """The places of the private images that may be attacked; refused, if there are not as many.

        A quarter of them counts as attacked in any case, so that up to that more targets take no stranger away.
        """
        if self._members is not None:
            counted = max(self.scenario.targets, len(self.private) // 4 // self.images)
            return torch.cat([places for members in self._members[:counted] for places in members])
        needed = self.scenario.targets * self.images
        if needed > len(self.private):
            raise InputError(
                f"{self.scenario.targets} targets of {self.images} images need {needed} private ones, "
                f"{self.private.name} leaves {len(self.private)}.",
                hint="Lower `targets` or `client.batch_size`, or use a larger data set.",
            )
        return self._order[: max(needed, len(self.private) // 4)]

    def strangers(self, attacked: Tensor | None = None) -> Tensor:
        """Return the places of images that are nobody's target, the same ones however many targets there are.

        None of them belongs to the group of one that is attacked: it would be hardly a stranger.

        Args:
            attacked: places that are taken; these targets' by default.
        """
        taken = self.attacked if attacked is None else attacked
        rest = self._order[~torch.isin(self._order, self.private.together_with(taken))]
        by_class = self.scenario.attacker.labels == "true" and is_class(self.private.labels)
        return draw_strangers(self.private.labels, rest, by_class=by_class)

    @cached_property
    def _order(self) -> Tensor:
        return torch.randperm(len(self.private), generator=generator(self.scenario.seed, "targets"))

    @cached_property
    def _members(self) -> list[tuple[Tensor, ...]] | None:
        """Of all targets there can be, the places that members of the population hold; None without a partition."""
        client, seed = self.scenario.client, self.scenario.seed
        if client.partition is None:
            return None
        dealt = partition(self.private, client.partition, client.population, seed)
        at_once = most_clients(self.scenario)
        each = self.images // at_once
        order = torch.randperm(len(dealt), generator=generator(seed, "members")).tolist()
        if client.member is not None:
            order = [client.member]
        held = {one: _shuffled(dealt.indices[one], seed, one) for one in order}
        found: list[tuple[Tensor, ...]] = []
        for turn in range(max(len(places) // each for places in held.values())):
            able = [held[one][turn * each :][:each] for one in order if len(held[one]) >= (turn + 1) * each]
            found += [tuple(able[i : i + at_once]) for i in range(0, len(able) - at_once + 1, at_once)]
        if len(found) < self.scenario.targets:
            raise InputError(
                f"{client.partition} leaves clients for {len(found)} targets of {at_once} x {each} images, not for "
                f"{self.scenario.targets}.",
                hint="Lower `targets`, `client.batch_size` or `client.population`, or use a larger data set.",
            )
        return found


def _shuffled(places: Tensor, seed: int, client: int) -> Tensor:
    return places[torch.randperm(len(places), generator=generator(seed, "members", client))]


def images_per_target(scenario: Scenario, available: int) -> int:
    """Return how many private images a target has for itself: what its clients use, or hold."""
    client, shapes = scenario.client, _shapes(scenario)
    wanted = max(held_by_default(defence) for defence in _defences(scenario))
    if client.partition is not None:  # whoever is attacked alone is the first of those who would be under a mean
        used = max(shape.images // shape.clients for shape in shapes)
        return most_clients(scenario) * max(used, client.examples or wanted)
    held = client.aggregate * client.examples if client.examples else client.aggregate * wanted
    return max(
        max(shape.images for shape in shapes), held if client.examples else min(held, available // scenario.targets)
    )


def most_clients(scenario: Scenario) -> int:
    """Return how many clients a target has under the defence that needs most."""
    return max(shape.clients for shape in _shapes(scenario))


def held_by_default(defence: Defence) -> int:
    """Return how many images a client holds for a defence that prepares its data as a whole; 0 for any other."""
    members = defence.members if isinstance(defence, Pipeline) else (defence,)
    return max(member.holdings for member in members)


def _defences(scenario: Scenario) -> Sequence[Defence]:
    return [build_defence(name) for name in (*scenario.defences, "none")]


def _shapes(scenario: Scenario) -> list[RoundShape]:
    client = scenario.client
    plain = RoundShape(client.batch_size, client.local_steps, client.aggregate)
    return [defence.reshape(plain) for defence in _defences(scenario)]
