"""The registry: clashes, near matches, coercion and the text form of specs."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseal.core.errors import UsageError
from fedseal.core.registry import Info, Registry, Spec, near_matches, parse_spec
from fedseal.core.specs import without_directories

NAMES = st.text(string.ascii_lowercase + string.digits + "-", min_size=1)
KEYS = st.text(string.ascii_lowercase + string.digits + "_", min_size=1)
VALUES = st.text(string.ascii_letters + string.digits + "_-+./=:", min_size=1)
ARGUMENTS = st.text(string.ascii_letters + string.digits + "_-+./: ,", min_size=1)


def registry() -> Registry[object]:
    made: Registry[object] = Registry("thing", "fedseal.engines")  # a package that registers nothing

    @made.register("widget", Info("a thing with options"))
    def widget(
        size: int = 3,
        rate: float = 0.5,
        fast: bool = False,
        kind: Literal["round", "square"] = "round",
        path: Path | None = None,
    ) -> object:
        return (size, rate, fast, kind, path)

    @made.register("reader", Info("a thing with an argument"))
    def reader(path: Path, size: int = 1) -> object:
        return (path, size)

    @made.register("bare", Info("a thing without options"))
    def bare() -> object:
        return "bare"

    return made


def error_of(spec: str, **extra: object) -> str:
    with pytest.raises(UsageError) as caught:
        registry().build(spec, **extra)
    return str(caught.value)


@given(NAMES, st.dictionaries(KEYS, VALUES, min_size=1))
def test_a_spec_with_options_survives_its_text_form(name: str, options: dict[str, str]):
    spec = Spec(name, options)
    assert parse_spec(str(spec)) == spec


@given(NAMES, ARGUMENTS.filter(lambda text: text.strip() == text))
def test_a_spec_with_an_argument_survives_its_text_form(name: str, argument: str):
    assert parse_spec(str(Spec(name, argument=argument))) == Spec(name, argument=argument)


@given(NAMES)
def test_a_bare_spec_survives_its_text_form(name: str):
    assert parse_spec(str(Spec(name))) == Spec(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names nothing"),
        (":ratio=1", "names nothing"),
        ("topk:", "ends in a colon"),
        ("topk:ratio=", "not key=value"),
        ("topk:ratio=1,", "not key=value"),
        ("topk:ratio=1,fast", "'fast'"),
        ("topk:ratio=1,ratio=2", "given twice"),
    ],
)
def test_malformed_specs_are_refused_with_what_to_write(text: str, says: str):
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("npz:path=/home/me/set.npz,size=16", "npz:path=set.npz,size=16"),
        ("folder:../photos, 2024?size=64&channels=1", "folder:photos, 2024?size=64&channels=1"),
        ("folder:/data/faces/", "folder:"),
        ("cifar10:size=16", "cifar10:size=16"),
    ],
)
def test_a_spec_can_be_told_without_where_its_files_lie(text: str, left: str):
    assert without_directories(text) == left


def test_dashes_in_option_names_are_underscores():
    assert parse_spec("x:learning-rate=1").options == {"learning_rate": "1"}


def test_options_are_coerced_to_their_annotations():
    built = registry().build("widget:size=7,rate=1e-3,fast=true,kind=square,path=/tmp/x")
    assert built == (7, 1e-3, True, "square", Path("/tmp/x"))
    assert registry().build("widget:path=none") == (3, 0.5, False, "round", None)


def test_the_argument_goes_to_the_first_option():
    assert registry().build("reader:some/file.npz") == (Path("some/file.npz"), 1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("wigdet", ("no thing called 'wigdet'", "Did you mean 'widget'?")),
        ("zzzzzz", ("no thing called 'zzzzzz'", "Known: bare, reader, widget.")),
        ("widget:sise=3", ("no option 'sise'", "Did you mean 'size'?")),
        ("widget:size=big", ("'size'", "'big'", "int")),
        ("widget:kind=oval", ("'kind'", "'oval'", "'round' or 'square'")),
        ("bare:size=1", ("no option 'size'", "It takes none.")),
        ("bare:argument", ("takes no argument", "'argument'")),
        ("reader", ("needs 'path'", "reader:path=VALUE")),
    ],
)
def test_errors_name_what_is_wrong_and_what_to_do(spec: str, says: tuple[str, ...]):
    message = error_of(spec)
    for part in says:
        assert part in message


def test_extras_are_given_where_wanted_and_options_win():
    assert registry().build("widget", size=9, unwanted=1) == (9, 0.5, False, "round", None)
    assert registry().build("widget:size=2", size=9) == (2, 0.5, False, "round", None)


def test_a_clash_is_refused_and_the_first_stays():
    things = registry()
    with pytest.raises(UsageError, match="registered already"):
        things.register("bare", Info("an impostor"))(lambda: "impostor")
    assert things.build("bare") == "bare"


def test_registering_the_same_factory_twice_is_no_clash():
    things: Registry[object] = Registry("thing", "fedseal.engines")

    def factory() -> object:
        return 1

    things.register("one", Info(""))(factory)
    things.register("one", Info(""))(factory)
    assert things.names() == ["one"]


def test_entries_are_described_as_plain_data():
    described = registry().entry("reader").describe()
    assert described["options"] == {"path": None, "size": 1}
    assert described["summary"] == "a thing with an argument"


def test_near_matches_of_nothing():
    assert near_matches("x", []) == "None are known."
