"""`DetectFilter`: a client's input filter that looks at the model before the client trains on it."""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedseal.core.errors import InputError
from fedseal.nvflare.exchange import tensors_of
from fedseal.site.looking import alarm_of, check_detector
from fedseal.site.policy import DetectorRules

_LOG = logging.getLogger("fedseal.nvflare")


class DetectFilter(DXOFilter):  # type: ignore[misc]
    """Refuses a model that looks like a weapon, or that is not the architecture agreed on.

    Args:
        on_alarm: `refuse` does not train on it, `warn` logs and goes on.
        model: spec or `package.module:attribute` of the architecture; "" tells layers by their shapes.
        input_shape, num_classes: of that model.
        ignore: patterns of layers that are no linear maps, such as embeddings.
    """

    def __init__(
        self,
        on_alarm: str = "refuse",
        model: str = "",
        input_shape: list[int] | None = None,
        num_classes: int | None = None,
        ignore: list[str] | None = None,
    ) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        values: dict[str, Any] = {"on_alarm": on_alarm, "ignore": ignore or []}
        if model:
            values |= {"model": model, "input_shape": input_shape, "num_classes": num_classes}
        self._rules = DetectorRules.model_validate(values)
        check_detector(self._rules)
        self.on_alarm = on_alarm
        self.model = model
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.ignore = ignore

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Look at the weights and change nothing."""
        if dxo.data_kind != DataKind.WEIGHTS:
            return None
        alarm = alarm_of(self._rules, tensors_of(dxo.data, "model"))
        if alarm is None:
            return None
        _LOG.warning("a received model is suspicious: %s", alarm)
        if self._rules.on_alarm == "refuse":
            raise InputError("the model was refused as suspicious.", hint=alarm)
        return None
