"""Dual gradient pruning: counts, thresholds, conservation, feedback, the diagnostic, and who looks through it."""

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
from fedseal.defences.dual_pruning import STALE_ROUNDS, DualGradientPruning, hinge
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model

SIZES = {"weight": (40, 25), "bias": (10,), "gain": (1,), "pair": (2,)}


def context(round_number: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("pruning needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


def update(seed: int = 0) -> dict[str, Tensor]:
    """Return entries that add up without rounding, all magnitudes in a tensor distinct."""
    source = generator(seed)
    found = {}
    for name, shape in SIZES.items():
        size = math.prod(shape)
        signs = torch.randint(2, (size,), generator=source) * 2 - 1
        found[name] = ((torch.randperm(size, generator=source) + 1) * signs).view(shape).float() / 1024
    return found


@pytest.mark.parametrize(("k1", "k2"), [(0.05, 0.75), (0.1, 0.7), (0.2, 0.6), (0.03, 0.45), (0.06, 0.9), (0.0, 0.5)])
def test_counts_and_thresholds(k1: float, k2: float):
    full = update()
    sent = DualGradientPruning(k1, k2).on_update(full, context())
    for name, tensor in full.items():
        n = tensor.numel()
        n1 = math.ceil(round(k1 * n, 9))
        n2 = min(round(k2 * n), n - n1)
        kept = sent[name] != 0
        assert int(kept.sum()) == n - n1 - n2
        ordered = tensor.abs().flatten().sort(descending=True).values
        if kept.any():
            magnitudes = tensor.abs()[kept]
            assert n1 == 0 or bool((magnitudes < ordered[n1 - 1]).all())
            assert n2 == 0 or bool((magnitudes > ordered[n - n2]).all())
        assert torch.equal(sent[name][kept], tensor[kept])


def test_the_entry_that_names_the_label_is_never_sent():
    bias = torch.full((10,), 0.1)
    bias[3] = -0.9
    assert float(DualGradientPruning().on_update({"b": bias}, context())["b"][3]) == 0
    nearest = DualGradientPruning(k1=0.04, k2=0.5, rounding="nearest")  # 4 % of ten is none
    assert float(nearest.on_update({"b": bias}, context())["b"][3]) == pytest.approx(-0.9)


def test_sent_plus_residual_is_the_sum_of_gradients_to_the_bit():
    defence = DualGradientPruning()
    updates = [update(seed) for seed in range(30)]
    sent = [defence.on_update(one, context(number)) for number, one in enumerate(updates)]
    state = defence.state_dict()
    for name in SIZES:
        total = torch.stack([one[name] for one in sent]).sum(0) + state[f"residual.{name}"]
        assert torch.equal(total, torch.stack([one[name] for one in updates]).sum(0))


def test_feedback_of_the_bottom_forgets_the_top():
    full = update()
    defence = DualGradientPruning(feedback="bottom")
    sent = defence.on_update(full, context())
    for name, tensor in full.items():
        residual = defence.state_dict()[f"residual.{name}"]
        top = tensor.abs() >= tensor.abs().flatten().topk(math.ceil(0.05 * tensor.numel())).values.min()
        assert not residual[top].any()
        assert torch.equal((residual + sent[name])[~top], tensor[~top])


def test_no_feedback_sends_the_same_every_round():
    defence = DualGradientPruning(feedback="none")
    first, second = (defence.on_update(update(), context(number)) for number in range(2))
    assert all(torch.equal(first[name], second[name]) for name in SIZES)


def test_the_mask_may_be_chosen_by_the_gradient_alone():
    defence = DualGradientPruning(mask="gradient")
    first = defence.on_update(update(0), context(0))
    again = defence.on_update(update(0), context(1))
    assert all(torch.equal(first[name] != 0, again[name] != 0) for name in SIZES)  # whatever the residual is
    literal = DualGradientPruning()
    one, two = literal.on_update(update(0), context(0)), literal.on_update(update(0), context(1))
    assert not torch.equal(one["weight"] != 0, two["weight"] != 0)


def test_the_literal_rule_starves_what_is_largest_and_says_so():
    defence = DualGradientPruning()
    source = generator(5)
    mean = torch.randn(500, generator=source)
    for number in range(STALE_ROUNDS + 5):
        defence.on_update({"w": mean + 0.1 * torch.randn(500, generator=source)}, context(number))
        remark = defence.report().remarks[0]
        if number == STALE_ROUNDS - 2:
            assert remark.startswith("0.0 %")
    unsent = defence.state_dict()["unsent.w"]
    stale = unsent >= STALE_ROUNDS
    starved = mean.abs().topk(15).indices  # 3 %, well inside the 5 % that are withheld as largest
    assert bool(stale[starved].all())
    assert bool((defence.state_dict()["residual.w"][starved].abs() > STALE_ROUNDS * mean[starved].abs() * 0.9).all())
    assert remark.startswith(f"{100 * float(stale.float().mean()):.1f} %")


def test_a_client_that_missed_rounds_comes_back():
    defence = DualGradientPruning()
    first = defence.on_update(update(0), context(0))
    back = defence.on_update(update(1), context(11))
    residual = defence.state_dict()
    for name in SIZES:
        total = first[name] + back[name] + residual[f"residual.{name}"]
        assert torch.equal(total, update(0)[name] + update(1)[name])


def test_foreign_states_are_refused():
    with pytest.raises(InputError, match="never use"):
        DualGradientPruning(k1=0, k2=0).load_state_dict({"residual.w": torch.ones(2)})
    with pytest.raises(InputError, match="keeps no residual"):
        DualGradientPruning(feedback="none").load_state_dict({"residual.w": torch.ones(2)})
    with pytest.raises(InputError, match="bytes"):
        DualGradientPruning().load_state_dict({"unsent.w": torch.ones(2)})
    foreign = DualGradientPruning(feedback="none")
    foreign.load_state_dict({"unsent.w": torch.ones(2, dtype=torch.uint8)})
    with pytest.raises(InputError, match="another model"):
        foreign.on_update(update(), context())


@pytest.mark.parametrize("options", ["k1=-0.1", "k1=0.5,k2=0.5", "k2=1"])
def test_shares_that_leave_nothing_are_refused(options: str):
    with pytest.raises(UsageError, match="k1"):
        build_defence(f"dgp:{options}")


def test_traits():
    assert DualGradientPruning().traits.data_dependent_mask
    assert DualGradientPruning().traits.keeps_residual
    assert not DualGradientPruning(feedback="none").traits.keeps_residual
    assert not DualGradientPruning(k1=0, k2=0).traits.data_dependent_mask
    with pytest.raises(UsageError, match="alike"):
        build_defence("adadefense+dgp")
    build_defence("dgp+adadefense")


def test_the_hinge_is_zero_at_the_truth_and_counts_contradictions():
    truth = update()
    sent = DualGradientPruning().on_update(truth, context())
    assert float(hinge(truth, sent)) == 0
    seen = sent["weight"].abs()
    low, high = float(seen[seen > 0].min()), float(seen.max())
    middle = torch.where(sent["weight"] == 0, (low + high) / 2, sent["weight"])
    assert float(hinge({"weight": middle}, {"weight": sent["weight"]})) == pytest.approx(1)
    quarter = torch.where(sent["weight"] == 0, low + (high - low) / 4, sent["weight"])
    assert float(hinge({"weight": -quarter}, {"weight": sent["weight"]})) == pytest.approx(0.5)
    assert float(hinge({"weight": 1e6 * middle}, {"weight": 1e6 * sent["weight"]})) == pytest.approx(1)
    assert float(hinge(truth, {name: torch.zeros_like(t) for name, t in truth.items()})) == 0


def replace_hinge(defence: DualGradientPruning, weight: float) -> DualGradientPruning:
    """Return a defence in the same state whose attacker weighs what was not sent."""
    other = DualGradientPruning(defence.k1, defence.k2, defence.feedback, hinge=weight)
    other.load_state_dict(defence.state_dict())
    return other


def test_in_later_rounds_only_what_is_free_of_residuals_is_compared():
    defence = DualGradientPruning()
    sent = [defence.on_update(update(seed), context(seed)) for seed in range(3)]
    view = defence.attacker_view()
    assert view.penalty is None
    read = view.read(sent[2])
    for name in SIZES:
        both = (sent[1][name] != 0) & (sent[2][name] != 0)
        assert torch.equal(read[name] != 0, both)
        assert torch.equal(read[name][both], update(2)[name][both])  # the gradient itself
    without = DualGradientPruning(feedback="none")
    for seed in range(2):
        last = without.on_update(update(seed), context(seed))
    assert without.attacker_view().penalty is None
    view = replace_hinge(without, 0.5).attacker_view()
    assert view.penalty is not None
    middle = {"weight": 0.9 * last["weight"].abs().max() * torch.ones_like(last["weight"])}
    cost = float(view.penalty(middle, {"weight": last["weight"]}))
    assert cost == pytest.approx(0.5 * float(hinge(middle, {"weight": last["weight"]})))
    assert cost > 0
    assert all(torch.equal(view.read(last)[name], last[name]) for name in SIZES)


def observed_face(number: int, rounds: int) -> tuple[Observation, Observation, Tensor]:
    """Return what naive and aware attackers see of a face on LeNet after rounds with other faces, and the face."""
    faces = DATASETS.build("faces")
    model = build_model("lenet", input_shape=faces.shape, num_classes=len(faces.classes), seed=0)
    defence = build_defence("dgp")
    for earlier in reversed(range(rounds)):
        face = faces.batch(torch.tensor([number + earlier]))
        sent = client_round(model, [face], RoundConfig(), defence, generator(0)).update
    knowledge = Knowledge(
        faces.shape, len(faces.classes), label_rule="true", batch_size=1, labels=face.labels, local_steps=1, clients=1
    )
    naive = Observation(model, sent, knowledge)
    return naive, make_aware(naive, defence), face.images


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_who_knows_dgp_sees_faces_that_others_do_not(rounds: int):
    attack, budget = ATTACKS.build("ig:tv=0.01"), Budget(iterations=100, restarts=1)
    faces = [observed_face(number, rounds) for number in (0, 30)]
    scores = []
    for aware in (0, 1):
        observations = [replace(face[aware], model=faces[0][0].model) for face in faces]
        found = attack.run_many(observations, budget, [0, 1])
        scores.append(
            [float(psnr(face[2], one.images, data_range=1.0)) for face, one in zip(faces, found, strict=True)]
        )
    assert all(aware > naive + 1 for naive, aware in zip(*scores, strict=True)), scores


def test_the_view_reproduces_the_upload_under_noise_before_it():
    defence = build_defence("gaussian:sigma=0,clip=0.01+dgp")
    full: Tensors = update()
    sent = defence.on_update(defence.on_gradient(full, context()), context())
    simulated = defence.attacker_view().simulate(full, sent)
    torch.testing.assert_close(flatten(simulated), flatten(sent))
