"""fedseal's side of the benchmark, through its public interface only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from attackbench import clock
from attackbench.cases import Case
from attackbench.theirs import Timed
from fedseal.core.attack import ATTACKS, Budget
from fedseal.metrics.image import psnr
from fedseal.metrics.score import score

TV_WEIGHT = 0.2
"""Weight of total variation on both sides. breaching's comment says its 0.2 were 0.1 of the original convention
mean |dx| + mean |dy|; its code computes that same sum (plus a border of zeros), so the weights are equal here. The
benchmark measures the factor and stores it as `tv_factor`."""

IG = f"ig:tv={TV_WEIGHT},lr=0.1,signed=true,schedule=steps,start=normal"
"""Inverting Gradients as breaching's `invertinggradients` configures it."""


class StartDiffers(AssertionError):
    """fedseal began elsewhere than the start that breaching was given."""


class _StartCheck:
    """A listener that compares the first images it hears of with the start handed to breaching."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._expected = torch.stack([case.normalisation.undo(case.starts()[0]).clamp(0, 1) for case in cases])
        self._heard = False

    def __call__(self, done: float, images: Tensor) -> None:
        if not self._heard and done == 0 and not torch.allclose(images, self._expected, atol=1e-5):
            raise StartDiffers("fedseal no longer starts where `Case.starts` says; bring the two together")
        self._heard = True


def reconstruct(
    cases: Sequence[Case], *, iterations: int, threads: int, attack: str = IG, check_start: bool = False
) -> list[Timed]:
    """Attack cases of one set-up as one batch; `seconds` of each is its share."""
    torch.set_num_threads(threads)
    observations = [case.observation for case in cases]
    seeds = [case.seeds[0] for case in cases]
    listener = _StartCheck(cases) if check_start else None
    before = clock.now()
    found = ATTACKS.build(attack).run_many(observations, Budget(iterations=iterations), seeds, listener)
    share = (clock.now() - before) / len(cases)
    return [Timed(share, one.trace[-1][0] if one.trace else iterations, one.images) for one in found]


def mean_psnr(case: Case, images: Tensor) -> float:
    """Return the mean PSNR in dB of a reconstruction, paired with the truth as fedseal pairs batches."""
    originals = case.originals
    return score(originals, images, originals.labels, None).mean_psnr


class Stopped(Exception):
    """Raised by a listener to end an attack."""


class Watch:
    """A listener that stops the clock at a PSNR and the attack with it; its own work is not timed.

    Args:
        truth: the images [B, C, H, W].
        goal: in dB.
        cap: seconds after which to give up.
    """

    def __init__(self, truth: Tensor, goal: float, cap: float) -> None:
        self._truth, self._goal, self._cap = truth, goal, cap
        self._started, self._excluded = clock.now(), 0.0
        self.best, self.reached = -100.0, False

    @property
    def seconds(self) -> float:
        """Time since the start, without scoring."""
        return clock.now() - self._started - self._excluded

    def __call__(self, done: float, images: Tensor) -> None:
        """Score the images of the first target and end the attack if they are good enough or it took too long."""
        before = clock.now()
        now = float(psnr(self._truth, images[0], data_range=1.0).mean())
        self.best, self.reached = max(self.best, now), now >= self._goal
        self._excluded += clock.now() - before
        if self.reached or self.seconds > self._cap:
            raise Stopped


class GroupWatch:
    """A listener that notes when each of several targets attacked together reaches a PSNR; its work is not timed.

    Args:
        truth: the images [K, B, C, H, W].
        goal: in dB.
        cap: seconds after which to give up.
    """

    def __init__(self, truth: Tensor, goal: float, cap: float) -> None:
        self._truth, self._goal, self._cap = truth, goal, cap
        self._started, self._excluded = clock.now(), 0.0
        self.reached_at: dict[int, float] = {}
        self.best = [-100.0] * len(truth)

    def __call__(self, done: float, images: Tensor) -> None:
        """Score all targets and end the attack if they are all good enough or it took too long."""
        before = clock.now()
        seconds = before - self._started - self._excluded
        for target, (truth, found) in enumerate(zip(self._truth, images, strict=True)):
            now = float(psnr(truth, found, data_range=1.0).mean())
            self.best[target] = max(self.best[target], now)
            if now >= self._goal:
                self.reached_at.setdefault(target, seconds)
        self._excluded += clock.now() - before
        if len(self.reached_at) == len(self._truth) or seconds > self._cap:
            raise Stopped


def reach_together(
    cases: Sequence[Case], attack: str, *, goal: float, cap: float, threads: int
) -> list[dict[str, float | bool]]:
    """Attack all cases as one batch, once; a case's time is its share: when it got there, divided by their number."""
    torch.set_num_threads(threads)
    watch = GroupWatch(torch.stack([case.images for case in cases]), goal, cap * len(cases))
    seeds = [case.seeds[0] for case in cases]
    with suppress(Stopped):  # the watch has what is needed
        found = ATTACKS.build(attack).run_many([case.observation for case in cases], Budget(), seeds, watch)
        watch(1.0, torch.stack([one.images for one in found]))
    return [
        {
            "reached": target in watch.reached_at,
            "seconds": watch.reached_at.get(target, cap * len(cases)) / len(cases),
            "best_db": watch.best[target],
            "starts": 1,
        }
        for target in range(len(cases))
    ]


def reach(case: Case, attack: str, *, goal: float, cap: float, threads: int) -> dict[str, float | bool]:
    """Attack a case from one start after the other until a PSNR is reached or time is up.

    The listener hears of the images 40 times per attack, so the time is rounded up to the next of these.
    """
    torch.set_num_threads(threads)
    watch, starts = Watch(case.images, goal, cap), 0
    for seed in case.seeds:
        starts += 1
        try:
            result = ATTACKS.build(attack).run_many([case.observation], Budget(), [seed], watch)
            watch(1.0, result[0].images.unsqueeze(0))
        except Stopped:
            break
    return {"reached": watch.reached, "seconds": watch.seconds, "best_db": watch.best, "starts": starts}
