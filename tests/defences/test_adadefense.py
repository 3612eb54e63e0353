"""AdaDefense: the optimiser it is, its options and state, and how much of the gradient it gives away."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedseal.audit.setup import make_aware
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.data.registry import DATASETS
from fedseal.defences.adadefense import AdaDefense
from fedseal.defences.adadefense_reading import attack_view, first_round, later_round
from fedseal.defences.adadefense_rule import EpsilonAt, Moments, Variant
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, plain_update
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model

VARIANTS: tuple[Variant, ...] = ("adam", "adagrad", "yogi")
PLACES: tuple[EpsilonAt, ...] = ("outside", "corrected", "inside")


def context(round_number: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("a stand-in needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


def heavy_tailed(seed: int, size: int = 4000, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return magnitudes from 1e-6 to 1, signs at random."""
    source = generator(seed)
    exponent = 6 * torch.rand(size, generator=source, dtype=torch.float64) - 6
    signs = torch.randint(2, (size,), generator=source) * 2 - 1
    return (signs * 10**exponent).to(dtype)


def lenet_gradients(count: int, model_name: str = "lenet-relu") -> tuple[nn.Module, list[Tensors], list[Tensors]]:
    """Return LeNet and a face's gradient per round, with what AdaDefense sends of each in float32."""
    faces = DATASETS.build("faces")
    model = build_model(model_name, input_shape=faces.shape, num_classes=2, seed=0)
    defence = AdaDefense()
    true, sent = [], []
    for number in range(count):
        batch = faces.batch(torch.tensor([number]))
        true.append(plain_update(model, [batch], RoundConfig(), generator(0)).tensors)
        sent.append(defence.on_update(true[-1], context(number)))
    return model, true, sent


def cosine(one: Tensors, other: Tensors) -> float:
    return float(torch.cosine_similarity(flatten(one).double(), flatten(other).double(), dim=0))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("eps_at", PLACES)
def test_the_first_round_in_closed_form(variant: Variant, eps_at: EpsilonAt):
    g = heavy_tailed(0, dtype=torch.float64)
    sent = AdaDefense(variant, eps_at=eps_at).on_update({"w": g}, context())["w"]
    scale, eps = 1e-3, 1e-8
    if variant == "adagrad":  # v = g^2, corrected as if it were (1 - b2) g^2
        root = {
            "outside": g.abs() / math.sqrt(0.001) + eps / math.sqrt(0.001),
            "corrected": g.abs() / math.sqrt(0.001) + eps,
            "inside": (g.square() / 0.001 + eps).sqrt(),
        }[eps_at]
    else:
        root = {
            "outside": g.abs() + eps / math.sqrt(1 - 0.999),
            "corrected": g.abs() + eps,
            "inside": (g.square() + eps).sqrt(),
        }[eps_at]
    torch.testing.assert_close(sent, scale * g / root, rtol=1e-6, atol=0)


def test_in_single_precision_too():
    g = heavy_tailed(1)
    sent = AdaDefense().on_update({"w": g}, context())["w"]
    expected = 1e-3 * g.double() / (g.double().abs() + 1e-8 / math.sqrt(1 - 0.999))
    torch.testing.assert_close(sent.double(), expected, rtol=1e-6, atol=0)


def test_shared_moments_go_from_client_to_client_with_the_released_counter():
    gradients = [torch.randn(50, generator=generator(seed), dtype=torch.float64) for seed in range(6)]
    clients = [AdaDefense(moments="shared") for _ in range(3)]
    sent = []
    for number in range(2):
        for index, client in enumerate(clients):
            sent.append(client.on_update({"w": gradients[3 * number + index]}, context(number))["w"])
            told = client.broadcast()
            assert told is not None
            for other in clients:
                if other is not client:
                    other.receive(told, number)
    m = v = torch.zeros(50, dtype=torch.float64)
    for g, got in zip(gradients, sent, strict=True):  # rounds 0 and 1 both correct with exponent 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.square()
        torch.testing.assert_close(got, 1e-3 * math.sqrt(0.001) / 0.1 * m / (v.sqrt() + 1e-8), rtol=1e-9, atol=0)
    assert AdaDefense().broadcast() is None
    assert not AdaDefense().uses("broadcast")


