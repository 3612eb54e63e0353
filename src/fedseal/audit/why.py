"""Why an attack failed, as findings people can act on: from what its trials left, and from a target played again.

An attack that cannot break the undefended model says nothing of a defence, and mostly there is a cause that can be
named: the search was not at its end, the client went too far for what was matched, statistics or labels were not what
the attacker took them for, more images than a layer can hold. `reasons` reads the records of a cell and costs nothing;
`causes` looks at an upload with the truth behind it (`fedseal why RUN`).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from fedseal.audit.cells import Cell
from fedseal.audit.levels import State
from fedseal.audit.symptoms import Symptoms
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import FedsealError
from fedseal.store.findings import Finding
from fedseal.store.records import TrialRecord

_TENTH = 10
_FEW_POINTS = 5
STILL_FALLING = 0.03
"""Share of its value that an objective may lose in the last tenth of a run whose end it has reached."""
_LABELS = 0.5
TURNED = 0.9
"""Cosine below which a weight change is no longer the gradient at the start, for who matches that."""
_EXPLAINED = 1e-4
"""Distance, one minus the cosine, below which what was found explains the update."""
_GAP = 30.0
_EXACT = {"first-layer", "spear", "cocktail", "dager", "rgap"}
"""Attacks by algebra, which ask for the rank of a layer's gradient."""


def has_failed(cell: Cell) -> bool:
    """Return whether a cell says less of a defence than of its attack.

    It showed nothing where nothing was defended, did far worse than a guess, or has no power.
    """
    if cell.psnr is None or cell.leaks:
        return False
    return cell.defence == "none" or cell.attack_failed or cell.state is State.NO_POWER


def reasons(cell: Cell) -> tuple[Finding, ...]:
    """Return what the records of a cell that failed tell of the cause; nothing of one that did not."""
    if not has_failed(cell):
        return ()
    done = cell.succeeded
    return (*_unfinished(done), *_local_steps(cell.attack, done), *_diverged(done), *_labels(done))


def _unfinished(records: tuple[TrialRecord, ...]) -> Iterator[Finding]:
    falls = [fall for record in records if (fall := last_fall(record.trace)) is not None]
    if not falls or median(falls) < STILL_FALLING:
        return
    steps = max(record.trace[-1][0] for record in records if record.trace)
    yield Finding(
        severity="problem",
        topic="iterations",
        text=f"the objective was still falling, by {median(falls):.0%} in the last tenth of {steps} iterations.",
        advice=f"Give the search more: `iterations: {4 * max(steps, 1)}`.",
    )


