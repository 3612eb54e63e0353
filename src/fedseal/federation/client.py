"""One client's round: batches in, an update out, through every hook of its defence.

With one local step the update is the loss gradient (FedSGD) unless the weight change is asked for; with more it is
the weight change after that many steps (FedAvg), one batch each, in as many passes over the batches as asked for.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import Classifier, CostReport, Defence, Loss, RoundContext, merge_reports
from fedseal.core.errors import InputError
from fedseal.core.knowledge import CROSS_ENTROPY, BNMode
from fedseal.core.observation import Update, UpdateKind
from fedseal.core.optimiser import Course, Optimiser, OptimiserName
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import Tensors, check_finite
from fedseal.federation.loss import client_loss
from fedseal.federation.wire import payload_size
from fedseal.metrics.gradient import density

T = TypeVar("T")
BNStatistics = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RoundConfig:
    """How clients train.

    Attributes:
        local_steps: steps per pass, each on a batch of its own.
        learning_rate: of those steps.
        bn_mode: batch normalisation with running (`eval`) or batch statistics.
        train_mode: whether dropout and the like are active.
        loss_reduction: over the batch.
        normalisation: between images and model.
        momentum: of the local steps; every round starts without any.
        weight_decay: times the weights, added to each gradient.
        optimiser: by which the steps are taken; every round starts without memory.
        local_epochs: passes over the same batches, in the same order.
        upload: what is sent; `auto` is the gradient after one step and the weight change after more.
        loss: that clients minimise (`federation.loss`).
    """

    local_steps: int = 1
    learning_rate: float = 0.1
    bn_mode: BNMode = "eval"
    train_mode: bool = False
    loss_reduction: Literal["mean", "sum"] = "mean"
    normalisation: Normalisation = IDENTITY
    momentum: float = 0.0
    upload: Literal["auto", "gradient", "delta"] = "auto"
    loss: str = CROSS_ENTROPY
    weight_decay: float = 0.0
    optimiser: OptimiserName = "sgd"
    local_epochs: int = 1

    def __post_init__(self) -> None:
        if self.upload == "gradient" and self.steps > 1:
            raise InputError(f"{self.steps} local steps have no one gradient.", hint="Upload the weight change.")

    @property
    def steps(self) -> int:
        """Steps of a round, over all passes."""
        return self.local_steps * self.local_epochs

    @property
    def rule(self) -> Optimiser:
        """By which rule a client steps."""
        return Optimiser(self.optimiser, self.momentum, self.weight_decay)

    @property
    def kind(self) -> UpdateKind:
        """What an update is."""
        if self.upload == "auto":
            return "gradient" if self.steps == 1 else "delta"
        return self.upload


@dataclass(frozen=True)
class ClientRound:
    """What a round produced.

    Attributes:
        update: as uploaded.
        fed: the batches the model really saw, after data-side defences.
        bn_statistics: batch mean and variance per normalisation layer, of the first step.
        cost: measured; without `gradient_distance`, which needs the round as it is without a defence (`plain_update`).
        buffers: of the trained model, those that were asked for.
    """

    update: Update
    fed: tuple[Batch, ...]
    bn_statistics: BNStatistics
    cost: CostReport
    buffers: Tensors = field(default_factory=dict)


def set_mode(model: nn.Module, config: RoundConfig) -> nn.Module:
    """Put a model's modules in the mode clients use: training or not, batch normalisation by its own switch."""
    model.train(config.train_mode)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(config.bn_mode != "eval")
    return model


def client_round(
    model: nn.Module,
    batches: Sequence[Batch],
    config: RoundConfig,
    defence: Defence,
    generator: torch.Generator,
    *,
    round_number: int = 0,
    client: str = "client-0",
) -> ClientRound:
    """Run one round on a copy of `model`, one batch per local step.

    Args:
        model: the global model, wrapped by the defence already; not changed.
        batches: one per local step.
        config: how the client trains.
        defence: its hooks are called in contract order.
        generator: the defence's randomness.
        round_number: for the defence's context.
        client: its name, likewise.
    """
    trained = train(model, batches, config, defence, generator, round_number=round_number, client=client)
    check_finite(trained.update.tensors, "client update")
    cost = round_cost(defence, trained.update.tensors, payload_size(trained.update.tensors), trained.hook_seconds)
    return ClientRound(trained.update, trained.fed, trained.bn_statistics, cost)


def round_cost(defence: Defence, sent: Tensors, bytes_up: int, seconds: float) -> CostReport:
    """Return what a defence reports of its last round, with what was measured of the upload."""
    return merge_reports([defence.report()], bytes_up=bytes_up, seconds=seconds, density=density(sent))


def plain_update(
    model: nn.Module,
    batches: Sequence[Batch],
    config: RoundConfig,
    generator: torch.Generator,
    *,
    round_number: int = 0,
    client: str = "client-0",
) -> Update:
    """Return what the client of a `client_round` with these arguments would upload without a defence.

    Dropout and the like draw as they did there, so that the difference is the defence's alone.
    """
    return train(model, batches, config, Defence(), generator, round_number=round_number, client=client).update


