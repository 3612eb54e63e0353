"""Deep gradient compression: the recursion by hand, masks, warm-up, clipping, state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.dgc import DeepGradientCompression
from fedseal.defences.pipeline import build_defence


def context(round_number: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("compression needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


def update(number: int) -> dict[str, Tensor]:
    source = generator(number, "update")
    return {"w": torch.randn(10, 10, generator=source), "b": torch.randn(10, generator=source)}


def test_three_rounds_by_hand():
    defence = DeepGradientCompression(ratio=0.5, momentum=0.5, dense=False)
    sent = [defence.on_update({"w": torch.tensor([4.0, 1.0])}, context(number))["w"].tolist() for number in range(3)]
    # u: (4,1) -> (0,1); (4,1.5) -> (0,1.5); (4,1.75).  v: (4,1) -> (0,1); (4,2.5) -> (0,2.5); (4,4.25)
    assert sent == [[4, 0], [4, 0], [0, 4.25]]
    assert defence.state_dict()["momentum.w"].tolist() == [4, 0]
    assert defence.state_dict()["velocity.w"].tolist() == [4, 0]


def test_without_masking_momentum_lives_on():
    defence = DeepGradientCompression(ratio=0.5, momentum=0.5, dense=False, masking=False)
    sent = [defence.on_update({"w": torch.tensor([4.0, 1.0])}, context(number))["w"].tolist() for number in range(2)]
    assert sent == [[4, 0], [6, 0]]
    assert defence.state_dict()["momentum.w"].tolist() == [6, 1.5]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.99])
def test_both_buffers_are_zero_exactly_where_entries_were_sent(ratio: float):
    defence = DeepGradientCompression(ratio=ratio)
    for number in range(5):
        sent = defence.on_update(update(number), context(number))["w"] != 0
        assert int(sent.sum()) == math.ceil(round((1 - ratio) * 100, 9))
        for kind in ("momentum", "velocity"):
            assert torch.equal(defence.state_dict()[f"{kind}.w"] == 0, sent)


def test_without_momentum_nothing_is_lost_to_the_bit():
    defence = DeepGradientCompression(ratio=0.9, momentum=0)
    source = generator(3)
    updates = [torch.randint(-512, 513, (20, 20), generator=source).float() / 512 for _ in range(30)]
    sent = [defence.on_update({"w": part}, context(number))["w"] for number, part in enumerate(updates)]
    assert torch.equal(torch.stack(sent).sum(0) + defence.state_dict()["velocity.w"], torch.stack(updates).sum(0))
    assert list(defence.state_dict()) == ["velocity.w"]


def test_biases_are_dense_unless_told_otherwise():
    dense = DeepGradientCompression(ratio=0.9).on_update(update(0), context())
    assert torch.equal(dense["b"], update(0)["b"])
    sparse = DeepGradientCompression(ratio=0.9, dense=False).on_update(update(0), context())
    assert int((sparse["b"] != 0).sum()) == 1


def test_warm_up_is_that_of_the_paper():
    defence = DeepGradientCompression(ratio=0.999, warmup=4)
    sent = [1 - defence.ratio_in(number) for number in range(7)]
    assert sent[:4] == pytest.approx([0.25, 0.0625, 0.015625, 0.004], rel=0.02)  # 75, 93.75, 98.44, 99.6 %
    assert sent[4:] == pytest.approx([0.001] * 3)
    assert DeepGradientCompression(ratio=0.7).ratio_in(0) == 0.7
    shares = [int((defence.on_update({"w": torch.randn(100, 100)}, context(n))["w"] != 0).sum()) for n in range(6)]
    assert shares == [math.ceil(share * 10_000 - 1e-6) for share in sent[:6]]


def test_updates_are_clipped_before_they_accumulate():
    defence = DeepGradientCompression(ratio=0.5, clip=0.1)
    defence.on_update({"w": 100 * torch.ones(4, 4)}, context())
    assert float(defence.state_dict()["velocity.w"].norm()) == pytest.approx(0.1 * math.sqrt(0.5), rel=1e-5)
    sent = defence.attacker_view().simulate({"w": 100 * torch.ones(4, 4)}, {"w": torch.ones(4, 4)})
    assert float(flatten(sent).norm()) == pytest.approx(0.1, rel=1e-5)


def test_ratio_zero_is_the_identity_in_every_round():
    defence = build_defence("dgc:ratio=0")
    x = {"w": torch.tensor([[-0.0, 1.0], [0.0, -2.0]])}
    for number in range(3):
        assert defence.on_update(x, context(number))["w"].numpy().tobytes() == x["w"].numpy().tobytes()
    assert defence.state_dict() == {}


def test_a_run_restored_half_way_goes_on_as_before():
    unbroken, first, second = (build_defence("dgc:ratio=0.9,warmup=2") for _ in range(3))
    expected = [unbroken.on_update(update(number), context(number)) for number in range(6)]
    for number in range(3):
        first.on_update(update(number), context(number))
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    first.on_update(update(3), context(3))
    second.load_state_dict(saved)
    for number in range(3, 6):
        sent = second.on_update(update(number), context(number))
        assert all(torch.equal(sent[name], expected[number][name]) for name in sent)


def test_strange_state_and_nonsense_are_refused():
    with pytest.raises(InputError, match="neither momentum nor velocity"):
        DeepGradientCompression().load_state_dict({"no.such.parameter": torch.ones(3)})
    for spec in ("dgc:ratio=1", "dgc:momentum=1", "dgc:momentum=-0.1", "dgc:warmup=-1", "dgc:clip=0", "dgc:clip=nan"):
        with pytest.raises(UsageError, match="dgc"):
            build_defence(spec)
