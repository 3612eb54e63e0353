"""Deciding claims, one by one, each in a directory of its own: what has ended is not run again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fedseal.claims.claim import Check, Claim
from fedseal.claims.experiments import run_experiment
from fedseal.claims.ledger import CheckOutcome, Outcome, save_outcome
from fedseal.claims.place import Place
from fedseal.claims.rules import Standing, combine
from fedseal.core.errors import FedsealError, StorageError
from fedseal.data.registry import DATASETS


def run_claims(claims: Sequence[Claim], place: Place) -> Iterator[Outcome]:
    """Decide claims in their order, and keep each outcome as soon as it is there.

    Args:
        claims: to decide.
        place: with the directory of the ledger; every check has one below it.
    """
    for claim in claims:
        outcome = decide(claim, place)
        save_outcome(place.directory, outcome)
        yield outcome


def decide(claim: Claim, place: Place) -> Outcome:
    """Run what is left of a claim's checks, and decide it by its rules."""
    started = time.process_time()
    missing = next((why for why in (_missing(spec, place.data_root) for spec in claim.data) if why), "")
    if missing or not claim.checks:
        return _outcome(claim, (), Standing.UNDECIDED, missing or f"needs {claim.needs}", started)
    checks = []
    for check in claim.checks:
        own = replace(place, directory=place.directory / claim.id / check.kind)
        try:
            checks.append(_decided(check, own))
        except StorageError:
            raise
        except FedsealError as error:
            return _outcome(claim, checks, Standing.UNDECIDED, str(error), started)
    standing = combine([one.standing for one in checks])
    reason = "; ".join(dict.fromkeys(one.reason for one in checks if one.reason))
    return _outcome(claim, checks, standing, reason, started)


def _decided(check: Check, place: Place) -> CheckOutcome:
    evidence = run_experiment(check, place)
    samples = evidence.samples(check.metric)
    absent = [arm for arm in check.rule.arms if arm not in samples.arms]
    means = {arm: samples.mean(arm) for arm in samples.arms}
    rule = check.rule.words
    if absent:
        why = "; ".join(evidence.problems) or f"there is only {', '.join(samples.arms) or 'nothing'}"
        return CheckOutcome(
            rule,
            check.metric,
            Standing.UNDECIDED,
            means,
            (),
            f"no value for {', '.join(absent)}: {why}",
            evidence.identity,
        )
    if check.power is not None:
        power = check.power.rule.decide(evidence.samples(check.power.metric))
        if power.standing is not Standing.REPRODUCED:
            said = "; ".join(one.words for one in power.contrasts)
            reason = f"no power: {check.power.rule.words} ({check.power.metric}) does not hold ({said})"
            return CheckOutcome(rule, check.metric, Standing.UNDECIDED, means, (), reason, evidence.identity)
    decision = check.rule.decide(samples)
    reason = "; ".join(evidence.problems)
    if decision.standing is Standing.UNDECIDED and not reason:
        reason = "the intervals hold both possibilities"
    return CheckOutcome(rule, check.metric, decision.standing, means, decision.contrasts, reason, evidence.identity)


def _outcome(claim: Claim, checks: Sequence[CheckOutcome], standing: Standing, reason: str, started: float) -> Outcome:
    return Outcome(
        id=claim.id,
        declaration=claim.identity,
        standing=standing,
        reason="" if standing is Standing.REPRODUCED else reason,
        checks=tuple(checks),
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu_seconds=round(time.process_time() - started, 1),
    )


def _missing(spec: str, data_root: Path | None) -> str:
    """Return why a data set is not at hand; empty if it is."""
    try:
        DATASETS.build(spec, data_root=data_root)
    except FedsealError as error:
        return f"needs {spec}: {error}"
    return ""
