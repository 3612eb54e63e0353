"""The received model as the site sees it before an app does: whether it fits what was agreed, or looks like a weapon.

Without the architecture, layers are told by their weights: a matrix is a linear map, four dimensions are a
convolution. That is enough for every check that looks at weights alone.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedseal.core.errors import FedsealError, UsageError
from fedseal.core.tensors import Tensors
from fedseal.detection.detector import detect
from fedseal.models.registry import build_model
from fedseal.site.policy import DetectorRules


def alarm_of(rules: DetectorRules, state: Tensors) -> str | None:
    """Return why the site should not answer, or None.

    Args:
        rules: the site's.
        state: of the model the server sent.
    """
    if rules.on_alarm == "off":
        return None
    try:
        model = _agreed(rules, state) if rules.model is not None else _told_by_shapes(rules, state)
        found = detect(model)
    except FedsealError as error:
        return error.message
    return "; ".join(str(reading) for reading in found.alarms) or None


def check_detector(rules: DetectorRules) -> None:
    """Refuse rules under which no model could be looked at."""
    if rules.model is not None and rules.on_alarm != "off":
        _build(rules)


def _build(rules: DetectorRules) -> nn.Module:
    if rules.model is None or rules.input_shape is None or rules.num_classes is None:
        raise UsageError(
            "the policy's detector names a model without `input_shape` and `num_classes`.",
            hint="Give both, or leave `model` out.",
        )
    return build_model(rules.model, input_shape=rules.input_shape, num_classes=rules.num_classes, seed=0)


def _agreed(rules: DetectorRules, state: Tensors) -> nn.Module:
    """Return the architecture the site agreed to with the received weights; counters may be of any type."""
    model = _build(rules)
    own = model.state_dict()
    wrong = sorted(set(own) ^ set(state)) or [name for name in own if own[name].shape != state[name].shape]
    if wrong:
        raise UsageError(f"the received model is not the one the site agreed to: {wrong[0]!r} differs.")
    model.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in state.items()})
    return model


def _told_by_shapes(rules: DetectorRules, state: Tensors) -> nn.Module:
    layers = nn.ModuleDict()
    for name, weight in state.items():
        layer, _, last = name.rpartition(".")
        if last != "weight" or not weight.is_floating_point() or any(fnmatchcase(layer, p) for p in rules.ignore):
            continue
        bias = state.get(f"{layer}.bias" if layer else "bias")
        made = _layer(weight, bias)
        if made is not None:
            layers[layer.replace(".", "/") or "model"] = made
    layers["others"] = _Others([tensor for tensor in state.values() if tensor.is_floating_point()])
    return layers


class _Others(nn.Module):
    """All weights, whatever they are for, so that each is looked at for values that are no numbers."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(tensor, requires_grad=False) for tensor in tensors])


def _layer(weight: Tensor, bias: Tensor | None) -> nn.Module | None:
    made: nn.Module
    if weight.ndim == 2 and min(weight.shape) > 0:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    elif weight.ndim == 4 and min(weight.shape) > 0:
        width, height = weight.shape[2:]
        made = nn.Conv2d(weight.shape[1], weight.shape[0], (width, height), bias=bias is not None, device="meta")
    else:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    tensors = {"weight": weight} | ({} if bias is None else {"bias": bias.to(weight.dtype)})
    with torch.no_grad():
        made.load_state_dict({name: tensor.detach() for name, tensor in tensors.items()}, assign=True)
    return made
