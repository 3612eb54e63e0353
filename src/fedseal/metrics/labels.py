"""Accuracy of recovered labels: an attacker recovers which labels a batch holds, not their order."""

from __future__ import annotations

from collections import Counter

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
