"""The page of the comparison."""

from __future__ import annotations

from typing import Any

from fedseal.metrics.intervals import Interval, mean_interval
from priorbench.grid import COLUMNS, FEW, MANY, PUBLIC, every_row


def page(rows: dict[str, dict[str, Any]], made: str = "") -> str:
    """Return the page of the rows that were run.

    Args:
        rows: by name.
        made: which commit they are from.
    """
    columns = [*COLUMNS, "denoised"]
    shown = {name: row for name, row in rows.items() if row["cells"]}
    differences = {name: _differences(row["cells"]) for name, row in shown.items()}
    lines = [
        "# Learned priors and total variation at equal processor time",
        "",
        *([f"{made}", ""] if made else []),
        "By `python bench/priors.py --data-root DIR` and `--write`, one core, beside other jobs. In each cell: mean",
        "PSNR in dB over the targets (*found*), originals first among strangers by correlation (*singled out*),",
        "processor seconds for each target, and iterations; below it the difference to `tv`, paired over targets,",
        "with its 95 % interval. *Ideal* is what the update holds, read on the first target with a Gaussian prior:",
        "others may tell more, and who has learned more of images than a Gaussian prior can find more;",
        f"*guess* is the mean public image. The priors ([docs](../priors.md)) were trained on {PUBLIC:,} public",
        "CIFAR-10 images, 15 to 62 s of one core each and `gan` 523 s, which is not in the time; nor that `denoised`",
        "first attacks 24 shadow targets and learns from them; the denoiser it begins",
        "with has seen some of their images. Weights were chosen on shadows that no prior was trained on, and so was",
        "whether to simulate the defence. Labels are given. Budgets are small, so that a search for a whole page ends;",
        f"a dash was not run. {MANY} targets in the first row, {FEW} in others; seed 0. Rows end in the data of the",
        "client: CIFAR-10 as the priors', or SVHN, whose like they have never seen.",
        "",
        "| network / defence / batch / data | guess | ideal | " + " | ".join(f"`{name}`" for name in columns) + " |",
        "|" + "---|" * (len(columns) + 3),
    ]
    for name, row in shown.items():
        away = differences[name]
        cells = " | ".join(_cell(row["cells"].get(column), away.get(column)) for column in columns)
        ideal = "unknown" if row.get("unread") else "–" if row.get("ideal") is None else f"{row['ideal']:.1f}"
        lines.append(f"| {name} ({row['targets']}) | {row['guess']:.1f} | {ideal} | {cells} |")
    missing = [str(row) for row in every_row() if str(row) not in shown]
    unread: dict[str, list[str]] = {}
    for name, row in shown.items():
        if row.get("unread"):
            unread.setdefault(row["unread"], []).append(name)
    refused = [f"{name}: {row['refused']}" for name, row in rows.items() if "refused" in row]
    ignored = [name for name, row in shown.items() if ignores(row.get("way", {}))]
    lines += ["", f"The defence is ignored, as that did better on shadows, in: {', '.join(ignored) or 'no row'}."]
    lines += ["", *_summary(shown, differences)]
    lines += ["", f"Not run, so nothing is claimed of: {', '.join(missing)}."] if missing else []
    for reason, names in unread.items():
        lines += ["", f"What the update holds cannot be read in {', '.join(names)}: {reason}"]
    lines += ["", "Refused: " + "; ".join(refused)] if refused else []
    return "\n".join(lines) + "\n"


def _summary(shown: dict[str, dict[str, Any]], differences: dict[str, dict[str, Interval]]) -> list[str]:
    """Return a table of how often each column finds reliably more or less than total variation, and singles out."""
    lines = [
        "Over the rows that have the column, against `tv` (reliably: the interval excludes zero):",
        "",
        "| | rows | reliably nearer | reliably further | dB, least to most | singles out more | fewer |",
        "|---|---|---|---|---|---|---|",
    ]
    for column in [*(name for name in COLUMNS if name != "tv"), "denoised"]:
        rows = {name: found[column] for name, found in differences.items() if column in found}
        if not rows:
            continue
        more = [shown[name]["cells"][column]["first"] - shown[name]["cells"]["tv"]["first"] for name in rows]
        means = [away.mean for away in rows.values()]
        lines.append(
            f"| `{column}` | {len(rows)} | {sum(away.low > 0 for away in rows.values())} "
            f"| {sum(away.high < 0 for away in rows.values())} | {min(means):+.1f} to {max(means):+.1f} "
            f"| {sum(one > 0 for one in more)} | {sum(one < 0 for one in more)} |"
        )
    return lines


def _differences(cells: dict[str, Any]) -> dict[str, Interval]:
    """Return by column what it finds more than total variation, paired over targets."""
    plain = cells["tv"]["psnr"]
    return {
        name: mean_interval([a - b for a, b in zip(cell["psnr"], plain, strict=True)])
        for name, cell in cells.items()
        if name != "tv"
    }


def _cell(cell: dict[str, Any] | None, away: Interval | None) -> str:
    if cell is None:
        return "–"
    text = f"{cell['mean']:.2f}, {cell['first']}/{cell['ranked']}, {cell['seconds']:.2f} s, {cell['iterations']}"
    return text if away is None else f"{text}<br>{away.mean:+.2f} [{away.low:+.2f}, {away.high:+.2f}]"


def ignores(reached: dict[str, float]) -> bool:
    """Return whether acting as one who does not know the defence did better on shadows."""
    return bool(reached) and reached["ignored"] > reached["simulated"]
