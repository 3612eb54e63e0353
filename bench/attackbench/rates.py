"""Part 1: iterations per second of Inverting Gradients, by slope, and whether both reconstruct the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from attackbench import ours
from attackbench.cases import Case, Victim, make_case, make_setup
from attackbench.theirs import Breaching, Contender, Timed

BREACHING_IG = Contender("breaching ig", "invertinggradients")
"""As shipped: cosine, total variation 0.2, hard-signed Adam 0.1, three steps, box; only iterations are set."""

SAME_OBJECTIVE = replace(BREACHING_IG, borderless=True)
"""The same without the border of zeros around its total variation: the very function fedseal minimises. Used once per
victim, not timed, because the border alone moves a reconstruction by up to a decibel."""

Attack = Callable[[int], Timed]
"""Runs a number of iterations."""


@dataclass
class Rate:
    """The speed of one side at one number of threads.

    Attributes:
        threads: it ran with.
        slopes: iterations per second, one per repeat.
        runs: (iterations, seconds) of every run.
        psnr: in dB after the greater number of iterations.
        noisy: whether some repeat's longer run was not slower than its shorter one, its plain rate taken instead.
    """

    threads: int
    slopes: list[float] = field(default_factory=list)
    runs: list[tuple[int, float]] = field(default_factory=list)
    psnr: float = float("nan")
    noisy: bool = False

    @property
    def per_second(self) -> float:
        """Median slope."""
        return median(self.slopes)

    def measure(self, attack: Attack, counts: tuple[int, int]) -> Timed:
        """Add one repeat and return the longer run."""
        short, long = attack(counts[0]), attack(counts[1])
        self.runs += [(short.iterations, short.seconds), (long.iterations, long.seconds)]
        steps, seconds = long.iterations - short.iterations, long.seconds - short.seconds
        if seconds > 0 and steps > 0:
            self.slopes.append(steps / seconds)
        else:
            self.noisy = True
            self.slopes.append(long.iterations / long.seconds)
        return long

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "threads": self.threads,
            "per_second": self.per_second,
            "slopes": self.slopes,
            "runs": self.runs,
            "psnr": self.psnr,
            "noisy": self.noisy,
        }


def measure_rate(
    victim: Victim,
    breaching: Breaching,
    *,
    data: str,
    data_root: Path | None,
    directory: Path,
    quick: bool,
    repeats: int,
    threads: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """Measure both sides on one victim, in turns, and compare the better thread count of each."""
    setup = make_setup(
        victim.model,
        data,
        batch_size=victim.batch_size,
        targets=1,
        normalise=True,
        seed=seed,
        data_root=data_root,
    )
    case = make_case(victim.name, setup, 0)
    place = case.save(directory)
    counts = victim.quick if quick else victim.iterations
    our_rates = {count: Rate(count) for count in threads}
    their_rates = {count: Rate(count) for count in threads}
    for count in threads:
        ours.reconstruct([case], iterations=1, threads=count, check_start=True)
        breaching.reconstruct(place, BREACHING_IG, iterations=1, threads=count)
    for _ in range(repeats):
        for count in threads:
            found = our_rates[count].measure(_our_attack(case, count), counts)
            our_rates[count].psnr = ours.mean_psnr(case, found.images)
            found = their_rates[count].measure(_their_attack(breaching, place, count), counts)
            their_rates[count].psnr = ours.mean_psnr(case, found.images)
    same = breaching.reconstruct(place, SAME_OBJECTIVE, iterations=counts[1], threads=threads[0])
    same_psnr = ours.mean_psnr(case, same.images)
    ours_best = max(our_rates.values(), key=lambda rate: rate.per_second)
    theirs_best = max(their_rates.values(), key=lambda rate: rate.per_second)
    return {
        "case": victim.name,
        "model": victim.model,
        "data": data,
        "batch_size": victim.batch_size,
        "seed": seed,
        "start_seed": case.seeds[0],
        "iterations": list(counts),
        "repeats": repeats,
        "fedseal": [rate.as_dict() for rate in our_rates.values()],
        "breaching": [rate.as_dict() for rate in their_rates.values()],
        "fedseal_best": ours_best.as_dict(),
        "breaching_best": theirs_best.as_dict(),
        "ratio": ours_best.per_second / theirs_best.per_second,
        "breaching_psnr_same_objective": same_psnr,
        "psnr_difference": ours_best.psnr - same_psnr,
        "same_iterations": all(run[0] in counts for run in [*ours_best.runs, *theirs_best.runs]),
        "tv_factor": _tv_factor(case, breaching, place),
    }


def _our_attack(case: Case, threads: int) -> Attack:
    return lambda iterations: ours.reconstruct([case], iterations=iterations, threads=threads)[0]


def _their_attack(breaching: Breaching, place: Path, threads: int) -> Attack:
    return lambda iterations: breaching.reconstruct(place, BREACHING_IG, iterations=iterations, threads=threads)


def _tv_factor(case: Case, breaching: Breaching, place: Path) -> float:
    """Return breaching's total variation of the true inputs over mean |dx| + mean |dy|, the original convention."""
    inputs = case.normalisation(case.images)
    original = inputs.diff(dim=-1).abs().mean() + inputs.diff(dim=-2).abs().mean()
    return float(breaching.ask(do="total_variation", case=str(place))["value"] / float(original))
