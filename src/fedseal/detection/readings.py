"""A measurement on a received model, and the thresholds above which it is no honest one.

The thresholds lie above what `bench/detector.py` measured on honest checkpoints, between initialisation and the end of
training, except on a few that diverged or nearly died; `bench/detector.py` makes the measurements, the rate of
false alarms on checkpoints the thresholds were not chosen on, and how far each attack can be weakened before it passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Check: TypeAlias = Literal[
    "parallel rows",
    "balanced rows",
    "even signs",
    "bare kernels",
    "identity products",
    "outsized weights",
    "silenced classes",
    "single direction",
    "bias gap",
    "blocked gradient",
    "relative d-snr",
]

CHECKS: tuple[Check, ...] = get_args(Check)

THRESHOLDS: dict[Check, float] = {
    "parallel rows": 0.8,
    "balanced rows": 6.0,
    "even signs": 0.5,
    "bare kernels": 0.7,
    "identity products": 0.5,
    "outsized weights": 2.0,
    "silenced classes": 0.9,
    "single direction": 0.4,
    "bias gap": 10.0,
    "blocked gradient": 6.0,
    "relative d-snr": 200.0,
}
"""Readings above are alarms.

Of the D-SNR only the relative one is judged, and has little to say below its limit: a network that has learnt all
samples of a batch but one has any absolute D-SNR without malice, and one with dead units a relative one in the tens.
"""

MEANINGS: dict[Check, str] = {
    "parallel rows": "rows of a linear layer point the same way with different biases, as bins of an imprint block do",
    "balanced rows": "too many rows have exactly as many negative as positive weights, as trap weights do",
    "even signs": "all rows have about as many negative as positive weights, more evenly than chance, as trap weights",
    "bare kernels": "kernels copy single pixels or are zero, as LOKI's do",
    "identity products": "two matrices of one attention multiply to the identity, so that tokens pass unmixed, as "
    "PEFTLeak's do",
    "outsized weights": "weights are far larger than training makes them, which amplifies what the server reads",
    "silenced classes": "the last layer listens to one class alone, as when one class is fished for",
    "single direction": "the last layer hears one direction, in which one sample outweighs the others, as in SEER's",
    "bias gap": "the last layer's biases overrule every input, as when one class is fished for",
    "blocked gradient": "no gradient reaches the first layer, as when all clients but one are suppressed",
    "relative d-snr": "one sample outweighs the others inside the network far more than it does in the loss",
}


DIED = "its gradient is zero on this batch, so nothing of these images leaks, and nothing is learnt from them"
"""What it means that a network died in training."""

FRESH = "the adapters are as new, and end in zeros: expect that in the first round alone"
"""What to make of fresh adapters."""


@dataclass(frozen=True)
class Reading:
    """One measurement.

    Attributes:
        check: what was measured.
        layer: where.
        value: larger is more suspicious.
        threshold: above it, an alarm.
    """

    check: Check
    layer: str
    value: float
    threshold: float

    @property
    def alarming(self) -> bool:
        """Whether hardly any honest model has such a value."""
        return self.value > self.threshold

    def __str__(self) -> str:
        where = f" (layer `{self.layer}`)" if self.layer else ""
        return f"{self.check}{where}: {self.value:.3g}, honest models stay below {self.threshold:g}"
