"""Seconds per round: fedseal's in-process engine, a bare PyTorch loop, and Flower's simulation.

    python bench/federation.py [--quick] [--models lenet,resnet18] [--clients 10,100] [--rounds 5] [--threads N]
    python bench/federation.py --sealed [--models lenet,resnet18] [--rounds 5]

Every engine runs the same federation: FedAvg, all clients in every round, the same model, batches of the same size,
plain SGD. fedseal and the loop take turns, so that a machine that slows down slows both; the medians are compared. Both
have all cores: fedseal trains as many clients at once, the loop leaves them to PyTorch. Flower runs in a process of its
own, once as shipped (two cores per client), once with one core per client. Then come rounds of 10, 100
and 1000 clients by fedseal alone, in fresh processes on one thread: seconds of processor time per client, and the peak
of memory. Results go to bench/out/federation.json.

With --sealed only what sealing adds to a round of a Flower federation is measured: `defend` with a ledger and `guard`,
beside the same federation without, in turns (`fedbench.sealed`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fedbench.cases import Case, client_data
from fedbench.engines import by_fedseal, by_hand

HERE = Path(__file__).parent
OUT = HERE / "out" / "federation.json"
WORK = {"lenet": (2, 32), "resnet18": (1, 8)}
"""Local steps and batch size per model."""
GROWTH = (10, 100, 1000)
LIMIT_LOOP, LIMIT_FLOWER = 1.5, 3.0
SEALED_WORK = {"lenet": (2, 50, 32), "resnet18": (1, 32, 16)}
"""Clients, local steps and batch size per model of the federation that is sealed."""
LIMIT_SEALED = 1.05
FLOWER = {"as shipped": 2, "with one core a client": 1}
"""Cores per client of Flower's simulation."""


