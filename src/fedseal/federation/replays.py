"""Answers sent again: told from new ones by their content, whatever a few roundings have done to it.

A server adds a replayed change to newer weights, or takes old weights for new ones; both move the last digits. So
updates are compared by a linear sketch (signed sums over a fixed pattern of entries), which is as close for two updates
as these are, and costs one pass and 4 kB for each.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors

_WIDTH = 509
_KEPT = 64
"""Rounds of a client that are remembered."""
_SAME = 1e-6
_STALE = 1e-5
_ROUNDING = 5e-8
"""Upper bound of what single precision adds to weights, by their norm."""


class UpdateHistory:
    """Remembers which rounds each client has answered, and with what."""

    def __init__(self) -> None:
        self._rounds: set[tuple[str, int]] = set()
        self._changes: dict[str, list[tuple[int, Tensor]]] = {}
        self._weights: dict[str, list[tuple[int, Tensor]]] = {}
        self._start: tuple[Tensors, frozenset[str], Tensor] | None = None

    def admit(self, client: str, round_number: int, update: Tensors, before: Tensors | None = None) -> None:
        """Note an update, or refuse one that repeats a round or is an earlier one again.

        Updates that are zero everywhere are alike by nature and are no replay.

        Args:
            client: who sent it.
            round_number: in which round.
            update: what was sent, a gradient or weight change.
            before: the weights it was added to.
        """
        if (client, round_number) in self._rounds:
            raise InputError(f"client {client} sent round {round_number} twice: duplicated.", hint="Keep one of them.")
        change = sketch(update)
        size = float(change.norm())
        if size > 0:
            start = None if before is None else self._sketched(before, update)
            allowed = size * _SAME + (0.0 if start is None else float(start.norm()) * _ROUNDING)
            self._refuse_same(client, round_number, self._changes.get(client, []), change, allowed)
            self._changes[client] = [*self._changes.get(client, []), (round_number, change)][-_KEPT:]
            if start is not None:
                after = start + change
                self._refuse_same(client, round_number, self._weights.get(client, []), after, size * _STALE)
                self._weights[client] = [*self._weights.get(client, []), (round_number, after)][-_KEPT:]
        self._rounds.add((client, round_number))

    def _sketched(self, before: Tensors, update: Tensors) -> Tensor:
        """Return the sketch of the weights an update was added to, which the clients of a round share."""
        names = frozenset(update)
        if self._start is None or self._start[0] is not before or self._start[1] != names:
            self._start = before, names, sketch({name: before[name] for name in update if name in before})
        return self._start[2]

    def _refuse_same(
        self, client: str, number: int, earlier: list[tuple[int, Tensor]], content: Tensor, allowed: float
    ) -> None:
        for when, old in earlier:
            if float((content - old).norm()) <= allowed:
                raise InputError(
                    f"client {client} replayed the update of round {when} in round {number}.",
                    hint="Real training never repeats itself; leave this update out.",
                )


def sketch(tensors: Tensors) -> Tensor:
    """Return signed sums [509] of all entries: linear, and of the size of what it stands for."""
    total = torch.zeros(_WIDTH, dtype=torch.float64)
    for place, name in enumerate(sorted(tensors)):
        flat = tensors[name].detach().reshape(-1).to("cpu", torch.float32)
        rows, rest = divmod(flat.numel(), _WIDTH)
        signs, own = _signs(place, rows + 1), torch.zeros(_WIDTH)
        if rows:
            own += signs[:rows] @ flat[: rows * _WIDTH].view(rows, _WIDTH)
        own[:rest] += signs[rows] * flat[rows * _WIDTH :]
        total += own.double().roll(place * 37)
    return total


@lru_cache(maxsize=1024)
def _signs(place: int, rows: int) -> Tensor:
    """Return the signs of a tensor's rows; the same for every update of a model."""
    return torch.randint(0, 2, (rows,), generator=generator(0, "sketch", place)).float() * 2 - 1
