"""How bad a leak is, and what an audit may say where it found none."""

from __future__ import annotations

from enum import Enum, IntEnum

from fedseal.core.errors import UsageError
from fedseal.metrics.scales import PSNR, Scale


class RiskLevel(IntEnum):
    """How bad a leak is; ordered."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    VERY_HIGH = 3

    @property
    def words(self) -> str:
        """The level as people write it."""
        return self.name.lower().replace("_", " ")

    @classmethod
    def parse(cls, text: str) -> RiskLevel:
        """Parse `very-high`, `very high`, `high`, ..."""
        name = text.strip().upper().replace("-", "_").replace(" ", "_")
        if name not in cls.__members__:
            levels = ", ".join(level.words.replace(" ", "-") for level in cls)
            raise UsageError(f"there is no risk level {text!r}.", hint=f"Use one of {levels}.")
        return cls[name]


class State(Enum):
    """What an audit can say of a defence; only `LOW` is good news, and only `LOW` and `LEAK` have a level."""

    LOW = "low"
    TOO_FEW = "too few"
    NO_POWER = "no power"
    NOT_SHOWN = "not shown"
    LEAK = "leak"

    @property
    def settled(self) -> bool:
        """Whether the audit knows; where it does not, nothing may be called safe."""
        return self in (State.LOW, State.LEAK)

    @property
    def words(self) -> str:
        """The state as people write it."""
        return self.value

    @property
    def gravity(self) -> int:
        """Its place from good to bad news."""
        return list(State).index(self)


STATE_WORDS: dict[State, str] = {
    State.LOW: "no attack succeeded, and the update holds nothing an attack could find",
    State.TOO_FEW: "fewer than four batches were attacked: nothing can be said of others",
    State.NO_POWER: "the same attacks do not break the undefended model either: this says nothing about the defence",
    State.NOT_SHOWN: "no attack succeeded, but that the update holds nothing is not shown either",
    State.LEAK: "an attacker learns what the update should hide",
}
"""Each state in a sentence."""


def thresholds(scale: Scale) -> tuple[tuple[RiskLevel, float], ...]:
    """Return where the levels of a scale begin, worst first."""
    return tuple(zip((RiskLevel.VERY_HIGH, RiskLevel.HIGH, RiskLevel.MEDIUM), reversed(scale.limits), strict=True))


def level_of(value: float, scale: Scale = PSNR) -> RiskLevel:
    """Return the level of a score that is known to be no guess; of a PSNR in dB, unless said otherwise."""
    return next((level for level, limit in thresholds(scale) if value >= limit), RiskLevel.LOW)


THRESHOLDS_DB = thresholds(PSNR)
"""Where the levels of images begin (FedLeak, Sec. 5.3)."""
