"""Poisson batches, and the sample rate measured instead of believed.

An account that is amplified by sampling rests on every record being drawn independently with a known probability.
Batches cut from a shuffled pass are not drawn that way, and a rate written into an option can be anything.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fedseal.core.defence import Defence
from fedseal.core.errors import InputError, UsageError
from fedseal.defences.accounting import require_opacus

_TOLERANCE = 0.01
_DEVIATIONS = 6.0
"""Standard deviations of a batch's size beyond which it was not drawn at the stated rate."""


def poisson_loader(
    dataset: Dataset[Any],
    sample_rate: float | None = None,
    *,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """Return Opacus' loader of Poisson batches: each record is in a batch with probability `sample_rate`.

    Batches differ in size and may be empty. One pass has 1 / sample_rate batches.

    Args:
        dataset: of records, with a length.
        sample_rate: or `batch_size`, the expected one, over the number of records.
        batch_size: see there.
        generator: of the draws; the system's by default, as an attacker must not know them.
        options: of `torch.utils.data.DataLoader`.
    """
    require_opacus()
    from opacus.data_loader import DPDataLoader

    size = len(dataset)  # type: ignore[arg-type]
    if (sample_rate is None) == (batch_size is None):
        raise UsageError("a Poisson loader needs a sample rate or an expected batch size.", hint="Give one of them.")
    rate = sample_rate if sample_rate is not None else min(1.0, float(batch_size or 0) / size)
    if not 0 < rate <= 1:
        raise UsageError(f"a sample rate lies between 0 and 1, got {rate:g}.")
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    made: DataLoader[Any] = DPDataLoader(dataset, sample_rate=rate, generator=generator, **options)
    return made


def loader_rate(loader: DataLoader[Any]) -> float | None:
    """Return the rate at which a loader draws Poisson batches; None if it draws others."""
    if not isinstance(getattr(loader.batch_sampler, "sample_rate", None), float):
        return None
    require_opacus()
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    sampler = loader.batch_sampler
    return float(sampler.sample_rate) if isinstance(sampler, UniformWithReplacementSampler) else None


def claimed_rate(defence: Defence) -> float:
    """Return the smallest sample rate that a defence accounts with; 1 if it claims no amplification."""
    members = getattr(defence, "members", (defence,))
    return min((float(getattr(member, "sample_rate", 1.0)) for member in members), default=1.0)


class RateGauge:
    """Holds a claimed sample rate to how batches are drawn.

    Args:
        claimed: by the defence.
        loader: that draws the batches; needed for a claim below 1.
        owner: name of the defence, for messages.
    """

    def __init__(self, claimed: float, loader: DataLoader[Any] | None, owner: str) -> None:
        self._claimed = claimed
        self._owner = owner
        self._records = 0
        self._seen = 0
        self._batches = 0
        if claimed >= 1:
            return
        if loader is None:
            raise UsageError(
                f"{owner} accounts with sample_rate = {claimed:g}, which is believed of nobody.",
                hint="Give the loader as well: poisson_loader(dataset, sample_rate).",
            )
        rate = loader_rate(loader)
        if rate is None:
            raise UsageError(
                f"{owner} accounts with sample_rate = {claimed:g}, but the loader's batches are no Poisson samples.",
                hint="Use poisson_loader(dataset, sample_rate), or sample_rate=1.",
            )
        if claimed < rate * (1 - _TOLERANCE):
            raise UsageError(
                f"{owner} accounts with sample_rate = {claimed:g}, but the loader draws at {rate:g}.",
                hint=f"Set sample_rate={rate:g}.",
            )
        self._records = len(loader.dataset)  # type: ignore[arg-type]

    @property
    def measured(self) -> float | None:
        """Share of the records that a batch had on average; None where nothing was claimed or seen."""
        return self._seen / (self._batches * self._records) if self._batches and self._records else None

    def count(self, size: int) -> None:
        """Take a step's records; refuse them once they are more than the claimed rate can draw."""
        if not self._records:
            return
        self._seen += size
        self._batches += 1
        mean = self._batches * self._records * self._claimed
        spread = math.sqrt(mean * (1 - self._claimed))
        if self._seen > mean * (1 + _TOLERANCE) + _DEVIATIONS * spread + 1:
            raise InputError(
                f"{self._owner} accounts with sample_rate = {self._claimed:g}, but {self._batches} steps held "
                f"{self._seen} of {self._records} records, a rate of {self.measured:.3g}.",
                hint="Feed the batches of the loader that was given, one per step, and nothing was sent of this one.",
            )
