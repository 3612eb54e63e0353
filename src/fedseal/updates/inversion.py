"""`fedseal.invert`: one gradient in, the images behind it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import InputError, UsageError
from fedseal.core.knowledge import CROSS_ENTROPY, BNMode, Knowledge
from fedseal.core.observation import Observation, Update, UpdateKind
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import parse_spec
from fedseal.core.tensors import Tensors
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.rehearsal import rehearsal_of
from fedseal.models.registry import output_size

Gradient: TypeAlias = Mapping[str, Any] | Iterable[Any]
"""Tensors or arrays by parameter name, or in the order of the model's trainable parameters."""

_AUTO, _WITHOUT_AUTO = "auto", "ig"


def invert(
    model: nn.Module,
    gradient: Gradient,
    *,
    input_shape: Sequence[int],
    num_classes: int | None = None,
    labels: Sequence[int] | Tensor | int | str | None = None,
    attack: str = _AUTO,
    defence: str | None = None,
    batch_size: int | None = None,
    kind: UpdateKind = "gradient",
    learning_rate: float | None = None,
    local_steps: int = 1,
    loss: str = CROSS_ENTROPY,
    loss_reduction: Literal["mean", "sum"] = "mean",
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    public: Batch | str | None = None,
    iterations: int | None = None,
    restarts: int | None = None,
    seed: int = 0,
    listener: Listener | None = None,
) -> Reconstruction:
    """Rebuild the images behind a gradient, or behind the weight change of a client's round.

    Args:
        model: the one the gradient was computed on, with the weights and in the mode it had then; it is not changed.
        gradient: of the loss by the trainable parameters, see `Gradient`; or the weight change `new - old`.
        input_shape: C, H, W of an image.
        num_classes: outputs of the model; None to ask the model.
        labels: the true ones, one for each image; None to infer them from the gradient; or the name of an inference
            rule (`identity`, `llg`, ...), or `unknown` to optimise them with the images.
        attack: spec, such as `ig:tv=0.01`; `auto` leaves the choice to fedseal.
        defence: spec of what the client applied, such as `topk:ratio=0.9`: the attacker knows it and allows for it.
        batch_size: images per local step; None for as many as there are labels, or one.
        kind: what `gradient` is: `gradient`, or `delta` for a weight change.
        learning_rate: of the client's steps; a weight change cannot be read without it.
        local_steps: SGD steps behind a weight change.
        loss: that the client minimises: `cross-entropy`, `bce`, `mse` or `module:attribute`.
        loss_reduction: of it over the batch.
        normalisation: between images in [0, 1] and model inputs, as (means, deviations); None for none.
        public: images of the same kind, for attacks that use some: a batch, or the spec of a data set.
        iterations, restarts: of an attack that optimises; None for its own.
        seed: determines the result.
        listener: told of progress, with the images so far.

    Returns:
        The images [B, C, H, W] in [0, 1], their labels, and the attacker's own objective.

    Example:
        >>> import torch, fedseal
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> image = torch.rand(1, 1, 8, 8)
        >>> loss = torch.nn.functional.cross_entropy(model(image), torch.tensor([3]))
        >>> gradient = torch.autograd.grad(loss, list(model.parameters()))
        >>> stolen = fedseal.invert(model, gradient, input_shape=(1, 8, 8), attack="first-layer")
        >>> bool(torch.allclose(stolen.images, image, atol=1e-4)), stolen.labels.tolist()
        (True, [3])
    """
    shape = _shape(input_shape)
    classes = output_size(model, shape)
    if num_classes is not None and num_classes != classes:
        raise UsageError(f"the model has {classes} output(s), not {num_classes}.", hint="Leave `num_classes` out.")
    _check_steps(kind, local_steps, learning_rate)
    given = _labels(labels, classes)
    per_step = _batch_size(batch_size, given, local_steps)
    like = next(model.parameters())
    knowledge = Knowledge(
        input_shape=shape,
        num_classes=classes,
        loss=loss,
        loss_reduction=loss_reduction,
        bn_mode=_bn_mode(model),
        label_rule="true" if given is not None else labels if isinstance(labels, str) else "identity",
        batch_size=per_step,
        labels=given,
        clients=1,
        local_steps=local_steps,
        learning_rate=learning_rate,
        normalisation=_normalisation(normalisation),
        auxiliary=None if public is None else _public(public, shape).to(like.device, like.dtype),
        defence=None if defence is None else build_defence(defence).attacker_view(),
    )
    spec = defence or "none"
    rehearse = rehearsal_of(
        knowledge, kind, train_mode=model.training, fresh=partial(build_defence, spec), defence=spec
    )
    observation = Observation(model, Update(_tensors(gradient, model), kind), replace(knowledge, rehearse=rehearse))
    chosen = build_attack(attack)
    chosen.check(observation)
    return chosen.run(observation, Budget(iterations, restarts), seed, listener)


