"""Who hears of a federation's rounds from within: records of all, and the uploads of those an attack chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.observation import Update
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.federation.client import BNStatistics, RoundConfig
from fedseal.federation.simulation.history import RoundRecord

_NAMED = 3


@dataclass(frozen=True)
class SeenUpload:
    """One client's answer in a round.

    Attributes:
        round: number of the round.
        client: its name.
        update: as the server reads it, what is encrypted left out.
        config: how the client trained.
        examples: images the client holds, as it tells the server.
        batches: the private images of each local step; for scoring an attack, never for the attack.
        fed: what the model was fed instead.
        bn_statistics: of the first step, where batch normalisation used any.
    """

    round: int
    client: str
    update: Update
    config: RoundConfig
    examples: int
    batches: tuple[Batch, ...]
    fed: tuple[Batch, ...]
    bn_statistics: BNStatistics = field(default_factory=dict)


class RoundListener:
    """Hears of every round; it can change nothing. This one does not listen. For display, see `core.watcher`."""

    def inspects(self, round_number: int) -> bool:
        """Return whether to be shown the uploads of a round."""
        return False

    def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
        """Take an upload of an inspected round, and the global model the client was sent, in the clients' mode."""

    def finished(self, record: RoundRecord, rounds: int) -> None:
        """Take a round that ended, of so many."""


class RoundsShown(RoundListener):
    """Shows the rounds to a watcher, as steps of one task whose size is their number; names who was refused."""

    def __init__(self, task: Task, watcher: Watcher) -> None:
        self._task, self._watcher = task, watcher

    def finished(self, record: RoundRecord, rounds: int) -> None:
        """Tell the round, its accuracy where it was measured, and the first few who were dropped for what they sent."""
        measured = {} if record.accuracy is None else {"accuracy": record.accuracy}
        self._watcher.advanced(self._task, Tick(record.round + 1, measured))
        refused = [dropped for dropped in record.dropped if dropped.reason != "did not answer"]
        for dropped in refused[:_NAMED]:
            self._watcher.remarked("warning", f"{dropped.client} dropped in round {record.round}: {dropped.reason}")
