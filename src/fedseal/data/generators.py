"""Trained generators from packages, as the files of `fedseal.priors`: weights are read as numbers, no code is run."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.fetched import DCGAN_FACES_FILE
from fedseal.data.archives import read_members
from fedseal.data.convert import Progress

_MEMBER = "gan_face_generate/weights.tar"
_ABOUT = {
    "format": 1,
    "kind": "gan",
    "shape": [3, 64, 64],
    "width": 64,
    "latent": 100,
    "origin": "DigiFace-1M, synthetic faces, by the package gan-face-generate 1.1.1",
    "quality": None,
}


def convert_dcgan_faces(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield the generator of faces of PyPI's gan-face-generate, a DCGAN of PyTorch's example, as a prior.

    The package's file is a pickle, of which PyTorch's restricted reader takes tensors and nothing else.
    """
    progress("reading dcgan-faces", None)
    ((_, content),) = read_members(archive, {_MEMBER: 1 << 26})
    try:
        held = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)["netG_state_dict"]
        weights: dict[str, Tensor] = {str(name): value.contiguous() for name, value in held.items()}
    except Exception as error:  # whatever a damaged pickle does, it is no generator
        raise InputError(f"{archive.name} holds no generator that can be read: {error}.") from error
    tensors = {f"engine.{name}": value for name, value in weights.items()}
    tensors["digests"] = torch.zeros(0, dtype=torch.long)
    yield DCGAN_FACES_FILE, save(tensors, {"fedseal.prior": json.dumps(_ABOUT)})
