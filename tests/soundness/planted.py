"""Defences that leak while they look strong, and some that really send nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel, constant_variance
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.noise import clip_to_norm


def planted(name: str) -> Info:
    return Info("planted by a test", name=name)


class Fortress(Defence):
    """Does nothing under a strong name, and claims a small epsilon."""

    def report(self) -> CostReport:
        return CostReport(epsilon_accounted=0.1)


class Permuted(Defence):
    """Shuffles the entries of every tensor by a permutation anybody can know."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: t.flatten()[_order(t.numel())].view_as(t) for name, t in update.items()}


class Transposed(Defence):
    """Sends every matrix with its entries in another order."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: t.flatten(1).T.reshape(t.shape) if t.ndim > 1 else t.flip(0) for name, t in update.items()}


class BiasNoise(Defence):
    """Drowns the biases and sends all weights in clear."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {
            name: t + 100 * torch.randn(t.shape, generator=context.generator) if t.ndim == 1 else t
            for name, t in update.items()
        }


class FixedSeed(Defence):
    """Adds much noise, the same every time."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        source = generator(0, "the same")
        return {name: t + torch.randn(t.shape, generator=source) for name, t in update.items()}


class Sometimes(Defence):
    """Sends one client in four in clear and drowns the others."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        if float(torch.rand((), generator=context.generator)) < 0.25:
            return update
        return {name: t + 100 * torch.randn(t.shape, generator=context.generator) for name, t in update.items()}


class LabelsOnly(Defence):
    """Sends the last bias alone: no pixel, every label."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        last = list(update)[-1]
        return {name: t if name == last else torch.zeros_like(t) for name, t in update.items()}


class LastLayerOnly(Defence):
    """Sends the last layer alone."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        last = list(update)[-2:]
        return {name: t if name in last else torch.zeros_like(t) for name, t in update.items()}


class MeanColour(Defence):
    """Feeds every image as one flat colour, its own mean."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        return Batch(batch.images.mean((2, 3), keepdim=True).expand_as(batch.images).contiguous(), batch.labels)


class RandomVector(Defence):
    """Sends noise that has nothing to do with the data."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: torch.randn(t.shape, generator=context.generator) for name, t in update.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: {n: 0 * t for n, t in update.items()}, constant_variance(1.0))
        return AttackerView(self.name, channel=channel)


class OtherData(Defence):
    """Trains on noise with labels drawn at random instead of the client's images."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        images = torch.rand(batch.images.shape, generator=context.generator)
        labels = torch.randint(10, batch.labels.shape, generator=context.generator)
        return Batch(images, labels)


class Shouting(Defence):
    """Clips hard and adds noise far above the signal, without claiming anything."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        return {name: t + 30 * torch.randn(t.shape, generator=context.generator) for name, t in clipped.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: clip_to_norm(update, 1.0), constant_variance(900.0))
        return AttackerView(self.name, channel=channel)


def _order(size: int) -> torch.Tensor:
    return torch.randperm(size, generator=generator(0, "order"))


PLANTED: tuple[tuple[str, type[Defence]], ...] = (
    ("planted-fortress", Fortress),
    ("planted-permuted", Permuted),
    ("planted-transposed", Transposed),
    ("planted-bias-noise", BiasNoise),
    ("planted-fixed-seed", FixedSeed),
    ("planted-sometimes", Sometimes),
    ("planted-labels-only", LabelsOnly),
    ("planted-last-layer", LastLayerOnly),
    ("planted-mean-colour", MeanColour),
    ("planted-random-vector", RandomVector),
    ("planted-other-data", OtherData),
    ("planted-shouting", Shouting),
)


@contextmanager
def known() -> Iterator[None]:
    """Make the planted defences known for a while; no other test is to meet them."""
    before = dict(DEFENCES._entries)
    for name, factory in PLANTED:
        DEFENCES.register(name, planted(name))(factory)
    try:
        yield
    finally:
        DEFENCES._entries.clear()
        DEFENCES._entries.update(before)
