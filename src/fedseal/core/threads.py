"""How many threads work gets: one, in every engine.

The number of threads decides how sums are cut, and so the last bits of a gradient; an optimiser makes much of them.
With one thread everywhere a seed gives the same numbers in any engine, with any number of workers or cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
