"""How long an audit of updates will take, by the time of a few steps on the real thing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedseal.core.attack import ATTACKS, Attack, Budget
from fedseal.updates.case import UpdateCase
from fedseal.updates.unknowns import PROBE, PROBE_STEPS, suppositions

_TIMED = 4


def estimated_seconds(
    case: UpdateCase, attacks: Sequence[str], *, iterations: int | None, restarts: int, search: bool = True
) -> float:
    """Return about how many seconds `audit_update` takes with these arguments; closed forms count as nothing."""
    attack = ATTACKS.build(PROBE)
    attack.run(case.observation, Budget(1, 1), 0)  # what is loaded once
    start = time.perf_counter()
    attack.run(case.observation, Budget(_TIMED, 1), 0)
    each = (time.perf_counter() - start) / _TIMED
    tried = len(suppositions(case))
    steps = PROBE_STEPS * tried if search and (tried > 1 or "learning_rate" in case.unknown) else 0
    steps += sum(restarts * _steps(ATTACKS.build(name), iterations) for name in attacks)
    return each * steps


def in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _steps(attack: Attack, iterations: int | None) -> int:
    own = str(getattr(attack, "iterations", None) or getattr(attack, "budget", 0))
    count = int(own) if own.isdigit() else 0
    return 0 if count == 0 else iterations or count
