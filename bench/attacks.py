"""Compare fedseal's attacks with breaching 0.1.2, side by side in one run.

    python bench/attacks.py [--quick] [--cases lenet-b1,throughput,...] [--threads 1]

Four questions: how fast is one iteration of Inverting Gradients (at equal results), how many small models' gradients
are inverted per hour, how long until an image is recognisable, and what a thousand targets of one model cost. See
bench/README.md for how each is measured. Ratios count; absolute times move with the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from attackbench import clock, many, quality, report, throughput
from attackbench.cases import VICTIMS, colour_data
from attackbench.environment import DEFAULT_ENVIRONMENT, ensure_environment
from attackbench.rates import measure_rate
from attackbench.theirs import Breaching

THROUGHPUT, QUALITY, MANY = "throughput", "time-to-20db", "many-targets"
OUR_ATTACKS = "rgap;idlg;ig:iterations=1000,tv=0.01,schedule=cosine"
CASES = (*(victim.name for victim in VICTIMS), THROUGHPUT, QUALITY, MANY)


@dataclass(frozen=True)
class Options:
    """The command line.

    Attributes:
        quick: least budgets, about two minutes.
        cases: which parts to run.
        threads: counts each side is measured with; the better counts.
        data_root: where CIFAR-10 lies.
        environment: breaching's virtualenv.
        attacks: fedseal's attacks for the time to 20 dB.
        cap: seconds per image for the same.
        images: per data set for the same.
        repeats: of every rate.
        clock: `wall`, or `cpu` for a busy machine.
        seed: of weights, targets and starts.
    """

    quick: bool
    cases: tuple[str, ...]
    threads: tuple[int, ...]
    data_root: Path | None
    environment: Path
    attacks: tuple[str, ...]
    cap: float
    images: int
    repeats: int
    clock: str
    seed: int


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="least budgets, about two minutes once installed")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated; default: %(default)s")
    parser.add_argument("--threads", type=int, help="measure both sides with this count only; default: 1 and 2")
    parser.add_argument("--data-root", type=Path, help="directory with cifar10_train.npz; else FEDSEAL_DATA")
    parser.add_argument("--environment", type=Path, default=DEFAULT_ENVIRONMENT, help="breaching's virtualenv")
    parser.add_argument(
        "--attacks",
        default=OUR_ATTACKS,
        help="fedseal's for the time to 20 dB, separated by ;",
    )
    parser.add_argument("--cap", type=float, help="seconds per image for the time to 20 dB")
    parser.add_argument("--images", type=int, help="images per data set for the time to 20 dB")
    parser.add_argument("--repeats", type=int, help="repeats of every rate")
    parser.add_argument("--clock", choices=list(clock.CLOCKS), default="wall", help="cpu: for busy machines, 1 thread")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    cases = tuple(name.strip() for name in given.cases.split(",") if name.strip())
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; choose from {', '.join(CASES)}")
    if given.clock == "cpu" and given.threads != 1:
        parser.error("--clock cpu compares processor time, which is speed only with --threads 1")
    cores = os.cpu_count() or 1
    return Options(
        quick=given.quick,
        cases=cases,
        threads=(given.threads,) if given.threads else tuple(count for count in (1, 2) if count <= cores),
        data_root=given.data_root,
        environment=given.environment,
        attacks=tuple(given.attacks.split(";")),
        cap=given.cap or (2.5 if given.quick else 30.0),
        images=given.images or (1 if given.quick else 5),
        repeats=given.repeats or (1 if given.quick else 3),
        clock=given.clock,
        seed=given.seed,
    )


def run(options: Options, console: Console) -> dict[str, Any]:
    """Run the parts asked for, showing and saving each as it ends."""
    started = time.time()
    os.environ[clock.VARIABLE] = options.clock
    colour = colour_data(options.data_root)
    results: dict[str, Any] = {
        "quick": options.quick,
        "threads": list(options.threads),
        "clock": options.clock,
        "seed": options.seed,
        "machine": report.describe_machine(),
    }
    if options.clock == "wall":
        _warn_if_busy(console, results["machine"]["load_at_start"])
    python = ensure_environment(options.environment)
    with Breaching(python) as breaching, tempfile.TemporaryDirectory() as directory:
        results["breaching"] = breaching.ask(do="versions")
        _run_rates(options, console, results, breaching, Path(directory), colour)
        _run_throughput(options, console, results, breaching, Path(directory), colour)
        _run_quality(options, console, results, breaching, Path(directory), colour)
        _run_many(options, console, results, breaching, Path(directory), colour)
    results["seconds"] = time.time() - started
    report.write(results)
    return results


def _run_rates(
    options: Options, console: Console, results: dict[str, Any], breaching: Breaching, directory: Path, colour: str
) -> None:
    rates: list[dict[str, Any]] = []
    for victim in VICTIMS:
        if victim.name not in options.cases:
            continue
        console.print(f"measuring {victim.name} ...")
        rates.append(
            measure_rate(
                victim,
                breaching,
                data=colour,
                data_root=options.data_root,
                directory=directory,
                quick=options.quick,
                repeats=options.repeats,
                threads=options.threads,
                seed=options.seed,
            )
        )
        results["rates"] = rates
        report.write(results)
    if rates:
        report.show_rates(console, rates)


def _run_throughput(
    options: Options, console: Console, results: dict[str, Any], breaching: Breaching, directory: Path, colour: str
) -> None:
    if THROUGHPUT not in options.cases:
        return
    console.print(f"measuring {THROUGHPUT} ...")
    plan = throughput.Plan(
        data=colour,
        data_root=options.data_root,
        targets=64,
        iterations=80 if options.quick else 400,
        sampled=2 if options.quick else 8,
        seed=options.seed,
    )
    results["throughput"] = throughput.measure_throughput(plan, breaching, directory, options.threads)
    report.write(results)
    report.show_throughput(console, results["throughput"])


def _run_quality(
    options: Options, console: Console, results: dict[str, Any], breaching: Breaching, directory: Path, colour: str
) -> None:
    if QUALITY not in options.cases:
        return
    console.print(f"measuring {QUALITY} ...")
    plan = quality.Plan(
        sets=("faces", "digits", colour),
        images=options.images,
        goal=20.0,
        cap=options.cap,
        attacks=options.attacks,
        contenders=quality.QUICK_CONTENDERS if options.quick else quality.CONTENDERS,
        threads=_better_threads(results, options.threads),
        seed=options.seed,
        data_root=options.data_root,
    )
    results["time_to_20db"] = quality.measure_quality(plan, breaching, directory)
    report.write(results)
    report.show_quality(console, results["time_to_20db"])


def _run_many(
    options: Options, console: Console, results: dict[str, Any], breaching: Breaching, directory: Path, colour: str
) -> None:
    if MANY not in options.cases:
        return
    console.print(f"measuring {MANY} ...")
    plan = many.Plan(
        data=colour,
        data_root=options.data_root,
        targets=100 if options.quick else 1000,
        public=1000 if options.quick else 5000,
        sampled=2 if options.quick else 3,
        iterations=(100,) if options.quick else (400, 1000),
        goal=19.0,
        seed=options.seed,
    )
    results["many_targets"] = many.measure_many(plan, breaching, directory)
    report.write(results)
    report.show_many(console, results["many_targets"])


def _better_threads(results: dict[str, Any], threads: tuple[int, ...]) -> tuple[int, int]:
    """Return the counts LeNet ran better with, fedseal's and breaching's; the least if it was not measured."""
    for rate in results.get("rates", ()):
        if rate["case"] == VICTIMS[0].name:
            return rate["fedseal_best"]["threads"], rate["breaching_best"]["threads"]
    return threads[0], threads[0]


def _warn_if_busy(console: Console, load: float | None) -> None:
    if load is not None and load > 0.5:
        console.print(f"load average {load:.2f}: something else is running; use --clock cpu --threads 1, or wait.")


def main() -> None:
    """Run the benchmark."""
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    results = run(parse(), console)
    console.print(f"{results['seconds']:.0f} s; everything is in {os.path.relpath(report.OUT)}")


if __name__ == "__main__":
    main()
