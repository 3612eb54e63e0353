"""The report for people: one HTML file that needs no network and no script.

Everything the templates print is escaped by Jinja; a content security policy in the page forbids what is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedseal._version import VERSION
from fedseal.audit.cells import Row, row_severity
from fedseal.audit.comparison import Comparison
from fedseal.audit.levels import STATE_WORDS, State
from fedseal.audit.nearness import row_findings
from fedseal.audit.run import Run
from fedseal.audit.sentences import DECIDER_WORDS, picked_words
from fedseal.audit.verdict import Verdict
from fedseal.audit.why import reasons
from fedseal.metrics.scales import PSNR, scale_called
from fedseal.report import words
from fedseal.report.charts import ChanceChart, Sparkline, chance_chart, sparkline
from fedseal.report.commands import cell_command, scenario_file
from fedseal.report.costs import CostTable, cost_table
from fedseal.report.decision import decide
from fedseal.report.gallery import Gallery, build_gallery
from fedseal.report.identifiers import IDENTIFIERS
from fedseal.report.ledger import Capability, merge_ledgers
from fedseal.report.matrix import Matrix, Square, matrices, worst_cell
from fedseal.report.readings import RowReadings, row_readings
from fedseal.report.redaction import redacted_run
from fedseal.store.findings import Finding
from fedseal.training.run import TrainingRun

LEAD_PAIRS = 4
"""Pairs shown of the worst cell, on page one."""
TABLE_ROWS = 16
"""Defences in the table of readings, over all scenarios, so that it prints on a page; the appendix has them all."""
ROW_PAIRS = 4
"""Pairs shown of each defence's worst cell."""


@dataclass(frozen=True)
class ScenarioPart:
    """What the report says of one scenario."""

    name: str
    matrix: Matrix
    readings: tuple[RowReadings, ...]
    galleries: tuple[tuple[Row, Gallery], ...]
    chart: ChanceChart
    costs: CostTable
    ledger: tuple[Capability, ...]
    findings: tuple[Finding, ...]
    sparklines: tuple[tuple[Row, tuple[Sparkline, ...]], ...]
    commands: tuple[tuple[Square, str], ...]


@dataclass(frozen=True)
class Settings:
    """A scenario as the YAML file that holds it."""

    name: str
    file: str
    yaml: str
    seed: int


def render_html(
    run: Run, *, redact: bool = False, comparison: Comparison | None = None, training: TrainingRun | None = None
) -> str:
    """Return the report as one self-contained HTML file.

    Args:
        run: what to report; it may be incomplete, and the page says so.
        redact: leave out originals and reconstructions; no artefact is opened.
        comparison: with an earlier run, told as a section.
        training: under the same defences; what each leaves of the accuracy then stands on page one.
    """
    run = redacted_run(run) if redact else run
    verdict = run.verdict()
    worst = worst_cell(verdict.cells)
    decision = decide(run, verdict, training)
    text = (
        template_environment(run.scale)
        .get_template("report.html")
        .render(
            run=run,
            redact=redact,
            comparison=comparison,
            decision=decision,
            identifiers=IDENTIFIERS,
            rows_shown=max(2, TABLE_ROWS // max(1, len(run.scenarios))),
            version=VERSION,
            verdict=verdict,
            safest=_safest_defence(verdict, decision.advice.defence),
            lead=None if worst is None else build_gallery(run, worst, limit=LEAD_PAIRS, redact=redact),
            parts=[_part(run, matrix, redact) for matrix in matrices(verdict)],
            settings=_settings(run),
            states=[(state, STATE_WORDS[state]) for state in State if not state.settled],
            deciders=DECIDER_WORDS,
            stray_findings={name: found for name, found in run.findings.items() if found and name not in _names(run)},
        )
    )
    return words.printable(text)


def _names(run: Run) -> set[str]:
    return {record.scenario for record in run.records}


def _safest_defence(verdict: Verdict, recommended: str | None) -> Row | None:
    """Return the defence that is recommended, else that with the best news; what is not settled is never called so."""
    worst: dict[str, Row] = {}
    for row in verdict.judged:
        if row.defence != "none":
            worst[row.defence] = max(worst.get(row.defence, row), row, key=row_severity)
    settled = [row for row in worst.values() if row.state is not None and row.state.settled]
    return worst.get(recommended or "") or min(settled, key=row_severity, default=None)


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ("problem", "warning", "note").index(finding.severity))


def _part(run: Run, matrix: Matrix, redact: bool) -> ScenarioPart:
    galleries = tuple(
        (row, build_gallery(run, row.worst, limit=ROW_PAIRS, redact=redact)) for row in matrix.rows if row.worst
    )
    sparks = ((row, tuple(s for c in row.cells if (s := sparkline(c)))) for row in matrix.rows)
    return ScenarioPart(
        name=matrix.scenario,
        matrix=matrix,
        readings=row_readings(run, matrix, redact=redact),
        galleries=galleries,
        chart=chance_chart(matrix),
        costs=cost_table(matrix),
        ledger=merge_ledgers([r for row in matrix.rows for cell in row.cells for r in cell.records]),
        findings=run.findings.get(matrix.scenario, ()),
        sparklines=tuple((row, group) for row, group in sparks if group),
        commands=tuple((square, cell_command(run, square.cells[0])) for square in matrix.squares),
    )


def _settings(run: Run) -> tuple[Settings, ...]:
    return tuple(
        Settings(
            scenario.name,
            scenario_file(scenario.name),
            yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
            scenario.seed,
        )
        for scenario in run.scenarios
    )


@cache
def template_environment(scale: str = PSNR.name) -> Environment:
    """Return the environment all pages are rendered in: everything is escaped, an unknown name is an error.

    Args:
        scale: what the page's scores are measured in.
    """
    measured = scale_called(scale)
    environment = Environment(
        loader=PackageLoader("fedseal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["measured"] = measured
    environment.filters.update(
        {
            "attacker": words.attacker,
            "breakable": words.breakable,
            "capital": words.capital,
            "cell_name": words.cell_name,
            "change_words": words.change_words,
            "code_ticks": words.code_ticks,
            "decibel": words.decibel if measured is PSNR else words.number,
            "duration": words.duration,
            "ideal_words": words.ideal_words,
            "label_words": words.label_words,
            "moment": words.moment,
            "number": words.number,
            "percentage": words.percentage,
            "picked_words": picked_words,
            "plural": words.plural,
            "recognisable": partial(words.recognisable, scale=measured),
            "risk": words.risk,
            "row_findings": row_findings,
            "significant": words.significant,
            "size": words.size,
            "shell_words": words.shell_words,
            "slug": words.slug,
            "span": words.span,
            "why": reasons,
            "worst_first": _worst_first,
        }
    )
    return environment
