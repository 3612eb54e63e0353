"""Accuracy of recovered and of guessed labels: an attacker recovers which labels a batch holds, not their order."""

from __future__ import annotations

from collections import Counter

import torch
from scipy import special
from torch import Tensor

from fedseal.core.errors import InputError


def label_accuracy(labels: Tensor, guesses: Tensor) -> float:
    """Return the share of instances guessed right: the size of the multiset intersection divided by B.

    Counting instances and not classes keeps repeated labels honest: {3, 3, 3, 5} against {3, 5, 5, 5} is 2 of
        4.

    Args:
        labels: the true ones, integers [B].
        guesses: integers [B]; more guesses than labels would be free tries, so the counts must agree.
    """
    for tensor, what in ((labels, "labels"), (guesses, "guesses")):
        if tensor.ndim != 1 or tensor.is_floating_point():
            raise InputError(
                f"label accuracy: {what} must be integers [B], got {tensor.dtype} {list(tensor.shape)}.",
                hint="Take the argmax of soft labels first.",
            )
    if len(labels) != len(guesses) or len(labels) == 0:
        raise InputError(
            f"label accuracy: {len(guesses)} guesses for {len(labels)} labels.",
            hint="Give exactly one guess per label, and at least one.",
        )
    return (Counter(labels.tolist()) & Counter(guesses.tolist())).total() / len(labels)


def flag_accuracy(labels: Tensor, guesses: Tensor) -> float | None:
    """Return the share of flags [B, K] guessed right, image by image; None for values, which are never just right."""
    if labels.ndim != 2 or guesses.shape != labels.shape:
        raise InputError(f"flags are [B, K], got {list(labels.shape)} and guesses {list(guesses.shape)}.")
    if not bool(((labels == 0) | (labels == 1)).all()):
        return None
    return float((labels == guesses).double().mean())


def guessed_flags(public: Tensor) -> float | None:
    """Return the accuracy of guessing each flag by what is commoner in public ones [N, K]; None for values."""
    if public.ndim != 2 or not bool(((public == 0) | (public == 1)).all()):
        return None
    share = public.double().mean(0)
    return float(torch.maximum(share, 1 - share).mean())


def guessed_accuracy(frequencies: Tensor, batch_size: int) -> float:
    """Return the accuracy expected of the best guess by class frequencies alone: what labels cost to guess.

    The guess gives each class the instances that pay most, one after the other: the k-th guess of class c is right with
    probability P(Bin(B, f_c) >= k).

    Args:
        frequencies: of the classes in public data, [classes], not negative; only their shares matter.
        batch_size: B, labels to guess.
    """
    shares = frequencies.double().clamp(min=0)
    if batch_size < 1 or float(shares.sum()) <= 0:
        raise InputError(
            f"guessing needs a batch and class frequencies, got {batch_size} and {frequencies.tolist()}.",
            hint="Count the labels of public data.",
        )
    shares = shares / shares.sum()
    k = torch.arange(batch_size, dtype=torch.float64)
    gains = special.bdtrc(k[None, :].numpy(), batch_size, shares[:, None].numpy())  # P(Bin > k), k from 0
    return min(
        1.0, float(torch.from_numpy(gains).flatten().sort(descending=True).values[:batch_size].sum()) / batch_size
    )
