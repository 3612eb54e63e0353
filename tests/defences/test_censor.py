"""CENSOR: orthogonal as printed, not as released; the luckiest draw is sent; and repeated rounds give it away."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.censor import Censor, across
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.loss import client_loss
from fedseal.federation.posthoc import seal_update


def victim(seed: int = 0) -> tuple[nn.Module, Batch]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 5))
    return model, Batch(torch.rand(2, 1, 4, 4), torch.tensor([1, 3]))


def sent_by(spec: str, seed: int, upload: str = "gradient") -> Tensors:
    model, batch = victim()
    config = RoundConfig(upload=upload)  # type: ignore[arg-type]
    return client_round(model, [batch], config, build_defence(spec), generator(seed)).update.tensors


def true_gradient() -> Tensors:
    return sent_by("none", 0)


def cosine(one: Tensor, other: Tensor) -> float:
    return float(nn.functional.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0))


def test_the_printed_projection_by_hand():
    sent = across(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0]))
    torch.testing.assert_close(sent, torch.tensor([3.0, 0.0]))


def test_the_released_projection_by_hand():
    # r.g = 3, |g| = 3, so r - 1 * g = (1, -2), scaled to norm 3
    sent = across(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0]), "released")
    torch.testing.assert_close(sent, torch.tensor([1.0, -2.0]) * 3 / 5**0.5)


def test_both_agree_where_the_norm_is_one():
    direction, unit = torch.randn(50, generator=generator(0)), torch.randn(50, generator=generator(1))
    unit = unit / unit.norm()
    torch.testing.assert_close(across(direction, unit, "released"), across(direction, unit))


@pytest.mark.parametrize("upload", ["gradient", "delta"])
def test_what_is_printed_is_orthogonal_to_every_tensor_and_of_its_norm(upload: str):
    plain = sent_by("none", 0, upload)
    for name, tensor in sent_by("censor", 3, upload).items():
        assert abs(cosine(tensor, plain[name])) < 1e-5
        assert float(tensor.norm()) == pytest.approx(float(plain[name].norm()), rel=1e-5)


def test_what_is_released_is_not_orthogonal():
    plain, sent = true_gradient(), sent_by("censor:variant=released", 3)
    assert max(abs(cosine(sent[name], plain[name])) for name in plain) > 0.05
    for name in plain:
        assert float(sent[name].norm()) == pytest.approx(float(plain[name].norm()), rel=1e-5)


def test_the_draw_of_the_lowest_loss_is_sent():
    model, batch = victim()
    gradient, loss = true_gradient(), client_loss(RoundConfig().normalisation, "mean", "cross-entropy")
    defence = Censor(trials=8, variant="released", step=0.5)
    context = RoundContext(model, loss, generator(5), batch=batch)
    sent, draws = defence.on_update(gradient, context), generator(5)
    found = []
    for _ in range(8):
        candidate = defence._candidate(gradient, draws)
        moved, _ = victim()
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter.sub_(0.5 * candidate[name])
        found.append((loss(moved, batch).item(), candidate))
    best = min(found, key=lambda one: one[0])[1]
    assert len({round(value, 6) for value, _ in found}) > 1
    assert all(torch.equal(sent[name], best[name]) for name in sent)


def test_more_trials_lower_the_loss_after_a_weight_change_as_after_a_gradient():
    plain = sent_by("none", 0, "delta")
    one, many = (
        [sum(cosine(s[n], plain[n]) for n in plain) for s in (sent_by(spec, seed, "delta") for seed in range(6))]
        for spec in ("censor:trials=1,variant=released", "censor:trials=40,variant=released,step=0.01")
    )
    assert sum(many) > sum(one)


def test_the_view_gives_the_upload_for_the_true_gradient_and_something_else_for_another():
    plain = true_gradient()
    model, batch = victim()
    defence = build_defence("censor")
    sent = client_round(model, [batch], RoundConfig(), defence, generator(1)).update.tensors
    view = defence.attacker_view()
    other = {name: torch.randn(t.shape, generator=generator(2, name)) for name, t in plain.items()}
    for name in plain:
        torch.testing.assert_close(view.simulate(plain, sent)[name], sent[name], rtol=1e-4, atol=1e-7)
        assert not torch.allclose(view.simulate(other, sent)[name], sent[name], rtol=1e-2)


@pytest.mark.parametrize("variant", ["printed", "released"])
def test_the_channel_passes_what_was_sent(variant: str):
    model, batch = victim()
    defence = build_defence(f"censor:variant={variant}")
    sent = client_round(model, [batch], RoundConfig(), defence, generator(1)).update.tensors
    passed = defence.attacker_view().carried().through(true_gradient(), sent)
    for name in sent:
        torch.testing.assert_close(passed[name], sent[name], rtol=1e-4, atol=1e-7)


def test_repeated_rounds_leave_only_the_gradient_open_so_the_printed_form_is_broken():
    plain = true_gradient()
    for name in ("3.bias", "1.bias"):
        rounds = torch.stack([sent_by("censor:trials=2", seed)[name] for seed in range(plain[name].numel() + 3)])
        values, directions = torch.linalg.svd(rounds.double(), full_matrices=True)[1:]
        assert float(values[-1]) < 1e-5 * float(values[0])
        found = directions[-1] * rounds[0].double().norm()  # its norm is sent as well
        assert abs(cosine(found, plain[name])) > 0.9999
        assert float(found.norm()) == pytest.approx(float(plain[name].norm()), rel=1e-5)


def test_the_mean_over_rounds_turns_to_the_gradient_so_the_released_form_is_broken():
    plain = flatten(true_gradient())
    rounds = torch.stack([flatten(sent_by("censor:variant=released,step=0.01", seed)) for seed in range(100)])
    single = sum(cosine(one, plain) for one in rounds) / len(rounds)
    assert cosine(rounds.mean(0), plain) > max(0.3, 3 * single)
    printed = torch.stack([flatten(sent_by("censor:trials=1", seed)) for seed in range(100)])
    assert abs(cosine(printed.mean(0), plain)) < 1e-4


def test_a_tensor_of_one_entry_is_not_sent():
    defence, loss = Censor(trials=1), client_loss(RoundConfig().normalisation, "mean", "cross-entropy")
    model, batch = victim()
    model.scale = nn.Parameter(torch.ones(1))
    context = RoundContext(model, loss, generator(0), batch=batch)
    sent = defence.on_update({"scale": torch.tensor([0.3])}, context)
    assert float(sent["scale"]) == 0


def test_a_gradient_of_zeros_stays_zero():
    model, batch = victim()
    loss = client_loss(RoundConfig().normalisation, "mean", "cross-entropy")
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    sent = Censor(trials=2).on_update(zeros, RoundContext(model, loss, generator(0), batch=batch))
    assert all(bool((tensor == 0).all()) for tensor in sent.values())


def test_bad_options_and_finished_updates_are_refused_in_words():
    with pytest.raises(UsageError, match="trials >= 0"):
        Censor(trials=-1)
    with pytest.raises(CapabilityError, match="acts while the client trains"):
        seal_update(
            Update({"w": torch.ones(3)}, "delta"),
            Censor(),
            generator(0),
            before={"w": torch.zeros(3)},
            round_number=0,
            client="a",
            learning_rate=0.1,
        )


def test_running_statistics_are_those_of_the_training_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    batch = Batch(torch.rand(4, 1, 4, 4), torch.arange(4))
    config = replace(RoundConfig(upload="delta"), bn_mode="train-nostats")
    for spec in ("none", "censor"):
        client_round(model, [batch], config, build_defence(spec), generator(0))
        assert bool((model[1].running_mean == 0).all())
