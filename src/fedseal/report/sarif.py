"""The report for code scanning: SARIF 2.1.0, one result for each defence of each scenario and kind of finding.

A leak is a failure, an error from the limit on (high without one) and a warning below; what is not known is open, what
is low passes. The control is told as information and is never a failure. Results carry fingerprints of scenario,
defence and rule, so that a code scanning service follows one finding through runs. No image or label is in the file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from fedseal._version import VERSION
from fedseal.audit.cells import Decider, Row
from fedseal.audit.levels import STATE_WORDS, RiskLevel, State
from fedseal.audit.run import Run
from fedseal.audit.sentences import DECIDER_WORDS, finding
from fedseal.report.commands import scenario_file
from fedseal.report.identifiers import TAGS
from fedseal.report.words import capital, printable

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_RULES: dict[str, tuple[str, str]] = {
    "found": ("ImagesRebuilt", "An attacker rebuilds private inputs from what a client sends."),
    "singled-out": ("PersonsSingledOut", "What an attacker rebuilds points at its original among strangers."),
    "worst-victim": ("SingleInputRebuilt", "An attacker rebuilds single private inputs, whatever the mean says."),
    "labels": ("LabelsRead", "An attacker reads the labels of private inputs from what a client sends."),
    "not-shown": ("ProtectionNotShown", capital(STATE_WORDS[State.NOT_SHOWN]) + "."),
    "no-power": ("AuditWithoutPower", capital(STATE_WORDS[State.NO_POWER]) + "."),
    "too-few": ("TooFewTargets", capital(STATE_WORDS[State.TOO_FEW]) + "."),
    "low": ("NothingLeaks", capital(STATE_WORDS[State.LOW]) + "."),
}
_LEAKS: tuple[Decider, ...] = ("found", "singled out", "worst victim", "labels")


def render_sarif(run: Run, fail_on: RiskLevel | None = None) -> str:
    """Return a run as a SARIF log; leaks from `fail_on` on (high by default) are errors."""
    return json.dumps(sarif_data(run, fail_on), indent=2, allow_nan=False) + "\n"


def sarif_data(run: Run, fail_on: RiskLevel | None = None) -> dict[str, Any]:
    """Return what `render_sarif` writes, as plain data."""
    verdict = run.verdict()
    limit = RiskLevel.HIGH if fail_on is None else fail_on
    results = [result for row in verdict.judged for result in _results(run, row, limit)]
    used = dict.fromkeys(result["ruleId"] for result in results)
    invocation: dict[str, Any] = {
        "executionSuccessful": not verdict.failed and len(run.records) >= run.planned,
        "commandLine": printable(run.command),
    }
    times = {"startTimeUtc": _utc(run.started), "endTimeUtc": _utc(run.ended)}
    invocation |= {name: when for name, when in times.items() if when}
    driver = {
        "name": "fedseal",
        "version": VERSION,
        "semanticVersion": VERSION.replace(".dev", "-dev."),
        "rules": [_rule(name) for name in used],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [invocation],
                "results": [result | {"ruleIndex": list(used).index(result["ruleId"])} for result in results],
                "columnKind": "unicodeCodePoints",
                "properties": {"sentence": printable(verdict.sentence())},
            }
        ],
    }


def _rule(name: str) -> dict[str, Any]:
    title, text = _RULES[name]
    return {
        "id": name,
        "name": title,
        "shortDescription": {"text": text},
        "help": {"text": f"{text} How levels come about is said in the report (report.html) beside this file."},
        "properties": {"tags": ["security", "privacy", *TAGS.get(name, ())]},
    }


def _results(run: Run, row: Row, limit: RiskLevel) -> Iterator[dict[str, Any]]:
    assert row.worst is not None
    assert row.state is not None
    words = f"{row.defence}: {finding(row)}."
    leaks = _worst_leaks(row)
    for decider, level in leaks.items():
        said = (
            words if decider == row.worst.decided else f"{row.defence}: risk {level.words}, {DECIDER_WORDS[decider]}."
        )
        yield _result(run, row, decider.replace(" ", "-"), said, "error" if level >= limit else "warning")
    if not leaks:
        rule = row.state.words.replace(" ", "-")
        yield _result(run, row, rule, words, "none" if row.state is State.LOW else "note")


def _worst_leaks(row: Row) -> dict[Decider, RiskLevel]:
    """Return the worst level by each reading that shows a leak, over all attacks on a defence."""
    found: dict[Decider, RiskLevel] = {}
    for cell in row.cells:
        for decider, level in cell.leaks:
            found[decider] = max(level, found.get(decider, level))
    return {decider: found[decider] for decider in _LEAKS if decider in found}


def _result(run: Run, row: Row, rule: str, words: str, level: str) -> dict[str, Any]:
    kind = {"note": "open", "none": "pass"}.get(level, "fail")
    if run.is_control(row):
        words, level, kind = f"Control, for comparison only. {words}", "none", "informational"
    elif kind != "fail":
        level = "none"
    name = f"{row.scenario}/{row.defence}/{rule}"
    place = {"artifactLocation": {"uri": _file(run, row.scenario)}, "region": {"startLine": 1}}
    logical = {"fullyQualifiedName": printable(f"{row.scenario}/{row.defence}"), "kind": "member"}
    return {
        "ruleId": rule,
        "kind": kind,
        "level": level,
        "message": {"text": printable(words)},
        "locations": [{"physicalLocation": place, "logicalLocations": [logical]}],
        "partialFingerprints": {"fedsealFinding/v1": sha256(name.encode("utf-8", "replace")).hexdigest()[:32]},
        "properties": {"scenario": printable(row.scenario), "defence": printable(row.defence)},
    }


def _file(run: Run, scenario: str) -> str:
    """Return the scenario's file as the command named it; where it named none, the one the report says to save."""
    try:
        given = [word for word in shlex.split(run.command) if word.endswith((".yaml", ".yml"))]
    except ValueError:
        given = []
    names = [planned.name for planned in run.scenarios]
    path = given[names.index(scenario)] if len(given) == len(names) and scenario in names else scenario_file(scenario)
    return _uri(path)


def _uri(path: str) -> str:
    return quote(printable(path).removeprefix("./"), safe="/-._~", errors="replace")


def _utc(when: str) -> str:
    return when.replace("+00:00", "Z")
