"""The auxiliary batches a SEER attacker trains on: ordinary ones, LIDS's mini-groups, or shifted past a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.attacks.active.seer.properties import best_threshold, property_scores, shift
from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.defences.lids.groups import Groups

_LEAST_BATCHES = 8
_CALIBRATION = 2000
_ATTEMPTS = 20
_BRIGHTNESS, _CONTRAST = 0.1, 0.15


@dataclass(frozen=True)
class Drawn:
    """Batches to train on.

    Attributes:
        images: [M, G, B, C, H, W]: batches of G clients, the first of which holds the image to isolate.
        labels: [M, G, B].
        top: its place in that batch, [M].
    """

    images: Tensor
    labels: Tensor
    top: Tensor

    @property
    def target(self) -> Tensor:
        """The images to isolate, [M, C, H, W]."""
        return self.images[torch.arange(len(self.top), device=self.top.device), 0, self.top]


class Auxiliary:
    """Auxiliary data a plan draws batches from.

    Args:
        data: the attacker's images.
        plan: how they are drawn.
        groups: LIDS's mini-groups of these images, for a plan that expects them.
    """

    def __init__(self, data: Batch, plan: SeerPlan, groups: Groups | None = None) -> None:
        least = _LEAST_BATCHES * plan.batch_size
        if len(data) < least:
            raise InputError(
                f"SEER has {len(data)} auxiliary images, too little to learn from: batches of {plan.batch_size} need "
                f"at least {least}.",
                hint="Give it more public data (`public_fraction`), or attack smaller batches.",
            )
        if (plan.lids > 1) != (groups is not None):
            raise InputError("a plan with `lids` needs the auxiliary images' mini-groups, and no other plan does.")
        scores = property_scores(data.images, plan.property)
        if float(scores.max() - scores.min()) < 1e-6:
            raise InputError(
                f"no auxiliary image has the property {plan.property!r}: all have the same score.",
                hint="Choose another property; colours need colour images.",
            )
        self._data, self._plan, self._groups = data, plan, groups
        self.threshold = self._calibrated(scores) if plan.mode == "thresh" else None

    def draw(self, count: int, source: torch.Generator, *, augment: bool = True) -> Drawn:
        """Return `count` batches, fit for the plan's mode."""
        if self.threshold is not None:
            return self._around(self.threshold, count, source, augment)
        images, labels = self._plain(count, source, augment)
        return Drawn(images[:, None], labels[:, None], property_scores(images, self._plan.property).argmax(1))

    def _plain(self, count: int, source: torch.Generator, augment: bool) -> tuple[Tensor, Tensor]:
        size, device = self._plan.batch_size, self._data.images.device
        if self._groups is not None:
            bases = _distinct(len(self._data), count, size // self._plan.lids, source)
            images, labels = self._groups.assembled(bases)
        else:
            chosen = _distinct(len(self._data), count, size, source).to(device)
            images, labels = self._data.images[chosen], self._data.labels[chosen]
        return (augmented(images, source), labels) if augment and self._plan.augment else (images, labels)

    def _calibrated(self, scores: Tensor) -> float:
        places = _distinct(len(scores), _CALIBRATION, self._plan.batch_size, generator(self._plan.seed, "threshold"))
        return best_threshold(scores[places.to(scores.device)], self._plan.clients)

    def _around(self, threshold: float, count: int, source: torch.Generator, augment: bool) -> Drawn:
        """Return pairs of batches shifted so that one image of the first, and none of the second, passes."""
        kind, kept = self._plan.property, list[tuple[Tensor, Tensor, Tensor]]()
        for _ in range(_ATTEMPTS):
            first, first_labels = self._plain(count, source, augment)
            second, second_labels = self._plain(count, source, augment)
            place = torch.rand(2, count, generator=source).to(first)
            best = property_scores(first, kind).topk(2, dim=1).values
            first = shift(first, threshold - torch.lerp(best[:, 1], best[:, 0], 0.1 + 0.8 * place[0]), kind)
            excess = property_scores(second, kind).amax(1) - threshold
            second = shift(second, torch.where(excess > 0, -excess - 0.1 * place[1], 0.0), kind)
            scores = property_scores(first, kind)
            good = ((scores > threshold).sum(1) == 1) & (property_scores(second, kind).amax(1) <= threshold)
            pair = torch.stack([first, second], 1), torch.stack([first_labels, second_labels], 1)
            kept.append((pair[0][good], pair[1][good], scores.argmax(1)[good]))
            if sum(len(part[2]) for part in kept) >= count:
                images, labels, top = (torch.cat(parts)[:count] for parts in zip(*kept, strict=True))
                return Drawn(images, labels, top)
        raise InputError(
            f"no image of the auxiliary batches can be shifted alone past the threshold {threshold:.3f} of "
            f"{self._plan.property!r}.",
            hint="Choose another property, or give more varied auxiliary data.",
        )


def augmented(images: Tensor, source: torch.Generator) -> Tensor:
    """Flip half of the images [M, B, C, H, W] and change brightness and the channels' contrast a little."""
    shape = (*images.shape[:2], 1, 1, 1)
    colours = (*images.shape[:2], images.shape[2], 1, 1)
    draw = [torch.rand(shape, generator=source).to(images) for _ in range(2)]
    gain = 1 + _CONTRAST * (2 * torch.rand(colours, generator=source).to(images) - 1)
    flipped = torch.where(draw[0] < 0.5, images.flip(-1), images)
    return (flipped * gain + _BRIGHTNESS * (2 * draw[1] - 1)).clamp(0, 1)


def _distinct(pool: int, count: int, size: int, source: torch.Generator) -> Tensor:
    """Draw `count` batches [count, size] of distinct places below `pool`."""
    places = torch.randint(pool, (count, size), generator=source)
    while True:
        ordered = places.sort(1).values
        doubled = (ordered.diff(dim=1) == 0).any(1)
        if not bool(doubled.any()):
            return places
        places[doubled] = torch.randint(pool, (int(doubled.sum()), size), generator=source)
