"""What the doctor finds: one remark about a set-up, in words."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Finding(BaseModel):
    """A remark about a set-up, made before trials start.

    Attributes:
        severity: `problem` (results will mislead), `warning` (results need care) or `note`.
        topic: what it is about, in two or three words.
        text: what was found.
        advice: what to do.
    """

    model_config = ConfigDict(frozen=True)

    severity: Literal["problem", "warning", "note"]
    topic: str
    text: str
    advice: str = ""
