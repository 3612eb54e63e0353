"""Run the campaign: `python -m campaign [--full] [--only PART] [--write PAGE]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from campaign.clients import hostile_clients
from campaign.commands import commands
from campaign.files import hostile_files
from campaign.kills import kills
from campaign.outcomes import WRONG, Tally
from campaign.updates import odd_updates

BEGIN, END = "<!-- campaign -->", "<!-- /campaign -->"


def main() -> int:
    """Run the parts, print the table, write it into a page if asked, and return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="campaign", description="Attack fedseal itself, and count.")
    parser.add_argument("--full", action="store_true", help="ten times as many")
    parser.add_argument("--only", action="append", default=[], help="files, clients, updates, kills or commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    times = 10 if options.full else 1
    with tempfile.TemporaryDirectory(prefix="fedseal-campaign-") as name:
        place = Path(name)
        parts: dict[str, Callable[[], Tally]] = {
            "commands": lambda: commands(place / "commands"),  # these two fork, so nothing may have computed before
            "kills": lambda: kills(10 * times, place / "kills", options.seed),
            "files": lambda: hostile_files(1000 * times, place / "files", options.seed),
            "clients": lambda: hostile_clients(100 * times, options.seed),
            "updates": lambda: odd_updates(100 * times, options.seed),
        }
        tallies = [_timed(part, run) for part, run in parts.items() if not options.only or part in options.only]
    table = render(tallies, "python -m campaign" + (" --full" if options.full else ""), options.seed)
    sys.stdout.write(table)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        options.write.write_text(f"{head}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 1 if any(tally.wrong for tally in tallies) else 0


def _timed(name: str, run: Callable[[], Tally]) -> Tally:
    started = time.monotonic()
    sys.stderr.write(f"{name} ...\n")
    tally = run()
    sys.stderr.write(f"{name}: {tally.tried} in {time.monotonic() - started:.0f} s, {tally.wrong} wrong\n")
    return tally


def render(tallies: list[Tally], command: str, seed: int) -> str:
    """Return the table of counts."""
    lines = [
        f"`{command}`, seed {seed}:",
        "",
        "| campaign | tried | parts | refused in words | taken, and right | " + " | ".join(WRONG) + " |",
        "|---|" + "---:|" * (4 + len(WRONG)),
    ]
    for tally in tallies:
        parts = len({part for part, _ in tally.counts})
        counts = [tally.of(outcome) for outcome in WRONG]
        lines.append(
            f"| {tally.name} | {tally.tried:,} | {parts} | {tally.of('refused'):,} | {tally.of('taken'):,} | "
            + " | ".join(map(str, counts))
            + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
