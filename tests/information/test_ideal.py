"""The ideal reading: closed forms, agreement of methods, and one sentence for everything that cannot be read."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel, constant_variance
from fedseal.core.errors import InputError
from fedseal.data.registry import DATASETS
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.information.ideal import Options, ideal_reading, sigma_for_level
from fedseal.information.linear import LinearUpload
from fedseal.information.matrix_free import Effort
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.reading import IdealReading, decibels
from fedseal.information.upload import Upload, UploadMap
from fedseal.models.registry import build_model

SHAPE = (1, 14, 14)


@cache
def digits() -> tuple[Batch, Batch]:
    """Return private and public digits of 14 x 14 pixels, embedded in the package."""
    dataset = DATASETS.build("digits")
    data = dataset.batch(torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:1200])
    small = F.avg_pool2d(data.images.float(), 2)
    return Batch(small[:8], data.labels[:8]), Batch(small[8:], data.labels[8:])


@cache
def prior() -> ImagePrior:
    return fit_prior(digits()[1].images)


def observed(model: nn.Module, batch: Batch, config: RoundConfig, channel: Channel | None = None) -> Upload:
    """Return the upload a client of the batch would send, without noise."""
    start = {name: p.detach() for name, p in model.named_parameters()}
    upload = Upload(model, batch, batch, start, config, channel or Channel())
    mapped = UploadMap(upload, torch.float32)
    return Upload(model, batch, batch, mapped(mapped.point), config, channel or Channel())


def noisy(sigma: float) -> Channel:
    return Channel(variance=constant_variance(sigma**2))


def of(images: int, channel: Channel | None = None, model: str = "lenet-relu", **config: object) -> Upload:
    private, _ = digits()
    net = build_model(model, input_shape=SHAPE, num_classes=10, seed=0)
    batch = Batch(private.images[:images], private.labels[:images])
    settings = RoundConfig(**config)  # type: ignore[arg-type]
    return observed(set_mode(net, settings), batch, settings, channel)


def db(reading: IdealReading) -> float:
    assert reading.psnr_db is not None, reading.reason
    return reading.psnr_db


class Sum(nn.Module):
    """Two logits, one linear in the image: its gradient by the weights is linear in the image as well."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(matrix), dtype=torch.float64))
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        value = (x.flatten(1) @ self.matrix.T) @ self.weight
        return torch.stack([value, torch.zeros_like(value)], 1)


def toy(sigma: float) -> tuple[Upload, ImagePrior, Tensor]:
    """Return an upload that is A x + noise exactly, a prior over 9 pixels, and A: at weight 0 both classes have 1/2."""
    source = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 9, generator=source, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(9, 9, generator=source, dtype=torch.float64))
    law = ImagePrior(torch.full((1, 3, 3), 0.5), basis, torch.logspace(-1, -4, 9, dtype=torch.float64), 1e-4)
    image = law.mean.double() + law.root(torch.randn(1, 9, generator=source, dtype=torch.float64)).view(1, 1, 3, 3)
    batch = Batch(image, torch.zeros(1, dtype=torch.long))
    upload = observed(Sum(matrix), batch, RoundConfig(), noisy(sigma))
    return upload, law, -matrix / 2


def test_on_a_linear_gaussian_problem_it_is_the_closed_form():
    upload, law, matrix = toy(0.05)
    covariance = law.root(law.root(torch.eye(9, dtype=torch.float64)))
    expected = torch.linalg.inv(matrix.T @ matrix / 0.05**2 + torch.linalg.inv(covariance)).trace() / 9
    assert db(ideal_reading(upload, law)) == pytest.approx(decibels(float(expected)), abs=1e-6)


def test_no_estimator_passes_it_on_a_linear_gaussian_problem():
    upload, law, matrix = toy(0.05)
    source = torch.Generator().manual_seed(1)
    covariance = law.root(law.root(torch.eye(9, dtype=torch.float64)))
    truth = law.root(torch.randn(40_000, 9, generator=source, dtype=torch.float64))
    seen = truth @ matrix.T + 0.05 * torch.randn(40_000, 6, generator=source, dtype=torch.float64)
    best = covariance @ matrix.T @ torch.linalg.inv(matrix @ covariance @ matrix.T + 0.05**2 * torch.eye(6))
    ideal = 10 ** (-db(ideal_reading(upload, law)) / 10)
    for scale in (0.5, 0.9, 1.0, 1.1):
        errors = (seen @ best.T * scale - truth).square().mean(1)
        margin = 3 * float(errors.std()) / math.sqrt(len(errors))
        assert float(errors.mean()) > ideal - margin
        if scale == 1.0:
            assert float(errors.mean()) == pytest.approx(ideal, abs=margin)


