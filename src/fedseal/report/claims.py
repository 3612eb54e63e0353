"""The ledger of claims for people: as text, as Markdown, and as one page with a card per claim."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedseal._version import VERSION
from fedseal.claims.claim import PAPERS, Claim, declared
from fedseal.claims.ledger import CheckOutcome, Outcome, ledger_data
from fedseal.core.files import write_atomically
from fedseal.metrics.intervals import Interval
from fedseal.report import words
from fedseal.report.html import template_environment
from fedseal.report.markdown import escaped

WIDTH, ROW = 300.0, 18.0
"""Of a card's chart, and of each arm in it."""
_HOW = (
    "Each check was declared before it ran: its rule, budget and seeds are in the package (`fedseal claims show F1`), "
    "and the hash of the declaration stands beside its outcome. Intervals are of 95 % over weight seeds; a rule holds "
    "where all of an interval is on its side, is contradicted where all of it is on the other, and is undecided "
    "otherwise. `fedseal claims run F1 --data-root DIR` decides one again."
)
STALE = "decided under another declaration: run it again"


@dataclass(frozen=True)
class Bar:
    """One arm in a card's chart: its place, its mean and the ends of its interval, from left to right."""

    arm: str
    said: str
    y: float
    mean: float
    low: float
    high: float


def standing_words(claim: Claim, outcome: Outcome | None) -> str:
    """Return where a claim stands, with the reason where it is not reproduced."""
    if outcome is None:
        return "not run" + (f": needs {claim.needs}" if claim.needs else "")
    if outcome.declaration != claim.identity:
        return STALE
    return str(outcome.standing) + (f": {outcome.why}" if outcome.why else "")


def tally(claims: Sequence[Claim], outcomes: dict[str, Outcome]) -> str:
    """Return how many claims stand how, in a sentence."""
    found = Counter(_short(claim, outcomes.get(claim.id)) for claim in claims)
    return (
        f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'}: "
        + ", ".join(f"{count} {word}" for word, count in found.items())
        + "."
    )


def claim_text(claim: Claim, outcome: Outcome | None) -> str:
    """Return a claim with its checks and what they came to, as plain text."""
    lines = [
        f"{claim.id} ({claim.paper}, {claim.where})",
        f"  {claim.claim}",
        f"  published: {claim.published}",
        *([f"  here: {claim.home}"] if claim.home else []),
        *([f"  remark: {claim.remark}"] if claim.remark else []),
        f"  declared as {claim.identity}; stands: {standing_words(claim, outcome)}",
    ]
    for check in claim.checks:
        lines.append(f"  - by {check.kind}: {check.rule.words} ({check.metric})")
    for done in outcome.checks if outcome is not None else ():
        lines.append(f"    {done.standing}: {done.rule} ({done.metric}); evidence {done.evidence}")
        lines += [f"      {arm}: {interval_words(interval)}" for arm, interval in done.means.items()]
        lines += [f"      {one.words}" for one in done.contrasts]
    return "\n".join(lines)


def render_claims_markdown(outcomes: dict[str, Outcome]) -> str:
    """Return the ledger as Markdown: a table per paper, and the figures below it."""
    claims = list(declared().values())
    parts = [
        "# Claims of the papers\n",
        f"{tally(claims, outcomes)} {_HOW}\n",
    ]
    for letter, (_, paper) in PAPERS.items():
        parts.append(f"## {escaped(paper)}\n")
        parts.append("| claim | says | published | stands | declared, evidence |\n" + "|---" * 5 + "|")
        own = [claim for claim in claims if claim.id[0] == letter]
        parts += [_row(claim, outcomes.get(claim.id)) for claim in own]
        parts.append("")
        for claim in own:
            outcome = outcomes.get(claim.id)
            if outcome is not None and outcome.checks:
                parts.append(_figures(claim, outcome))
    return "\n".join(parts)


def render_claims_html(outcomes: dict[str, Outcome]) -> str:
    """Return the ledger as one self-contained page with a card per claim."""
    claims = list(declared().values())
    cards = [
        {
            "claim": claim,
            "stands": standing_words(claim, outcomes.get(claim.id)),
            "short": _short(claim, outcomes.get(claim.id)),
            "outcome": outcomes.get(claim.id),
            "charts": [(check, *_chart(check)) for check in getattr(outcomes.get(claim.id), "checks", ())],
        }
        for claim in claims
    ]
    page = template_environment().get_template("claims.html")
    text = page.render(
        version=VERSION, title="Claims of the papers", tally=tally(claims, outcomes), cards=cards, width=WIDTH, row=ROW
    )
    return words.printable(text)


def write_claims(outcomes: dict[str, Outcome], directory: Path) -> tuple[Path, ...]:
    """Write `claims.md`, `claims.html` and `claims.json`; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "claims.md": render_claims_markdown(outcomes),
        "claims.html": render_claims_html(outcomes),
        "claims.json": json.dumps({"version": VERSION, "claims": ledger_data(outcomes)}, indent=1) + "\n",
    }
    for name, text in content.items():
        write_atomically(directory / name, text)
    return tuple(directory / name for name in content)


def interval_words(found: Interval) -> str:
    """Return a mean with its interval and count."""
    ends = "" if found.is_degenerate else f" [{found.low:.3g}, {found.high:.3g}]"
    return f"{found.mean:.3g}{ends}, n = {found.n}"


def _short(claim: Claim, outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    return str(outcome.standing) if outcome.declaration == claim.identity else "out of date"


def _row(claim: Claim, outcome: Outcome | None) -> str:
    evidence = " ".join(check.evidence for check in outcome.checks) if outcome is not None else ""
    cells = [claim.id, claim.claim, f"{claim.where}: {claim.published}", standing_words(claim, outcome)]
    return "| " + " | ".join(escaped(cell) for cell in [*cells, f"{claim.identity} {evidence}".strip()]) + " |"


def _figures(claim: Claim, outcome: Outcome) -> str:
    said = [text for text in (claim.home, claim.remark and f"Looked into: {claim.remark}") if text]
    lines = [f"- {claim.id}, here: {escaped(' '.join(text[0].upper() + text[1:] for text in said))}"] if said else []
    for check in outcome.checks:
        means = "; ".join(f"{arm} {interval_words(interval)}" for arm, interval in check.means.items())
        looked = "; ".join(one.words for one in check.contrasts)
        lines.append(
            f"- {claim.id}, {escaped(check.rule)} ({escaped(check.metric)}): {check.standing}. {escaped(means)}."
            + (f" Decided by {escaped(looked)}." if looked else "")
        )
    return "\n".join(lines) + "\n"


def _chart(check: CheckOutcome) -> tuple[tuple[Bar, ...], float]:
    """Return a bar per arm on one axis from the lowest end to the highest, and the chart's height."""
    ends = [(f.mean if f.low is None else f.low, f.mean if f.high is None else f.high) for f in check.means.values()]
    bottom, top = min((low for low, _ in ends), default=0.0), max((high for _, high in ends), default=1.0)
    scale = WIDTH / (top - bottom) if top > bottom else 0.0
    bars = []
    for place, ((arm, interval), (low, high)) in enumerate(zip(check.means.items(), ends, strict=True)):
        x = [(value - bottom) * scale for value in (interval.mean, low, high)]
        bars.append(Bar(arm, f"{arm}: {interval_words(interval)}", ROW * (place + 0.5), *x))
    return tuple(bars), ROW * len(bars)
