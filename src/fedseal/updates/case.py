"""A real update made ready for attack: model, update and what the attacker is taken to know, from files and options.

Three ways in: a recorded `.update.safetensors`, which brings weights and facts along; a plain safetensors file with
the update's tensors; or the weights before and after a client's round. Options add to what a recorded file says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.knowledge import Knowledge
from fedseal.core.limits import check_memory
from fedseal.core.observation import Observation, Update, UpdateKind
from fedseal.core.tensors import check_like
from fedseal.data.folder import decoded
from fedseal.data.images import as_pixels
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, weight_change
from fedseal.models.registry import output_size
from fedseal.store.findings import Finding
from fedseal.updates.findings import assumptions
from fedseal.updates.sent_model import required, sent_model
from fedseal.updates.source import UpdateSource, facts_of, matching, recorded_in, title_of, weights_of

NOMINAL_RATE = 0.1
"""Learning rate an update is read with until a better one is found."""

_COPIES = 8
"""Of the images, that an attack holds at once."""


@dataclass(frozen=True)
class UpdateCase:
    """An update ready to be attacked.

    Attributes:
        observation: what the attacker sees.
        config: how the client is taken to have trained.
        originals: the private batch, where it was given.
        title: which update this is.
        findings: what a reader must know to judge the result.
        unknown: facts that nobody stated, for `unknowns` to search: normalisation, bn_mode, learning_rate, optimiser.
        optimiser: of the client's steps.
    """

    observation: Observation
    config: RoundConfig
    originals: Batch | None
    title: str
    findings: tuple[Finding, ...]
    unknown: frozenset[str] = frozenset()
    optimiser: str = "sgd"


def build_cases(source: UpdateSource) -> list[UpdateCase]:
    """Return all updates of a directory that are asked for, or the one that there is."""
    if source.update is None or not source.update.is_dir():
        return [build_case(source)]
    return [_case(source, recorded, title_of(recorded)) for recorded in matching(source)]


def build_case(source: UpdateSource) -> UpdateCase:
    """Read, check and put together everything an attack needs; the first update, of a directory."""
    if (source.update is None) == (source.after is None):
        raise UsageError(
            "which update is to be audited?", hint="Give --update FILE, or --before FILE with --after FILE."
        )
    if source.after is not None and source.before is None:
        raise UsageError("--after needs --before.", hint="The update is the difference of the two.")
    return _case(source, *recorded_in(source))


def _case(source: UpdateSource, recorded: RecordedUpdate | None, title: str) -> UpdateCase:
    facts = facts_of(source, recorded)
    state = weights_of(source, recorded)
    shape = required(facts.input_shape, "the images' shape", "--input-shape C,H,W")
    model = sent_model(source, shape, facts.num_classes, state)
    classes = output_size(model, shape)
    normalised = any(isinstance(module, _BatchNorm) for module in model.modules())
    config = _config(facts, normalised)
    set_mode(model, config)
    update = _without_decay(_update(source, recorded, model, facts.kind), model, facts)
    findings = list(assumptions(source, facts, recorded))
    originals = _originals(source, shape, classes) if source.originals else None
    size = _batch_size(facts, source, originals)
    check_memory(_COPIES * size * config.local_steps * math.prod(shape) * 4, f"{size * config.local_steps} images")
    knowledge = Knowledge(
        input_shape=shape,
        num_classes=classes,
        loss=facts.loss,
        loss_reduction=facts.loss_reduction,
        bn_mode=config.bn_mode,
        label_rule="true" if source.labels is not None else "identity",
        batch_size=size,
        labels=None if source.labels is None else _labels(source.labels, size * config.local_steps, classes),
        clients=1,
        local_steps=config.local_steps,
        learning_rate=config.learning_rate if facts.kind == "delta" else facts.learning_rate,
        normalisation=facts.normalisation,
        defence=None if source.defence is None else build_defence(source.defence).attacker_view(),
    )
    return UpdateCase(
        Observation(model, update, knowledge),
        config,
        originals,
        title,
        tuple(findings),
        _unknown(facts, normalised),
        facts.optimiser or "sgd",
    )


def _unknown(facts: UpdateFacts, normalised: bool) -> frozenset[str]:
    """Return what nobody stated and matters for this update."""
    moved = facts.kind == "delta"
    open_questions = {
        "normalisation": facts.normalisation is None,
        "bn_mode": normalised and facts.bn_mode is None,
        "learning_rate": moved and facts.learning_rate is None,
        "optimiser": moved and facts.optimiser is None,
    }
    return frozenset(name for name, is_open in open_questions.items() if is_open)


def _without_decay(update: Update, model: nn.Module, facts: UpdateFacts) -> Update:
    """Take out of a weight change what weight decay made of it: lr x decay x weights in every step, to first order."""
    if facts.kind != "delta" or not facts.weight_decay:
        return update
    share = (facts.learning_rate or NOMINAL_RATE) * facts.weight_decay * (facts.local_steps or 1)
    weights = dict(model.named_parameters())
    changes = {name: tensor + share * weights[name].detach() for name, tensor in update.tensors.items()}
    return Update(changes, update.kind)


def _config(facts: UpdateFacts, normalised: bool) -> RoundConfig:
    plain = RoundConfig()
    return RoundConfig(
        local_steps=facts.local_steps or 1,
        learning_rate=facts.learning_rate or NOMINAL_RATE,
        bn_mode=facts.bn_mode or ("train-nostats" if normalised else "eval"),
        momentum=facts.momentum or 0.0,
        loss=facts.loss,
        loss_reduction=facts.loss_reduction,
        normalisation=facts.normalisation or plain.normalisation,
        upload=facts.kind,
    )


def _update(source: UpdateSource, recorded: RecordedUpdate | None, model: nn.Module, kind: UpdateKind) -> Update:
    """Return the update over the model's trainable parameters, in the model's order, which no file keeps."""
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if source.after is not None and source.before is not None:
        after = read_tensors(source.after, "weights").tensors
        return weight_change(read_tensors(source.before, "weights").tensors, after, trainable, "weights")
    if recorded is not None:  # a client without fedseal may have sent frozen layers too
        tensors = {name: tensor for name, tensor in recorded.update.tensors.items() if name in trainable}
    else:
        assert source.update is not None
        tensors = dict(read_tensors(source.update, "update").tensors)
    check_like(tensors, trainable, "update")
    return Update({name: tensors[name] for name in trainable}, kind)


def _batch_size(facts: UpdateFacts, source: UpdateSource, originals: Batch | None) -> int:
    steps = facts.local_steps or 1
    known = len(source.labels) if source.labels is not None else len(originals) if originals is not None else None
    if facts.batch_size is None:
        return 1 if known is None else max(1, known // steps)
    if originals is not None and len(originals) != facts.batch_size * steps:
        raise UsageError(
            f"{len(originals)} original(s) were given, {facts.batch_size * steps} image(s) are behind the update.",
            hint="Give all of them, or --batch-size and --local-steps as they are.",
        )
    return facts.batch_size


def _labels(labels: tuple[int, ...], images: int, classes: int) -> Tensor:
    if len(labels) != images:
        raise UsageError(f"{len(labels)} label(s) for {images} image(s).", hint="Give one for each: --labels 3,1,4.")
    if any(not 0 <= label < classes for label in labels):
        raise UsageError(f"labels must be from 0 to {classes - 1}, got {', '.join(map(str, labels))}.")
    return torch.tensor(labels)


def _originals(source: UpdateSource, shape: tuple[int, int, int], classes: int) -> Batch:
    images, labels = [], []
    for path in source.originals:
        if path.suffix == ".safetensors":
            tensors = read_tensors(path, "originals").tensors
            if "images" not in tensors or not tensors["images"].is_floating_point() or tensors["images"].ndim != 4:
                raise InputError(f"originals {path} hold no float tensor `images` [B, C, H, W].")
            images.append(tensors["images"].float())
            if "labels" in tensors:
                labels.append(tensors["labels"].long())
        else:
            images.append(_picture(path, shape))
    stack = torch.cat(images)
    if tuple(stack.shape[1:]) != shape:
        raise InputError(f"originals are {list(stack.shape[1:])}, the model takes {list(shape)} (C, H, W).")
    given = torch.tensor(source.labels) if source.labels is not None else torch.cat(labels) if labels else None
    if given is None or len(given) != len(stack):
        given = torch.full((len(stack),), -1)  # not known: no label is counted as found
    return Batch(stack, given)


def _picture(path: Path, shape: tuple[int, int, int]) -> Tensor:
    pixels = decoded(local_path(path), path, lambda picture: as_pixels(picture, 1 if shape[0] == 1 else 3))
    image = torch.from_numpy(pixels.copy()).float().div(255)
    if tuple(image.shape) != shape:
        raise InputError(f"original {path} is {list(image.shape)}, the model takes {list(shape)} (C, H, W).")
    return image.unsqueeze(0)
