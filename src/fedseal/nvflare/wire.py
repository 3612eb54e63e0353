"""`WireEncoder` and `WireDecoder`: an update as one checksummed payload, as small as its defence made it.

The encoder is the client's last output filter, the decoder, or `GuardFilter`, which does the same, the server's first
input filter. NVFlare then carries one array of bytes instead of a dense model.
"""

from __future__ import annotations

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.federation.posthoc import travelling
from fedseal.federation.wire import decode, encode
from fedseal.nvflare.exchange import refuse_whole_weights, tensors_of

PAYLOAD = "fedseal.payload"
LIMIT = 1 << 32
"""Bytes a payload may unpack to, where nobody knows the model's size."""


class WireEncoder(DXOFilter):  # type: ignore[misc]
    """Packs weight differences into a payload; what does not travel is left out."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return the packed result; results that hold no model are left alone."""
        refuse_whole_weights(dxo)
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            return None
        change = tensors_of(dxo.data, "result")
        payload = encode({name: change[name].contiguous() for name in travelling(change)})
        dxo.data = {PAYLOAD: np.frombuffer(payload, np.uint8).copy()}
        return dxo


class WireDecoder(DXOFilter):  # type: ignore[misc]
    """Unpacks payloads into tensors.

    Args:
        limit: bytes a payload may unpack to.
        numpy: whether the server's aggregator takes arrays instead of tensors.
    """

    def __init__(self, limit: int = LIMIT, numpy: bool = False) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        self.limit = limit
        self.numpy = numpy

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return the unpacked result; others are left alone."""
        if dxo.data_kind != DataKind.WEIGHT_DIFF or list(dxo.data) != [PAYLOAD]:
            return None
        change = unpacked(dxo.data[PAYLOAD], self.limit)
        dxo.data = {name: tensor.numpy() if self.numpy else tensor for name, tensor in change.items()}
        return dxo


def unpacked(value: object, limit: int) -> dict[str, Tensor]:
    """Return what a payload holds, or refuse what is none."""
    payload = tensors_of({PAYLOAD: value}, "result")[PAYLOAD]
    if payload.ndim != 1 or payload.element_size() != 1 or payload.is_floating_point():
        raise InputError("the result's payload is not a string of bytes.")
    return dict(decode(payload.numpy().tobytes(), limit=limit))
