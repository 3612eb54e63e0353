"""A labelled table in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import InputError
from fedseal.core.modality import TABLE
from fedseal.core.specs import near_matches
from fedseal.data.columns import Columns, fit_column
from fedseal.data.dataset import Dataset
from fedseal.data.groups import number_owners

MOST_CATEGORIES = 64


@dataclass(frozen=True)
class TableDataset(Dataset):
    """Rows of a table, encoded.

    Attributes:
        name: for reports.
        rows: float32 [N, width] in [0, 1], as `columns` encodes them.
        labels: int64 [N].
        classes: their names.
        columns: what the entries of a row stand for.
        normalisation: none; columns are scaled by their encoding.
        notes: what was done to the table that its owner should know.
        groups: int64 [N], whose a row is; None where every row stands alone.
    """

    name: str
    rows: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    columns: Columns
    normalisation: Normalisation = IDENTITY
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rows.shape != (len(self.labels), self.columns.width) or len(self.labels) == 0:
            raise InputError(
                f"table {self.name!r} needs rows [N, {self.columns.width}] and as many labels, "
                f"got {list(self.rows.shape)} and {list(self.labels.shape)}."
            )

    @property
    def inputs(self) -> Tensor:
        """The encoded rows."""
        return self.rows

    @property
    def modality(self) -> str:
        """A table."""
        return TABLE

    @property
    def encoding(self) -> Columns:
        """The columns."""
        return self.columns

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the rows at `indices` (all, if None)."""
        chosen = slice(None) if indices is None else indices
        return Batch(self.rows[chosen], self.labels[chosen], TABLE)

    def made_like(self, first: Dataset) -> Self:
        """Return the rows as `first` encodes them: its columns in its order, on its scales, with its categories."""
        if not isinstance(first, TableDataset):
            return super().made_like(first)
        own = {column.name: (column, place) for column, place in self.columns.blocks()}
        missing = next((column for column in first.columns.columns if column.name not in own), None)
        if missing is not None:
            raise InputError(
                f"{self.name} has no column {missing.name!r}, which {first.name} has.",
                hint=near_matches(missing.name, list(own)),
            )
        parts = [
            wanted.recoded(own[wanted.name][0], self.rows[:, own[wanted.name][1]]) for wanted in first.columns.columns
        ]
        if unseen := set(self.classes) - set(first.classes):
            raise InputError(f"{self.name} has the class {sorted(unseen)[0]!r}, which {first.name} has not.")
        labels = torch.tensor([first.classes.index(name) for name in self.classes])[self.labels]
        return replace(self, rows=torch.cat(parts, 1), labels=labels, classes=first.classes, columns=first.columns)

    def subset(self, indices: Tensor) -> Self:
        """Return the table restricted to `indices`."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, rows=self.rows[indices], labels=self.labels[indices], groups=groups)


def as_table(
    name: str,
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    target: str,
    *,
    categorical: Sequence[str] = (),
    group: str | None = None,
    most: int = MOST_CATEGORIES,
    notes: tuple[str, ...] = (),
) -> TableDataset:
    """Encode the texts of a table.

    Args:
        name: for reports.
        header: names of the columns.
        cells: the rows, as many texts each.
        target: the column to be learnt; its values are the classes.
        categorical: columns of numbers that are categories.
        group: column that says whose a row is; it is not fed to the model.
        most: categories of a column, at most.
        notes: for the owner.
    """
    by_name = dict(zip(header, zip(*cells, strict=True), strict=True))
    classes = tuple(sorted(set(by_name[target]), key=_sortable))
    if not 2 <= len(classes) <= most:
        raise InputError(
            f"the target {target!r} has {len(classes)} different values.",
            hint=f"It must have 2 to {most}: those of a class to be told.",
        )
    fed = [column for column in header if column not in (target, group)]
    columns = Columns(tuple(fit_column(one, by_name[one], categorical=one in categorical, most=most) for one in fed))
    if not fed:
        raise InputError(f"table {name!r} has no column beside its target.", hint="Give it something to learn from.")
    rows = torch.cat([column.encode(by_name[column.name]) for column in columns.columns], dim=1)
    labels = torch.tensor([classes.index(value) for value in by_name[target]])
    groups = None if group is None else number_owners(by_name[group])
    return TableDataset(name, rows, labels, classes, columns, notes=notes, groups=groups)


def _sortable(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
