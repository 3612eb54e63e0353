"""Options of registered entries and numbers in scenarios, by declared ranges: what is outside is refused in words."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fedseal.attacks.labels import LABEL_RULES
from fedseal.audit.scenario import Scenario
from fedseal.core.attack import ATTACKS
from fedseal.core.config_file import validate_config
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import FedsealError, UsageError
from fedseal.core.ranges import bounds
from fedseal.core.registry import Registry, Spec
from fedseal.data.partition.core import PARTITIONERS
from fedseal.data.registry import DATASETS
from fedseal.metrics.registry import METRICS
from fedseal.models.registry import MODELS
from fedseal.tradeoff.scenario import TradeoffScenario
from fedseal.training.scenario import TrainingScenario

REGISTRIES: dict[str, Registry[Any]] = {
    "attack": ATTACKS,
    "defence": DEFENCES,
    "model": MODELS,
    "data": DATASETS,
    "partition": PARTITIONERS,
    "label rule": LABEL_RULES,
    "metric": METRICS,
}
BUILT = {"attack", "defence", "partition", "metric", "label rule"}
"""Kinds that cost nothing to build; of others the options are read."""
SUPPLIED = {"input_shape", "num_classes", "data_root"}


def options() -> list[tuple[str, str, str]]:
    found = []
    for kind, registry in REGISTRIES.items():
        for name in registry.names():
            entry = registry.entry(name)
            if entry.origin == "fedseal":
                found += [(kind, name, key) for key in entry.parameters if key not in SUPPLIED]
    return found


NUMBERS = [
    one for one in options() if bounds(REGISTRIES[one[0]].entry(one[1]).parameters[one[2]].annotation) is not None
]


def resolved(kind: str, name: str, key: str, value: Any) -> Any:
    return REGISTRIES[kind].resolve(Spec(name, {key: str(value)}))[key]


def test_there_are_numbers_to_be_tested_in_every_kind_that_has_some() -> None:
    assert {kind for kind, _, _ in NUMBERS} >= {"attack", "defence", "model", "data", "partition"}
    assert len(NUMBERS) > 100


@pytest.mark.parametrize(("kind", "name", "key"), NUMBERS)
def test_a_number_outside_of_its_range_is_refused(kind: str, name: str, key: str) -> None:
    low, high = bounds(REGISTRIES[kind].entry(name).parameters[key].annotation) or (None, None)
    assert low is not None, f"{name}:{key} declares no lower bound"
    edge = low.gt if isinstance(low, Gt) else low.ge
    outside: list[Any] = ["nan", "-inf", "-1e400", edge - 1, *([edge] if isinstance(low, Gt) else [])]  # type: ignore[operator]
    if high is not None:
        outside += [2 * high.le + 1, "inf"]  # type: ignore[operator]
    for value in outside:
        with pytest.raises(UsageError, match=f"option '{key}'"):
            resolved(kind, name, key, value)
    default = REGISTRIES[kind].entry(name).parameters[key].default
    if isinstance(default, int | float) and default is not inspect.Parameter.empty:
        assert resolved(kind, name, key, default) == default


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    which=st.sampled_from(options()),
    text=st.one_of(
        st.integers().map(str),
        st.floats().map(str),
        st.sampled_from(["", "none", "true", "[]", "0x10", "1e999", "-0.0", "9" * 5000, "NaN", "\x00", "💥", "../.."]),
        st.text(max_size=20),
    ),
)
def test_whatever_is_written_for_an_option_is_taken_or_refused_in_words(which: tuple[str, str, str], text: str) -> None:
    kind, name, key = which
    message = "taken"
    try:
        (REGISTRIES[kind].build if kind in BUILT else REGISTRIES[kind].resolve)(Spec(name, {key: text}))
    except FedsealError as error:
        message = str(error)
    assert 0 < len(message) < 2000


def test_ranges_are_inclusive_where_they_say_so() -> None:
    assert resolved("attack", "ig", "tv", 0) == 0
    assert resolved("attack", "fishing", "target", -1) == -1
    assert isinstance(bounds(ATTACKS.entry("ig").parameters["lr"].annotation)[0], Gt)  # type: ignore[index]
    assert isinstance(bounds(ATTACKS.entry("ig").parameters["tv"].annotation)[0], Ge)  # type: ignore[index]


# The numbers in scenario files


def numbers(model: type[BaseModel], within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any], bool]]:
    """Yield keys, declared bounds, and whether the value is a list of such numbers."""
    for key, field in model.model_fields.items():
        parts = (field.annotation, *typing.get_args(field.annotation))
        for part in parts:
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from numbers(part, (*within, key))
        if {int, float} & set(parts):
            yield (*within, key), field.metadata, False
        for part in parts:
            if typing.get_origin(part) is typing.Annotated:
                yield (*within, key), list(part.__metadata__), typing.get_origin(field.annotation) is tuple


SCENARIOS = [(model, *one) for model in (Scenario, TrainingScenario, TradeoffScenario) for one in numbers(model)]


def test_scenarios_have_numbers_at_every_depth() -> None:
    found = {(model.__name__, ".".join(keys)) for model, keys, _, _ in SCENARIOS}
    expected = {
        "Scenario client.learning_rate",
        "Scenario stage.round",
        "Scenario weight_seeds",
        "TrainingScenario seeds",
    }
    assert {tuple(one.split()) for one in expected} < found
    assert len(found) > 50


@pytest.mark.parametrize(("model", "keys", "marks", "many"), SCENARIOS, ids=lambda one: getattr(one, "__name__", None))
def test_a_number_outside_of_its_range_is_refused_in_a_scenario(
    model: type[BaseModel], keys: tuple[str, ...], marks: list[Any], many: bool
) -> None:
    low = next(mark.gt if isinstance(mark, Gt) else mark.ge - 1 for mark in marks if isinstance(mark, Gt | Ge))
    high = [mark.lt if isinstance(mark, Lt) else mark.le + 1 for mark in marks if isinstance(mark, Lt | Le)]
    for value in (low, *high, float("nan"), float("inf"), 10**400, "many", {"a": 1}):
        values: Any = [value] if many else value
        for key in reversed(keys):
            values = {key: values}
        with pytest.raises(FedsealError, match=keys[-1]) as refused:
            validate_config(values, model, source="scenario.yaml", command="audit")
        assert len(str(refused.value)) < 1000
