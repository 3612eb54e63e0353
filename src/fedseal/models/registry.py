"""The registry of models and the way from a spec, or a user's own module, to a checked classifier."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.registry import Registry, near_matches
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import check_finite

MODELS: Registry[nn.Module] = Registry("model", "fedseal.models")

register_model = MODELS.register
"""Register a model under a name: see `Registry.register`."""


def build_model(spec: str, *, input_shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """Build a classifier from a registry spec or from `package.module:attribute`, and check that it fits.

    Args:
        spec: for example `lenet:init=wide-uniform`, or `my_package.nets:Net` for a module class, a factory or an
            instance of one's own; a factory is given `input_shape` and `num_classes` if it takes them.
        input_shape: C, H, W of the images it must accept.
        num_classes: number of outputs it must have.
        seed: determines random initial weights; the global generator is left as it was.
    """
    name = spec.partition(":")[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "weights"))
        if name in MODELS.names():
            with _blamed_on(f"model {spec} cannot be built for images of shape {list(input_shape)}"):
                model = MODELS.build(spec, input_shape=input_shape, num_classes=num_classes)
        elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", spec):
            model = _user_model(spec, input_shape, num_classes)
        else:
            raise UsageError(
                f"there is no model called {name!r}.",
                hint=near_matches(name, MODELS.names()) + " Your own is written package.module:attribute.",
            )
        check_classifier(model, input_shape, num_classes, spec)  # lazy modules draw their weights here
    return model


def check_classifier(model: nn.Module, input_shape: tuple[int, int, int], num_classes: int, name: str) -> None:
    """Refuse a model with non-finite weights, without parameters, or whose output is not [B, num_classes]."""
    output = _answer(model, input_shape, name)
    check_finite({key: value for key, value in model.named_parameters() if value.requires_grad}, f"model {name}")
    if not isinstance(output, torch.Tensor) or output.shape != (2, num_classes):
        got = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"model {name} answers 2 images with {got}, but the data has {num_classes} classes.",
            hint=f"The output must be a tensor of logits [B, {num_classes}].",
        )


def output_size(model: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """Return how many outputs a classifier has for an image of shape C, H, W; its mode is left as it was."""
    output = _answer(model, input_shape, type(model).__name__)
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != 2:
        got = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"model {type(model).__name__} answers 2 images with {got}.",
            hint="The output must be a tensor of logits [B, classes].",
        )
    return int(output.shape[1])


def _answer(model: nn.Module, input_shape: tuple[int, int, int], name: str) -> Any:
    """Return what a model answers to two black images, every module in evaluation mode meanwhile."""
    first = next((value for value in model.parameters() if value.requires_grad), None)
    if first is None:
        raise InputError(f"model {name} has no trainable parameters.", hint="Its gradients would be empty.")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with _blamed_on(f"model {name} does not accept images of shape {list(input_shape)}"), torch.no_grad():
            return model(torch.zeros(2, *input_shape, dtype=first.dtype, device=first.device))
    finally:
        for module, training in modes:
            module.training = training


def _user_model(spec: str, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    module_name, _, attribute = spec.partition(":")
    try:
        with _blamed_on(f"importing {module_name!r} failed", but=ImportError):
            value: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"cannot import {module_name!r}: {error}.", hint="It must be importable from here (PYTHONPATH)."
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = [name for name, item in vars(value).items() if callable(item) and not name.startswith("_")]
            raise UsageError(f"{module_name!r} has no attribute {attribute!r}.", hint=near_matches(part, known))
        value = getattr(value, part)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)  # it belongs to its module; ours changes mode, dtype and device
    if callable(value):
        with _blamed_on(f"building model {spec} failed"):
            built = value(**_accepted(value, {"input_shape": input_shape, "num_classes": num_classes}))
        if isinstance(built, nn.Module):
            return built
        raise InputError(f"{spec} returned {type(built).__name__}, not a torch.nn.Module.")
    raise InputError(f"{spec} is {type(value).__name__}, not a torch.nn.Module or a function that returns one.")


def _accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offered.items() if key in inspect.signature(function).parameters}


@contextmanager
def _blamed_on(what: str, but: type[Exception] = FedsealError) -> Iterator[None]:
    """Turn whatever a model's own code raises, `but` this, into one line that says what it was doing."""
    try:
        yield
    except (FedsealError, but):
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise InputError(
            f"{what}: {type(error).__name__}: {reason}.",
            hint="Check the model's options and code, and that it was built for data of this size.",
        ) from error
