"""What a defence may cost, and how much may leak, as people write it: `2%`, `0.5x`, `low`."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from fedseal.audit.levels import RiskLevel
from fedseal.core.errors import UsageError

_SLACK = 0.01
"""Of a factor, which headers of an upload are not counted against."""


def parse_share(value: Any) -> Any:
    """Read `2%` or `0.02` as a share below one."""
    number = _number(value, "%", 0.01)
    if number is None or not 0 <= number < 1:
        raise ValueError(f"a share such as 2% is needed, got {value!r}")
    return number


def parse_factor(value: Any) -> Any:
    """Read `0.5x` or `0.5` as a factor; `any` for no limit."""
    if value is None or str(value).strip().lower() in {"any", "none", "inf"}:
        return math.inf
    number = _number(value, "x", 1.0)
    if number is None or not number > 0:
        raise ValueError(f"a factor such as 0.5x is needed, got {value!r}")
    return number


def _number(value: Any, unit: str, scale: float) -> float | None:
    text = str(value).strip()
    by = scale if text.endswith(unit) else 1.0
    try:
        number = float(text.removesuffix(unit)) * by
    except ValueError:
        return None
    return number if math.isfinite(number) or unit == "x" else None


def _known_level(value: str) -> str:
    try:
        return RiskLevel.parse(value).words
    except UsageError as error:
        raise ValueError(str(error)) from error


Share: TypeAlias = Annotated[float, BeforeValidator(parse_share)]
Factor: TypeAlias = Annotated[float, BeforeValidator(parse_factor)]


class Limits(BaseModel):
    """What is asked of a defence.

    Attributes:
        max_accuracy_loss: of the undefended accuracy, as a share of it.
        max_upload: bytes a client sends, in those of the plain update; infinite for no limit.
        max_time: of a round, in that of an undefended one.
        aim: the highest risk that is accepted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    max_accuracy_loss: Share = 0.02
    max_upload: Factor = 2.0
    max_time: Factor = 3.0
    aim: Annotated[str, AfterValidator(_known_level)] = "low"

    @property
    def level(self) -> RiskLevel:
        """The aim."""
        return RiskLevel.parse(self.aim)

    @property
    def kept(self) -> float:
        """Accuracy to keep, in per cent of the undefended twin's (PMM)."""
        return 100 * (1 - self.max_accuracy_loss)

    def allows_upload(self, factor: float) -> bool:
        """Return whether an upload is small enough."""
        return factor <= self.max_upload + _SLACK

    def allows_time(self, factor: float) -> bool:
        """Return whether a round is short enough."""
        return factor <= self.max_time + _SLACK

    def words(self) -> str:
        """Return the limits in a line."""
        parts = [f"keeps {self.kept:g} % of the accuracy"]
        if math.isfinite(self.max_upload):
            parts.append(f"sends at most {self.max_upload:g}x")
        if math.isfinite(self.max_time):
            parts.append(f"takes at most {self.max_time:g}x the time")
        return ", ".join(parts) + f", and is {self.aim}"
