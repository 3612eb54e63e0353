"""What to do about a verdict, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedseal.audit.cells import Row, row_severity
from fedseal.audit.levels import State
from fedseal.audit.run import Run
from fedseal.audit.verdict import Verdict
from fedseal.metrics.intervals import FEWEST
from fedseal.report.servers import CURIOUS, MALICIOUS, Server
from fedseal.report.words import duration, percentage, size
from fedseal.training.run import TrainingRun, Utility

_BETWEEN = "Try weaker settings of what is low and stronger ones of the rest: `fedseal tradeoff` draws both sides."


@dataclass(frozen=True)
class Advice:
    """What to do.

    Attributes:
        defence: recommended; None where none can be.
        sentence: in words.
        costs: what it costs, as (what, figure).
        steps: what to do next.
    """

    defence: str | None
    sentence: str
    costs: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]


def kept_by(training: TrainingRun | None) -> dict[str, Utility]:
    """Return what each defence that was trained leaves of the accuracy."""
    return {} if training is None else {one.defence: one for one in training.utilities if one.accuracy is not None}


def listed(names: Sequence[str]) -> str:
    """Return names as alternatives."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def worst_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """Return each defence's worst row over all scenarios."""
    worst: dict[str, Row] = {}
    for row in rows:
        worst[row.defence] = max(worst.get(row.defence, row), row, key=row_severity)
    return worst


def advise(run: Run, verdict: Verdict, training: TrainingRun | None, untested: Sequence[Server]) -> Advice:
    """Return what to do about a verdict.

    Only what is shown to be low is recommended, and nothing under which the federation has learnt nothing.

    Args:
        run: that was judged.
        verdict: of it.
        training: under the same defences, if there is one.
        untested: kinds of server no attack of the run played.
    """
    kept = kept_by(training)
    useless = set() if training is None or training.caution else {d for d, one in kept.items() if not one.learnt}
    worst = worst_rows(verdict.judged)
    low = [row for row in worst.values() if row.state is State.LOW]
    sound = [row for row in low if row.defence not in useless]
    steps = _steps(run, verdict, training, untested)
    if low and not sound:
        names = listed([row.defence for row in low])
        sentence = (
            f"None of the defences audited can be recommended: with {names} nothing private is left in what clients "
            "send, and nothing for the model to learn from either, which stays at chance."
        )
        return Advice(None, sentence, (), (_BETWEEN, *steps))
    if not sound:
        return Advice(None, _no_advice(run, worst), (), steps)
    best = min(sound, key=lambda row: (-_accuracy(kept, row.defence), _distortion(row), row_severity(row)))
    reason = "no attack got through, and what it sends holds nothing for a better one"
    if best.defence == "none":
        return Advice("none", f"No defence is needed for what was tested: {reason}.", (), steps)
    return Advice(best.defence, f"Use {best.defence}: {reason}.", _costs(verdict, best, kept), steps)


def _no_advice(run: Run, worst: dict[str, Row]) -> str:
    defended = [row for row in worst.values() if not run.is_control(row)]
    if not worst:
        return "Run the audit again: no trial succeeded."
    if not defended or all(row.defence == "none" for row in defended):
        return "Audit defences: without one, updates are as open as shown here."
    if all(row.state is State.LEAK for row in defended):
        return "None of the defences audited can be recommended: each lets something through."
    return "None of the defences audited can be recommended yet: none is shown to hold."


def _steps(run: Run, verdict: Verdict, training: TrainingRun | None, untested: Sequence[Server]) -> tuple[str, ...]:
    steps = []
    rows = [row for row in verdict.judged if not run.is_control(row)]
    if any(row.state is State.LEAK for row in rows) and not any(row.state is State.LOW for row in rows):
        steps.append("Try stronger settings of the same defences, or others: `fedseal tradeoff` draws both sides.")
    if any(row.state is State.TOO_FEW for row in rows):
        steps.append(f"Attack at least {FEWEST} batches, better 20: set `targets`.")
    if any(row.state is State.NO_POWER for row in rows):
        steps.append("Give the attacks a larger budget, or take `auto`: these broke nothing at all.")
    unsettled = [row for row in rows if row.state is State.NOT_SHOWN]
    read = [row for row in unsettled if row.ideal is not None and row.ideal.gain_db is not None]
    if len(read) < len(unsettled):
        steps.append("Have what updates hold computed (`readings`), or take a defence with a proof.")
    if read:
        named = ", ".join(dict.fromkeys(row.defence for row in read))
        steps.append(
            f"Do not rely on {named} at this strength: updates hold more than a guess there, though no attack tried "
            "here got at it. Take a stronger setting or a defence with a proof."
        )
    noise = _noise(run)
    if noise is not None and any(row.state is not State.LOW for row in rows):
        steps.append(
            f"Noise of standard deviation {noise:.2g} on every entry of an update would take what it holds below the "
            "level of partly recognisable: computed for these updates, not attacked."
        )
    if training is not None and training.caution:
        steps.append(training.caution)
    if rows and not kept_by(training):
        steps.append(
            "What a defence costs in accuracy is not known here: `fedseal train`, then `fedseal report --training`."
        )
    if MALICIOUS in untested:
        steps.append("If the server need not be trusted to send an honest model, audit active attacks too.")
    if CURIOUS in untested:
        steps.append("Audit a server that only looks, too: it is the likelier one.")
    return tuple(steps)


def _noise(run: Run) -> float | None:
    found = [sigma for r in run.readings for level, sigma in r.sigma_for.items() if level == "10" and sigma is not None]
    return max(found, default=None)


def _distortion(row: Row) -> float:
    """Return how far a defence's updates are from the true ones: where no training says it, the sign of its cost."""
    records = [r for cell in row.cells for r in cell.records]
    values = [value for r in records if isinstance(value := r.cost.get("gradient_distance"), int | float)]
    return sum(values) / len(values) if values else float("inf")


def _accuracy(kept: dict[str, Utility], defence: str) -> float:
    utility = kept.get(defence)
    return -1.0 if utility is None or utility.accuracy is None else utility.accuracy.mean


def _costs(verdict: Verdict, row: Row, kept: dict[str, Utility]) -> tuple[tuple[str, str], ...]:
    def mean(of: Row | None, field: str) -> float | None:
        records = [] if of is None else [r for cell in of.cells for r in cell.records if r.cost]
        values = [value for r in records if isinstance(value := r.cost.get(field), int | float)]
        return sum(values) / len(values) if values else None

    bare = next((one for one in verdict.rows if one.scenario == row.scenario and one.defence == "none"), None)
    costs = []
    sent, before = mean(row, "bytes_up"), mean(bare, "bytes_up")
    if sent is not None:
        costs.append(("Upload of a client per round", size(sent) + (f" instead of {size(before)}" if before else "")))
    seconds = mean(row, "seconds")
    if seconds is not None:
        costs.append(("Time it takes a client per round", duration(seconds)))
    own, plain = kept.get(row.defence), kept.get("none")
    if own is not None and own.accuracy is not None:
        instead = f" instead of {percentage(plain.accuracy.mean)}" if plain is not None and plain.accuracy else ""
        costs.append(("Accuracy of the trained model", f"{percentage(own.accuracy.mean)}{instead}"))
    return tuple(costs)
