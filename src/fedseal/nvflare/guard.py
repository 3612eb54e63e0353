"""`GuardFilter`: the server's door. What clients send is decoded, checked, and if asked recorded, before averaging.

A result with values that are no numbers, foreign names, shapes or types, a corrupted payload, an update that is larger
than allowed, or an old one again is refused: NVFlare counts its sender as failed in this round, and the log names it.
`SentModel`, on the way out, remembers what the server sends, which the guard holds results to.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from pydantic import ValidationError
from torch import Tensor

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.observation import Update
from fedseal.core.tensors import check_finite, flatten
from fedseal.federation.posthoc import travelling
from fedseal.federation.replays import UpdateHistory
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.nvflare.exchange import like, refuse_whole_weights, round_of, tensors_of
from fedseal.nvflare.wire import LIMIT, PAYLOAD, unpacked

SENT = "fedseal_sent"
"""Property of NVFlare's context that holds the model the server sent last; it never leaves the process."""

_LOG = logging.getLogger("fedseal.nvflare")


class SentModel(DXOFilter):  # type: ignore[misc]
    """Remembers the model on its way to clients; a server's output filter."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Keep the weights and change nothing."""
        if dxo.data_kind == DataKind.WEIGHTS:
            fl_ctx.set_prop(SENT, tensors_of(dxo.data, "model"), private=True, sticky=True)
        return None


class GuardFilter(DXOFilter):  # type: ignore[misc]
    """Checks, and keeps, what clients send; a server's input filter.

    Args:
        max_norm: L2 norm of the largest update that is accepted; 0 for no limit.
        record: directory for `.update.safetensors` files, for `fedseal audit-update`; "" for none. Needs `SentModel`.
        facts: what the server knows of all updates: `learning_rate`, `local_steps`, `batch_size`, `input_shape`, ...
    """

    def __init__(self, max_norm: float = 0.0, record: str = "", facts: dict[str, Any] | None = None) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        try:
            self._facts = UpdateFacts(kind="delta", round=0, client="0", **(facts or {}))
        except (ValidationError, TypeError) as error:
            raise UsageError(
                f"these facts cannot be recorded: {error}", hint="See fedseal.federation.update_file.UpdateFacts."
            ) from error
        self.max_norm = max_norm
        self.record = record
        self.facts = facts
        self._history = UpdateHistory()

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return the result as tensors if it is sound."""
        if dxo.data_kind not in (DataKind.WEIGHT_DIFF, DataKind.WEIGHTS):
            return None
        peer = fl_ctx.get_peer_context()
        client = str(peer.get_identity_name()) if peer is not None else "unknown"
        number = round_of(shareable, fl_ctx) + 1
        try:
            refuse_whole_weights(dxo)
            change = self._sound(dxo, fl_ctx.get_prop(SENT), client, number)
        except FedsealError as error:
            _LOG.warning("round %d: client %s is refused: %s", number, client, error.message)
            raise
        sample = next(iter(dxo.data.values()))
        packed = list(dxo.data) == [PAYLOAD]
        dxo.data = {name: tensor if packed else like(tensor, sample) for name, tensor in change.items()}
        return dxo

    def _sound(self, dxo: DXO, sent: dict[str, Tensor] | None, client: str, number: int) -> dict[str, Tensor]:
        size = LIMIT if sent is None else sum(tensor.numel() * tensor.element_size() for tensor in sent.values())
        packed = list(dxo.data) == [PAYLOAD]
        change = unpacked(dxo.data[PAYLOAD], size) if packed else tensors_of(dxo.data, "result")
        moving = {name: change[name] for name in travelling(change)}
        if not moving:
            raise InputError("the result holds no update.")
        check_finite({name: tensor for name, tensor in change.items() if tensor.is_floating_point()}, "result")
        if sent is not None:
            _check_fits(change, sent)
        norm = float(torch.linalg.vector_norm(flatten({name: tensor.double() for name, tensor in moving.items()})))
        if self.max_norm and norm > self.max_norm:
            raise InputError(f"the update's norm is {norm:.4g}, {self.max_norm:g} is allowed.")
        self._history.admit(client, number, moving)
        if self.record and sent is not None:
            facts = self._facts.model_copy(update={"round": number, "client": client})
            write_update(Path(self.record), RecordedUpdate(Update(moving, "delta"), sent, facts))
        return change


def _check_fits(change: dict[str, Tensor], sent: dict[str, Tensor]) -> None:
    for name, tensor in change.items():
        if name not in sent:
            raise InputError(f"tensor {name!r} is no part of the model that was sent.")
        if tensor.shape != sent[name].shape:
            raise InputError(
                f"tensor {name!r} has shape {list(tensor.shape)}, the model's is {list(sent[name].shape)}."
            )
