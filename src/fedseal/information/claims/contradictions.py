"""Where account, evidence or unit contradict what is claimed, as findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedseal.information.claims.evidence import Evidence
from fedseal.information.claims.mechanism import Finding, Mechanism
from fedseal.information.claims.opinions import gaussian_mu

_SLACK = 1 + 1e-3
"""Rounding of a claim that is no contradiction."""


def against_account(mechanism: Mechanism, one_round: float, total: float, stated: int | None) -> list[Finding]:
    """Return how the account contradicts the claim."""
    findings = []
    claimed = mechanism.claimed
    if stated is None and not mechanism.claims_total:
        findings.append(
            Finding("rounds-unknown", "note", "the file does not say how many rounds there are: see --rounds.")
        )
    if claimed is None:
        return findings
    first = total if mechanism.claims_total else one_round
    if first > claimed * _SLACK:
        findings.append(
            Finding(
                "epsilon-above-claim",
                "wrong",
                f"claimed is epsilon {claimed:g}, but {'training' if mechanism.claims_total else 'one round'} has "
                f"{figure(first)}.",
            )
        )
    if not mechanism.claims_total and total > max(claimed, one_round) * _SLACK:
        findings.append(
            Finding(
                "not-composed",
                "wrong",
                f"epsilon {claimed:g} is meant for one round; over {stated} rounds it is {figure(total)}. Budgets add "
                "up over rounds.",
            )
        )
    return findings


def against_evidence(mechanism: Mechanism, evidence: Evidence | None) -> list[Finding]:
    """Return how outputs contradict the claim; a round's outputs are weaker than training's."""
    claimed = mechanism.claimed
    if evidence is None or claimed is None or not claimed > 0:
        return []
    over = evidence.bound.epsilon > claimed
    gaussian = bool(mechanism.releases) and all(
        release.family == "gaussian" and release.rate == 1 for release in mechanism.releases
    )
    if gaussian:
        over = over or (evidence.bound.mu or 0.0) > gaussian_mu(claimed, mechanism.delta)
    if not over:
        return []
    return [
        Finding(
            "canaries-contradict",
            "wrong",
            f"run here, it gave canaries away more often than epsilon {claimed:g} allows.",
        )
    ]


def against_unit(mechanism: Mechanism, values: Mapping[str, Any]) -> list[Finding]:
    """Return whether another unit is claimed than the one that is hidden."""
    claim = values.get("claim")
    said = str(claim.get("unit", "")).lower() if isinstance(claim, Mapping) else ""
    hides_records = any(release.unit == "sample" for release in mechanism.releases)
    if said in ("client", "user", "site", "patient") and hides_records:
        return [
            Finding(
                "unit-not-as-claimed",
                "wrong",
                f"a guarantee per {said} is claimed, but single records are hidden: who has k of them has about k "
                "times the epsilon.",
            )
        ]
    return []


def figure(epsilon: float) -> str:
    """Return an epsilon as it is printed."""
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4g}" if epsilon < 1e4 or epsilon >= 1e6 else f"{epsilon:,.0f}"
