"""Outpost: how often it acts, what it prunes, where the noise goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.outpost import Outpost, risk
from fedseal.defences.pipeline import build_defence


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))


MODEL = model()


def context(source: torch.Generator, step: int = 0, round_number: int = 0) -> RoundContext:
    return RoundContext(MODEL, None, source, round_number, step)  # type: ignore[arg-type]


def gradient(seed: int = 0) -> Tensors:
    source = generator(seed, "gradient")
    return {name: torch.randn(p.shape, generator=source) for name, p in MODEL.named_parameters()}


def test_at_iteration_8_it_acts_half_of_the_time():
    defence, source, small = Outpost(), generator(0), {"0.bias": torch.ones(40)}
    assert defence.probability(8) == 0.5
    acted = sum(defence.on_gradient(small, context(source, step=7)) is not small for _ in range(2_000))
    assert acted / 2_000 == pytest.approx(0.5, abs=0.045)  # four deviations
    assert defence.report().remarks == (f"outpost acted in {acted} of 2000 steps",)


def test_it_changes_the_gradient_when_it_acts():
    sent = Outpost(beta=0).on_gradient(gradient(), context(generator(0)))
    assert all(not torch.equal(sent[name], g) for name, g in gradient().items())


def test_each_tensor_is_pruned_at_its_own_percentile():
    sent = Outpost(beta=0, noise=0).on_gradient(gradient(), context(generator(0)))
    for name, g in gradient().items():
        kept = sent[name] != 0
        assert int(kept.sum()) == pytest.approx(0.2 * g.numel(), abs=1)
        assert torch.equal(sent[name][kept], g[kept])
        assert float(g[kept].abs().min()) >= float(g[~kept].abs().max())


def test_noise_lies_where_the_fisher_information_is_largest():
    g = gradient()
    sent = Outpost(beta=0, prune=0).on_gradient(g, context(generator(0)))
    information = {name: t.square().mean(0) for name, t in g.items()}
    every = torch.cat([t.flatten() for t in information.values()])
    noisy = {name: (sent[name] != t) for name, t in g.items()}
    columns = {name: n.any(0).flatten() for name, n in noisy.items()}
    assert float(torch.cat(list(columns.values())).double().mean()) == pytest.approx(0.4, abs=0.02)
    threshold = every.quantile(0.6)
    for name, t in information.items():
        assert torch.equal(columns[name], (t >= threshold).flatten())


def test_the_noise_has_the_deviation_of_the_risk():
    g = {name: torch.zeros_like(t) for name, t in gradient().items()}
    sent = Outpost(beta=0, noise=0.8, phi=100).on_gradient(g, context(generator(0)))
    weights = dict(MODEL.named_parameters())["0.weight"].detach()
    assert risk(weights) == pytest.approx(float(weights.var()))
    assert float(sent["0.weight"].std()) == pytest.approx(0.8 * risk(weights), rel=0.05)


def test_the_risk_is_at_most_one_and_defined_for_a_single_weight():
    assert risk(10 * torch.randn(100)) == 1.0
    assert risk(torch.tensor([3.0])) == 0.0


def test_noise_is_fresh_in_every_step():
    defence, source = Outpost(beta=0), generator(0)
    first, second = (defence.on_gradient(gradient(), context(source)) for _ in range(2))
    assert not torch.equal(flatten(first), flatten(second))


def test_the_iteration_is_counted_in_the_round_or_over_all():
    per_round, overall = Outpost(counter="round"), Outpost(counter="total")
    for number in range(3):
        for step in range(2):
            for defence in (per_round, overall):
                defence.on_gradient(gradient(), context(generator(0), step, number))
    assert per_round.state_dict() == {}
    assert int(overall.state_dict()["iteration"]) == 6
    restored = Outpost(counter="total")
    restored.load_state_dict(overall.state_dict())
    assert restored.state_dict() == overall.state_dict()
    with pytest.raises(UsageError, match="state"):
        restored.load_state_dict({"other": torch.ones(1)})


def test_over_batches_the_information_is_the_sum_of_squares():
    defence = Outpost(fisher="batches")
    for seed in range(3):
        defence.on_gradient(gradient(seed), context(generator(seed)))
    expected = sum(gradient(seed)["0.weight"].square() for seed in range(3))
    torch.testing.assert_close(defence.state_dict()["fisher.0.weight"], expected)
    sent = Outpost(fisher="batches", beta=0, prune=0).on_gradient(gradient(), context(generator(0)))
    hit = flatten(sent) != flatten(gradient())
    assert float(hit.double().mean()) == pytest.approx(0.4, abs=0.01)


def test_without_pruning_and_noise_it_returns_the_gradient_itself():
    g = gradient()
    assert Outpost(beta=0, prune=0, noise=0).on_gradient(g, context(generator(0))) is g


def test_an_aware_attacker_compares_what_was_sent():
    sent = Outpost(beta=0, noise=0).on_gradient(gradient(), context(generator(0)))
    simulated = Outpost().attacker_view().simulate(gradient(), sent)
    assert all(torch.equal(simulated[name], sent[name]) for name in sent)


@pytest.mark.parametrize("option", ["beta=-1", "phi=101", "prune=-1", "noise=nan", "prune=nan"])
def test_nonsense_is_refused(option: str):
    with pytest.raises(UsageError, match="outpost"):
        build_defence(f"outpost:{option}")
