"""No defence at all: the row every other is compared with."""

from __future__ import annotations

from fedseal.core.defence import DEFENCES, Defence
from fedseal.core.registry import Info


@DEFENCES.register("none", Info("no defence"))
class NoDefence(Defence):
    """Uploads the update as it is."""
