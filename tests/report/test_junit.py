"""The JUnit report: valid XML whose counts and outcomes are those of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedseal.audit.levels import RiskLevel, State
from fedseal.audit.run import Run
from fedseal.report.junit import render_junit


def parse(run: Run, fail_on: RiskLevel | None) -> ElementTree.Element:
    return ElementTree.fromstring(render_junit(run, fail_on).encode("utf-8"))


def judging_all(run: Run) -> Run:
    """Return the run without a control: every row counts."""
    return replace(run, scenarios=tuple(s.model_copy(update={"control": "off"}) for s in run.scenarios))


def counts(element: ElementTree.Element) -> tuple[int, ...]:
    return tuple(int(element.get(name, "-1")) for name in ("tests", "failures", "errors", "skipped"))


@pytest.mark.parametrize(
    ("fail_on", "expected"),
    [
        (None, (12, 0, 1, 6)),  # refused ones and what is not shown: neither passes
        (RiskLevel.VERY_HIGH, (12, 4, 0, 6)),
        (RiskLevel.HIGH, (12, 6, 0, 6)),
        (RiskLevel.LOW, (12, 10, 0, 2)),
    ],
)
def test_counts_by_limit(run: Run, fail_on: RiskLevel | None, expected: tuple[int, ...]) -> None:
    root = parse(judging_all(run), fail_on)
    assert counts(root) == expected
    for tag, count in zip(("failure", "error", "skipped"), expected[1:], strict=True):
        assert len(list(root.iter(tag))) == count
    assert all(len([e for e in case if e.tag != "system-out"]) <= 1 for case in root.iter("testcase"))


def test_outcomes_say_why(run: Run) -> None:
    root = parse(run, None)
    error = next(root.iter("error"))
    assert error.get("message") == "1 trial failed"
    assert error.text == "target 3 failed: the objective became NaN at step 412."
    skipped = next(root.iter("skipped"))
    assert "needs the exact batch statistics" in skipped.get("message", "")
    failing = {case.get("name"): case for case in parse(run, RiskLevel.VERY_HIGH).iter("testcase")}
    failure = failing["fedleak (naive)"].find("failure") if failing else None
    output = next(root.iter("system-out")).text or ""
    assert "reproduce: fedseal audit faces-lenet.yaml --defence none --attack ig --seed 7" in output
    assert failure is None or "limit very high" in failure.get("message", "")


def test_a_failure_names_the_broken_trials_too(run: Run) -> None:
    root = parse(judging_all(run), RiskLevel.VERY_HIGH)
    cases = [c for c in root.iter("testcase") if c.get("classname") == "faces-lenet.none"]
    failure = next(c for c in cases if c.get("name") == "fedleak (naive)").find("failure")
    assert failure is not None
    assert "target 3 failed" in (failure.text or "")


def test_one_suite_per_scenario(make_run: Callable[..., Run]) -> None:
    root = parse(make_run(scenarios=("first", "second"), targets=1), None)
    assert [suite.get("name") for suite in root] == ["first", "second"]
    assert all(counts(suite)[0] == 12 for suite in root)
    assert counts(root)[0] == 24


def test_hostile_text_stays_text(hostile: Run) -> None:
    root = parse(hostile, RiskLevel.LOW)
    assert "<script>" in (root[0].get("name") or "")
    assert not list(root.iter("script"))


def test_an_empty_run(run: Run) -> None:
    assert counts(parse(replace(run, records=()), RiskLevel.LOW)) == (0, 0, 0, 0)


def test_the_control_never_fails_and_says_when_it_ran(run: Run) -> None:
    dated = replace(run, started="2026-11-17T10:00:00+00:00", ended="2026-11-17T10:05:00+00:00")
    root = parse(dated, RiskLevel.LOW)
    failing = {case.get("classname") for case in root.iter("testcase") if case.find("failure") is not None}
    assert failing
    assert "faces-lenet.none" not in failing
    assert root[0].get("timestamp") == "2026-11-17T10:00:00"
    properties = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert properties == {"started": dated.started, "ended": dated.ended}


def test_what_was_attacked_without_power_is_no_pass(make_run: Callable[..., Run]) -> None:
    few = make_run(targets=2, defences=("none", "gaussian:sigma=0.01", "topk:ratio=0.99"))
    assert {row.state for row in few.powerless()} == {State.TOO_FEW}
    root = parse(few, RiskLevel.VERY_HIGH)
    errors = [error for error in root.iter("error") if error.get("type") == "power"]
    assert errors
    assert "no pass without power" in errors[0].get("message", "")
    assert not [error for error in parse(few, None).iter("error") if error.get("type") == "power"]
