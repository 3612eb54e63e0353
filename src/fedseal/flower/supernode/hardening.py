"""What a process can do for itself against others of the same user, on Linux."""

from __future__ import annotations

import ctypes
import logging
import sys

_PR_SET_DUMPABLE = 4
_LOG = logging.getLogger("fedseal.site")


def forbid_inspection() -> bool:
    """Keep processes of the same user from reading and writing this one's memory; return whether that holds.

    Root is not kept out; only a user or a machine of its own keeps an app that runs as root away.
    """
    if sys.platform != "linux":
        return False
    done = bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    if not done:
        _LOG.warning("this process could not be closed to others of its user")
    return done
