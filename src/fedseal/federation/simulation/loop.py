"""The federation's loop: sample, let the cohort play, step, measure, save.

As many uploads are held as clients train at once (a bounded chunk of them where clients are vectorised); each is added
to a running mean, so memory does not grow with the clients of a round, beyond the state their defences keep.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.hashing import hash_tensors
from fedseal.core.identity import classes_in, identity_of
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.sources import code_digest
from fedseal.core.tensors import Tensors
from fedseal.core.threads import one_thread
from fedseal.data.dataset import Dataset
from fedseal.federation.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedseal.federation.client import set_mode
from fedseal.federation.cohort import Answer, Client, ClientData, Cohort, federated_model
from fedseal.federation.cohort.one_by_one import OneByOne
from fedseal.federation.cohort.traffic import dense_bytes, running_statistics
from fedseal.federation.cohort.vectorised import can_vectorise, pays, train_together
from fedseal.federation.sampling import drops_out, local_indices, sample_clients
from fedseal.federation.server import ServerOptimiser
from fedseal.federation.simulation.config import FederationConfig
from fedseal.federation.simulation.evaluation import Measured, evaluate
from fedseal.federation.simulation.history import DroppedClient, History, RoundRecord
from fedseal.federation.simulation.listener import RoundListener, SeenUpload

SILENT = "did not answer"
"""Why a client that dropped out is not part of a round."""


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
    listener: RoundListener | None = None,
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
    federation = Federation(config, model, clients, test, defence, normalisation=normalisation, workers=workers)
    federation.run(config.rounds, listener=listener, checkpoint=checkpoint, checkpoint_every=checkpoint_every)
    return SimulationResult(federation.history, federation.model)


@dataclass(frozen=True)
class SeededStreams:
    """A federation's randomness: a function of seed, round and client, so that nothing need be saved to go on."""

    seed: int
    device: torch.device

    def prepare(self, client: int) -> torch.Generator:
        """Return what a client's defence prepares its data with."""
        return generator(self.seed, "prepare", client, device=self.device)

    def round(self, client: int, number: int) -> torch.Generator:
        """Return what a client's defence draws from in a round."""
        return generator(self.seed, "defence", number, client, device=self.device)

    def turns(self, number: int) -> torch.Generator:
        """Return what a round's order of clients is drawn from."""
        return generator(self.seed, "turns", number)


