"""`GuardFilter`: the server's door. What clients send is decoded, checked, and if asked recorded, before averaging.

A result with values that are no numbers, foreign names, shapes or types, a corrupted payload, an update that is larger
than allowed, or an old one again is refused: NVFlare counts its sender as failed in this round, and the log names it.
What is merely much larger than the others', or weighted by far more steps, is scaled down and its sender named; as a
filter sees one result at a time, the others' are those of the last round in which three came. `SentModel`, on the way
out, remembers what the server sends, which the guard holds results to.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from pydantic import ValidationError
from torch import Tensor

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.observation import Update
from fedseal.core.tensors import check_finite
from fedseal.federation.limits import OUTLIER, Limits, norm_of
from fedseal.federation.posthoc import travelling
from fedseal.federation.replays import UpdateHistory
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.nvflare.exchange import like, refuse_whole_weights, round_of, tensors_of
from fedseal.nvflare.wire import LIMIT, PAYLOAD, unpacked

SENT = "fedseal_sent"
"""Property of NVFlare's context that holds the model the server sent last; it never leaves the process."""

_FEWEST = 3
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
        max_norm: L2 norm of the largest update that is accepted; 0 takes ten times the model's own, given `SentModel`.
        max_steps: most steps a client may be weighted by; 0 cuts at 25 times the last round's median.
        outlier: an update this many times the median norm of the last round is scaled down to that; 0 for never.
        record: directory for `.update.safetensors` files, for `fedseal audit-update`; "" for none. Needs `SentModel`.
        facts: what the server knows of all updates: `learning_rate`, `local_steps`, `batch_size`, `input_shape`, ...
    """

    def __init__(
        self,
        max_norm: float = 0.0,
        record: str = "",
        facts: dict[str, Any] | None = None,
        max_steps: float = 0.0,
        outlier: float = OUTLIER,
    ) -> None:
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
        self.max_steps = max_steps
        self.outlier = outlier
        self._limits = Limits(max_norm or None, max_steps or None, outlier or None)
        self._history = UpdateHistory()
        self._seen: dict[int, list[tuple[float, float]]] = {}

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
            change = self._cut_down(dxo, change, client, number)
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
        if sent is not None or self.max_norm:
            self._limits.check(norm_of(moving), self._limits.bound(sent or {}), _steps(dxo))
        self._history.admit(client, number, moving)
        if self.record and sent is not None:
            facts = self._facts.model_copy(update={"round": number, "client": client})
            write_update(Path(self.record), RecordedUpdate(Update(moving, "delta"), sent, facts))
        return change

    def _cut_down(self, dxo: DXO, change: dict[str, Tensor], client: str, number: int) -> dict[str, Tensor]:
        """Return a change no larger than the last round's lets it be, with its weight cut likewise."""
        moving = {name: change[name] for name in travelling(change)}
        size, steps = norm_of(moving), _steps(dxo)
        whole = [one for one, seen in self._seen.items() if one < number and len(seen) >= _FEWEST]
        earlier = self._seen[max(whole)] if whole else []
        norms = self._limits.norm_cap([one for one, _ in earlier])
        weights = self._limits.weight_cap([one for _, one in earlier])
        self._seen.setdefault(number, []).append((min(size, norms), min(steps, weights)))
        self._seen = {one: seen for one, seen in self._seen.items() if one >= max(whole, default=0)}
        if steps > weights:
            _LOG.warning("round %d: client %s claims %.4g steps, %.4g are counted.", number, client, steps, weights)
            dxo.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, weights)
        if size <= norms:
            return change
        _LOG.warning("round %d: client %s's update of norm %.4g is scaled down to %.4g.", number, client, size, norms)
        return {name: tensor * (norms / size) if name in moving else tensor for name, tensor in change.items()}


def _steps(dxo: DXO) -> float:
    """Return what NVFlare weights a result by; one that is no positive number is refused."""
    steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
    if isinstance(steps, bool) or not isinstance(steps, int | float) or not 0 < steps < math.inf:
        raise InputError(f"the result's number of steps is {steps!r}, not a positive number.")
    return float(steps)


def _check_fits(change: dict[str, Tensor], sent: dict[str, Tensor]) -> None:
    for name, tensor in change.items():
        if name not in sent:
            raise InputError(f"tensor {name!r} is no part of the model that was sent.")
        if tensor.shape != sent[name].shape:
            raise InputError(
                f"tensor {name!r} has shape {list(tensor.shape)}, the model's is {list(sent[name].shape)}."
            )
