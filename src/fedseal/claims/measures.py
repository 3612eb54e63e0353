"""Measurements that are neither an audit nor a training: each yields values by arm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import stats
from torch.func import functional_call, grad

from fedseal.claims.inferences import inference
from fedseal.claims.place import Place
from fedseal.claims.samples import Sample
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.defences.refiner.fitting import mix_with_noise
from fedseal.defences.refiner.weights import shipped_evaluator
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model

Measure: TypeAlias = Callable[..., Iterator[Sample]]

RATIOS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
"""Shares of noise of Refiner's Figure 21."""


def noise_in_images(place: Place, *, data: str, quantity: str, images: int = 200, seed: int = 0) -> Iterator[Sample]:
    """Mix images with uniform noise; arms are the shares, values `psnr` or what the `evaluator` says of the share.

    Refiner, Figures 4 and 21: the evaluation network predicts the share, on data it never saw.
    """
    dataset = DATASETS.build(data, data_root=place.data_root)
    source = generator(seed, "claims", "noise")
    chosen = torch.randperm(len(dataset), generator=source)[:images]
    originals = dataset.batch(chosen).images
    network = shipped_evaluator()
    for ratio in RATIOS:
        noisy = mix_with_noise(originals, torch.tensor(ratio), source)
        with torch.no_grad():
            found = psnr(originals, noisy, data_range=1.0) if quantity == "psnr" else network(noisy)
        yield from (Sample(f"{ratio:g}", 0, unit, float(value)) for unit, value in enumerate(found))


def magnitude_and_sensitivity(
    place: Place, *, data: str, model: str, samples: int = 100, draws: int = 16, seeds: tuple[int, ...] = (0, 1, 2)
) -> Iterator[Sample]:
    """Correlate the last layer's gradient entries with how much they move when the image does (FedLeak, App. C).

    Sensitivity is an entry's root mean square change under small random changes of the image, by directional
    derivatives. One Pearson correlation per image; weight seeds are the groups.
    """
    dataset = DATASETS.build(data, data_root=place.data_root)
    for seed in seeds:
        net = build_model(model, input_shape=dataset.shape, num_classes=len(dataset.classes), seed=seed)
        weights = {name: value.detach() for name, value in net.named_parameters()}
        last = [name for name, value in weights.items() if value.ndim > 1][-1]
        source = generator(seed, "claims", "sensitivity")
        chosen = torch.randperm(len(dataset), generator=source)[:samples]
        for unit, index in enumerate(chosen.tolist()):
            batch = dataset.batch(torch.tensor([index]))

            def entries(
                images: torch.Tensor,
                labels: torch.Tensor = batch.labels,
                net: torch.nn.Module = net,
                weights: dict[str, torch.Tensor] = weights,
                last: str = last,
            ) -> torch.Tensor:
                def loss(own: torch.Tensor) -> torch.Tensor:
                    logits = functional_call(net, {**weights, last: own}, (images,))
                    return torch.nn.functional.cross_entropy(logits, labels)

                return grad(loss)(weights[last]).flatten()  # type: ignore[no-any-return]

            moves = [
                torch.func.jvp(entries, (batch.images,), (torch.randn(batch.images.shape, generator=source),))[1]
                for _ in range(draws)
            ]
            sensitivity = torch.stack(moves).square().mean(0).sqrt()
            magnitude = entries(batch.images).abs()
            pearson = float(np.corrcoef(magnitude.numpy(), sensitivity.numpy())[0, 1])
            yield Sample("correlation", seed, unit, pearson)


def step_cost(
    place: Place, *, data: str, model: str, defences: dict[str, str], batch_size: int = 8, repeats: int = 5
) -> Iterator[Sample]:
    """Time a client's round under each defence, in rounds without one that ran beside it (Refiner, Table 4)."""
    dataset = DATASETS.build(data, data_root=place.data_root)
    net = build_model(model, input_shape=dataset.shape, num_classes=len(dataset.classes), seed=0)
    batch = dataset.batch(torch.arange(batch_size))
    arms = {name: build_defence(spec) for name, spec in {"none": "none", **defences}.items()}
    for unit in range(-1, repeats):  # the first round of each is a warm-up
        spent = {}
        for name, defence in arms.items():
            started = time.process_time()
            client_round(net, [batch], RoundConfig(learning_rate=0.1), defence, generator(unit + 1, "claims"))
            spent[name] = time.process_time() - started
        if unit >= 0:
            yield from (Sample(name, 0, unit, seconds / spent["none"]) for name, seconds in spent.items())


def distance_and_quality(place: Place, *, audit: dict[str, Any]) -> Iterator[Sample]:
    """Correlate, over defences, the relative distance of gradients with what an attack recovers (DGP, Figure 1).

    One rank correlation per weight seed, over all its trials.
    """
    run = place.audit(audit)
    pairs: dict[int, list[tuple[float, float]]] = {}
    for record in run.records:
        distance = record.cost.get("gradient_distance")
        if record.status == "ok" and not record.aware and distance is not None:
            pairs.setdefault(record.weight_seed, []).append((distance, float(np.mean(record.psnr))))
    for seed, found in pairs.items():
        distances, qualities = zip(*found, strict=True)
        yield Sample("correlation", seed, 0, float(stats.spearmanr(distances, qualities).statistic))


MEASURES: dict[str, Measure] = {
    "noise-in-images": noise_in_images,
    "magnitude-and-sensitivity": magnitude_and_sensitivity,
    "step-cost": step_cost,
    "distance-and-quality": distance_and_quality,
    "inference": inference,
}
"""By the name a declaration uses."""
