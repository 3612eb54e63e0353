"""The registry of models and the way from a spec, or a user's own module, to a checked classifier."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Registry, near_matches
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import check_finite

MODELS: Registry[nn.Module] = Registry("model", "fedseal.models")


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
            model = MODELS.build(spec, input_shape=input_shape, num_classes=num_classes)
        elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", spec):
            model = _user_model(spec, input_shape, num_classes)
        else:
            raise UsageError(
                f"there is no model called {name!r}.",
                hint=near_matches(name, MODELS.names()) + " Your own is written package.module:attribute.",
            )
    check_classifier(model, input_shape, num_classes, spec)
    return model


def check_classifier(model: nn.Module, input_shape: tuple[int, int, int], num_classes: int, name: str) -> None:
    """Refuse a model with non-finite weights, without parameters, or whose output is not [B, num_classes]."""
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    if not parameters:
        raise InputError(f"model {name} has no trainable parameters.", hint="Its gradients would be empty.")
    check_finite(parameters, f"model {name}")
    first = next(iter(parameters.values()))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(torch.zeros(2, *input_shape, dtype=first.dtype, device=first.device))
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"model {name} does not accept images of shape {list(input_shape)}: {reason}.",
            hint="Choose data of the size the model was built for.",
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(output, torch.Tensor) or output.shape != (2, num_classes):
        got = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"model {name} answers 2 images with {got}, but the data has {num_classes} classes.",
            hint=f"The output must be a tensor of logits [B, {num_classes}].",
        )


def _user_model(spec: str, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    module_name, _, attribute = spec.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except ImportError as error:
        raise UsageError(
            f"cannot import {module_name!r}: {error}.", hint="It must be importable from here (PYTHONPATH)."
        ) from error
    except AttributeError as error:
        raise UsageError(f"{module_name!r} has no attribute {attribute!r}.", hint="Check the spelling.") from error
    if isinstance(value, nn.Module):
        return value
    if callable(value):
        built = value(**_accepted(value, {"input_shape": input_shape, "num_classes": num_classes}))
        if isinstance(built, nn.Module):
            return built
        raise InputError(f"{spec} returned {type(built).__name__}, not a torch.nn.Module.")
    raise InputError(f"{spec} is {type(value).__name__}, not a torch.nn.Module or a function that returns one.")


def _accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offered.items() if key in inspect.signature(function).parameters}
