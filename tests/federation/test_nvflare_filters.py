"""NVFlare's filters of fedseal on NVFlare's own objects: ledger, wire, guard, detector, watch, and a site's policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("nvflare", reason="the extra `nvflare` is not installed")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from fedseal.core.batch import Batch
from fedseal.core.errors import FedsealError, InputError
from fedseal.federation.update_file import read_updates
from fedseal.ledger import SiteLedger
from fedseal.nvflare import (
    COST,
    DefenceFilter,
    DetectFilter,
    GuardFilter,
    SentModel,
    SiteFilter,
    WatchFilter,
    WireDecoder,
    WireEncoder,
)
from fedseal.nvflare.watching import READINGS

CHANGE = {"layer.weight": torch.linspace(-1, 1, 200).view(10, 20), "layer.bias": torch.linspace(0, 1, 10)}
MODEL = {"layer.weight": torch.linspace(-3, 40, 200).view(10, 20).sin(), "layer.bias": torch.zeros(10)}


def context(*, client: str = "site-1", task: str = "train", direction: str = FilterKey.OUT) -> FLContext:
    made, peer = FLContext(), FLContext()
    made.set_prop(ReservedKey.IDENTITY_NAME, client, private=False, sticky=False)
    peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False, sticky=False)
    made.set_peer_context(peer)
    made.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    made.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
    return made


def result(data: dict[str, Any] | None = None, kind: str = DataKind.WEIGHT_DIFF, number: int = 0) -> Shareable:
    shareable = Shareable()
    shareable.set_header(AppConstants.CURRENT_ROUND, number)
    return DXO(kind, dict(CHANGE) if data is None else data).update_shareable(shareable)


def passed(filters: list[Any], shareable: Shareable, fl_ctx: FLContext) -> DXO:
    for one in filters:
        shareable = one.process(shareable, fl_ctx)
    return from_shareable(shareable)


def test_a_ledger_outlives_the_filter_and_halts_at_its_budget(tmp_path: Path):
    options = {"ledger": str(tmp_path / "ledger.sqlite"), "budget": 7.0}
    for number in range(2):
        sent = passed([DefenceFilter("gaussian:sigma=1.0,clip=1.0", **options)], result(number=5), context())
        assert sent.get_meta_prop(COST)["epsilon_accounted"] == pytest.approx((4.377, 6.4)[number], abs=0.2)
    with pytest.raises(FedsealError, match="budget"):
        passed([DefenceFilter("gaussian:sigma=1.0,clip=1.0", **options)], result(), context())
    (account,) = SiteLedger(tmp_path / "ledger.sqlite").accounts()
    assert (str(account.account), account.page.number) == ("default/site-1/default", 2)


def test_a_sparse_update_travels_small_and_arrives_as_it_was():
    plain = passed([DefenceFilter("topk:ratio=0.9")], result(), context())
    packed = passed([DefenceFilter("topk:ratio=0.9"), WireEncoder()], result(), context())
    (payload,) = packed.data.values()
    assert payload.nbytes < 210 * 4 / 3
    arrived = passed([WireDecoder()], packed.update_shareable(Shareable()), context())
    assert all(torch.equal(arrived.data[name], plain.data[name]) for name in CHANGE)
    with pytest.raises(FedsealError):
        passed([WireDecoder()], result({"fedseal.payload": payload[:-1]}), context())


@pytest.fixture
def server() -> FLContext:
    """The server's context after it has sent its model."""
    made = context()
    SentModel().process(result(MODEL, DataKind.WEIGHTS), made)
    return made


