"""Singled out: whether a reconstruction points at its original among strangers.

The private image is put among N - 1 images of the same source that nothing else has seen, and all N are ranked by their
similarity to what the attacker rebuilt. Without a leak original and strangers are exchangeable, so each rank has
probability 1/N, whatever the attack and whatever the PSNR. Of a batch the attacker holds a set of B pictures: a
candidate counts by its similarity to the most similar of them, the original like the strangers, so chance stays 1/N
exactly; after a pairing with the originals, which picks what resembles them, it would not.

"Singling out" is the first of the three risks by which the European data protection authorities judge anonymisation
(Article 29 Working Party, Opinion 05/2014, WP216).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.metrics.checks import check_images, precise
from fedseal.metrics.image import psnr_of_mse, ssim
from fedseal.metrics.lpips import Lpips
from fedseal.metrics.matching import IMAGE_RANGE

STRANGERS = 199
"""Strangers drawn, where there are as many: N = 200."""

FEWEST_STRANGERS = 19
"""Below, first among N is too likely by chance to be read."""

TWIN_CORRELATION = 0.98
TWIN_DB = 30.0
"""A stranger this close to the original is the same picture to the eye. It is taken out of the line-up, and counted as
if the attacker had been allowed to point at it instead: chance is (1 + twins)/N."""

SIMILARITY_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "correlation": "Pearson's correlation of the pixels",
        "mse": "the mean squared error of the pixels",
        "ssim": "structural similarity",
        "lpips": "the learned perceptual distance",
    }
)
"""The similarities, fixed before any is looked at; the best of them is reported with a Bonferroni factor."""

SHOWN = 5
"""Candidates of a line-up kept for pictures."""

_COSTLY = {"ssim": 2**24, "lpips": 2**21}
"""Pixels, over all pairs of a line-up, above which a similarity is not computed: hours of it would not pay."""
_CHUNK = 512


@dataclass(frozen=True)
class LineUp:
    """How the originals of one batch fared among strangers; entry i of every tuple belongs to original i.

    Attributes:
        ranks: by similarity, the original's place from 1; ties count against the attacker.
        sizes: N, the original included.
        twins: near-duplicates of the original taken out.
        stranger_psnr: in dB, the most that any reconstruction reaches on any stranger: what chance reaches.
        top: the `SHOWN` candidates most correlated with the reconstructions: indices of strangers, -1 for the original,
            which comes last where it is not among them.
    """

    ranks: dict[str, tuple[int, ...]]
    sizes: tuple[int, ...]
    twins: tuple[int, ...]
    stranger_psnr: tuple[float, ...]
    top: tuple[tuple[int, ...], ...]


def line_up(
    originals: Batch,
    reconstructions: Tensor,
    strangers: Batch,
    lpips: Lpips | None = None,
    *,
    by_class: bool = False,
    likenesses: Tensor | None = None,
) -> LineUp | None:
    """Rank every original among the strangers, or return None where these are too few.

    Args:
        originals: the attacked batch, images [B, C, H, W] in [0, 1].
        reconstructions: what was rebuilt, [K, C, H, W], in any order.
        strangers: of the same source, seen by neither attack, prior nor baselines.
        lpips: the perceptual metric, or None.
        by_class: rank among strangers with the original's own label, for an attacker who was given it: the label alone
            would otherwise point at the original.
        likenesses: what the attacker compares with the line-up, [K, C, H, W], if not the reconstructions.
    """
    if len(strangers) == 0:
        return None
    truth = precise(originals.images.detach())
    rebuilt = _shown(reconstructions, truth)
    held = rebuilt if likenesses is None else _shown(likenesses, truth)
    others = precise(strangers.images.to(truth.device))
    allowed = _allowed(originals, strangers, by_class)
    if int(allowed.sum(1).min()) < FEWEST_STRANGERS:
        return None
    kept = allowed & ~_twins(truth, others)
    candidates = torch.cat([truth, others])
    scores = {name: _best(name, candidates, held, lpips) for name in _affordable(candidates, held, lpips)}
    b = len(truth)
    ranks = {name: tuple((1 + (kept & (s[b:] >= s[:b, None])).sum(1)).tolist()) for name, s in scores.items()}
    closest = scores["mse"][b:] if likenesses is None else _best("mse", others, rebuilt, None)
    hidden = torch.where(kept, closest[None], -torch.inf).amax(1)
    return LineUp(
        ranks,
        tuple((1 + allowed.sum(1)).tolist()),
        tuple((allowed & ~kept).sum(1).tolist()),
        tuple(psnr_of_mse(-hidden, data_range=IMAGE_RANGE).tolist()),
        tuple(_top(scores["correlation"][i], scores["correlation"][b:], kept[i]) for i in range(b)),
    )


def pointed(originals: Tensor, likenesses: Tensor, others: Tensor) -> Tensor:
    """Return by how much each original, [B, C, H, W], is more correlated than any other image is: positive if first.

    As in a line-up, a candidate counts by the likeness it is most similar to.
    """
    held = _shown(likenesses, originals)
    own, most = (_correlations(precise(images), held).amax(1) for images in (originals, others))
    return own - most.max()


def draw_strangers(labels: Tensor, order: Tensor, *, by_class: bool, count: int = STRANGERS) -> Tensor:
    """Return the indices of the strangers: the first `count` of a random order, or the first `count` of each class.

    Args:
        labels: of all candidates, [M].
        order: a random order of the candidates that may be strangers.
        by_class: draw that many of each class, for attackers who are given the labels.
        count: how many.
    """
    if not by_class:
        return order[:count]
    parts = [order[labels[order] == label][:count] for label in torch.unique(labels[order])]
    return torch.cat(parts) if parts else order[:0]


def _shown(images: Tensor, like: Tensor) -> Tensor:
    check_images(images, "line-up")
    return precise(images.detach().to(like.device).clamp(0, 1))


def _allowed(originals: Batch, strangers: Batch, by_class: bool) -> Tensor:
    """Return [B, N - 1]: which strangers stand in the line-up of which original."""
    if by_class:
        return originals.labels[:, None] == strangers.labels.to(originals.labels.device)[None]
    return torch.ones(len(originals), len(strangers), dtype=torch.bool, device=originals.images.device)


def _twins(truth: Tensor, others: Tensor) -> Tensor:
    """Return [B, N - 1]: which strangers are near-duplicates of which original."""
    same_shape = _correlations(truth, others) >= TWIN_CORRELATION
    same_pixels = psnr_of_mse(_errors(truth, others), data_range=IMAGE_RANGE) >= TWIN_DB
    return same_shape | same_pixels


def _affordable(candidates: Tensor, found: Tensor, lpips: Lpips | None) -> list[str]:
    pixels = len(candidates) * len(found) * candidates[0].numel()
    fits = min(candidates.shape[-2:]) >= 3
    costly = [name for name, limit in _COSTLY.items() if pixels <= limit and fits]
    return ["correlation", "mse", *(name for name in costly if name != "lpips" or lpips is not None)]


def _best(name: str, candidates: Tensor, found: Tensor, lpips: Lpips | None) -> Tensor:
    """Return each candidate's similarity to the most similar reconstruction, [M]; larger is more alike."""
    if name == "correlation":
        return _correlations(candidates, found).amax(1)
    if name == "mse":
        return -_errors(candidates, found).amin(1)
    parts = []
    for chunk in torch.split(candidates, max(1, _CHUNK // len(found))):
        left = chunk.repeat_interleave(len(found), dim=0)
        right = found.repeat(len(chunk), 1, 1, 1)
        if name == "ssim":
            alike = ssim(left, right, data_range=IMAGE_RANGE)
        else:
            assert lpips is not None
            alike = -lpips(left.float(), right.float()).to(left)
        parts.append(alike.view(len(chunk), -1).amax(1))
    return torch.cat(parts)


def _correlations(a: Tensor, b: Tensor) -> Tensor:
    """Return Pearson's correlation of every pair of images, [A, B]; 0 where one is flat."""
    unit = []
    for images in (a, b):
        flat = images.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        norm = centred.norm(dim=1, keepdim=True)
        unit.append(torch.where(norm > 1e-9, centred / norm.clamp(min=1e-9), 0.0))
    return unit[0] @ unit[1].T


def _errors(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared error of every pair of images, [A, B], from differences and not from products."""
    rows = [(one.flatten() - b.flatten(1)).square().mean(1) for one in a]
    return torch.stack(rows)


def _top(own: Tensor, others: Tensor, kept: Tensor) -> tuple[int, ...]:
    values = torch.cat([torch.where(kept, others, -torch.inf), own[None]])
    order = torch.argsort(values, descending=True, stable=True).tolist()
    front = [-1 if index == len(others) else index for index in order[:SHOWN]]
    return tuple(front if -1 in front else [*front[:-1], -1])