def test_without_information_it_is_the_mean_image_baseline():
    _, public = digits()
    held_out = fit_prior(public.images[:1000])
    guess = (public.images[1000:].double() - held_out.mean).square().mean()
    reading = ideal_reading(of(1, noisy(1e6)), held_out)
    assert db(reading) == pytest.approx(reading.prior_db, abs=1e-3)
    guesses = [float((x - held_out.mean).square().mean()) for x in public.images[:1000].double()]
    assert db(reading) == pytest.approx(decibels(sum(guesses) / len(guesses)), abs=0.1)
    assert db(reading) == pytest.approx(decibels(float(guess)), abs=0.5)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 1e-1])
def test_exact_and_matrix_free_agree(images: int, sigma: float):
    upload = of(images, noisy(sigma))
    exact = ideal_reading(upload, prior(), Options("exact", layers=False))
    free = ideal_reading(upload, prior(), Options("matrix-free", layers=False))
    assert (exact.method, free.method) == ("exact", "matrix-free")
    assert db(free) == pytest.approx(db(exact), abs=0.2)


def test_a_stopped_estimate_never_promises_less_than_its_bracket():
    upload = of(2, noisy(1e-4))
    exact = ideal_reading(upload, prior(), Options("exact", layers=False))
    free = ideal_reading(upload, prior(), Options("matrix-free", effort=Effort(iterations=3, rank=8), layers=False))
    assert db(free) <= db(exact) + 0.2
    assert db(exact) <= db(free) + free.error_db + 0.2
    assert any("at least" in remark for remark in free.remarks)


def test_rounding_alone_leaves_nearly_everything():
    assert db(ideal_reading(of(1, model="lenet:init=wide-uniform"), prior())) > 80


def test_hidden_entries_tell_nothing():
    hidden = Channel(lambda update, seen: {name: torch.zeros_like(t) for name, t in update.items()})
    reading = ideal_reading(of(1, hidden), prior())
    assert db(reading) == pytest.approx(reading.prior_db, abs=1e-6)
    assert reading.effective == pytest.approx(0, abs=1e-6)


def test_it_says_where_it_leaks():
    reading = ideal_reading(of(1, noisy(1e-2)), prior())
    assert list(reading.per_layer) == ["0", "2", "4", "7"]
    assert all(reading.prior_db - 1e-6 <= value <= db(reading) for value in reading.per_layer.values())
    assert reading.pixel_map is not None
    assert reading.pixel_map.shape == (1, *SHAPE)
    assert decibels(float(reading.pixel_map.mean())) == pytest.approx(db(reading), abs=1e-3)


def test_the_map_of_few_entries_adds_up_too():
    first = Channel(lambda update, seen: {n: t if n == "0.bias" else torch.zeros_like(t) for n, t in update.items()})
    reading = ideal_reading(of(1, first), prior())
    assert reading.pixel_map is not None
    assert 0 < (reading.effective or 0) <= 12
    assert decibels(float(reading.pixel_map.mean())) == pytest.approx(db(reading), abs=1e-3)


@pytest.mark.parametrize("level", [15.0, 20.0])
def test_the_noise_for_a_level_brings_it_there(level: float):
    upload = of(1)
    sigma = sigma_for_level(upload, prior(), level)
    assert sigma is not None
    assert db(ideal_reading(of(1, noisy(sigma)), prior(), Options(layers=False))) == pytest.approx(level, abs=0.1)


def test_no_noise_is_needed_for_a_level_above_the_reading_and_none_reaches_below_the_prior():
    assert sigma_for_level(of(1, noisy(0.1)), prior(), 60.0) == 0.0
    assert sigma_for_level(of(1), prior(), decibels(prior().error) - 1) is None


def test_several_local_steps_are_differentiated_through():
    upload = of(4, noisy(1e-6), model="lenet", local_steps=2, learning_rate=0.1)
    assert db(ideal_reading(upload, prior(), Options(layers=False))) > decibels(prior().error) + 3
    point = UploadMap(upload, torch.float64)
    step = 1e-5 * torch.randn(point.point.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ahead, behind = point(point.point + step), point(point.point - step)
    slope = torch.func.jvp(point, (point.point,), (step,))[1]
    for name, value in slope.items():
        assert torch.allclose((ahead[name] - behind[name]) / 2, value, rtol=1e-3, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "sigma"), [("eval", 0.01), ("train-nostats", 0.3)])
