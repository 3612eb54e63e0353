"""A round's clients, each trained on its own; `vectorised` does the same in one `vmap` where that pays."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from fedseal.core.errors import InputError
from fedseal.federation.client import train
from fedseal.federation.cohort.answers import Answer, Assignment, Measure, answered
from fedseal.federation.wire import payload_size


class InTurn:
    """Trains clients one after the other, each on a fresh copy of the model it was sent, whatever that is.

    Args:
        shared: names of the buffers that clients upload.
        measure: counts an upload's bytes.
    """

    def __init__(self, shared: Sequence[str] = (), measure: Measure = payload_size) -> None:
        self._shared = shared
        self._measure = measure

    def __call__(
        self, assignments: Iterable[Assignment], round_number: int, *, statistics: bool = True
    ) -> Iterator[Answer]:
        """Yield the answers, in the order of the assignments."""
        for one in assignments:
            yield self._answer(one, round_number, statistics)

    def _answer(
        self,
        one: Assignment,
        round_number: int,
        statistics: bool,
        workspace: nn.Module | None = None,
        draws: bool = True,
    ) -> Answer:
        try:
            done = train(
                one.model,
                one.batches,
                one.config,
                one.defence,
                one.generator,
                round_number=round_number,
                client=one.name,
                workspace=workspace,
                statistics=statistics,
                draws=draws,
            )
        except InputError as error:
            return Answer(one, None, error)
        return answered(
            one,
            done.update,
            done.hook_seconds,
            fed=done.fed,
            bn_statistics=done.bn_statistics,
            buffers={name: done.buffers[name].clone() for name in self._shared},
            measure=self._measure,
        )


class OneByOne(InTurn):
    """Trains clients each on its own, some of them at once: one thread each.

    PyTorch computes outside of the interpreter's lock, so that threads keep as many cores busy. Every client computes
    on one thread whatever their number, and answers come in order, so the result does not depend on `workers`. As
    many models as there are workers are held. The caller, too, computes on one thread (`one_thread`).

    Args:
        model: the global model, in the clients' mode; what assignments hold later is this one.
        workers: clients trained at once.
        example: some images, to see whether the model draws random numbers: those come from one generator for the
            whole process, so such clients are trained one after the other.
        shared: names of the buffers that clients upload.
    """

    def __init__(self, model: nn.Module, workers: int, example: Tensor, shared: Sequence[str]) -> None:
        super().__init__(shared)
        self._draws = _draws(copy.deepcopy(model), example)
        self._workspaces = [copy.deepcopy(model) for _ in range(1 if self._draws else max(1, workers))]

    def __call__(
        self, assignments: Iterable[Assignment], round_number: int, *, statistics: bool = True
    ) -> Iterator[Answer]:
        """Yield the answers, in the order of the assignments; at most as many wait as there are workers."""
        free = SimpleQueue[nn.Module]()
        for workspace in self._workspaces:
            free.put(workspace)

        def answer(one: Assignment) -> Answer:
            workspace = free.get()
            try:
                return self._answer(one, round_number, statistics, workspace, self._draws)
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
