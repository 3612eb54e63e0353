"""The SuperNode's connection to its SuperLink, with the gate in it: the one way by which anything leaves the process.

Flower 1.41's SuperNode talks to the SuperLink through eight functions. Requests are pulled whole and admitted before
the SuperNode hears of them. An answer is announced by its tree of objects and then pushed object by object: here the
announcement goes nowhere, objects are gathered, and once all are there the message is rebuilt, sealed, and sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

from flwr.app import Error, Message
from flwr.common.config import get_fused_config_from_fab
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.run import Run

from fedseal.flower.envelope import REFUSED
from fedseal.flower.supernode.gate import Admitted, Gate
from fedseal.site.refusal import RefusedError

Connect: TypeAlias = Callable[..., AbstractContextManager[tuple[Any, ...]]]
"""Opens a connection: the node's id, receive, send, get_run, get_fab, pull_object, push_object, confirm."""

_LOG = logging.getLogger("fedseal.site")
_SLACK = 1 << 20
"""Bytes an answer may have beyond twice its request: names, heads, metrics."""


@dataclass
class _Answer:
    """An app's answer while its objects arrive."""

    admitted: Admitted
    root: str
    missing: set[str]
    runtime: float
    room: int
    contents: dict[str, bytes] = field(default_factory=dict)


class Door:
    """A guarded connection; its methods stand in the place of those of Flower's.

    Args:
        gate: decides and seals.
        connection: what Flower opened.
    """

    def __init__(self, gate: Gate, connection: tuple[Any, ...]) -> None:
        self._gate = gate
        self.node_id = connection[0]
        self._receive: Callable[[], tuple[Message, ObjectTree] | None] = connection[1]
        self._send: Callable[[Message, ObjectTree, float], tuple[set[str], str]] = connection[2]
        self._get_run: Callable[[int], Run] = connection[3]
        self._get_fab: Callable[[str, int], Fab] = connection[4]
        self._pull: Callable[[int, str], bytes] = connection[5]
        self._push: Callable[[int, str, str, bytes], None] = connection[6]
        self._confirm: Callable[[int, str], None] = connection[7]
        self._runs: dict[int, tuple[Run, Fab, dict[str, Any]]] = {}
        self._pulled: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[Admitted, int]] = {}
        self._answers: dict[str, _Answer] = {}
        self._lock = threading.Lock()

    def functions(self) -> tuple[Any, ...]:
        """Return what Flower's SuperNode expects of a connection."""
        return (
            self.node_id,
            self.receive,
            self.send,
            self.get_run,
            self.get_fab,
            self.pull_object,
            self.push_object,
            self.confirm,
        )

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """Return a request that may be answered; another is refused here, and no app hears of it."""
        found = self._receive()
        if found is None:
            return None
        header, tree = found
        run_id = header.metadata.run_id
        try:
            ids = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
            contents = pull_objects(ids, lambda one: self._pull(run_id, one))
            request = _message(tree.object_id, contents)
        except Exception as error:  # noqa: BLE001 - as Flower does with a message that cannot be pulled
            _LOG.error("a request could not be received: %s", error)
            return None
        answer = self._considered(request, sum(map(len, contents.values())))
        if answer is not None:
            self._confirm(run_id, tree.object_id)
            self._transmit(answer, 0.0)
            return None
        self._pulled = contents
        return header, tree

    def _considered(self, request: Message, size: int) -> Message | None:
        """Admit a request, or return the refusal to send."""
        try:
            run, _, config = self._run(request.metadata.run_id)
            if run.primary_task_type != TaskType.SERVER_APP:
                raise RefusedError("the site takes part in training only, not in runs of agents.")
            admitted = self._gate.admit(request, config)
        except RefusedError as error:
            return self._gate.refusal(request, error)
        except Exception:  # noqa: BLE001 - a server may send anything; what is not understood is not answered
            _LOG.exception("a request could not be judged")
            words = "the site could not judge this request; the site's log says why."
            return Message(Error(REFUSED, words), reply_to=request)
        with self._lock:
            self._waiting[request.metadata.message_id] = admitted, 2 * size + _SLACK
        return None

    def _run(self, run_id: int) -> tuple[Run, Fab, dict[str, Any]]:
        """Return a run, its app and its config, fetched once."""
        if run_id not in self._runs:
            run = self._get_run(run_id)
            fab = self._get_fab(run.fab_hash, run_id)
            self._runs[run_id] = run, fab, dict(get_fused_config_from_fab(fab.content, run))
        return self._runs[run_id]

    def get_run(self, run_id: int) -> Run:
        """Return a run."""
        return self._run(run_id)[0]

    def get_fab(self, fab_hash: str, run_id: int) -> Fab:
        """Return an app."""
        run, fab, _ = self._run(run_id)
        return fab if run.fab_hash == fab_hash else self._get_fab(fab_hash, run_id)

    def pull_object(self, run_id: int, object_id: str) -> bytes:
        """Return a part of the request that was admitted."""
        kept = self._pulled.get(object_id)
        return self._pull(run_id, object_id) if kept is None else kept

    def confirm(self, run_id: int, object_id: str) -> None:
        """Tell the SuperLink that the request has arrived."""
        self._pulled = {}
        self._confirm(run_id, object_id)

    def send(self, message: Message, tree: ObjectTree, runtime: float) -> tuple[set[str], str]:
        """Take the announcement of an answer; nothing is sent before all of it is here."""
        token = uuid4().hex
        missing = {node.object_id for node in iterate_object_tree(tree)}
        with self._lock:
            admitted, room = self._waiting.pop(message.metadata.reply_to_message_id, (None, 0))
            if admitted is None:
                _LOG.warning("an answer to nothing that was asked is dropped")
                return set(), token
            self._answers[token] = _Answer(admitted, tree.object_id, set(missing), runtime, room)
        return missing, token

    def push_object(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        """Take a part of an answer; with the last one it is sealed and sent."""
        with self._lock:
            answer = self._answers[session_id]
            answer.missing.discard(object_id)
            answer.room -= len(contents)
            if answer.room >= 0:
                answer.contents[object_id] = contents
            if answer.missing:
                return
            del self._answers[session_id]
        self._transmit(self._judged(answer), float(round(answer.runtime)))

    def _judged(self, answer: _Answer) -> Message:
        request = answer.admitted.message
        if answer.room < 0:
            return self._gate.refusal(request, RefusedError("the answer is far larger than the model that was sent."))
        try:
            reply = _message(answer.root, answer.contents)
        except Exception as error:  # noqa: BLE001 - an app may push anything
            return self._gate.refusal(request, RefusedError("the answer cannot be read.", detail=str(error)))
        return self._gate.answer(answer.admitted, reply)

    def _transmit(self, message: Message, runtime: float) -> None:
        """Send a message that the gate made."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(message), get_all_nested_objects(message)
            ids, session = self._send(message, tree, runtime)
            run_id = message.metadata.run_id
            for key, part in objects.items():
                if key in ids:
                    self._push(run_id, session, key, part.deflate())


def guarded(connect: Connect, gate: Gate) -> Connect:
    """Return what opens a connection with a gate in it, in the place of `connect`."""

    @contextmanager
    def opened(*arguments: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*arguments, **options) as connection:
            yield Door(gate, connection).functions()

    return opened


def _message(root: str, contents: dict[str, bytes]) -> Message:
    made = inflate_object_from_contents(root, contents, keep_object_contents=True)
    if not isinstance(made, Message):
        raise TypeError(f"a {type(made).__name__} is no message")
    made.metadata.__dict__["_message_id"] = root
    return made
