"""The label rules by name, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable

from fedseal.attacks.labels.fedleak import fedleak_count, fedleak_count_element
from fedseal.attacks.labels.guess import LabelGuess
from fedseal.attacks.labels.identity import identity, identity_noise
from fedseal.attacks.labels.ilrg import ilrg
from fedseal.attacks.labels.llg import llg, llg_plus
from fedseal.attacks.labels.signs import analytic, idlg, yin
from fedseal.core.errors import UsageError
from fedseal.core.observation import Observation
from fedseal.core.registry import near_matches

LABEL_RULES: dict[str, Callable[[Observation, int], LabelGuess]] = {
    "idlg": idlg,
    "analytic": analytic,
    "yin": yin,
    "llg": llg,
    "llg-plus": llg_plus,
    "ilrg": ilrg,
    "fedleak-count": fedleak_count,
    "fedleak-count-element": fedleak_count_element,
    "identity": identity,
    "identity-noise": identity_noise,
}
"""Rules (observation, seed) -> guess; the default is `identity`."""


def infer_labels(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels an attack works with: the given ones, or those its rule infers."""
    knowledge = observation.knowledge
    if knowledge.labels is not None:
        return LabelGuess(knowledge.labels)
    if knowledge.label_rule not in LABEL_RULES:
        raise UsageError(
            f"there is no label rule called {knowledge.label_rule!r}.",
            hint=near_matches(knowledge.label_rule, [*LABEL_RULES, "true", "unknown"]),
        )
    return LABEL_RULES[knowledge.label_rule](observation, seed)
