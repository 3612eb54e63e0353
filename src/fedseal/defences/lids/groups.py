"""Mini-groups: each real image with the S - 1 synthetic ones made of it (LIDS, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.batch import Batch


@dataclass(frozen=True)
class Groups:
    """A client's data and what was made of it.

    Attributes:
        real: the data set, N images.
        synthetic: [N, S - 1, C, H, W] in [0, 1]; row i was made of image i and has its label.
        alphas: the share of image i in each, [N, S - 1].
        psnr: of each before augmentation, against image i, [N, S - 1] in dB.
    """

    real: Batch
    synthetic: Tensor
    alphas: Tensor
    psnr: Tensor

    @property
    def size(self) -> int:
        """S, the images of a group."""
        return 1 + self.synthetic.shape[1]

    def reaching(self, tau: float) -> float:
        """Return the share of synthetic images that are within tau dB of their base, as Algorithm 1 asks of all."""
        return float((self.psnr >= tau).double().mean())

    def assembled(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        """Return batches of whole groups: images [M, k S, C, H, W] and labels [M, k S] for real images [M, k]."""
        bases = bases.to(self.real.labels.device)
        images = torch.cat([self.real.images[bases][:, :, None], self.synthetic[bases]], 2)
        labels = self.real.labels[bases][:, :, None].expand(*bases.shape, self.size)
        return images.flatten(1, 2), labels.flatten(1, 2)

    def batch(self, bases: Tensor) -> Batch:
        """Return one batch of the groups of real images [k]."""
        images, labels = self.assembled(bases[None])
        return Batch(images[0], labels[0])


def form_batches(count: int, groups_per_batch: int, source: torch.Generator) -> Tensor:
    """Deal `count` real images into batches of k groups, once and for all: places [batches, k].

    Every image is in one batch; the last batch is completed with images of the first, so that all are equally large.
    """
    order = torch.randperm(count, generator=source, device=source.device).cpu()
    missing = -count % groups_per_batch
    return torch.cat([order, order[torch.arange(missing) % count]]).view(-1, groups_per_batch)
