"""A trade-off scenario: one federation, trained and attacked under sweeps of defences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedseal.audit.scenario import AttackerConfig, ClientConfig, Scenario
from fedseal.core.config_file import PlainName, Texts, read_config, validate_config
from fedseal.core.files import PathText
from fedseal.core.ranges import Amount, Count, Seed
from fedseal.federation.simulation.config import FederationConfig
from fedseal.tradeoff.sweeps import Sweep, parse_sweep
from fedseal.training.scenario import TrainingScenario


class TradeoffScenario(BaseModel):
    """A federation and the sweeps to draw.

    Example:
        >>> import fedseal
        >>> fedseal.TradeoffScenario(defences="topk:ratio=0.5/0.9").specs
        ('none', 'topk:ratio=0.5', 'topk:ratio=0.9')

    Attributes:
        name: for reports.
        data: spec of the data set.
        images: train on so many images drawn at random; None for all.
        normalise: whether images are normalised by the data set's statistics, in training and under attack.
        model: spec of the trained model.
        attacked_model: spec of the model whose update is attacked; None for the trained one. Fresh networks leak most,
            and an initialisation that leaks well (`lenet:init=wide-uniform`) may not train.
        clients, partition, federation: how it is trained.
        client: how the attacked client computes its update; its batch may be smaller than in training.
        attacker: what the attacker is given.
        public_fraction: share of the data that is the attacker's.
        defences: sweeps (`sweeps`).
        attacks: specs of attacks.
        targets: attacked batches per point.
        readings: of these, how many have their uploads read, by which alone a point is low.
        iterations: of each attack; None for its own.
        seed: of the attack and of the first training.
        seeds: number of trainings per point, with consecutive seeds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PlainName = "tradeoff"
    data: str = "digits"
    images: Count | None = None
    normalise: bool = False
    model: str = "lenet-relu"
    attacked_model: str | None = None
    clients: Count = 10
    partition: str = "iid"
    federation: FederationConfig = FederationConfig()
    client: ClientConfig = ClientConfig()
    attacker: AttackerConfig = AttackerConfig()
    public_fraction: float = Field(0.3, gt=0, lt=1)
    defences: Texts = Field(("gaussian", "topk"), min_length=1)
    attacks: Texts = Field(("ig",), min_length=1)
    targets: Count = 4
    readings: Amount = 0
    iterations: Count | None = None
    seed: Seed = 0
    seeds: Count = 1

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The curves, `none` left out: it is a point of its own."""
        return tuple(parse_sweep(text) for text in self.defences if text != "none")

    @property
    def specs(self) -> tuple[str, ...]:
        """Every defence to be trained and attacked, undefended first."""
        return tuple(dict.fromkeys(("none", *(spec for sweep in self.sweeps for spec in sweep.defences))))

    def training(self, specs: Sequence[str] | None = None) -> TrainingScenario:
        """Return what is to be trained: all of the sweeps, or these defences."""
        return TrainingScenario(
            name=self.name,
            data=self.data,
            images=self.images,
            normalise=self.normalise,
            model=self.model,
            clients=self.clients,
            partition=self.partition,
            federation=self.federation,
            defences=self.specs if specs is None else tuple(specs),
            seeds=tuple(range(self.seed, self.seed + self.seeds)),
        )

    def audit(self, specs: Sequence[str] | None = None, *, readings: int | None = None) -> Scenario:
        """Return what is to be attacked: all of the sweeps, or these defences, with `readings` uploads of each read."""
        return Scenario(
            name=self.name,
            data=self.data,
            public_fraction=self.public_fraction,
            model=self.attacked_model or self.model,
            client=self.client.model_copy(update={"normalise": self.normalise}),
            attacker=self.attacker,
            defences=self.specs if specs is None else tuple(specs),
            attacks=self.attacks,
            targets=self.targets,
            readings=self.readings if readings is None else readings,
            iterations=self.iterations,
            seed=self.seed,
        )


def load_tradeoff(path: PathText) -> TradeoffScenario:
    """Read a trade-off scenario from a YAML file; errors name file, line and key."""
    return read_config(path, TradeoffScenario, command="tradeoff")


def validate_tradeoff(values: dict[str, Any], *, source: str) -> TradeoffScenario:
    """Validate plain values into a trade-off scenario; the error names the key."""
    return validate_config(values, TradeoffScenario, source=source, command="tradeoff")
