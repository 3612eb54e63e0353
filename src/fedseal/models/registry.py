"""The registry of models and the way from a spec, or a user's own module, to a checked classifier."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.plugins import blamed_on
from fedseal.core.registry import Entry, Info, Registry
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import check_finite
from fedseal.models.layers import finish
from fedseal.models.outputs import TakeOutput, choose_output


class ModelRegistry(Registry[nn.Module]):
    """Models; each has the options `init`, `checkpoint` and `output` (see `finish`), unless its factory has its own."""

    def _declared(self, name: str, factory: Callable[..., nn.Module], info: Info) -> Entry[nn.Module]:
        entry = super()._declared(name, factory, info)
        return replace(entry, parameters={**entry.parameters, **_added(entry.parameters)})

    def _make(self, entry: Entry[nn.Module], options: dict[str, Any]) -> nn.Module:
        added = _added(inspect.signature(entry.factory).parameters)
        model = super()._make(entry, {key: value for key, value in options.items() if key not in added})
        return finish(model, **{key: value for key, value in options.items() if key in added})


def _added(own: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Return the options of `finish` that a factory does not have itself."""
    hints = typing.get_type_hints(finish, include_extras=True)
    return {
        key: parameter.replace(annotation=hints[key])
        for key, parameter in list(inspect.signature(finish).parameters.items())[1:]
        if key not in own
    }


MODELS: Registry[nn.Module] = ModelRegistry("model", "fedseal.models", group="fedseal.models", product=nn.Module)
_HINT = "Check the model's options and code, and that it was built for data of this size."

register_model = MODELS.register
"""Register a model under a name: see `Registry.register`."""

_SUPPLIED = {"input_shape", "num_classes"}


def complete_models() -> list[str]:
    """Return the models that a name alone builds; `hf` and `timm` open libraries and need more than that."""
    needed = {
        name: {key for key, one in MODELS.entry(name).parameters.items() if one.default is one.empty}
        for name in MODELS.names()
    }
    return [name for name, keys in needed.items() if keys <= _SUPPLIED]


def build_model(
    spec: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    exact: bool = True,
    probe: Tensor | None = None,
    encoding: Encoding | None = None,
) -> nn.Module:
    """Build a classifier from a registry spec or from `package.module:attribute`, and check that it fits.

    Args:
        spec: for example `lenet:init=wide-uniform`, or `my_package.nets:Net?width=32&checkpoint=w.safetensors` for a
            module class, a factory or an instance of one's own; a factory is given `input_shape` and `num_classes` if
            it takes them.
        input_shape: C, H, W of the images it must accept, or the shape of what else a sample is.
        num_classes: number of outputs a factory that asks is told.
        seed: determines random initial weights; the global generator is left as it was.
        exact: whether it must have that many outputs; else the caller sees to what they mean.
        probe: two inputs to try it with; grey ramps if None.
        encoding: how inputs are made, for factories that ask for it.
    """
    tried = ramps(input_shape) if probe is None else probe
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "weights"))
        with blamed_on(f"model {spec} cannot be built for {_inputs(tried)}", hint=_HINT):
            model = MODELS.build(spec, input_shape=input_shape, num_classes=num_classes, encoding=encoding)
        _settle_attention(model)
        _settle_in_place(model)
        _settle_output(model, tried, spec)  # lazy modules draw their weights here
        check_classifier(model, tried, num_classes if exact else None, spec)
    return model


def ramps(input_shape: tuple[int, ...]) -> Tensor:
    """Return two grey ramps, the inputs a model of images is tried with."""
    return torch.linspace(0, 1, 2 * math.prod(input_shape)).view(2, *input_shape)


def _inputs(probe: Tensor) -> str:
    return f"{'images' if probe.ndim == 4 else 'inputs'} of shape {list(probe.shape[1:])}"


def check_classifier(model: nn.Module, probe: Tensor, num_classes: int | None, name: str) -> None:
    """Refuse a model with non-finite weights, without parameters, or whose output is not [B, num_classes]."""
    output = _answer(model, probe, name)
    check_finite({key: value for key, value in model.named_parameters() if value.requires_grad}, f"model {name}")
    outputs = _outputs(output, name)
    if num_classes is not None and outputs != num_classes:
        raise InputError(
            f"model {name} answers 2 images with {list(output.shape)}, but the data has {num_classes} classes.",
            hint=f"The output must be a tensor of logits [B, {num_classes}].",
        )


def output_size(model: nn.Module, probe: Tensor | tuple[int, ...]) -> int:
    """Return how many outputs a classifier has for two inputs, or for images of shape C, H, W; its mode stays."""
    name = type(model).__name__
    return _outputs(_answer(model, ramps(probe) if isinstance(probe, tuple) else probe, name), name)


def _outputs(answer: Any, name: str) -> int:
    if not isinstance(answer, torch.Tensor) or answer.ndim < 2 or len(answer) != 2 or answer.shape[-1] == 0:
        got = list(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise InputError(
            f"model {name} answers 2 images with {got}.",
            hint="The output must be a tensor of logits [B, classes]; one logit has the shape [B, 1].",
        )
    return int(answer.shape[-1])


def _settle_output(model: nn.Module, probe: Tensor, name: str) -> None:
    """Make a model answer with its logits alone, where it answers with more."""
    hooks = [hook for hook in model._forward_hooks.values() if isinstance(hook, TakeOutput)]
    wanted = hooks[-1].part if hooks else None
    for key in [key for key, hook in model._forward_hooks.items() if hook in hooks]:
        del model._forward_hooks[key]
    part = choose_output(_answer(model, probe, name), wanted, name)
    if part is not None:
        model.register_forward_hook(TakeOutput(part))


def _settle_attention(model: nn.Module) -> None:
    """Ask a Hugging Face model for attention that can be differentiated twice: the fused one cannot, on a CPU."""
    choose = getattr(model, "set_attn_implementation", None)
    if callable(choose):
        choose("eager")


def _settle_in_place(model: nn.Module) -> None:
    """Let activations write their results elsewhere: the values are the same, and can be differentiated twice."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


def _answer(model: nn.Module, probe: Tensor, name: str) -> Any:
    """Return what a model answers to two inputs, every module in evaluation mode meanwhile."""
    first = next((value for value in model.parameters() if value.requires_grad), None)
    if first is None:
        raise InputError(f"model {name} has no trainable parameters.", hint="Its gradients would be empty.")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with (
            blamed_on(f"model {name} does not accept {_inputs(probe)}", hint=_HINT),
            torch.no_grad(),
        ):
            probe = probe.to(first) if probe.is_floating_point() else probe.to(first.device)
            given = probe.clone()
            answer = model(given)
            if not torch.equal(probe, given):
                raise InputError(
                    f"model {name} writes into the images it is given, by an operation in place.",
                    hint="Let it work on a copy: `x = x * 2`, not `x *= 2`.",
                )
            return answer
    finally:
        for module, training in modes:
            module.training = training
