"""Weights from and to safetensors files; pickles are not read. The global model of a federation's checkpoint is one."""

from __future__ import annotations

from pathlib import Path

import safetensors
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedseal.core.errors import InputError
from fedseal.core.files import local_path, write_atomically
from fedseal.core.tensors import check_finite, check_like

SEPARATOR = "|"
"""Between part and name in a federation's checkpoint, whose global model is the part `model`."""


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Load a whole state dict from a safetensors file; names, shapes and dtypes must match.

    Of a checkpoint of `fedseal train` the global model is taken, as it was after the last round there.
    """
    try:
        tensors = load_file(local_path(path))
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}.", hint="Check the path.") from error
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError, OverflowError, TypeError) as error:
        raise InputError(
            f"{path} is not a readable safetensors file: {error}.",
            hint="Convert the weights with safetensors.torch.save_file(model.state_dict(), PATH).",
        ) from error
    prefix = f"model{SEPARATOR}"
    if tensors and all(SEPARATOR in name for name in tensors):
        tensors = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    tensors = _own_names(tensors, model)
    check_like(tensors, model.state_dict(), f"checkpoint {path}")
    check_finite({name: t for name, t in tensors.items() if t.is_floating_point()}, f"checkpoint {path}")
    model.load_state_dict(tensors)


def _own_names(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return tensors under the names of a model that knows others' (`own_name`); counters of batches may be missing."""
    own = model.state_dict()
    rename = getattr(model, "own_name", None)
    if callable(rename) and not set(tensors) <= set(own):
        tensors = {rename(name): tensor for name, tensor in tensors.items()}
    counters = {name: value for name, value in own.items() if name.endswith("num_batches_tracked")}
    return {**counters, **tensors}


def save_checkpoint(model: nn.Module, path: Path) -> None:
    """Write the model's state dict to a safetensors file, whole or not at all."""
    write_atomically(path, save({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}))
