"""The columns of a table and what a model is fed of them: categories as one entry each, numbers scaled to [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_json
from fedseal.core.specs import near_matches

TOLERANCE = 0.319
"""Share of a column's deviation within which a number counts as recovered (TabLeak, Sec. 4)."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: of it.
        categories: its values, if it holds categories; empty for numbers.
        low, high: what becomes 0 and 1, of numbers.
        deviation: of numbers, in their own unit.
        whole: whether all of them are whole.
    """

    name: str
    categories: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    deviation: float = 0.0
    whole: bool = False

    @property
    def width(self) -> int:
        """Entries of an encoded row that are this column's."""
        return len(self.categories) or 1

    def encode(self, values: Sequence[str]) -> Tensor:
        """Return texts of a table as entries [N, width]."""
        if self.categories:
            places = {value: place for place, value in enumerate(self.categories)}
            if unseen := sorted({value for value in values if value not in places}):
                raise InputError(
                    f"column {self.name!r} has no category {unseen[0]!r}.",
                    hint=near_matches(unseen[0], self.categories),
                )
            return torch.nn.functional.one_hot(torch.tensor([places[v] for v in values]), self.width).float()
        numbers = torch.tensor([_number(value, self.name) for value in values], dtype=torch.float64)
        return ((numbers - self.low) / max(self.high - self.low, 1e-300)).float().unsqueeze(1)

    def recoded(self, other: Column, entries: Tensor) -> Tensor:
        """Return entries [N, width] of another column of the same name as this one encodes them."""
        if self.categories:
            said = other.categories or tuple(other.say(row) for row in entries)
            places = entries.argmax(1).tolist() if other.categories else range(len(entries))
            return self.encode([said[place] for place in places])
        if other.categories:
            return self.encode([other.categories[place] for place in entries.argmax(1).tolist()])
        numbers = other.low + entries.double() * (other.high - other.low)
        return ((numbers - self.low) / max(self.high - self.low, 1e-300)).float()

    def say(self, entries: Tensor) -> str:
        """Return what entries [width] stand for, as the table would have it."""
        if self.categories:
            return self.categories[int(entries.argmax())]
        value = self.low + float(entries[0]) * (self.high - self.low)
        return f"{value:.0f}" if self.whole else f"{value:.4g}"

    @property
    def tolerance(self) -> float:
        """How far encoded numbers may differ and count as recovered."""
        return TOLERANCE * self.deviation / max(self.high - self.low, 1e-300)


@dataclass(frozen=True)
class Columns(Encoding):
    """All columns, in order; the target is none of them."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Entries of an encoded row."""
        return sum(column.width for column in self.columns)

    @cached_property
    def identity(self) -> str:
        """The hash of names, categories and scales."""
        return hash_json([[c.name, *c.categories, c.low, c.high, c.deviation, c.whole] for c in self.columns])

    def blocks(self) -> Iterator[tuple[Column, slice]]:
        """Yield every column with its entries."""
        start = 0
        for column in self.columns:
            yield column, slice(start, start + column.width)
            start += column.width

    def describe(self) -> str:
        """Say how many there are of which kind, and what is public of them."""
        kinds = sum(bool(column.categories) for column in self.columns)
        return (
            f"{len(self.columns)} columns, {kinds} of them categories; their names, categories and scales are public, "
            "as whoever designs the model knows them"
        )

    def words(self, inputs: Tensor) -> list[list[str]]:
        """Return rows [N, width] as `column=value` each."""
        return [[f"{column.name}={column.say(row[place])}" for column, place in self.blocks()] for row in inputs.cpu()]

    def show(self, inputs: Tensor) -> list[str]:
        """Return a line per row."""
        return [", ".join(words) for words in self.words(inputs)]

    def right(self, truth: Tensor, guesses: Tensor) -> Tensor:
        """Tell which cells of every guess [K, width] are those of every row [N, width]: [N, K, columns].

        A category is right if it is the likeliest; a number, if it is within `TOLERANCE` deviations.
        """
        parts = []
        for column, place in self.blocks():
            a, b = truth[:, place].double(), guesses[:, place].double().to(truth.device)
            if column.categories:
                parts.append(a.argmax(1)[:, None] == b.argmax(1)[None])
            else:
                parts.append((a - b.T).abs() <= column.tolerance + 1e-7)
        return torch.stack(parts, dim=2)


def _number(text: str, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or abs(value) == float("inf"):
        raise InputError(
            f"column {column!r} holds numbers, and {text!r} is none.",
            hint="Name it under `categorical`, or leave such rows out.",
        )
    return value


def fit_column(name: str, values: Sequence[str], *, categorical: bool, most: int) -> Column:
    """Return the column that holds these values.

    Args:
        name: of it.
        values: as the file has them.
        categorical: whether they are categories although they look like numbers.
        most: categories at most.
    """
    numbers = None if categorical else _numbers(values)
    if numbers is None:
        categories = tuple(sorted(set(values)))
        if len(categories) > most:
            raise InputError(
                f"column {name!r} has {len(categories)} different values that are no numbers, more than {most}.",
                hint=f"Leave it out (`drop={name}`) if it names rows, or raise `most`.",
            )
        return Column(name, categories)
    whole = bool((numbers == numbers.round()).all())
    return Column(name, (), float(numbers.min()), float(numbers.max()), float(numbers.std(unbiased=False)), whole)


def _numbers(values: Sequence[str]) -> Tensor | None:
    """Return texts as numbers; None where one is none."""
    try:
        found = torch.tensor([float(value) for value in values], dtype=torch.float64)
    except ValueError:
        return None
    return found if bool(torch.isfinite(found).all()) else None
