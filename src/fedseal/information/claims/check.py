"""Claim, account, traps and evidence of a configuration, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedseal.core.errors import UsageError
from fedseal.core.files import PathText
from fedseal.defences.accounting import release_epsilon
from fedseal.information.claims import contradictions
from fedseal.information.claims.contradictions import figure
from fedseal.information.claims.evidence import Evidence, gathered
from fedseal.information.claims.files import read_plain, read_weights
from fedseal.information.claims.mechanism import Finding, Mechanism, Weights
from fedseal.information.claims.opinions import epsilons
from fedseal.information.claims.recognition import mechanisms, rounds_of


@dataclass(frozen=True)
class ConfigurationCheck:
    """A configured mechanism, what it claims and what it has.

    Attributes:
        source: the file.
        mechanism: as configured.
        rounds: over which it composes.
        one_round: epsilon of one round by the relation its authors count by; infinite if it is not private.
        composed: epsilon of all rounds by several accountants; empty if it is infinite.
        added, replaced: epsilon of all rounds, for a unit that is added or removed, or replaced; None if unknown.
        findings: every trap.
        evidence: from canaries; None where the mechanism cannot be run here.
    """

    source: str
    mechanism: Mechanism
    rounds: int
    one_round: float
    composed: Mapping[str, float]
    added: float
    replaced: float | None
    findings: tuple[Finding, ...]
    evidence: Evidence | None

    @property
    def accounted(self) -> float:
        """Epsilon of all rounds by the relation its authors count by."""
        return _by_relation(self.mechanism, self.added, self.replaced)

    @property
    def refuted(self) -> bool:
        """Whether the configuration, or what it was seen to do, contradicts what it claims."""
        return any(finding.severity == "wrong" for finding in self.findings)

    @property
    def unit(self) -> str:
        """Whose presence is hidden."""
        samples = any(release.unit == "sample" for release in self.mechanism.releases)
        return "one record" if samples or self.mechanism.name == "Opacus" else "one client's whole update"

    def describe(self) -> str:
        """Return everything in words."""
        mechanism = self.mechanism
        span = "the whole training" if mechanism.claims_total else "one round"
        claim = "no epsilon" if mechanism.claimed is None else f"epsilon {mechanism.claimed:g} for {span}"
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        lines = [
            f"{mechanism.name} in {self.source}",
            f"  claims    {claim}, at delta {mechanism.delta:g}",
            f"  has       epsilon {figure(self.one_round)} for one round, {figure(self.accounted)} over {rounds}",
            f"  unit      {self.unit}; {figure(self.added)} if it is added or removed"
            + ("" if self.replaced is None else f", {figure(self.replaced)} if it is replaced"),
            f"  hidden    from {'everybody who sees what leaves' if mechanism.trust == 'local' else _CENTRAL}",
        ]
        if self.composed:
            said = ", ".join(f"{name} {figure(value)}" for name, value in self.composed.items())
            lines.append(f"  by        {said}")
        if self.evidence is not None:
            found = self.evidence
            lines.append(
                f"  canaries  {found.runs} runs of {found.of} prove epsilon >= {found.bound.epsilon:.3g}, "
                f"mu >= {found.bound.mu or 0:.3g} ({found.confidence:.0%})"
            )
        lines += [f"  {finding.severity:<9} {finding.name}: {finding.sentence}" for finding in self.findings]
        return "\n".join([*lines, self._conclusion()])

    def _conclusion(self) -> str:
        if not self.mechanism.releases:
            return "NOT PRIVATE: no epsilon holds, whatever is claimed."
        if self.refuted:
            names = ", ".join(finding.name for finding in self.findings if finding.severity == "wrong")
            return f"REFUTED: it is not as private as configured ({names})."
        if self.mechanism.claimed is None:
            return "No epsilon is claimed; the accounted one is what can be said."
        return "The claim holds by the accountants, under what is noted above."

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data; an infinite epsilon is None."""
        return {
            "source": self.source,
            "mechanism": self.mechanism.name,
            "unit": self.unit,
            "trust": self.mechanism.trust,
            "relation": self.mechanism.relation,
            "delta": self.mechanism.delta,
            "rounds": self.rounds,
            "claimed_epsilon": self.mechanism.claimed,
            "claimed_for": "training" if self.mechanism.claims_total else "round",
            "epsilon_one_round": _finite(self.one_round),
            "epsilon": _finite(self.accounted),
            "epsilon_add_remove": _finite(self.added),
            "epsilon_replace_one": None if self.replaced is None else _finite(self.replaced),
            "accountants": dict(self.composed),
            "findings": [vars(finding) for finding in self.findings],
            "canaries": None
            if self.evidence is None
            else {
                "of": self.evidence.of,
                "runs": self.evidence.runs,
                "confidence": self.evidence.confidence,
                "proven_epsilon": self.evidence.bound.epsilon,
                "proven_mu": self.evidence.bound.mu,
            },
            "refuted": self.refuted,
        }


