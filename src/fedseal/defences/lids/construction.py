"""A client's mini-groups by content: built once, resumed if interrupted, kept in the cache beside the data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.files import write_atomically
from fedseal.core.identity import identity_of
from fedseal.core.seeds import generator
from fedseal.core.sources import code_digest
from fedseal.data.places import cache_directory
from fedseal.defences.lids.autoencoder import AutoencoderTraining, Epochs
from fedseal.defences.lids.groups import Groups
from fedseal.defences.lids.synthesis import synthesise
from fedseal.federation.tensor_file import read_tensors

_SAVE_SECONDS = 30.0


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


def construct(
    data: Batch, recipe: Recipe, *, directory: Path | None = None, progress: Epochs | None = None
) -> Construction:
    """Train the autoencoder on the data and make its mini-groups, or find both in `directory`.

    Args:
        data: the client's images, in single precision.
        recipe: how.
        directory: where both are kept; None keeps nothing.
        progress: hears of each epoch.
    """
    started = time.perf_counter()
    files = None if directory is None else _Files(directory, data, recipe)
    training = AutoencoderTraining(data.images, recipe.seed)
    if files is not None:
        found = files.read(files.groups)
        if found is not None:
            groups = Groups(data, found["synthetic"].to(data.images), found["alphas"], found["psnr"])
            return Construction(groups, 0.0, _size(found) + _size(dict(training.network.state_dict())))
        unfinished = files.read(files.autoencoder)
        if unfinished is not None:
            training.restore(unfinished)
    saved = time.perf_counter()
    while training.epoch < recipe.epochs:
        loss = training.advance()
        if progress is not None:
            progress(training.epoch, loss)
        if files is not None and time.perf_counter() - saved > _SAVE_SECONDS:
            files.write(files.autoencoder, training.state())
            saved = time.perf_counter()
    edits = generator(recipe.seed, "lids-edits")
    network = training.network.eval()
    groups = synthesise(network, data, recipe.samples, recipe.tau, recipe.augmented, edits)
    kept = {"synthetic": groups.synthetic, "alphas": groups.alphas, "psnr": groups.psnr}
    if files is not None:
        files.write(files.groups, kept)
        files.write(files.autoencoder, training.state())
    stored = _size(kept) + _size(dict(network.state_dict()))
    return Construction(groups, time.perf_counter() - started, stored)


def lids_directory() -> Path:
    """Return where clients' mini-groups are kept."""
    return cache_directory() / "lids"


class _Files:
    """The files of one construction: the autoencoder serves every recipe that differs in other things."""

    def __init__(self, directory: Path, data: Batch, recipe: Recipe) -> None:
        made_by = {"torch": torch.__version__, "code": code_digest([AutoencoderTraining.__module__])}
        network = identity_of(images=data.images, epochs=recipe.epochs, seed=recipe.seed, **made_by)
        whole = identity_of(data=data, recipe=recipe, network=network, code=code_digest([__name__]))
        self.autoencoder = directory / f"autoencoder-{network[:32]}.safetensors"
        self.groups = directory / f"groups-{whole[:32]}.safetensors"

    def read(self, path: Path) -> dict[str, Tensor] | None:
        """Return the tensors of a file, if there is one."""
        return dict(read_tensors(path, "LIDS construction").tensors) if path.is_file() else None

    def write(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors whole or not at all."""
        write_atomically(path, save({key: value.detach().cpu().contiguous() for key, value in tensors.items()}))


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def seed_from(source: torch.Generator) -> int:
    """Draw a seed from a generator."""
    return int(torch.randint(2**62, (), generator=source, device=source.device))
