"""A trained SEER attacker: the model to send, the secret decoder, and how to keep both in a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedseal.attacks.active.seer.decoder import Decoder
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.attacks.active.seer.signals import EntryReader, GradientReader, HeadReader, choose_entries
from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError
from fedseal.core.files import write_atomically
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.data.places import cache_directory
from fedseal.federation.tensor_file import read_tensors

_MODEL, _DECODER, _HEADER = "model|", "decoder|", "fedseal.seer"


@dataclass(frozen=True)
class SeerAttacker:
    """What a SEER server has after training.

    Attributes:
        model: to be sent.
        decoder: kept.
        reader: which gradient entries the decoder reads.
        plan: how it was trained.
        threshold: on the property's score, in mode `thresh`.
        curve: training loss by step.
        seconds: training took, in wall time.
    """

    model: nn.Module
    decoder: Decoder
    reader: GradientReader
    plan: SeerPlan
    threshold: float | None
    curve: tuple[tuple[int, float], ...]
    seconds: float

    @torch.no_grad()
    def decode(self, gradient: Tensors) -> Tensor:
        """Return the image [C, H, W] in [0, 1] that the sum of all samples' gradients holds."""
        image: Tensor = self.decoder(self.reader.read(gradient).to(self.decoder.empty))
        return image.clamp(0, 1)

    @torch.no_grad()
    def decode_batches(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return what is decoded of the sum gradients of whole batches [M, B, C, H, W], as [M, C, H, W] in [0, 1]."""
        parameters = dict(self.model.named_parameters())
        whole = images.new_ones(len(images), 1, images.shape[1])
        found = [
            self.decoder(self.reader.sums(parameters, x, y, w)[:, 0])
            for x, y, w in zip(*(torch.split(part, 64) for part in (images, labels, whole)), strict=True)
        ]
        return torch.cat(found).clamp(0, 1)


def build_reader(
    model: nn.Module, normalisation: Normalisation, probe: Tensor, num_classes: int, plan: SeerPlan
) -> GradientReader:
    """Return the reader a plan asks for; `probe` are any two images."""
    if plan.select == "head":
        return HeadReader(model, normalisation, probe, num_classes)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return EntryReader(model, normalisation, choose_entries(parameters, plan.least, plan.share, plan.seed))


def build_decoder(reader: GradientReader, shape: tuple[int, int, int], plan: SeerPlan) -> Decoder:
    """Return a decoder of the right size, with weights still to be loaded."""
    return Decoder(reader.size, shape, plan.rank)


def attacker_file(identity: str) -> Path:
    """Return where the attacker of that identity (`Trainee.identity`) is kept."""
    return cache_directory() / "seer" / f"{identity[:32]}.safetensors"


def checkpoint_file(identity: str) -> Path:
    """Return where its training is kept while it runs."""
    return cache_directory() / "seer" / f"{identity[:32]}.training.safetensors"


def save_attacker(attacker: SeerAttacker, path: Path, identity: str) -> None:
    """Write an attacker; a crash leaves no part of it."""
    tensors = {f"{_MODEL}{name}": value for name, value in attacker.model.state_dict().items()}
    tensors |= {f"{_DECODER}{name}": value for name, value in attacker.decoder.state_dict().items()}
    header = {
        "identity": identity,
        "plan": attacker.plan.as_dict(),
        "threshold": attacker.threshold,
        "curve": attacker.curve,
        "seconds": attacker.seconds,
    }
    clean = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_atomically(path, save(clean, {_HEADER: json.dumps(header)}))


def load_attacker(
    path: Path,
    identity: str,
    model: nn.Module,
    normalisation: Normalisation,
    shape: tuple[int, int, int],
    num_classes: int,
    plan: SeerPlan,
) -> SeerAttacker:
    """Read the attacker of that identity, trained for the architecture of `model`."""
    held = read_tensors(path, "SEER attacker")
    header = json.loads(held.metadata.get(_HEADER, "{}"))
    if header.get("identity") != identity:
        raise InputError(f"{path} holds another SEER attacker.", hint="Delete it and train again.")
    sent = copy.deepcopy(model)
    weights = _part(held.tensors, _MODEL)
    check_like(weights, sent.state_dict(), f"SEER attacker {path}")
    check_finite(weights, f"SEER attacker {path}")
    sent.load_state_dict(weights)
    like = next(sent.parameters())
    reader = build_reader(sent, normalisation, like.new_zeros(2, *shape), num_classes, plan)
    decoder = build_decoder(reader, shape, plan)
    secret = _part(held.tensors, _DECODER)
    check_like(secret, decoder.state_dict(), f"SEER attacker {path}")
    decoder.load_state_dict(secret)
    decoder = decoder.to(like.device).eval().requires_grad_(False)
    curve = tuple((int(step), float(loss)) for step, loss in header["curve"])
    return SeerAttacker(sent.eval(), decoder, reader, plan, header["threshold"], curve, float(header["seconds"]))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
