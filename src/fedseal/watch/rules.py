"""What a watch does and when: how often it reads, what, and what follows from it.

every: 10                       # rounds
share: 0.2                      # of the clients that agree, drawn by each client for itself
readings: [ideal, labels]       # and `learned`, which first has to be taught
images: 2                       # read at most so many of those behind an update
rules:
  - {if: "reading >= high", then: refuse}
  - {if: "ideal >= medium", then: raise sigma, by: 2}
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedseal.audit.levels import RiskLevel
from fedseal.core.errors import FedsealError

Kind: TypeAlias = Literal["ideal", "learned", "labels"]
"""What is read of an update: what a perfect search near the truth would find, what a learned attack makes of it, and
which labels it gives away."""

Action: TypeAlias = Literal["warn", "refuse", "raise sigma"]
"""What follows: a line in the log; the update does not leave; more noise, in this round and all that follow."""

_CONDITION = re.compile(r"\s*(reading|ideal|learned|labels)\s*(>=|>)\s*([A-Za-z -]+?|\d+(?:\.\d+)?)\s*")


class Rule(BaseModel):
    """When a reading calls for something.

    Attributes:
        condition: `reading`, or one kind of it, `>=` or `>`, and a level or a number: dB of PSNR, for labels the share
            that is recognised beyond guessing.
        then: what follows.
        by: factor of the noise's deviation, where that is raised.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    condition: str = Field(alias="if")
    then: Action
    by: float = Field(default=2.0, gt=1, le=1000)

    @field_validator("condition")
    @classmethod
    def _understood(cls, text: str) -> str:
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ValueError('a condition reads like "reading >= high" or "ideal >= 15"')
        if not found[3][0].isdigit():
            try:
                RiskLevel.parse(found[3])
            except FedsealError as error:
                raise ValueError(str(error).rstrip(".")) from error
        return text

    @property
    def subject(self) -> str:
        """Which reading is compared: one kind, or any."""
        return self._parts()[0]

    def holds(self, value: float, level: RiskLevel) -> bool:
        """Return whether a reading of that value and level meets the condition."""
        _, sign, limit = self._parts()
        if limit[0].isdigit():
            return value > float(limit) or (sign == ">=" and value == float(limit))
        return level > RiskLevel.parse(limit) or (sign == ">=" and level == RiskLevel.parse(limit))

    def _parts(self) -> tuple[str, str, str]:
        found = _CONDITION.fullmatch(self.condition)
        assert found is not None  # by validation
        return found[1], found[2], found[3]


class WatchRules(BaseModel):
    """How a federation is watched.

    Attributes:
        every: rounds from one reading of a client to the next, at least.
        share: of clients read in such a round; each draws for itself.
        readings: what is read.
        images: the ideal reading is of so many of those behind an update.
        overhead: time for readings as a share of that for rounds; none follows the first until rounds pay for it.
        rules: what follows.
        tell: whether the server gets the readings as metrics; the site's own log and files have them anyway.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(default=10, ge=1)
    share: float = Field(default=1.0, gt=0, le=1)
    readings: tuple[Kind, ...] = Field(default=("ideal", "labels"), min_length=1)
    images: int = Field(default=2, ge=1, le=256)
    overhead: float = Field(default=0.1, gt=0)
    rules: tuple[Rule, ...] = (Rule(condition="reading >= high", then="warn"),)
    tell: bool = True
