"""A defence whose residual is a count: it shows at once whether one was lost, or used twice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedseal import Defence, Info
from fedseal.core.defence import RoundContext
from fedseal.core.privacy import PrivateRelease
from fedseal.core.tensors import Tensors

MULTIPLIER = 10.0


class Counted(Defence):
    """Sends the update as it is, and adds one to every entry of what it keeps."""

    info = Info("count releases in a residual", name="counted")

    def __init__(self) -> None:
        self._residual = torch.zeros(5000)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self._residual = self._residual + 1
        return update

    def releases(self) -> tuple[PrivateRelease, ...]:
        return (PrivateRelease("update", "gaussian", MULTIPLIER),)

    def state_dict(self) -> dict[str, Tensor]:
        return {"residual": self._residual}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._residual = state.get("residual", self._residual)
