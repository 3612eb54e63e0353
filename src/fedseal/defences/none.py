"""No defence at all: the row every other is compared with.

Threat model: none.

Cost: nothing.

Known breaks: every attack; its scores are the measure of the others.
"""

from __future__ import annotations

from fedseal.core.defence import DEFENCES, Defence
from fedseal.core.registry import Info


@DEFENCES.register("none", Info("no defence"))
class NoDefence(Defence):
    """Uploads the update as it is."""
