"""Rounds of a real Flower federation in this process, bare and sealed, in turns: what sealing adds to a round.

The application, the strategy and the messages are Flower's; only their delivery is a function call, so that nothing but
the work is timed. Sealed is the bare federation with `defend` around the client, a ledger on disk, and `guard` around
the strategy. What that adds does not depend on how long a client trains, and is small beside the noise of training
times: it is measured on rounds whose clients answer at once with a change of the right size, and set against full
rounds measured between them. The monitor, which adapts to how long rounds take, is `bench/watch.py`.
"""

from __future__ import annotations

import copy
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn import functional as F

from fedbench.cases import Case, client_data, initial_model
from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.flower import defend, guard

DEFENCE = "gaussian:sigma=0.01"
"""What seals: it acts on every number, and books a release in every round."""


class CallingGrid(Grid):
    """Delivers messages by calling the client application."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # set by the runtime otherwise
        self._app = app
        self._answers: dict[str, Message] = {}
        self._run: Any = SimpleNamespace(run_id=1)
        self._contexts = {
            place + 2: Context(1, place + 2, {"partition-id": place, "num-partitions": clients}, RecordDict(), {})
            for place in range(clients)
        }

    def set_run(self, run: Any) -> None:
        """Take the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run."""
        return self._run

    def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None) -> Any:
        """Return a message."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        """Return all clients."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Call the application for each message, on a copy of its content, as a client has."""
        keys = []
        for message in messages:
            key = uuid4().hex
            message.metadata.__dict__["_message_id"] = key
            own = copy.copy(message)
            own.__dict__["_content"] = copy.deepcopy(message.content)
            self._answers[key] = self._app(own, self._contexts[message.metadata.dst_node_id])
            keys.append(key)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers that are there."""
        return [self._answers.pop(key) for key in message_ids if key in self._answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the answers."""
        return self.pull_messages(self.push_messages(messages))


def client_app(case: Case, mods: list[Any], *, trains: bool) -> ClientApp:
    """Return a client behind mods that takes the case's steps, or answers at once with some change of every weight."""
    app = ClientApp(mods=mods)
    data = [client_data(case, client) for client in range(case.clients)]
    source = generator(0, "change")
    model = initial_model(case).train()
    change = {name: 1e-3 * torch.randn(p.shape, generator=source) for name, p in model.named_parameters()}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = data[int(context.node_config["partition-id"])]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        if trains:
            _train(model, case, own)
        else:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.add_(change[name])
        metrics = MetricRecord({"num-examples": len(own)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def _train(model: nn.Module, case: Case, own: Batch) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
    for step in range(case.steps):
        places = [(step * case.batch + offset) % len(own) for offset in range(case.batch)]
        optimiser.zero_grad()
        F.cross_entropy(model(own.images[places]), own.labels[places]).backward()
        optimiser.step()


@dataclass(frozen=True)
class Variant:
    """A way to run a round: mods of the client, and what is around the strategy."""

    name: str
    mods: Callable[[Path], list[Any]]
    around: Callable[[Strategy], Strategy] = lambda strategy: strategy


SEALED = (
    Variant("bare", lambda ledger: []),
    Variant("seal", lambda ledger: [defend(DEFENCE)]),
    Variant("seal + ledger", lambda ledger: [defend(DEFENCE, ledger=ledger)]),
    Variant("seal + ledger + guard", lambda ledger: [defend(DEFENCE, ledger=ledger)], guard),
)
"""The bare federation, then what is added to it, one thing after another."""


@dataclass(frozen=True)
class Overhead:
    """Seconds of rounds.

    Attributes:
        full: of bare rounds in which clients train.
        quick: by variant, of rounds in which they answer at once.
    """

    full: list[float]
    quick: dict[str, list[float]]

    def ratio(self, variant: str) -> float:
        """Return a full round's time with a variant over that without."""
        added = statistics.median(self.quick[variant]) - statistics.median(self.quick["bare"])
        return 1 + added / statistics.median(self.full)


def overhead(case: Case, rounds: int, *, clock: Callable[[], float] = time.process_time) -> Overhead:
    """Measure all variants in turns, after one round each to warm up.

    Args:
        case: the federation.
        rounds: of each variant.
        clock: processor time, which is usable on a machine that does other things too, or wall time.
    """
    for name in ("flwr", "fedseal"):
        logging.getLogger(name).setLevel(logging.ERROR)
    played = [*((one, False) for one in SEALED), (SEALED[0], True)]
    seconds: list[list[float]] = [[] for _ in played]
    with tempfile.TemporaryDirectory() as directory:
        grids = [
            CallingGrid(client_app(case, one.mods(Path(directory) / f"{place}.db"), trains=trains), case.clients)
            for place, (one, trains) in enumerate(played)
        ]
        for number in range(rounds + 1):
            for place in range(len(played)) if number % 2 else reversed(range(len(played))):
                taken = _round(played[place][0], grids[place], case, clock)
                seconds[place] += [taken] if number else []
    quick = {one.name: times for (one, trains), times in zip(played, seconds, strict=True) if not trains}
    return Overhead(seconds[-1], quick)


def _round(variant: Variant, grid: CallingGrid, case: Case, clock: Callable[[], float]) -> float:
    """Return the seconds of one round."""
    options = {"min_train_nodes": case.clients, "min_available_nodes": case.clients}
    strategy = variant.around(FedAvg(fraction_evaluate=0.0, **options))
    arrays = ArrayRecord(initial_model(case).state_dict())
    start = clock()
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
    return clock() - start
