"""From a scenario to trials: every defence by every attack, naive and aware, on every target; each with its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from fedseal._version import VERSION
from fedseal.attacks.labels import label_rule
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup
from fedseal.core.attack import ATTACKS
from fedseal.core.hashing import hash_json
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.registry import METRICS
from fedseal.store.identity import file_hashes

GROUP = 16
"""Targets attacked as one vectorised batch. Part of every key, as the batch's shape decides the last bits."""


@dataclass(frozen=True)
class PlannedTrial:
    """One reconstruction to be attempted, and the hash of everything that determines its result."""

    target: int
    key: str


@dataclass(frozen=True)
class Job:
    """Trials of one cell that run as one vectorised batch; they are stored together."""

    defence: str
    attack: str
    aware: bool
    trials: tuple[PlannedTrial, ...]

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.attack} on {self.defence}" + (", known" if self.aware else "")


def check_names(scenario: Scenario) -> None:
    """Refuse a scenario that names unknown attacks, defences, options or label rules, before anything is loaded."""
    if scenario.attacker.labels not in {"true", "unknown"}:
        label_rule(scenario.attacker.labels)
    for metric in scenario.metrics:
        METRICS.build(metric)
    for attack in scenario.attacks:
        ATTACKS.build(attack)
    for defence in scenario.defences:
        build_defence(defence)


def plan_jobs(setup: Setup) -> tuple[Job, ...]:
    """Return the jobs of a scenario in the order they run: undefended first, cheap cells before expensive ones."""
    scenario = setup.scenario
    determined_by = scenario.model_dump(mode="json", exclude={"name", "defences", "attacks", "targets"})
    determined_by["attacker"].pop("aware")
    if not scenario.metrics:
        determined_by.pop("metrics")
    base = {
        "scenario": determined_by,
        "data": setup.data_hash,
        "weights": setup.weights_hash,
        "fedseal": VERSION,
        "torch": torch.__version__,
        "device": next(setup.model.parameters()).device.type,
    }
    groups = [range(start, min(start + GROUP, scenario.targets)) for start in range(0, scenario.targets, GROUP)]
    jobs = []
    loaded = {defence: file_hashes(defence) for defence in _unique(scenario.defences)}
    for defence, attack in product(loaded, _unique(scenario.attacks)):
        for aware, group in product(_attackers(scenario, defence), groups):
            cell = {"defence": defence, "attack": attack, "aware": aware, "group": [group.start, group.stop]}
            if loaded[defence]:
                cell["files"] = loaded[defence]
            trials = tuple(PlannedTrial(t, hash_json({**base, **cell, "target": t})) for t in group)
            jobs.append(Job(defence, attack, aware, trials))
    return tuple(jobs)


def _attackers(scenario: Scenario, defence: str) -> tuple[bool, ...]:
    """Return which attackers try a defence; where there is none, there is nothing to be aware of."""
    if defence == "none":
        return (False,)
    return {"naive": (False,), "aware": (True,), "both": (False, True)}[scenario.attacker.aware]


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
