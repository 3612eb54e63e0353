"""SARIF: the structure code scanning services ask for, one result per finding, and no failure of a control."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.report.sarif import render_sarif, sarif_data

KINDS = {"notApplicable", "pass", "fail", "review", "open", "informational"}
LEVELS = {"none", "note", "warning", "error"}


def results(run: Run, fail_on: RiskLevel | None = None) -> list[dict[str, object]]:
    found: list[dict[str, object]] = sarif_data(run, fail_on)["runs"][0]["results"]
    return found


def of(run: Run, defence: str, fail_on: RiskLevel | None = None) -> list[dict[str, object]]:
    return [one for one in results(run, fail_on) if one["properties"]["defence"] == defence]  # type: ignore[index]


@pytest.mark.parametrize("which", ["run", "hostile"])
def test_the_log_has_the_structure_of_version_2_1_0(which: str, request: pytest.FixtureRequest) -> None:
    run: Run = replace(
        request.getfixturevalue(which), started="2026-11-17T10:00:00+00:00", ended="2026-11-17T10:05:00+00:00"
    )
    log = json.loads(render_sarif(run))
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert driver["name"] == "fedseal"
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", driver["semanticVersion"])
    identities = [rule["id"] for rule in driver["rules"]]
    assert len(identities) == len(set(identities))
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert re.fullmatch(r"[A-Z][A-Za-z]+", rule["name"])
        assert len(rule["properties"]["tags"]) == len(set(rule["properties"]["tags"]))
    for invocation in one["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        assert invocation["startTimeUtc"] == "2026-11-17T10:00:00Z"
    fingerprints = [json.dumps(result["partialFingerprints"]) for result in one["results"]]
    assert len(fingerprints) == len(set(fingerprints)) > 0
    for result in one["results"]:
        assert identities[result["ruleIndex"]] == result["ruleId"]
        assert result["kind"] in KINDS
        assert result["level"] in LEVELS
        assert (result["kind"] == "fail") == (result["level"] != "none")  # level has a meaning for failures only
        assert result["message"]["text"]
        (location,) = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9%._~/-]+", uri)
        assert location["physicalLocation"]["region"]["startLine"] == 1


def test_leaks_fail_by_the_limit_and_the_control_never_does(run: Run) -> None:
    assert {one["kind"] for one in of(run, "none")} == {"informational"}
    assert {one["level"] for one in of(run, "topk:ratio=0.8", RiskLevel.VERY_HIGH)} <= {"warning", "error"}
    assert any(one["level"] == "error" for one in of(run, "topk:ratio=0.8", RiskLevel.MEDIUM))
    judged = replace(run, scenarios=tuple(s.model_copy(update={"control": "off"}) for s in run.scenarios))
    assert {one["kind"] for one in of(judged, "none")} == {"fail"}


def test_a_finding_keeps_its_fingerprint_from_run_to_run(make_run: Callable[..., Run]) -> None:
    def prints(run: Run) -> dict[str, str]:
        return {one["ruleId"]: one["partialFingerprints"]["fedsealFinding/v1"] for one in of(run, "none")}  # type: ignore[index,misc]

    few, more = prints(make_run(targets=4)), prints(make_run(targets=6))  # more targets may show more
    assert few.items() <= more.items()
    assert len(set(more.values())) == len(more) > 1


def test_results_point_at_the_scenario_the_command_named(run: Run) -> None:
    named = replace(run, command="fedseal audit ./ci/my faces.yaml --out x")
    place = results(replace(named, command="fedseal audit './ci/my faces.yaml'"))[0]["locations"]
    assert place[0]["physicalLocation"]["artifactLocation"]["uri"] == "ci/my%20faces.yaml"  # type: ignore[index]
