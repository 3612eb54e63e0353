"""What a scenario says of LPIPS: measured by which network, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from fedseal.core.errors import UsageError
from fedseal.data.places import cache_directory
from fedseal.metrics.lpips_weights import Net, missing_reason, weight_files

LpipsChoice: TypeAlias = Literal["auto", "alex", "vgg", "off"]
"""`auto` is AlexNet where its weights are there; a network by its name must be there; `off` measures by none."""


def lpips_net(choice: LpipsChoice) -> Net:
    """Return the network of a choice that has one."""
    return "vgg" if choice == "vgg" else "alex"


def lpips_files(choice: LpipsChoice) -> tuple[Path, ...]:
    """Return the files in the cache that a choice is measured with; none where it is not measured."""
    return () if choice == "off" else weight_files(cache_directory(), lpips_net(choice))


def check_lpips(choice: LpipsChoice) -> None:
    """Refuse a network that was asked for by its name and has no weights here."""
    if choice in ("alex", "vgg") and (reason := missing_reason(cache_directory(), lpips_net(choice))) is not None:
        raise UsageError(f"the scenario asks for LPIPS by {choice}, whose weights are not there.", hint=reason)
