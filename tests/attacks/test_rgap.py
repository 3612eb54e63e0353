"""R-GAP against closed forms: exact where the equations have full rank, and honest where they have not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.rgap import RecursiveAttack, rank_analysis
from fedseal.attacks.rgap.head import logistic_margins
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.data.registry import DATASETS
from fedseal.models.registry import build_model


def _net(width: int = 8, activation: nn.Module | None = None, *, bias: bool = True, outputs: int = 4) -> nn.Module:
    torch.manual_seed(3)
    act = activation or nn.LeakyReLU(0.2)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=bias),
        act,
        nn.Conv2d(6, width, 3, padding=1, bias=bias),
        act,
        nn.Flatten(),
        nn.Linear(width * 16, outputs, bias=bias),
    ).double()


def _observe(model: nn.Module, image: Tensor, label: int, classes: int = 4) -> Observation:
    logits = model(image)
    if logits.shape[1] == 1:
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], torch.tensor([float(label)], dtype=logits.dtype))
    else:
        loss = F.cross_entropy(logits, torch.tensor([label]))
    gradient = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    shape = (image.shape[1], image.shape[2], image.shape[3])
    return Observation(model, Update(gradient), Knowledge(input_shape=shape, num_classes=classes, batch_size=1))


def _image(side: int = 8, channels: int = 1) -> Tensor:
    return torch.rand(1, channels, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), nn.Sigmoid(), nn.Tanh(), nn.ELU(), nn.Identity()], ids=str)
def test_a_two_convolution_network_is_inverted_exactly(activation: nn.Module, bias: bool) -> None:
    image = _image()
    found = RecursiveAttack().run(_observe(_net(activation=activation, bias=bias), image, 2))
    assert float((found.images - image).square().mean()) < 1e-10
    assert found.labels is not None
    assert found.labels.tolist() == [2]
    assert not found.notes


@pytest.mark.parametrize("label", [0, 1])
def test_one_logit_is_solved_by_the_logistic_equation(label: int) -> None:
    image = _image()
    found = RecursiveAttack().run(_observe(_net(bias=False, outputs=1), image, label, classes=2))
    assert float((found.images - image).square().mean()) < 1e-10
    assert found.labels is not None
    assert found.labels.tolist() == [label]


@pytest.mark.parametrize("margin", [-3.0, -0.1, 0.4, 1.0, 2.5, 6.0])
def test_the_margin_is_among_the_roots(margin: float) -> None:
    roots = logistic_margins(-margin / (1 + math.exp(margin)))
    assert min(abs(root - margin) for root in roots) < 1e-9
    assert len(roots) == (1 if margin <= 0 else 2)


def test_a_narrow_layer_is_known_beforehand_to_lose_information() -> None:
    narrow, wide = _net(width=1, bias=False), _net(width=8, bias=False)
    assert all(layer.deficit == 0 for layer in rank_analysis(wide, (1, 8, 8)))
    deficits = {layer.name: layer.deficit for layer in rank_analysis(narrow, (1, 8, 8))}
    # 6 x 16 unknowns; 9 taps for each channel, 16 outputs; <dW, W> = <k, z> makes one of these equations superfluous
    assert deficits["2"] == 96 - (9 * 6 + 16 - 1)
    image = _image()
    found = RecursiveAttack().run(_observe(narrow, image, 2))
    assert float((found.images - image).square().mean()) > 1e-3
    assert any("undetermined" in note for note in found.notes)


def test_cnn6_and_lenet_give_real_images_away_and_cnn6d_does_not() -> None:
    faces = DATASETS.build("faces")
    image = faces.batch(torch.tensor([7])).images.double()
    for name, exact in (("cnn6", True), ("lenet", True), ("cnn6:narrow=4", False)):
        model = build_model(name, input_shape=faces.shape, num_classes=4, seed=0).double()
        found = RecursiveAttack().run(_observe(model, image, 1))
        assert (float((found.images - image).square().mean()) < 1e-8) == exact, name


@pytest.mark.parametrize("label", range(4))
def test_every_label_of_a_network_without_biases_is_exact_also_the_one_it_predicts(label: int) -> None:
    faces = DATASETS.build("faces")
    image = faces.batch(torch.tensor([7])).images.double()
    model = build_model("cnn6", input_shape=faces.shape, num_classes=4, seed=0).double()
    found = RecursiveAttack().run(_observe(model, image, label))
    assert float((found.images - image).square().mean()) < 1e-10
    assert found.labels.tolist() == [label]


def test_of_two_scales_with_the_same_gradient_the_one_in_the_range_of_images_is_taken() -> None:
    model = _net(bias=False, outputs=2)
    image = _image()
    with torch.no_grad():
        label = int(model(image).argmax())
        model[-1].weight *= 0.3 / float(model(image)[0, label] - model(image)[0, 1 - label])  # the other root is 3.3
    found = RecursiveAttack().run(_observe(model, image, label, classes=2))
    assert any("2 images have this gradient" in note for note in found.notes)
    assert float((found.images - image).square().mean()) < 1e-10


def test_the_conjugate_gradients_of_a_large_layer_find_the_same() -> None:
    photos = DATASETS.build("photos")
    image = F.interpolate(photos.batch(torch.tensor([0])).images.double(), size=(32, 32), mode="area")
    model = build_model("lenet", input_shape=(3, 32, 32), num_classes=4, seed=0)
    found = RecursiveAttack().run(_observe(model.double(), image, 1))
    assert float((found.images - image).square().mean()) < 1e-9


def test_what_it_cannot_take_is_named() -> None:
    attack = RecursiveAttack()
    image = _image()
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)).double()
    with pytest.raises(CapabilityError, match="MaxPool2d"):
        attack.check(_observe(pooled, image, 0))

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)
            self.flat = nn.Flatten()
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.flat(self.conv(x) + x))

    with pytest.raises(CapabilityError, match="skip connections"):
        attack.check(_observe(Skip().double(), image, 0))
    several = _observe(_net(), image, 0)
    two = Observation(several.model, several.update, Knowledge(input_shape=(1, 8, 8), num_classes=4, batch_size=2))
    with pytest.raises(CapabilityError, match="one image"):
        attack.check(two)
    with pytest.raises(CapabilityError, match="one image"):
        attack.run(two)
    zero = Observation(
        several.model,
        Update({name: torch.zeros_like(value) for name, value in several.update.tensors.items()}),
        several.knowledge,
    )
    with pytest.raises(InputError, match="zero"):
        attack.run(zero)
    with pytest.raises(InputError, match="cutoff"):
        RecursiveAttack(cutoff=2.0)
