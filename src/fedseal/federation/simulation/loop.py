"""The federation's loop: sample, train, check, average, step, measure, save.

As many uploads are held as clients train at once (a bounded chunk of them where clients are vectorised); each is added
to a running mean, so memory does not grow with the clients of a round, beyond the state their defences keep.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.hashing import hash_tensors
from fedseal.core.identity import classes_in, identity_of
from fedseal.core.observation import Update
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.sources import code_digest
from fedseal.core.tensors import Tensors
from fedseal.core.threads import one_thread
from fedseal.data.dataset import ImageDataset
from fedseal.federation.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedseal.federation.client import set_mode
from fedseal.federation.sampling import drops_out, local_indices, sample_clients
from fedseal.federation.server import RunningMean, ServerOptimiser
from fedseal.federation.simulation.clients import Answer, Assignment, OneByOne
from fedseal.federation.simulation.config import FederationConfig
from fedseal.federation.simulation.evaluation import evaluate
from fedseal.federation.simulation.history import DroppedClient, History, RoundRecord
from fedseal.federation.simulation.listener import RoundWatcher, SeenUpload
from fedseal.federation.simulation.vectorised import can_vectorise, pays, train_together
from fedseal.federation.wire import payload_size

SILENT = "did not answer"
"""Why a client that dropped out is not part of a round."""


class ClientData(Protocol):
    """A client's images: an `ImageDataset`, or anything that hands out batches."""

    def __len__(self) -> int:
        """Return the number of images."""

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices`, or all."""


@dataclass(frozen=True)
class Prepared:
    """A client's data as a batch in memory, as a defence prepared it."""

    data: Batch

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices`, or all."""
        return self.data if indices is None else Batch(self.data.images[indices], self.data.labels[indices])


@dataclass(frozen=True)
class SimulationResult:
    """What a federation came to: its course and its global model (wrapped by the defence where that changes it)."""

    history: History
    model: nn.Module


def simulate(
    config: FederationConfig,
    model: nn.Module,
    clients: Sequence[ClientData],
    test: Batch,
    defence: Defence | None = None,
    *,
    normalisation: Normalisation = IDENTITY,
    listener: RoundWatcher | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 1,
    workers: int | None = None,
) -> SimulationResult:
    """Train a model over a federation's clients and return its course.

    Args:
        config: how.
        model: the initial global model; not changed.
        clients: their data; client i is called `client-i`.
        test: what the global model is measured on.
        defence: fresh; every client gets a copy of its own, with a state of its own, and so does the server.
        normalisation: between images and model.
        listener: told of every round, and shown the uploads of those it inspects.
        checkpoint: a file to go on from if it exists, and to write to. Interrupted at any time, the same call resumes
            and ends with the same curve.
        checkpoint_every: rounds between writes; the last round is always written.
        workers: clients trained at once, one thread each; by default as many as PyTorch has threads. The curve does
            not depend on it.
    """
    at_once = workers or torch.get_num_threads()
    with one_thread():
        federation = _Federation(config, model, clients, test, defence or Defence(), normalisation, at_once)
        watcher = listener or RoundWatcher()
        if checkpoint is not None and checkpoint.exists():
            federation.restore(load_checkpoint(checkpoint, federation.identity))
        for number in range(len(federation.history.rounds), config.rounds):
            record = federation.play(number, watcher)
            if checkpoint is not None and ((number + 1) % checkpoint_every == 0 or number + 1 == config.rounds):
                save_checkpoint(checkpoint, federation.checkpoint())
            watcher.finished(record, config.rounds)
        return SimulationResult(federation.history, federation.model)


@dataclass
class _Tally:
    """What is counted while a round's answers arrive."""

    mean: RunningMean = field(default_factory=RunningMean)
    buffers: RunningMean = field(default_factory=RunningMean)
    clients: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    dropped: list[DroppedClient] = field(default_factory=list)
    bytes_up: int = 0
    hook_seconds: float = 0.0


