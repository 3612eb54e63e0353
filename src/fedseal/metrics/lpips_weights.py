"""Where the weights of LPIPS come from, and the reason when they are not there.

Two layouts hold the same keys (torchvision's `features.N.weight`, LPIPS's `linK.model.1.weight`, the latter with
or without the network's name in front): one file per network, `lpips_alex.safetensors`, as `fedseal data get
lpips` writes it, or `alexnet_features.safetensors` and `lpips_v0.1_heads.safetensors` together. Nothing is
downloaded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.tensors import check_finite

Net: TypeAlias = Literal["alex", "vgg"]

HEADS_FILE = "lpips_v0.1_heads.safetensors"
FEATURES_FILE: dict[Net, str] = {"alex": "alexnet_features.safetensors", "vgg": "vgg16_features.safetensors"}
HINT = "Run `fedseal data get lpips`."


def weight_files(directory: Path, net: Net) -> tuple[Path, ...]:
    """Return the files in `directory` that together hold the weights of `net`; none if they are absent."""
    for names in ((f"lpips_{net}.safetensors",), (FEATURES_FILE[net], HEADS_FILE)):
        files = tuple(directory / name for name in names)
        if all(file.is_file() for file in files):
            return files
    return ()


def missing_reason(directory: Path, net: Net) -> str | None:
    """Return why LPIPS cannot be computed and what to do about it; None if its weights are there."""
    if weight_files(directory, net):
        return None
    return (
        f"LPIPS is not reported: {directory} holds neither lpips_{net}.safetensors nor {FEATURES_FILE[net]} "
        f"with {HEADS_FILE}. {HINT}"
    )


def read_weights(files: tuple[Path, ...], net: Net) -> dict[str, Tensor]:
    """Return the tensors of `net`, `features.N.weight`/`.bias` and `linK.model.1.weight`, in float32."""
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"the LPIPS weights {file} cannot be read: {error}.", hint=f"Delete them. {HINT}"
            ) from error
        check_finite(tensors, f"LPIPS weights {file}")
        for name, tensor in tensors.items():
            short = name.removeprefix(f"{net}.")
            if short.startswith(("features.", "lin")):
                state[short] = tensor.to(torch.float32)
    return state
