"""All clients of a round in one `torch.func.vmap`, each with weights of its own.

It applies where a client's step is nothing but a gradient: no module that draws or keeps statistics, and no defence
that looks at batches, samples, the loss, or (with several local steps) at single gradients. Convolutions with weights
of their own become grouped ones, which are slow for larger batches; measured on one core, against the loop: LeNet 0.2x
at 50 clients of one image, 0.6x at 10 of one, 0.9x at 10 of 8, 1.5x at 10 of 32, 2.2x at 10 of 64; ResNet-10 always
more. So `auto` takes it for small models and batches only. The choice depends on the set-up alone, never on a clock,
as the last bits of a sum depend on it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors, check_finite
from fedseal.federation.client import HookClock, RoundConfig, take_step
from fedseal.federation.cohort.answers import Answer, Assignment, Measure, answered
from fedseal.federation.loss import client_loss
from fedseal.federation.wire import payload_size

MOST_PARAMETERS = 200_000
MOST_IMAGES = {True: 8, False: 32}
"""Largest batches for which `auto` vectorises models with and without convolutions."""
MEMORY = 256 << 20
"""Bytes that the clients trained at once may take, roughly."""
_COPIES = 4
"""Weights, gradient, update and a temporary."""
_ACTIVATIONS = 32
"""Activations per input value, on the safe side."""


def can_vectorise(model: nn.Module, defence: Defence, config: RoundConfig, example: Batch) -> bool:
    """Return whether clients of a model, in the mode they train it, may be trained in one `vmap`.

    Args:
        model: in the clients' mode.
        defence: any client's.
        config: how clients train.
        example: some images, to see whether every operation of the model, which may be a user's, can be vectorised.
    """
    if any(isinstance(module, (_BatchNorm, _DropoutNd)) and module.training for module in model.modules()):
        return False
    hooks = ["on_batch", "extra_loss", "broadcast", *(["on_gradient"] if config.kind == "delta" else [])]
    if defence.needs_sample_grads or defence.traits.reads_batch or any(defence.uses(hook) for hook in hooks):
        return False
    inputs, labels = (torch.stack([values[:1]] * 2) for values in (example.inputs, example.labels))
    try:
        _gradients(model, config, example.modality)(_weights(model), inputs, labels)
    except RuntimeError:  # what `vmap` raises for an operation without a rule, or one that draws or writes
        return False
    return True


def pays(model: nn.Module, batch_size: int) -> bool:
    """Return whether one `vmap` over clients is faster than a loop, by what was measured."""
    convolutional = any(isinstance(module, _ConvNd) for module in model.modules())
    parameters = sum(p.numel() for p in model.parameters())
    return parameters <= MOST_PARAMETERS and batch_size <= MOST_IMAGES[convolutional]


def train_together(
    assignments: Iterable[Assignment],
    round_number: int,
    *,
    statistics: bool = False,
    measure: Measure = payload_size,
) -> Iterator[Answer]:
    """Train clients in groups of one model and equally many and large batches, as many at once as memory allows.

    Answers come group by group; what they hold is what `one_by_one` gives, up to rounding, without any `statistics`:
    where layers use those of a batch, clients are not vectorised. `measure` counts an upload's bytes.
    """
    waiting: dict[tuple[int, ...], list[Assignment]] = defaultdict(list)

    def answers(group: list[Assignment]) -> Iterator[Answer]:
        model = group[0].model
        updates, scratch = _train_chunk(model, group), copy.deepcopy(model)
        for place, one in enumerate(group):
            own = {name: values[place] for name, values in updates.items()}
            yield _answer(scratch, one, own, round_number, measure)

    for assignment in assignments:
        group = waiting[id(assignment.model), *(len(batch) for batch in assignment.batches)]
        group.append(assignment)
        if sum(map(len, waiting.values())) >= clients_at_once(assignment.model, assignment.batches):
            for full in waiting.values():
                yield from answers(full)
            waiting.clear()
    for rest in waiting.values():
        yield from answers(rest)


def clients_at_once(model: nn.Module, batches: Sequence[Batch]) -> int:
    """Return how many clients with such batches are trained at once."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    images = [batch.inputs.numel() * batch.inputs.element_size() for batch in batches]
    own = _COPIES * weights + _ACTIVATIONS * max(images) + sum(images)
    return max(1, MEMORY // own)


def _train_chunk(model: nn.Module, chunk: Sequence[Assignment]) -> dict[str, Tensor]:
    """Return gradients, or weight changes, [K, ...] per parameter for K clients."""
    config, kind = chunk[0].config, chunk[0].batches[0].modality
    start = _weights(model)
    if config.kind == "gradient":
        return _gradients(model, config, kind)(start, *_stacked(chunk, 0))
    gradients = _gradients(model, config, kind, own_weights=True)
    weights = {name: value.expand(len(chunk), *value.shape).clone() for name, value in start.items()}
    course = config.rule.begin()
    for step in range(config.steps):
        shared = _gradients(model, config, kind)(start, *_stacked(chunk, 0)) if step == 0 else None
        direction = gradients(weights, *_stacked(chunk, step % config.local_steps)) if shared is None else shared
        take_step(weights, direction, course, config.learning_rate)
    return {name: value - start[name] for name, value in weights.items()}


def _answer(scratch: nn.Module, one: Assignment, update: Tensors, round_number: int, measure: Measure) -> Answer:
    """Pass one client's raw update through the hooks that are left."""
    model, config, clock = one.model, one.config, HookClock()
    try:
        check_finite(update, "client gradient")
        if config.kind == "delta" and one.defence.uses("on_update"):
            before, after = dict(model.named_parameters()), dict(scratch.named_parameters())
            with torch.no_grad():
                for name, change in update.items():
                    after[name].copy_(before[name] + change)
        context = RoundContext(
            scratch if config.kind == "delta" else model,
            client_loss(config.normalisation, config.loss_reduction, config.loss),
            one.generator,
            round_number,
            config.steps - 1,
            config.learning_rate,
            one.name,
            one.batches[-1],
            config.kind,
        )
        if config.kind == "gradient":
            update = clock(one.defence.on_gradient, update, context)
        update = clock(one.defence.on_update, update, context)
    except InputError as error:
        return Answer(one, None, error)
    return answered(one, Update(update, config.kind), clock.seconds, fed=one.batches, measure=measure)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _stacked(chunk: Sequence[Assignment], step: int) -> tuple[Tensor, Tensor]:
    batches = [one.batches[step] for one in chunk]
    return torch.stack([batch.inputs for batch in batches]), torch.stack([batch.labels for batch in batches])


def _gradients(
    model: nn.Module, config: RoundConfig, modality: str, *, own_weights: bool = False
) -> Callable[[Tensors, Tensor, Tensor], dict[str, Tensor]]:
    """Return the map from weights, shared or one per client, images [K, B, ...] and labels [K, B] to gradients."""
    loss = client_loss(config.normalisation, config.loss_reduction, config.loss)

    def one(weights: Tensors, images: Tensor, labels: Tensor) -> Tensor:
        def bound(inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(model, dict(weights), (inputs,))
            return output

        return loss(bound, Batch(images, labels, modality))

    each: Callable[[Tensors, Tensor, Tensor], dict[str, Tensor]] = vmap(
        grad(one), in_dims=(0 if own_weights else None, 0, 0)
    )
    return each
