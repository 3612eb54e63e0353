"""Whose a sample is, across data sets.

What is read from two files has one number for one owner, and no test set shares an owner with the data trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.data.dataset import Dataset

Train = TypeVar("Train", bound=Dataset)
Test = TypeVar("Test", bound=Dataset)


def number_owners(owners: Sequence[str]) -> Tensor:
    """Return a number for each owner, int64 [N]: the first bytes of its name's SHA-256, so the same in every file."""
    numbers = {owner: _number(owner) for owner in set(owners)}
    return torch.tensor([numbers[owner] for owner in owners], dtype=torch.int64)


def _number(owner: str) -> int:
    digest = hashlib.sha256(owner.strip().encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def keep_apart(train: Train, test: Test) -> tuple[Train, Test]:
    """Return both without samples of the test set whose group is in the training data, and a note on the latter.

    A model is measured, and an attacker learns how data look, on the test set: a patient in both would flatter the one
    and hand the other what it seeks. Where only one of the two says whose its samples are, nobody can tell, and they
    are refused.
    """
    if train.groups is None and test.groups is None:
        return train, test
    if train.groups is None or test.groups is None:
        known, unknown = (train, test) if test.groups is None else (test, train)
        raise InputError(
            f"{known.name} says whose its samples are and {unknown.name} does not, so nobody can tell whether training "
            "and test share somebody.",
            hint="Give `group` for both, or for none.",
        )
    shared = torch.isin(test.groups, train.groups)
    if not bool(shared.any()):
        return train, test
    if bool(shared.all()):
        raise InputError(
            f"every group of the test set {test.name} is in the training data {train.name} too, which leaves nothing "
            "to test on.",
            hint="Use a test set of other people; groups of data of your own have one number for one owner in both.",
        )
    note = f"{int(shared.sum())} of {len(test)} test samples belong to groups of the training data and are left out"
    apart = test.subset(torch.nonzero(~shared).flatten())
    return replace(train, notes=(*train.notes, note)), apart  # type: ignore[type-var]
