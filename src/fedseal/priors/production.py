"""From names of data sets to a file with a trained and measured prior: `fedseal prepare prior`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedseal.core.errors import InputError, UsageError
from fedseal.core.specs import without_directories
from fedseal.core.watcher import Watcher
from fedseal.data.dataset import of_images, split_public
from fedseal.data.registry import DATASETS
from fedseal.preparation import library
from fedseal.priors.files import save_prior
from fedseal.priors.fitting import PriorFit
from fedseal.priors.plan import Plan
from fedseal.priors.prior import Quality
from fedseal.priors.quality import samples

_ROWS, _COLUMNS = 4, 8
_SHOWN = 4
"""Screen pixels that one of a sample takes."""


@dataclass(frozen=True)
class Produced:
    """A trained prior's file.

    Attributes:
        path: where it is.
        picture: with samples.
        sha256: of the file.
        quality: on images held out.
        title: what was trained.
        found: whether it was in the library already.
    """

    path: Path
    picture: Path
    sha256: str
    quality: Quality | None
    title: str
    found: bool


def produce_prior(
    data: Sequence[str],
    plan: Plan,
    out: Path,
    *,
    images: int = 0,
    public_fraction: float | None = None,
    split_seed: int = 0,
    data_root: Path | None = None,
    watcher: Watcher | None = None,
) -> Produced:
    """Train a prior on public data and write it to `out`, with a picture of samples beside it.

    Args:
        data: specs of public data sets of one shape.
        plan: how to train.
        out: the file.
        images: of all sets together, at most; 0 for all.
        public_fraction: take only that part of each set which a scenario with this fraction and seed leaves public.
        split_seed: that scenario's seed.
        data_root: directory with local data sets.
        watcher: told of the steps.
    """
    if not data:
        raise UsageError("a prior is learned from public data.", hint="Give --data NAME, for example cifar10.")
    fit = PriorFit(*_gathered(data, plan, images, public_fraction, split_seed, data_root))
    books = library()
    found = books.has(fit)
    prior = books.get(fit, watcher)
    sha256 = save_prior(prior, plan, out)
    picture = out.with_suffix(".png")
    _sheet(samples(prior, _ROWS * _COLUMNS, plan.seed)).save(picture)
    return Produced(out, picture, sha256, prior.quality, fit.title, found)


def _gathered(
    data: Sequence[str], plan: Plan, images: int, fraction: float | None, seed: int, data_root: Path | None
) -> tuple[Tensor, Plan, str]:
    parts: list[Tensor] = []
    for spec in data:
        found = of_images(DATASETS.build(spec, data_root=data_root), "a prior")
        found = found if fraction is None else split_public(found, fraction, seed)[1]
        parts.append(found.batch().images)
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        told = " and ".join("x".join(map(str, shape)) for shape in sorted(shapes))
        raise InputError(f"a prior is of images of one shape, these are {told}.", hint="Give sets of one size.")
    whole = torch.cat(parts)[: images or None]
    part = "" if fraction is None else f", the public part at public_fraction {fraction:g} and seed {seed}"
    return whole, plan, f"{len(whole):,} images of {', '.join(map(without_directories, data))}{part}"


def _sheet(images: Tensor) -> Image.Image:
    """Return images [N, C, H, W] as one picture, rows of eight."""
    shown = images if images.shape[1] in (1, 3) else images.mean(1, keepdim=True)
    rows = [torch.cat(list(row), 2) for row in torch.split(shown, _COLUMNS)]
    pixels = np.asarray((torch.cat(rows, 1) * 255).round().byte().permute(1, 2, 0))
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return picture.resize((picture.width * _SHOWN, picture.height * _SHOWN), Image.Resampling.NEAREST)
