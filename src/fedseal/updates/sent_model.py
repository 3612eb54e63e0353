"""The model a client was sent, from a spec, a reference or a file of weights alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedseal.core.errors import InputError, UsageError
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.defences.pipeline import build_defence
from fedseal.models.registry import MODELS, build_model, complete_models
from fedseal.updates.source import UpdateSource


def sent_model(
    source: UpdateSource, shape: tuple[int, int, int], classes: int | None, state: Tensors | None
) -> nn.Module:
    """Return the model with the weights the client was sent."""
    specs = complete_models() if source.model_is_file else [source.model]
    sizes = [classes] if classes is not None else _possible_outputs(state)
    if len(specs) == len(sizes) == 1:
        return _with_weights(_built(source, specs[0], shape, sizes[0]), state)
    assert state is not None
    wanted = {name: tensor.shape for name, tensor in state.items()}
    found = {}
    for spec in specs:
        for size in sizes:
            if source.defence is None and not _may_fit(spec, shape, size, wanted):
                continue
            try:
                model = _built(source, spec, shape, size)
            except InputError:  # it has another number of outputs, or is not made for images of this size
                continue
            if {name: tensor.shape for name, tensor in model.state_dict().items()} == wanted:
                found[spec] = model
    if len(found) == 1:
        return _with_weights(next(iter(found.values())), state)
    if not source.model_is_file:
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


def _may_fit(spec: str, shape: tuple[int, int, int], classes: int, wanted: dict[str, torch.Size]) -> bool:
    """Return false where a model's shapes, drawn up without weights, are others; a large network costs no time so."""
    try:
        with torch.device("meta"):
            drawn = MODELS.build(spec, input_shape=shape, num_classes=classes).state_dict()
        return {name: tensor.shape for name, tensor in drawn.items()} == wanted
    except Exception:  # noqa: BLE001 - its factory asks weights for their values, or refuses: building it says which
        return True


def _with_weights(model: nn.Module, state: Tensors | None) -> nn.Module:
    if state is not None:
        check_like(state, model.state_dict(), "weights")
        check_finite({name: t for name, t in state.items() if t.is_floating_point()}, "weights")
        model.load_state_dict(state)
    return model


def _possible_outputs(state: Tensors | None) -> list[int]:
    """Return every width a layer has: files do not keep the order of layers, so any may be the last."""
    widths = {tensor.shape[0] for tensor in (state or {}).values() if tensor.is_floating_point() and tensor.ndim > 0}
    return sorted(required(widths or None, "the number of classes", "--classes N"))


def required(value: Any, what: str, option: str) -> Any:
    """Return a value, or ask for the option that gives it."""
    if value is None:
        raise UsageError(f"{what} is not known.", hint=f"Give {option}.")
    return value
