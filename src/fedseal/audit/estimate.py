"""What a run will take, before it starts: time by the first client's gradients, memory by the model's size.

One gradient of a target's batch is measured; an iteration of a matching attack counts as four of them, the common
price of differentiating twice, a reading is priced by its unknowns, a training before the attacked round by its steps,
and what attacks prepare on public images by their number. That is a forecast for a person who wonders whether to wait,
not a promise: within a factor of about three, more where an attack ends early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedseal.audit.plan import Job
from fedseal.audit.readings import EXACT_UNKNOWNS, ReadingJob
from fedseal.audit.setup import Setup
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import Defence
from fedseal.core.errors import FedsealError
from fedseal.core.threads import one_thread
from fedseal.federation.loss import client_loss

GRADIENTS_PER_ITERATION = 4
"""Forward and backward once, and once more through that."""
SECONDS_PER_ITERATION = 1e-3
"""What an iteration costs beside gradients."""
_TIMED = 1000
_REHEARSED = 4
"""What `auto` spends on shadows for each iteration on a target, roughly."""
_GRADIENTS_PER_UNKNOWN = 10
_SECONDS_PER_CUBE = 2.5e-10
"""What an exact reading takes: a row of the Jacobian for each unknown, and the factors of their matrix."""
_GRADIENTS_BY_PROBES = 30_000
"""What a matrix-free reading takes."""
_PROCESS_BYTES = 450 << 20
"""A Python process with PyTorch."""
_MEASURED_SECONDS = 1.0
_RECORD_BYTES = 6 << 10
_KEPT_PICTURES = 10
"""Kept for every original: itself, its reconstruction, frames of the way there and the front of its line-up."""


@dataclass(frozen=True)
class Estimate:
    """A forecast.

    Attributes:
        seconds: until the end, with so many workers.
        core_seconds: of computing in all.
        bytes: of memory at the peak, all processes together.
        stored: bytes that the trials will leave on the disk.
        trials: how many.
        readings: how many, beside the trials.
        workers: processes.
    """

    seconds: float
    core_seconds: float
    bytes: int
    workers: int
    stored: int = 0
    trials: int = 0
    readings: int = 0

    def describe(self) -> str:
        """Return it in words."""
        at_once = f" on {self.workers} workers" if self.workers > 1 else ""
        readings = f" and {self.readings} ideal readings" if self.readings else ""
        return (
            f"about {duration(self.seconds)}{at_once} for {self.trials} trials{readings}, "
            f"{duration(self.core_seconds)} of one core's time, {self.bytes / 2**30:.1f} GiB of memory and "
            f"{_size(self.stored)} on the disk; right within a factor of three or so."
        )


def estimate(tasks: Sequence[tuple[Setup, Iterable[Job | ReadingJob]]], workers: int) -> Estimate:
    """Forecast the trials and readings that are left.

    Args:
        tasks: set-ups with their jobs that are not in the store.
        workers: processes that will run them.
    """
    total, peak, stored, trials, readings = 0.0, 0, 0, 0, 0
    longest = 0.0
    for setup, jobs in tasks:
        left = list(jobs)
        if not left:
            continue
        with one_thread():  # as in every engine
            gradient = _gradient_seconds(setup)
        attacked = [job for job in left if isinstance(job, Job)]
        each = [_job_seconds(setup, job, gradient) for job in attacked]
        readings += len(left) - len(attacked)
        each += [_reading_seconds(setup, gradient)] * (len(left) - len(attacked))
        prepared = _staging_seconds(setup, left, gradient) + _prepared_seconds(setup, attacked, gradient)
        total, longest = total + sum(each) + prepared, max([longest, *each])
        trials += sum(len(job.trials) for job in attacked)
        stored += sum(len(job.trials) for job in attacked) * _kept_bytes(setup)
        peak = max([peak, *(_job_bytes(setup, len(job.trials)) for job in attacked)])
    used = max(1, min(workers, sum(len(list(jobs)) for _, jobs in tasks) or 1))
    return Estimate(max(total / used, longest), total, used * (_PROCESS_BYTES + peak), used, stored, trials, readings)


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _kept_bytes(setup: Setup) -> int:
    """Return what a trial leaves: its record, and pictures of originals, reconstructions, film and line-ups."""
    shape = setup.shape(Defence())
    return _RECORD_BYTES + _KEPT_PICTURES * shape.images * math.prod(setup.private.shape) * 4


def _gradient_seconds(setup: Setup) -> float:
    """Return the time of one gradient of a target's batch; 0 where the model fails, which the doctor says."""
    loss = client_loss(setup.config.normalisation, setup.config.loss_reduction, setup.config.loss)
    batch = setup.batches(0, setup.shape(Defence()))[0] if setup.staging is None else setup.public.pick(slice(1))
    parameters = [p for p in setup.model.parameters() if p.requires_grad]
    times: list[float] = []
    started = time.perf_counter()
    try:
        while len(times) < 3 and time.perf_counter() - started < _MEASURED_SECONDS:
            begun = time.perf_counter()
            torch.autograd.grad(loss(setup.model, batch), parameters, allow_unused=True)
            times.append(time.perf_counter() - begun)
    except (Exception, SystemExit):  # noqa: BLE001 - a user's model may raise anything; the doctor says what
        return 0.0
    return min(times)


