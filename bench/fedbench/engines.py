"""Rounds of one federation by fedseal's engine and by a bare PyTorch loop; each returns seconds per round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from fedbench.cases import Case, initial_model
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.federation.cohort import Held
from fedseal.federation.simulation import FederationConfig, RoundListener, RoundRecord, simulate


class _Stopwatch(RoundListener):
    """Reads a clock at the end of every round."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []

    def finished(self, record: RoundRecord, rounds: int) -> None:
        self.times.append(self.clock())


def by_fedseal(
    case: Case,
    data: Sequence[Batch],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    defence: Defence | None = None,
) -> tuple[list[float], nn.Module]:
    """Train by `simulate`; coding every upload for its bytes is part of the time. The first round is left out."""
    config = FederationConfig(
        rounds=rounds + 1,
        local_steps=case.steps,
        batch_size=case.batch,
        learning_rate=case.learning_rate,
        evaluate_every=rounds + 1,
        bn_mode="train-exact-stats",
    )
    watch = _Stopwatch(clock)
    tiny = Batch(data[0].images[:1], data[0].labels[:1])
    result = simulate(config, initial_model(case), [Held(own) for own in data], tiny, defence, listener=watch)
    times = [after - before for before, after in pairwise(watch.times)]
    return times, result.model


def by_hand(
    case: Case, data: Sequence[Batch], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], nn.Module]:
    """FedAvg as one would write it in an afternoon: no defence, no bytes, no checks, no record."""
    model, local = initial_model(case).train(), initial_model(case).train()
    source = torch.Generator().manual_seed(0)
    times = []
    for _ in range(rounds + 1):
        start = clock()
        mean = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        for own in data:
            local.load_state_dict(model.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr=case.learning_rate)
            order = torch.randperm(len(own), generator=source)
            for step in range(case.steps):
                places = order[step * case.batch : (step + 1) * case.batch]
                optimiser.zero_grad()
                F.cross_entropy(local(own.images[places]), own.labels[places]).backward()
                optimiser.step()
            for name, value in local.state_dict().items():
                if value.is_floating_point():
                    mean[name] += value / len(data)
        model.load_state_dict(mean)
        times.append(clock() - start)
    return times[1:], model
