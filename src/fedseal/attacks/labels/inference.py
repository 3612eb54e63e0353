"""The labels an attack works with."""

from __future__ import annotations

from fedseal.attacks.labels.guess import LabelGuess
from fedseal.attacks.labels.rehearsed import through_the_defence
from fedseal.attacks.labels.rules import label_rule
from fedseal.core.errors import InputError
from fedseal.core.observation import Observation


def infer_labels(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels an attack works with: the given ones, or those its rule infers.

    Who knows the defence infers them through it, where rehearsals show that this reads more of them.
    """
    knowledge = observation.knowledge
    if knowledge.labels is not None:
        return LabelGuess(knowledge.labels)
    rule = label_rule(knowledge.label_rule)
    guess = rule(observation, seed) if knowledge.defence is None else through_the_defence(observation, rule, seed)
    if not isinstance(guess, LabelGuess):
        raise InputError(
            f"the label rule {knowledge.label_rule} returned {type(guess).__name__}.", hint="It must be a LabelGuess."
        )
    return guess