def test_the_guard_unpacks_and_records_what_is_sound(server: FLContext, tmp_path: Path):
    facts = {"learning_rate": 0.1, "input_shape": [1, 4, 5], "num_classes": 10}
    guard = GuardFilter(record=str(tmp_path), facts=facts)
    packed = passed([WireEncoder()], result(), context())
    arrived = passed([guard], packed.update_shareable(result()), server)
    assert all(torch.equal(arrived.data[name], CHANGE[name]) for name in CHANGE)
    (recorded,) = read_updates(tmp_path)
    assert (recorded.facts.client, recorded.facts.round, recorded.facts.learning_rate) == ("site-1", 1, 0.1)
    assert torch.equal(recorded.before["layer.weight"], MODEL["layer.weight"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (CHANGE | {"layer.bias": torch.full((10,), torch.nan)}, "NaN"),
        (CHANGE | {"layer.bias": torch.full((10,), 1e30)}, "norm"),
        (CHANGE | {"layer.bias": torch.zeros(11)}, "shape"),
        (CHANGE | {"other": torch.zeros(3)}, "no part of the model"),
        ({"fedseal.payload": np.zeros(9, np.uint8)}, "payload"),
        ({"layer.bias": "text"}, "neither a tensor nor an array"),
    ],
)
def test_the_guard_refuses_what_is_unsound_and_names_the_sender(
    data: dict[str, Any], words: str, server: FLContext, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(FedsealError, match=words):
        passed([GuardFilter(max_norm=100.0)], result(data), server)
    assert "client site-1 is refused" in caplog.text


def test_the_guard_refuses_old_updates_and_whole_weights(server: FLContext):
    guard = GuardFilter()
    passed([guard], result(), server)
    with pytest.raises(InputError, match="replayed"):
        passed([guard], result(number=1), server)
    with pytest.raises(InputError, match="twice"):
        passed([guard], result({name: 2 * tensor for name, tensor in CHANGE.items()}), server)
    with pytest.raises(InputError, match="whole weights"):
        passed([guard], result(MODEL, DataKind.WEIGHTS, number=2), server)


def test_the_guard_cuts_down_what_is_out_of_proportion_and_names_the_sender(
    server: FLContext, caplog: pytest.LogCaptureFixture
):
    guard = GuardFilter()

    def sent(client: str, factor: float, number: int, steps: float) -> DXO:
        server.set_peer_context(context(client=client))
        message = DXO(DataKind.WEIGHT_DIFF, {name: tensor * factor for name, tensor in CHANGE.items()})
        message.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, steps)
        return passed([guard], message.update_shareable(result(number=number)), server)

    for place, factor in enumerate((1.0, 1.1, 1.2)):
        assert sent(f"site-{place}", factor, 0, 10).get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) == 10
    taken = sent("site-1", -10.0, 1, 1e12)
    assert taken.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) == 250
    assert torch.allclose(taken.data["layer.bias"], CHANGE["layer.bias"] * -5.5)
    assert caplog.text.count("client site-1") == 2
    with pytest.raises(InputError, match="norm"):
        sent("site-2", 1e6, 1, 10)  # beyond ten times the model's own
    with pytest.raises(InputError, match="number of steps"):
        sent("site-0", 1.3, 1, -1)


def test_a_weapon_is_not_trained_on():
    wide = torch.linspace(-1, 70, 10 * 40).view(10, 40).cos()
    honest = {"head.weight": wide, "head.bias": torch.zeros(10)}
    bins = {"head.weight": wide[:1].repeat(10, 1), "head.bias": torch.linspace(-1, 1, 10)}
    passed([DetectFilter()], result(honest, DataKind.WEIGHTS), context())
    with pytest.raises(InputError, match="suspicious"):
        passed([DetectFilter()], result(bins, DataKind.WEIGHTS), context())
    passed([DetectFilter(on_alarm="warn")], result(bins, DataKind.WEIGHTS), context())


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def batches(fl_ctx: FLContext) -> list[Batch]:
    assert fl_ctx.get_identity_name() == "site-1"
    return [Batch(torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.tensor([3]))]


def watch(**rules: Any) -> WatchFilter:
    here = "fedseal_nvflare_watched"
    return WatchFilter(f"{here}:net", f"{here}:batches", "digits", rules={"readings": ["labels"]} | rules)


