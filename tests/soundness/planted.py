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


class Liar(Defence):
    """Declares noise far above the signal, whatever it does."""

    declared = 30.0

    def noise(self, update: Tensors, context: RoundContext) -> Tensors:
        """Return what is declared."""
        return {name: self.declared * torch.randn(t.shape, generator=context.generator) for name, t in update.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: clip_to_norm(update, 1.0), constant_variance(self.declared**2))
        return AttackerView(self.name, channel=channel)


class DeclaredNoise(Liar):
    """Declares noise and adds none."""


class HalfNoise(Liar):
    """Adds a third of the noise it declares."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        return {name: t + 10 * torch.randn(t.shape, generator=context.generator) for name, t in clipped.items()}


class DeclaredFixed(Liar):
    """Adds the noise it declares, the same every time."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        source = generator(0, "the same again")
        return {n: t + 30 * torch.randn(t.shape, generator=source) for n, t in clip_to_norm(update, 1.0).items()}


class DeclaredSometimes(Liar):
    """Forgets the noise it declares in one client of four."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        if float(torch.rand((), generator=context.generator)) < 0.25:
            return clipped
        return {name: t + 30 * torch.randn(t.shape, generator=context.generator) for name, t in clipped.items()}


class SomeClasses(Liar):
    """Forgets the noise it declares for three classes of ten."""

    def __init__(self) -> None:
        self._clear = False

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        self._clear = bool((batch.labels < 3).all())
        return batch

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        size = 0.0 if self._clear else self.declared
        clipped = clip_to_norm(update, 1.0)
        return {name: t + size * torch.randn(t.shape, generator=context.generator) for name, t in clipped.items()}


class OneTensorClear(Liar):
    """Adds the noise it declares to all tensors but the first."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        clear = next(iter(clipped))
        return {
            n: t if n == clear else t + 30 * torch.randn(t.shape, generator=context.generator)
            for n, t in clipped.items()
        }


