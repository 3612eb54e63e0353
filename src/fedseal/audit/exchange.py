"""Rounds between a server and the clients of one target: models out, what the server sees of the answers in.

An honest audit needs one round. An active server may send each client a model of its own, and may ask again: the
clients then answer with the same data, each with its own defence, whose state goes on from round to round. The round
itself is the cohort's (`federation.cohort`); here it meets what the server is granted to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import CostReport, Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.federation.client import BNStatistics, RoundConfig, plain_update, set_mode
from fedseal.federation.cohort import Answer, Cohort, Streams, held_by, joined
from fedseal.metrics.gradient import relative_distance


@dataclass(frozen=True)
class TargetStreams:
    """The randomness of one target's clients.

    Attributes:
        seed: of the scenario.
        path: names that separate this target's noise from others'.
    """

    seed: int
    path: tuple[str | int, ...]

    def prepare(self, client: int) -> torch.Generator:
        """Return what a client's defence prepares its data with."""
        return generator(self.seed, "prepare", *self._client(client))

    def round(self, client: int, number: int) -> torch.Generator:
        """Return what a client's defence draws from in a round."""
        later: tuple[str | int, ...] = ("round", number) if number else ()
        return generator(self.seed, "defence", *self._client(client), *later)

    def turns(self, number: int) -> torch.Generator:
        """Return what a round's order of clients is drawn from."""
        return generator(self.seed, "turns", *self.path, number)

    def _client(self, client: int) -> tuple[str | int, ...]:
        return (*self.path, *([client] if client else []))


def target_cohort(
    batches: Sequence[Batch], config: RoundConfig, defence: Defence, streams: Streams, *, name: str = "client"
) -> Cohort:
    """Return the clients of one target as a cohort: a client holds what it uses in a round, and uses it in every one.

    Args:
        batches: one per client and local step, in this order.
        config: how clients train.
        defence: fresh; the first client's own, of which the others have copies.
        streams: of their randomness.
        name: before the clients' numbers.
    """
    steps = config.local_steps
    parts = [batches[start : start + steps] for start in range(0, len(batches), steps)]
    clients = [held_by(f"{name}-{number}", part, config, defence.name) for number, part in enumerate(parts)]
    return Cohort(clients, defence, streams, strict=True, defences={0: defence})


class Exchange:
    """The clients of one target; calling it plays a round.

    Args:
        cohort: they belong to.
        config: how they train.
        knowledge: what the server is granted, given the first client's batch statistics.
        streams: the cohort's, for what the first client would have sent without a defence.
        clients: places of the target's clients in the cohort; all by default.
        first_round: number of the round that is played first.

    Attributes:
        fed: what the models were fed in the last round.
        cost: of the first client's defence in the last round.
    """

    def __init__(
        self,
        cohort: Cohort,
        config: RoundConfig,
        knowledge: Callable[[BNStatistics], Knowledge],
        streams: Streams,
        *,
        clients: Sequence[int] | None = None,
        first_round: int = 0,
    ) -> None:
        self.fed: Batch | None = None
        self.cost = CostReport()
        self._cohort = cohort
        self._config = config
        self._knowledge = knowledge
        self._streams = streams
        self._clients = list(range(len(cohort))) if clients is None else list(clients)
        self._round = first_round

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Send one model to all clients, or one to each in turn, and return what the server sees of their answers."""
        number, self._round = self._round, self._round + 1
        sent = [set_mode(model, self._config) for model in models]
        done = self._cohort.play(sent, number, among=self._clients, shown=self._clients)
        assert done.seen is not None  # a strict cohort raises what is wrong with an answer
        first = done.answers[0]
        self.fed = joined([batch for answer in done.answers for batch in answer.fed])
        self.cost = replace(done.cost(first), gradient_distance=self._distance(first, number))
        return Observation(sent[0], done.seen, self._knowledge(first.bn_statistics))

    def _distance(self, answer: Answer, number: int) -> float | None:
        """Return how far the first client's upload is from an undefended one; None if the defence changes the names."""
        one = answer.assignment
        assert answer.update is not None
        raw = self._cohort.batches(one.index, number, next(one.model.parameters()), prepared=False)
        source = self._streams.round(one.index, number)
        plain = plain_update(one.model, raw, one.config, source, round_number=number, client=one.name).tensors
        sent = answer.update.tensors
        return relative_distance(plain, sent) if plain.keys() == sent.keys() else None
