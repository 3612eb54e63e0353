"""A trained SEER attacker: the model to send, the secret decoder, and how both are kept."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.active.seer.decoder import Decoder
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.attacks.active.seer.signals import EntryReader, GradientReader, HeadReader, choose_entries
from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.core.trainable import Saved

_MODEL, _DECODER = "model|", "decoder|"


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


def attacker_saved(attacker: SeerAttacker) -> Saved:
    """Return an attacker as tensors and values."""
    tensors = {f"{_MODEL}{name}": value for name, value in attacker.model.state_dict().items()}
    tensors |= {f"{_DECODER}{name}": value for name, value in attacker.decoder.state_dict().items()}
    return Saved(
        tensors,
        {"threshold": attacker.threshold, "curve": list(attacker.curve), "seconds": attacker.seconds},
    )


def attacker_loaded(
    saved: Saved,
    model: nn.Module,
    normalisation: Normalisation,
    shape: tuple[int, int, int],
    num_classes: int,
    plan: SeerPlan,
) -> SeerAttacker:
    """Return the attacker that was saved, trained for the architecture of `model`."""
    sent = copy.deepcopy(model)
    weights = part_of(saved.tensors, _MODEL)
    check_like(weights, sent.state_dict(), "SEER's model")
    check_finite(weights, "SEER's model")
    sent.load_state_dict(weights)
    like = next(sent.parameters())
    reader = build_reader(sent, normalisation, like.new_zeros(2, *shape), num_classes, plan)
    decoder = build_decoder(reader, shape, plan)
    secret = part_of(saved.tensors, _DECODER)
    check_like(secret, decoder.state_dict(), "SEER's decoder")
    check_finite(secret, "SEER's decoder")
    decoder.load_state_dict(secret)
    decoder = decoder.to(like.device).eval().requires_grad_(False)
    try:
        curve = tuple((int(step), float(loss)) for step, loss in saved.values["curve"])
        threshold = None if saved.values["threshold"] is None else float(saved.values["threshold"])
        seconds = float(saved.values["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a SEER attacker is damaged: {error}.", hint="Run `fedseal prepare --prune`.") from error
    return SeerAttacker(sent.eval(), decoder, reader, plan, threshold, curve, seconds)


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, without that."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
