"""Aligned dual pruning: one location set per round, its bytes, partial participation, and what it tells."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.data.registry import DATASETS
from fedseal.defences.adgp import AlignedDualGradientPruning
from fedseal.defences.dual_pruning import DualGradientPruning
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.cohort.traffic import message_bytes
from fedseal.federation.simulation import FederationConfig, RoundListener, SeenUpload, simulate
from fedseal.federation.wire import payload_size
from fedseal.models.registry import build_model


def context(round_number: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("pruning needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


def update(seed: int) -> dict[str, Tensor]:
    source = generator(seed)
    return {
        "weight": torch.randint(-4096, 4097, (100, 50), generator=source).float() / 1024,
        "bias": torch.randn(20, generator=source),
    }


def play_round(defences: list[AlignedDualGradientPruning], number: int) -> list[Tensors]:
    """Run a round as a federation does: the first client's set goes to the others before they train."""
    sent = []
    for index, defence in enumerate(defences):
        sent.append(defence.on_update(update(100 * number + index), context(number)))
        if (told := defence.broadcast()) is not None:
            for other in defences:
                if other is not defence:
                    other.receive(told, number)
    return sent


def test_all_clients_send_k_entries_inside_the_first_ones_set():
    defences = [AlignedDualGradientPruning(k1=0.05, k=0.2) for _ in range(4)]
    sent = play_round(defences, 0)
    location = defences[0].broadcast()
    assert location is not None
    assert all(defence.broadcast() is None for defence in defences[1:])
    for name, full in update(0).items():
        inside = location[name] != 0
        assert int(inside.sum()) == math.ceil(0.4 * full.numel())
        assert bool(full.abs()[inside].min() >= full.abs()[~inside].max())
        union = torch.stack([one[name] != 0 for one in sent]).any(0)
        assert not bool((union & ~inside).any())
        for index, one in enumerate(sent):
            own = update(index)[name]
            top = own.abs().flatten().topk(math.ceil(0.05 * own.numel())).values.min()
            kept = one[name] != 0
            assert int(kept.sum()) == round(0.2 * own.numel())
            assert bool((own.abs()[kept] <= top).all())
            eligible = inside & (own.abs() < top) & ~kept
            assert bool((own.abs()[eligible] <= own.abs()[kept].min()).all())


def test_a_client_alone_is_its_own_broadcaster_and_sends_what_dgp_would():
    sent = AlignedDualGradientPruning(k1=0.05, k=0.2).on_update(update(0), context())
    dual = DualGradientPruning(k1=0.05, k2=0.75).on_update(update(0), context())
    assert all(torch.equal(sent[name], dual[name]) for name in sent)


def test_a_set_serves_its_round_only():
    defences = [AlignedDualGradientPruning() for _ in range(2)]
    told = {name: torch.ones_like(tensor) for name, tensor in update(0).items()}
    defences[0].receive(told, 3)
    defences[0].on_update(update(0), context(7))  # it missed round 3, where the set was meant for
    defences[1].on_update(update(0), context(7))
    assert defences[0].broadcast() is not None
    one, other = defences[0].broadcast(), defences[1].broadcast()
    assert one is not None
    assert other is not None
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_conservation_with_partial_participation():
    clients = [AlignedDualGradientPruning() for _ in range(3)]
    totals: list[dict[str, Tensor]] = [{}, {}, {}]
    sums: list[dict[str, Tensor]] = [{}, {}, {}]
    for number, present in enumerate([(0, 1), (1, 2), (2, 0), *[(0, 1)] * 10, (2, 1)]):  # client 2 misses ten rounds
        sent = play_round([clients[index] for index in present], number)
        for place, index in enumerate(present):
            full = update(100 * number + place)
            for name in full:
                totals[index][name] = totals[index].get(name, torch.zeros(())) + full[name].double()
                sums[index][name] = sums[index].get(name, torch.zeros(())) + sent[place][name].double()
    for client, total, sent_sum in zip(clients, totals, sums, strict=True):
        residual = client.state_dict()
        assert torch.equal(sent_sum["weight"] + residual["residual.weight"], total["weight"])


def test_downloads_are_counted_by_the_codec():
    defences = [AlignedDualGradientPruning() for _ in range(2)]
    play_round(defences, 0)
    costs = [defence.report() for defence in defences]
    assert costs[0].bytes_down == costs[1].bytes_down
    dense = 4 * sum(tensor.numel() for tensor in update(0).values())
    assert costs[0].bytes_down is not None
    assert costs[0].bytes_down < 0.55 * dense
    location = defences[0].broadcast()
    assert location is not None
    bound = (0.4 * 32 + 0.971) / 32 * dense  # values in I, and I itself at its entropy
    assert costs[1].bytes_down + message_bytes(location) == pytest.approx(bound, rel=0.1)
    assert "40 % largest" in " ".join(costs[0].remarks)
    assert "broadcast" not in " ".join(costs[1].remarks)


def test_a_clients_round_reports_the_download():
    faces = DATASETS.build("faces")
    model = build_model("lenet", input_shape=faces.shape, num_classes=2, seed=0)
    cost = client_round(model, [faces.batch(torch.arange(2))], RoundConfig(), build_defence("adgp"), generator(0)).cost
    assert cost.bytes_down is not None
    assert cost.bytes_up is not None
    assert cost.bytes_up < cost.bytes_down


