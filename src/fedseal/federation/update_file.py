"""`.update.safetensors`: one client's update as the server saw it, with the weights it had sent and what it knows.

One file can be audited by itself. Tensors are named `update/NAME` (gradient or weight change, trainable parameters
only) and `before/NAME` (the model's state as sent); the facts are JSON in the file's metadata under `fedseal`. Files
come from other machines, so reading is strict (`tensor_file`), and names are made of digits and safe characters only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save
from torch import Tensor

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import PRIVATE, write_atomically
from fedseal.core.knowledge import CROSS_ENTROPY, BNMode
from fedseal.core.observation import Update, UpdateKind
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.federation.replays import UpdateHistory
from fedseal.federation.tensor_file import read_tensors

SUFFIX = ".update.safetensors"
_UPDATE, _BEFORE = "update/", "before/"
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class UpdateFacts(BaseModel):
    """What a server knows of an update beside its tensors; None where it does not.

    Attributes:
        kind: a loss gradient, or the weight change `new - old`.
        round: number of the round, from 1.
        client: who sent it.
        learning_rate, local_steps, batch_size: how the client trains.
        loss: that the client minimises.
        loss_reduction: over the batch.
        bn_mode: how the client runs batch normalisation.
        optimiser, momentum, weight_decay: of the client's steps.
        input_shape: C, H, W of an image.
        num_classes: outputs of the model.
        mean, std: normalisation between images in [0, 1] and the model, per channel.
        defence: what the client says it applied.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: UpdateKind
    round: int = Field(ge=0)
    client: str
    learning_rate: float | None = Field(default=None, gt=0)
    local_steps: int | None = Field(default=None, ge=1, le=100_000)
    batch_size: int | None = Field(default=None, ge=1, le=65_536)
    loss: str = CROSS_ENTROPY
    loss_reduction: Literal["mean", "sum"] = "mean"
    bn_mode: BNMode | None = None
    optimiser: Literal["sgd", "adam"] | None = None
    momentum: float | None = Field(default=None, ge=0, lt=1)
    weight_decay: float | None = Field(default=None, ge=0)
    input_shape: tuple[int, int, int] | None = None
    num_classes: int | None = Field(default=None, ge=1, le=1_000_000)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    defence: str | None = None

    @property
    def normalisation(self) -> Normalisation | None:
        """The normalisation, where both halves of it are known."""
        return None if self.mean is None or self.std is None else Normalisation(self.mean, self.std)


@dataclass(frozen=True)
class RecordedUpdate:
    """An update with the weights the client had been sent.

    Attributes:
        update: trainable parameters only.
        before: the model's state as sent, buffers included.
        facts: what the server knows.
    """

    update: Update
    before: Tensors
    facts: UpdateFacts


def file_name(facts: UpdateFacts) -> str:
    """Return the name of an update's file; a client whose name could leave the directory is refused."""
    if not _CLIENT.fullmatch(facts.client) or ".." in facts.client:
        raise InputError(
            f"client name {facts.client[:80]!r} cannot be part of a file's name.",
            hint="Use up to 64 letters, digits, hyphens, underscores and single dots.",
        )
    return f"round-{facts.round:04d}-client-{facts.client}{SUFFIX}"


def write_update(directory: Path, recorded: RecordedUpdate) -> Path:
    """Write an update into a directory, whole or not at all, and return its path."""
    path = directory / file_name(recorded.facts)
    check_update(recorded.update.tensors, recorded.before, f"update of client {recorded.facts.client}")
    tensors = {_UPDATE + name: tensor for name, tensor in recorded.update.tensors.items()}
    tensors |= {_BEFORE + name: tensor for name, tensor in recorded.before.items()}
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(whole, metadata={"fedseal": recorded.facts.model_dump_json()}), mode=PRIVATE)
    return path


def read_update(path: Path, *, within: Path | None = None) -> RecordedUpdate:
    """Read an update file, or refuse it with what is wrong with it.

    Args:
        path: of the file.
        within: directory it must really lie in, links followed.
    """
    what = f"update {path}"
    file = read_tensors(path, "update", within=within)
    facts = _facts(file.metadata, what)
    strange = [name for name in file.tensors if not name.startswith((_UPDATE, _BEFORE))]
    if strange:
        raise InputError(f"{what}: tensor {strange[0]!r} is neither part of the update nor of the model.")
    update = _part(file.tensors, _UPDATE)
    before = _part(file.tensors, _BEFORE)
    check_finite({name: tensor for name, tensor in before.items() if tensor.is_floating_point()}, f"{what}, model")
    check_update(update, before, what)
    return RecordedUpdate(Update(update, facts.kind), before, facts)


def read_updates(directory: Path) -> list[RecordedUpdate]:
    """Read all update files of a directory, ordered by round and client.

    A round that a client sent twice, an old round sent again under a new number, and a link out of the directory are
    refused.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"cannot list {directory}: {reason}.", hint="Check the path.") from error
    if not paths:
        raise InputError(f"{directory} holds no *{SUFFIX}.", hint="Record some with fedseal.flower.record.")
    history = UpdateHistory()
    found = []
    for path in paths:
        recorded = read_update(path, within=directory)
        history.admit(recorded.facts.client, recorded.facts.round, recorded.update.tensors, recorded.before)
        found.append(recorded)
    return sorted(found, key=lambda recorded: (recorded.facts.round, recorded.facts.client))


def check_update(update: Tensors, before: Tensors, what: str) -> None:
    """Refuse an update that does not belong to a model's state: names, shapes, dtypes, or values that are not numbers.

    Entries of the model that are no part of the update are allowed: buffers and frozen layers do not travel.
    """
    if not update:
        raise InputError(f"{what} holds no tensors.", hint="Was it written by fedseal.flower.record?")
    check_like(update, {name: before[name] for name in update if name in before}, what)
    for name, tensor in update.items():
        if not tensor.is_floating_point():
            raise InputError(f"{what}: tensor {name!r} is {tensor.dtype}, not a float.", hint="Buffers do not travel.")
    check_finite(update, what)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _facts(metadata: Mapping[str, str], what: str) -> UpdateFacts:
    if "fedseal" not in metadata:
        raise InputError(
            f"{what} was not written by fedseal: it does not say what it is.",
            hint="Give the model with --before, and what is known by options.",
        )
    try:
        facts = UpdateFacts.model_validate_json(metadata["fedseal"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "metadata"
        raise InputError(f"{what}: its facts are wrong at {place}: {first['msg'].lower()}.") from error
    file_name(facts)  # a name that could not have been written is not read either
    return facts


def weight_change(before: Tensors, after: Tensors, trainable: Tensors, what: str) -> Update:
    """Return `after - before` over a model's trainable parameters."""
    for state, words in ((before, "before"), (after, "after")):
        named = {name: tensor for name, tensor in state.items() if name in trainable}
        check_like(named, trainable, f"{what}, {words}")
        check_finite(named, f"{what}, {words}")
    return Update({name: torch.sub(after[name], before[name]) for name in trainable}, "delta")
