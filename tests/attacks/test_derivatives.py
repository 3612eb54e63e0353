"""Both ways to second-order products agree with each other, with numerical differences, and with single runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedseal.attacks.matching import differences
from fedseal.attacks.matching.derivatives import Exact, FiniteDifference, choose_derivatives, multiply_adds
from fedseal.attacks.matching.differences import _Passes
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.threads import one_thread
from fedseal.federation.client import RoundConfig
from fedseal.models import unfolded
from fedseal.models.registry import build_model

SHAPE = (3, 16, 16)


def prepared(spec: str, observation: Observation) -> tuple[MatchingProblem, torch.Tensor, Lanes]:
    attack = ATTACKS.build(spec)
    assert isinstance(attack, MatchingAttack)
    problem = attack._problem(observation)
    guess = attack._guess(observation, 0)
    z = attack._start(problem, guess, 0, 0).unsqueeze(0)
    lanes = attack._lanes(problem, [observation], [guess], 1)
    return problem, z.to(lanes.observed), lanes


@pytest.mark.parametrize("spec", ["ig:tv=0.05", "fedleak", "gradinversion:bn=batch", "sapag", "bayes", "idlg"])
@pytest.mark.parametrize("bn_mode", ["eval", "train-exact-stats"])
def test_finite_differences_agree_with_double_backward(spec: str, bn_mode: str, observe: Callable) -> None:
    if "bn=batch" in spec and bn_mode == "eval":
        spec = "gradinversion:bn=running"
    model = build_model("resnet10:width=8", input_shape=SHAPE, num_classes=10, seed=0)
    observation, _ = observe(model, shape=SHAPE, batch_size=4, config=RoundConfig(bn_mode=bn_mode))
    problem, z, lanes = prepared(spec, observation)
    exact = Exact(problem)(z, lanes)
    for fast, least in ((FiniteDifference(problem), 0.99), (FiniteDifference(problem, step=1e-3, central=True), 0.999)):
        found = fast(z, lanes)
        assert torch.allclose(exact.values, found.values, rtol=1e-4)
        assert float(torch.cosine_similarity(exact.gradients, found.gradients)) > least
        assert float(found.gradients.norm() / exact.gradients.norm()) == pytest.approx(1, abs=0.05)


def test_frozen_pooling_and_functional_relu(observe: Callable) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.deep = nn.Conv2d(8, 8, 3, padding=1)
            self.fc = nn.Linear(8 * 16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
            x = nn.functional.max_pool2d(nn.functional.leaky_relu(self.deep(x), 0.1), kernel_size=2)
            return self.fc(x.flatten(1))

    observation, _ = observe(Functional(), shape=SHAPE, batch_size=2)
    problem, z, lanes = prepared("ig", observation)
    exact, fast = Exact(problem)(z, lanes), FiniteDifference(problem)(z, lanes)
    assert float(torch.cosine_similarity(exact.gradients, fast.gradients)) > 0.999


def test_exact_gradient_agrees_with_numerical_differences(toy_net: Callable, observe: Callable) -> None:
    observation, _ = observe(toy_net(0), dtype=torch.float64, labels="unknown")
    for spec in ("ig:tv=0.01", "fedleak", "dlg"):
        problem, z, lanes = prepared(spec, observation)
        result = Exact(problem)(z, lanes)
        direction = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
        step = 1e-6
        ahead = Exact(problem)(z + step * direction, lanes, selections=result.selections).values
        behind = Exact(problem)(z - step * direction, lanes, selections=result.selections).values
        slope = float((ahead - behind) / (2 * step))
        assert slope == pytest.approx(float((result.gradients * direction).sum()), rel=1e-3)


def test_a_single_lane_is_cheaper_by_finite_differences(observe: Callable) -> None:
    model = build_model("resnet10:width=4", input_shape=SHAPE, num_classes=10, seed=0)
    problem, z, lanes = prepared("ig", observe(model, shape=SHAPE)[0])
    assert isinstance(choose_derivatives(problem, "auto", z, lanes), FiniteDifference)


def test_inner_products_give_the_same_direction_as_autograd(toy_net: Callable, observe: Callable) -> None:
    for spec in ("ig", "gradinversion"):
        problem, z, lanes = prepared(spec, observe(toy_net(0), dtype=torch.float64)[0])
        assert problem.product_objective is not None
        for central, close in ((True, 1e-5), (False, 1e-3)):  # one side's error depends on the step, which is rounded
            fast = FiniteDifference(problem, central=central)
            by_products = fast(z, lanes)
            fast._match_products = lambda dummy, factors, observed: None  # type: ignore[method-assign]
            by_autograd = fast(z, lanes)
            assert torch.allclose(by_products.values, by_autograd.values, rtol=1e-9)
            off = (by_products.gradients - by_autograd.gradients).norm() / by_autograd.gradients.norm()
            assert float(off) < close


class TwiceUsed(nn.Module):
    """A network whose large weights are convolved with twice, other ones also read as they are."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
            self.shared = nn.Conv2d(64, 64, 3, padding=1, bias=False)
            self.read = nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False)
            self.idle = nn.Conv2d(64, 64, 3, padding=1, bias=False)
            self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.shared(x))
        self.idle(x)  # nothing comes of it
        x = torch.tanh(self.read(torch.relu(self.shared(x))))
        return self.head(x.mean((2, 3))) * (1 + 0.1 * self.read.weight.square().mean())


