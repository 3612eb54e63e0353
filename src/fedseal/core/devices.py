"""Where things are computed."""

from __future__ import annotations

import torch

from fedseal.core.errors import InputError


def find_device(name: str) -> torch.device:
    """Return the device of that name, or refuse one that does not work here."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {name!r} cannot be used: {reason}.", hint="Use --device cpu.") from error
    return device
