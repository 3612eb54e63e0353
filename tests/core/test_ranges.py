"""Every option of every registered entry by its declared range: outside is one clear line, inside never a traceback."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from annotated_types import Ge, Gt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedseal.attacks.labels import LABEL_RULES
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import FedsealError, UsageError
from fedseal.core.ranges import bounds
from fedseal.core.registry import Registry, Spec
from fedseal.data.partition.core import PARTITIONERS
from fedseal.data.registry import DATASETS
from fedseal.metrics.registry import METRICS
from fedseal.models.registry import MODELS

REGISTRIES: dict[str, Registry[Any]] = {
    "attack": ATTACKS,
    "defence": DEFENCES,
    "model": MODELS,
    "data": DATASETS,
    "partition": PARTITIONERS,
    "label rule": LABEL_RULES,
    "metric": METRICS,
}
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
    which=st.sampled_from([one for one in options() if one[0] in {"attack", "defence", "partition", "metric"}]),
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
        REGISTRIES[kind].build(Spec(name, {key: text}))
    except FedsealError as error:
        message = str(error)
    assert 0 < len(message) < 2000


def test_ranges_are_inclusive_where_they_say_so() -> None:
    assert resolved("attack", "ig", "tv", 0) == 0
    assert resolved("attack", "fishing", "target", -1) == -1
    assert isinstance(bounds(ATTACKS.entry("ig").parameters["lr"].annotation)[0], Gt)  # type: ignore[index]
    assert isinstance(bounds(ATTACKS.entry("ig").parameters["tv"].annotation)[0], Ge)  # type: ignore[index]
