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

from fedseal.core.batch import Batch, joined
from fedseal.core.defence import CostReport, Defence, RoundShape
from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.federation.client import BNStatistics, RoundConfig, plain_update, set_mode
from fedseal.federation.cohort import Answer, Cohort, Streams, held_by
from fedseal.metrics.gradient import cosine_similarity, relative_distance


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


@dataclass(frozen=True)
class TargetRound:
    """The round that is attacked, before it is played.

    Attributes:
        cohort: the target's clients, and others of their federation; the target's own, to be changed by what it plays.
        clients: places of the target's clients.
        among: of all who take part, as others may have a say in what these clients send.
        number: of the round.
        originals: the private images behind the update.
        shape: how much data that is.
        config: how the clients train.
    """

    cohort: Cohort
    clients: tuple[int, ...]
    among: tuple[int, ...]
    number: int
    originals: Batch
    shape: RoundShape
    config: RoundConfig


class Exchange:
    """The clients of one target; calling it plays a round.

    Args:
        round: the first one that is played.
        knowledge: what the server is granted, given the first client's batch statistics.

    Attributes:
        fed: what the models were fed in the last round; the originals before it.
        originals: the private images it came from.
        cost: of the first client's defence in the last round.
        cosine: between what the first client uploaded then and its undefended upload; None where there is none.
    """

    def __init__(self, round: TargetRound, knowledge: Callable[[BNStatistics], Knowledge]) -> None:
        self.fed = self.originals = round.originals
        self.cost = CostReport()
        self.cosine: float | None = None
        self._target = round
        self._knowledge = knowledge
        self._round = round.number

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Send one model to all clients, or one to each in turn, and return what the server sees of their answers."""
        target, clients = self._target, self._target.clients
        if len(models) not in {1, len(clients)}:
            raise InputError(f"{len(models)} models cannot be sent to {len(clients)} clients.")
        number, self._round = self._round, self._round + 1
        sent = [set_mode(model, target.config) for model in models]
        own = dict(zip(clients, sent * (len(clients) // len(sent)), strict=True))
        everyone = [own.get(client, sent[0]) for client in target.among]
        done = target.cohort.play(everyone, number, among=target.among, shown=clients)
        assert done.seen is not None  # a strict cohort raises what is wrong with an answer
        first = done.answers[0]
        self.fed = joined([batch for answer in done.answers for batch in answer.fed])
        chosen = [answer.assignment.defence.origins() for answer in done.answers]
        if any(found is not None for found in chosen):
            self.originals = joined([found for found in chosen if found is not None])
        distance, self.cosine = self._compared(first, number)
        self.cost = replace(done.cost(first), gradient_distance=distance)
        knowledge = self._knowledge(first.bn_statistics)
        if self.originals is not target.originals and knowledge.labels is not None:
            places = torch.arange(len(knowledge.labels)) % len(
                self.fed
            )  # a group may be larger than a batch, or smaller
            knowledge = replace(knowledge, labels=self.fed.labels[places])
        return Observation(sent[0], done.seen, knowledge)

    def _compared(self, answer: Answer, number: int) -> tuple[float | None, float | None]:
        """Return how far the first client's upload is from an undefended one, and the cosine between the two.

        None of both if the defence changes the names.
        """
        one = answer.assignment
        assert answer.update is not None
        raw = self._target.cohort.batches(one.index, number, next(one.model.parameters()), prepared=False)
        source = self._target.cohort.streams.round(one.index, number)
        plain = plain_update(one.model, raw, one.config, source, round_number=number, client=one.name).tensors
        sent = answer.update.tensors
        if plain.keys() != sent.keys():
            return None, None
        return relative_distance(plain, sent), cosine_similarity(plain, sent)


def target_cohort(
    batches: Sequence[Batch],
    config: RoundConfig,
    defence: Defence,
    streams: Streams,
    *,
    name: str = "client",
    holdings: Sequence[Batch] | None = None,
) -> Cohort:
    """Return clients who hold what they use in a round, and use it in every one; what is wrong with answers is raised.

    They are a target's, or stand-ins with batches of the attacker's own, who rehearses with a fresh defence.

    Args:
        batches: one per client and local step, in this order.
        config: how clients train.
        defence: fresh; the first client's own, of which the others have copies.
        streams: of their randomness.
        name: before the clients' numbers.
        holdings: all that each client holds, its batches included; what it uses by default.
    """
    steps = config.local_steps
    parts = [batches[start : start + steps] for start in range(0, len(batches), steps)]
    clients = [
        held_by(f"{name}-{number}", part, config, defence.name, dataset=None if holdings is None else holdings[number])
        for number, part in enumerate(parts)
    ]
    return Cohort(clients, defence, streams, strict=True, defences={0: defence})


def first_round(
    batches: Sequence[Batch],
    shape: RoundShape,
    config: RoundConfig,
    defence: Defence,
    streams: Streams,
    name: str,
    holdings: Sequence[Batch] | None = None,
) -> TargetRound:
    """Return the first round of a target's clients; `shape` says how much data that is, the rest as `target_cohort`."""
    cohort = target_cohort(batches, config, defence, streams, name=name, holdings=holdings)
    everyone = tuple(range(len(cohort)))
    return TargetRound(cohort, everyone, everyone, 0, joined(batches), shape, config)
