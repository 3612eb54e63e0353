"""Attacking a round of a training that really ran: the federation at that round, under each defence by itself.

The training is the simulation's (`federation.simulation`), from the scenario's own federation or from where a run of
`fedseal train` left off. Its state at the round is kept in a file, so that it is trained once per defence and goes on
after a kill. A target is what one client of the round sends, or the mean of several: the very batches, the very noise
and the very state of their defences that the training would have had in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.audit.exchange import TargetRound
from fedseal.audit.scenario import Scenario, StageConfig
from fedseal.core.batch import Batch, Normalisation, joined
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import write_atomically
from fedseal.core.identity import file_content, identity_of
from fedseal.core.sources import code_digest
from fedseal.data.dataset import Dataset
from fedseal.data.partition import partition
from fedseal.defences.pipeline import build_defence
from fedseal.federation.checkpoint import load_checkpoint, rounds_behind
from fedseal.federation.client import RoundConfig
from fedseal.federation.cohort.one_by_one import InTurn
from fedseal.federation.sampling import local_indices
from fedseal.federation.simulation import Federation, FederationConfig, RoundListener
from fedseal.federation.simulation.loop import sampled_for
from fedseal.store.database import Store
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import build_federation


@dataclass(frozen=True)
class Ground:
    """The federation that is trained.

    Attributes:
        model: its initial global model.
        places: of each client's images in the private data.
        clients: their data.
        test: what the global model is measured on; no client holds it.
        normalisation: between images and model.
        configure: returns how it trains under a defence.
        trained: returns where a training under a defence, by its spec, left off; None where there is none.
    """

    model: nn.Module
    places: tuple[Tensor, ...]
    clients: list[Dataset]
    test: Batch
    normalisation: Normalisation
    configure: Callable[[Defence], FederationConfig]
    trained: Callable[[str], Path] | None = None


@dataclass
class Staging:
    """Trains a scenario's federation up to the attacked round, once per defence.

    Args:
        stage: which round.
        ground: what is trained.
        shape_of: returns how much data is behind an update of an audit under a defence.
        directory: where trained states are kept; in memory only, if None.
    """

    stage: StageConfig
    ground: Ground
    shape_of: Callable[[Defence], RoundShape]
    directory: Path | None = None
    _ready: dict[str, tuple[Federation, int]] = field(default_factory=dict)

    def federation(
        self, defence: Defence, spec: str, *, listener: RoundListener | None = None, workers: int = 1
    ) -> tuple[Federation, int]:
        """Return the federation before the attacked round, and that round's number.

        Args:
            defence: fresh; not changed.
            spec: its own, which names what is kept.
            listener: told of the rounds that are trained.
            workers: clients trained at once.
        """
        if spec not in self._ready:
            self._ready[spec] = self._train(defence, spec, listener, workers)
        return self._ready[spec]

    def has(self, spec: str) -> bool:
        """Return whether the training under a defence is there already."""
        return spec in self._ready

    def describe(self) -> str:
        """Return in words which round is attacked."""
        of = "the scenario's own federation" if self.ground.trained is None else str(self.stage.checkpoint)
        which = "the one after the checkpoint" if self.stage.round is None else f"{self.stage.round}, from 0"
        return f"{which}, of a training of {of} under each defence"

    def identity(self, spec: str) -> Any:
        """Return what determines a training beside scenario, data, model and defence: where it starts and ends."""
        start = None if self.ground.trained is None else file_content(self.ground.trained(spec))
        settings = self.stage.model_dump(mode="json", exclude={"checkpoint"})
        return {"stage": settings, "start": start, "code": code_digest(["fedseal.audit.stage"])}

    def model(self, defence: Defence, spec: str) -> nn.Module:
        """Return the global model before the attacked round."""
        return self.federation(defence, spec)[0].model

    def target(self, defence: Defence, spec: str, target: int) -> TargetRound:
        """Return the attacked round of one target."""
        federation, number = self.federation(defence, spec)
        answering = self._answering(defence, number)
        clients = _group(answering, self.shape_of(defence).clients, target, number)
        cohort = federation.cohort.branch(number, InTurn(federation.shared))
        like = next(federation.model.parameters())
        for client in clients:
            cohort.defence(client, like.device, like.dtype)
        batches = [batch for c in clients for batch in cohort.batches(c, number, like, prepared=False)]
        wanted = self.shape_of(defence)
        if any(len(batch) != wanted.batch_size for batch in batches):
            raise InputError(
                f"a client of target {target} has a batch of {min(map(len, batches))} images in round {number}, not of "
                f"{wanted.batch_size}.",
                hint="Every client needs local steps x batch size images: use fewer clients or smaller batches.",
            )
        config = cohort.config(clients[0])
        shape = RoundShape(wanted.batch_size, config.local_steps, len(clients))
        among = tuple(answering) if defence.uses("broadcast") else clients
        return TargetRound(cohort, clients, among, number, joined(batches), shape, config)

    def attacked(self, specs: Sequence[str]) -> Tensor:
        """Return the places of all private images that are used in the round under some defence."""
        found: set[int] = set()
        for spec in specs:
            defence = build_defence(spec)
            number, config = self._number(spec), self.ground.configure(defence)
            answering = self._answering(defence, number)
            for client in answering:
                own = self.ground.places[client]
                shape = defence.reshape(config.shape(len(own), len(answering)))
                steps = local_indices(len(own), shape.batch_size, shape.local_steps, config.seed, number, client)
                found.update(own[torch.cat(steps)].tolist())
        return torch.tensor(sorted(found), dtype=torch.int64)

    def _number(self, spec: str) -> int:
        """Return the number of the attacked round; refuse one that a checkpoint has behind it."""
        if self.ground.trained is None:
            return self.stage.round or 0
        begun = rounds_behind(self.ground.trained(spec))
        number = begun if self.stage.round is None else self.stage.round
        if begun > number:
            raise UsageError(
                f"round {number} cannot be attacked: the checkpoint has {begun} rounds behind it.",
                hint=f"Attack round {begun} or a later one, or leave `checkpoint` out to train anew.",
            )
        return number

    def _answering(self, defence: Defence, number: int) -> list[int]:
        return sampled_for(self.ground.configure(defence), len(self.ground.clients), number)[0]

    def _untrained(self, defence: Defence, workers: int = 1) -> Federation:
        ground = self.ground
        return Federation(
            ground.configure(defence),
            ground.model,
            ground.clients,
            ground.test,
            defence,
            normalisation=ground.normalisation,
            workers=workers,
        )

    def _train(
        self, defence: Defence, spec: str, listener: RoundListener | None, workers: int
    ) -> tuple[Federation, int]:
        number, federation = self._number(spec), self._untrained(defence, workers)
        path = None
        if self.directory is not None:
            name = identity_of(federation=federation.identity, round=number)
            path = self.directory / f"{name}.safetensors"
        if self.ground.trained is not None:
            start = self.ground.trained(spec)
            if path is None:
                federation.restore(load_checkpoint(start, federation.identity))
            elif not path.exists():
                write_atomically(path, start.read_bytes())  # a training's own file is never written to
        federation.run(number, listener=listener, checkpoint=path)
        return federation, number


def scenario_ground(scenario: Scenario, private: Dataset, model: nn.Module, test: Batch, config: RoundConfig) -> Ground:
    """Return the federation a scenario describes: its private data dealt to clients who train as its client does."""
    stage, client = scenario.stage, scenario.client
    assert stage is not None
    dealt = partition(private, stage.partition, stage.clients, scenario.seed)

    def configure(defence: Defence) -> FederationConfig:
        several = defence.reshape(RoundShape(client.batch_size, client.local_steps)).local_steps > 1
        return FederationConfig(
            algorithm="fedavg" if several else "fedsgd",
            rounds=max(1, stage.round or 0),
            clients_per_round=stage.clients_per_round,
            local_steps=client.local_steps,
            batch_size=client.batch_size,
            learning_rate=client.learning_rate,
            **({"optimiser": client.optimiser, "weight_decay": client.weight_decay} if several else {}),
            momentum=client.momentum,
            server_learning_rate=stage.server_learning_rate,
            server_momentum=stage.server_momentum,
            weighting="uniform" if defence.traits.masks_upload else "examples",
            evaluate_every=max(1, stage.round or 0),
            bn_mode=client.bn_mode,
            train_mode=client.train_mode,
            loss=scenario.loss,
            loss_reduction=client.loss_reduction,
            vectorise="never",
            seed=scenario.seed,
        )

    return Ground(model, dealt.indices, dealt.datasets(private), test, config.normalisation, configure)


def trained_ground(scenario: Scenario, *, data_root: Path | None, device: str) -> tuple[Ground, Dataset, RoundConfig]:
    """Return the federation of a `fedseal train` run, its clients' data together, and how a client trains there."""
    assert scenario.stage is not None
    assert scenario.stage.checkpoint is not None
    path = scenario.stage.checkpoint.expanduser()
    directory = path if path.is_dir() else path.parent.parent
    with Store(directory, writable=False) as store:
        meta = store.meta()
    if "training_scenario" not in meta:
        raise UsageError(f"{directory} holds no training.", hint="Give the --out directory of `fedseal train`.")
    training = TrainingScenario.model_validate(meta["training_scenario"])
    federation = build_federation(training, scenario.seed, data_root=data_root, device=device)
    keys = {defence: key for defence, seed, key in meta["trainings"] if seed == scenario.seed}
    if not keys:
        seeds = sorted({str(seed) for _, seed, _ in meta["trainings"]})
        raise UsageError(f"{directory} was not trained with seed {scenario.seed}.", hint=f"Set seed: {seeds[0]}.")

    def trained(spec: str) -> Path:
        found = directory / "checkpoints" / f"{keys.get(spec, '')}.safetensors"
        if spec not in keys or not found.is_file() or (not path.is_dir() and found.name != path.name):
            raise InputError(
                f"{path} holds no checkpoint of a training under {spec!r}.",
                hint=f"Train it first, or audit only {', '.join(keys)}.",
            )
        return found

    shape = federation.config.shape(min(map(len, federation.clients)), 1)
    config = federation.config.round_config(shape.local_steps, federation.normalisation)
    _check_agreement(scenario, training, shape, config)
    ground = Ground(
        federation.model,
        federation.partition.indices,
        federation.clients,
        federation.test,
        federation.normalisation,
        lambda defence: federation.config,
        trained,
    )
    return ground, federation.train, config


