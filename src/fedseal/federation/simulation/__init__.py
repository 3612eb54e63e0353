"""Federated training in one process: rounds of sampled clients, each behind its own defence, and a server.

`config` says how, `simulate` runs it, `history` is what happened,
`checkpoint` makes it resume, `evaluation` measures the global model.
"""

from __future__ import annotations

from fedseal.federation.cohort import ClientData
from fedseal.federation.simulation.config import FederationConfig
from fedseal.federation.simulation.history import DroppedClient, History, RoundRecord
from fedseal.federation.simulation.listener import RoundListener, RoundsShown, SeenUpload
from fedseal.federation.simulation.loop import Federation, SimulationResult, simulate

__all__ = [
    "ClientData",
    "DroppedClient",
    "Federation",
    "FederationConfig",
    "History",
    "RoundListener",
    "RoundRecord",
    "RoundsShown",
    "SeenUpload",
    "SimulationResult",
    "simulate",
]
