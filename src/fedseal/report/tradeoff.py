"""A trade-off for people: an HTML page, the chart alone as SVG and PNG, and a Markdown table."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedseal._version import VERSION
from fedseal.core.files import write_atomically
from fedseal.metrics.intervals import Interval
from fedseal.metrics.scales import PSNR, Scale
from fedseal.report import words
from fedseal.report.html import template_environment
from fedseal.report.tradeoff_chart import HEIGHT, WIDTH, TradeoffChart, hue_degrees, tradeoff_chart
from fedseal.report.tradeoff_machine import tradeoff_csv, tradeoff_json
from fedseal.report.tradeoff_png import tradeoff_png
from fedseal.tradeoff.curves import KEPT_UTILITY, Curve, Point, Tradeoff

_LOOKS = " SSIM naive | SSIM aware | LPIPS naive | LPIPS aware |"


def write_tradeoff_reports(tradeoff: Tradeoff, directory: Path) -> dict[str, Path]:
    """Write `tradeoff.html`, `.svg`, `.png`, `.md`, `.json` and `.csv` into `directory`; return their paths by kind."""
    chart = tradeoff_chart(tradeoff)
    contents: dict[str, str | bytes] = {
        "html": render_tradeoff_html(tradeoff, chart),
        "svg": _render("tradeoff.svg", tradeoff, chart),
        "png": tradeoff_png(chart),
        "md": render_tradeoff(tradeoff),
        "json": tradeoff_json(tradeoff),
        "csv": tradeoff_csv(tradeoff),
    }
    paths = {kind: directory / f"tradeoff.{kind}" for kind in contents}
    for kind, content in contents.items():
        write_atomically(paths[kind], content)
    return paths


def render_tradeoff_html(tradeoff: Tradeoff, chart: TradeoffChart) -> str:
    """Return the page."""
    return words.printable(_render("tradeoff.html", tradeoff, chart))


def _render(template: str, tradeoff: Tradeoff, chart: TradeoffChart) -> str:
    return (
        template_environment()
        .get_template(template)
        .render(
            tradeoff=tradeoff,
            scale=tradeoff.scale,
            chart=chart,
            width=WIDTH,
            height=HEIGHT,
            angle=hue_degrees,
            kept=KEPT_UTILITY,
            version=VERSION,
            settings=yaml.safe_dump(tradeoff.scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
    )


def render_tradeoff(tradeoff: Tradeoff) -> str:
    """Return the points as a Markdown table, undefended first."""
    scenario = tradeoff.scenario
    trained, attacked = scenario.model, scenario.attacked_model or scenario.model
    seeds = words.plural(scenario.seeds, "training seed")
    scale, guess = tradeoff.scale, tradeoff.chance_psnr
    title = scale.title[0].upper() + scale.title[1:]
    chance = "" if guess is None else f" The best guess without the update: {guess:.1f} {scale.unit}."
    head = (
        f"# Privacy against utility: {scenario.name}\n\nBy `{tradeoff.audit.command}`.\n\n"
        f"`{trained}` trained for {words.plural(scenario.federation.rounds, 'round')} by "
        f"{words.plural(scenario.clients, 'client')} on `{scenario.data}` ({seeds} from {scenario.seed}); "
        f"`{attacked}` attacked at batch {scenario.client.batch_size} on "
        f"{words.plural(scenario.targets, 'target')} by {', '.join(f'`{a}`' for a in scenario.attacks)}, "
        f"labels {scenario.attacker.labels}. {title} is the worst over attacks, mean over targets with its "
        f"95 % bootstrap interval.{chance} Undefended accuracy: {_accuracy(tradeoff.undefended)}.\n"
    )
    points = tradeoff.points
    costs = [
        f"| defence | PMM | accuracy | AUC | worst {scale.title} | upload per client | time per round |",
        "|---" * 7 + "|",
    ]
    costs += [_cost_row(point, tradeoff.undefended, scale.unit) for point in points]
    leaks = [
        f"| defence | attack | {title} naive | {title} aware |{_LOOKS if scale is PSNR else ''} n |",
        "|---" * (9 if scale is PSNR else 5) + "|",
    ]
    leaks += [_leak_row(point, attack, scale) for point in points for attack in scenario.attacks]
    best = [f"- {curve.sweep.family}: {choice(tradeoff, curve)}" for curve in tradeoff.curves]
    caution = [tradeoff.caution, ""] if tradeoff.caution else []
    return "\n".join([head, *caution, *costs, "", *leaks, "", *best]) + "\n"


def choice(tradeoff: Tradeoff, curve: Curve) -> str:
    """Return which strength of a defence to take, or why none."""
    if tradeoff.caution:
        return "none is recommended: the undefended federation has learnt nothing"
    if curve.best is not None and curve.best.worst is not None:
        return (
            f"`{curve.best.defence}` leaks least of the strengths that keep {KEPT_UTILITY:g} % of the accuracy "
            f"({_interval(curve.best.worst.psnr)} {tradeoff.scale.unit})"
        )
    if any(point.pmm for point in curve.points):
        return f"no strength keeps {KEPT_UTILITY:g} % of the accuracy and learns more than chance"
    return "not trained"


def _cost_row(point: Point, plain: Point, unit: str) -> str:
    utility, worst = point.utility, point.worst
    pmm = _interval(point.pmm) if point.pmm else f"not trained: {utility.refused}" if utility.refused else words.ABSENT
    leak = "–" if worst is None else f"{_interval(worst.psnr)} {unit} ({'aware' if worst.aware else 'naive'})"
    ratio = (
        f"{utility.seconds / plain.utility.seconds:.2f}x" if utility.seconds and plain.utility.seconds else words.ABSENT
    )
    figures = [pmm, _accuracy(point), _interval(utility.auc, 3), leak, words.size(utility.bytes_up), ratio]
    return f"| `{point.defence}` | " + " | ".join(figures) + " |"


def _leak_row(point: Point, attack: str, scale: Scale) -> str:
    naive, aware = (point.cell(aware=known, attack=attack) for known in (False, True))
    if naive is None and aware is None:
        cells = () if point.row is None else point.row.cells
        said = next((record.message for c in cells if c.attack == attack for record in c.records if record.message), "")
        return f"| `{point.defence}` | `{attack}` | {said or 'not attacked'} |" + " |" * (6 if scale is PSNR else 2)
    both = (naive, aware)
    figures = [_interval(cell.psnr if cell else None) for cell in both]
    if scale is PSNR:
        figures += [_interval(cell.ssim if cell else None, 2) for cell in both]
        figures += [_interval(cell.lpips if cell else None, 2) for cell in both]
    count = next((cell.psnr.n for cell in both if cell and cell.psnr), 0)
    return f"| `{point.defence}` | `{attack}` | " + " | ".join(figures) + f" | {count} |"


def _accuracy(point: Point) -> str:
    utility = point.utility
    if utility.accuracy is None:
        return "not trained"
    return f"{utility.accuracy.mean:.1%}" + ("" if utility.learnt else " (chance)")


def _interval(interval: Interval | None, digits: int = 1) -> str:
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