def test_gradients_that_are_not_formed_give_what_formed_ones_do(observe: Callable, monkeypatch) -> None:
    """Layers of few pixels and many weights, also where weights are shared, read otherwise or not used."""
    monkeypatch.setattr(unfolded, "_has_products", lambda: True)  # as on a processor where it is worth it
    observation, _ = observe(TwiceUsed().eval(), shape=SHAPE, batch_size=2)
    for spec in ("ig:tv=0.05", "gradinversion:bn=none"):
        problem, z, lanes = prepared(spec, observation)
        with one_thread():
            fast = FiniteDifference(problem)
            passes: list[_Passes] = []

            def kept(given: dict[str, torch.Tensor], passes: list[_Passes] = passes) -> _Passes:
                passes.append(_Passes(given))
                return passes[-1]

            monkeypatch.setattr(differences, "_Passes", kept)
            for place in (z, z + 0.01):  # the second by the weights that are kept
                found, exact = fast(place, lanes), Exact(problem)(place, lanes)
                assert len(passes[-1].outputs) == 4  # shared twice, read, idle: all without a gradient formed
                assert torch.allclose(exact.values, found.values, rtol=1e-4)
                assert float(torch.cosine_similarity(exact.gradients, found.gradients)) > 0.99
                assert float(found.gradients.norm() / exact.gradients.norm()) == pytest.approx(1, abs=0.05)


def test_lanes_in_turn_do_not_share_what_is_kept(observe: Callable, monkeypatch) -> None:
    monkeypatch.setattr(unfolded, "_has_products", lambda: True)
    model = TwiceUsed().eval()
    seen = [observe(model, shape=SHAPE, seed=seed)[0] for seed in (1, 2)]
    problem, z, lanes = prepared("ig:tv=0.05", seen[0])
    both = Lanes(torch.stack([lanes.observed[0], prepared("ig", seen[1])[2].observed[0]]), lanes.labels.repeat(2, 1))
    with one_thread():
        fast = FiniteDifference(problem)
        for _ in range(2):
            together = fast(z.repeat(2, 1), both)
            for lane in range(2):
                alone = FiniteDifference(problem)(z, both.pick(torch.tensor([lane])))
                assert torch.equal(alone.gradients[0], together.gradients[lane])


def test_vectorised_lanes_equal_single_runs(toy_net: Callable, observe: Callable) -> None:
    model = toy_net(0)
    pairs = [observe(model, seed=seed, dtype=torch.float64)[0] for seed in range(5)]
    parts = [prepared("fedleak", observation) for observation in pairs]
    problem = parts[0][0]
    z = torch.cat([part[1] for part in parts]) + torch.arange(5)[:, None] * 0.01
    lanes = Lanes(
        torch.cat([part[2].observed for part in parts]),
        torch.cat([part[2].labels for part in parts]),  # type: ignore[misc]
    )
    together = Exact(problem).vectorised(z, lanes)
    for lane in range(5):
        alone = Exact(problem)(z[lane : lane + 1], lanes.pick(torch.tensor([lane])))
        assert torch.allclose(together.gradients[lane], alone.gradients[0], atol=1e-12)
        assert torch.equal(together.selections[lane], alone.selections[0])


@pytest.mark.parametrize(
    ("model", "spec", "batch", "steps"),
    [
        ("lenet", "ig", 1, 1),
        ("lenet", "fedleak", 3, 1),
        ("lenet", "dlg", 1, 1),
        ("mlp:width=33", "sapag", 1, 1),
        ("resnet10:width=4", "ig", 2, 1),
        ("lenet-relu", "ig", 1, 2),
    ],
)
def test_a_lane_has_the_same_bits_alone_and_beside_others(
    model: str, spec: str, batch: int, steps: int, observe: Callable
) -> None:
    """Products of odd sizes, thin matrices and sigmoids' remainders are where libraries round by place and number."""
    shape = (1, 9, 9)
    net = build_model(model, input_shape=shape, num_classes=10, seed=0)
    config = RoundConfig(local_steps=steps)
    seen = [observe(net, shape=shape, batch_size=batch, seed=s, config=config)[0] for s in range(5)]
    parts = [prepared(spec, observation) for observation in seen]
    problem, z = parts[0][0], torch.cat([part[1] for part in parts])
    labels = None if parts[0][2].labels is None else torch.cat([part[2].labels for part in parts])  # type: ignore[misc]
    lanes = Lanes(torch.cat([part[2].observed for part in parts]), labels)
    with one_thread():
        evaluate = choose_derivatives(problem, "auto", z, lanes)
        together = evaluate(z, lanes)
        for places in ([0], [3], [4, 1], [2, 0, 3]):
            chosen = torch.tensor(places)
            some = evaluate(z[chosen], lanes.pick(chosen))
            assert torch.equal(some.values, together.values[chosen])
            assert torch.equal(some.gradients, together.gradients[chosen])


