"""A remark of an attack or a defence on the set-up it met."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caveat:
    """Why an attack or a defence does less on a certain model than it seems to.

    Attributes:
        topic: a few words.
        text: a sentence that goes on from its name.
        advice: what to do instead.
    """

    topic: str
    text: str
    advice: str