def build_attack(spec: str) -> Attack:
    """Build an attack; `auto` is the strongest general one this installation has."""
    parsed = parse_spec(spec)
    if parsed.name == _AUTO and _AUTO not in ATTACKS:
        return ATTACKS.build(_WITHOUT_AUTO)
    return ATTACKS.build(parsed)


def _shape(given: Sequence[int]) -> tuple[int, int, int]:
    if len(given) != 3 or any(int(size) < 1 for size in given):
        raise UsageError(f"input_shape cannot be {tuple(given)}.", hint="Give C, H, W, for example (3, 32, 32).")
    channels, height, width = (int(size) for size in given)
    return channels, height, width


def _check_steps(kind: str, local_steps: int, learning_rate: float | None) -> None:
    if kind not in ("gradient", "delta"):
        raise UsageError(f"kind cannot be {kind!r}.", hint="It is 'gradient' or 'delta'.")
    if local_steps < 1:
        raise UsageError(f"local_steps cannot be {local_steps}.", hint="A round has at least one.")
    if kind == "gradient" and local_steps > 1:
        raise UsageError(f"{local_steps} local steps have no one gradient.", hint="Give the change, kind='delta'.")
    if kind == "delta" and learning_rate is None:
        raise UsageError("a weight change can be read only with the learning rate.", hint="Give learning_rate=...")


def _tensors(gradient: Gradient, model: nn.Module) -> Tensors:
    """Return the gradient by parameter name, in the model's precision; frozen parameters may be among it."""
    named = dict(model.named_parameters())
    trainable = {name: p for name, p in named.items() if p.requires_grad}
    if isinstance(gradient, Tensor):
        raise InputError(
            "the gradient is one tensor; one for each parameter is needed.",
            hint="torch.autograd.grad(loss, list(model.parameters())) gives them.",
        )
    found: Mapping[str, Any]
    if isinstance(gradient, Mapping):
        found = gradient
    else:
        values = list(gradient)
        order = named if len(values) == len(named) else trainable
        if len(values) != len(order):
            raise InputError(
                f"the gradient has {len(values)} tensor(s), the model {len(trainable)} trainable parameter(s).",
                hint=f"Give one for each, in the order {', '.join(list(trainable)[:3])}, ...; or a dict by name.",
            )
        found = dict(zip(order, values, strict=True))
    kept = {name: value for name, value in found.items() if name in trainable or name not in named}
    empty = [name for name, value in kept.items() if value is None]
    if empty:
        raise InputError(
            f"the gradient of {empty[0]!r} is None.",
            hint="Freeze parameters that the loss does not use (requires_grad_(False)), or give zeros.",
        )
    return {name: _as_tensor(value, trainable.get(name)) for name, value in kept.items()}


def _as_tensor(value: Any, like: Tensor | None) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    return tensor if like is None else tensor.to(like.device, like.dtype)


def _labels(labels: Sequence[int] | Tensor | int | str | None, classes: int) -> Tensor | None:
    if labels is None or isinstance(labels, str):
        return None
    given = torch.as_tensor(labels).reshape(-1).cpu()
    if given.is_floating_point() or given.dtype == torch.bool or len(given) == 0:
        raise UsageError(f"labels must be whole numbers, got {labels!r}.", hint="Give one for each image: [3, 1, 4].")
    top = max(classes - 1, 1)  # one logit tells two classes apart
    if int(given.min()) < 0 or int(given.max()) > top:
        raise UsageError(f"labels must be from 0 to {top}, got {given.tolist()}.")
    return given.long()


def _batch_size(batch_size: int | None, labels: Tensor | None, local_steps: int) -> int:
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size cannot be {batch_size}.", hint="There is at least one image behind a gradient.")
    if labels is None:
        return batch_size or 1
    size = batch_size or max(1, len(labels) // local_steps)
    if len(labels) != size * local_steps:
        raise UsageError(
            f"{len(labels)} label(s) for {size * local_steps} image(s).",
            hint="Give one for each image of every local step.",
        )
    return size


def _bn_mode(model: nn.Module) -> BNMode:
    """Return how batch normalisation ran, by the mode the model is in; nobody has told the attacker its statistics."""
    training = any(module.training for module in model.modules() if isinstance(module, _BatchNorm))
    return "train-nostats" if training else "eval"


def _normalisation(given: Normalisation | tuple[Sequence[float], Sequence[float]] | None) -> Normalisation:
    if given is None or isinstance(given, Normalisation):
        return given or IDENTITY
    mean, std = given
    return Normalisation(tuple(map(float, mean)), tuple(map(float, std)))


def _public(given: Batch | str, shape: tuple[int, int, int]) -> Batch:
    batch = DATASETS.build(given).batch() if isinstance(given, str) else given
    if tuple(batch.images.shape[1:]) != shape:
        raise InputError(f"public images are {list(batch.images.shape[1:])}, the model takes {list(shape)} (C, H, W).")
    return batch