def test_auto_takes_the_exact_way_where_it_must(observe: Callable) -> None:
    model = build_model("resnet10:width=16", input_shape=SHAPE, num_classes=10, seed=0)
    large, _ = observe(model, shape=SHAPE, batch_size=2)
    assert isinstance(choose_derivatives(*_auto(prepared("ig", large))), FiniteDifference)

    class Unfrozen(nn.Module):
        """Kinks of a kind that is not frozen, so that finite differences would be wrong."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 64, 3, padding=1)
            self.deep = nn.Conv2d(64, 64, 3, padding=1)
            self.fc = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.hardtanh(20 * self.deep(torch.nn.functional.hardtanh(20 * self.conv(x))))
            return self.fc(x.mean((2, 3)))

    odd, _ = observe(Unfrozen(), shape=SHAPE, batch_size=2)
    assert isinstance(choose_derivatives(*_auto(prepared("ig", odd))), Exact)


def test_a_model_that_no_way_serves_is_refused_with_the_reason(observe: Callable) -> None:
    class Rough(nn.Module):
        """A gate that PyTorch cannot differentiate twice, on waves that are shorter than any step."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.hardsigmoid((1e6 * self.fc(x.flatten(1))).sin())

    seen, _ = observe(Rough())
    with pytest.raises(CapabilityError, match="hardsigmoid_backward is not implemented, and its finite differences"):
        choose_derivatives(*_auto(prepared("ig", seen)))
    with pytest.raises(CapabilityError, match=r"hardsigmoid_backward is not implemented\. Use second_order="):
        choose_derivatives(*_auto(prepared("ig:second_order=exact", seen), "exact"))


def _auto(parts: tuple[MatchingProblem, torch.Tensor, Lanes], mode: str = "auto") -> tuple:
    problem, z, lanes = parts
    twice = torch.zeros(2, dtype=torch.long)
    return problem, mode, z[twice], lanes.pick(twice)


def test_multiply_adds_of_a_known_network() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 10))
    assert multiply_adds(net, (2, 3, 8, 8)) == 2 * (4 * 64 * 27 + 2560)


def test_unrolling_one_step_equals_the_gradient(toy_net: Callable, observe: Callable) -> None:
    model = toy_net(0)
    one, _ = observe(model, dtype=torch.float64)
    problem, z, lanes = prepared("ig", one)
    gradient = problem.update(z[0], lanes.labels[0])[0]  # type: ignore[index]
    from fedseal.attacks.matching.problem import Unroll

    problem.unroll, problem._scale = Unroll(1, 0.1), -0.1
    unrolled = problem.update(z[0], lanes.labels[0])[0]  # type: ignore[index]
    assert torch.allclose(unrolled * -0.1, -0.1 * gradient, atol=1e-12)


def test_unrolling_reproduces_a_clients_weight_change(toy_net: Callable, observe: Callable) -> None:
    observation, truth = observe(
        toy_net(0), batch_size=2, config=RoundConfig(local_steps=3, learning_rate=0.5), dtype=torch.float64
    )
    problem, _, lanes = prepared("ig", observation)
    dummy = problem.update(truth.images.reshape(-1), truth.labels)[0]
    assert torch.allclose(dummy, lanes.observed[0], atol=1e-10)


@pytest.mark.parametrize("mode", ["auto", "exact", "finite-difference"])
def test_parameters_the_model_does_not_use_have_no_gradient(mode: str, observe: Callable) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))
            self.body = build_model("resnet10:width=4", input_shape=SHAPE, num_classes=10, seed=0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.body(x)
            return logits

    problem, z, lanes = prepared("ig", observe(Spare(), shape=SHAPE)[0])
    evaluation = choose_derivatives(problem, mode, z, lanes)(z, lanes)  # type: ignore[arg-type]
    assert bool(torch.isfinite(evaluation.gradients).all())
    assert bool(evaluation.gradients.any())
