"""A real update made ready for attack: model, update and what the attacker is taken to know, from files and options.

Three ways in: a recorded `.update.safetensors`, which brings weights and facts along; a plain safetensors file with
the update's tensors; or the weights before and after a client's round. Options add to what a recorded file says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.knowledge import Knowledge
from fedseal.core.limits import check_memory
from fedseal.core.observation import Observation, Update, UpdateKind
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.data.folder import decoded
from fedseal.data.images import as_pixels
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, read_update, read_updates, weight_change
from fedseal.models.registry import MODELS, build_model, output_size
from fedseal.store.findings import Finding

NOMINAL_RATE = 0.1
"""Learning rate an update is read with until a better one is found."""

_COPIES = 8
"""Of the images, that an attack holds at once."""


@dataclass(frozen=True)
class UpdateSource:
    """Where an update comes from, and what is said of it.

    Attributes:
        model: a spec of the registry, `package.module:attribute`, or a file of weights.
        update: a recorded file, a directory of them, or plain tensors.
        before, after: weights around a client's round; `before` also serves a plain update.
        round, client: which of a directory.
        labels: true labels, or None where they are to be inferred.
        originals: the private images, to score against.
        defence: spec the attacker is taken to know; None for a naive attacker.
        facts: of `UpdateFacts`, where they are stated by options.
    """

    model: str
    update: Path | None = None
    before: Path | None = None
    after: Path | None = None
    round: int | None = None
    client: str | None = None
    labels: tuple[int, ...] | None = None
    originals: tuple[Path, ...] = ()
    defence: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


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
    return [_case(source, recorded, _title(recorded)) for recorded in _matching(source)]


def build_case(source: UpdateSource) -> UpdateCase:
    """Read, check and put together everything an attack needs; the first update, of a directory."""
    if (source.update is None) == (source.after is None):
        raise UsageError(
            "which update is to be audited?", hint="Give --update FILE, or --before FILE with --after FILE."
        )
    if source.after is not None and source.before is None:
        raise UsageError("--after needs --before.", hint="The update is the difference of the two.")
    return _case(source, *_recorded(source))


def _case(source: UpdateSource, recorded: RecordedUpdate | None, title: str) -> UpdateCase:
    facts = _facts(source, recorded)
    state = _state(source, recorded)
    shape = _required(facts.input_shape, "the images' shape", "--input-shape C,H,W")
    model = _model(source, shape, facts.num_classes, state)
    classes = output_size(model, shape)
    normalised = any(isinstance(module, _BatchNorm) for module in model.modules())
    config = _config(facts, normalised)
    set_mode(model, config)
    update = _without_decay(_update(source, recorded, model, facts.kind), model, facts)
    findings = list(_findings(source, facts, recorded))
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


def _recorded(source: UpdateSource) -> tuple[RecordedUpdate | None, str]:
    if source.update is None:
        return None, f"{source.after} minus {source.before}"
    if source.update.is_dir():
        found = _matching(source)
        others = "" if len(found) == 1 else f", the first of {len(found)}"
        return found[0], _title(found[0]) + others
    if "fedseal" not in read_tensors(source.update, "update").metadata:
        return None, str(source.update)
    recorded = read_update(source.update)
    return recorded, _title(recorded)


def _title(recorded: RecordedUpdate) -> str:
    return f"round {recorded.facts.round} of client {recorded.facts.client}"


def _matching(source: UpdateSource) -> list[RecordedUpdate]:
    """Return the updates of a directory that are of the round and client asked for."""
    assert source.update is not None
    everything = read_updates(source.update)
    found = [
        recorded
        for recorded in everything
        if (source.round is None or recorded.facts.round == source.round)
        and (source.client is None or recorded.facts.client == source.client)
    ]
    if not found:
        rounds = sorted({recorded.facts.round for recorded in everything})
        clients = sorted({recorded.facts.client for recorded in everything})
        raise UsageError(
            f"{source.update} holds no such update.",
            hint=f"Rounds: {', '.join(map(str, rounds))}; clients: {', '.join(clients)}.",
        )
    return found


def _facts(source: UpdateSource, recorded: RecordedUpdate | None) -> UpdateFacts:
    """Return what is known: the file's facts, overridden by options."""
    known = {"kind": "delta", "round": 0, "client": "0"} if recorded is None else recorded.facts.model_dump()
    stated = {key: value for key, value in source.facts.items() if value is not None}
    if source.after is not None and stated.get("kind", "delta") != "delta":
        raise UsageError("weights before and after give a weight change, not a gradient.", hint="Leave --kind out.")
    if recorded is not None and stated.get("kind", recorded.facts.kind) != recorded.facts.kind:
        raise UsageError(f"the file says that it holds a {recorded.facts.kind}.", hint="Leave --kind out.")
    if recorded is None and source.update is not None and "kind" not in stated:
        raise UsageError("is the update a gradient or a weight change?", hint="Give --kind gradient or --kind delta.")
    try:
        return UpdateFacts.model_validate(known | stated)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + ".".join(map(str, first["loc"][:1])).replace("_", "-")
        raise UsageError(f"{option} cannot be {first['input']!r}: {first['msg'].lower()}.") from error


