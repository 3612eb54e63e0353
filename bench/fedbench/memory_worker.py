"""Peak memory and seconds of rounds with many clients, in a process of its own; prints JSON.

    python -m fedbench.memory_worker MODEL CLIENTS STEPS BATCH ROUNDS

All clients share one client's images, so that what grows is the engine's.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch

from fedbench.cases import Case, client_data
from fedbench.engines import by_fedseal


def main() -> None:
    """Read the command line, train, print."""
    torch.set_num_threads(1)
    model, *numbers = sys.argv[1:]
    clients, steps, batch, rounds = map(int, numbers)
    case = Case(model, clients, steps, batch)
    seconds, _ = by_fedseal(case, [client_data(case, 0)] * clients, rounds, time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("RESULT " + json.dumps({"seconds": seconds, "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    main()
