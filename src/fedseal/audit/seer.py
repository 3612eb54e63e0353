"""Training the SEER attackers a scenario asks for, before its audit, which then finds them in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedseal.attacks.active.seer.attack import SeerAttack, SeerMemory
from fedseal.attacks.active.seer.attacker import SeerAttacker
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import UsageError
from fedseal.core.registry import parse_spec
from fedseal.defences.pipeline import build_defence

Progress = Callable[[str, int, float], None]
"""Told the attack's spec, the steps done and the mean loss since it was last told."""


@dataclass(frozen=True)
class TrainedFor:
    """An attacker and the attack's spec it serves."""

    spec: str
    attacker: SeerAttacker


def train_attackers(
    scenario: Scenario, *, data_root: Path | None = None, device: str = "cpu", progress: Progress | None = None
) -> list[TrainedFor]:
    """Train every `seer` attack of a scenario that is not in the cache; interrupted, the same call goes on.

    Each is trained for the scenario's model as it is, and again for every defence that changes the model.
    """
    specs = [spec for spec in scenario.attacks if parse_spec(spec).name == "seer"]
    if not specs:
        raise UsageError(
            "the scenario has no `seer` attack to train.", hint="Add one, e.g. --attack seer:property=red."
        )
    setup = build_setup(scenario, data_root=data_root, device=device)
    changing = [name for name in scenario.defences if build_defence(name).uses("wrap_model")]
    trained = []
    for spec in specs:
        for name in ("none", *changing):
            attack = ATTACKS.build(spec)
            assert isinstance(attack, SeerAttack)
            attack.train_when_missing(None if progress is None else partial(progress, spec))
            memory = setup.observe(build_defence(name), 0, attack=attack).observation.memory
            assert isinstance(memory, SeerMemory)
            trained.append(TrainedFor(spec, memory.attacker))
    return trained
