"""A round's clients, each trained on its own; `vectorised` does the same in one `vmap` where that pays."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors
from fedseal.federation.client import BNStatistics, RoundConfig, train
from fedseal.federation.server import check_upload
from fedseal.federation.wire import payload_size


@dataclass(frozen=True)
class Assignment:
    """What one client does in a round.

    Attributes:
        index, name: which client.
        batches: one per local step.
        config: how it trains.
        defence: its own instance.
        generator: its randomness in this round.
    """

    index: int
    name: str
    batches: tuple[Batch, ...]
    config: RoundConfig
    defence: Defence
    generator: torch.Generator


@dataclass(frozen=True)
class Answer:
    """What came of an assignment: an update, or the reason why there is none.

    Attributes:
        assignment: whose.
        update: after every hook of the client's defence; None if it failed.
        failure: why.
        fed: the batches the model really saw.
        bn_statistics: of the first step.
        buffers: the trained model's that clients share.
        bytes_up: what the upload takes on the wire.
        hook_seconds: time spent in hooks.
    """

    assignment: Assignment
    update: Update | None
    failure: str = ""
    fed: tuple[Batch, ...] = ()
    bn_statistics: BNStatistics = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    hook_seconds: float = 0.0


def answered(
    model: nn.Module,
    one: Assignment,
    update: Update,
    hook_seconds: float,
    *,
    fed: tuple[Batch, ...],
    bn_statistics: BNStatistics | None = None,
    buffers: Tensors | None = None,
) -> Answer:
    """Return an upload as the server of `model` takes it: checked, and measured."""
    try:
        check_upload(update.tensors, model)
    except InputError as error:
        return Answer(one, None, error.message)
    size = payload_size({**update.tensors, **(buffers or {})})
    return Answer(one, update, "", fed, bn_statistics or {}, buffers or {}, size, hook_seconds)


class OneByOne:
    """Trains clients each on its own, some of them at once: one thread each.

    PyTorch computes outside of the interpreter's lock, so that threads keep as many cores busy. Every client computes
    on one thread whatever their number, and answers come in order, so the result does not depend on `workers`. As
    many models as there are workers are held. The caller, too, computes on one thread (`one_thread`).

    Args:
        model: the global model, in the clients' mode; what `__call__` is given later is this one.
        workers: clients trained at once.
        example: some images, to see whether the model draws random numbers: those come from one generator for the
            whole process, so such clients are trained one after the other.
        shared: names of the buffers that clients upload.
    """

    def __init__(self, model: nn.Module, workers: int, example: Tensor, shared: Sequence[str]) -> None:
        self._shared = shared
        self._draws = _draws(copy.deepcopy(model), example)
        self._workspaces = [copy.deepcopy(model) for _ in range(1 if self._draws else max(1, workers))]

    def __call__(
        self, model: nn.Module, assignments: Iterable[Assignment], round_number: int, *, statistics: bool = True
    ) -> Iterator[Answer]:
        """Yield the answers, in the order of the assignments; at most as many wait as there are workers.

        Args:
            model: where clients start.
            assignments: taken one by one, each after the answers to earlier ones that do not wait.
            round_number: for the defences.
            statistics: whether anyone asks for those of batch normalisation.
        """
        free = SimpleQueue[nn.Module]()
        for workspace in self._workspaces:
            free.put(workspace)

        def answer(one: Assignment) -> Answer:
            workspace = free.get()
            try:
                return self._answer(model, one, round_number, workspace, statistics)
            finally:
                free.put(workspace)

        if len(self._workspaces) == 1:
            yield from map(answer, assignments)
            return
        with ThreadPoolExecutor(len(self._workspaces), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting: deque[Future[Answer]] = deque()
            for one in assignments:
                waiting.append(pool.submit(answer, one))
                if len(waiting) > len(self._workspaces):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _answer(
        self, model: nn.Module, one: Assignment, round_number: int, workspace: nn.Module, statistics: bool
    ) -> Answer:
        try:
            done = train(
                model,
                one.batches,
                one.config,
                one.defence,
                one.generator,
                round_number=round_number,
                client=one.name,
                workspace=workspace,
                statistics=statistics,
                draws=self._draws,
            )
        except InputError as error:
            return Answer(one, None, error.message)
        return answered(
            model,
            one,
            done.update,
            done.hook_seconds,
            fed=done.fed,
            bn_statistics=done.bn_statistics,
            buffers={name: done.buffers[name].clone() for name in self._shared},
        )


def _draws(model: nn.Module, example: Tensor) -> bool:
    """Return whether a model may draw from the global generator when called, as dropout does; beside a CPU, always."""
    if example.device.type != "cpu":
        return True
    source = torch.default_generator
    before = source.get_state()
    try:
        with torch.no_grad():
            model(example)
        return not torch.equal(before, source.get_state())
    finally:
        source.set_state(before)
