"""What happens to the running statistics of batch normalisation, which describe the private data.

- `local`: they stay on the client, which gets its own back with every model it is sent, to train and to evaluate on.
  The server's model keeps its first ones and is to be evaluated on clients, or with batch statistics.
- `aggregate`: they leave in clear and are averaged, as without fedseal; no defence covers them.
- `protect`: they are part of the update that is sealed. Noise on them costs accuracy.
"""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

from flwr.app import ArrayRecord, Context, Message
from torch import Tensor

from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors
from fedseal.federation.posthoc import BATCH_NORM_BUFFERS

StatisticsPolicy: TypeAlias = Literal["local", "aggregate", "protect"]
POLICIES: tuple[StatisticsPolicy, ...] = ("local", "aggregate", "protect")

_KEPT = "fedseal.statistics"
_LEAST_VARIANCE = 1e-5
_LOG = logging.getLogger("fedseal.flower")
_SAID: set[str] = set()
_COSTS: dict[StatisticsPolicy, str] = {
    "local": "stay on this client; the server's model keeps its first ones, so evaluate on clients or with batch "
    "statistics",
    "aggregate": "leave in clear: they describe the private data and the defence does not cover them",
    "protect": "are sealed with the update: what the defence does to them costs accuracy",
}


def checked_policy(value: object) -> StatisticsPolicy:
    """Return a policy, or refuse what is none."""
    found = next((policy for policy in POLICIES if policy == value), None)
    if found is None:
        raise UsageError(
            f"there is no policy {value!r} for batch normalisation.", hint="Use local, aggregate, protect."
        )
    return found


def statistics_of(state: Tensors) -> list[str]:
    """Return the names of running means and variances; counters are none."""
    return [name for name, tensor in state.items() if tensor.is_floating_point() and _is_statistic(name)]


def as_statistics(tensors: Tensors) -> dict[str, Tensor]:
    """Return statistics that layers can divide by: after noise, a variance may have left the positive numbers."""
    return {
        name: tensor.clamp(min=_LEAST_VARIANCE)
        if name.endswith("running_var") and bool((tensor <= 0).any())
        else tensor
        for name, tensor in tensors.items()
    }


def say_cost(policy: StatisticsPolicy, state: Tensors) -> None:
    """Say once in a process what the policy means for a model that has statistics."""
    names = statistics_of(state)
    if names and policy not in _SAID:
        _SAID.add(policy)
        values = sum(state[name].numel() for name in names)
        level = logging.WARNING if policy == "aggregate" else logging.INFO
        _LOG.log(level, "bn=%r: %d running statistics of batch normalisation %s.", policy, values, _COSTS[policy])


def put_back(message: Message, context: Context) -> None:
    """Give a client its own statistics back, in the model it was just sent."""
    kept = context.state.array_records.get(_KEPT)
    if not kept:
        return
    for key, record in message.content.array_records.items():
        if all(name in record and record[name].shape == array.shape for name, array in kept.items()):
            message.content.array_records[key] = ArrayRecord({**record, **kept})


def keep(context: Context, reply: ArrayRecord) -> None:
    """Keep a client's own statistics for the next model it is sent."""
    own = {name: array for name, array in reply.items() if _is_statistic(name)}
    if own:
        context.state.array_records[_KEPT] = ArrayRecord(own)


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in BATCH_NORM_BUFFERS
