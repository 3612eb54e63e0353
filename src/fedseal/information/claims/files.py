"""Configurations as people have them: YAML, JSON, TOML, NVFlare's HOCON, and what Opacus saves; never a free pickle."""

from __future__ import annotations

import json
import math
import pickle
import tomllib
from pathlib import Path
from typing import Any

import yaml

from fedseal.core.errors import InputError, UsageError
from fedseal.information.claims.mechanism import Weights

_CHECKPOINTS = (".pt", ".pth", ".ckpt")
_KINDS = "YAML, JSON, TOML, NVFlare's .conf, or a checkpoint that Opacus saved"


def read_plain(path: Path) -> dict[str, Any]:
    """Return a file's content as a mapping of plain values."""
    values = _parse(path, _read(path))
    if isinstance(values, list):
        values = {"mechanisms": values}
    if not isinstance(values, dict) or not values:
        raise UsageError(f"{path} does not hold a mapping of keys and values.", hint=f"It may be {_KINDS}.")
    return values


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no configuration {path}.", hint="Check the path after --config.") from error
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror}.") from error


def _parse(path: Path, content: bytes) -> Any:
    kind = path.suffix.lower()
    if kind in _CHECKPOINTS:
        return _checkpoint(path)
    try:
        text = content.decode("utf-8")
        if kind == ".toml":
            return tomllib.loads(text)
        if kind == ".conf":
            return _hocon(text)
        return json.loads(text) if kind == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"cannot read the configuration {path}: {why}.", hint=f"It may be {_KINDS}.") from error


def _hocon(text: str) -> Any:
    try:
        from pyhocon import ConfigFactory
        from pyhocon.exceptions import ConfigException
    except ImportError as error:
        raise InputError("NVFlare's .conf needs pyhocon.", hint='Run `pip install "fedseal[nvflare]"`.') from error
    try:
        return json.loads(json.dumps(ConfigFactory.parse_string(text).as_plain_ordered_dict()))
    except ConfigException as error:
        raise ValueError(str(error)) from error


def _checkpoint(path: Path) -> Any:
    """Return a checkpoint's plain part; only tensors and plain values are unpickled."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise InputError(
            f"{path} is no checkpoint of tensors and plain values.",
            hint="Save `accountant.state_dict()` as JSON instead.",
        ) from error


def read_weights(path: Path) -> Weights:
    """Return what a safetensors file says of the tensors that travel."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            kinds = {name: str(part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot read the weights {path}: {error}.", hint="They must be a safetensors file."
        ) from error
    return Weights(
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        integers=tuple(name for name, kind in kinds.items() if kind[0] in "IUB" and kind != "BF16"),
        scalars=tuple(name for name, shape in shapes.items() if not shape),
        statistics=tuple(name for name in shapes if name.rpartition(".")[2] in ("running_mean", "running_var")),
    )