def test_a_federation_of_many_shares_one_set_a_round():
    faces = DATASETS.build("faces")
    clients = [_Slice(faces, range(20 * index, 20 * index + 20)) for index in range(4)]
    model = build_model("lenet", input_shape=faces.shape, num_classes=2, seed=0)
    config = FederationConfig(
        algorithm="fedsgd", rounds=3, clients_per_round=3, batch_size=8, evaluate_every=3, bn_mode="eval"
    )
    test = faces.batch(torch.arange(80, 100))
    result = {name: simulate(config, model, clients, test, build_defence(name)).history for name in ("adgp", "none")}
    for aligned, plain in zip(result["adgp"].rounds, result["none"].rounds, strict=True):
        assert aligned.bytes_up < 0.4 * plain.bytes_up
        assert aligned.bytes_down < 0.6 * plain.bytes_down


def test_the_broadcast_set_is_counted_once_up_and_down_for_everyone_else():
    """Claim D6, correction C10: without feedback and noise the aggregate's download is the same for all."""
    told: list[int] = []
    uploads: list[int] = []

    class Counting(RoundListener):
        def inspects(self, round_number: int) -> bool:
            return True

        def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
            uploads.append(payload_size(upload.update.tensors))

    class Telling(AlignedDualGradientPruning):
        def broadcast(self) -> Tensors | None:
            message = super().broadcast()
            told.extend([] if message is None else [message_bytes(message)])
            return message

    faces = DATASETS.build("faces")
    clients = [_Slice(faces, range(20 * index, 20 * index + 20)) for index in range(4)]
    model = build_model("lenet", input_shape=faces.shape, num_classes=2, seed=0)
    config = FederationConfig(algorithm="fedsgd", rounds=1, batch_size=8, bn_mode="eval")
    defence = Telling()
    (record,) = simulate(
        config, model, clients, faces.batch(torch.arange(96, 100)), defence, listener=Counting()
    ).history.rounds
    (location,) = told
    assert record.bytes_up == sum(uploads) + location
    sizes = [p.numel() for p in model.parameters()]
    told_apart = sum(math.log2(math.comb(size, math.ceil(0.4 * size))) for size in sizes) / 8
    assert told_apart <= location <= sum(sizes) / 8 + 96 * len(sizes)  # no code takes less; a bit for each and headers
    values = record.bytes_down - 3 * location
    assert values % 4 == 0
    entries = sum(math.ceil(0.4 * p.numel()) for p in model.parameters())
    assert values // 4 == pytest.approx(4 * entries, rel=0.1)


class _Slice:
    """Some of a data set's images."""

    def __init__(self, dataset: object, places: range) -> None:
        self._dataset = dataset
        self._places = torch.tensor(list(places))

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: Tensor | None = None) -> object:
        places = self._places if indices is None else self._places[indices]
        return self._dataset.batch(places)  # type: ignore[attr-defined]


def test_sets_of_other_models_are_refused():
    defence = AlignedDualGradientPruning()
    defence.receive({"weight": torch.ones(3)}, 0)
    with pytest.raises(InputError, match="another model"):
        defence.on_update(update(0), context(0))


@pytest.mark.parametrize("options", ["k1=0.2,k=0.2", "k1=-0.1", "k1=0.3,k=0.8", "k=0"])
def test_shares_that_cannot_be_are_refused(options: str):
    with pytest.raises(UsageError, match=r"k1 < k|'k1' of the defence 'adgp' cannot be"):
        build_defence(f"adgp:{options}")


def test_messages_reach_their_member_of_a_pipeline():
    one, other = build_defence("gaussian:sigma=0,clip=inf+adgp"), build_defence("gaussian:sigma=0,clip=inf+adgp")
    one.on_update(update(0), context())
    told = one.broadcast()
    assert told is not None
    other.receive(told, 0)
    sent = other.on_update(update(1), context())
    assert other.broadcast() is None
    assert all(not bool(((sent[name] != 0) & (told[f"1.{name}"] == 0)).any()) for name in sent)


def test_traits_let_it_be_masked():
    defence = AlignedDualGradientPruning()
    assert defence.traits.common_support
    assert defence.traits.data_dependent_mask
    assert not AlignedDualGradientPruning(k1=0, k=1).traits.common_support
    composed = build_defence("adgp+secagg:clients=2").report().remarks
    assert not any("dense" in remark for remark in composed)
    assert any("dense" in remark for remark in build_defence("dgp+secagg:clients=2").report().remarks)


def test_the_view_knows_more_of_who_broadcast():
    defences = [AlignedDualGradientPruning(hinge=1) for _ in range(2)]
    sent = play_round(defences, 0)
    assert not AlignedDualGradientPruning().attacker_view().personal
    for index, defence in enumerate(defences):
        view = defence.attacker_view()
        assert view.personal
        assert view.penalty is not None
        assert float(view.penalty(update(index), sent[index])) == 0
        location = defences[0].broadcast()
        assert location is not None
        outside = {name: location[name] == 0 for name in location}
        raised = {name: torch.where(outside[name], 100.0, tensor) for name, tensor in update(index).items()}
        contradiction = float(view.penalty(raised, sent[index]))
        assert contradiction > 0.9 if index == 0 else contradiction == 0  # of others nothing outside I is known
