"""Tables for the terminal and one JSON file with everything."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import fedseal
from attackbench.environment import BENCH

OUT = BENCH / "out" / "attacks.json"


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    commit = subprocess.run(
        ["git", "-C", str(BENCH), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedseal": fedseal.__version__,
        "commit": commit.stdout.strip() or None,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def write(results: dict[str, Any]) -> None:
    """Write the results so far; a run that is interrupted keeps them."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(results, indent=1), encoding="utf-8")


def show_rates(console: Console, rates: list[dict[str, Any]]) -> None:
    """Print part 1."""
    table = Table(title="Inverting Gradients, same victim, target, start and iterations (slopes)")
    table.add_column("case")
    for name in ("fedseal it/s", "breaching it/s", "ratio", "dB fedseal", "dB breaching", "dB as shipped", "at"):
        table.add_column(name, justify="right")
    for rate in rates:
        our, their = rate["fedseal_best"], rate["breaching_best"]
        remark = " noisy" if our["noisy"] or their["noisy"] else ""
        table.add_row(
            rate["case"],
            f"{our['per_second']:.2f} ({our['threads']}t)",
            f"{their['per_second']:.2f} ({their['threads']}t)",
            f"{rate['ratio']:.2f}x{remark}",
            f"{our['psnr']:.2f}",
            f"{rate['breaching_psnr_same_objective']:.2f}",
            f"{their['psnr']:.2f}",
            f"{rate['iterations'][1]} it",
        )
    console.print(table)
    console.print(
        f"images: {', '.join(sorted({rate['data'] for rate in rates}))}; (n t): threads; `dB breaching`: the same "
        "objective as fedseal's; `as shipped`: with a border of zeros in its total variation."
    )
    for rate in rates:
        if abs(rate["psnr_difference"]) > 0.2:
            console.print(f"{rate['case']}: PSNRs differ by {rate['psnr_difference']:+.2f} dB; not the same attack?")
        if not rate["same_iterations"]:
            console.print(f"{rate['case']}: a side stopped before the iterations asked for; see `runs` in the JSON.")


def show_throughput(console: Console, result: dict[str, Any]) -> None:
    """Print part 2."""
    table = Table(title=f"LeNet b1, {result['targets']} targets of {result['data']}, {result['iterations']} iterations")
    table.add_column("who")
    for name in ("threads", "reconstructions/hour", "ratio"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(row["name"], str(row["threads"]), f"{row['per_hour']:,.0f}", f"{row['ratio']:.2f}x")
    console.print(table)
    console.print(
        f"breaching is timed on {result['sampled_by_breaching']} targets and extrapolated; "
        f"on these its mean PSNR differs by {-result['psnr_difference']:+.2f} dB."
    )


def show_quality(console: Console, result: dict[str, Any]) -> None:
    """Print part 3."""
    threads = result["threads"]
    table = Table(
        title=f"Time to {result['goal_db']:g} dB, LeNet b1, {result['images']} image(s) per set, "
        f"at most {result['cap_seconds']:g} s; threads {threads['fedseal']} / {threads['breaching']}"
    )
    for name in ("data", "who", "attack"):
        table.add_column(name)
    for name in ("reached", "median s", "best dB"):
        table.add_column(name, justify="right")
    for one in result["sets"]:
        for row in one["rows"]:
            mark = " *" if row["name"] in (one["fedseal_best"], one["breaching_best"]) else ""
            time = f"{row['median_seconds']:.3f}" if row["median_reached"] else f"> {row['median_seconds']:.3g}"
            table.add_row(
                one["data"],
                row["side"],
                row["name"] + mark,
                f"{row['reached']}/{row['of']}",
                time,
                f"{row['median_best_db']:.1f}",
            )
        table.add_section()
    console.print(table)
    for one in result["sets"]:
        for whose, key in (("best", "ratio"), ("IG", "ratio_ig")):
            kind = one[f"{key}_is"]
            bound = "" if kind == "exact" else f"{kind} "
            said = "neither side got there in time" if kind == "unknown" else f"{bound}{one[key]:.1f}x"
            console.print(f"{one['data']}: time of breaching's {whose} over fedseal's best (*): {said}")


def show_many(console: Console, result: dict[str, Any]) -> None:
    """Print part 4."""
    table = Table(title=f"{result['model']} b1, {result['targets']} targets of {result['data']}, processor time")
    table.add_column("who")
    for name in ("mean dB", "s per target", "s in all"):
        table.add_column(name, justify="right")
    ours = result["fedseal_seconds"]
    name = f"fedseal, learned from {result['public']} public images, learning included"
    each = ours / result["targets"]
    table.add_row(name, f"{result['fedseal_psnr']:.2f}", f"{each:.3f}", f"{ours:.1f}")
    for row in result["rows"]:
        seconds = row["seconds_per_target"]
        table.add_row(
            f"breaching, {row['name']}", f"{row['psnr']:.1f}", f"{seconds:.2f}", f"{seconds * result['targets']:,.0f}"
        )
    console.print(table)
    reached = "the fastest that reaches" if result["breaching_reached"] else "the best, which does not reach"
    console.print(
        f"breaching is timed on {result['sampled_by_breaching']} targets, on which fedseal has "
        f"{result['fedseal_psnr_on_sampled']:.1f} dB; {reached} {result['goal_db']:g} dB "
        f"({result['breaching']}) takes {result['ratio']:.0f}x as long."
    )