@pytest.mark.parametrize("spec", ["adadefense", "adadefense:variant=yogi", "adadefense:dtype=bfloat16"])
def test_saved_in_the_middle_it_goes_on_to_the_bit(spec: str):
    gradients = [{"w": torch.randn(30, generator=generator(seed))} for seed in range(6)]
    unbroken, first, second = (build_defence(spec) for _ in range(3))
    expected = [unbroken.on_update(g, context(number)) for number, g in enumerate(gradients)]
    for number in range(3):
        first.on_update(gradients[number], context(number))
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    for number in range(3, 6):
        assert torch.equal(second.on_update(gradients[number], context(number))["w"], expected[number]["w"])


def test_a_client_that_missed_ten_rounds_comes_back_where_it_was():
    gradients = [{"w": torch.randn(30, generator=generator(seed))} for seed in range(3)]
    away, present = AdaDefense(), AdaDefense()
    for number, late in enumerate((0, 1, 12)):
        one = away.on_update(gradients[number], context(late))
        other = present.on_update(gradients[number], context(number))
        assert torch.equal(one["w"], other["w"])  # it counts its own rounds


@pytest.mark.parametrize(("dtype", "distinct"), [("float16", 3000), ("bfloat16", 800)])
def test_uploads_are_rounded(dtype: str, distinct: int):
    sent = build_defence(f"adadefense:dtype={dtype}").on_update({"w": heavy_tailed(2)}, context())["w"]
    assert sent.dtype == torch.float32
    assert torch.equal(sent, sent.to(getattr(torch, dtype)).float())
    assert len(sent.abs().unique()) < distinct
    assert any(dtype in remark for remark in build_defence(f"adadefense:dtype={dtype}").report().remarks)


def test_foreign_states_and_options_are_refused():
    with pytest.raises(InputError, match="neither a moment"):
        AdaDefense().load_state_dict({"w": torch.ones(2)})
    with pytest.raises(InputError, match="incomplete"):
        AdaDefense().load_state_dict({"m.w": torch.ones(2), "v.w": torch.ones(2)})
    loaded = AdaDefense()
    loaded.load_state_dict({"m.w": torch.ones(2), "v.w": torch.ones(2), "rounds": torch.tensor(1)})
    with pytest.raises(InputError, match="moments"):
        loaded.on_update({"w": torch.ones(3)}, context())
    for options in ("scale=0", "beta1=1", "eps=0"):
        with pytest.raises(UsageError, match="adadefense needs"):
            build_defence(f"adadefense:{options}")
    assert AdaDefense().traits.rescales
    assert not AdaDefense("none").traits.rescales


@pytest.mark.parametrize("model_name", ["lenet", "lenet-relu"])
def test_in_single_precision_the_gradient_is_read_from_the_first_upload(model_name: str):
    _, true, sent = lenet_gradients(1, model_name)
    rule = AdaDefense().rule
    assert rule is not None
    signs = {name: tensor.sign() for name, tensor in sent[0].items()}
    assert cosine(signs, true[0]) < 0.6
    read = {name: first_round(rule, tensor) for name, tensor in sent[0].items()}
    assert cosine(read, true[0]) > 0.99
    rounded = {name: first_round(rule, tensor.bfloat16()).float() for name, tensor in sent[0].items()}
    assert cosine(rounded, true[0]) < 0.6


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_it_declares_is_a_number_where_a_gradient_is_zero(rounds: int):
    """Behind a unit that is off, and under a black pixel: zeros are sent as zeros, and an ideal reader knows them."""
    defence = AdaDefense()
    gradient = {"weight": torch.tensor([0.0, 1e-3, -2e-5, 0.0])}
    for number in range(rounds):
        sent = defence.on_update(gradient, context(number))
    channel = defence.attacker_view().channel
    assert channel is not None
    assert channel.variance is not None
    declared = channel.variance(gradient, sent)["weight"]
    assert torch.isfinite(declared).all()
    assert (declared[[0, 3]] == 0).all()
    assert (declared[[1, 2]] > 0).all()


def test_the_reading_is_bounded_where_rounding_hides_the_gap():
    g = torch.tensor([0.0, 50.0, -1e4, 1e-3])
    defence = AdaDefense()
    sent = defence.on_update({"w": g}, context())["w"]
    read = defence.attacker_view().read({"w": sent})["w"]
    assert bool(torch.isfinite(read).all())
    assert float(read[0]) == 0
    assert torch.equal(read.sign(), g.sign())
    assert float(read[3]) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("eps_at", PLACES)
