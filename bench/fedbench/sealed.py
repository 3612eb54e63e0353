"""Rounds of a real Flower federation in this process, bare and sealed, in turns: what sealing adds to a round.

The application, the strategy and the messages are Flower's; only their delivery is a function call, so that nothing but
the work is timed. One client after another trains for a pass over its images and answers; FedAvg takes the mean. Sealed
is the same with `defend` around the client, a ledger on disk, and `guard` around the strategy.
"""

from __future__ import annotations

import copy
import logging
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
from torch.nn import functional as F

from fedbench.cases import Case, client_data, initial_model
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


def client_app(case: Case, mods: list[Any]) -> ClientApp:
    """Return a client that takes the case's steps, behind mods."""
    app = ClientApp(mods=mods)
    data = [client_data(case, client) for client in range(case.clients)]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = data[int(context.node_config["partition-id"])]
        model = initial_model(case).train()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
        for step in range(case.steps):
            places = [(step * case.batch + offset) % len(own) for offset in range(case.batch)]
            optimiser.zero_grad()
            F.cross_entropy(model(own.images[places]), own.labels[places]).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": len(own)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


@dataclass(frozen=True)
class Variant:
    """A way to run a round: mods of the client, and what is around the strategy."""

    name: str
    mods: Callable[[Path], list[Any]]
    around: Callable[[Strategy], Strategy] = lambda strategy: strategy


def variants(case: Case) -> list[Variant]:
    """Return the bare federation first, then what is added to it, one thing after another."""
    found = [
        Variant("bare", lambda ledger: []),
        Variant("seal", lambda ledger: [defend(DEFENCE)]),
        Variant("seal + ledger", lambda ledger: [defend(DEFENCE, ledger=ledger)]),
        Variant("seal + ledger + guard", lambda ledger: [defend(DEFENCE, ledger=ledger)], guard),
    ]
    try:
        from fedseal.flower import monitor
    except ImportError:
        return found

    own = [client_data(case, client) for client in range(case.clients)]

    def batches(message: Message, context: Context) -> list[Any]:
        mine = own[int(context.node_config["partition-id"])]
        return [mine.pick(slice(step * case.batch, (step + 1) * case.batch)) for step in range(case.steps)]

    def watched(ledger: Path) -> list[Any]:
        from fedseal.federation.client import RoundConfig

        config = RoundConfig(local_steps=case.steps, learning_rate=case.learning_rate, bn_mode="train-nostats")
        watch = monitor(lambda: initial_model(case), batches, client_data(case, case.clients), config=config)
        return [watch, defend(DEFENCE, ledger=ledger)]

    return [*found, Variant("all + monitor", watched, guard)]


def in_turns(case: Case, rounds: int, *, clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """Return the seconds of every round by variant; all variants take turns, after one round each to warm up.

    Args:
        case: the federation.
        rounds: of each variant; a client's context lives as long as its variant.
        clock: wall time, or `time.process_time` on a machine that does other things too.
    """
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("fedseal").setLevel(logging.ERROR)
    arrays = ArrayRecord(initial_model(case).state_dict())
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        played = [
            (one, CallingGrid(client_app(case, one.mods(Path(directory) / f"{place}.db")), case.clients))
            for place, one in enumerate(variants(case))
        ]
        for number in range(rounds + 1):
            for variant, grid in played if number % 2 else reversed(played):
                options = {"min_train_nodes": case.clients, "min_available_nodes": case.clients}
                strategy = variant.around(FedAvg(fraction_evaluate=0.0, **options))
                start = clock()
                strategy.start(grid=grid, initial_arrays=copy.deepcopy(arrays), num_rounds=1)
                if number:
                    seconds.setdefault(variant.name, []).append(clock() - start)
    return {variant.name: seconds[variant.name] for variant, _ in played}
