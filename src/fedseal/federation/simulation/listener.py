"""Who watches a federation, and what an attack is shown of the rounds it chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.observation import Update
from fedseal.federation.client import BNStatistics, RoundConfig
from fedseal.federation.simulation.history import RoundRecord


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


class RoundWatcher:
    """Watches a federation; it can change nothing. This one looks away."""

    def inspects(self, round_number: int) -> bool:
        """Return whether to be shown the uploads of a round."""
        return False

    def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
        """Take an upload of an inspected round, and the global model the client was sent, in the clients' mode."""

    def finished(self, record: RoundRecord, rounds: int) -> None:
        """Take a round that ended, of so many."""
