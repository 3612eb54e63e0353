"""What a scenario can name, read from the registries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from fedseal.attacks.labels import LABEL_RULES
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import UsageError
from fedseal.core.registry import Registry, near_matches
from fedseal.data.partition import PARTITIONERS
from fedseal.data.registry import DATASETS
from fedseal.metrics.registry import METRICS
from fedseal.models.registry import MODELS
from fedseal.preparation import Item

REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS,
    "defences": DEFENCES,
    "models": MODELS,
    "data": DATASETS,
    "partitions": PARTITIONERS,
    "labels": LABEL_RULES,
    "metrics": METRICS,
}
THREATS = {
    "passive": "a server that follows the protocol and reads what clients send",
    "active": "a server that changes what it sends, or asks again",
}
_SUPPLIED = {"input_shape", "num_classes", "data_root"}


def describe_entries(kind: str) -> list[dict[str, Any]]:
    """Return the records of one registry as plain data, options a scenario cannot set left out."""
    if kind not in REGISTRIES:
        raise UsageError(f"there is no list of {kind!r}.", hint=near_matches(kind, list(REGISTRIES)))
    registry = REGISTRIES[kind]
    entries = [registry.entry(name).describe() for name in registry.names()]
    for entry in entries:
        entry["threat_class"] = threat_classes(entry["threat"])
        entry["options"] = {key: value for key, value in entry["options"].items() if key not in _SUPPLIED}
    return entries


def threat_classes(threat: str) -> list[str]:
    """Return which of `passive` and `active` servers a declared threat speaks of: `active: changes parameters`."""
    return [word for part in threat.split(":")[0].split(",") if (word := part.strip()) in THREATS]


def of_threat(entries: list[dict[str, Any]], threat: str) -> list[dict[str, Any]]:
    """Return the records of one threat class."""
    if threat not in THREATS:
        raise UsageError(f"there is no threat class {threat!r}.", hint=near_matches(threat, list(THREATS)))
    return [entry for entry in entries if threat in entry["threat_class"]]


def refused_offers(kind: str) -> dict[str, str]:
    """Return what installed packages offer of a kind and cannot be used, by name, with the reason."""
    return REGISTRIES[kind].problems()


def render_listing(kind: str, entries: list[dict[str, Any]]) -> RenderableType:
    """Return the records as a table."""
    table = Table(title=kind, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    threats = any(entry["threat"] for entry in entries)
    if threats:
        table.caption = "; ".join(f"{name}: {words}" for name, words in THREATS.items())
        table.add_column("threat", no_wrap=True)
    table.add_column("what it is")
    table.add_column("options and defaults", style="dim")
    for entry in entries:
        options = ", ".join(f"{key}={value}" for key, value in entry["options"].items())
        paper = f" ({entry['paper']})" if entry["paper"] else ""
        needs = f"; needs {', '.join(entry['needs'])}" if entry["needs"] else ""
        origin = f"; from {entry['origin']}" if entry["origin"] != "fedseal" else ""
        threat = [", ".join(entry["threat_class"])] if threats else []
        how = entry["threat"].partition(":")[2]
        by = f"; the server{how}" if how else ""
        table.add_row(entry["name"], *threat, entry["summary"] + paper + by + needs + origin, options)
    return table


def render_prepared(items: Sequence[Item]) -> RenderableType:
    """Return what lies in the library as a table."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("kind", style="bold", no_wrap=True)
    table.add_column("what it is")
    table.add_column("state", no_wrap=True)
    table.add_column("trained", justify="right")
    table.add_column("MB", justify="right")
    for item in items:
        state = f"{item.progress:.0%} done" if item.state == "unfinished" else item.state
        table.add_row(item.kind, escape(item.title), state, f"{item.seconds:.0f} s", f"{item.size / 1e6:.1f}")
    return table
