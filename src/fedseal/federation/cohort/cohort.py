"""The cohort: clients that share a model, and the one place where a round of theirs is played.

Order of a defence's hooks: the model is wrapped once (`federated_model`); each client's data is prepared once, whole,
before its first round; then per client `on_batch`, `extra_loss`, `on_sample_grads`, `on_gradient`, `on_update`
(`client.train`); what it then broadcasts the others receive before the next one begins, in an order drawn anew each
round where the first decides for all; last the server's side, `server_view` and `on_aggregate`.

Uploads are added to a running mean as they come: memory does not grow with the clients, but for what their defences
keep and for the answers a caller asks to be shown.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import Tensors
from fedseal.federation.client import ClientRound, RoundConfig
from fedseal.federation.cohort.answers import Answer, Assignment, Strategy
from fedseal.federation.cohort.clients import Choice, Client, ClientData, Held
from fedseal.federation.cohort.one_by_one import InTurn
from fedseal.federation.cohort.traffic import dense_bytes, message_bytes
from fedseal.federation.server import RunningMean, mean_update


class Streams(Protocol):
    """Where a cohort's randomness comes from; each owner names its streams, so that no two share one."""

    def prepare(self, client: int) -> torch.Generator:
        """Return what a client's defence prepares its data with."""

    def round(self, client: int, number: int) -> torch.Generator:
        """Return what a client's defence draws from in a round."""

    def turns(self, number: int) -> torch.Generator:
        """Return what a round's order of clients is drawn from."""


@dataclass
class CohortRound:
    """What a round came to.

    Attributes:
        round: its number.
        indices, clients: who is in the mean, in the order of arrival.
        dropped: names of those whose answers were refused, and why.
        answers: of the clients the caller asked to be shown, in that order.
        seen: what the server reads of their mean; None if none were asked for.
        aggregate: the mean of all, after the server's side of the defence; None if nobody answered.
        buffers: the mean of what clients share of their buffers.
        bytes_up: of all uploads, and of what clients broadcast.
        heard: bytes that each client received from others, by its index.
        told: bytes that each client broadcast.
        hook_seconds: time spent in the clients' hooks.
    """

    round: int
    indices: list[int] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    answers: tuple[Answer, ...] = ()
    seen: Update | None = None
    aggregate: Update | None = None
    buffers: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    heard: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    hook_seconds: float = 0.0

    def cost(self, answer: Answer) -> CostReport:
        """Return what the defence cost a client, broadcasts included; to be asked before its next round."""
        index, cost = answer.assignment.index, answer.cost()
        heard, told = self.heard.get(index, 0), self.told.get(index, 0)
        if heard:
            own = cost.bytes_down if cost.bytes_down is not None else dense_bytes(answer.assignment.model)
            cost = replace(cost, bytes_down=own + heard)
        return replace(cost, bytes_up=(cost.bytes_up or 0) + told)