_CENTRAL = "those who see the model only, not from the server"


def check_configuration(
    path: PathText,
    *,
    rounds: int | None = None,
    claimed: float | None = None,
    parameters: int | None = None,
    weights: PathText | None = None,
    delta: float = 1e-5,
    runs: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[ConfigurationCheck]:
    """Check every mechanism that a configuration file holds.

    Args:
        path: YAML, JSON, TOML, NVFlare's .conf, or what Opacus saved.
        rounds: over which it composes; by default as the file says, or 1.
        claimed: epsilon that is claimed for the whole training, where the file does not say.
        parameters: how many numbers the model has.
        weights: a safetensors file of the model, which says that and more.
        delta: at which epsilon is stated where the file does not say.
        runs: of the library's own code on canaries; 0 for none.
        confidence: of what they prove.
        seed: of their noise.
    """
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds must be at least 1, got {rounds}.")
    values = read_plain(Path(path))
    known = read_weights(Path(weights)) if weights is not None else Weights()
    known = known if parameters is None else replace(known, parameters=parameters)
    stated = rounds if rounds is not None else rounds_of(values)
    found = mechanisms(values, str(path), known, delta)
    if claimed is not None:
        found = [replace(mechanism, claimed=claimed, claims_total=True) for mechanism in found]
    return [_checked(mechanism, str(path), stated, values, runs, confidence, seed) for mechanism in found]


def _checked(
    mechanism: Mechanism,
    source: str,
    stated: int | None,
    values: Mapping[str, Any],
    runs: int,
    confidence: float,
    seed: int,
) -> ConfigurationCheck:
    rounds = stated or 1
    one_round = _epsilon(mechanism, mechanism.counted, 1)
    added = _epsilon(mechanism, mechanism.releases, rounds)
    replaced = None if mechanism.replaced is None else _epsilon(mechanism, mechanism.replaced, rounds)
    total = _by_relation(mechanism, added, replaced)
    evidence = None
    if mechanism.rehearsal is not None and runs:
        evidence = gathered(mechanism.rehearsal, mechanism.delta, runs, confidence, seed)
    findings = [
        *mechanism.findings,
        *contradictions.against_account(mechanism, one_round, total, stated),
        *contradictions.against_evidence(mechanism, evidence),
        *contradictions.against_unit(mechanism, values),
    ]
    opinions = epsilons(mechanism.counted, rounds, mechanism.delta)
    own = {name: value * rounds for name, value in mechanism.own.items()}
    return ConfigurationCheck(
        source, mechanism, rounds, one_round, {**opinions, **own}, added, replaced, _sorted(findings), evidence
    )


def _epsilon(mechanism: Mechanism, releases: Sequence[Any], rounds: int) -> float:
    return release_epsilon(releases, rounds, mechanism.delta) if releases else math.inf


def _by_relation(mechanism: Mechanism, added: float, replaced: float | None) -> float:
    return added if mechanism.relation == "add-remove" or replaced is None else replaced


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    order = {"wrong": 0, "warning": 1, "note": 2}
    return tuple(sorted(findings, key=lambda finding: order[finding.severity]))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
