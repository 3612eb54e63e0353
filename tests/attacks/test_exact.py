"""Exact attacks on batches: SPEAR's algebra, its certificate, and what it says when it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedseal.attacks.exact.claims import Claims
from fedseal.attacks.exact.separation import separate
from fedseal.attacks.spectrum import before_gap, spectrum
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.data.registry import DATASETS
from fedseal.models.gates import linear_gates
from fedseal.models.registry import build_model

SHAPE = (3, 32, 32)


def pictures(count: int, shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, shape[0], 8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)


def dense(inputs: int, width: int, classes: int = 10) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


def gradient(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    labels = torch.arange(len(inputs)) % 10
    loss = nn.functional.cross_entropy(model(inputs), labels)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def attack(
    spec: str, model: nn.Module, images: Tensor, change: Callable[[Tensor], Tensor] = lambda t: t
) -> tuple[Tensor, float, str]:
    sent = {name: change(tensor) for name, tensor in gradient(model, images).items()}
    known = Knowledge(tuple(images.shape[1:]), 10, batch_size=len(images))  # type: ignore[arg-type]
    found = ATTACKS.build(spec).run(Observation(model, Update(sent, "gradient"), known), Budget(), 3)
    return found.images, found.objective, " ".join(found.notes)


def error(found: Tensor, truth: Tensor) -> float:
    """Return the largest difference of a pixel, each original to the closest of what was found."""
    apart = (found.flatten(1)[None] - truth.flatten(1)[:, None]).abs().amax(2)
    return float(apart.amin(1).max())


def test_twelve_images_of_cifar_s_size_come_out_exactly_in_single_precision_and_are_certified():
    images = pictures(12)
    model = dense(3072, 512)
    with torch.no_grad():
        model[1].bias -= model[1].weight.sum(1) * 0.5  # inputs centred, as by normalisation
    found, objective, notes = attack("spear", model, images)
    assert error(found, images) < 1e-4
    assert objective == 0
    assert "exact: certificate 1" in notes
    assert "rank 12" in notes


def test_a_claim_of_mixtures_is_not_certified():
    model, inputs = dense(48, 40), torch.randn(4, 48, generator=torch.Generator().manual_seed(0))
    sent = gradient(model, inputs)
    found = spectrum(sent["1.weight"])
    layer = (model[1].weight.detach(), model[1].bias.detach())
    exact = separate(found, sent["1.bias"], layer, 5000, torch.Generator().manual_seed(0))
    assert exact is not None
    assert exact.agreement == 1
    claims = Claims.of(found, sent["1.bias"], layer)
    wrong = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(claims.agreement(wrong.unsqueeze(0))) < 0.9


def test_what_scales_every_entry_changes_nothing_and_what_prunes_is_said_to_hide_the_rank():
    images, model = pictures(4, (1, 8, 8)), dense(64, 64)
    found, objective, _ = attack("spear", model, images, lambda t: 1e-3 * t)
    assert error(found, images) < 1e-3
    assert objective == 0
    _, objective, notes = attack(
        "spear:draws=2048", model, images, lambda t: torch.where(t.abs() >= t.abs().flatten().quantile(0.9), t, 0)
    )
    assert objective > 0
    assert "not " in notes


def test_noise_below_the_gap_is_averaged_away():
    images, model = pictures(4, (1, 8, 8)), dense(64, 128)
    source = torch.Generator().manual_seed(5)
    found, _, _ = attack(
        "spear", model, images, lambda t: t + 1e-5 * t.square().mean().sqrt() * torch.randn(t.shape, generator=source)
    )
    assert error(found, images) < 0.02


def test_a_repeated_image_is_one_direction_and_comes_out_twice():
    images = pictures(3, (1, 8, 8))[[0, 1, 2, 2]]
    model = dense(64, 64)
    found, _, notes = attack("spear", model, images)
    assert "rank 3" in notes
    assert found.shape == images.shape


def test_the_head_of_a_convolutional_network_gives_its_features_away_and_pictures_follow():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    images = pictures(2, (1, 8, 8))
    found, objective, notes = attack("spear:steps=100", model, images)
    assert objective == 0
    assert "it saw features" in notes
    assert error(found, images) < 0.2


def test_layers_without_a_relu_are_refused_in_words():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    with pytest.raises(CapabilityError, match="a ReLU behind it"):
        attack("spear", model, pictures(2, (1, 8, 8)))
    with pytest.raises(CapabilityError, match="hidden linear layer"):
        attack("cocktail", nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), pictures(2, (1, 8, 8)))


class Functional(nn.Module):
    """Calls its ReLU by a function, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.smooth, self.out = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.smooth(torch.relu(self.inner(x.flatten(1))))))


def test_gates_are_found_by_how_derivatives_pass():
    torch.manual_seed(0)
    found = linear_gates(Functional(), (1, 4, 4))
    assert [(gate.name, gate.gated, gate.on_input) for gate in found] == [
        ("inner", True, True),
        ("smooth", False, False),
        ("out", False, False),
    ]


@pytest.mark.parametrize(
    ("values", "rank"), [([9.0, 5, 1e-6, 9e-7], 2), ([3.0, 2, 1], 2), ([0.0, 0], 0), ([4.0, 4], 2), ([1.0, 1e-12], 1)]
)
def test_the_rank_is_where_neighbours_differ_most(values: list[float], rank: int):
    assert before_gap(torch.tensor(values, dtype=torch.float64), 1e-8)[0] == rank


def test_a_gradient_s_parts_are_those_of_its_decomposition():
    source = torch.Generator().manual_seed(0)
    for shape in ((20, 7), (7, 20)):
        matrix = (
            torch.randn(shape[0], 3, generator=source).double() @ torch.randn(3, shape[1], generator=source).double()
        )
        found = spectrum(matrix)
        assert found.rank == 3
        assert found.clear
        assert torch.allclose((found.left * found.values) @ found.right, matrix, atol=1e-12)
        assert torch.allclose(found.values, torch.linalg.svdvals(matrix)[:3])


@pytest.mark.shared
@pytest.mark.parametrize("seed", [0, 1])
def test_twelve_photographs_of_cifar_come_out_exactly_in_single_precision(shared: Path, seed: int):
    data = DATASETS.build("cifar10", data_root=shared / "data")
    usual = Normalisation((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
    model = build_model("mlp:width=512", input_shape=SHAPE, num_classes=10, seed=seed)
    batch = data.batch(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:12])
    sent = gradient(model, usual(batch.images))
    known = Knowledge(SHAPE, 10, batch_size=12, normalisation=usual)
    found = ATTACKS.build("spear").run(Observation(model, Update(sent, "gradient"), known), Budget(), seed)
    assert error(found.images, batch.images) < 1e-4
    assert found.objective == 0
    assert "exact: certificate 1" in " ".join(found.notes)
