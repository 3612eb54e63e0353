"""NVFlare: a DXO filter that applies a fedseal defence to what a client sends. Needs the extra `nvflare`.

    recipe.add_client_output_filter(DefenceFilter("topk:ratio=0.9"), tasks=["train"])

NVFlare hands a filter the finished result, so the defence must act on the update alone, and the client must send
weight differences (`TransferType.DIFF` or `ParamsType.DIFF`): whole weights are refused, which makes NVFlare drop the
result rather than let it pass unprotected. Statistics of batch normalisation are sent as no change. State lives in the
filter for the length of a job, one defence per client.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise ImportError("fedseal.nvflare needs NVFlare: pip install 'fedseal[nvflare]'") from error

from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import needs_training, refuse_joint, seal_update, travelling

COST = "fedseal_cost"
"""Key of the cost in the DXO's meta data."""


class DefenceFilter(DXOFilter):  # type: ignore[misc]
    """Seals the weight differences a client sends.

    Args:
        defence: a spec such as `topk:ratio=0.9`; one that acts on the update.
        learning_rate: of the client's steps, for defences that ask.
        seed: makes the noise reproducible, for experiments only; by default the operating system seeds it.
    """

    def __init__(self, defence: str, learning_rate: float = 0.1, seed: int | None = None) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        built = build_defence(defence)
        refuse_joint(built, "NVFlare's own secure aggregation")
        early = needs_training(built)
        if early:
            raise CapabilityError(
                f"{', '.join(early)} acts while the client trains, and a filter sees finished results only.",
                hint="Choose a defence of the update, such as topk, dgp or gaussian.",
            )
        self.defence = defence  # NVFlare writes the constructor's arguments into the job by these names
        self.learning_rate = learning_rate
        self.seed = seed
        self._clients: dict[str, Defence] = {}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return the result with sealed differences; results that hold no model are left alone."""
        if dxo.data_kind == DataKind.WEIGHTS:
            raise InputError(
                "the client sends whole weights, of which no defence can tell the update.",
                hint="Send differences: params_transfer_type=TransferType.DIFF.",
            )
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            return None
        client = str(fl_ctx.get_identity_name())
        number = int(
            shareable.get_header(AppConstants.CURRENT_ROUND) or fl_ctx.get_prop(AppConstants.CURRENT_ROUND) or 0
        )
        defence = self._clients.setdefault(client, build_defence(self.defence))
        change = {name: _tensor(value, name) for name, value in dxo.data.items()}
        names = travelling(change)
        sealed = seal_update(
            Update({name: change[name] for name in names}, "delta"),
            defence,
            generator(None) if self.seed is None else generator(self.seed, "nvflare", client, number),
            before={name: torch.zeros_like(change[name]) for name in names},
            round_number=number,
            client=client,
            learning_rate=self.learning_rate,
        )
        dxo.data = {
            name: _like(sealed.update.tensors.get(name, torch.zeros_like(tensor)), dxo.data[name])
            for name, tensor in change.items()
        }
        cost = asdict(sealed.cost)
        dxo.set_meta_prop(COST, {key: value for key, value in cost.items() if isinstance(value, int | float)})
        return dxo


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    raise InputError(f"{name!r} is {type(value).__name__}, neither a tensor nor an array.", hint="Send tensors.")


def _like(tensor: Tensor, value: Any) -> Any:
    return tensor if isinstance(value, Tensor) else tensor.cpu().numpy()