class SmallPool(Liar):
    """Draws the noise it declares from sixteen that anybody can try."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        source = generator(int(torch.randint(16, (), generator=context.generator)), "pool")
        return {n: t + 30 * torch.randn(t.shape, generator=source) for n, t in clip_to_norm(update, 1.0).items()}


class QuietCorner(Liar):
    """Adds the noise it declares to all entries but the first twentieth of every tensor."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        drawn = self.noise(update, context)
        for noise in drawn.values():
            noise.view(-1)[: noise.numel() // 20] = 0
        return {name: t + drawn[name] for name, t in clip_to_norm(update, 1.0).items()}


class OppositePairs(Liar):
    """Adds the noise it declares to one entry and takes it from the next: their sums are clear."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        drawn = self.noise(update, context)
        for noise in drawn.values():
            flat = noise.view(-1)
            even = len(flat) // 2 * 2
            flat[1:even:2] = -flat[:even:2]
        return {name: t + drawn[name] for name, t in clip_to_norm(update, 1.0).items()}


class Steps(Liar):
    """Adds the noise it declares in multiples of ten: the update lies between them."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        drawn = self.noise(update, context)
        return {name: t + 10 * (drawn[name] / 10).round() for name, t in clip_to_norm(update, 1.0).items()}


class FineSteps(Liar):
    """Adds the noise it declares in tenths, and the update a hundred times smaller."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        drawn = self.noise(update, context)
        return {name: t / 100 + (10 * drawn[name]).round() / 10 for name, t in clip_to_norm(update, 1.0).items()}


class CommonNoise(Liar):
    """Adds the noise it declares, one number for all entries of a tensor."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        return {name: t + 30 * torch.randn((), generator=context.generator) for name, t in clipped.items()}


class FlatNoise(Defence):
    """Adds uniform noise far above the signal, as it says."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        return {name: t + 200 * torch.rand(t.shape, generator=context.generator) - 100 for name, t in clipped.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: clip_to_norm(update, 1.0), constant_variance(200.0**2 / 12))
        return AttackerView(self.name, channel=channel)


class RoundedNoise(Defence):
    """Adds noise far above the signal, as it says, and rounds the sum: nothing is left between the steps."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        drawn = {name: 30 * torch.randn(t.shape, generator=context.generator) for name, t in clipped.items()}
        return {name: (t + drawn[name]).round() for name, t in clipped.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: clip_to_norm(update, 1.0), constant_variance(900.0 + 1 / 12))
        return AttackerView(self.name, channel=channel)


class SignsOfNoise(Defence):
    """Sends noise, it says, with the signs of the update."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        drawn = {name: torch.randn(t.shape, generator=context.generator).abs() for name, t in update.items()}
        return {name: torch.where(update[name] < 0, -size, size) for name, size in drawn.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: {n: 0 * t for n, t in update.items()}, constant_variance(1.0))
        return AttackerView(self.name, channel=channel)


class Smuggler(Defence):
    """Trains on noise, and writes the private pixels into the upload."""

    def __init__(self) -> None:
        self._held: torch.Tensor | None = None

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        self._held = batch.images.flatten()
        return Batch(torch.rand(batch.images.shape, generator=context.generator), batch.labels)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        assert self._held is not None
        name = max(update, key=lambda name: update[name].numel())
        flat = update[name].flatten().clone()
        size = min(len(flat), len(self._held))
        flat[:size] = flat.abs().mean() * self._held[:size]
        return {**update, name: flat.view_as(update[name])}


class Negative(Defence):
    """Trains on negatives of the images."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        return Batch(1 - batch.images, batch.labels)


class ShuffledPixels(Defence):
    """Trains on images whose pixels are in another order, the same for all."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        order = _order(batch.images[0].numel())
        return Batch(batch.images.flatten(1)[:, order].view_as(batch.images), batch.labels)


class Padded(Defence):
    """Trains on images to which a pad is added, modulo one, the same for all."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        pad = torch.rand(batch.images.shape[1:], generator=generator(0, "pad"))
        return Batch((0.8 * batch.images + pad) % 1, batch.labels)


class LowRank(Defence):
    """Sends the leading direction of every matrix."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: _leading(t) if t.ndim > 1 else t for name, t in update.items()}


class Wrapped(Defence):
    """Sends every entry modulo a thousandth."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: t % 1e-3 for name, t in update.items()}


class Scaled(Defence):
    """Multiplies every tensor by a number drawn at random."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: t * (10 * torch.randn((), generator=context.generator)).exp() for name, t in update.items()}


class Sorted(Defence):
    """Sends the entries of every tensor in the order of their size."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: t.flatten().sort().values.view_as(t) for name, t in update.items()}


class AlwaysTheSame(Defence):
    """Trains on one picture of noise, whatever the client has."""

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        source = generator(0, "one picture")
        images = torch.rand(batch.images.shape, generator=source)
        return Batch(images, torch.randint(10, batch.labels.shape, generator=source))


class HeavyTails(Defence):
    """Adds Laplace noise far above the signal, as it says."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        clipped = clip_to_norm(update, 1.0)
        return {name: t + 50 * _laplace(t, context.generator) for name, t in clipped.items()}

    def attacker_view(self) -> AttackerView:
        channel = Channel(lambda update, seen: clip_to_norm(update, 1.0), constant_variance(2 * 50.0**2))
        return AttackerView(self.name, channel=channel)


def _leading(tensor: torch.Tensor) -> torch.Tensor:
    left, sizes, right = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
    return (left[:, :1] * sizes[:1] @ right[:1]).reshape(tensor.shape)


def _laplace(like: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    sides = torch.rand(2, *like.shape, generator=source).clamp(min=1e-30).log()
    return sides[0] - sides[1]


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
    ("planted-declared-noise", DeclaredNoise),
    ("planted-half-noise", HalfNoise),
    ("planted-declared-fixed", DeclaredFixed),
    ("planted-declared-sometimes", DeclaredSometimes),
    ("planted-some-classes", SomeClasses),
    ("planted-one-clear", OneTensorClear),
    ("planted-small-pool", SmallPool),
    ("planted-quiet-corner", QuietCorner),
    ("planted-opposite-pairs", OppositePairs),
    ("planted-steps", Steps),
    ("planted-fine-steps", FineSteps),
    ("planted-common-noise", CommonNoise),
    ("planted-signs", SignsOfNoise),
    ("planted-smuggler", Smuggler),
    ("planted-negative", Negative),
    ("planted-shuffled-pixels", ShuffledPixels),
    ("planted-padded", Padded),
    ("planted-low-rank", LowRank),
    ("planted-wrapped", Wrapped),
    ("planted-scaled", Scaled),
    ("planted-sorted", Sorted),
    ("planted-always-the-same", AlwaysTheSame),
    ("planted-heavy-tails", HeavyTails),
    ("planted-flat-noise", FlatNoise),
    ("planted-rounded-noise", RoundedNoise),
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