def test_one_of_two_roots_is_the_gradient(variant: Variant, eps_at: EpsilonAt):
    defence = AdaDefense(variant, eps_at=eps_at)
    gradients = [heavy_tailed(seed, dtype=torch.float64) for seed in range(4)]
    for number, g in enumerate(gradients):
        before = defence._held
        sent = defence.on_update({"w": g}, context(number))["w"]
        if number == 0:
            continue
        assert defence.rule is not None
        small, other = later_round(defence.rule, sent, before.first["w"], before.second["w"], number + 1)
        assert bool((small.abs() <= other.abs() * (1 + 1e-9)).all())
        nearest = torch.where((small - g).abs() < (other - g).abs(), small, other)
        error = (nearest - g).abs() / g.abs()
        assert float((error < 1e-4).double().mean()) > 0.99
        right = ((small - g).abs() / g.abs() < 1e-4).double().mean()
        assert float(right) > 0.5  # the smaller root by itself


def test_a_server_with_uploads_alone_reads_every_round():
    _, true, sent = lenet_gradients(5)
    rule = AdaDefense().rule
    assert rule is not None
    known = Moments({}, {}, 0)
    for number, (g, upload) in enumerate(zip(true, sent, strict=True)):
        view = attack_view("adadefense", rule, known, number + 1, torch.float32)
        read = view.read(upload)
        assert cosine(read, g) > 0.97
        assert view.personal == (number > 0)
        known, _ = rule.step(known, read, number + 1)


def test_a_dummy_is_compared_with_the_root_it_is_near():
    _, true, _ = lenet_gradients(3)
    defence = AdaDefense()
    for number, g in enumerate(true):
        sent = defence.on_update(g, context(number))
    view = defence.attacker_view()
    read = view.read(sent)
    assert cosine(view.simulate(true[2], read), read) > 0.999 > cosine(true[2], read)


def test_signs_are_matched_whatever_the_scale():
    view = build_defence("adadefense:dtype=bfloat16").attacker_view()
    gradient = {"w": torch.tensor([1e-3, -2e-3, 5e-4])}
    soft = view.simulate(gradient, gradient)["w"]
    torch.testing.assert_close(soft, view.simulate({"w": 1e4 * gradient["w"]}, gradient)["w"])
    assert torch.equal(soft.sign(), gradient["w"].sign())
    assert bool(torch.isfinite(view.simulate({"w": torch.zeros(3)}, gradient)["w"]).all())


def observed_face(spec: str, rounds: int) -> tuple[Observation, Observation, Tensor]:
    """Return what naive and aware attackers see of a face on LeNet in the last of some rounds, and the face."""
    faces = DATASETS.build("faces")
    model = build_model("lenet-relu", input_shape=faces.shape, num_classes=2, seed=0)
    defence = build_defence(spec)
    for number in range(rounds):
        face = faces.batch(torch.tensor([rounds - 1 - number]))
        sent = client_round(model, [face], RoundConfig(), defence, generator(0), round_number=number).update
    knowledge = Knowledge(faces.shape, 2, label_rule="true", batch_size=1, labels=face.labels, local_steps=1, clients=1)
    naive = Observation(model, sent, knowledge)
    return naive, make_aware(naive, defence), face.images


@pytest.mark.parametrize(
    ("spec", "rounds", "gain"),
    [
        ("adadefense", 1, 8),
        pytest.param("adadefense", 3, 8, marks=pytest.mark.slow),
        pytest.param("adadefense:dtype=bfloat16", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_who_knows_adadefense_sees_what_others_do_not(spec: str, rounds: int, gain: float):
    naive, aware, face = observed_face(spec, rounds)
    attack, budget = ATTACKS.build("ig:tv=0.01"), Budget(iterations=120, restarts=1)
    scores = [float(psnr(face, attack.run_many([o], budget, [0])[0].images, data_range=1.0)) for o in (naive, aware)]
    assert scores[1] > scores[0] + gain, scores


def test_views_of_one_client_are_not_used_for_another():
    pairs = [observed_face("adadefense", rounds) for rounds in (2, 3)]
    attack, budget = ATTACKS.build("ig:tv=0.01"), Budget(iterations=3, restarts=1)
    together = attack.run_many([replace(aware, model=pairs[0][1].model) for _, aware, _ in pairs], budget, [0, 1])
    alone = [attack.run_many([aware], budget, [seed])[0] for seed, (_, aware, _) in enumerate(pairs)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.images, other.images)
