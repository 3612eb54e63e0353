"""ATS: operations against Pillow, policies, both scores of the search, and that the gradient leaks what was fed."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import AttackerConfig, Scenario
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.defences.ats import (
    ATS,
    accuracy_score,
    parse_policies,
    privacy_scores,
    random_crop,
    search_policies,
    transform,
)
from fedseal.defences.ats_operations import LIBRARY, OPERATIONS, SIGNED
from fedseal.defences.pipeline import Pipeline, build_defence
from fedseal.federation.loss import cross_entropy_loss
from fedseal.models.registry import build_model

ENHANCERS = {
    "colour": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
    "brightness": ImageEnhance.Brightness,
}
LARGEST = {"shearX": 0.3, "shearY": 0.3, "translateX": 150 / 331, "translateY": 150 / 331, "rotate": 30.0}


def by_pillow(name: str, image: Image.Image, strength: int, sign: int) -> Image.Image:
    """Do what an operation of ATS does, by Pillow."""
    amount = float(numpy.linspace(0, LARGEST.get(name, 0.5), 10)[strength]) * (sign if name in SIGNED else 1)
    black = 0 if image.mode == "L" else (0, 0, 0)
    matrices = {
        "shearX": (1, amount, 0, 0, 1, 0),
        "shearY": (1, 0, 0, amount, 1, 0),
        "translateX": (1, 0, amount * image.width, 0, 1, 0),
        "translateY": (1, 0, 0, 0, 1, amount * image.height),
    }
    if name in matrices:
        smooth = Image.Resampling.BICUBIC if name.startswith("shear") else Image.Resampling.NEAREST
        return image.transform(image.size, Image.Transform.AFFINE, matrices[name], smooth, fillcolor=black)
    if name == "rotate":
        turned = image.convert("RGBA").rotate(amount)
        return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert(image.mode)
    if name in ENHANCERS:
        return ENHANCERS[name](image).enhance(1 + amount)
    if name == "posterise":
        return ImageOps.posterize(image, int(numpy.round(numpy.linspace(8, 4, 10))[strength]))
    if name == "solarise":
        return ImageOps.solarize(image, numpy.linspace(256, 0, 10)[strength])
    plain = {"autocontrast": ImageOps.autocontrast, "equalise": ImageOps.equalize, "invert": ImageOps.invert}
    return plain[name](image)


def pictures() -> list[numpy.ndarray]:
    source = numpy.random.default_rng(0)
    slopes = numpy.add.outer(3 * numpy.arange(32), 2 * numpy.arange(32))[..., None] * numpy.array([1, 0.5, 0.8]) + 20
    return [
        source.integers(0, 256, (32, 32, 3), dtype=numpy.uint8),
        slopes.clip(0, 255).astype(numpy.uint8),
        numpy.full((32, 32, 3), 77, dtype=numpy.uint8),
        source.integers(0, 256, (17, 23), dtype=numpy.uint8),
        slopes[..., 0].clip(0, 255).astype(numpy.uint8),
        source.integers(0, 256, (2, 5), dtype=numpy.uint8),
    ]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_pillows_bit_for_bit(name: str):
    for pixels in pictures():
        tensor = torch.from_numpy(pixels.copy())
        tensor = tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor.unsqueeze(0)
        for strength in range(10):
            for sign in (-1, 1):
                expected = numpy.asarray(by_pillow(name, Image.fromarray(pixels), strength, sign))
                got = OPERATIONS[name](tensor, strength, sign)
                got = got.permute(1, 2, 0) if pixels.ndim == 3 else got[0]
                numpy.testing.assert_array_equal(got.numpy(), expected, err_msg=f"{name} {strength} {sign}")


def test_the_library_is_the_authors():
    assert len(LIBRARY) == 50
    assert [LIBRARY[i] for i in (3, 1, 7)] == [("translateX", 9), ("contrast", 6), ("translateY", 2)]
    assert [LIBRARY[i] for i in (43, 18)] == [("translateY", 3), ("contrast", 7)]
    assert {name for name, _ in LIBRARY} <= OPERATIONS.keys()


def eight_bit_images(count: int = 4, shape: tuple[int, int, int] = (3, 16, 16)) -> Tensor:
    return torch.randint(256, (count, *shape), generator=generator(0)).float() / 255


def context(seed: int = 0) -> RoundContext:
    return RoundContext(None, None, generator(seed, "ats"))  # type: ignore[arg-type]


def batch() -> Batch:
    return Batch(eight_bit_images(), torch.arange(4))


def test_policies_and_hybrids_are_parsed():
    assert parse_policies("3-1-7") == ((3, 1, 7),)
    assert parse_policies("3-1-7+43-18-18") == ((3, 1, 7), (43, 18, 18))
    assert build_defence("ats:policy=5").policy == "5"  # type: ignore[attr-defined]


def test_the_plus_of_a_hybrid_is_not_that_of_a_pipeline():
    built = build_defence("ats:policy=3-1-7+43-18-18+topk:ratio=0.5")
    assert isinstance(built, Pipeline)
    assert built.members[0].policy == "3-1-7+43-18-18"  # type: ignore[attr-defined]
    assert build_defence("ats").policy == "3-1-7+43-18-18"  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["50", "3-x", "3--1", "-1"])
def test_policies_that_do_not_exist_are_refused(policy: str):
    with pytest.raises(UsageError, match="ATS"):
        build_defence(f"ats:policy={policy}")


def test_a_policy_is_deterministic_up_to_its_signs():
    outcomes = {transform(eight_bit_images(1), ((3, 1, 7),), generator(seed)).numpy().tobytes() for seed in range(60)}
    assert len(outcomes) == 8  # three operations with a sign each
    assert len({transform(eight_bit_images(1), ((0, 9, 8),), generator(s)).numpy().tobytes() for s in range(5)}) == 1


def test_a_hybrid_draws_a_policy_per_image():
    same = eight_bit_images(1).expand(200, -1, -1, -1)
    fed = transform(same, ((0,), (28,)), generator(0))  # invert, or solarise at strength 0, which is nothing
    share = sum(torch.equal(image, same[0]) for image in fed) / 200
    assert share == pytest.approx(0.5, abs=0.12)


def test_without_a_policy_the_images_stay_bit_for_bit():
    fed = build_defence("ats:policy=none").on_batch(batch(), context())
    assert torch.equal(fed.images, batch().images)
    noisy = torch.rand(2, 3, 8, 8)  # not eight-bit
    assert build_defence("ats:policy=none").on_batch(Batch(noisy, torch.arange(2)), context()).images is noisy


def test_without_a_policy_crop_and_flip_only_move_pixels():
    fed = ATS(None, crop=4, flip=True).on_batch(batch(), context()).images
    for image, original in zip(fed, batch().images, strict=True):
        padded = torch.nn.functional.pad(original, (4, 4, 4, 4))
        places = [(t, s, f) for t in range(9) for s in range(9) for f in (False, True)]
        assert any(
            torch.equal(image, padded[:, t : t + 16, s : s + 16].flip(2) if f else padded[:, t : t + 16, s : s + 16])
            for t, s, f in places
        )
    assert random_crop(batch().images, 0, generator(0)).shape == batch().images.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_stay_in_range_and_precision(dtype: torch.dtype):
    fed = ATS().on_batch(batch().to("cpu", dtype), context()).images
    assert fed.dtype == dtype
    assert 0 <= float(fed.min()) <= float(fed.max()) <= 1
    assert torch.equal((fed * 255).round() / 255, fed)


def test_the_accuracy_score_is_best_for_uncorrelated_jacobians():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 200), torch.nn.ReLU(), torch.nn.Linear(200, 3))
    different = eight_bit_images(6, (3, 8, 8))
    alike = different[:1] + 0.01 * different
    assert accuracy_score(model, alike) < accuracy_score(model, different) <= -1


def test_the_privacy_score_is_the_area_under_the_cosine():
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.weight.T

    # at zero weights the gradient is (1/2, -1/2) x, so the cosine is that of images
    image = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 2, 2)
    loss = cross_entropy_loss(IDENTITY, "mean")
    got = privacy_scores(Scale(), Batch(image, torch.tensor([0])), loss, generator(0))
    noise = torch.rand(4, generator=generator(0))
    mixes = [(1 - k / 20) * noise + k / 20 * image.flatten() for k in range(21)]
    curve = [float(mix[0] / mix.norm()) for mix in mixes]
    area = sum((a + b) / 2 for a, b in pairwise(curve)) / 20
    assert float(got) == pytest.approx(area, rel=1e-5)


def test_the_search_ranks_policies():
    shape = (1, 8, 8)
    trained, fresh = (build_model("mlp:width=16", input_shape=shape, num_classes=3, seed=seed) for seed in (0, 1))
    data = Batch(eight_bit_images(12, shape), torch.arange(12) % 3)
    found = search_policies(
        trained, fresh, data, generator(0), candidates=5, privacy_images=2, accuracy_images=6, repeats=1, floor=-1e9
    )
    assert len(found) == 5
    assert [score.rank for score in found] == sorted(score.rank for score in found)
    assert all(score.accepted and math.isfinite(score.privacy + score.accuracy) for score in found)
    assert all(len(parse_policies(score.policy)[0]) == 3 for score in found)
    strict = search_policies(
        trained, fresh, data, generator(0), candidates=3, privacy_images=1, accuracy_images=6, repeats=1, floor=0.0
    )
    assert not any(score.accepted for score in strict)


def test_an_audit_finds_the_fed_image_though_not_the_original(tmp_path: Path):
    scenario = Scenario(
        data="photos",
        model="mlp:width=128",
        defences=("ats",),
        attacks=("first-layer",),
        attacker=AttackerConfig(aware="naive"),
        targets=3,
        readings=0,
    )
    records = run_audit([scenario], tmp_path).records
    for record in (record for record in records if record.defence == "ats"):
        assert record.status == "ok"
        assert record.psnr_fed is not None
        assert record.psnr_fed[0] > 40
        assert record.psnr[0] < record.psnr_fed[0] - 15
