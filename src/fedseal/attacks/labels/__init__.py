"""Label inference from the last layer's gradient: rules by name, and the refinement of their guess.

For cross-entropy and any network with a last bias, g_b[c] = p[c] - n_c / B holds exactly, with p the batch mean of the
softmax and n_c the number of labels c. Every rule reads that equation with another estimate of p, or none.
"""

from fedseal.attacks.labels.counts import round_to_sum
from fedseal.attacks.labels.guess import LabelGuess
from fedseal.attacks.labels.inference import infer_labels, inferred_or_none
from fedseal.attacks.labels.refine import refine_labels
from fedseal.attacks.labels.rules import LABEL_RULES, is_rule, label_rule

__all__ = [
    "LABEL_RULES",
    "LabelGuess",
    "infer_labels",
    "inferred_or_none",
    "is_rule",
    "label_rule",
    "refine_labels",
    "round_to_sum",
]
