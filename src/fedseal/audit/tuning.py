"""Tuning a scenario's attacks on shadow targets, before its audit, whose `auto` then finds the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedseal.attacks.shadow.study import Tuned, tune
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup, make_aware
from fedseal.defences.pipeline import build_defence

Heard = Callable[[str, int, str, float], None]
"""Told the defence, the number of a finished trial, its spec and its score in dB."""


@dataclass(frozen=True)
class TunedFor:
    """What a study came to, and for which attacker it was made."""

    attack: str
    defence: str
    aware: bool
    result: Tuned


def tune_attacks(
    scenario: Scenario,
    attacks: tuple[str, ...],
    *,
    trials: int = 24,
    iterations: int = 300,
    shadows: int = 4,
    data_root: Path | None = None,
    device: str = "cpu",
    heard: Heard | None = None,
) -> list[TunedFor]:
    """Tune attacks for every defence of a scenario, each by an attacker who knows it; interrupted, it goes on.

    The attacker who knows no defence is tuned once: its shadows are the same whatever clients really do. Private data
    give a target its shape, nothing else: the shadows are public.
    """
    setup = build_setup(scenario, data_root=data_root, device=device)
    found = []
    for defence in dict.fromkeys(("none", *scenario.defences)):
        aware = defence != "none"
        if (aware and scenario.attacker.aware == "naive") or (defence == "none" and scenario.attacker.aware == "aware"):
            continue
        observation = setup.observe(build_defence(defence), 0, name=defence).observation
        if aware:
            observation = make_aware(observation, build_defence(defence), defence)
        for attack in attacks:
            result = tune(
                observation,
                attack,
                trials=trials,
                iterations=iterations,
                shadows=shadows,
                seed=scenario.seed,
                heard=None if heard is None else lambda *told, name=defence: heard(name, *told),
            )
            found.append(TunedFor(attack, defence, aware, result))
    return found