def _state(source: UpdateSource, recorded: RecordedUpdate | None) -> Tensors | None:
    """Return the weights the client was sent, where a file has them."""
    if source.before is not None:
        return read_tensors(source.before, "weights").tensors
    if _is_file(source.model):
        return read_tensors(Path(source.model), "weights").tensors
    return None if recorded is None else recorded.before


def _is_file(model: str) -> bool:
    return model.endswith(".safetensors")


def _model(source: UpdateSource, shape: tuple[int, int, int], classes: int | None, state: Tensors | None) -> nn.Module:
    """Return the model with the weights the client was sent."""
    specs = MODELS.names() if _is_file(source.model) else [source.model]
    sizes = [classes] if classes is not None else _possible_outputs(state)
    if len(specs) == len(sizes) == 1:
        return _with_weights(_built(source, specs[0], shape, sizes[0]), state)
    assert state is not None
    wanted = {name: tensor.shape for name, tensor in state.items()}
    found = {}
    for spec in specs:
        for size in sizes:
            try:
                model = _built(source, spec, shape, size)
            except InputError:  # it has another number of outputs, or is not made for images of this size
                continue
            if {name: tensor.shape for name, tensor in model.state_dict().items()} == wanted:
                found[spec] = model
    if len(found) == 1:
        return _with_weights(next(iter(found.values())), state)
    if not _is_file(source.model):
        raise InputError(
            f"the weights are not those of {source.model} for images of shape {list(shape)}.",
            hint="Check --model and --input-shape, or give --classes to see where they differ.",
        )
    which = f"fits {' and '.join(found)}" if found else "fits no model fedseal knows"
    raise UsageError(
        f"the weights in {source.model} alone do not say which model they belong to: their shape {which}.",
        hint=f"Name it: --model NAME --before {source.model}; NAME can be package.module:attribute.",
    )


def _built(source: UpdateSource, spec: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    model = build_model(spec, input_shape=shape, num_classes=classes, seed=0)
    return model if source.defence is None else build_defence(source.defence).wrap_model(model)


def _with_weights(model: nn.Module, state: Tensors | None) -> nn.Module:
    if state is not None:
        check_like(state, model.state_dict(), "weights")
        check_finite({name: t for name, t in state.items() if t.is_floating_point()}, "weights")
        model.load_state_dict(state)
    return model


def _possible_outputs(state: Tensors | None) -> list[int]:
    """Return every width a layer has: files do not keep the order of layers, so any may be the last."""
    widths = {tensor.shape[0] for tensor in (state or {}).values() if tensor.is_floating_point() and tensor.ndim > 0}
    return sorted(_required(widths or None, "the number of classes", "--classes N"))


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


def _findings(source: UpdateSource, facts: UpdateFacts, recorded: RecordedUpdate | None) -> list[Finding]:
    found = []
    if facts.batch_size is None and source.labels is None and not source.originals:
        found.append(
            Finding(
                severity="warning",
                topic="batch size",
                text="nobody said how many images are behind the update; one is assumed.",
                advice="Give --batch-size if there are more: too few are mixtures of all.",
            )
        )
    if facts.kind == "delta" and facts.local_steps is None:
        found.append(
            Finding(
                severity="warning",
                topic="local steps",
                text="nobody said how many local steps are behind the weight change; one is assumed.",
                advice="Give --local-steps if there were more.",
            )
        )
    steps = facts.local_steps or 1
    if facts.kind == "delta" and facts.optimiser is None:
        found.append(
            Finding(
                severity="note",
                topic="optimiser",
                text="nobody said how the client steps; plain SGD is assumed unless the change shows another.",
                advice="Give --optimiser, --momentum and --weight-decay as the client uses them.",
            )
        )
    if steps > 1 and (facts.momentum or facts.optimiser == "adam"):
        found.append(
            Finding(
                severity="warning",
                topic="optimiser",
                text=f"{steps} local steps with {'Adam' if facts.optimiser == 'adam' else 'momentum'} are attacked as "
                "plain steps: an attacker who unrolls them does better.",
                advice="That nothing was found says little here.",
            )
        )
    claimed = None if recorded is None else recorded.facts.defence
    if claimed not in (None, "none") and source.defence is None:
        found.append(
            Finding(
                severity="warning",
                topic="defence",
                text=f"the client says that it applied `{claimed}`, and this attacker does not use that.",
                advice=f"Add --defence '{claimed}' for an attacker who does; a defence must stand both.",
            )
        )
    if source.before is None and not _is_file(source.model) and recorded is None:
        found.append(
            Finding(
                severity="warning",
                topic="weights",
                text="no file says which weights the client was sent; the model is attacked as it is built.",
                advice="Give --before, unless the model brings its own weights.",
            )
        )
    return found


def _required(value: Any, what: str, option: str) -> Any:
    if value is None:
        raise UsageError(f"{what} is not known.", hint=f"Give {option}.")
    return value