class Federation:
    """A federation between two rounds: the global model, the server, and its clients, each with its own defence.

    Args as for `simulate`.

    Attributes:
        identity: hash of what determines the run, but for how far it goes.
        model: the global model.
        cohort: the clients.
        history: of the rounds played.
    """

    def __init__(
        self,
        config: FederationConfig,
        model: nn.Module,
        clients: Sequence[ClientData],
        test: Batch,
        defence: Defence | None = None,
        *,
        normalisation: Normalisation = IDENTITY,
        workers: int | None = None,
    ) -> None:
        at_once = workers or torch.get_num_threads()
        with one_thread():
            self._set_up(config, model, clients, test, defence or Defence(), normalisation, at_once)

    def run(
        self,
        rounds: int,
        *,
        listener: RoundListener | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int = 1,
    ) -> None:
        """Play until so many rounds are over; arguments as for `simulate`."""
        told = listener or RoundListener()
        with one_thread():
            if checkpoint is not None and checkpoint.exists():
                self.restore(load_checkpoint(checkpoint, self.identity))
            for number in range(len(self.history.rounds), rounds):
                record = self.play(number, told)
                if checkpoint is not None and ((number + 1) % checkpoint_every == 0 or number + 1 == rounds):
                    save_checkpoint(checkpoint, self.checkpoint())
                told.finished(record, rounds)

    def _set_up(
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
        self._sampled = config.clients_per_round or len(clients)
        self._prototype = defence
        self._shapes = _shapes(config, clients, defence, self._sampled)
        self.identity = _identity(config, model, clients, test, defence)
        self._normalisation = normalisation
        self._round_config = config.round_config(max(shape.local_steps for shape in self._shapes), normalisation)
        self.model = set_mode(
            federated_model(copy.deepcopy(defence), copy.deepcopy(model), config.seed), self._round_config
        )
        like = next(self.model.parameters())
        self._test = test.to(like.device, like.dtype)
        self._optimiser = ServerOptimiser(config.server_learning_rate, config.server_momentum, config.learning_rate)
        self.shared = running_statistics(self.model) if config.bn_mode == "train-exact-stats" else []
        self._dense = dense_bytes(self.model)
        example = clients[0].batch(torch.arange(1)).to(like.device, like.dtype)
        vectorised = self._vectorises(example)
        self.cohort = Cohort(
            [self._client(index, data) for index, data in enumerate(clients)],
            defence,
            SeededStreams(config.seed, like.device),
            train=train_together if vectorised else self._one_by_one(workers, example),
            weighting=config.weighting,
        )
        start = self._measure(None)
        self.history = History(initial_accuracy=start.accuracy, initial_loss=start.loss, vectorised=vectorised)

    def _client(self, index: int, data: ClientData) -> Client:
        shape, seed = self._shapes[index], self._config.seed

        def choose(held: ClientData, number: int) -> list[Batch]:
            places = local_indices(len(held), shape.batch_size, shape.local_steps, seed, number, index)
            return [held.batch(part) for part in places]

        return Client(name_of(index), data, self._config.round_config(shape.local_steps, self._normalisation), choose)

    def play(self, number: int, listener: RoundListener) -> RoundRecord:
        """Run one round and return its record, which is in the history then."""
        config, start = self._config, time.perf_counter()
        answering, silent = sampled_for(self._config, len(self.cohort), number)
        inspects = listener.inspects(number)
        done = self.cohort.play(
            [self.model],
            number,
            among=answering,
            statistics=inspects,
            taken=partial(self._show, listener, number) if inspects else None,
        )
        if done.aggregate is not None:
            aggregate, is_step = done.aggregate, self._prototype.traits.rescales
            self._optimiser.step(self.model, aggregate.tensors, aggregate.kind, is_step=is_step)
            _load_buffers(self.model, done.buffers)
        missing = [DroppedClient(client=name_of(index), reason=SILENT) for index in silent]
        refused = [DroppedClient(client=name, reason=reason) for name, reason in done.dropped]
        record = RoundRecord(
            round=number,
            clients=tuple(done.clients),
            dropped=(*missing, *refused),
            bytes_up=done.bytes_up,
            bytes_down=self._download(done.indices) * (len(answering) + len(silent)) + sum(done.heard.values()),
            seconds=time.perf_counter() - start,
            hook_seconds=done.hook_seconds,
        )
        if (number + 1) % config.evaluate_every == 0 or number + 1 == config.rounds:
            measured = asdict(self._measure(done.indices[0] if done.indices else None))
            said = {"epsilon": self._epsilon(done.indices), "remarks": self._remarks(done.indices)}
            record = record.model_copy(update={**measured, **said})
        self.history = self.history.after(record)
        return record

    def _show(self, listener: RoundListener, number: int, answer: Answer) -> None:
        """Show an inspected round's upload as the server reads it."""
        one = answer.assignment
        assert answer.update is not None
        listener.uploaded(
            self.model,
            SeenUpload(
                number,
                one.name,
                self.cohort.see(answer.update),
                one.config,
                self.cohort.examples(one.index),
                one.batches,
                answer.fed,
                answer.bn_statistics,
            ),
        )

    def _download(self, indices: Sequence[int]) -> int:
        """Return the bytes each client is sent: the whole model, unless the defence of who answered says otherwise."""
        stated = self.cohort.defences[indices[0]].report().bytes_down if indices else None
        return self._dense if stated is None else stated

    def _measure(self, client: int | None) -> Measured:
        """Return what the global model is worth, used as that client would where that differs."""
        model = self.model if client is None else self.cohort.defences[client].own_model(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._config.seed, "evaluate"))
            return evaluate(
                model,
                self._test,
                self._normalisation,
                batch_statistics=self._config.bn_mode == "train-nostats",
                loss=self._config.loss,
            )

    def _epsilon(self, indices: Sequence[int]) -> float | None:
        stated = [self.cohort.defences[index].report().epsilon_accounted for index in indices]
        return max((value for value in stated if value is not None), default=None)

    def _remarks(self, indices: Sequence[int]) -> tuple[str, ...]:
        """Return what the defences of these clients say; what not all of them say, with who says it."""
        said: dict[str, list[str]] = {}
        for index in indices:
            for remark in self.cohort.defences[index].report().remarks:
                said.setdefault(remark, []).append(name_of(index))
        return tuple(
            remark if len(names) == len(indices) else f"{', '.join(names)}: {remark}" for remark, names in said.items()
        )

    def _one_by_one(self, workers: int, example: Batch) -> OneByOne:
        """Return what trains clients; one after the other where the first decides for the others (`broadcast`)."""
        at_once = 1 if self._prototype.uses("broadcast") else min(workers, self._sampled)
        pair = example.pick(torch.tensor([0, 0])).inputs  # one image has no batch statistics
        return OneByOne(self.model, at_once, self._normalisation(pair), self.shared)

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
        states = {name_of(index): defence.state_dict() for index, defence in self.cohort.defences.items()}
        parts: dict[str, Tensors] = {
            "model": self.model.state_dict(),
            "server": self._optimiser.state_dict(),
            "defence": self.cohort.server_side.state_dict(),
            **states,
        }
        seen = sorted(self.cohort.defences)
        return Checkpoint(self.identity, {"seen": seen, **self.history.model_dump(mode="json")}, parts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a state."""
        values, parts, like = dict(checkpoint.history), checkpoint.parts, next(self.model.parameters())
        for index in values.pop("seen"):
            self.cohort.defence(index, like.device, like.dtype).load_state_dict(parts.get(name_of(index), {}))
        self.model.load_state_dict(parts["model"])
        self.cohort.server_side.load_state_dict(parts.get("defence", {}))
        self._optimiser.load_state_dict(parts.get("server", {}))
        self.history = History.model_validate(values)


def name_of(index: int) -> str:
    """Return a client's name."""
    return f"client-{index}"


def sampled_for(config: FederationConfig, clients: int, number: int) -> tuple[list[int], list[int]]:
    """Return who of so many clients is sampled for a round and answers, and who is sampled and does not."""
    sampled = sample_clients(clients, config.clients_per_round or clients, config.seed, number)
    silent = [index for index in sampled if drops_out(config.dropout, config.seed, number, index)]
    return [index for index in sampled if index not in silent], silent


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
    held = data if isinstance(data, Dataset) else data.batch()
    return hash_tensors({"inputs": held.inputs, "labels": held.labels})


def _load_buffers(model: nn.Module, buffers: Tensors) -> None:
    own = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            own[name].copy_(value)
