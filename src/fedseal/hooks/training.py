"""A defence's hooks around a training loop that is somebody else's.

The loop hands every batch to `batch` and trains on what it gets back; a hook on the optimiser's step puts the defended
gradient in place of the one the loop computed; `update` seals what is to leave. Between them the loop does what it
likes: any optimiser, autocast, loss scaling, schedules, several batches per step. With plain SGD the result is that of
`fedseal.federation.client.train`, to the bit: the defence, its contexts and its randomness are the same.

Defences that need the gradient of each sample (`dp-sgd`) recompute them from the batches of the step, all at once, so
that clipping is by sample and noise is added once per step however many batches it has; what the loop's own backward
pass left is discarded. Only parameters that require gradients take part: of a model with LoRA adapters, the adapters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fedseal.core.batch import IDENTITY, Batch, Normalisation, joined
from fedseal.core.defence import Classifier, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.modality import IMAGE
from fedseal.core.observation import Update
from fedseal.core.seeds import generator as seeded
from fedseal.core.tensors import Tensors, check_finite
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import round_cost, sample_gradients
from fedseal.federation.cohort import federated_model
from fedseal.federation.wire import payload_size
from fedseal.hooks.sampling import RateGauge, claimed_rate

Criterion = Callable[[Any, Tensor], Tensor]
"""Maps what the model answers and labels to the scalar that is differentiated."""


def sealed_model(model: nn.Module, defence: str, *, seed: int = 0) -> nn.Module:
    """Return the model that is trained under a defence; server and clients call it alike, before any optimiser."""
    return federated_model(build_defence(defence), model, seed)


class SealedTraining:
    """A defence inside of a loop.

    Example:
        >>> import torch
        >>> from fedseal.hooks import SealedTraining
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> sealed = SealedTraining("dp-sgd:sigma=1,clip=1", model, optimizer)
        >>> for images, labels in [(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 1, 0]))]:
        ...     images, labels = sealed.batch(images, labels)
        ...     loss = torch.nn.functional.cross_entropy(model(images), labels)
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> sorted(sealed.update().tensors)
        ['1.bias', '1.weight']

    Args:
        defence: a spec, or an instance; one per client.
        model: with the weights of the round; wrapped by `sealed_model` if the defence changes it.
        optimizer: over parameters of the model, of any kind.
        criterion: the loop's loss, for what the defence recomputes itself; cross-entropy by default.
        loader: where the batches come from; needed where a defence accounts with a sample rate below 1.
        normalisation: that the loader applied to images in [0, 1]; undone before and redone after a defence of data.
        modality: of the inputs; `tensor` for anything but images, whose first dimension is the sample.
        accumulate: batches per step at most.
        autocast: precision of the loop's forward passes, for those of the defence.
        include, exclude: patterns of parameters' names that are sealed and leave; the others stay where they are.
        round_number: from 0.
        client: name of the client.
        generator: of the defence's randomness; the system's by default.
    """

    def __init__(
        self,
        defence: str | Defence,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Criterion = nn.functional.cross_entropy,
        *,
        loader: DataLoader[Any] | None = None,
        normalisation: Normalisation = IDENTITY,
        modality: str = IMAGE,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
        round_number: int = 0,
        client: str = "client-0",
        generator: torch.Generator | None = None,
    ) -> None:
        if accumulate < 1:
            raise UsageError(f"accumulate must be at least 1, got {accumulate}.")
        self.defence = build_defence(defence) if isinstance(defence, str) else defence
        self.model = model
        self.skipped = 0
        self._criterion = criterion
        self._normalisation = normalisation
        self._modality = modality
        self._accumulate = accumulate
        self._autocast = autocast
        if self.defence.needs_sample_grads and self.defence.wrap_model(model) is not model:
            raise UsageError(
                f"{self.defence.name} cannot train this model as it is: batch normalisation ties samples together.",
                hint="Train `sealed_model(model, defence)` instead, on server and clients.",
            )
        self._names = self._chosen(include, exclude, optimizer)
        self._gauge = RateGauge(claimed_rate(self.defence), loader, self.defence.name)
        self._context = RoundContext(
            model,
            self._loss,
            seeded(None) if generator is None else generator,
            round_number,
            learning_rate=float(optimizer.param_groups[0]["lr"]),
            client=client,
            kind="delta",
        )
        self._vectorised = True
        self._fed: list[Batch] = []
        self._last: Batch | None = None
        self._added = False
        self._seconds = 0.0
        self._start = self._parameters()
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def __enter__(self) -> SealedTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the hook off the optimiser; what it does then is not sealed any more."""
        self._handle.remove()

    @property
    def steps(self) -> int:
        """Steps taken in this round."""
        return self._context.step

    @property
    def measured_rate(self) -> float | None:
        """Share of the records in a step on average; None where no sample rate is claimed."""
        return self._gauge.measured

    @property
    def learning_rate(self) -> float:
        """Of the last step."""
        return self._context.learning_rate

    def started(self) -> Tensors:
        """Return the sealed parameters as they were when the round began."""
        return self._start

    def prepare(self, dataset: Batch) -> Batch:
        """Let the defence see, or replace, all of the client's data; once, before training (`lids`, `ats`)."""
        return self.defence.prepare(dataset, self._context.generator)

    def batch(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Take a batch and return the one to train on."""
        if len(self._fed) == self._accumulate:  # its step never came: loss scaling skips steps that overflow
            self._fed, self._added = [], False
            self.skipped += 1
        start = time.perf_counter()
        given = Batch(self._normalisation.undo(inputs), labels, self._modality)
        fed = self.defence.on_batch(given, replace(self._context, batch=None)) if len(given) else given
        self._fed.append(fed)
        self._seconds += time.perf_counter() - start
        return (inputs if fed is given else self._normalisation(fed.inputs)), fed.labels

    def total(self, loss: Tensor) -> Tensor:
        """Return the loop's loss plus what the defence adds to it (`precode`, `fedkl`); call it before `backward`."""
        extra = self.defence.extra_loss(self.model)
        self._added = True
        return loss if extra is None else loss + extra

    def update(self) -> Update:
        """Return what may leave: the change of the sealed parameters, after the defence's last hook."""
        now = self._parameters()
        change = {name: now[name] - self._start[name] for name in now}
        check_finite(change, "client update")
        context = replace(self._context, step=max(0, self.steps - 1), batch=self._last)
        return Update(self.defence.on_update(change, context), "delta")

    def report(self, update: Update) -> CostReport:
        """Return what the round cost."""
        return round_cost(self.defence, update.tensors, payload_size(update.tensors), self._seconds)

    def restart(self, round_number: int) -> None:
        """Begin another round at the weights the model has now."""
        self._context = replace(self._context, round=round_number, step=0)
        self._fed, self._last, self._added, self._seconds = [], None, False, 0.0
        self._start = self._parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the defence's state, to be kept between rounds."""
        return self.defence.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.defence.load_state_dict(state)

    def _chosen(self, include: Sequence[str], exclude: Sequence[str], optimizer: Optimizer) -> tuple[str, ...]:
        """Return the names of the parameters that are sealed; refuse what would pass a defence by."""
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        names = tuple(
            name
            for name in trainable
            if any(fnmatchcase(name, pattern) for pattern in include)
            and not any(fnmatchcase(name, pattern) for pattern in exclude)
        )
        if not names:
            raise UsageError(
                f"nothing of the model's {len(trainable)} trainable parameters is left to seal.",
                hint="Check include, exclude and which parameters require gradients.",
            )
        known = {id(p) for p in self.model.parameters()}
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise UsageError(
                "the optimiser trains parameters that the model does not have.",
                hint="Make the optimiser after `sealed_model`, over the same model.",
            )
        left = [name for name in trainable if name not in names]
        if left and self.defence.needs_sample_grads:
            raise UsageError(
                f"{self.defence.name} cannot leave out trainable parameters ({left[0]}, ...): what they learn without "
                "noise shows in the gradients of the others.",
                hint="Freeze them: parameter.requires_grad_(False).",
            )
        return names

    def _parameters(self) -> dict[str, Tensor]:
        values = dict(self.model.named_parameters())
        return {name: values[name].detach().clone() for name in self._names}

    def _loss(self, classifier: Classifier, batch: Batch) -> Tensor:
        value = self._criterion(classifier(self._normalisation(batch.inputs)), batch.labels)
        extra = self.defence.extra_loss(self.model)
        return value if extra is None else value + extra

    def _precision(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, self._autocast)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Defend the gradient before the optimiser uses it: now, or behind the closure that is to compute it."""
        place = 1 if len(args) > 1 else None
        closure = kwargs.get("closure") if place is None else args[place]
        if closure is None:
            self._defend(optimizer)
            return None

        def defended() -> Any:
            loss = closure()
            self._defend(optimizer)
            return loss

        if place is None:
            return args, {**kwargs, "closure": defended}
        return (*args[:place], defended, *args[place + 1 :]), kwargs

    def _defend(self, optimizer: Optimizer) -> None:
        """Put the defended gradient in place of the loop's."""
        self._check_fed()
        start = time.perf_counter()
        full = [batch for batch in self._fed if len(batch)]
        self._last = joined(full) if full else self._fed[-1]
        rate = float(optimizer.param_groups[0]["lr"])
        self._context = replace(self._context, batch=self._last, learning_rate=rate)
        parameters = dict(self.model.named_parameters())
        self._gauge.count(len(self._last))
        with self._precision():
            gradient = self._samples(full) if self.defence.needs_sample_grads else self._plain(parameters, bool(full))
            gradient = self.defence.on_gradient(gradient, self._context)
        for name, value in gradient.items():
            parameters[name].grad = value.detach().to(parameters[name].dtype)
        self._fed, self._added = [], False
        self._context = replace(self._context, step=self.steps + 1)
        self._seconds += time.perf_counter() - start

    def _check_fed(self) -> None:
        if not self._fed:
            raise UsageError(
                "the optimiser takes a step on a batch that no defence has seen.",
                hint="Hand every batch to `batch(inputs, labels)` and train on what it returns.",
            )
        if self.defence.uses("extra_loss") and not self._added and not self.defence.needs_sample_grads:
            raise UsageError(
                f"{self.defence.name} adds to the loss, and the loop left that out.",
                hint="Call `loss = sealed.total(loss)` before `loss.backward()`.",
            )

    def _samples(self, batches: Sequence[Batch]) -> Tensors:
        """Return the step's gradient from those of single samples."""
        if batches:
            parts = [self._each(batch) for batch in batches]
            grads = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        else:
            grads = {name: value.new_zeros(0, *value.shape) for name, value in self._start.items()}
        check_finite(grads, "client gradient")
        return self.defence.on_sample_grads(grads, self._context)

    def _each(self, batch: Batch) -> Tensors:
        """Return the gradients of single samples, all at once where the model can be vectorised, else one by one."""
        if self._vectorised:
            try:
                return sample_gradients(self.model, batch, self._loss)
            except RuntimeError:  # a model whose code looks at values, as some of Hugging Face's do
                self._vectorised = False
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        rows = []
        for index in range(len(batch)):
            loss = self._loss(self.model, batch.pick(slice(index, index + 1)))
            rows.append(torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True))
        return {name: torch.stack(column) for name, column in zip(parameters, zip(*rows, strict=True), strict=True)}

    def _plain(self, parameters: Tensors, fed: bool) -> Tensors:
        """Return the gradient that the loop computed; that of an empty batch is zero, whatever its loss was."""
        values = {name: parameters[name].grad if fed else None for name in self._names}
        gradient = {
            name: torch.zeros_like(parameters[name]) if value is None else value.detach()
            for name, value in values.items()
        }
        check_finite(gradient, "client gradient")
        return gradient
