"""Flower without ports: its own apps, strategies, mods and messages over a grid that calls clients in this process."""

from __future__ import annotations

import copy
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def flower() -> Any:
    """A runner of Flower apps: `grid(client_app, nodes, run_config)` and `run(server_app, grid)`."""
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # the runtime sets these in a process

    class LocalGrid(Grid):
        """Delivers messages by calling the client app; everything else is Flower's."""

        def __init__(self, client_app: Any, nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
            self.app = client_app
            self.replies: list[Message] = []
            self._answers: dict[str, Message] = {}
            self._run: Any = SimpleNamespace(run_id=1)
            self.contexts = {
                place + 2: Context(
                    run_id=1,
                    node_id=place + 2,
                    state=RecordDict(),
                    run_config=dict(run_config or {}),
                    node_config={"partition-id": place, "num-partitions": nodes},
                )
                for place in range(nodes)
            }

        def set_run(self, run: Any) -> None:
            self._run = run

        @property
        def run(self) -> Any:
            return self._run

        def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None):
            return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

        def get_node_ids(self) -> list[int]:
            return list(self.contexts)

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            return list(self.pull_messages(self.push_messages(messages)))

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            ids = []
            for message in messages:
                message.metadata.__dict__["_message_id"] = key = uuid4().hex
                own = copy.copy(message)
                own.__dict__["_content"] = copy.deepcopy(message.content)  # a real client gets its own copy
                node = message.metadata.dst_node_id
                try:
                    reply = self.app(own, self.contexts[node])
                except Exception as error:  # noqa: BLE001 - as the runtime does
                    reply = Message(Error(code=0, reason=f"{error}\n{traceback.format_exc()}"), reply_to=message)
                self._answers[key] = reply
                self.replies.append(reply)
                ids.append(key)
            return ids

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return [self._answers.pop(key) for key in message_ids if key in self._answers]

    def run(server_app: Any, grid: LocalGrid) -> None:
        config = dict(next(iter(grid.contexts.values())).run_config)
        server_app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))

    return SimpleNamespace(grid=LocalGrid, run=run)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Import a module of one of the example apps, as `flwr run` would from its directory."""
    threads = torch.get_num_threads()

    def load(project: str, module: str) -> Any:
        monkeypatch.syspath_prepend(str(EXAMPLES / project))
        return importlib.import_module(module)

    yield load
    for name in [name for name in sys.modules if name.startswith(("sealed_app", "secagg_app"))]:
        del sys.modules[name]
    torch.set_num_threads(threads)


@pytest.fixture
def examples() -> Path:
    """The directory with the example apps."""
    return EXAMPLES