class _Federation:
    """A federation between two rounds: the global model, the server, and each client's defence."""

    def __init__(
        self,
        config: FederationConfig,
        model: nn.Module,
        clients: Sequence[ClientData],
        test: Batch,
        defence: Defence,
        normalisation: Normalisation,
        workers: int,
    ) -> None:
        self._config = config
        self._clients: list[ClientData] = list(clients)
        self._sampled = config.clients_per_round or len(clients)
        self._prototype = defence
        self._server_side = copy.deepcopy(defence)
        self._defences: dict[int, Defence] = {}
        self._normalisation = normalisation
        self._shapes = _shapes(config, clients, defence, self._sampled)
        self.identity = _identity(config, model, clients, test, defence)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(config.seed, "wrapped"))
            wrapped = self._server_side.wrap_model(copy.deepcopy(model))
        self._round_config = config.round_config(max(shape.local_steps for shape in self._shapes), normalisation)
        self.model = set_mode(wrapped, self._round_config)
        like = next(self.model.parameters())
        self._device, self._dtype = like.device, like.dtype
        self._test = test.to(self._device, self._dtype)
        self._optimiser = ServerOptimiser(config.server_learning_rate, config.server_momentum, config.learning_rate)
        self._shared = _running_statistics(self.model) if config.bn_mode == "train-exact-stats" else []
        self._dense = _dense_bytes(self.model)
        example = self._clients[0].batch(torch.arange(1)).to(self._device, self._dtype)
        vectorised = self._vectorises(example)
        self._train = train_together if vectorised else self._one_by_one(workers, example)
        accuracy, loss = self._measure(None)
        self.history = History(initial_accuracy=accuracy, initial_loss=loss, vectorised=vectorised)

    def play(self, number: int, listener: RoundWatcher) -> RoundRecord:
        """Run one round and return its record, which is in the history then."""
        config, start = self._config, time.perf_counter()
        chosen = sample_clients(len(self._clients), self._sampled, config.seed, number)
        silent = [index for index in chosen if drops_out(config.dropout, config.seed, number, index)]
        answering = self._in_turn([index for index in chosen if index not in silent], number)
        tally = _Tally(dropped=[DroppedClient(client=name_of(index), reason=SILENT) for index in silent])
        assignments = self._assignments(answering, number)
        for answer in self._train(self.model, assignments, number, statistics=listener.inspects(number)):
            self._spread(answer, answering, number)
            self._take(answer, number, tally, listener)
        if tally.clients:
            aggregate = self._server_side.on_aggregate(tally.mean.value())
            self._optimiser.step(self.model, aggregate, self._round_config.kind)
            if self._shared:
                _load_buffers(self.model, tally.buffers.value())
        seconds = time.perf_counter() - start
        record = RoundRecord(
            round=number,
            clients=tuple(tally.clients),
            dropped=tuple(tally.dropped),
            bytes_up=tally.bytes_up,
            bytes_down=self._download(tally.indices) * len(chosen),
            seconds=seconds,
            hook_seconds=tally.hook_seconds,
        )
        if (number + 1) % config.evaluate_every == 0 or number + 1 == config.rounds:
            accuracy, loss = self._measure(tally.indices[0] if tally.indices else None)
            record = record.model_copy(
                update={"accuracy": accuracy, "loss": loss, "epsilon": self._epsilon(tally.indices)}
            )
        self.history = self.history.after(record)
        return record

    def _assignments(self, indices: Sequence[int], number: int) -> Iterator[Assignment]:
        seed = self._config.seed
        for index in indices:
            defence, data, shape = self._defence(index), self._clients[index], self._shapes[index]
            places = local_indices(len(data), shape.batch_size, shape.local_steps, seed, number, index)
            yield Assignment(
                index,
                name_of(index),
                tuple(data.batch(part).to(self._device, self._dtype) for part in places),
                self._config.round_config(shape.local_steps, self._normalisation),
                defence,
                generator(seed, "defence", number, index, device=self._device),
            )

    def _defence(self, index: int) -> Defence:
        """Return a client's own defence; its first time, it prepares the client's data."""
        if index not in self._defences:
            defence = self._defences[index] = copy.deepcopy(self._prototype)
            if defence.uses("prepare"):
                whole = self._clients[index].batch().to(self._device, self._dtype)
                source = generator(self._config.seed, "prepare", index, device=self._device)
                self._clients[index] = Prepared(defence.prepare(whole, source))
        return self._defences[index]

    def _in_turn(self, indices: list[int], number: int) -> list[int]:
        """Return the order in which clients train: at random where the first decides for the others (`broadcast`)."""
        if not self._prototype.uses("broadcast"):
            return indices
        order = torch.randperm(len(indices), generator=generator(self._config.seed, "turns", number))
        return [indices[int(place)] for place in order]

    def _spread(self, answer: Answer, answering: Sequence[int], number: int) -> None:
        """Hand what a client broadcasts to the round's other clients; the next one trains after that."""
        told = answer.assignment.defence.broadcast() if answer.update is not None else None
        if told is not None:
            for index in answering:
                if index != answer.assignment.index:
                    self._defence(index).receive(told, number)

    def _take(self, answer: Answer, number: int, tally: _Tally, listener: RoundWatcher) -> None:
        """Count one client's answer, or name it among the dropped."""
        one, update = answer.assignment, answer.update
        if update is None:
            tally.dropped.append(DroppedClient(client=one.name, reason=answer.failure))
            return
        examples = len(self._clients[one.index])
        weight = float(examples) if self._config.weighting == "examples" else 1.0
        tally.mean.add(update.tensors, weight)
        if self._shared:
            tally.buffers.add(answer.buffers, weight)
        tally.bytes_up += answer.bytes_up
        tally.hook_seconds += answer.hook_seconds
        tally.clients.append(one.name)
        tally.indices.append(one.index)
        if listener.inspects(number):
            seen = Update(self._server_side.server_view(update.tensors), update.kind)
            listener.uploaded(
                self.model,
                SeenUpload(number, one.name, seen, one.config, examples, one.batches, answer.fed, answer.bn_statistics),
            )

    def _download(self, indices: Sequence[int]) -> int:
        """Return the bytes each client is sent: the whole model, unless the defence of who answered says otherwise."""
        stated = self._defences[indices[0]].report().bytes_down if indices else None
        return self._dense if stated is None else stated

    def _measure(self, client: int | None) -> tuple[float, float]:
        """Return accuracy and loss of the global model, used as that client would where that differs."""
        model = self.model if client is None else self._defences[client].own_model(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._config.seed, "evaluate"))
            return evaluate(
                model,
                self._test,
                self._normalisation,
                batch_statistics=self._config.bn_mode == "train-nostats",
            )

    def _epsilon(self, indices: Sequence[int]) -> float | None:
        stated = [self._defences[index].report().epsilon_accounted for index in indices]
        return max((value for value in stated if value is not None), default=None)

    def _one_by_one(self, workers: int, example: Batch) -> OneByOne:
        """Return what trains clients; one after the other where the first decides for the others (`broadcast`)."""
        at_once = 1 if self._prototype.uses("broadcast") else min(workers, self._sampled)
        pair = example.images.expand(2, -1, -1, -1)  # one image has no batch statistics
        return OneByOne(self.model, at_once, self._normalisation(pair), self._shared)

    def _vectorises(self, example: Batch) -> bool:
        if self._config.vectorise == "never":
            return False
        largest = max(shape.batch_size for shape in self._shapes)
        if self._config.vectorise == "auto" and not pays(self.model, largest):
            return False
        possible = can_vectorise(self.model, self._prototype, self._round_config, example)
        if self._config.vectorise == "always" and not possible:
            raise UsageError(
                f"these clients cannot be trained as one: the model or {self._prototype.name} needs them one by one.",
                hint="Use `vectorise: auto`.",
            )
        return possible

    def checkpoint(self) -> Checkpoint:
        """Return the state between two rounds."""
        states = {name_of(index): defence.state_dict() for index, defence in self._defences.items()}
        parts: dict[str, Tensors] = {
            "model": self.model.state_dict(),
            "server": self._optimiser.state_dict(),
            "defence": self._server_side.state_dict(),
            **states,
        }
        seen = sorted(self._defences)
        return Checkpoint(self.identity, {"seen": seen, **self.history.model_dump(mode="json")}, parts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a state."""
        values, parts = dict(checkpoint.history), checkpoint.parts
        for index in values.pop("seen"):
            self._defence(index).load_state_dict(parts.get(name_of(index), {}))
        self.model.load_state_dict(parts["model"])
        self._server_side.load_state_dict(parts.get("defence", {}))
        self._optimiser.load_state_dict(parts.get("server", {}))
        self.history = History.model_validate(values)


def name_of(index: int) -> str:
    """Return a client's name."""
    return f"client-{index}"


def _shapes(
    config: FederationConfig, clients: Sequence[ClientData], defence: Defence, sampled: int
) -> list[RoundShape]:
    """Return what each client does in a round, after the defence had its say; refuse what cannot be."""
    if not clients:
        raise InputError("a federation needs clients.", hint="Partition the data first.")
    sizes = [len(data) for data in clients]
    if min(sizes) < 1:
        raise InputError(f"{name_of(sizes.index(0))} holds no data.", hint="Use fewer clients or another partition.")
    if sampled > len(clients):
        raise UsageError(
            f"{sampled} clients per round are more than the {len(clients)} there are.", hint="Lower clients_per_round."
        )
    shapes = [defence.reshape(config.shape(size, sampled)) for size in sizes]
    if shapes[0].clients > sampled:
        raise UsageError(
            f"{defence.name} averages {shapes[0].clients} clients, a round has {sampled}.",
            hint="Raise clients_per_round.",
        )
    if config.algorithm == "fedsgd" and any(shape.local_steps > 1 for shape in shapes):
        raise UsageError(f"{defence.name} takes several local steps, fedsgd one.", hint="Use `algorithm: fedavg`.")
    if defence.traits.masks_upload and config.weighting == "examples" and len(set(sizes)) > 1:
        raise UsageError(
            f"{defence.name} masks uploads, which only a plain mean unmasks, and the clients' sizes differ.",
            hint="Use `weighting: uniform`.",
        )
    return shapes


def _identity(
    config: FederationConfig, model: nn.Module, clients: Sequence[ClientData], test: Batch, defence: Defence
) -> str:
    """Return the hash of what determines a run, but for how far it goes."""
    return identity_of(
        config=config.model_dump(mode="json", exclude={"rounds"}),
        model=model,
        clients=[_data_content(data) for data in clients],
        test=test,
        defence=defence,
        code=code_digest([__name__, *classes_in(model), *classes_in(defence)]),
        torch=torch.__version__,
    )


def _data_content(data: ClientData) -> str:
    """Return the hash of a client's data; of a data set that is in memory as it is, of any other as it hands it out."""
    held = data if isinstance(data, ImageDataset) else data.batch()
    return hash_tensors({"images": held.images, "labels": held.labels})


def _running_statistics(model: nn.Module) -> list[str]:
    """Return the names of the buffers that training moves and clients may share; others are nobody's business."""
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    buffers = dict(model.named_buffers())
    names = [f"{norm}.{kind}".lstrip(".") for norm in norms for kind in ("running_mean", "running_var")]
    return [name for name in names if name in buffers]


def _dense_bytes(model: nn.Module) -> int:
    """Return the length of a payload with all of a model's parameters and running statistics, none of them zero."""
    tensors: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tensors |= {name: model.get_buffer(name) for name in _running_statistics(model)}
    source = generator(0, "dense")
    filled = {name: 1 + torch.rand(t.shape, generator=source, dtype=torch.float64) for name, t in tensors.items()}
    return payload_size({name: value.to(tensors[name].dtype) for name, value in filled.items()})


def _load_buffers(model: nn.Module, buffers: Tensors) -> None:
    own = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            own[name].copy_(value)
