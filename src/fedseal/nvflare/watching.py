"""`WatchFilter`: reads updates about to leave, and acts by rules on what it finds; a client's last output filter.

`fedseal.watch` and docs/watching.md say what is read. The filter finds model, batches and public images by reference,
as a job is a file of plain values.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from fedseal.core.config_file import configure
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.plugins import load_reference
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.federation.client import RoundConfig
from fedseal.nvflare.exchange import client_of, like, tensors_of
from fedseal.watch.export import JsonLines
from fedseal.watch.noise import noisier, raised
from fedseal.watch.readings import Watched
from fedseal.watch.rules import WatchRules
from fedseal.watch.watch import Pace, Watch

READINGS = "fedseal_readings"
"""Key of the readings in the DXO's meta data."""
RECEIVED = "fedseal_received"


class WatchFilter(DXOFilter):  # type: ignore[misc]
    """Reads what a client is about to send. On the way in, as an input filter, it takes the weights that were received.

    Args:
        model: `package.module:attribute` that builds the architecture.
        batches: `package.module:function` of NVFlare's context that returns the private batches, one per local step.
        public: spec of a data set that no client holds.
        defence: spec of what seals the update.
        learning_rate: of the client's steps.
        rules: of `fedseal.watch.rules`, as plain values.
        lines: file for readings as JSON lines; "" for none.
        agrees: whether this client is read.
        seed: makes draws reproducible, for experiments only.
    """

    def __init__(
        self,
        model: str,
        batches: str,
        public: str,
        defence: str = "none",
        learning_rate: float = 0.1,
        rules: dict[str, Any] | None = None,
        lines: str = "",
        agrees: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)
        self._rules = configure(rules, WatchRules, {}, command="watch")
        self.model = model
        self.batches = batches
        self.public = public
        self.defence = defence
        self.learning_rate = learning_rate
        self.rules = rules
        self.lines = lines
        self.agrees = agrees
        self.seed = seed
        self._pace = Pace()
        self._last = time.perf_counter()

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Keep received weights; read a result before it leaves."""
        if dxo.data_kind == DataKind.WEIGHTS:
            fl_ctx.set_prop(RECEIVED, tensors_of(dxo.data, "model"), private=True, sticky=True)
            return None
        if dxo.data_kind != DataKind.WEIGHT_DIFF or not self.agrees:
            return None
        now = time.perf_counter()
        pace, self._last = self._pace.worked(now - self._last), now
        change = tensors_of(dxo.data, "result")
        sinks = [JsonLines(self.lines)] if self.lines else []
        watch = Watch(
            self._rules, sinks, client=client_of(fl_ctx),
            source=None if self.seed is None else generator(self.seed, "watch", pace.round),
        )  # fmt: skip
        report = None
        if watch.is_due(pace):
            report = watch.look(self._watched(change, fl_ctx), pace.round)
            pace = pace.read(time.perf_counter() - now)
            if report.action == "raise sigma" and report.rule is not None:
                pace = replace(pace, extra=raised(self.defence, change, pace.extra, report.rule.by))
        self._pace = pace
        if report is not None and report.action == "refuse":
            raise InputError("the client's own watch refused to let this update leave.")
        if pace.extra > 0:
            source = generator(None) if self.seed is None else generator(self.seed, "watch noise", pace.round)
            noisy = noisier({name: t for name, t in change.items() if t.is_floating_point()}, pace.extra, source)
            dxo.data = {name: like(noisy.get(name, tensor), dxo.data[name]) for name, tensor in change.items()}
        if report is not None and self._rules.tell:
            dxo.set_meta_prop(READINGS, report.figures)
        return dxo

    def _watched(self, change: dict[str, Tensor], fl_ctx: FLContext) -> Watched:
        received = fl_ctx.get_prop(RECEIVED)
        if received is None:
            raise InputError(
                "the watch does not know the weights that were received.",
                hint="Add the same filter by add_client_input_filter too.",
            )
        model = load_reference(self.model)()
        own = model.state_dict()
        model.load_state_dict({name: torch.as_tensor(received[name]).to(own[name].dtype) for name in own})
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        batches = list(load_reference(self.batches)(fl_ctx))
        config = RoundConfig(learning_rate=self.learning_rate)
        update = Update({name: change[name] for name in names}, "delta")
        return Watched(model, update, batches, config, self.defence, DATASETS.build(self.public).batch())
