"""Between NVFlare's data exchange objects and named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from fedseal.core.errors import InputError


def tensors_of(data: Mapping[str, Any], what: str) -> dict[str, Tensor]:
    """Return the tensors of a DXO's data, or refuse what is none."""
    return {name: _tensor(value, f"{what}: {name!r}") for name, value in data.items()}


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    raise InputError(f"{what} is {type(value).__name__}, neither a tensor nor an array.", hint="Send tensors.")


def like(tensor: Tensor, value: Any) -> Any:
    """Return a tensor as the kind of array that `value` is."""
    return tensor if isinstance(value, Tensor) else tensor.cpu().numpy()


def refuse_whole_weights(dxo: DXO) -> None:
    """Refuse a result of which no defence could tell the update."""
    if dxo.data_kind == DataKind.WEIGHTS:
        raise InputError(
            "the client sends whole weights, of which no defence can tell the update.",
            hint="Send differences: params_transfer_type=TransferType.DIFF.",
        )


def round_of(shareable: Shareable, context: FLContext) -> int:
    """Return the server's number of the round, from 0."""
    found = shareable.get_header(AppConstants.CURRENT_ROUND)
    return int(found if found is not None else context.get_prop(AppConstants.CURRENT_ROUND) or 0)


def client_of(context: FLContext) -> str:
    """Return the name of the site this process is."""
    return str(context.get_identity_name())
