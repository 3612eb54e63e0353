"""YAML from elsewhere: nothing twice, nothing without end, and every refusal names its line."""

from __future__ import annotations

import tracemalloc

import pytest

from fedseal.audit.scenario import Scenario
from fedseal.core.config_file import parse_config
from fedseal.core.errors import UsageError
from fedseal.core.yaml_text import MOST_VALUES, read_yaml

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_config(text, Scenario, source="mine.yaml", command="audit")
    assert len(str(caught.value)) < 1500
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: faces\ntargets: 2\ndata: digits\n", ("line 3", "'data' is given twice", "line 1")),
        ("client: {batch_size: 1, batch_size: 2}\n", ("line 1", "'batch_size' is given twice")),
        ("name: 2001-02-30\n", ("line 1", "'2001-02-30'", "timestamp")),
        ("data: faces\ntargets: " + "9" * 5000 + "\n", ("line 2", "cannot be read as int")),
        ("targets: !!int ''\n", ("line 1", "cannot be read as int")),
        ("targets: !!float abc\n", ("line 1", "float")),
        ("targets: !!python/object/apply:os.system ['true']\n", ("line 1",)),
        ("targets: !!binary '***'\n", ("line 1",)),
        ("data: " + "[" * 1000 + "]" * 1000 + "\n", ("nested more than",)),
        ("data: " + "[{" * 100_000, ("nested more than",)),
        ("a: &a [*a]\n", ("line 1", "holds itself")),
        ("client: {learning_rate: 0}\n", ("client.learning_rate", "greater than 0")),
        ("client: {learning_rate: .nan}\n", ("client.learning_rate",)),
        ("client: {learning_rate: .inf}\n", ("client.learning_rate", "finite")),
        ("public_fraction: .nan\n", ("public_fraction",)),
        ("seed: 99999999999999999999\n", ("seed",)),
        ("model: {width: 3}\n", ("model", "`name`")),
        ("model: {name: lenet, options: {a: 1}}\n", ("model", "single values")),
        (
            "name: my audit\n",
            (
                "line 1",
                "key 'name' cannot be 'my audit': a name is made of letters",
            ),
        ),
        ("- data\n", ("does not hold a mapping",)),
        ("1: faces\n", ("'1'",)),
        ("? [a, b]\n: 1\n", ("line 1",)),
    ],
)
def test_what_yaml_can_get_wrong(text: str, says: tuple[str, ...]) -> None:
    message = refused(text)
    for part in says:
        assert part in message


def test_several_wrong_keys_are_told_at_once() -> None:
    message = refused("dataa: faces\nclient: {batch_sise: 1, learning_rate: -1}\ntargets: few\n")
    for part in ("'dataa'", "line 1", "'client.batch_sise'", "line 2", "'client.learning_rate'", "'targets'", "line 3"):
        assert part in message
    assert "Did you mean 'data'" in message


def test_many_wrong_keys_are_counted() -> None:
    assert "and 15 more" in refused("".join(f"wrong{number}: 1\n" for number in range(20)))


def test_aliases_that_grow_are_refused_before_they_take_memory() -> None:
    tracemalloc.start()
    message = refused(BOMB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"more than {MOST_VALUES} values" in message
    assert peak < 50 << 20


def test_plain_aliases_still_work() -> None:
    _, values = read_yaml("a: &x {b: 1}\nc: *x\n", "mine")
    assert values == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_model_may_be_a_mapping_of_its_name_and_options() -> None:
    text = "model: {name: my.nets:Net, width: 32, checkpoint: 'a, b & c.safetensors', stages: [1, 2]}\n"
    model = parse_config(text, Scenario, source="mine.yaml", command="audit").model
    assert model == "my.nets:Net?width=32&checkpoint=a, b %26 c.safetensors&stages=[1, 2]"