def last_fall(trace: tuple[tuple[int, float], ...]) -> float | None:
    """Return the share of its value that an objective lost in the last tenth of a run; None where that is not known."""
    if len(trace) < _FEW_POINTS:
        return None
    last, end = trace[-1]
    before = next((value for step, value in reversed(trace) if step <= last - max(1, last // _TENTH)), None)
    if before is None or before == 0:
        return None
    return (before - end) / abs(before)


def _local_steps(attack: str, records: tuple[TrialRecord, ...]) -> Iterator[Finding]:
    told = next((record.knowledge.get("local steps", "") for record in records), "")
    if told in {"", "1", "not given"} or _reads_steps(attack) != "average":
        return
    yield Finding(
        severity="warning",
        topic="local steps",
        text=f"the client's steps ({told}) were matched as one gradient at the weights it began with.",
        advice="Try `sme`, whose cost does not grow with steps, or `ig:local_steps=unroll`, which follows each.",
    )


def _reads_steps(attack: str) -> str | None:
    try:
        return getattr(ATTACKS.build(attack), "local_steps", None)
    except FedsealError:
        return None


def _diverged(records: tuple[TrialRecord, ...]) -> Iterator[Finding]:
    said = sorted({note for record in records for note in record.notes if "diverged" in note})
    if said:
        yield Finding(
            severity="problem",
            topic="divergence",
            text=f"{said[0]}.",
            advice="Lower the attack's learning rate (`lr`), or give it more restarts.",
        )


def _labels(records: tuple[TrialRecord, ...]) -> Iterator[Finding]:
    inferred = [r.label_accuracy for r in records if r.label_accuracy is not None and r.label_chance is not None]
    if inferred and fmean(inferred) < _LABELS:
        yield Finding(
            severity="warning",
            topic="labels",
            text=f"{fmean(inferred):.0%} of the labels were inferred right; the others' images were sought elsewhere.",
            advice="Try another rule (`attacker.labels`), or `labels=joint` of the attack; `labels: true` is the worst "
            "case.",
        )


def causes(found: Symptoms, attack: str) -> tuple[Finding, ...]:
    """Return what an upload and the truth behind it tell of why an attack fails on it, the most telling first."""
    return (
        *_statistics(found),
        *_rate(found),
        *_course(found, attack),
        *_rank(found, attack),
        *_gap(found, attack),
        *_residual(found),
    )


def _statistics(found: Symptoms) -> Iterator[Finding]:
    if found.hidden_norms:
        yield Finding(
            severity="problem",
            topic="batch statistics",
            text=f"{found.hidden_norms} normalisation layer(s) use the statistics of the batch, which the attacker "
            f"does not see: by the running ones, the gradient of the true images lies {found.own_distance:.2g} away "
            "(one minus cosine).",
            advice="An attacker who is sent them does better: `client.bn_mode: train-exact-stats`; `eval` is the case "
            "of most papers.",
        )


def _rate(found: Symptoms) -> Iterator[Finding]:
    if found.loss_after is not None and not found.loss_after <= found.loss_before:
        yield Finding(
            severity="problem",
            topic="learning rate",
            text=f"the client's {found.steps} step(s) at a rate of {found.learning_rate:g} raised its loss from "
            f"{found.loss_before:.3g} to {found.loss_after:.3g}: they jump, and no gradient leads there.",
            advice=f"Lower `client.learning_rate`, to {found.learning_rate / 10:g} say: no training runs so.",
        )


def _course(found: Symptoms, attack: str) -> Iterator[Finding]:
    if found.turn is None or found.turn >= TURNED:
        return
    follows = _reads_steps(attack) in {"unroll", "surrogate"}
    yield Finding(
        severity="note" if follows else "warning",
        topic="steps",
        text=f"after {found.steps} steps the weight change points {found.turn:.2f} (cosine) along the gradient at the "
        "start.",
        advice="It is followed by this attack; fewer `client.local_steps` or a lower rate are easier."
        if follows
        else "Match it where the client was: `sme`, or `ig:local_steps=unroll`.",
    )


def _rank(found: Symptoms, attack: str) -> Iterator[Finding]:
    if found.layer is None or attack.partition(":")[0] not in _EXACT or found.images < min(found.layer):
        return
    rows, columns = found.layer
    yield Finding(
        severity="problem",
        topic="rank",
        text=f"{found.images} images are behind a layer of {columns} inputs and {rows} outputs, whose gradient has "
        f"rank {found.rank}: algebra needs fewer images than the smaller of the two.",
        advice=f"Use batches below {min(found.layer)}, a wider layer, or a search (`ig`, `auto`).",
    )


def _gap(found: Symptoms, attack: str) -> Iterator[Finding]:
    if found.gap is None or attack.partition(":")[0] not in _EXACT or found.gap >= _GAP:
        return
    yield Finding(
        severity="warning",
        topic="gap",
        text=f"singular values of the first layer fall by a factor of {found.gap:.1f} at most, behind rank "
        f"{found.rank}: noise or rounding hides how many inputs there are.",
        advice="Algebra needs a clear end of the spectrum, a factor of 30; take a search (`ig`, `auto`).",
    )


def _residual(found: Symptoms) -> Iterator[Finding]:
    if found.residual is None:
        return
    if found.residual < _EXPLAINED:
        yield Finding(
            severity="note",
            topic="residual",
            text=f"what was found explains the update (distance {found.residual:.2g}) and is not the truth: the update "
            "does not tell them apart.",
            advice="Only a better prior helps: public data (`learned`, `auto`), or more weight on smoothness (`tv`).",
        )
    else:
        yield Finding(
            severity="warning",
            topic="residual",
            text=f"what was found does not explain the update: its own lies {found.residual:.2g} away (one minus "
            "cosine), so the search ended in a wrong place.",
            advice="Give it more restarts or iterations, or another start; check the labels first.",
        )
