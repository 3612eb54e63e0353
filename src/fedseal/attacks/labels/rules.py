"""The registry of label rules, and the choice among them.

A rule is a function (observation, seed) -> guess; what it takes beside these two are its options. The default is
`identity`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fedseal.attacks.labels.guess import LabelGuess
from fedseal.core.errors import UsageError
from fedseal.core.observation import Observation
from fedseal.core.plugins import is_reference
from fedseal.core.registry import FunctionRegistry, near_matches, parse_spec
from fedseal.core.specs import shortened

LabelRule: TypeAlias = Callable[[Observation, int], LabelGuess]

LABEL_RULES: FunctionRegistry[LabelRule] = FunctionRegistry(
    "label rule", "fedseal.attacks.labels", supplied=2, group="fedseal.labels"
)

register_label_rule = LABEL_RULES.register
"""Register a label rule under a name: see `Registry.register`."""

GIVEN, UNKNOWN = "true", "unknown"
"""What a scenario says in the place of a rule: the attacker is given the labels, or does without."""


def is_rule(text: str) -> bool:
    """Tell whether a text names a rule, by name or as `module:attribute`, and not that there is none."""
    return text not in {GIVEN, UNKNOWN} and (parse_spec(text).name in LABEL_RULES or is_reference(text))


def label_rule(text: str) -> LabelRule:
    """Return the rule a text names, its options bound."""
    spec = parse_spec(text)
    if spec.name not in LABEL_RULES and ":" not in text:
        raise UsageError(
            f"there is no label rule called {shortened(text)}.",
            hint=near_matches(text, [*LABEL_RULES, GIVEN, UNKNOWN]),
        )
    return LABEL_RULES.build(spec)
