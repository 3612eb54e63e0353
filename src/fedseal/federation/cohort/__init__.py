"""A federation's round, played in one place: every hook of a defence, in the order of its contract.

`Cohort` plays it: audits add what a server knows, the simulation repeats it, Flower and NVFlare play one client of it.
`one_by_one` and `vectorised` are ways to train its clients; `answers` is what passes between.
"""

from __future__ import annotations

from fedseal.federation.cohort.answers import Answer, Assignment, Strategy
from fedseal.federation.cohort.clients import Client, ClientData, Held, held_by
from fedseal.federation.cohort.cohort import Cohort, CohortRound, Streams, federated_model, play_alone

__all__ = [
    "Answer",
    "Assignment",
    "Client",
    "ClientData",
    "Cohort",
    "CohortRound",
    "Held",
    "Strategy",
    "Streams",
    "federated_model",
    "held_by",
    "play_alone",
]