def _group(answering: Sequence[int], size: int, target: int, number: int) -> tuple[int, ...]:
    clients = tuple(answering[target * size : (target + 1) * size])
    if len(clients) < size:
        raise InputError(
            f"round {number} has {len(answering)} clients, too few for target {target} of {size}.",
            hint="Lower `targets`, or raise `stage.clients` or `stage.clients_per_round`.",
        )
    return clients


def _check_agreement(scenario: Scenario, training: TrainingScenario, shape: RoundShape, config: RoundConfig) -> None:
    """Refuse a scenario that says otherwise than the training whose checkpoint it attacks."""
    client = scenario.client
    for key, said, trained in (
        ("data", scenario.data, training.data),
        ("model", scenario.model, training.model),
        ("client.batch_size", client.batch_size, shape.batch_size),
        ("client.local_steps", client.local_steps, shape.local_steps),
        ("client.learning_rate", client.learning_rate, config.learning_rate),
        ("client.optimiser", client.optimiser, config.optimiser),
        ("client.momentum", client.momentum, config.momentum),
        ("client.weight_decay", client.weight_decay, config.weight_decay),
        ("client.bn_mode", client.bn_mode, config.bn_mode),
        ("client.train_mode", client.train_mode, config.train_mode),
        ("loss", scenario.loss, config.loss),
        ("client.loss_reduction", client.loss_reduction, config.loss_reduction),
        ("client.normalise", client.normalise, training.normalise),
        ("client.dtype", client.dtype, "float32"),
    ):
        if said != trained:
            raise UsageError(
                f"the checkpoint was trained with {key}: {trained}, the scenario says {said}.",
                hint="An attack on a training takes its clients as they are: set the key alike.",
            )
