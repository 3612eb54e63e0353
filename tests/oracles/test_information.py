"""The ideal reading against figures measured by a prototype of its own (VERDICT.md, section 3), on real CIFAR-10.

The prototype's weights and images are not known. Where a figure hangs on how many units a draw of weights leaves dead
(undefended ReLU: 39 to 55 dB over seeds), the seed here is one whose rank is that of the prototype.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.information.ideal import Options, ideal_reading
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.reading import IdealReading, decibels
from fedseal.information.upload import upload_behind
from fedseal.models.registry import build_model

SHAPE = (3, 32, 32)
PUBLIC = 6000
RELU, SIGMOID = "lenet-relu", "lenet:init=wide-uniform"

pytestmark = [pytest.mark.shared, pytest.mark.slow]


@cache
def data(root: Path) -> tuple[Batch, ImagePrior]:
    batch = DATASETS.build("cifar10", data_root=root / "data").batch(torch.arange(PUBLIC + 3))
    return batch, fit_prior(batch.images[:PUBLIC])


@cache
def reading(root: Path, model: str, seed: int, image: int, defence: str, method: str = "exact") -> IdealReading:
    batch, prior = data(root)
    private = Batch(batch.images[PUBLIC + image :][:1].float(), batch.labels[PUBLIC + image :][:1])
    net = build_model(model, input_shape=SHAPE, num_classes=10, seed=seed).eval()
    used, config = build_defence(defence), RoundConfig()
    done = client_round(net, [private], config, used, generator(0, defence), client="client-0")
    upload = upload_behind(Observation(net, done.update, Knowledge(SHAPE, 10)), used, config, private, done.fed[0])
    return ideal_reading(upload, prior, Options(method, layers=False))  # type: ignore[arg-type]


def test_the_prior_alone_is_the_mean_image(shared: Path):
    batch, prior = data(shared)
    assert decibels(prior.error) == pytest.approx(12.0, abs=0.1)
    guesses = (batch.images[:PUBLIC].double() - prior.mean).square().mean()
    assert decibels(prior.error) == pytest.approx(decibels(float(guesses)), abs=0.1)


@pytest.mark.parametrize(
    ("model", "seed", "image", "defence", "low", "high"),
    [
        (RELU, 32, 0, "none", 48, 50),
        (RELU, 32, 0, "gaussian:sigma=0.001", 27.5, 27.5),
        (RELU, 32, 0, "gaussian:sigma=0.01", 19.0, 19.0),
        (RELU, 32, 0, "gaussian:sigma=0.1", 13.2, 13.2),
        (RELU, 32, 0, "gaussian:sigma=1", 12.1, 12.1),
        (RELU, 1, 2, "topk:ratio=0.8", 33.8, 34.0),
        (RELU, 1, 2, "dgp", 33.8, 34.0),
        (SIGMOID, 0, 0, "none", 124, 128),
        (SIGMOID, 0, 0, "gaussian:sigma=0.01", 16.6, 17.6),
    ],
)
def test_measured_figures(shared: Path, model: str, seed: int, image: int, defence: str, low: float, high: float):
    found = reading(shared, model, seed, image, defence).psnr_db
    assert found is not None
    assert low - 0.3 <= found <= high + 0.3


def test_pruning_a_sigmoid_network_leaves_as_many_directions_as_measured(shared: Path):
    for defence in ("topk:ratio=0.8", "dgp"):
        found = reading(shared, SIGMOID, 4, 0, defence)
        assert found.effective == pytest.approx(1670, abs=5)
        assert found.psnr_db == pytest.approx(38.5, abs=0.3)


def test_matrix_free_agrees_on_real_images(shared: Path):
    exact = reading(shared, RELU, 32, 0, "gaussian:sigma=0.01")
    free = reading(shared, RELU, 32, 0, "gaussian:sigma=0.01", "matrix-free")
    assert free.psnr_db == pytest.approx(exact.psnr_db, abs=0.2)


def test_probes_say_at_least_where_arithmetic_resolves_no_more(shared: Path):
    for defence in ("none", "dgp"):
        exact, free = (reading(shared, RELU, 0, 0, defence, method) for method in ("exact", "matrix-free"))
        assert exact.psnr_db is not None
        assert free.psnr_db is not None
        assert free.psnr_db <= exact.psnr_db + 0.2
        assert free.psnr_db + free.error_db >= exact.psnr_db
        assert any("at least this much" in remark for remark in free.remarks)


SPREAD_SEEDS = range(6)


@pytest.mark.parametrize(
    ("defence", "figure"),
    [("none", 49.0), ("gaussian:sigma=0.01", 19.0), ("topk:ratio=0.8", 33.9), ("dgp", 33.9)],
)
def test_the_figures_lie_in_the_spread_over_weights_nobody_chose(shared: Path, defence: str, figure: float):
    found = [reading(shared, RELU, seed, 0, defence).psnr_db or 0.0 for seed in SPREAD_SEEDS]
    assert min(found) - 0.3 <= figure <= max(found) + 0.3, found
