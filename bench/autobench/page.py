"""The page of the comparison."""

from __future__ import annotations

from typing import Any

from autobench.networks import CONTROL, CONTROL_ROW, NETWORKS, SINGLE
from fedseal.metrics.shares import share_interval


def page(kept: dict[str, dict[str, Any]], data: str, made: str = "") -> str:
    """Return the page of the rows that were run.

    Args:
        kept: the rows by title.
        data: spec of the data set.
        made: which commit they are from.
    """
    columns = ["auto", *SINGLE]
    rows = {title: row for title, row in kept.items() if title != CONTROL_ROW}
    lines = [
        "# `auto` and single attacks at equal processor time",
        "",
        *([f"{made}", ""] if made else []),
        f"By `python bench/auto.py --data-root DIR --write` on {data}, one core, beside other jobs,",
        "undefended updates. In each cell: mean PSNR in dB over the targets, originals that are first among 200 by",
        "correlation, processor minutes of the whole cell, iterations per target. `auto` includes its work on shadows",
        "and all it learns; searches get the iterations that fit into the same time. *Difference* is `auto` minus the",
        "best single attack, picked by its mean on these very targets: paired over targets, 95 % interval. *Guess* is",
        "the mean public image. Budgets are cut to what two hours allow, a half and less of what an audit takes by",
        "default, and the work on shadows is shared by a few targets only: both count against `auto`. Budgets of two",
        "networks at batch 4 were raised after `auto` had been reliably worse untrained with 16 iterations: ViT-tiny's",
        "to 60, ResNet-10's to 200 and from four to eight targets (before: -1.06 [-3.06, -0.24], -3.00 [-15.27, -0.39]",
        "dB), so budgets of a few iterations are where it loses. What is found says nothing of what an update holds:",
        "that is the [ideal reading](../information.md).",
        "",
        "| network, stage, batch | guess | " + " | ".join(f"`{name}`" for name in columns) + " | difference |",
        "|" + "---|" * (len(columns) + 3),
    ]
    every = [
        f"{name}, {stage}, b{batch}" for batch in (1, 4) for name in NETWORKS for stage in ("untrained", "trained")
    ]
    rows = {title: rows[title] for title in (*every, *(title for title in rows if title not in every)) if title in rows}
    for title, row in rows.items():
        cells = [_cell(row["cells"].get(name)) for name in columns]
        trained = "" if row["accuracy"] is None else f" ({100 * row['accuracy']:.0f} % right)"
        found = row["difference"]
        difference = f"{found['mean']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}] to `{row['best']}`"
        lines.append(f"| {title}{trained} | {row['guess']} | " + " | ".join(cells) + f" | {difference} |")
    missing = [title for title in every if title not in rows]
    counts = sorted({(row["targets"], row["public"]) for row in rows.values()})
    worse = [title for title, row in rows.items() if row["difference"]["high"] < 0]
    best = [title for title, row in rows.items() if row["difference"]["mean"] >= 0]
    fewer = [title for title, row in rows.items() if row["cells"]["auto"]["first"] < _most_first(row["cells"])]
    told = "; ".join(fewer)
    lines += [
        "",
        "Targets and public images per row: " + ", ".join(f"{t} and {p:,}" for t, p in counts) + ".",
        f"`auto` is at least as good by the mean in {len(best)} of {len(rows)} rows, and within the interval in "
        f"{len(rows) - len(worse)}" + (f"; it is reliably worse in: {'; '.join(worse)}." if worse else "."),
        "Few targets make wide intervals: several dB may lie within, so the means are what to look at.",
        *([f"It singles out fewer than the best single attack does in: {told}."] if fewer else []),
        *([f"Not run yet, so nothing is claimed of: {'; '.join(missing)}."] if missing else []),
        *(_told_of_control(kept[CONTROL_ROW]) if CONTROL_ROW in kept else []),
    ]
    return "\n".join(lines) + "\n"


def _most_first(cells: dict[str, Any]) -> int:
    return max(cell["first"] for cell in cells.values())


def _told_of_control(control: dict[str, Any]) -> list[str]:
    cell = control["cell"]
    share = share_interval(cell["first"], cell["images"])
    return [
        "",
        "## Does anything break an undefended ResNet?",
        "",
        f"`{CONTROL.model}`, untrained, running statistics, one image: `learned` from {CONTROL.public:,} public",
        f"images finds {cell['mean']:.2f} dB (guess {control['guess']}), and {cell['first']} of {cell['images']}",
        f"originals are first among 200 ({100 * share.low:.0f} to {100 * share.high:.0f} %, chance 0.5 %),",
        f"in {cell['seconds'] / 60:.2f} processor minutes, learning included.",
    ]


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    steps = "" if cell["iterations"] is None else f", {cell['iterations']} its"
    return f"{cell['mean']:.2f}, {cell['first']}/{cell['images']}, {cell['seconds'] / 60:.2f} min{steps}"
