"""What a server makes of its clients' updates: it checks them, averages them, and steps.

The mean is accumulated as uploads arrive, so that memory does not grow with the clients. The step is that of FedAvgM
(Hsu, Qi and Brown 2019): momentum on the averaged change; without momentum and with learning rate 1 it is FedAvg
(McMahan et al., AISTATS 2017, Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedseal.core.errors import InputError
from fedseal.core.observation import Update, UpdateKind
from fedseal.core.tensors import Tensors, check_finite, check_like


def check_upload(tensors: Tensors, model: nn.Module) -> None:
    """Refuse an upload whose names, shapes or dtypes are not the model's, or that holds NaN or infinity."""
    check_like(tensors, {name: p for name, p in model.named_parameters() if p.requires_grad}, "upload")
    check_finite(tensors, "upload")


class RunningMean:
    """A weighted mean of named tensors, in the memory of one of them; half precision is added up in single."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Tensors, weight: float) -> None:
        """Take one more member, with a positive weight."""
        if not self._sum:
            self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
            self._sum = {name: _single(tensor.detach()) * weight for name, tensor in tensors.items()}
        else:
            for name, total in self._sum.items():
                total.add_(tensors[name], alpha=weight)
        self.weight += weight

    def value(self) -> dict[str, Tensor]:
        """Return the mean of what was added."""
        if not self.weight:
            raise InputError("there are no updates to aggregate.", hint="At least one client must answer.")
        return {name: (total / self.weight).to(self._dtypes[name]) for name, total in self._sum.items()}


def mean_update(updates: Sequence[Update]) -> Update:
    """Return the plain mean of updates: all a server learns under ideal secure aggregation."""
    mean = RunningMean()
    for update in updates:
        if update.kind != updates[0].kind:
            raise InputError("gradients and weight changes cannot be aggregated together.")
        check_like(update.tensors, updates[0].tensors, "aggregate")
        mean.add(update.tensors, 1.0)
    return updates[0] if len(updates) == 1 else Update(mean.value(), updates[0].kind if updates else "gradient")


def _single(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class ServerOptimiser:
    """Applies averaged updates to the global model.

    A gradient is stepped along with the clients' learning rate, as each client's single step would have been, so that
    FedSGD and FedAvg with one local step are the same training. An upload that is a step already, with a size of its
    own (`Traits.rescales`), is taken as it is: neither learning rate nor momentum has a meaning for it.

    Args:
        learning_rate: factor on the averaged change.
        momentum: share of the last change kept.
        client_learning_rate: of the clients' steps.
    """

    def __init__(self, learning_rate: float, momentum: float, client_learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.client_learning_rate = client_learning_rate
        self._velocity: dict[str, Tensor] = {}

    def step(self, model: nn.Module, aggregate: Tensors, kind: UpdateKind, *, is_step: bool = False) -> None:
        """Move the model's parameters by one aggregate, which points downhill if it is a weight change."""
        if is_step:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in aggregate:
                        parameter.add_(aggregate[name].to(parameter), alpha=1.0 if kind == "delta" else -1.0)
            return
        scale = 1.0 if kind == "delta" else -self.client_learning_rate
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in aggregate:
                    continue
                change = aggregate[name].to(parameter) * scale
                if self.momentum:
                    last = self._velocity.get(name)
                    change = self._velocity[name] = change if last is None else last * self.momentum + change
                parameter.add_(change, alpha=self.learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the momentum."""
        return dict(self._velocity)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._velocity = dict(state)
