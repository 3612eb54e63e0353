"""A training scenario: a federation to be trained once undefended and once under each defence, per seed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedseal.core.config_file import PlainName, Seeds, Texts, read_config, validate_config
from fedseal.core.files import PathText
from fedseal.core.ranges import Count
from fedseal.federation.simulation.config import FederationConfig


class TrainingScenario(BaseModel):
    """A federation with the defences to compare on it.

    Example:
        >>> import fedseal
        >>> fedseal.TrainingScenario(defences="topk:ratio=0.9").defences  # the undefended twin is always there
        ('none', 'topk:ratio=0.9')

    Attributes:
        name: for reports.
        data: spec of the data set.
        test: spec of the test set; None takes the data set's own (`split=test`) where it has one, and holds out
            `test_fraction` of the data where it has not.
        test_fraction: see `test`.
        images: train on so many images drawn at random; None for all.
        normalise: whether images are normalised by the data set's statistics.
        model: spec of the model, or `package.module:attribute`.
        clients: how many.
        partition: spec of the partitioner (`iid`, `dirichlet:alpha=0.5`, `classes:per_client=2`, `file:PATH`).
        federation: how they train; its seed is that of the run.
        defences: specs of pipelines; `none`, the undefended twin, is always trained too.
        seeds: independent repetitions: each determines weights, partition, sampling, batches and noise.
        target_accuracy: of which the rounds to reach it are reported; None for 90 % of the undefended twin's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PlainName = "training"
    data: str = "digits"
    test: str | None = None
    test_fraction: float = Field(0.2, gt=0, lt=1)
    images: Count | None = None
    normalise: bool = True
    model: str = "lenet-relu"
    clients: Count = 10
    partition: str = "iid"
    federation: FederationConfig = FederationConfig()
    defences: Texts = ("none",)
    seeds: Seeds = Field((0,), min_length=1)
    target_accuracy: float | None = Field(None, gt=0, le=1)

    @field_validator("defences")
    @classmethod
    def _twin_first(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("none", *value)))


def load_training(path: PathText) -> TrainingScenario:
    """Read a training scenario from a YAML file; errors name file, line and key."""
    return read_config(path, TrainingScenario, command="train")


def validate_training(values: dict[str, Any], *, source: str) -> TrainingScenario:
    """Validate plain values into a training scenario; the error names the key."""
    return validate_config(values, TrainingScenario, source=source, command="train")
