"""Part 2: many independent targets on LeNet, reconstructions per hour at equal iterations."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from attackbench import clock, ours
from attackbench.cases import VICTIMS, Case, make_case, make_setup
from attackbench.rates import BREACHING_IG
from attackbench.theirs import Breaching

_MODEL = VICTIMS[0].model
_BARRIER_SECONDS = 120.0


@dataclass(frozen=True)
class Plan:
    """What is attacked.

    Attributes:
        data: data set.
        data_root: where it lies, if not in the usual places.
        targets: independent images.
        iterations: per target, on both sides.
        sampled: targets breaching really attacks; the rest is extrapolated.
        seed: of weights, targets and starts.
    """

    data: str
    data_root: Path | None
    targets: int
    iterations: int
    sampled: int
    seed: int

    def cases(self, chunk: range | None = None) -> list[Case]:
        """Return the targets, or a chunk of them."""
        setup = make_setup(
            _MODEL,
            self.data,
            batch_size=1,
            targets=self.targets,
            normalise=True,
            seed=self.seed,
            data_root=self.data_root,
        )
        return [make_case(f"throughput-{index}", setup, index) for index in chunk or range(self.targets)]


def measure_throughput(plan: Plan, breaching: Breaching, directory: Path, threads: tuple[int, ...]) -> dict[str, Any]:
    """Measure fedseal on all targets, in one process and in two, and breaching on a sample of them."""
    cases = plan.cases()
    vectorised = {count: _vectorised(cases, plan, count) for count in threads}
    best = min(vectorised, key=lambda count: vectorised[count][0])
    seconds, our_psnr = vectorised[best]
    workers = _two_workers(plan)
    theirs = {count: _breaching(cases[: plan.sampled], plan, breaching, directory, count) for count in threads}
    their_best = min(theirs, key=lambda count: theirs[count][0])
    their_seconds, their_psnr = theirs[their_best]
    rows = [
        _row("fedseal, one process", best, plan.targets * 3600 / seconds, their_seconds),
        _row("fedseal, two worker processes", 1, plan.targets * 3600 / workers, their_seconds),
        _row("breaching, one after another (extrapolated)", their_best, 3600 / their_seconds, their_seconds),
    ]
    if 1 in theirs:
        ideal = 2 * 3600 / theirs[1][0]
        rows.append(_row("breaching, two processes (ideal: twice its one-thread rate)", 1, ideal, their_seconds))
    return {
        "model": _MODEL,
        "data": plan.data,
        "targets": plan.targets,
        "iterations": plan.iterations,
        "sampled_by_breaching": plan.sampled,
        "seed": plan.seed,
        "rows": rows,
        "fedseal_seconds_by_threads": {count: value[0] for count, value in vectorised.items()},
        "fedseal_seconds_two_workers": workers,
        "breaching_seconds_per_target_by_threads": {count: value[0] for count, value in theirs.items()},
        "fedseal_psnr": our_psnr[: plan.sampled],
        "breaching_psnr": their_psnr,
        "psnr_difference": fmean(our_psnr[: plan.sampled]) - fmean(their_psnr),
    }


def _row(name: str, threads: int, per_hour: float, their_seconds: float) -> dict[str, Any]:
    return {"name": name, "threads": threads, "per_hour": per_hour, "ratio": per_hour * their_seconds / 3600}


def _vectorised(cases: list[Case], plan: Plan, threads: int) -> tuple[float, list[float]]:
    ours.reconstruct(cases, iterations=1, threads=threads, check_start=True)
    found = ours.reconstruct(cases, iterations=plan.iterations, threads=threads)
    scores = [ours.mean_psnr(case, one.images) for case, one in zip(cases, found, strict=True)]
    return sum(one.seconds for one in found), scores


def _breaching(
    cases: list[Case], plan: Plan, breaching: Breaching, directory: Path, threads: int
) -> tuple[float, list[float]]:
    places = [case.save(directory) for case in cases]
    breaching.reconstruct(places[0], BREACHING_IG, iterations=1, threads=threads)
    found = [
        breaching.reconstruct(place, BREACHING_IG, iterations=plan.iterations, threads=threads) for place in places
    ]
    scores = [ours.mean_psnr(case, one.images) for case, one in zip(cases, found, strict=True)]
    return fmean(one.seconds for one in found), scores


def _two_workers(plan: Plan) -> float:
    """Return the time of the slower half, both side by side from the moment both workers are warm."""
    half = plan.targets // 2
    chunks = [range(half), range(half, plan.targets)]
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as meeting,
        ProcessPoolExecutor(len(chunks), mp_context=context) as pool,
    ):
        return max(pool.map(partial(_attack_chunk, plan, Path(meeting), len(chunks)), chunks))


def _attack_chunk(plan: Plan, meeting: Path, workers: int, chunk: range) -> float:
    """Prepare and warm up, wait for the other worker, attack; return how long the attack took."""
    cases = plan.cases(chunk)
    ours.reconstruct(cases, iterations=1, threads=1)
    _meet(meeting / str(chunk.start), meeting, workers)
    start = clock.now()
    ours.reconstruct(cases, iterations=plan.iterations, threads=1)
    return clock.now() - start


def _meet(sign: Path, meeting: Path, workers: int) -> None:
    sign.touch()
    deadline = time.time() + _BARRIER_SECONDS
    while len(list(meeting.iterdir())) < workers:
        if time.time() > deadline:
            raise TimeoutError("the other worker did not arrive")
        time.sleep(0.01)
