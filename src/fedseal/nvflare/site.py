"""`SiteFilter`: a site's policy in NVFlare, set up by the site in its own `local/privacy.json`, whatever job arrives.

    {"scopes": [{"name": "sealed",
                 "task_data_filters": [{"path": "fedseal.nvflare.SiteFilter", "args": {"policy": "/etc/fedseal/policy.yaml"}}],
                 "task_result_filters": [{"path": "fedseal.nvflare.SiteFilter", "args": {"policy": "/etc/fedseal/policy.yaml"}}]}],
     "default_scope": "sealed"}

Of a task's data it judges the model before the job's code sees it. A result is made anew: sealed differences and the
numbers the policy names. NVFlare's own DXO filters let pass what is no DXO; this one lets out nothing it does not know.
"""  # noqa: E501

from __future__ import annotations

import logging

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants

from fedseal.core.errors import FedsealError
from fedseal.ledger import SiteLedger
from fedseal.nvflare.exchange import like, round_of, tensors_of
from fedseal.site.policy import Policy
from fedseal.site.policy_file import read_policy
from fedseal.site.refusal import RefusedError
from fedseal.site.seal import SiteSeal

WEIGHT = MetaKey.NUM_STEPS_CURRENT_ROUND
"""The number an aggregator weighs results by; a policy has to name it among its metrics to let it out."""

_LOG = logging.getLogger("fedseal.site")
_TASKS = {"train": "train", "validate": "evaluate", "evaluate": "evaluate"}
_PASSED_CODES = (ReturnCode.TASK_ABORTED, ReturnCode.EXECUTION_EXCEPTION, ReturnCode.EXECUTION_RESULT_ERROR)


class SiteFilter(Filter):  # type: ignore[misc]
    """Applies a site's policy to what arrives and to what leaves.

    Args:
        policy: path of the site's policy.yaml.
    """

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.policy = policy
        self._opened: SiteSeal | None = None

    @property
    def _seal(self) -> SiteSeal:
        if self._opened is None:
            found: Policy = read_policy(self.policy)
            assert found.ledger is not None  # a policy that was read from a file has one
            self._opened = SiteSeal(found, SiteLedger(found.ledger))
        return self._opened

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Judge a task on its way in, or make a result anew on its way out."""
        try:
            if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
                return self._incoming(shareable, fl_ctx)
            return self._outgoing(shareable, fl_ctx)
        except FedsealError as error:
            _LOG.warning("refused: %s", error)
            public = error.public if isinstance(error, RefusedError) else "the site's log says why."
            raise ContentBlockedException(f"refused by the site's policy: {public}") from error

    def _incoming(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        dxo = _dxo(shareable)
        state = tensors_of(dxo.data, "model") if dxo is not None and dxo.data_kind == DataKind.WEIGHTS else None
        self._seal.admit(_kind(fl_ctx), state, self._seal.defence_for(None))
        return shareable

    def _outgoing(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        seal = self._seal
        seal.count("result")
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code if code in _PASSED_CODES else ReturnCode.EXECUTION_EXCEPTION)
        dxo = _dxo(shareable)
        if dxo is None:
            raise RefusedError("the result is none that the site knows.", detail=f"It holds {list(shareable)[:5]}.")
        made = self._update(dxo) if _kind(fl_ctx) == "train" else self._metrics(dxo)
        answer = made.update_shareable(make_reply(ReturnCode.OK))
        answer.set_header(AppConstants.CURRENT_ROUND, round_of(shareable, fl_ctx))
        return answer

    def _update(self, dxo: DXO) -> DXO:
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            raise RefusedError(
                "only weight differences and metrics leave this site.",
                detail=f"The result is {str(dxo.data_kind)[:40]!r}.",
            )
        seal, data = self._seal, dxo.data
        change = tensors_of(data, "result")
        before = {name: torch.zeros_like(tensor) for name, tensor in change.items()}
        weight = dxo.get_meta_prop(WEIGHT)
        answer = seal.update(before, change, {} if weight is None else {WEIGHT: weight}, seal.defence_for(None))
        sent = {name: like(answer.change.get(name, before[name]), data[name]) for name in data}
        made = DXO(DataKind.WEIGHT_DIFF, sent)
        for name, value in answer.metrics.items():
            made.set_meta_prop(name, value)
        return made

    def _metrics(self, dxo: DXO) -> DXO:
        if dxo.data_kind != DataKind.METRICS:
            raise RefusedError("only metrics answer this task.", detail=f"This is {str(dxo.data_kind)[:40]!r}.")
        return DXO(DataKind.METRICS, self._seal.numbers(dxo.data))


def _kind(fl_ctx: FLContext) -> str:
    """Return what a task asks for, in the words of a policy."""
    return _TASKS.get(str(fl_ctx.get_prop(FLContextKey.TASK_NAME)), "query")


def _dxo(shareable: Shareable) -> DXO | None:
    try:
        found = from_shareable(shareable)
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, DXO) and isinstance(found.data, dict) else None