def test_an_update_is_read_before_it_leaves_and_refused_by_a_rule(monkeypatch: pytest.MonkeyPatch):
    module = type(np)("fedseal_nvflare_watched")
    module.net, module.batches = net, batches  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "fedseal_nvflare_watched", module)
    torch.manual_seed(0)
    model, (batch,) = net(), batches(context())
    loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    change = {name: -0.1 * g for (name, _), g in zip(model.named_parameters(), grads, strict=True)}
    own, watching = context(), watch()
    watching.process(result(dict(model.state_dict()), DataKind.WEIGHTS), own)
    sent = passed([watching], result(change), own)
    assert sent.get_meta_prop(READINGS)["fedseal-labels"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="watch refused"):
        passed([watch(rules=[{"if": "labels >= high", "then": "refuse"}])], result(change), own)
    noisy = passed([watch(rules=[{"if": "labels >= high", "then": "raise sigma"}])], result(change), own)
    assert not torch.equal(noisy.data["1.bias"], change["1.bias"])


POLICY = """
federation: trial
data: ward-7
seal: {default: "topk:ratio=0.9"}
budget: {rounds: 3}
leave:
  metrics:
    NUM_STEPS_CURRENT_ROUND: {min: 1, max: 9, step: 1}
    loss: {min: 0, max: 9, step: 1}
"""


@pytest.fixture
def site(tmp_path: Path) -> SiteFilter:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    path.chmod(0o600)
    return SiteFilter(str(path))


def test_a_sites_filter_seals_whatever_the_job_sends(site: SiteFilter):
    shareable = result()
    shareable["smuggled"] = CHANGE
    shareable.set_header("smuggled", "weights")
    dxo = from_shareable(shareable)
    dxo.set_meta_prop("smuggled", 1.5)
    dxo.set_meta_prop("NUM_STEPS_CURRENT_ROUND", 4)
    left = site.process(dxo.update_shareable(shareable), context())
    sent = from_shareable(left)
    assert sum(int(torch.count_nonzero(tensor)) for tensor in sent.data.values()) == 21
    assert sent.get_meta_props() == {"NUM_STEPS_CURRENT_ROUND": 4}
    assert "smuggled" not in left
    assert left.get_header("smuggled") is None
    assert left.get_header(AppConstants.CURRENT_ROUND) == 0


def bare() -> Shareable:
    made = Shareable()
    made["weights"] = CHANGE  # no DXO: NVFlare's own DXO filters let it pass
    return made


def failed() -> Shareable:
    made = bare()
    made.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    return made


@pytest.mark.parametrize(
    ("made", "task"),
    [
        (bare(), "train"),
        (result(MODEL, DataKind.WEIGHTS), "train"),
        (result(CHANGE, DataKind.STATISTICS), "train"),
        (result({"part": DXO(DataKind.WEIGHT_DIFF, CHANGE)}, DataKind.COLLECTION), "train"),
        (result(CHANGE | {"text": "weights"}), "train"),
        (result(CHANGE), "validate"),
        (result({"loss": CHANGE}, DataKind.METRICS), "validate"),
        (result({"loss": 1.0, "other": 0.123}, DataKind.METRICS), "validate"),
    ],
)
def test_what_a_site_does_not_know_does_not_leave(made: Shareable, task: str, site: SiteFilter):
    with pytest.raises(ContentBlockedException, match="refused by the site's policy"):
        site.process(made, context(task=task))


def test_numbers_of_an_evaluation_leave_rounded_and_errors_leave_bare(site: SiteFilter):
    sent = from_shareable(site.process(result({"loss": 2.4}, DataKind.METRICS), context(task="validate")))
    assert sent.data == {"loss": 2}
    left = site.process(failed(), context())
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "weights" not in left


def test_a_site_judges_tasks_before_the_job_sees_them(site: SiteFilter, tmp_path: Path):
    task = result(MODEL, DataKind.WEIGHTS)
    assert site.process(task, context(direction=FilterKey.IN)) is task
    with pytest.raises(ContentBlockedException, match="requests to query"):
        site.process(task, context(task="submit_model", direction=FilterKey.IN))
    for number in range(3):
        site.process(result(number=number), context())
    with pytest.raises(ContentBlockedException, match="budget of 3 rounds is spent"):
        SiteFilter(site.policy).process(task, context(direction=FilterKey.IN))
