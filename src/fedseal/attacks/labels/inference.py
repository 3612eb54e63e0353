"""The labels an attack works with."""

from __future__ import annotations

import torch

from fedseal.attacks.labels.guess import LabelGuess
from fedseal.attacks.labels.logistic import logistic_labels
from fedseal.attacks.labels.rehearsed import through_the_defence
from fedseal.attacks.labels.rules import is_rule, label_rule
from fedseal.attacks.reading import image_count
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.knowledge import CROSS_ENTROPY, Knowledge
from fedseal.core.observation import Observation
from fedseal.federation.loss import training_loss


def infer_labels(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels an attack works with: the given ones, or those its rule infers.

    Who knows the defence infers them through it, where rehearsals show that this reads more of them.
    """
    knowledge = observation.knowledge
    if knowledge.labels is not None:
        return LabelGuess(knowledge.labels)
    if _is_logistic(knowledge):
        return logistic_labels(observation, seed)
    check_rule(knowledge.label_rule, knowledge.loss)
    rule = label_rule(knowledge.label_rule)
    guess = rule(observation, seed) if knowledge.defence is None else through_the_defence(observation, rule, seed)
    if not isinstance(guess, LabelGuess):
        raise InputError(
            f"the label rule {knowledge.label_rule} returned {type(guess).__name__}.", hint="It must be a LabelGuess."
        )
    return guess


def inferred_or_none(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels by the threat model's rule; zeros where it has none, for attacks that work without."""
    knowledge = observation.knowledge
    if knowledge.labels is not None or is_rule(knowledge.label_rule):
        return infer_labels(observation, seed)
    shape = (image_count(observation), knowledge.num_classes)
    kind = training_loss(knowledge.loss).target
    one_each = kind == "class" or (kind == "flags" and knowledge.num_classes == 1)
    labels = torch.zeros(shape[0], dtype=torch.long) if one_each else torch.zeros(shape)
    return LabelGuess(labels, ("labels were not inferred",))


def check_rule(rule: str, loss: str) -> None:
    """Refuse to infer labels where a rule does not know the loss; a loss on the inputs themselves has none."""
    if is_rule(rule) and training_loss(loss).target == "inputs":
        return
    if is_rule(rule) and loss != CROSS_ENTROPY and (loss, rule) != ("bce", "identity"):
        raise CapabilityError(
            f"the label rule {rule} reads the gradient of a cross-entropy, and the clients minimise {loss}.",
            hint="Set `attacker.labels` to `true` or `unknown`"
            + (", or to `identity`, which knows this loss." if loss == "bce" else "."),
        )


def _is_logistic(knowledge: Knowledge) -> bool:
    """Tell whether the outputs are logits of flags, which the identity reads one by one."""
    single = knowledge.loss == CROSS_ENTROPY and knowledge.num_classes == 1
    return knowledge.label_rule == "identity" and (knowledge.loss == "bce" or single)
