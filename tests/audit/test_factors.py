"""Factors: one file, several scenarios; each of them is what it would be if it were written alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedseal.audit.factors import MOST, scenarios_of
from fedseal.audit.plan import plan_jobs
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import UsageError
from fedseal.core.watcher import Watcher

SMALL: dict[str, Any] = {"data": "faces:size=8", "attacks": "ig:iterations=2", "targets": 1, "readings": 0}


def values(scenarios: tuple[Scenario, ...], *keys: str) -> list[tuple[Any, ...]]:
    def at(scenario: Scenario, key: str) -> Any:
        found: Any = scenario
        for part in key.split("."):
            found = getattr(found, part)
        return found

    return [tuple(at(scenario, key) for key in keys) for scenario in scenarios]


def test_a_list_in_its_place_and_a_grid_are_combined_in_every_way() -> None:
    found = scenarios_of({"client": {"batch_size": [1, 4]}, "grid": {"seed": [7, 8, 9]}})
    assert values(found, "client.batch_size", "seed") == [(b, s) for b in (1, 4) for s in (7, 8, 9)]
    assert found[0].levels == {"client.batch_size": "1", "seed": "7"}
    assert len({scenario.name for scenario in found}) == 6


def test_zip_goes_side_by_side_and_wants_equal_lengths() -> None:
    found = scenarios_of({"zip": {"seed": [1, 2], "data": ["faces", "photos"]}})
    assert values(found, "seed", "data") == [(1, "faces"), (2, "photos")]
    with pytest.raises(UsageError, match="seed 2, data 1"):
        scenarios_of({"zip": {"seed": [1, 2], "data": ["faces"]}})


def test_each_varies_one_factor_at_a_time_around_the_base() -> None:
    found = scenarios_of(
        {
            "client": {"batch_size": 2},
            "each": {
                "client.local_steps": [1, 3],
                "skew": {"smooth": {"client.partition": "total-variation", "client.member": 0}},
            },
        }
    )
    assert values(found, "client.batch_size", "client.local_steps", "client.member") == [
        (2, 1, None),
        (2, 3, None),
        (2, 1, 0),
    ]
    assert [scenario.levels for scenario in found][-1] == {"skew": "smooth"}


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        ({"from": 1, "to": 8, "times": 2}, [1, 2, 4, 8]),
        ({"from": 1, "to": 6, "by": 2}, [1, 3, 5]),
        ({"from": 3, "to": 5}, [3, 4, 5]),
    ],
)
def test_a_range_has_both_ends_and_keeps_whole_numbers(written: dict[str, int], numbers: list[int]) -> None:
    assert values(scenarios_of({"seed": written}), "seed") == [(n,) for n in numbers]


def test_a_range_of_shares_is_cut_evenly() -> None:
    found = scenarios_of({"public_fraction": {"from": 0.25, "to": 0.75, "count": 3}})
    assert values(found, "public_fraction") == [(0.25,), (0.5,), (0.75,)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client": {"batch_size": [0]}}, "client.batch_size"),
        ({"grid": {"cilent.batch_size": [1]}}, "Did you mean 'client'"),
        ({"grid": {"client.batchsize": [1]}}, "Did you mean 'batch_size'"),
        ({"grid": {"seed": []}}, "has no values"),
        ({"grid": {"seed": [1, 1]}}, "same value twice"),
        ({"seed": [1], "grid": {"seed": [2]}}, "varies twice"),
        ({"seed": {"from": 5, "to": 1}}, "no range"),
        ({"seed": {"from": 0, "to": 5, "times": 2}}, "never gets"),
        ({"each": {"skew": {"smooth": 3}}}, "level smooth of skew"),
        ({"each": 3}, "not a mapping"),
        ({"grid": {"seed": {"from": 1, "to": MOST}, "client.batch_size": [1, 2]}}, f"more than {MOST}"),
    ],
)
def test_what_makes_no_scenarios_is_said_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scenarios_of(given)


def test_an_error_names_file_line_and_level(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("data: faces\nclient:\n  batch_size: [1, 0]\n")
    with pytest.raises(UsageError, match=r"plan\.yaml at 'client\.batch_size = 0', line 3"):
        scenarios_of(path)


def test_an_option_that_a_factor_would_undo_is_refused() -> None:
    with pytest.raises(UsageError, match="factor of the scenario"):
        scenarios_of({"grid": {"client.batch_size": [1, 2]}}, {"client": {"batch_size": 4}})
    assert values(scenarios_of({"client": {"batch_size": [1, 2]}}, {"client": {"batch_size": 4}}), "name") == [
        ("audit",)
    ]


def test_a_combination_has_the_trials_of_the_scenario_written_alone() -> None:
    alone = plan_jobs(build_setup(Scenario(**SMALL, client={"batch_size": 2})))
    varied = scenarios_of({**SMALL, "grid": {"client.batch_size": [1, 2]}})
    keys = [[trial.key for job in plan_jobs(build_setup(one)) for trial in job.trials] for one in varied]
    assert keys[1] == [trial.key for job in alone for trial in job.trials]
    assert keys[0] != keys[1]


class Hearing(Watcher):
    """Keeps remarks, and counts trials."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.trials = 0

    def remarked(self, severity: str, text: str) -> None:
        self.remarks.append(text)

    def finished(self, task: Any, trials: int) -> None:
        self.trials += trials


def test_trials_that_scenarios_share_run_once_and_the_plan_is_told_first(tmp_path: Path) -> None:
    hearing = Hearing()
    found = scenarios_of({**SMALL, "each": {"client.batch_size": [1, 2], "attacker.aware": ["naive", "both"]}})
    run = run_audit(found, tmp_path, watcher=hearing)
    assert (run.planned, hearing.trials) == (4, 2)  # batch size 1 is the base's own, and so are both of the attackers
    assert [record.scenario for record in run.records] == [scenario.name for scenario in found]
    assert any(text.startswith("plan: 4 scenarios: client.batch_size 1, 2;") for text in hearing.remarks)
    assert any("for 2 trials" in text and "on the disk" in text for text in hearing.remarks)