def test_batch_normalisation_is_read_in_either_mode(mode: str, sigma: float):
    upload = of(2, noisy(sigma), model="resnet10:width=4", bn_mode=mode)
    reading = ideal_reading(upload, prior(), Options(layers=False))
    free = ideal_reading(upload, prior(), Options("matrix-free", layers=False))
    assert db(reading) > decibels(prior().error) + 0.1
    assert db(free) == pytest.approx(db(reading), abs=0.2)


def test_operations_without_a_forward_mode_are_differentiated_backwards(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedseal.information.linear._SMALL", 0)
    upload = of(1, noisy(1.0), model="vit-tiny:patch=7")
    options = Options("matrix-free", effort=Effort(probes=2, rank=4, iterations=20), layers=False)
    assert db(ideal_reading(upload, prior(), options)) > decibels(prior().error) + 1e-3


def test_both_ways_of_differentiating_agree(monkeypatch: pytest.MonkeyPatch):
    directions = torch.randn(3, prior().pixels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for small in (0, 10**9):
        monkeypatch.setattr("fedseal.information.linear._SMALL", small)
        found.append(LinearUpload(of(1, noisy(1e-2)), prior()).slopes(directions))
    assert torch.allclose(*found, rtol=1e-9, atol=1e-12)


def test_what_was_fed_and_the_way_to_the_private_images_add_up():
    whole = of(1)
    fed = Batch((whole.private.images + 0.1).clamp(0, 1), whole.private.labels)
    upload = Upload(whole.model, whole.private, fed, whole.observed)
    reading = ideal_reading(upload, prior(), Options(layers=False))
    apart = float((fed.images - whole.private.images).square().mean())
    assert reading.fed_db is not None
    expected = 10 ** (-reading.fed_db / 10) + apart
    assert db(reading) == pytest.approx(decibels(expected), abs=0.01)


def test_images_of_others_tell_no_more_than_the_prior():
    whole = of(1)
    other = Batch(1 - whole.private.images, whole.private.labels)
    reading = ideal_reading(Upload(whole.model, whole.private, other, whole.observed), prior(), Options(layers=False))
    assert db(reading) == pytest.approx(reading.prior_db, abs=1e-6)


def test_without_public_data_it_says_what_is_unknown():
    reading = ideal_reading(of(1), None)
    assert reading.psnr_db is None
    assert "no public images" in reading.reason


def test_a_defence_that_cannot_be_read_says_why():
    reading = ideal_reading(of(1, Channel(unreadable="the upload is a hash.")), prior())
    assert (reading.psnr_db, reading.reason) == (None, "the upload is a hash.")


def test_a_step_without_a_derivative_is_named_in_one_sentence():
    class Steps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return grads[0]

    class Rounding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(196, 10)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(Steps.apply(x.flatten(1)))
            return logits

    private, _ = digits()
    net = Rounding()
    batch = Batch(private.images[:1], private.labels[:1])
    upload = Upload(net, batch, batch, {n: torch.ones_like(p) for n, p in net.named_parameters()})
    reading = ideal_reading(upload, prior())
    assert reading.psnr_db is None
    assert reading.reason.startswith("the upload cannot be differentiated")


def test_memory_bounds_are_honoured_in_one_sentence():
    for method in ("exact", "matrix-free"):
        reading = ideal_reading(of(1), prior(), Options(method, memory=1 << 16))  # type: ignore[arg-type]
        assert reading.psnr_db is None
        assert "the bound is" in reading.reason


def test_a_prior_of_another_shape_is_refused():
    with pytest.raises(InputError, match="the prior is of images"):
        ideal_reading(of(1), fit_prior(torch.rand(20, 1, 8, 8)))


def test_unknown_labels_are_remarked_on():
    reading = ideal_reading(of(1, noisy(1e-2)), prior(), Options(layers=False, labels_known=False))
    assert any("labels" in remark for remark in reading.remarks)


def test_noise_that_is_no_number_is_refused_in_words() -> None:
    broken = Channel(variance=lambda update, sent: {name: torch.full_like(t, torch.nan) for name, t in update.items()})
    reading = ideal_reading(of(1, broken), prior())
    assert reading.psnr_db is None
    assert "declares noise that is no number in 0.weight" in reading.reason
