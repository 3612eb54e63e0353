"""MixUp (Zhang et al., ICLR 2018) and InstaHide (Huang et al., ICML 2020): train on mixtures of private images.

Each image is mixed with k - 1 others of the client, coefficients Dirichlet(3, 1, ..., 1) with none above 0.65, labels
likewise, afresh in every step (after GradAttack). InstaHide then flips the sign of each pixel at
random. Threat model: passive server; InstaHide's encoding is broken (Carlini et al. 2021). Departures: others come
from the data `prepare` was given, or else from the batch, and fewer are mixed where there are fewer; signs are flipped
about mid-grey, x -> 1 - x, since images live in [0, 1]. `k=1` (InstaHide also `flip=false`) is the identity.

Cost: k images are read for each that is fed; labels become shares.

Known breaks: mixtures leak as images do, and several mixtures of the same images are solved for them; pixel signs are
no secret to an attacker who optimises the absolute value.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.traits import Traits

_OWN_SHAPE = 3


def mixing_weights(count: int, k: int, largest: float, generator: torch.Generator) -> Tensor:
    """Draw `count` rows of k coefficients from Dirichlet(3, 1, ..., 1), redrawn until none exceeds `largest`.

    A gamma variable of whole shape n is the sum of n exponential ones, so these are all that is drawn.
    """
    rows = torch.empty(0, k, dtype=torch.float64)
    while len(rows) < count:
        waits = torch.empty(2 * count, k + _OWN_SHAPE - 1, dtype=torch.float64, device=generator.device)
        waits.exponential_(generator=generator)
        own = waits[:, :_OWN_SHAPE].sum(1, keepdim=True)
        gammas = torch.cat([own, waits[:, _OWN_SHAPE:]], 1).cpu()
        drawn = gammas / gammas.sum(1, keepdim=True)
        rows = torch.cat([rows, drawn[drawn.amax(1) <= largest]])
    return rows[:count]


def partners(own: Tensor, pool: int, k: int, generator: torch.Generator) -> Tensor:
    """Draw k - 1 distinct indices below `pool` per image, [B, k - 1], never its `own` [B] (-1: it has none)."""
    keys = torch.rand(len(own), pool, generator=generator, device=generator.device).cpu()
    inside = own >= 0
    keys[inside, own[inside]] = 2.0
    return keys.topk(k - 1, dim=1, largest=False).indices


class _Mixing(Defence):
    """What both methods share.

    Args:
        k: images in a mixture.
        largest: bound on the coefficients.
    """

    stage = "data"

    def __init__(self, k: int, largest: float) -> None:
        if k < 1 or not 0 < largest <= 1 or (k > 1 and largest * k <= 1):
            raise UsageError(
                f"{self.name} needs k >= 1 and a bound above 1/k, at most 1, got {k} and {largest:g}.",
                hint="k is how many images are mixed, `largest` bounds the coefficient of each.",
            )
        self.k = k
        self.largest = largest
        self.traits = Traits(mixes_samples=k > 1)
        self._pool: Batch | None = None
        self._places: dict[bytes, int] = {}
        self._mixed: int | None = None

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Remember the client's data, from which images to mix in are drawn."""
        self._pool = dataset
        self._places = {_fingerprint(image): index for index, image in enumerate(dataset.images)}
        return dataset

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Mix images and labels; labels become probabilities [B, classes]."""
        size, device = len(batch), batch.images.device
        pool, own = batch, torch.arange(size)
        if self._pool is not None:
            pool, own = self._pool, torch.tensor([self._places.get(_fingerprint(i), -1) for i in batch.images])
        available = len(pool) + int((own < 0).any())
        k = self._mixed = next((k for k in range(min(self.k, available), 1, -1) if self.largest * k > 1), 1)
        if k == 1:
            return batch
        weights = mixing_weights(size, k, self.largest, context.generator).to(batch.images)
        chosen = partners(own, len(pool), k, context.generator).to(pool.images.device)
        images = torch.cat([batch.images[:, None], pool.images[chosen].to(batch.images)], 1)
        classes = _class_count(context, batch)
        targets = [_probabilities(batch.labels, classes)[:, None], _probabilities(pool.labels[chosen], classes)]
        labels = torch.cat([target.to(device, weights.dtype) for target in targets], 1)
        mixed = torch.einsum("bk,bkchw->bchw", weights, images).clamp(0, 1)
        return Batch(mixed, torch.einsum("bk,bkn->bn", weights, labels))

    def report(self) -> CostReport:
        """Say so if there were too few images to mix as many as asked for."""
        if self._mixed is None or self._mixed == self.k:
            return CostReport()
        return CostReport(remarks=(f"{self.name} mixed {self._mixed} instead of {self.k} images: there were no more",))

    def attacker_view(self) -> AttackerView:
        """Publish the parameters."""
        return AttackerView(self.name, {"k": self.k, "largest": self.largest})


def _fingerprint(image: Tensor) -> bytes:
    return image.detach().float().cpu().numpy().tobytes()


def _probabilities(labels: Tensor, classes: int) -> Tensor:
    """Return labels [..., classes] as probabilities, whether they were classes or probabilities before."""
    return labels if labels.is_floating_point() else F.one_hot(labels, classes)


def _class_count(context: RoundContext, batch: Batch) -> int:
    """Return how many logits the client's model has, from a copy so that its statistics stay as they are."""
    return int(copy.deepcopy(context.model).eval()(batch.images[:1]).shape[1])


@DEFENCES.register(
    "mixup", Info("train on mixtures of images and labels", paper="Zhang et al., ICLR 2018", threat="passive")
)
class MixUp(_Mixing):
    """Convex mixtures.

    Args:
        k: images in a mixture.
        largest: bound on the coefficients.
    """

    def __init__(self, k: int = 4, largest: float = 0.65) -> None:
        super().__init__(k, largest)


@DEFENCES.register(
    "instahide",
    Info("train on mixtures of images with random pixel signs", paper="Huang et al., ICML 2020", threat="passive"),
)
class InstaHide(_Mixing):
    """Convex mixtures with signs flipped at random.

    Args:
        k: images in a mixture.
        largest: bound on the coefficients.
        flip: whether pixels' signs are flipped.
    """

    def __init__(self, k: int = 4, largest: float = 0.65, flip: bool = True) -> None:
        super().__init__(k, largest)
        self.flip = flip

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Mix, then flip the sign of each pixel of each channel with probability 1/2."""
        mixed = super().on_batch(batch, context)
        if not self.flip:
            return mixed
        bits = torch.randint(2, mixed.images.shape, generator=context.generator, device=context.generator.device)
        return Batch(torch.where(bits.to(mixed.images.device) == 1, 1 - mixed.images, mixed.images), mixed.labels)
