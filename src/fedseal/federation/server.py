"""What a server makes of its clients' updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import check_like


def mean_update(updates: Sequence[Update]) -> Update:
    """Return the plain mean of updates: all a server learns under ideal secure aggregation (ATTACKS.md 15)."""
    if not updates:
        raise InputError("there are no updates to aggregate.", hint="At least one client must answer.")
    first = updates[0]
    for update in updates[1:]:
        if update.kind != first.kind:
            raise InputError("gradients and weight changes cannot be aggregated together.")
        check_like(update.tensors, first.tensors, "aggregate")
    means = {name: torch.stack([u.tensors[name] for u in updates]).mean(0) for name in first.tensors}
    return Update(means, first.kind)
