"""A scenario: the federation to be audited, and by whom, as a validated model and a YAML file.

It holds the eight factors of FedLeak's evaluation protocol (Sec. 5: batch size, model, data, stage of training,
initialisation, auxiliary information, local steps, defence) plus what the attacker is given.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedseal.core.config_file import ModelText, PlainName, Texts, read_config, validate_config
from fedseal.core.files import PathText
from fedseal.core.knowledge import CROSS_ENTROPY, BNMode
from fedseal.core.optimiser import Optimiser, OptimiserName
from fedseal.core.ranges import Amount, Count, Seed
from fedseal.metrics.lpips_choice import LpipsChoice


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClientConfig(_Config):
    """How a client computes its update.

    Attributes:
        batch_size: images per local step.
        local_steps: steps per round, each on a batch of its own; 1 uploads the gradient, more upload the weight change.
        local_epochs: passes over these batches; more than 1 upload the weight change.
        learning_rate: of the local steps.
        optimiser: by which they are taken, without memory at the beginning of a round.
        momentum: of `sgd`.
        weight_decay: times the weights, added to each gradient.
        aggregate: clients whose mean update is all the server sees, as under secure aggregation; 1 for none.
        bn_mode: how batch normalisation runs and what the server sees of it.
        examples: images a client holds, of which the attacked round uses some; None for 64 where a defence prepares
            its data as a whole and the data set has as many, else no more than the round uses.
        loss_reduction: over the batch.
        normalise: whether images are normalised by the data set's statistics.
        train_mode: whether dropout and the like are active, as in training.
        dtype: of weights and update.
        partition: spec of the partitioner that deals the private data to a population of which the attacked clients
            are members; without one, each holds random images.
        population: how many clients that deals to.
        member: which of these is attacked, from 0, by batches of its own; None for all in turn, in random order.
    """

    batch_size: int = Field(1, ge=1, le=4096)
    local_steps: int = Field(1, ge=1, le=1000)
    local_epochs: int = Field(1, ge=1, le=1000)
    learning_rate: float = Field(0.1, gt=0)
    optimiser: OptimiserName = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    aggregate: int = Field(1, ge=1, le=1000)
    bn_mode: BNMode = "eval"
    examples: Count | None = None
    loss_reduction: Literal["mean", "sum"] = "mean"
    normalise: bool = False
    train_mode: bool = False
    dtype: Literal["float32", "float64", "float16"] = "float32"
    partition: str | None = None
    population: int = Field(10, ge=1, le=100_000)
    member: Amount | None = None

    @property
    def rule(self) -> Optimiser:
        """By which rule the client steps."""
        return Optimiser(self.optimiser, self.momentum, self.weight_decay)

    @model_validator(mode="after")
    def _some_rule(self) -> Self:
        if self.optimiser == "adam" and self.momentum:
            raise ValueError("momentum is of sgd; adam has moments of its own")
        return self

    @model_validator(mode="after")
    def _some_member(self) -> Self:
        if self.partition is None and self.member is not None:
            raise ValueError("member names a client of a partition; set partition too")
        if self.member is not None and self.member >= self.population:
            raise ValueError(f"member is {self.member}, but the population's {self.population} count from 0")
        return self


class AttackerConfig(_Config):
    """What the attacker is given beyond model and update.

    Attributes:
        labels: `true`, `unknown`, or the rule by which the attacker infers them.
        batch_size, local_steps, learning_rate, normalisation: whether the server knows these; `local_epochs` with the
            steps.
        optimiser: whether it knows by which rule clients step; if not, it takes plain SGD for granted.
        bn_statistics: whether it is given the statistics of the batch, where `bn_mode` has them sent.
        public_data: whether the attacker holds public data of the same kind.
        public_images: how many at most; of the part `public_fraction` sets aside.
        lengths: whether it knows how many tokens each text has; of text only.
        aware: attack each defence by someone who does not know it, who does, or both.
        loss_reduction: what the attacker believes the client's reduction is; None for the truth.
    """

    labels: str = "identity"
    batch_size: bool = True
    local_steps: bool = True
    learning_rate: bool = True
    optimiser: bool = True
    normalisation: bool = True
    bn_statistics: bool = True
    public_data: bool = True
    public_images: Count = 2000
    lengths: bool = True
    aware: Literal["naive", "aware", "both"] = "both"
    loss_reduction: Literal["mean", "sum"] | None = None

    @field_validator("labels", mode="before")
    @classmethod
    def _yaml_true(cls, value: Any) -> Any:
        return "true" if value is True else value  # what YAML makes of an unquoted `true`


class StageConfig(_Config):
    """When in a training the attacked round is played (FedLeak's stage of training).

    The federation is trained up to there, under each defence by itself: its clients hold the scenario's private data
    and train as `client` says. What they send in that round is attacked, with their defences as they then are.

    Attributes:
        round: number of the attacked round, from 0: so many are trained before. With a checkpoint, by default the one
            that comes next.
        clients: how many the private data are dealt to; each one's upload of the round is a target.
        partition: spec of the partitioner.
        clients_per_round: sampled of them for each round; all if None.
        server_learning_rate, server_momentum: on the averaged change.
        checkpoint: directory of a `fedseal train` run, or one of its checkpoint files: its federation is attacked, as
            far as it was trained, or trained on. Then everything but `round` is the training's.
    """

    round: Amount | None = None
    clients: Count = 10
    partition: str = "iid"
    clients_per_round: Count | None = None
    server_learning_rate: float = Field(1.0, gt=0)
    server_momentum: float = Field(0.0, ge=0, lt=1)
    checkpoint: Path | None = None

    @model_validator(mode="after")
    def _some_round(self) -> Self:
        if self.round is None and self.checkpoint is None:
            raise ValueError("give the round that is attacked, or a checkpoint")
        fields = type(self).model_fields
        changed = [n for n in fields if n not in {"round", "checkpoint"} and getattr(self, n) != fields[n].default]
        if self.checkpoint is not None and changed:
            raise ValueError(f"{' and '.join(changed)} is as in the training of the checkpoint; leave it out")
        return self


class AboutConfig(_Config):
    """What is audited and who answers for it, in words; reports print it and nothing depends on it.

    Attributes:
        system: name of the system whose federation this stands for.
        version: of that system.
        scope: what the audit covers, and what it does not.
        responsible: who answers for the audit.
        sign_off: who accepted its result, when, and on which condition.
    """

    system: str = ""
    version: str = ""
    scope: str = ""
    responsible: str = ""
    sign_off: str = ""

    @field_validator("*", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float | date) else value  # what YAML makes of 2.1 or 2026-11-17


class Scenario(_Config):
    """A set-up with the defences and attacks to run on it.

    Example:
        >>> import fedseal
        >>> fedseal.Scenario(data="digits", defences="topk:ratio=0.9", client={"batch_size": 4}).client.batch_size
        4

    Attributes:
        name: for reports.
        about: what is audited and who answers for it; see `AboutConfig`.
        levels: of the factors this scenario is one combination of, in words, by name (`audit.factors`); nothing depends
            on it.
        data: spec of the data set.
        public_fraction: share of the data that is public.
        model: spec of the model, or `package.module:attribute`; or a mapping with its `name` and options.
        loss: that clients minimise: `cross-entropy`, `bce`, `mse`, or `module:attribute` for one's own.
        client: see `ClientConfig`.
        attacker: see `AttackerConfig`.
        defences: specs of defence pipelines (`none`, `topk:ratio=0.8`, `gaussian+topk`).
        attacks: specs of attacks.
        control: the defence that others are compared with: its row never fails a build. By default `none`, unless
            nothing else is audited; `off` for no such row.
        stage: attack a round of a training rather than a first one; see `StageConfig`.
        metrics: specs of further metrics of the reconstructions, kept beside the usual ones.
        lpips: which network measures perceptual distance and ranks by it: `auto` for AlexNet where its weights are,
            `alex` or `vgg` if the audit is to be refused without, `off` for neither.
        readings: of the targets, how many have their uploads read by the ideal attacker under each defence.
        targets: independent batches attacked per cell.
        iterations: optimisation steps per start, or None for each attack's own.
        restarts: random starts, or None for each attack's own.
        seed: determines split, weights, targets, noise and attack.
        weight_seeds: of the initial weights, if they are not to be drawn from `seed`: the same batches are attacked
            under each of them, and intervals are over seeds.
    """

    name: PlainName = "audit"
    about: AboutConfig = AboutConfig()
    levels: dict[str, str] = {}
    data: str = "faces"
    public_fraction: float = Field(0.3, gt=0, lt=1)
    model: ModelText = "lenet:init=wide-uniform"
    loss: str = CROSS_ENTROPY
    client: ClientConfig = ClientConfig()
    attacker: AttackerConfig = AttackerConfig()
    stage: StageConfig | None = None
    defences: Texts = Field(("none",), min_length=1)
    attacks: Texts = Field(("auto",), min_length=1)
    control: str | None = None
    metrics: Texts = ()
    lpips: LpipsChoice = "auto"
    targets: Count = 4
    readings: Amount = 2
    iterations: Count | None = None
    restarts: Count | None = None
    seed: Seed = 0
    weight_seeds: tuple[Seed, ...] = ()

    @field_validator("lpips", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # what YAML makes of a bare off

    @model_validator(mode="after")
    def _weights_differ(self) -> Self:
        if len(set(self.weight_seeds)) != len(self.weight_seeds):
            raise ValueError("weight_seeds must differ from each other")
        if self.weight_seeds and self.stage is not None and self.stage.checkpoint is not None:
            raise ValueError("weight_seeds mean nothing where a checkpoint has the weights; leave them out")
        if self.stage is not None and self.client.local_epochs > 1:
            raise ValueError(
                "client.local_epochs is of first rounds; where a stage is attacked, set client.local_steps"
            )
        if self.stage is not None and self.client.partition is not None:
            raise ValueError("client.partition is of first rounds; where a stage is attacked, set stage.partition")
        return self

    @property
    def weight_seed(self) -> int:
        """The seed of the initial weights, of the first ones if there are several."""
        return self.weight_seeds[0] if self.weight_seeds else self.seed

    def by_weights(self) -> tuple[Scenario, ...]:
        """Return the scenario once for every seed of the weights, under the same name."""
        return tuple(self.model_copy(update={"weight_seeds": (seed,)}) for seed in self.weight_seeds) or (self,)

    @model_validator(mode="after")
    def _known_control(self) -> Self:
        if self.control not in {None, "off", *self.with_control}:
            raise ValueError(f"control is {self.control!r}, which is none of the defences, nor `off`")
        return self

    @property
    def exempt(self) -> str | None:
        """The defence whose row never fails a build; None if every row counts."""
        if self.control is not None:
            return None if self.control == "off" else self.control
        return "none" if set(self.defences) - {"none"} else None

    @property
    def with_control(self) -> tuple[str, ...]:
        """The defences, the undefended control first where it is missing.

        Attacks that do not break the undefended model say nothing about a defence, so every audit has to know.
        """
        return self.defences if "none" in self.defences else ("none", *self.defences)


def load_scenario(path: PathText) -> Scenario:
    """Read a scenario from a YAML file; errors name file, line and key.

    Example:
        >>> import fedseal, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "scenario.yaml")
        >>> _ = path.write_text("targets: 2")
        >>> fedseal.load_scenario(str(path)).targets
        2
    """
    return read_config(path, Scenario, command="audit")


def validate_scenario(values: dict[str, Any], *, source: str) -> Scenario:
    """Validate plain values into a scenario; the error names the key."""
    return validate_config(values, Scenario, source=source, command="audit")
