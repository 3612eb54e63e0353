"""A scenario: the federation to be audited, and by whom, as a validated model and a YAML file.

It holds the eight factors of FedLeak's evaluation protocol (Sec. 5: batch size, model, data, stage of training,
initialisation, auxiliary information, local steps, defence) plus what the attacker is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedseal.core.errors import InputError, UsageError
from fedseal.core.knowledge import BNMode
from fedseal.core.registry import near_matches


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClientConfig(_Config):
    """How a client computes its update.

    Attributes:
        batch_size: images per local step.
        local_steps: SGD steps per round; 1 uploads the gradient, more upload the weight change.
        learning_rate: of the local steps.
        aggregate: clients whose mean update is all the server sees, as under secure aggregation; 1 for none.
        bn_mode: how batch normalisation runs and what the server sees of it.
        loss_reduction: over the batch.
        normalise: whether images are normalised by the data set's statistics.
        train_mode: whether dropout and the like are active, as in training.
        dtype: of weights and update.
    """

    batch_size: int = Field(1, ge=1, le=4096)
    local_steps: int = Field(1, ge=1, le=1000)
    learning_rate: float = Field(0.1, gt=0)
    aggregate: int = Field(1, ge=1, le=1000)
    bn_mode: BNMode = "eval"
    loss_reduction: Literal["mean", "sum"] = "mean"
    normalise: bool = False
    train_mode: bool = False
    dtype: Literal["float32", "float64", "float16"] = "float32"


class AttackerConfig(_Config):
    """What the attacker is given beyond model and update.

    Attributes:
        labels: `true`, `unknown`, or the rule by which the attacker infers them.
        batch_size, local_steps, learning_rate, normalisation: whether the server knows these.
        public_data: whether the attacker holds public data of the same kind.
        aware: attack each defence by someone who does not know it, who does, or both.
        loss_reduction: what the attacker believes the client's reduction is; None for the truth.
    """

    labels: str = "identity"
    batch_size: bool = True
    local_steps: bool = True
    learning_rate: bool = True
    normalisation: bool = True
    public_data: bool = True
    aware: Literal["naive", "aware", "both"] = "both"
    loss_reduction: Literal["mean", "sum"] | None = None

    @field_validator("labels", mode="before")
    @classmethod
    def _yaml_true(cls, value: Any) -> Any:
        return "true" if value is True else value  # what YAML makes of an unquoted `true`


class Scenario(_Config):
    """A set-up with the defences and attacks to run on it.

    Attributes:
        name: for reports.
        data: spec of the data set.
        public_fraction: share of the data that is public.
        model: spec of the model, or `package.module:attribute`.
        client: see `ClientConfig`.
        attacker: see `AttackerConfig`.
        defences: specs of defence pipelines (`none`, `topk:ratio=0.8`, `gaussian+topk`).
        attacks: specs of attacks.
        targets: independent batches attacked per cell.
        iterations: optimisation steps per start, or None for each attack's own.
        restarts: random starts, or None for each attack's own.
        seed: determines split, weights, targets, noise and attack.
    """

    name: str = "audit"
    data: str = "faces"
    public_fraction: float = Field(0.3, gt=0, lt=1)
    model: str = "lenet:init=wide-uniform"
    client: ClientConfig = ClientConfig()
    attacker: AttackerConfig = AttackerConfig()
    defences: tuple[str, ...] = Field(("none",), min_length=1)
    attacks: tuple[str, ...] = Field(("ig",), min_length=1)
    targets: int = Field(4, ge=1)
    iterations: int | None = Field(None, ge=1)
    restarts: int | None = Field(None, ge=1)
    seed: int = 0

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not value or not all(c.isalnum() or c in "-_." for c in value):
            raise ValueError("a name is made of letters, digits, '-', '_' and '.'")
        return value

    @field_validator("defences", "attacks", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a YAML file; errors name file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no scenario file {path}.", hint="Run `fedseal audit` alone for the preset."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the scenario {path}: {error}.", hint="It must be a UTF-8 YAML file.") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            f"{path}, line {line}: {error.problem or error.context}.", hint="Check indentation, colons and quotes."
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{path}, line {line}: {error.reason}.", hint="Remove the character.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} does not hold a mapping.", hint="Start with a line such as `data: faces`.")
    return validate_scenario(values, source=str(path), node=node)


def validate_scenario(values: dict[str, Any], *, source: str, node: yaml.Node | None = None) -> Scenario:
    """Validate plain values into a scenario; the error names the key, and the line where there is one."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path = [part for part in first["loc"] if part != "__root__"]
        key = ".".join(map(str, path))
        line = _line_of(node, path)
        where = f"{source}, line {line}" if line else source
        if first["type"] == "extra_forbidden":
            raise UsageError(
                f"{where}: there is no key {key!r}.", hint=near_matches(str(path[-1]), list(_known_keys(path)))
            ) from error
        raise UsageError(
            f"{where}: key {key!r} cannot be {first['input']!r}: {_sentence(first['msg'])}.",
            hint="`fedseal audit --help` and docs/scenario.md describe the keys.",
        ) from error


def _sentence(message: str) -> str:
    return message[0].lower() + message[1:].removeprefix("alue error, ") if message else message


def _known_keys(path: list[Any]) -> Iterator[str]:
    model: type[BaseModel] = Scenario
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    yield from model.model_fields


def _line_of(node: yaml.Node | None, path: list[Any]) -> int | None:
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                return line
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line
