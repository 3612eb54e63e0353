"""Rounds of clients on batches of one's choice: what a server sees of them, defended as the scenario says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedseal.audit.exchange import Exchange, TargetStreams, first_round
from fedseal.audit.setup import Setup
from fedseal.core.batch import Batch
from fedseal.core.defence import Loss, RoundShape
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.tensors import flatten
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import sample_gradients
from fedseal.federation.loss import client_loss


@dataclass(frozen=True)
class Rounds:
    """One defended client of a scenario.

    Attributes:
        setup: data, and how clients train.
        defence: its spec.
        model: as it is sent.
    """

    setup: Setup
    defence: str
    model: nn.Module

    @cached_property
    def shape(self) -> RoundShape:
        """How much data is behind an update."""
        shape = self.setup.shape(build_defence(self.defence))
        if shape.clients != 1 or shape.local_steps != 1:
            raise UsageError(
                f"inference asks one client of one step, and {self.defence} makes it {shape.clients} of "
                f"{shape.local_steps}.",
                hint="Leave `aggregate` and `local_steps` at 1, and defences that change them out.",
            )
        return shape

    @cached_property
    def _known(self) -> Knowledge:
        return self.setup.granted(build_defence(self.defence), self.defence)

    def update(self, own: Batch, *path: str | int) -> Tensor:
        """Play one round on a batch; return what is received, as one vector. `path` names its randomness."""
        like = next(self.model.parameters())
        held = own.to(like.device, like.dtype)
        streams = TargetStreams(self.setup.scenario.seed, (self.defence, "inference", *path))
        played = first_round(
            [held], self.shape, self.setup.config, build_defence(self.defence), streams, "-".join(map(str, path))
        )
        seen = Exchange(played, lambda statistics: self._known)([self.model])
        sign = 1.0 if seen.update.kind == "gradient" else -1.0
        return sign * flatten(seen.update.tensors).double()

    def gradients(self, records: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradient [N, P] and the loss [N] of every record by itself, at the model that is sent."""
        like = next(self.model.parameters())
        each = sample_gradients(self.model, records.to(like.device, like.dtype), self._loss)
        stacked = torch.cat([tensor.flatten(1) for tensor in each.values()], dim=1).double()
        return stacked, self.losses(records)

    def losses(self, records: Batch) -> Tensor:
        """Return the loss [N] of every record by itself."""
        like = next(self.model.parameters())
        records = records.to(like.device, like.dtype)
        with torch.no_grad():
            each = [self._loss(self.model, records.pick(slice(i, i + 1))) for i in range(len(records))]
        return torch.stack(each).double()

    @property
    def _loss(self) -> Loss:
        config = self.setup.config
        return client_loss(config.normalisation, config.loss_reduction, config.loss)