def _job_seconds(setup: Setup, job: Job, gradient: float) -> float:
    iterations, restarts = spent(job.attack, setup.scenario.iterations, setup.scenario.restarts)
    client = setup.scenario.client
    batches = client.local_steps * client.local_epochs * client.aggregate
    each = SECONDS_PER_ITERATION + GRADIENTS_PER_ITERATION * gradient * batches
    return len(job.trials) * max(iterations * restarts, 1) * each


def _staging_seconds(setup: Setup, jobs: Iterable[Job | ReadingJob], gradient: float) -> float:
    """Return what the trainings before the attacked round take, one under each defence and one without."""
    if setup.staging is None:
        return 0.0
    left = [spec for spec in {"none", *(job.defence for job in jobs)} if not setup.staging.has(spec)]
    ground = setup.staging.ground
    config = ground.configure(Defence())
    clients = config.clients_per_round or len(ground.clients)
    steps = config.shape(len(ground.clients[0]), clients).local_steps
    return len(left) * (setup.staging.stage.round or 0) * clients * steps * gradient


def _prepared_seconds(setup: Setup, jobs: Sequence[Job], gradient: float) -> float:
    """Return what attacks learn on public images, which targets share: an update of each image at least."""
    learned = {(job.attack, job.defence) for job in jobs if _is_prepared(job.attack)}
    return len(learned) * len(setup.public) * gradient


def _is_prepared(attack: str) -> bool:
    try:
        return ATTACKS.build(attack).prepares
    except FedsealError:
        return False


def _reading_seconds(setup: Setup, gradient: float) -> float:
    unknowns = setup.images_per_target * math.prod(setup.private.shape)
    if unknowns <= EXACT_UNKNOWNS:
        return unknowns * _GRADIENTS_PER_UNKNOWN * gradient + unknowns**3 * _SECONDS_PER_CUBE
    return _GRADIENTS_BY_PROBES * gradient


def spent(attack: str, iterations: int | None, restarts: int | None) -> tuple[int, int]:
    """Return how many iterations and starts an attack takes for one target, as far as its options tell."""
    try:
        built = ATTACKS.build(attack)
    except FedsealError:
        return 1, 1
    budget = getattr(built, "budget", None)
    if isinstance(budget, str):
        own_budget = int(budget) if budget.isdigit() else _TIMED  # of a time the attack makes iterations itself
        return (iterations or own_budget) * (1 + _REHEARSED), restarts or 1
    own = getattr(built, "iterations", None)
    if not isinstance(own, int) or own == 0:
        return 1, 1
    return iterations or own, restarts or int(getattr(built, "restarts", 1))


def _job_bytes(setup: Setup, lanes: int) -> int:
    """Return the memory of a group of targets: weights, their gradients and updates in each lane, and activations."""
    parameters = sum(p.numel() * p.element_size() for p in setup.model.parameters())
    pixels = setup.images_per_target * int(torch.tensor(setup.private.shape).prod()) * 4
    data = setup.private.memory + 4 * int(setup.public.inputs.numel())
    return parameters * (6 + 3 * lanes) + 64 * pixels * lanes + data