def in_turns(case: Case, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds per round of fedseal and of the loop, measured alternately."""
    data = [client_data(case, client) for client in range(case.clients)]
    ours: list[float] = []
    bare: list[float] = []
    for turn in range(rounds):
        engines = [(ours, by_fedseal), (bare, by_hand)]
        for times, engine in engines if turn % 2 else reversed(engines):
            times += engine(case, data, 1)[0]
    return ours, bare


def worker(module: str, case: Case, rounds: int, marker: str, timeout: float, *more: int) -> Any:
    """Run a worker and return what it prints after its marker; None if it fails or takes too long."""
    arguments = [case.model, case.clients, case.steps, case.batch, rounds, *more]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": path},
            cwd=HERE,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(marker)]
    if not lines:
        sys.stderr.write(done.stderr[-2000:])
        return None
    return json.loads(lines[-1].removeprefix(marker))


def flower_seconds(case: Case, rounds: int, timeout: float, cores: int) -> tuple[list[float] | None, str]:
    """Return Flower's seconds per round with so many cores per client, or why there are none."""
    for package in ("flwr", "ray"):
        if importlib.util.find_spec(package) is None:
            return None, f"{package} is not installed: pip install 'fedseal[flower]' 'flwr[simulation]'"
    seconds = worker("fedbench.flower_worker", case, rounds, "SECONDS ", timeout, cores)
    return (seconds, "") if seconds else (None, f"failed, or took more than {timeout:.0f} s")


def compare(case: Case, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure one case by all engines."""
    with console.status(case.name):
        ours, bare = in_turns(case, options.rounds)
        runs = {
            name: (None, "left out") if options.no_flower else flower_seconds(case, 2, options.timeout, cores)
            for name, cores in FLOWER.items()
        }
    return {
        **asdict(case),
        "fedseal": ours,
        "loop": bare,
        "flower": {name: seconds for name, (seconds, _) in runs.items()},
        "flower_remark": "; ".join(sorted({why for _, why in runs.values() if why})),
    }


def grow(rounds: int, timeout: float, console: Console) -> list[dict[str, Any]]:
    """Measure fedseal with more and more clients."""
    results = []
    for clients in GROWTH:
        with console.status(f"{clients} clients"):
            found = worker("fedbench.memory_worker", Case("lenet", clients, 1, 8), rounds, "RESULT ", timeout)
        if found is not None:
            per_client = statistics.median(found["seconds"]) / clients
            results.append({"clients": clients, "per_client": per_client, "peak_mb": found["peak_mb"]})
    return results


def show(console: Console, results: list[dict[str, Any]], growth: list[dict[str, Any]], threads: int) -> None:
    """Print what was measured, beside what must hold."""
    table = Table(title=f"milliseconds per round and client, wall time, {threads} core(s)")
    for heading in ("case", "fedseal", "loop", "fedseal / loop", *(f"Flower {name} (/ fedseal)" for name in FLOWER)):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for one in results:
        ours, loop = statistics.median(one["fedseal"]), statistics.median(one["loop"])
        each = 1e3 / one["clients"]
        flowers = [
            f"{each * statistics.median(seconds):,.1f} ({statistics.median(seconds) / ours:.1f}x)" if seconds else "-"
            for seconds in one["flower"].values()
        ]
        name = f"{one['model']}, {one['clients']} clients, {one['steps']} x {one['batch']} images"
        table.add_row(name, f"{each * ours:,.1f}", f"{each * loop:,.1f}", f"{ours / loop:.2f}x", *flowers)
        if one["flower_remark"]:
            console.print(f"Flower: {one['flower_remark']}")
    console.print(table)
    console.print(f"Wanted: at most {LIMIT_LOOP}x the loop at 10 clients, Flower at least {LIMIT_FLOWER}x slower.")
    if growth:
        table = Table(title="fedseal alone: lenet, 1 x 8 images")
        for heading in ("clients", "ms per client", "peak memory (MB)"):
            table.add_column(heading, justify="right")
        for row in growth:
            table.add_row(str(row["clients"]), f"{1e3 * row['per_client']:.2f}", f"{row['peak_mb']:,.0f}")
        console.print(table)


def sealed(models: list[str], rounds: int, console: Console) -> list[dict[str, Any]]:
    """Measure and print what sealing adds to a round."""
    from fedbench.sealed import overhead

    table = Table(title=f"processor seconds per round, median of {rounds}, and a sealed round over a bare one")
    for heading in ("case", "variant", "clients answer at once", "full round", "sealed / bare"):
        table.add_column(heading, justify="left" if heading in ("case", "variant") else "right")
    results = []
    for model in models:
        clients, steps, batch = SEALED_WORK[model]
        case = Case(model, clients, steps, batch, examples=steps * batch)
        with console.status(f"{case.name}, sealed"):
            found = overhead(case, rounds)
        full = f"{statistics.median(found.full):.3f}"
        for name, times in found.quick.items():
            shown = full if name == "bare" else ""
            table.add_row(case.name, name, f"{statistics.median(times):.4f}", shown, f"{found.ratio(name):.4f}x")
        results.append({**asdict(case), **asdict(found)})
    console.print(table)
    console.print(f"Wanted: at most {LIMIT_SEALED}x with seal, ledger and guard. The monitor: bench/watch.py.")
    return results


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="LeNet and 10 clients, few rounds")
    parser.add_argument("--models", default="lenet,resnet18", help="comma-separated, of " + ", ".join(WORK))
    parser.add_argument("--clients", default="10,100", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5, help="measured per engine, each after one to warm up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores of fedseal and loop")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower out")
    parser.add_argument("--sealed", action="store_true", help="only what sealing adds to a round of Flower")
    parser.add_argument("--no-growth", action="store_true", help="leave out the rounds of up to 1000 clients")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for Flower, per case")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    models = ["lenet"] if options.quick else options.models.split(",")
    if options.sealed:
        sealed(models, options.rounds, console)
        return
    counts = [10] if options.quick else [int(text) for text in options.clients.split(",")]
    options.rounds = 3 if options.quick else options.rounds
    results = [compare(Case(model, count, *WORK[model]), options, console) for model in models for count in counts]
    growth = [] if options.no_growth else grow(1, options.timeout, console)
    show(console, results, growth, options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    environment = {"torch": torch.__version__, "threads": options.threads, "cores": os.cpu_count()}
    document = {"environment": environment, "results": results, "growth": growth}
    options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
