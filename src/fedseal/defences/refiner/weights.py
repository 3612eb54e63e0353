"""Evaluation networks in files: the one that comes with the package, checked by its hash, and one's own.

Files are safetensors with the architecture and a hash of the tensors in their header, so that damage is noticed.
"""

from __future__ import annotations

import hashlib
import json
import typing
from importlib.resources import files
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.files import write_atomically
from fedseal.core.hashing import hash_tensors
from fedseal.core.tensors import check_finite, check_like
from fedseal.defences.refiner.evaluator import Architecture, EvaluationNetwork

SHIPPED = "evaluator-small.safetensors"
SHIPPED_SHA256 = "b2af217b67af32d03795eccf37af7bfca0e68db465fef61bfbc5f69eb68c64c4"

_HINT = "Train one with `fedseal train-evaluator`."


def shipped_evaluator() -> EvaluationNetwork:
    """Return the small network of the package; nothing is downloaded."""
    try:
        content = (files("fedseal.defences") / "weights" / SHIPPED).read_bytes()
    except OSError as error:
        raise InputError(
            f"the evaluation network of the package, {SHIPPED}, is missing.", hint="Install fedseal again."
        ) from error
    return parse_shipped(content)


def parse_shipped(content: bytes) -> EvaluationNetwork:
    """Return the network in the bytes of the package's file, refusing any that are not exactly those."""
    found = hashlib.sha256(content).hexdigest()
    if found != SHIPPED_SHA256:
        raise InputError(
            f"the evaluation network of the package is damaged: {SHIPPED} has SHA-256 {found[:16]}..., "
            f"not {SHIPPED_SHA256[:16]}...",
            hint="Install fedseal again.",
        )
    return _network(load(content), "small", SHIPPED)


def save_evaluator(network: EvaluationNetwork, path: Path, about: typing.Mapping[str, str]) -> str:
    """Write a network with what is known `about` its training, and return the file's SHA-256."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    header = {**about, "architecture": network.architecture, "tensors_sha256": hash_tensors(tensors)}
    content = save(tensors, {"fedseal.evaluator": json.dumps(header, sort_keys=True)})
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_evaluator(path: Path) -> EvaluationNetwork:
    """Return the network that `save_evaluator` wrote to `path`, refusing a damaged or foreign file."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"there is no evaluation network at {path}.", hint=_HINT)
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("fedseal.evaluator", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"the evaluation network {path} cannot be read: {error}.", hint=_HINT) from error
    architecture = header.get("architecture")
    if architecture not in typing.get_args(Architecture):
        raise InputError(f"{path} does not hold an evaluation network.", hint=_HINT)
    if header.get("tensors_sha256") != hash_tensors(tensors):
        raise InputError(f"the evaluation network {path} is damaged: its tensors are not those saved.", hint=_HINT)
    return _network(tensors, architecture, str(path))


def _network(tensors: dict[str, Tensor], architecture: Architecture, where: str) -> EvaluationNetwork:
    network = EvaluationNetwork(architecture)
    check_like(tensors, network.state_dict(), f"evaluation network {where}")
    check_finite(tensors, f"evaluation network {where}")
    network.load_state_dict(tensors, assign=True)
    return network.eval().requires_grad_(False)