class Cohort:
    """Clients of one federation, each with a defence of its own, between two rounds.

    Args:
        clients: all of them; they are named by their place in what follows.
        defence: fresh; every client works with a copy, and so does the server.
        streams: of its randomness.
        train: how a round's clients are trained; one after the other by default.
        weighting: clients count by the number of their (prepared) `examples`, or alike.
        strict: raise what is wrong with an answer, rather than drop the client for the round.
        defences: instances that clients have already, by place.

    Attributes:
        streams: as given.
        server_side: the server's copy of the defence.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        defence: Defence,
        streams: Streams,
        *,
        train: Strategy | None = None,
        weighting: Literal["examples", "uniform"] = "uniform",
        strict: bool = False,
        defences: Mapping[int, Defence] | None = None,
    ) -> None:
        self._clients = list(clients)
        self._fresh = copy.deepcopy(defence)
        self.streams = streams
        self._train: Strategy = train or InTurn()
        self._weighting = weighting
        self._strict = strict
        self._given = dict(defences or {})
        self._defences: dict[int, Defence] = {}
        self._data: dict[int, ClientData] = {}
        self.server_side = copy.deepcopy(defence)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def defences(self) -> Mapping[int, Defence]:
        """The defences of the clients that have taken part, by place."""
        return self._defences

    def defence(self, client: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Defence:
        """Return a client's own defence; its first time, it prepares the client's whole data.

        Args:
            client: its place.
            device, dtype: of the model it will train; as the data are, if left out.
        """
        if client not in self._defences:
            defence = self._given.pop(client, None) or copy.deepcopy(self._fresh)
            self._defences[client] = defence
            if defence.uses("prepare"):
                whole = self._clients[client].data.batch()
                whole = whole.to(device or whole.inputs.device, dtype or whole.inputs.dtype)
                prepared = defence.prepare(whole, self.streams.prepare(client))
                if prepared is not whole:
                    self._data[client] = Held(prepared)
        return self._defences[client]

    def config(self, client: int) -> RoundConfig:
        """Return how a client trains."""
        return self._clients[client].config

    def examples(self, client: int) -> int:
        """Return how many images a client trains on, after what its defence prepared."""
        return len(self._held(client))

    def batches(self, client: int, number: int, like: Tensor, *, prepared: bool = True) -> tuple[Batch, ...]:
        """Return what a client uses in a round, one batch per local step, in the device and dtype of `like`.

        Args:
            client: its place.
            number: of the round.
            like: a parameter of the model.
            prepared: as its defence prepared it, or as the client holds it.
        """
        one = self._clients[client]
        data = self._held(client) if prepared else one.data
        return tuple(batch.to(like.device, like.dtype) for batch in one.choose(data, number))

    def play(
        self,
        models: Sequence[nn.Module],
        round_number: int,
        *,
        among: Sequence[int] | None = None,
        shown: Sequence[int] = (),
        statistics: bool = True,
        taken: Callable[[Answer], None] | None = None,
        serve: bool = True,
    ) -> CohortRound:
        """Play one round: models out, through every hook of every client, and what the server makes of the answers.

        Args:
            models: one for all clients, or one for each of `among` in turn; not changed.
            round_number: from 0.
            among: places of the clients that take part; all by default.
            shown: of these, whose answers are kept, and whose mean the server looks at.
            statistics: whether anyone asks for those of batch normalisation.
            taken: told of each sound answer as it arrives, before the server's side of the round.
            serve: whether the server's side is played too; not where the server is elsewhere.
        """
        chosen = list(range(len(self._clients))) if among is None else list(among)
        if len(models) not in {1, len(chosen)}:
            raise InputError(f"{len(models)} models cannot be sent to {len(chosen)} clients.")
        sent = {client: models[place % len(models)] for place, client in enumerate(chosen)}
        order = self._in_turn(chosen, round_number)
        done = CohortRound(round_number)
        mean, buffers, kept = RunningMean(), RunningMean(), dict[int, Answer]()
        for answer in self._train(self._assignments(sent, order, round_number), round_number, statistics=statistics):
            self._spread(answer, order, done)
            if not self._count(answer, done, *((mean, buffers) if serve else ())):
                continue
            if answer.assignment.index in shown:
                kept[answer.assignment.index] = answer
            if taken is not None:
                taken(answer)
        done.answers = tuple(kept[client] for client in shown if client in kept)
        if serve:
            self._serve(done, mean, buffers)
        return done

    def see(self, update: Update) -> Update:
        """Return what the server can read of an upload, or of the mean of several."""
        return Update(self.server_side.server_view(update.tensors), update.kind)

    def branch(self, number: int, train: Strategy | None = None) -> Cohort:
        """Return a cohort that goes on from here by itself: data are shared, the state of defences is copied.

        Args:
            number: of the round whose batches its clients use, in whatever round they are asked.
            train: how they are trained. What is wrong with an answer is raised.
        """
        clients = [replace(one, choose=_always(one.choose, number)) for one in self._clients]
        other = Cohort(clients, self._fresh, self.streams, train=train, weighting=self._weighting, strict=True)
        other.server_side = copy.deepcopy(self.server_side)
        other._defences = {client: copy.deepcopy(defence) for client, defence in self._defences.items()}
        other._data = dict(self._data)
        return other

    def _held(self, client: int) -> ClientData:
        return self._data.get(client, self._clients[client].data)

    def _assignments(self, sent: Mapping[int, nn.Module], order: Sequence[int], number: int) -> Iterator[Assignment]:
        for client in order:
            one, model = self._clients[client], sent[client]
            like = next(model.parameters())
            defence = self.defence(client, like.device, like.dtype)
            batches = self.batches(client, number, like)
            source = self.streams.round(client, number)
            yield Assignment(client, one.name, model, batches, one.config, defence, source)

    def _in_turn(self, clients: list[int], number: int) -> list[int]:
        """Return the order in which clients train: at random where the first decides for the others (`broadcast`)."""
        if len(clients) == 1 or not self._fresh.uses("broadcast"):
            return clients
        order = torch.randperm(len(clients), generator=self.streams.turns(number))
        return [clients[int(place)] for place in order]

    def _spread(self, answer: Answer, order: Sequence[int], done: CohortRound) -> None:
        """Hand what a client broadcasts to the round's other clients, and count it; the next one trains after that."""
        message = answer.assignment.defence.broadcast() if answer.update is not None else None
        if message is None:
            return
        sender, size = answer.assignment.index, message_bytes(message)
        done.told[sender] = size
        done.bytes_up += size
        like = next(answer.assignment.model.parameters())
        for client in order:
            if client != sender:
                self.defence(client, like.device, like.dtype).receive(message, done.round)
                done.heard[client] = done.heard.get(client, 0) + size

    def _count(
        self, answer: Answer, done: CohortRound, mean: RunningMean | None = None, buffers: RunningMean | None = None
    ) -> bool:
        """Add one client's answer to the round, or name it among the dropped; return which."""
        one, update = answer.assignment, answer.update
        if update is None:
            if self._strict and answer.error is not None:
                raise answer.error
            done.dropped.append((one.name, answer.failure))
            return False
        weight = float(self.examples(one.index)) if self._weighting == "examples" else 1.0
        if mean is not None:
            mean.add(update.tensors, weight)
        if buffers is not None and answer.buffers:
            buffers.add(answer.buffers, weight)
        done.bytes_up += answer.bytes_up
        done.hook_seconds += answer.hook_seconds
        done.clients.append(one.name)
        done.indices.append(one.index)
        return True

    def _serve(self, done: CohortRound, mean: RunningMean, buffers: RunningMean) -> None:
        """Do the server's part: look at what is shown, then aggregate."""
        if not done.clients:
            return
        if done.answers:
            done.seen = self.see(mean_update([answer.update for answer in done.answers if answer.update is not None]))
        kind = self._clients[done.indices[0]].config.kind
        done.aggregate = Update(self.server_side.on_aggregate(mean.value()), kind)
        done.buffers = buffers.value() if buffers.weight else {}


def _always(choose: Choice, number: int) -> Choice:
    """Return the choice of one round for all."""
    return lambda data, _: choose(data, number)


def federated_model(defence: Defence, model: nn.Module, seed: int) -> nn.Module:
    """Return the model a federation trains under a defence, which may be `model` itself; seeded where it adds to it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "wrapped"))
        return defence.wrap_model(model)


def play_alone(
    client: Client,
    model: nn.Module,
    defence: Defence,
    streams: Streams,
    *,
    round_number: int,
    train: Strategy | None = None,
) -> ClientRound:
    """Play one client of a cohort whose others are elsewhere, as a framework's client is; what is wrong is raised.

    Args:
        client: the one.
        model: it was sent, wrapped by the defence already.
        defence: its own, at its current state.
        streams: of its randomness.
        round_number: from 0.
        train: how it is trained.
    """
    done = Cohort([client], defence, streams, train=train, strict=True, defences={0: defence}).play(
        [model], round_number, shown=(0,), serve=False
    )
    (answer,) = done.answers
    assert answer.update is not None
    return ClientRound(answer.update, answer.fed, answer.bn_statistics, done.cost(answer), answer.buffers)
