"""What a batch has in common: attributes of all of its records, or the share of a class, read off its update.

The attacker rehearses: updates of public batches that have the property and of such that have not, defended as the
client's are, teach a linear reader which updates look like which (Melis et al. 2019). Updates are cut to a few hundred
random sums before, which keep distances; the reader is ridge regression, its strength chosen by leaving one out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.audit.setup import Setup
from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.core.modality import IMAGE
from fedseal.core.seeds import generator
from fedseal.core.specs import near_matches
from fedseal.data.columns import Columns
from fedseal.defences.pipeline import build_defence
from fedseal.inference.outcome import Outcome, judged
from fedseal.inference.rounds import Rounds

_SUMS = 256
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def attribute(setup: Setup, defence: str, name: str, *, rounds: int = 64, shadows: int = 200) -> tuple[Outcome, ...]:
    """Ask whether the records of a batch have an attribute: all of them do, or none.

    Args:
        setup: data and model.
        defence: its spec.
        name: `bright` of images (lighter than the median public one), `column=value` of a table (a number: above the
            public median, `column=high`), or `chance`, which is drawn and cannot be read.
        rounds: batches asked, half of them with the attribute.
        shadows: rehearsed updates.
    """
    with_it = {"public": _flags(setup, setup.public, name, 0), "private": _flags(setup, setup.private.batch(), name, 1)}
    return _read(setup, defence, f"attribute {name}", with_it, (0.0, 1.0), rounds, shadows)


def property_share(
    setup: Setup, defence: str, label: str, *, rounds: int = 64, shadows: int = 200
) -> tuple[Outcome, ...]:
    """Ask whether most of a client's records are of a class: three in four, or one in four.

    Args:
        setup: data and model.
        defence: its spec.
        label: name of the class.
        rounds: batches asked, half of them with most of it.
        shadows: rehearsed updates.
    """
    if label not in setup.private.classes:
        raise UsageError(f"there is no class {label!r}.", hint=near_matches(label, setup.private.classes))
    place = setup.private.classes.index(label)
    with_it = {"public": setup.public.labels.cpu() == place, "private": setup.private.labels.cpu() == place}
    return _read(setup, defence, f"property: most are {label}", with_it, (0.25, 0.75), rounds, shadows)


def _flags(setup: Setup, batch: Batch, name: str, part: int) -> Tensor:
    """Tell which records have an attribute; the public ones decide where a number is high."""
    if name == "chance":
        return torch.rand(len(batch), generator=generator(setup.scenario.seed, "chance", part)) < 0.5
    if name == "bright" and batch.modality == IMAGE:
        light, usual = (one.inputs.double().flatten(1).mean(1).cpu() for one in (batch, setup.public))
        return light > usual.median()
    columns, (wanted, _, value) = setup.private.encoding, name.partition("=")
    if isinstance(columns, Columns):
        for column, place in columns.blocks():
            if column.name != wanted:
                continue
            entries, usual = batch.inputs[:, place].cpu(), setup.public.inputs[:, place].cpu()
            if column.categories and value in column.categories:
                return entries.argmax(1) == column.categories.index(value)
            if not column.categories and value == "high":
                return entries[:, 0] > usual[:, 0].median()
            raise UsageError(
                f"column {wanted!r} has no value {value!r}.",
                hint=near_matches(value, column.categories) if column.categories else f"Write `{wanted}=high`.",
            )
        raise UsageError(
            f"there is no column {wanted!r}.", hint=near_matches(wanted, [c.name for c in columns.columns])
        )
    raise UsageError(
        f"nothing is known of an attribute {name!r} here.", hint="Images have `bright`; any data, `chance`."
    )


@dataclass(frozen=True)
class _Pool:
    """Records of one side, by whether they have the property."""

    data: Batch
    has: Tensor
    size: int

    def draw(self, share: float, source: torch.Generator) -> Batch:
        """Return a batch of which that share has the property."""
        wanted = round(share * self.size)
        places = []
        for flag, count in ((True, wanted), (False, self.size - wanted)):
            members = torch.nonzero(self.has == flag).flatten()
            places.append(members[torch.randperm(len(members), generator=source)[:count]])
        return self.data.pick(torch.cat(places)[torch.randperm(self.size, generator=source)])


def _read(
    setup: Setup,
    defence: str,
    question: str,
    with_it: dict[str, Tensor],
    shares: tuple[float, float],
    rounds: int,
    shadows: int,
) -> tuple[Outcome, ...]:
    """Teach a reader on rehearsed updates and ask it of clients'."""
    size = setup.scenario.client.batch_size
    pools = {
        "public": _Pool(setup.public, with_it["public"], size),
        "private": _Pool(setup.private.batch(), with_it["private"], size),
    }
    for side, pool in pools.items():
        least = min(int(pool.has.sum()), int((~pool.has).sum()))
        if least < size:
            raise UsageError(
                f"of the {side} records {least} are on one side of `{question}`, and a batch needs {size}.",
                hint="Use a smaller batch, more data, or ask for something less rare.",
            )
    client = Rounds(setup, defence, setup.wrapped_model(build_defence(defence), defence))
    sets = {}
    for side, count in (("public", shadows), ("private", rounds)):
        sums, flags = [], []
        for number in range(count):
            source = generator(setup.scenario.seed, question, side, number)
            flags.append(number % 2 == 1)
            own = pools[side].draw(shares[number % 2], source)
            sums.append(_sums(client.update(own, question, side, number)))
        sets[side] = torch.stack(sums), torch.tensor(flags)
    values = _Reader(*sets["public"])(sets["private"][0])
    return (judged(question, defence, "rehearsed", values.tolist(), sets["private"][1].tolist()),)


def _sums(update: Tensor) -> Tensor:
    """Return fixed random sums of an update's direction, and its norm's logarithm."""
    norm = update.norm().clamp(min=1e-300)
    if len(update) <= _SUMS:
        return torch.cat([update / norm, norm.log().view(1)])
    source = generator(0, "random sums", len(update))
    places = torch.randint(_SUMS, (len(update),), generator=source)
    signs = torch.randint(2, (len(update),), generator=source).double() * 2 - 1
    sums = torch.zeros(_SUMS, dtype=torch.float64).index_add_(0, places, (update / norm).cpu() * signs)
    return torch.cat([sums, norm.cpu().log().view(1)])


class _Reader:
    """Ridge regression on standardised sums."""

    def __init__(self, sums: Tensor, flags: Tensor) -> None:
        self._mean, self._spread = sums.mean(0), sums.std(0).clamp(min=1e-12)
        self._known, wanted = self._scaled(sums), flags.double() * 2 - 1
        kernel = self._known @ self._known.T / self._known.shape[1]
        values, vectors = torch.linalg.eigh(kernel)
        best = (float("inf"), torch.zeros_like(wanted))
        for ridge in _RIDGES:
            inverse = (vectors / (values.clamp(min=0) + ridge)) @ vectors.T
            weights = inverse @ wanted
            left_out = float((weights / inverse.diagonal()).square().mean())
            best = min(best, (left_out, weights), key=lambda pair: pair[0])
        self._weights = best[1]

    def _scaled(self, sums: Tensor) -> Tensor:
        return (sums - self._mean) / self._spread

    def __call__(self, sums: Tensor) -> Tensor:
        return (self._scaled(sums) @ self._known.T / self._known.shape[1]) @ self._weights
