"""The clock everything is timed with, the same in every process: real time, or time of the processor.

Processor time of one thread hardly minds what else the machine does, so it gives usable ratios on a busy one.
"""

from __future__ import annotations

import os
import time

VARIABLE = "FEDSEAL_BENCH_CLOCK"
"""Set by `bench/attacks.py` for itself and the processes it starts."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def now() -> float:
    """Return the time in seconds."""
    return CLOCKS[os.environ.get(VARIABLE, "wall")]()