@dataclass(frozen=True)
class LocalTraining:
    """What local training left behind, before anything of it is checked or coded.

    Attributes:
        update: after every hook.
        fed: the batches the model really saw.
        bn_statistics: batch mean and variance per normalisation layer, of the first step.
        buffers: of the trained copy: running statistics where they moved.
        hook_seconds: time spent in the defence's hooks.
    """

    update: Update
    fed: tuple[Batch, ...]
    bn_statistics: BNStatistics
    buffers: Tensors
    hook_seconds: float


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    config: RoundConfig,
    defence: Defence,
    generator: torch.Generator,
    *,
    round_number: int = 0,
    client: str = "client-0",
    workspace: nn.Module | None = None,
    statistics: bool = True,
    draws: bool = True,
) -> LocalTraining:
    """Train a copy of `model`, one batch per local step, and return the update.

    Arguments as for `client_round`, and what spares work where many clients train:

    Args:
        workspace: a copy of the model to be overwritten; of what is returned, only the buffers share its memory.
        statistics: whether anyone asks for those of batch normalisation.
        draws: whether the model may draw from the global generator; only then it is seeded (`client_randomness`).
    """
    if len(batches) != config.local_steps:
        raise InputError(f"{config.local_steps} local steps need as many batches, got {len(batches)}.")
    clock = HookClock()
    local = set_mode(copy.deepcopy(model) if workspace is None else _overwritten(workspace, model), config)
    parameters = {name: p for name, p in local.named_parameters() if p.requires_grad}
    loss = _with_extra(client_loss(config.normalisation, config.loss_reduction, config.loss), defence, local)
    fed: list[Batch] = []
    recorded: BNStatistics = {}
    gradient: Tensors = {}
    course = config.rule.begin()
    context = RoundContext(local, loss, generator, round_number, 0, config.learning_rate, client, kind=config.kind)
    for step in range(config.steps):
        context = replace(context, step=step, batch=None)
        if step < len(batches):  # what the model is fed is made once, and fed again in every pass
            fed.append(clock(defence.on_batch, batches[step], context))
        context = replace(context, batch=fed[step % len(batches)])
        with (
            record_bn_statistics(local) if statistics and step == 0 else nullcontext(recorded) as recorded,
            client_randomness(context) if draws else nullcontext(),
        ):
            gradient = _gradient(parameters, fed[step % len(batches)], loss, defence, context, clock)
        gradient = clock(defence.on_gradient, gradient, context)
        if config.kind == "delta":
            take_step(parameters, gradient, course, config.learning_rate)
    if config.kind == "delta":
        before = dict(model.named_parameters())
        gradient = {name: parameters[name].detach() - before[name].detach() for name in gradient}
    update = Update(clock(defence.on_update, gradient, context), config.kind)
    return LocalTraining(update, tuple(fed), recorded, dict(local.named_buffers()), clock.seconds)


def _overwritten(workspace: nn.Module, model: nn.Module) -> nn.Module:
    """Return the workspace with the model's parameters and buffers."""
    with torch.no_grad():
        for own, value in zip(workspace.parameters(), model.parameters(), strict=True):
            own.copy_(value)
        for kept, buffer in zip(workspace.buffers(), model.buffers(), strict=True):
            kept.copy_(buffer)
    return workspace


def take_step(parameters: Tensors, gradient: Tensors, course: Course, learning_rate: float) -> None:
    """Take one step in place, of one client or of several stacked."""
    with torch.no_grad():
        for name, direction in course.directions(parameters, gradient).items():
            parameters[name].sub_(direction, alpha=learning_rate)


def _with_extra(loss: Loss, defence: Defence, model: nn.Module) -> Loss:
    """Return the loss plus what the defence adds to it."""

    def total(classifier: Classifier, batch: Batch) -> Tensor:
        value = loss(classifier, batch)
        extra = defence.extra_loss(model)
        return value if extra is None else value + extra

    return total


def _gradient(
    parameters: Tensors, batch: Batch, loss: Loss, defence: Defence, context: RoundContext, clock: HookClock
) -> Tensors:
    """Return the gradient of a batch, by the defence where that works on single samples."""
    if defence.needs_sample_grads:
        samples = sample_gradients(context.model, batch, loss)
        check_finite(samples, "client gradient")
        return clock(defence.on_sample_grads, samples, context)
    values = torch.autograd.grad(loss(context.model, batch), list(parameters.values()), allow_unused=True)
    gradient = {
        name: torch.zeros_like(p) if value is None else value
        for (name, p), value in zip(parameters.items(), values, strict=True)
    }
    check_finite(gradient, "client gradient")  # before a defence spreads a NaN over every tensor
    return gradient


def sample_gradients(model: nn.Module, batch: Batch, loss: Loss) -> dict[str, Tensor]:
    """Return the gradient of each sample alone, [B, ...] per parameter, in one vectorised pass."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def one(values: Tensors, image: Tensor, label: Tensor) -> Tensor:
        def bound(images: Tensor) -> Tensor:
            output: Tensor = functional_call(model, dict(values), (images,))
            return output

        return loss(bound, Batch(image.unsqueeze(0), label.unsqueeze(0), batch.modality))

    each = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")
    result: dict[str, Tensor] = each(parameters, batch.inputs, batch.labels)
    return result


@contextmanager
def client_randomness(context: RoundContext) -> Iterator[None]:
    """Seed what modules draw from the global generator (dropout) by round and step, and leave no trace there."""
    device = next(context.model.parameters()).device
    seed = derive_seed(context.generator.initial_seed(), "client", context.round, context.step)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed also notes a stack trace for every device there is
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def record_bn_statistics(model: nn.Module) -> Iterator[BNStatistics]:
    """Collect the batch mean and (biased) variance that enters each batch normalisation layer, by module name."""
    recorded: BNStatistics = {}

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach()
            dims = [0, *range(2, x.ndim)]
            mean = x.mean(dims, keepdim=True)
            recorded[name] = (mean.flatten(), (x - mean).square_().mean(dims))  # a third of the time of `var`

        return hook

    handles = [
        module.register_forward_pre_hook(hook_for(name))
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


class HookClock:
    """Calls hooks and adds up their time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, hook: Callable[..., T], *arguments: object) -> T:
        """Return what a hook returns."""
        start = time.perf_counter()
        result = hook(*arguments)
        self.seconds += time.perf_counter() - start
        return result
