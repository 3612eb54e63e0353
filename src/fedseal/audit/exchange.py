"""Rounds between a server and the clients of one target: models out, what the server sees of the answers in.

An honest audit needs one round. An active server may send each client a model of its own, and may ask again: the
clients then answer with the same data, each with its own defence, whose state goes on from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.seeds import generator
from fedseal.federation.client import ClientRound, RoundConfig, client_round, plain_update, set_mode
from fedseal.federation.server import mean_update
from fedseal.metrics.gradient import relative_distance


class Exchange:
    """The clients of one target; calling it plays a round.

    Args:
        batches: one per client and local step, in this order.
        config: how clients train.
        defences: one per client.
        knowledge: what the server is granted, given the first client's batch statistics.
        seed: of the scenario.
        stream: names that separate this target's noise from others'.

    Attributes:
        fed: what the models were fed in the last round.
        cost: of the first client's defence in the last round.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        config: RoundConfig,
        defences: Sequence[Defence],
        knowledge: Callable[[dict[str, tuple[Tensor, Tensor]]], Knowledge],
        *,
        seed: int,
        stream: tuple[str, int],
    ) -> None:
        self.fed = joined(batches)
        self.cost = CostReport()
        self._config = config
        self._defences = defences
        self._knowledge = knowledge
        self._seed = seed
        self._stream = stream
        self._rounds = 0
        self._raw = batches[: config.local_steps]
        self._batches = [
            _prepared(
                defence,
                batches[client * config.local_steps : (client + 1) * config.local_steps],
                generator(seed, "prepare", *self._client(client)),
            )
            for client, defence in enumerate(defences)
        ]

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Send one model to all clients, or one to each in turn, and return what the server sees of their answers."""
        if len(models) not in {1, len(self._defences)}:
            raise InputError(f"{len(models)} models cannot be sent to {len(self._defences)} clients.")
        number, self._rounds = self._rounds, self._rounds + 1
        sent = [set_mode(model, self._config) for model in models]
        rounds = [
            client_round(
                sent[client % len(sent)],
                self._batches[client],
                self._config,
                defence,
                self._source(client, number),
                round_number=number,
                client=self._name(client),
            )
            for client, defence in enumerate(self._defences)
        ]
        self.fed = joined([batch for done in rounds for batch in done.fed])
        self.cost = replace(rounds[0].cost, gradient_distance=self._distance(sent[0], rounds[0], number))
        update = rounds[0].update if len(rounds) == 1 else mean_update([done.update for done in rounds])
        seen = Update(self._defences[0].server_view(update.tensors), update.kind)
        return Observation(sent[0], seen, self._knowledge(rounds[0].bn_statistics))

    def _distance(self, model: nn.Module, done: ClientRound, number: int) -> float | None:
        """Return how far the first client's upload is from an undefended one; None if the defence changes the names."""
        source = self._source(0, number)
        plain = plain_update(model, self._raw, self._config, source, round_number=number, client=self._name(0)).tensors
        sent = done.update.tensors
        return relative_distance(plain, sent) if plain.keys() == sent.keys() else None

    def _source(self, client: int, number: int) -> torch.Generator:
        later: tuple[str | int, ...] = ("round", number) if number else ()
        return generator(self._seed, "defence", *self._client(client), *later)

    def _client(self, client: int) -> tuple[str | int, ...]:
        return (*self._stream, *([client] if client else []))

    def _name(self, client: int) -> str:
        return f"client-{self._stream[1]}-{client}"


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the batches as one."""
    return Batch(torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches]))


def _prepared(defence: Defence, batches: Sequence[Batch], source: torch.Generator) -> list[Batch]:
    """Let a defence prepare a client's data, which is what it uses in the round, and cut it into batches again."""
    if not defence.uses("prepare"):
        return list(batches)
    data = defence.prepare(joined(batches), source)
    sizes = [len(batch) for batch in batches]
    if len(data) != sum(sizes):
        raise InputError(f"{defence.name} made {len(data)} images of a client's {sum(sizes)}; an audit keeps them all.")
    return [Batch(*part) for part in zip(torch.split(data.images, sizes), torch.split(data.labels, sizes), strict=True)]
