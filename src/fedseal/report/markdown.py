"""A run as Markdown tables, for results kept beside the code."""

from __future__ import annotations

import html

from fedseal.audit.cells import Cell
from fedseal.audit.run import Run
from fedseal.audit.scenario import ClientConfig
from fedseal.metrics.intervals import Interval
from fedseal.metrics.scales import PSNR
from fedseal.report.words import ideal_words, label_words, picked_share


def render_markdown(run: Run) -> str:
    """Return one table per scenario: every cell with intervals, baselines and n; what failed or was refused is said."""
    cells = run.verdict().cells
    parts = []
    for scenario in run.scenarios:
        own = [cell for cell in cells if cell.scenario == scenario.name]
        client = scenario.client
        parts.append(
            f"## {escaped(scenario.name)}\n\n"
            f"{escaped(scenario.model)} on {escaped(scenario.data)}, "
            f"batch {client.batch_size}, local steps {client.local_steps}{_passes(client)}, "
            f"batch normalisation `{client.bn_mode}`, labels `{scenario.attacker.labels}`, seed {scenario.seed}. "
            f"{_chance(own)}\n\n" + _head(own) + "\n".join(map(_row, own)) + "\n"
        )
    return "\n".join(parts)


def _passes(client: ClientConfig) -> str:
    """Return how often the steps are gone through and by which rule, where that is not once and plainly."""
    again = "" if client.local_epochs == 1 else f" in each of {client.local_epochs} passes"
    return again + ("" if client.rule.is_plain else f" by {client.rule.describe()}")


def _head(cells: list[Cell]) -> str:
    """Return the table's head in the words of what was measured."""
    scale = next((cell.scale for cell in cells if cell.psnr is not None), PSNR)
    unit, image = scale.unit, scale is PSNR
    looks, ideal = (" SSIM | LPIPS |", f"ideal ({unit})") if image else ("", "ideal")
    return (
        f"| attack | defence | attacker | {scale.title} ({unit}) |{looks} attacker-best ({unit}) | "
        f"best {scale.noun} ({unit}) | labels | over chance ({unit}) | picked out | {ideal} | n | s per batch | "
        "risk | decided by |\n" + "|---" * (16 if image else 14) + "|\n"
    )


def _chance(cells: list[Cell]) -> str:
    done = next((cell for cell in cells if cell.psnr is not None), None)
    if done is None:
        return ""
    names = done.succeeded[0].baselines
    means = {
        name: sum(sum(r.baselines[name]) for r in done.succeeded) / sum(len(r.baselines[name]) for r in done.succeeded)
        for name in names
    }
    return (
        f"Chance, in {done.scale.unit}: "
        + ", ".join(f"{escaped(name.replace('_', ' '))} {value:.1f}" for name, value in means.items())
        + "."
    )


def _row(cell: Cell) -> str:
    who = "aware" if cell.aware else "naive"
    head = f"| {escaped(cell.attack)} | {escaped(cell.defence)} | {who} |"
    if cell.psnr is None or cell.standing is None:
        why = cell.refused.message if cell.refused else f"{len(cell.failed)} trials failed"
        return f"{head} {'not applicable: ' if cell.refused else ''}{escaped(why)} |" + " |" * 12
    done = cell.succeeded
    seconds = sum(r.seconds for r in done) / len(done)
    looks = f" {_interval(cell.ssim, 2)} | {_interval(cell.lpips, 2)} |" if cell.scale is PSNR else ""
    return (
        f"{head} {_interval(cell.psnr)} |{looks} "
        f"{_interval(cell.best_psnr)} | {cell.max_psnr:.1f} | {label_words(cell.labels)} | "
        f"{_interval(cell.excess)} | {picked_share(cell.picked)} | {ideal_words(cell.ideal)} | {len(done)} | "
        f"{seconds:.1f} | {cell.standing.words} | {cell.decided or '–'} |"
    )


def escaped(text: str) -> str:
    """Return text that stays text in a cell of a Markdown table: no column, tag or line of its own."""
    return " ".join(html.escape(text, quote=False).replace("|", "&#124;").split())


def _interval(interval: Interval | None, digits: int = 1) -> str:
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
