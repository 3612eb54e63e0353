"""A client's mini-groups by content: built once, resumed if interrupted, kept in the cache beside the data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import check_finite, check_like
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report, Task, Tick, Watcher
from fedseal.defences.lids.autoencoder import Autoencoder, AutoencoderTraining
from fedseal.defences.lids.groups import Groups
from fedseal.defences.lids.synthesis import synthesise
from fedseal.preparation import Library

EPOCHS = 3000
QUICK = 50
"""Epochs that a first federation can wait for."""
"""Of an autoencoder, a client's or that of an attacker who expects mini-groups; the paper's, for a GPU."""


@dataclass(frozen=True)
class Recipe:
    """What determines a client's synthetic images, besides its data.

    Attributes:
        samples: S, images per mini-group.
        tau: PSNR in dB that a synthetic image must have to its base.
        augmented: whether synthetic images are edited.
        epochs: of the autoencoder.
        seed: of weights, order and edits.
    """

    samples: int
    tau: float
    augmented: bool
    epochs: int
    seed: int


@dataclass(frozen=True)
class Construction:
    """What building cost.

    Attributes:
        groups: the mini-groups.
        seconds: it took this time; 0 if it was found in the cache.
        stored_bytes: of synthetic images and autoencoder.
    """

    groups: Groups
    seconds: float
    stored_bytes: int


@dataclass(frozen=True)
class AutoencoderFit(Trainable[Autoencoder]):
    """A client's autoencoder, which serves every recipe with the same epochs and seed.

    Attributes:
        images: the client's, [N, C, H, W] in [0, 1].
        epochs: passes through them.
        seed: of weights and order.
    """

    images: Tensor
    epochs: int
    seed: int

    kind = "lids-autoencoder"
    private = True

    @property
    def title(self) -> str:
        """What is trained, in a few words."""
        return f"lids autoencoder of {len(self.images)} images, {self.epochs} epochs"

    @property
    def size(self) -> int:
        """Epochs."""
        return self.epochs

    def recipe(self) -> Mapping[str, Any]:
        """Return everything that determines the weights but code."""
        return {"images": self.images, "epochs": self.epochs, "seed": self.seed}

    def fit(self, report: Report, unfinished: Unfinished) -> Autoencoder:
        """Train, going on from the last epoch kept."""
        training = AutoencoderTraining(self.images, self.seed)
        if (state := unfinished.load()) is not None:
            training.restore(dict(state.tensors))
        while training.epoch < self.epochs:
            loss = training.advance()
            report(Tick(training.epoch, {"loss": loss}))
            unfinished.save(Saved(training.state()))
        return training.network

    def save(self, trained: Autoencoder) -> Saved:
        """Return the weights."""
        return Saved(trained.state_dict())

    def load(self, saved: Saved) -> Autoencoder:
        """Return the network with saved weights."""
        network = AutoencoderTraining(self.images, self.seed).network
        check_like(saved.tensors, network.state_dict(), "LIDS's autoencoder")
        check_finite(saved.tensors, "LIDS's autoencoder")
        network.load_state_dict(dict(saved.tensors))
        return network


@dataclass(frozen=True)
class Synthesis(Trainable[Groups]):
    """The mini-groups of a client's images.

    Attributes:
        data: the client's images, in single precision.
        settings: how they are made.
        books: where the autoencoder is kept.
    """

    data: Batch
    settings: Recipe
    books: Library

    kind = "lids-groups"
    private = True

    @property
    def autoencoder(self) -> AutoencoderFit:
        """What the synthetic images are made by."""
        return AutoencoderFit(self.data.images, self.settings.epochs, self.settings.seed)

    @property
    def title(self) -> str:
        """What is made, in a few words."""
        return f"lids groups of {self.settings.samples} for {len(self.data)} images, {self.settings.epochs} epochs"

    @property
    def size(self) -> int:
        """Epochs of the autoencoder."""
        return self.settings.epochs

    def recipe(self) -> Mapping[str, Any]:
        """Return everything that determines the groups but code."""
        return {"data": self.data, "settings": self.settings}

    def fit(self, report: Report, unfinished: Unfinished) -> Groups:
        """Train the autoencoder, or find it, and make the groups."""
        network = self.books.get(self.autoencoder, _Passing(report)).eval()
        edits = generator(self.settings.seed, "lids-edits")
        one = self.settings
        return synthesise(network, self.data, one.samples, one.tau, one.augmented, edits)

    def save(self, trained: Groups) -> Saved:
        """Return what was made."""
        return Saved({"synthetic": trained.synthetic, "alphas": trained.alphas, "psnr": trained.psnr})

    def load(self, saved: Saved) -> Groups:
        """Return the groups of the data with the synthetic images that were saved."""
        images = self.data.images
        expected = (len(images), self.settings.samples - 1, *images.shape[1:])
        found = saved.tensors
        if not {"synthetic", "alphas", "psnr"} <= set(found) or tuple(found["synthetic"].shape) != expected:
            raise InputError("a LIDS construction in the cache is damaged.", hint="Run `fedseal prepare --prune`.")
        check_finite({"synthetic": found["synthetic"]}, "LIDS's images")
        return Groups(self.data, found["synthetic"].to(images), found["alphas"], found["psnr"])


class _Passing(Watcher):
    """Passes on how a training within a training goes."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def advanced(self, task: Task, tick: Tick) -> None:
        self._report(tick)


def construct(data: Batch, recipe: Recipe, books: Library, watcher: Watcher | None = None) -> Construction:
    """Train the autoencoder on the data and make its mini-groups, or find both among `books`.

    Args:
        data: the client's images, in single precision.
        recipe: how.
        books: where both are kept.
        watcher: told of the epochs.
    """
    started = time.perf_counter()
    synthesis = Synthesis(data, recipe, books)
    is_there = books.has(synthesis)
    groups = books.get(synthesis, watcher)
    kept = _size(synthesis.save(groups).tensors)
    network = Autoencoder((data.images.shape[1], data.images.shape[2], data.images.shape[3]))
    seconds = 0.0 if is_there else time.perf_counter() - started
    return Construction(groups, seconds, kept + _size(network.state_dict()))


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def seed_from(source: torch.Generator) -> int:
    """Draw a seed from a generator."""
    return int(torch.randint(2**62, (), generator=source, device=source.device))
