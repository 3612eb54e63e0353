"""The methods' pages are those of the sources, and say what a reader needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES
from fedseal.core.registry import Entry, Info, Registry

SCRIPT = Path(__file__).parents[1] / "docs" / "methods" / "generate.py"
OURS = [
    (kind, name)
    for kind, registry in (("attack", ATTACKS), ("defence", DEFENCES))
    for name in registry.names()
    if registry.entry(name).origin == "fedseal"
]


@pytest.fixture(scope="module")
def generate(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(SCRIPT)


def entry_of(kind: str, name: str) -> Entry[object]:
    registry: Registry[object] = {"attack": ATTACKS, "defence": DEFENCES}[kind]
    return registry.entry(name)


def test_no_page_is_stale(generate: ModuleType):
    assert generate.stale() == [], "run `python docs/methods/generate.py`"


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_a_page_says_what_it_costs_and_what_breaks_it(generate: ModuleType, kind: str, name: str):
    text = generate.page(kind, entry_of(kind, name))
    for title in ("## Method", "## Threat model", "## Options", "## Cost", "## Known breaks"):
        assert title in text, f"the docstring of {entry_of(kind, name).factory.__module__} has nothing for {title!r}"


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_every_option_is_explained(generate: ModuleType, kind: str, name: str):
    entry = entry_of(kind, name)
    silent = set(entry.parameters) - {key for key, words in generate.documented(entry.factory).items() if words}
    assert not silent, f"say in the docstring of {name!r} what {sorted(silent)} mean"


def test_docstrings_are_parted_at_the_words_that_begin_a_section(generate: ModuleType):
    found = generate.sections(
        "A title.\n\nWhat it does. Threat model: passive server. More of it. Departures (ours): none;\nreally none.\n\n"
        "Cost: one pass.\n\nLast words."
    )
    assert found["Method"] == "A title.\n\nWhat it does.\n\nMore of it.\n\nLast words."
    assert found["Threat model"] == "passive server."
    assert found["Departures"] == "none;\nreally none."
    assert found["Cost"] == "one pass."


def test_options_are_read_from_a_class_and_its_bases(generate: ModuleType):
    class Base:
        """A base.

        Attributes:
            steps: how many.
            lr, momentum: of the steps,
                both of them.
        """

    class Derived(Base):
        """Derived.

        Args:
            steps: how many of ours.
        """

    assert generate.documented(Derived) == {
        "steps": "how many of ours.",
        "lr": "of the steps, both of them.",
        "momentum": "of the steps, both of them.",
    }


def test_what_is_not_a_section_of_ours_changes_nothing(generate: ModuleType):
    made: Registry[object] = Registry("attack", "fedseal.engines")
    made.register("odd", Info("odd"))(lambda: None)
    assert "## Options\n\nNone." in generate.page("attack", made.entry("odd"))
