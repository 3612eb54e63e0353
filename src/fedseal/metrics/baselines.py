"""Chance baselines: what one scores without attacking, from public data or from nothing.

A PSNR of 10 to 11 dB is about what the mean image of the data set reaches, so a score means something only
beside these. Some an attacker can make (`ATTAINABLE`): these decide whether a score is a leak. `nearest` and `flat`
look at the original itself (`ORACLES`): nobody can guess that, so they are shown for reference and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.metrics.checks import check_images, check_unit_range
from fedseal.metrics.image import mse, psnr
from fedseal.metrics.matching import IMAGE_RANGE

BASELINE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "mean_image": "the average of all public images: one blurred picture, the same for every original",
        "class_mean": "the average of the public images with the same label: what the labels alone give",
        "nearest": "the public image closest to the original, chosen by looking at it: the most that "
        "public data could ever give",
        "noise": "uniform random pixels: what knowing nothing gives",
        "flat": "a single colour, the original's own average: the right brightness and no content",
    }
)
"""Each baseline in plain words."""

ATTAINABLE = ("mean_image", "class_mean", "noise")
"""Guesses an attacker can make; the class mean only with the right labels (`attainable`)."""

ORACLES = ("nearest", "flat")
"""Guesses that look at the original: reference lines."""

WINSOR_DB = 40.0
"""Above this a picture is as good as its original. Differences of scores are taken below: an exact match counts 100 dB
by convention, and one blank or duplicated image would otherwise outweigh ten others in a mean."""

ROUNDING = 1.5 / 255
"""Images that differ by no more in any pixel are the same up to eight bits."""

_CHUNK = 2048
"""Public images compared at once."""

_FINALISTS = 4
"""Candidates whose distance is computed exactly after the fast search."""


def mean_image(originals: Tensor, public: Batch) -> Tensor:
    """Return the mean of all public images once per original, [B, C, H, W]."""
    _check(originals, public)
    return _mean(public.images, originals).expand_as(originals)


def class_mean(originals: Tensor, labels: Tensor, public: Batch) -> Tensor:
    """Return for each original the mean of the public images with its label, [B, C, H, W].

    A label that no public image has falls back to the mean of all, as every label does that is no class.
    """
    _check(originals, public)
    if labels.is_floating_point():
        return _mean(public.images, originals).expand_as(originals)
    if labels.shape != (len(originals),):
        raise InputError(
            f"baselines: {len(originals)} originals need as many labels, got shape {list(labels.shape)}.",
            hint="Pass the labels of the same batch.",
        )
    wanted = labels.to(public.labels.device)
    means: dict[int, Tensor] = {}
    for label in set(wanted.tolist()):
        members = public.images[public.labels == label]
        means[label] = _mean(members if len(members) else public.images, originals)
    return torch.stack([means[label] for label in wanted.tolist()])


def nearest(originals: Tensor, public: Batch) -> Tensor:
    """Return for each original the public image with the least MSE to it, [B, C, H, W].

    Distances come from one matrix product per chunk of public images, on images centred by the public mean
    against loss of digits; the best few are then compared exactly.
    """
    _check(originals, public)
    centre = _mean(public.images, originals).flatten()
    targets = originals.flatten(1) - centre
    scores = []
    for chunk in torch.split(public.images, _CHUNK):
        candidates = chunk.to(originals).flatten(1) - centre
        scores.append(candidates.square().sum(1) - 2 * targets @ candidates.T)
    best = torch.cat(scores, dim=1).topk(min(_FINALISTS, len(public)), dim=1, largest=False).indices
    images = public.images[best.T.to(public.images.device)].to(originals)
    errors = torch.stack([mse(originals, candidate) for candidate in images])
    return images[errors.argmin(dim=0), torch.arange(len(originals), device=images.device)]


def noise(originals: Tensor, seed: int) -> Tensor:
    """Return uniform noise in [0, 1) of the originals' shape, the same for the same seed on every device."""
    check_images(originals, "baselines")
    drawn = torch.rand(originals.shape, generator=generator(seed, "baseline-noise"), dtype=torch.float32)
    return drawn.to(originals)


def flat(originals: Tensor) -> Tensor:
    """Return each original replaced by its mean colour: the best that an image without content can score."""
    check_images(originals, "baselines")
    return originals.mean(dim=(2, 3), keepdim=True).expand_as(originals)


def baseline_images(originals: Tensor, labels: Tensor, public: Batch, seed: int) -> dict[str, Tensor]:
    """Return the images of every baseline by name, each [B, C, H, W]; names as in `BASELINE_WORDS`."""
    return {
        "mean_image": mean_image(originals, public),
        "class_mean": class_mean(originals, labels, public),
        "nearest": nearest(originals, public),
        "noise": noise(originals, seed),
        "flat": flat(originals),
    }


def chance_baselines(originals: Tensor, labels: Tensor, public: Batch, seed: int) -> dict[str, Tensor]:
    """Return the PSNR in dB that each baseline reaches on each original, as [B] by name.

    Args:
        originals: [B, C, H, W] in [0, 1].
        labels: [B], used by the class mean only.
        public: images of the same shape that the attacker may have, none of them private.
        seed: of the noise.
    """
    return {
        name: psnr(originals, images, data_range=IMAGE_RANGE)
        for name, images in baseline_images(originals, labels, public, seed).items()
    }


def attainable(names: Iterable[str], *, labels_right: bool) -> tuple[str, ...]:
    """Return which of the named baselines an attacker can make; the class mean needs the right labels."""
    return tuple(name for name in names if name in ATTAINABLE and (labels_right or name != "class_mean"))


def winsorised(psnr_db: Iterable[float]) -> list[float]:
    """Return scores in dB, none above `WINSOR_DB`."""
    return [min(value, WINSOR_DB) for value in psnr_db]


def public_duplicates(originals: Tensor, public: Tensor) -> list[int]:
    """Return which originals [B, C, H, W] equal a public image [N, C, H, W], up to the rounding of eight bits."""
    images = public.to(originals)
    if not originals.is_floating_point():
        return [i for i, one in enumerate(originals) if bool((images == one).flatten(1).all(1).any())]
    return [i for i, one in enumerate(originals) if bool(((images - one).flatten(1).abs().amax(1) <= ROUNDING).any())]


def _mean(images: Tensor, like: Tensor) -> Tensor:
    """Return the mean over images [N, C, H, W], as [C, H, W] with dtype and device of `like`."""
    return images.mean(dim=0, dtype=torch.promote_types(images.dtype, torch.float32)).to(like)


def _check(originals: Tensor, public: Batch) -> None:
    check_images(originals, "baselines")
    check_images(public.images, "baselines, public data")
    check_unit_range(originals, "baselines")
    check_unit_range(public.images, "baselines, public data")
    if public.images.shape[1:] != originals.shape[1:]:
        raise InputError(
            f"baselines: public images are {list(public.images.shape[1:])}, originals "
            f"{list(originals.shape[1:])} (C, H, W).",
            hint="Use public data of the same kind, resized to the same shape.",
        )
