"""One question to a scenario's federation, under each of its defences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.threads import one_thread
from fedseal.inference.common import attribute, property_share
from fedseal.inference.membership import membership
from fedseal.inference.outcome import Outcome
from fedseal.inference.proof import proven_rate

QUESTIONS = ("membership", "attribute", "property")


def ask(
    scenario: Scenario,
    question: str,
    *,
    rounds: int = 64,
    epochs: int = 0,
    shadows: int = 100,
    data_root: Path | None = None,
    told: Callable[[str], None] = lambda defence: None,
) -> tuple[Outcome, ...]:
    """Ask it of every defence; one that cannot be asked of single clients is refused in words.

    Args:
        scenario: data, model, how clients train, and the defences.
        question: `membership`, `attribute:NAME` or `property:CLASS`.
        rounds: clients asked.
        epochs: of training on the members before, for `membership`.
        shadows: rehearsed updates of public data.
        data_root: where local data sets lie.
        told: called with each defence before it is asked.
    """
    kind, _, what = question.partition(":")
    if kind not in QUESTIONS or (kind != "membership" and not what):
        raise UsageError(
            f"nobody can be asked {question!r}.",
            hint="Ask `membership`, `attribute:NAME` (bright, column=value, chance) or `property:CLASS`.",
        )
    setup = build_setup(scenario, data_root=data_root)
    if setup.staging is not None:
        raise CapabilityError("inference asks first rounds.", hint="Leave `stage` out; `--epochs` trains before.")
    found: list[Outcome] = []
    with one_thread():
        for defence in scenario.defences:
            told(defence)
            asked: tuple[Outcome, ...]
            if kind == "membership":
                asked = membership(setup, defence, rounds=rounds, epochs=epochs, shadows=shadows)
            elif kind == "attribute":
                asked = attribute(setup, defence, what, rounds=rounds, shadows=shadows)
            else:
                asked = property_share(setup, defence, what, rounds=rounds, shadows=shadows)
            changed = 1 if kind == "membership" else scenario.client.batch_size
            bound = None if epochs else proven_rate(setup, defence, changed)
            found += [replace(one, proven=bound) for one in asked]
    return tuple(found)
