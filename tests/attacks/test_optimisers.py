"""Adam and L-BFGS for many lanes, against PyTorch's own and known minima."""

from __future__ import annotations

import math

import pytest
import torch

from fedseal.attacks.matching.adam import Adam, AdamWalk
from fedseal.attacks.matching.descent import Descent, LookAhead, Surroundings
from fedseal.attacks.matching.evaluation import Evaluation
from fedseal.attacks.matching.lbfgs import LBFGS
from fedseal.attacks.matching.problem import Lanes
from fedseal.attacks.matching.schedules import anneal_at, learning_rate_at
from fedseal.attacks.matching.steps import Ground, Moved

NO_LANES = Lanes(torch.zeros(3, 1), None)


def around(**changes: object) -> Surroundings:
    values = {"report": lambda *a: None, "report_every": 10, "sources": ()}
    return Surroundings(**(values | changes))  # type: ignore[arg-type]


def rosenbrock(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
    z = z.detach().requires_grad_()
    values = (100 * (z[:, 1:] - z[:, :-1] ** 2) ** 2 + (1 - z[:, :-1]) ** 2).sum(1)
    (gradients,) = torch.autograd.grad(values.sum(), z)
    return Evaluation(values.detach(), gradients, z.new_zeros(len(z), 0))


def square(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
    return Evaluation(z.square().sum(1), 2 * z, z.new_zeros(len(z), 0))


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_equals_torch(decay: float) -> None:
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = Descent(Adam(weight_decay=decay), lr=0.05).minimise(rosenbrock, start, NO_LANES, 25, around())
    z = start.clone().requires_grad_()
    theirs = torch.optim.AdamW([z], lr=0.05, weight_decay=decay)
    for _ in range(25):
        theirs.zero_grad()
        z.grad = rosenbrock(z.detach(), NO_LANES).gradients
        theirs.step()
    assert torch.allclose(ours.z, z.detach(), atol=1e-10)


def test_signed_adam_takes_steps_of_the_learning_rate_at_first() -> None:
    start = torch.tensor([[3.0, -2.0]])
    moved = Descent(Adam(signed=True), lr=0.1).minimise(square, start, Lanes(torch.zeros(1, 1), None), 1, around())
    assert torch.allclose(moved.z, torch.tensor([[2.9, -1.9]]), atol=1e-6)


def test_learning_rate_falls_at_the_three_milestones() -> None:
    rates = [learning_rate_at("steps", step, 800) for step in range(800)]
    changes = [step for step in range(1, 800) if not math.isclose(rates[step], rates[step - 1])]
    assert changes == [300, 500, 700]
    assert [rates[0], rates[300], rates[500], rates[700]] == pytest.approx([1, 0.1, 0.01, 0.001])
    assert learning_rate_at("cosine", 0, 100) == 1
    assert learning_rate_at("cosine", 50, 100) == pytest.approx(0.5)
    assert [learning_rate_at("cosine", s, 100, warmup=4) for s in range(4)] == [0.25, 0.5, 0.75, 1]
    assert learning_rate_at("exponential", 50, 100) == pytest.approx(0.94**50)
    assert [anneal_at(0.01, p) for p in (0, 0.5, 1)] == pytest.approx([0.01, 0.1, 1])


def test_look_ahead_blends_as_in_appendix_d() -> None:
    """y = x^2, x = 1/2, forward point -1/2: gradients 1 and -1 blended at 0.3 give 0.4 (FedLeak, App. D)."""
    seen: list[float] = []

    def spy(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
        seen.append(float(z))
        return square(z, lanes)

    blended: list[torch.Tensor] = []

    class Watched:
        def begin(self, z: torch.Tensor) -> AdamWalk:
            walk = Adam(eps=0.0, betas=(0.0, 0.0)).begin(z)
            original = walk.move

            def move(z: torch.Tensor, here: Evaluation, rate: float, ground: Ground) -> Moved:
                blended.append(here.gradients)
                return original(z, here, rate, ground)

            walk.move = move  # type: ignore[method-assign]
            return walk

    descent = Descent(Watched(), lr=1.0, look_ahead=LookAhead(0.3))
    descent.minimise(spy, torch.tensor([[0.5]]), Lanes(torch.zeros(1, 1), None), 1, around())
    assert seen[:2] == pytest.approx([0.5, -0.5])
    assert float(blended[0]) == pytest.approx(0.4)


def test_look_ahead_with_ascent_goes_up() -> None:
    seen: list[float] = []

    def spy(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
        seen.append(float(z))
        return square(z, lanes)

    descent = Descent(Adam(), lr=1.0, look_ahead=LookAhead(0.3, toward="ascent"))
    descent.minimise(spy, torch.tensor([[0.5]]), Lanes(torch.zeros(1, 1), None), 1, around())
    assert seen[1] == pytest.approx(1.5)


def test_zero_blend_is_plain_adam() -> None:
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    plain = Descent(Adam(), lr=0.05).minimise(rosenbrock, start, NO_LANES, 20, around())
    with_look = Descent(Adam(), lr=0.05, look_ahead=LookAhead(0.0)).minimise(rosenbrock, start, NO_LANES, 20, around())
    assert torch.equal(plain.z, with_look.z)


def test_projection_holds_after_every_step() -> None:
    lows: list[float] = []
    found = Descent(Adam(), lr=0.5).minimise(
        square,
        torch.ones(1, 2),
        Lanes(torch.zeros(1, 1), None),
        30,
        around(project=lambda z: z.clamp(0.25, 1), report=lambda s, v, z: lows.append(float(z.min())), report_every=1),
    )
    assert min(lows) >= 0.25
    assert torch.allclose(found.z, torch.full((1, 2), 0.25))


def test_early_stopping_lets_settled_lanes_go() -> None:
    calls: list[int] = []

    def evaluate(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
        calls.append(len(z))
        return square(z, lanes)

    start = torch.tensor([[0.0], [10.0]])  # the first is where it wants to be, the second is still far off
    lanes = Lanes(torch.zeros(2, 1), None)
    found = Descent(Adam(), lr=0.1, schedule="steps", patience=1e-4).minimise(evaluate, start, lanes, 200, around())
    assert (calls[0], calls[-1]) == (2, 1)
    assert found.steps.tolist() == [160, 200]
    full = Descent(Adam(), lr=0.1, schedule="steps").minimise(square, start, lanes, 200, around())
    assert torch.allclose(full.z, found.z)


def test_lbfgs_finds_the_minimum_of_rosenbrock_in_every_lane() -> None:
    start = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = Descent(LBFGS(history=10, tolerance=1e-16)).minimise(
        rosenbrock, start, Lanes(torch.zeros(6, 1), None), 300, around()
    )
    known = {0.0, 3.930839}  # the two minima of the five-dimensional function
    assert all(min(abs(float(v) - k) for k in known) < 1e-5 for v in found.values)
    assert int((found.values < 1e-10).sum()) >= 4


def test_lbfgs_lanes_do_not_influence_each_other() -> None:
    start = torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    together = Descent(LBFGS()).minimise(rosenbrock, start, Lanes(torch.zeros(4, 1), None), 60, around())
    for lane in range(4):
        alone = Descent(LBFGS()).minimise(
            rosenbrock, start[lane : lane + 1], Lanes(torch.zeros(1, 1), None), 60, around()
        )
        assert torch.allclose(together.z[lane], alone.z[0], atol=1e-9)


def test_lbfgs_needs_no_more_evaluations_than_torch_on_a_quadratic() -> None:
    scales = torch.logspace(0, 3, 20, dtype=torch.float64)
    counts = {"ours": 0, "theirs": 0}

    def evaluate(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
        counts["ours"] += 1
        return Evaluation((scales * z.square()).sum(1), 2 * scales * z, z.new_zeros(len(z), 0))

    start = torch.ones(1, 20, dtype=torch.float64)
    found = Descent(LBFGS(tolerance=1e-10)).minimise(evaluate, start, Lanes(torch.zeros(1, 1), None), 200, around())
    z = start.clone().requires_grad_()
    reference = torch.optim.LBFGS([z], max_iter=200, history_size=50, line_search_fn="strong_wolfe", tolerance_change=0)

    def closure() -> torch.Tensor:
        reference.zero_grad()
        counts["theirs"] += 1
        loss = (scales * z.square()).sum()
        loss.backward()
        return loss

    reference.step(closure)
    assert float(found.values) < 1e-9
    assert counts["ours"] <= 1.5 * counts["theirs"] + 10


def test_a_diverging_lane_does_not_spoil_the_others() -> None:
    def evaluate(z: torch.Tensor, lanes: Lanes, weight: float = 1.0, selections: object = None) -> Evaluation:
        result = square(z, lanes)
        poisoned = torch.where(lanes.observed[:, 0] > 0, torch.nan, 0.0)
        return Evaluation(result.values + poisoned, result.gradients + poisoned[:, None], result.selections)

    lanes = Lanes(torch.tensor([[0.0], [1.0]]), None)
    for descent in (Descent(LBFGS()), Descent(Adam(), lr=0.1)):
        found = descent.minimise(evaluate, torch.ones(2, 3), lanes, 200, around())
        assert float(found.values[0]) < 1e-2
        assert not math.isfinite(float(found.values[1]))
