"""GLAUS: counts rank magnitudes, more draws rebuild the gradient better, and an audit gathers them."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

from fedseal.attacks.active.glaus import Draws, Glaus, count_draws, estimate_gradient
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.attack import Budget
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.minmax import minmax_sample
from fedseal.defences.pipeline import build_defence


def heavy_tailed(size: int, seed: int) -> torch.Tensor:
    source = generator(seed, "gradient")
    signs = torch.randn(size, generator=source, dtype=torch.float64).sign()
    return signs * torch.randn(size, generator=source, dtype=torch.float64).abs() ** 3


def drawn(gradient: torch.Tensor, number: int) -> Draws:
    source = generator(0, "draws")
    kept = len(gradient) // 20
    return count_draws([{"all": minmax_sample(gradient, kept, source)} for _ in range(number)])


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def test_counts_rank_magnitudes_and_rebuild_the_gradient():
    gradient, own = heavy_tailed(5000, 0), heavy_tailed(5000, 1)
    draws = drawn(gradient, 1000)
    assert spearmanr(draws.counts.numpy(), gradient.abs().numpy()).statistic > 0.9
    assert 0.1 < float((draws.counts == 0).double().mean()) < 0.6
    estimate = estimate_gradient(draws, own, own)
    assert cosine(estimate, gradient) > 0.9
    torch.testing.assert_close(estimate.abs().sort().values, own.abs().sort().values)


def test_more_draws_rebuild_better():
    gradient, own = heavy_tailed(3000, 0), heavy_tailed(3000, 1)
    quality = [cosine(estimate_gradient(drawn(gradient, n), own, own), gradient) for n in (1, 10, 100, 1000)]
    assert quality == sorted(quality)
    assert quality[-1] - quality[0] > 0.2


def test_signs_and_ranks_by_hand():
    draws = Draws(5, torch.tensor([3, 0, 5, 1]), torch.tensor([-2.0, 0.0, 4.0, -0.5]))
    own, others = torch.tensor([0.1, -0.4, 0.2, 0.3]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    torch.testing.assert_close(estimate_gradient(draws, own, others), torch.tensor([-0.3, -0.1, 0.4, -0.2]))


def setup(public: bool = True, **client: object) -> Setup:
    return build_setup(
        Scenario.model_validate(
            {
                "name": "glaus",
                "data": "digits:size=12",
                "model": "lenet:init=wide-uniform",
                "attacks": ["glaus"],
                "defences": ["minmax"],
                "targets": 2,
                "client": {"batch_size": 1, **client},
                "attacker": {"labels": "true", "public_data": public},
            }
        )
    )


def test_an_audit_gathers_draws_of_one_gradient():
    world = setup()
    plain = flatten(world.observe(build_defence("none"), 0).observation.update.tensors)
    near = {}
    for use in ("ranks", "mean"):
        attack = Glaus(draws=60, use=use)
        observation = world.observe(build_defence("minmax"), 0, name="minmax", attack=attack).observation
        draws = observation.memory
        assert isinstance(draws, Draws)
        assert draws.number == 60
        assert int(draws.counts.max()) <= 60 < int(draws.counts.sum())
        sent = draws.counts > 0
        assert torch.equal(draws.total.sign()[sent], plain.sign()[sent])
        rebuilt = attack.rebuilt(observation, draws, 0)
        near[use] = cosine(flatten(rebuilt.update.tensors), plain)
        one = cosine(flatten(observation.update.tensors), plain)
        assert near[use] > one
    assert min(near.values()) > 0.9
    attack.check(observation)


def test_several_targets_are_inverted_as_one_batch():
    world, attack = setup(), Glaus(draws=2, iterations=2)
    model = world.wrapped_model(build_defence("minmax"))
    observed = [
        world.observe(build_defence("minmax"), target, model=model, attack=attack).observation for target in range(2)
    ]
    heard: list[tuple[int, ...]] = []
    found = attack.run_many(observed, Budget(), [0, 1], lambda done, images: heard.append(tuple(images.shape)))
    assert [tuple(one.images.shape) for one in found] == [(1, 1, 12, 12)] * 2
    assert set(heard) == {(2, 1, 1, 12, 12)}
    assert all("2 draws" in one.notes[-1] for one in found)


def test_wrong_use_is_explained():
    with pytest.raises(UsageError, match="1 to 100000 draws, got 0"):
        Glaus(draws=0)
    with pytest.raises(CapabilityError, match="needs auxiliary"):
        setup(public=False).observe(build_defence("minmax"), 0, attack=Glaus(draws=1))
    with pytest.raises(CapabilityError, match="only a mean of clients"):
        setup(aggregate=2).observe(build_defence("minmax"), 0, attack=Glaus(draws=1))
    with pytest.raises(CapabilityError, match="not a weight change"):
        setup(local_steps=2).observe(build_defence("minmax"), 0, attack=Glaus(draws=1))
