"""A first scenario for somebody's own model and data, written after looking at both.

What can be found out is: which model a module holds, which size and colours of pictures it accepts, whether its outputs
fit the classes, whether it normalises by batches or drops units. What cannot be found out is said in a comment beside
the value that was assumed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.plugins import is_reference, load_reference
from fedseal.core.registry import parse_spec
from fedseal.data.dataset import Dataset
from fedseal.data.folder import read_sizes
from fedseal.data.images import LARGEST, SMALLEST
from fedseal.data.registry import DATASETS
from fedseal.federation.fitting import fitting_model, with_targets
from fedseal.federation.loss import is_class, is_flags
from fedseal.models.registry import MODELS, output_size

_SIDES = (32, 28, 64, 96, 128, 224)
"""Sides that are tried where a model does not accept the pictures' own."""


@dataclass(frozen=True)
class Look:
    """What was seen of a model and of data.

    Attributes:
        model: its spec.
        data: its spec, with the size the model accepts.
        dataset: the data.
        network: the model, built for it.
        loss: that fits labels and outputs.
        notes: what a person should read.
    """

    model: str
    data: str
    dataset: Dataset
    network: nn.Module
    loss: str
    notes: tuple[str, ...]


def look_at(model: str, data: str, data_root: Path | None = None) -> Look:
    """Find out how a model and data fit together, or say why they do not.

    Args:
        model: spec, `package.module:attribute`, a module alone, or the path of a Python file.
        data: spec, the path of a folder of pictures, or of a numpy archive.
        data_root: where local data sets lie.
    """
    spec = find_model(model)
    reasons: list[str] = []
    for candidate in _data_candidates(data):
        dataset = DATASETS.build(candidate, data_root=data_root)
        for loss in _losses(dataset):
            try:
                network = fitting_model(spec, dataset, loss, 0)
                with_targets(dataset, network, loss)
            except InputError as error:
                reasons.append(f"{candidate}: {error.message}")
                continue
            return Look(spec, candidate, dataset, network, loss, (*dataset.notes, *_resized(data, dataset)))
    raise InputError(f"{spec} and {data} do not fit together. {reasons[0]}", hint="Name a size: folder:PATH?size=64.")


def find_model(text: str) -> str:
    """Return the spec of the model a text stands for; of a module alone, the one it holds that is no part of others."""
    if text.endswith(".py"):
        path = local_path(text)
        if not path.is_file():
            raise InputError(f"there is no file {path}.", hint="Give a module, as my_package.nets, or a file.")
        text = ".".join(path.with_suffix("").parts) if not path.is_absolute() else path.stem
    name = parse_spec(text).name
    if name in MODELS or is_reference(text.partition("?")[0]):
        return text
    module = load_reference(text)
    found = [key for key, value in vars(module).items() if _is_model(value, module.__name__)]
    whole = [key for key in found if _stands_alone(getattr(module, key))]
    if len(whole or found) == 1:
        return f"{text}:{(whole or found)[0]}"
    if not found:
        raise UsageError(f"{text!r} defines no torch.nn.Module.", hint="Name it: package.module:attribute.")
    raise UsageError(f"{text!r} defines {', '.join(sorted(found))}.", hint=f"Say which: {text}:{sorted(found)[-1]}.")


def _is_model(value: Any, module: str) -> bool:
    if isinstance(value, nn.Module):
        return True
    return inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == module


def _stands_alone(model: Any) -> bool:
    """Return whether a model can be built of what an audit knows; parts such as blocks usually want more."""
    if isinstance(model, nn.Module):
        return True
    parameters = inspect.signature(model).parameters.values()
    wanted = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name for p in wanted} <= {"input_shape", "num_classes"}


