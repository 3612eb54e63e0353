"""What of an app's answer may leave: parameters by name, numbers by name, range and step, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors, flatten
from fedseal.federation.posthoc import travelling
from fedseal.site.policy import LeaveRules
from fedseal.site.refusal import RefusedError


def leaving_tensors(rules: LeaveRules, before: Tensors) -> list[str]:
    """Return the names of what may change: trainable by type, and named by the policy."""
    return [name for name in travelling(before) if any(fnmatchcase(name, pattern) for pattern in rules.tensors)]


def change_of(rules: LeaveRules, before: Tensors, after: Tensors) -> dict[str, Tensor]:
    """Return the weight change an app answers with, or refuse one that does not belong to the model it was sent.

    Args:
        rules: the site's.
        before: the state the server sent.
        after: the state the app answers with; entries that do not travel are not looked at.
    """
    if set(after) != set(before):
        raise RefusedError(
            "the answer's tensors are not those of the model that was sent.",
            detail=f"Missing or foreign: {sorted(set(after) ^ set(before))[:5]}.",
        )
    change = {}
    for name in leaving_tensors(rules, before):
        got, sent = after[name], before[name]
        if got.shape != sent.shape or not got.is_floating_point():
            raise RefusedError(
                "the answer's tensors are not those of the model that was sent.",
                detail=f"{name!r} is {got.dtype} {list(got.shape)}, not {sent.dtype} {list(sent.shape)}.",
            )
        change[name] = got.to(sent.dtype) - sent
        if not bool(torch.isfinite(change[name]).all()):
            raise RefusedError("the answer holds values that are NaN or infinite.", detail=f"In {name!r}.")
    if not change:
        raise RefusedError("no tensor of this model may leave.", detail="See `leave.tensors` of the policy.")
    norm = float(torch.linalg.vector_norm(flatten({name: tensor.double() for name, tensor in change.items()})))
    if rules.max_norm is not None and norm > rules.max_norm:
        raise RefusedError("the update is larger than the site allows.", detail=f"Its norm is {norm:.4g}.")
    return change


def leaving_metrics(rules: LeaveRules, metrics: Mapping[str, object]) -> dict[str, int | float]:
    """Return the numbers that leave, clamped and rounded; what is not named, or no number, is surplus."""
    kept: dict[str, int | float] = {}
    for name, value in metrics.items():
        rule = rules.metrics.get(name)
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if rule is None or not number or not math.isfinite(value):  # type: ignore[arg-type]
            refuse_surplus(rules, f"Metric {str(name)[:80]!r} is not in `leave.metrics`, or is not one finite number.")
            continue
        kept[name] = rule.rounded(float(value))  # type: ignore[arg-type]
    return kept


def refuse_surplus(rules: LeaveRules, detail: str) -> None:
    """Refuse an answer that holds more than may leave, unless the policy has that removed."""
    if rules.surplus == "refuse":
        raise RefusedError("the answer holds more than the site lets out.", detail=detail)
