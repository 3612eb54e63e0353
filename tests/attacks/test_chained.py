"""The written-out derivatives of chains equal double backward, for every geometry, objective and kind of label."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.matching.chained import Chained, chained
from fedseal.attacks.matching.derivatives import Exact, choose_derivatives
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.attack import ATTACKS
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.models.chains.maps import linear_map
from fedseal.models.chains.stages import Link, read_chain

SHAPE = (3, 13, 10)


def _model(activation: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 5, (5, 3), stride=(2, 3), padding=(2, 0)),
        activation,
        nn.Conv2d(5, 4, 3, stride=2, padding=1, bias=False),
        activation,
        nn.Conv2d(4, 6, (1, 2)),
        activation,
        nn.Flatten(),
        nn.Linear(24, 7),
        activation,
        nn.Linear(7, 4),
    ).double()


def _prepared(
    spec: str, model: nn.Module, batch: int, lanes: int, **knowledge: object
) -> tuple[MatchingProblem, Tensor, Lanes]:
    torch.manual_seed(5)
    attack = ATTACKS.build(spec)
    assert isinstance(attack, MatchingAttack)
    observations = []
    for _ in range(lanes):
        images = torch.rand(batch, *SHAPE, dtype=torch.float64)
        labels = torch.randint(4, (batch,))
        loss = F.cross_entropy(model(images), labels)
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradient = dict(zip(trainable, torch.autograd.grad(loss, list(trainable.values())), strict=True))
        known = Knowledge(
            input_shape=SHAPE, num_classes=4, batch_size=batch, labels=labels, label_rule="true", **knowledge
        )  # type: ignore[arg-type]
        observations.append(Observation(model, Update(gradient), known))
    problem = attack._problem(observations[0])
    guesses = [attack._guess(one, 0) for one in observations]
    z = torch.stack([attack._start(problem, guess, seed, 0) for seed, guess in enumerate(guesses)])
    stacked = attack._lanes(problem, observations, guesses, 1)
    return problem, z.to(stacked.observed), stacked


def _agree(problem: MatchingProblem, z: Tensor, lanes: Lanes) -> None:
    fast = chained(problem)
    assert fast is not None
    mine, truth = fast(z, lanes, 0.7), Exact(problem)(z, lanes, 0.7)
    assert torch.allclose(mine.values, truth.values, rtol=1e-9)
    assert torch.allclose(
        mine.gradients, truth.gradients, rtol=1e-7, atol=1e-12 + 1e-9 * float(truth.gradients.abs().max())
    )
    assert torch.equal(mine.selections, truth.selections)
    if mine.selections.shape[1]:
        again = fast(z + 0.1, lanes, 1.0, mine.selections)
        fixed = Exact(problem)(z + 0.1, lanes, 1.0, mine.selections)
        assert torch.allclose(again.gradients, fixed.gradients, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.ReLU(), nn.LeakyReLU(0.1), nn.ELU()], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_activation_and_odd_geometry(activation: nn.Module, batch: int) -> None:
    _agree(*_prepared("ig:tv=0.05", _model(activation), batch, lanes=3))


@pytest.mark.parametrize(
    "spec",
    [
        "idlg",
        "dlg",
        "sapag",
        "fedleak:activation=0",
        "fedleak:activation=0.1",
        "ig:tv=0",
        "bayes",
        "gradinversion:bn=none",
    ],
)
def test_every_objective_and_label_mode(spec: str) -> None:
    _agree(*_prepared(spec, _model(nn.Sigmoid()), 2, lanes=2))


def test_frozen_layers_and_many_lanes() -> None:
    model = _model(nn.Tanh())
    next(model.parameters()).requires_grad_(False)
    problem, z, lanes = _prepared("idlg", model, 1, lanes=3)
    many = torch.arange(70) % 3
    _agree(problem, z[many] + torch.arange(70)[:, None] * 1e-3, lanes.pick(many))


GEOMETRIES = [
    (8, 5, 2, 2),
    (9, 5, 2, 2),
    (7, 3, 1, 1),
    (8, 1, 2, 0),
    (9, 2, 3, 0),
    (10, 3, 3, 1),
    (6, 4, 2, 1),
    (11, 5, 4, 0),
]
"""Side, kernel, stride and padding."""


def test_linear_maps_equal_their_definition() -> None:
    torch.manual_seed(0)
    for stage in read_chain(_model(nn.Identity()), SHAPE):
        linear = linear_map(stage)
        x = torch.rand(2, 3, *stage.input_shape, dtype=torch.float64)
        y = torch.rand(2, 3, *stage.output_shape, dtype=torch.float64)
        own = torch.rand(2, stage.weight.numel(), dtype=torch.float64)
        assert torch.allclose(linear.push(x)[1], stage.apply(x[1]))
        assert torch.allclose(linear.pull(y)[1], stage.apply_transposed(y[1]))
        assert torch.allclose(
            (linear.push_each(linear.columns(x), own) * y).sum((1, 2) if y.dim() == 3 else (1, 2, 3, 4)),
            (linear.weight_gradient(y, linear.columns(x)) * own).sum(1),
        )
        pulled = linear.pull_each(linear.windows(y), own)
        pushed = linear.push_each(linear.columns(x), own)
        assert torch.allclose((pulled * x).flatten(1).sum(1), (pushed * y).flatten(1).sum(1))
        shared = stage.weight.reshape(1, -1).expand(2, -1)
        assert torch.allclose(linear.push_each(linear.columns(x), shared), linear.push(x))
        both = linear.push_each(linear.columns(x), own, 2 * x)
        assert torch.allclose(both, pushed + 2 * linear.push(x))
        both = linear.pull_each(linear.windows(y), own, 2 * y)
        assert torch.allclose(both, pulled + 2 * linear.pull(y))


@pytest.mark.parametrize("priors", [Priors(tv=0.3), Priors(tv=0.3, tv_per_pixel=True, l2=0.2), Priors(l2=0.2)])
def test_priors_of_lanes_and_their_slopes_equal_those_by_autograd(priors: Priors) -> None:
    torch.manual_seed(0)
    lanes = torch.rand(3, 2, *SHAPE, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        lanes[:, :, :, :2] = 0.5  # flat, where the slope of a magnitude is 0
    expected = torch.stack([priors.of_images(lane) for lane in lanes])
    values, slopes = priors.of_lanes(lanes)
    assert torch.allclose(values, expected)
    assert torch.allclose(slopes, torch.autograd.grad(expected.sum(), lanes)[0], atol=1e-15)


def test_small_chains_are_written_out_and_others_are_not(observe: Callable) -> None:
    problem, z, lanes = _prepared("ig", _model(nn.Sigmoid()), 1, lanes=1)
    assert isinstance(choose_derivatives(problem, "auto", z, lanes), Chained)
    assert isinstance(choose_derivatives(problem, "exact", z, lanes), Chained)

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.head = nn.Linear(390, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + torch.relu(self.conv(x))).flatten(1))

    other, _, _ = _prepared("ig", Skip().double(), 1, lanes=1)
    assert chained(other) is None
    squashed, _, _ = _prepared("ig", nn.Sequential(*_model(nn.ReLU()), nn.Sigmoid()), 1, lanes=1)
    assert chained(squashed) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), GEOMETRIES)
def test_convolutions_of_any_geometry_equal_their_definition(
    dtype: torch.dtype, size: int, kernel: int, stride: int, padding: int
) -> None:
    """By oneDNN in single precision, by gathered patches in double; also kernels narrower than the stride."""
    torch.manual_seed(0)
    outputs = (size + 2 * padding - kernel) // stride + 1
    convolution = nn.Conv2d(2, 3, kernel, stride, padding)
    stage = Link("c", convolution, convolution.weight.detach().to(dtype), None, (2, size, size), (3, outputs, outputs))
    linear = linear_map(stage)
    x, y = torch.rand(2, 3, *stage.input_shape, dtype=dtype), torch.rand(2, 3, *stage.output_shape, dtype=dtype)
    assert torch.allclose(linear.push(x)[1], stage.apply(x[1]), atol=1e-5)
    assert torch.allclose(linear.pull(y)[1], stage.apply_transposed(y[1]), atol=1e-5)
    shared = stage.weight.reshape(1, -1).expand(2, -1)
    assert torch.allclose(linear.push_each(linear.columns(x), shared, x), 2 * linear.push(x), atol=1e-5)
    assert torch.allclose(linear.pull_each(linear.windows(y), shared, y), 2 * linear.pull(y), atol=1e-5)


def test_single_precision_without_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 12, 5, 2, 2)
    stage = Link("c", convolution, convolution.weight.detach(), None, (3, 15, 15), (12, 8, 8))
    x, y = torch.rand(2, 3, 3, 15, 15), torch.rand(2, 3, 12, 8, 8)
    monkeypatch.setattr("fedseal.models.chains.maps._one_dnn_takes", lambda x: False)
    linear = linear_map(stage)
    assert torch.allclose(linear.push(x)[1], stage.apply(x[1]), atol=1e-5)
    assert torch.allclose(linear.pull(y)[1], stage.apply_transposed(y[1]), atol=1e-5)


def test_a_lane_convolves_to_the_same_bits_alone() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 12, 5, 2, 2)
    stage = Link("c", convolution, convolution.weight.detach(), None, (3, 15, 15), (12, 8, 8))
    linear = linear_map(stage)
    x, y, own = torch.rand(9, 1, 3, 15, 15), torch.rand(9, 1, 12, 8, 8), torch.rand(9, stage.weight.numel())
    for many in (slice(0, 1), slice(3, 4), slice(2, 5), slice(4, 9)):
        assert torch.equal(linear.push(x[many]), linear.push(x)[many])
        assert torch.equal(linear.pull(y[many]), linear.pull(y)[many])
        pushed = linear.push_each(linear.columns(x[many]), own[many], x[many])
        assert torch.equal(pushed, linear.push_each(linear.columns(x), own, x)[many])
        pulled = linear.pull_each(linear.windows(y[many]), own[many], y[many])
        assert torch.equal(pulled, linear.pull_each(linear.windows(y), own, y)[many])
