"""`DefenceFilter`: seals the weight differences a client sends.

NVFlare hands a filter the finished result, so the defence must act on the update alone. Statistics of batch
normalisation are sent as no change. The defence's state, the client's count of releases and its epsilon live in the
site's ledger, or in the filter for the length of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import needs_training, refuse_joint, seal_update, travelling
from fedseal.ledger import Account, Budget, Page, SiteLedger, Turn, memory_turn, slot_of
from fedseal.nvflare.exchange import client_of, like, refuse_whole_weights, tensors_of

COST = "fedseal_cost"
"""Key of the cost in the DXO's meta data."""


class DefenceFilter(DXOFilter):  # type: ignore[misc]
    """Seals the weight differences a client sends.

    Args:
        defence: a spec such as `topk:ratio=0.9`; one that acts on the update.
        learning_rate: of the client's steps, for defences that ask.
        seed: makes the noise reproducible, for experiments only; by default the operating system seeds it.
        ledger: file of the site's ledger, which no job's end forgets; "" keeps state in the filter.
        federation, dataset: whose account in it.
        budget: the most epsilon that may be spent; 0 for no limit. A round that would pass it sends nothing.
        delta: at which it is stated.
    """

    def __init__(
        self,
        defence: str,
        learning_rate: float = 0.1,
        seed: int | None = None,
        ledger: str = "",
        federation: str = "default",
        dataset: str = "default",
        budget: float = 0.0,
        delta: float = 1e-5,
    ) -> None:
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
        self.ledger = ledger
        self.federation = federation
        self.dataset = dataset
        self.budget = budget
        self.delta = delta
        self._kept: dict[str, tuple[Page, dict[str, Tensor]]] = {}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return the result with sealed differences; results that hold no model are left alone."""
        refuse_whole_weights(dxo)
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            return None
        client = client_of(fl_ctx)
        change = tensors_of(dxo.data, "result")
        names = travelling(change)
        moving = {name: change[name] for name in names}
        with self._turn(client, moving) as turn:
            defence = build_defence(self.defence)
            if turn.state:
                defence.load_state_dict(turn.state)
            turn.check()
            number = turn.number
            sealed = seal_update(
                Update(moving, "delta"),
                defence,
                generator(None) if self.seed is None else generator(self.seed, "nvflare", client, number),
                before={name: torch.zeros_like(tensor) for name, tensor in moving.items()},
                round_number=number,
                client=client,
                learning_rate=self.learning_rate,
            )
            turn.commit(defence.releases(), defence.state_dict(), facts={"defence": self.defence})
            epsilon = turn.epsilon(self.delta).value
        dxo.data = {
            name: like(sealed.update.tensors.get(name, torch.zeros_like(tensor)), dxo.data[name])
            for name, tensor in change.items()
        }
        cost = {key: value for key, value in asdict(sealed.cost).items() if isinstance(value, int | float)}
        if defence.releases() and epsilon < float("inf"):
            cost["epsilon_accounted"] = epsilon
        dxo.set_meta_prop(COST, cost)
        return dxo

    @contextmanager
    def _turn(self, client: str, moving: Tensors) -> Iterator[Turn]:
        budget = Budget(self.budget, self.delta) if self.budget else None
        if self.ledger:
            account = Account(self.federation, client, self.dataset)
            with SiteLedger(self.ledger).turn(account, slot_of(self.defence, moving), budget=budget) as turn:
                yield turn
            return
        page, state = self._kept.get(client, (Page(), {}))

        def keep(after: Page, left: Tensors) -> None:
            self._kept[client] = after, dict(left)

        yield memory_turn(client, page, state, keep, seed=self.seed, budget=budget)
