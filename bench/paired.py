"""Differences in PSNR between defences on the same targets, with intervals: what tables of means cannot show.

    python bench/paired.py OUT [DEFENCE]

OUT is the directory of an audit. Every defence is compared with DEFENCE, or with the one named before it; positive
means that it leaks more. Rows are Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedseal.audit.runner import open_run
from fedseal.metrics.intervals import mean_interval
from fedseal.store.records import TrialRecord


def scores(records: tuple[TrialRecord, ...], *, aware: bool) -> dict[str, dict[tuple[str, int, int], float]]:
    """Return PSNR by defence, then by attack, target and image."""
    found: dict[str, dict[tuple[str, int, int], float]] = {}
    for one in records:
        if one.status == "ok" and one.aware == aware:
            mine = found.setdefault(one.defence, {})
            mine.update({(one.attack, one.target, place): value for place, value in enumerate(one.psnr)})
    return found


def main() -> None:
    """Print the table."""
    records = open_run(Path(sys.argv[1])).records
    print("| defence | against | attacker | PSNR, dB | difference, dB | n |\n|---|---|---|---|---|---|")
    for aware in (False, True):
        found = scores(records, aware=aware)
        names = list(found)
        for place, name in enumerate(names):
            other = sys.argv[2] if len(sys.argv) > 2 else names[max(0, place - 1)]
            shared = [key for key in found[name] if key in found.get(other, {})]
            if not shared or name == other:
                continue
            mean = mean_interval(list(found[name].values()))
            apart = mean_interval([found[name][key] - found[other][key] for key in shared])
            cells = (
                f"`{name}`",
                f"`{other}`",
                "aware" if aware else "naive",
                f"{mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}]",
                f"{apart.mean:+.2f} [{apart.low:+.2f}, {apart.high:+.2f}]",
                str(apart.n),
            )
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
