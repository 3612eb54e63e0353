"""What can be named is listed with its threat class."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedseal.core.errors import UsageError
from fedseal.report.listing import THREATS, describe_entries, of_threat, render_listing, threat_classes


def test_every_attack_and_defence_has_a_threat_class() -> None:
    for kind in ("attacks", "defences"):
        ours = [entry for entry in describe_entries(kind) if entry["origin"] == "fedseal" and entry["name"] != "none"]
        assert [entry["name"] for entry in ours if not entry["threat_class"]] == []


def test_a_threat_is_read_up_to_how_it_works() -> None:
    assert threat_classes("active: changes parameters") == ["active"]
    assert threat_classes("passive, active") == ["passive", "active"]
    assert threat_classes("") == []


def test_the_list_can_be_of_one_threat_class_and_says_what_that_is() -> None:
    entries = describe_entries("attacks")
    active = of_threat(entries, "active")
    assert {"imprint", "seer"} <= {entry["name"] for entry in active}
    assert not {"ig", "auto"} & {entry["name"] for entry in active}
    assert {entry["name"] for entry in active + of_threat(entries, "passive")} == {entry["name"] for entry in entries}
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(render_listing("attacks", active))
    text = console.export_text()
    assert all(words in text for words in THREATS.values())


def test_an_unknown_threat_class_is_answered() -> None:
    with pytest.raises(UsageError, match=r"no threat class 'actve'.*active"):
        of_threat([], "actve")