def _data_candidates(data: str) -> list[str]:
    """Return specs of the data in the sizes and colours that may fit, the likeliest first."""
    path = local_path(data) if ":" not in data else None
    if path is None or not path.exists():
        return [data]
    if path.is_file():
        return [f"npz:{data}"]
    side, grey = read_sizes(path)
    own = min(max(side, SMALLEST), LARGEST)
    sides = list(dict.fromkeys([*([own] if own <= 64 else []), *_SIDES, own]))
    colours = (1, 3) if grey else (3, 1)
    return [f"folder:{data}?size={size}&channels={channels}" for channels in colours for size in sides]


def _resized(data: str, dataset: Dataset) -> tuple[str, ...]:
    """Return what to say of a folder whose pictures have another size than the one that was chosen for it."""
    path = local_path(data) if ":" not in data else None
    if path is None or not path.is_dir() or (own := read_sizes(path)[0]) == dataset.shape[-1]:
        return ()
    size = "x".join(map(str, dataset.shape[1:]))
    return (f"Pictures of {own} pixels on the shorter side are cropped and resized to {size}; say another by `size=`.",)


def _losses(dataset: Dataset) -> tuple[str, ...]:
    if is_class(dataset.labels):
        return (CROSS_ENTROPY, "bce") if len(dataset.classes) == 2 else (CROSS_ENTROPY,)
    return ("bce",) if is_flags(dataset.labels) else ("mse",)


def scenario_text(look: Look, command: str) -> str:
    """Return a commented scenario for what was seen."""
    modules = list(look.network.modules())
    normalised = any(isinstance(module, _BatchNorm) for module in modules)
    dropping = any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)
    outputs, size = output_size(look.network, look.dataset.probe()), "x".join(map(str, look.dataset.shape))
    parameters = sum(p.numel() for p in look.network.parameters() if p.requires_grad)
    per_image = len(look.dataset.classes)
    kind = f"{per_image} classes" if is_class(look.dataset.labels) else f"{per_image} flags or values per image"
    labels = "identity" if look.loss == CROSS_ENTROPY or outputs == 1 else "unknown"
    batch = 4 if len(look.dataset) >= 80 else 1
    bn = "train-nostats" if normalised and batch > 1 else "eval"
    bn_words = "batch statistics, as in training" if normalised else "the model has no batch normalisation"
    drop_words = "dropout is active, as in training" if dropping else "the model has no dropout"
    lines = [
        f"# Written by `{command}`. Every key: docs/scenario.md.",
        "# To run it: fedseal audit FILE. To look at it first: fedseal check FILE.",
        "name: first-audit",
        "",
        f"# {len(look.dataset):,} images {size}, {kind}. Say the size your clients train on.",
        *[f"# {note}" for note in look.notes],
        f"data: {_quoted(look.data)}",
        "public_fraction: 0.3        # the attacker's own images of the same kind; no client holds them",
        "",
        f"# {type(look.network).__name__}: {parameters:,} parameters, {outputs} output(s), weights as it is built.",
        "# Your clients' own decide what leaks: add `checkpoint: weights.safetensors` below `name`.",
        "model:",
        f"  name: {_quoted(look.model)}",
        f"loss: {look.loss:<20} # what clients minimise: cross-entropy, bce, mse or module:attribute",
        "",
        "client:",
        f"  batch_size: {batch:<12} # assumed: images per local step; small batches leak more",
        "  local_steps: 1            # assumed: 1 sends a gradient, more send a weight change",
        "  learning_rate: 0.1        # assumed",
        "  normalise: false          # assumed: whether images are normalised by the data's mean and deviation",
        f"  bn_mode: {bn:<15} # {bn_words}",
        f"  train_mode: {str(dropping).lower():<12} # {drop_words}",
        "",
        "attacker:",
        f"  labels: {labels:<16} # infer them from the update; `true` gives them away, `unknown` optimises them",
        "",
        'defences: [none, "topk:ratio=0.9"]   # the first is the control; more: fedseal list defences',
        "attacks: [auto]             # everything a passive server can try; more: fedseal list attacks",
        "targets: 4                  # independent batches per cell; 8 or more tell small leaks from chance",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
