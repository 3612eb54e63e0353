"""The verdict in words: which reading decided, and what it read."""

from __future__ import annotations

from collections.abc import Sequence

from fedseal.audit.cells import Cell, Decider, Row, row_severity
from fedseal.audit.levels import STATE_WORDS, State
from fedseal.metrics.picked import Picked

DECIDER_WORDS: dict[Decider, str] = {
    "found": "by what an attack found",
    "singled out": "by singling out",
    "worst victim": "by its worst victim",
    "labels": "by its labels",
    "ideal": "by the ideal reading",
    "proven": "by proof",
}
"""How a sentence names the reading that decided."""


_LEADS = {State.LOW: "The safest defence audited is", State.LEAK: "Of the defences audited the mildest is"}


def verdict_sentence(judged: Sequence[Row]) -> str:
    """Return the verdict in plain sentences: undefended first, then the best news about a defence."""
    if not judged:
        return "Nothing could be judged: no trial succeeded."
    worst: dict[str, Row] = {}  # a defence is as good as in the scenario where it does worst
    for row in judged:
        worst[row.defence] = max(worst.get(row.defence, row), row, key=row_severity)
    bare = worst.pop("none", None)
    parts = [] if bare is None else [f"Undefended, this federation's risk is {finding(bare)}."]
    if worst:
        best = min(worst.values(), key=row_severity)
        lead = f"The defence audited is {best.defence}"
        if len(worst) > 1:
            assert best.state is not None
            lead = _LEADS.get(best.state, "No defence audited is shown to be low; the nearest is") + f" {best.defence}"
        parts.append(f"{lead}: with it the risk is {finding(best)}.")
    return " ".join(parts)


def finding(row: Row) -> str:
    """Return a row's state or level, the reading that decided it, and its figure."""
    cell = row.worst
    assert cell is not None
    assert cell.state is not None
    if cell.state is State.LEAK:
        assert cell.level is not None
        assert cell.decided is not None
        return f"{cell.level.words}, {DECIDER_WORDS[cell.decided]}: {_leak(cell)}"
    if cell.state is State.LOW:
        assert cell.decided is not None
        return f"low, {DECIDER_WORDS[cell.decided]}: {_nothing_held(cell)}"
    return f"{_unsettled_words(cell.state)}: {_unsettled(row, cell)}"


def _unsettled_words(state: State) -> str:
    return {State.NOT_SHOWN: "not shown", State.NO_POWER: "not known (no power)"}.get(state, "not known (too few)")


def picked_words(one: Picked | None) -> str:
    """Return `picked out of 200: 7 of 8 (chance 0.5 %)`, or nothing where strangers were too few."""
    if one is None:
        return ""
    return f"picked out of {one.size}: {one.count} of {one.n} (chance {100 * one.chance:.2g} %)"


def held_words(cell: Cell) -> str:
    """Return what the ideal reading says in a clause."""
    if cell.ideal is None:
        return "what the update holds was not computed"
    if cell.ideal.best_db is None:
        return f"what the update holds cannot be computed: {cell.ideal.reason.rstrip('.')}"
    if cell.ideal.prior_db is None:
        return f"the update holds enough for {cell.ideal.best_db:.1f} dB"
    return f"the update holds enough for {cell.ideal.best_db:.1f} dB, the prior alone for {cell.ideal.prior_db:.1f}"


def _leak(cell: Cell) -> str:
    assert cell.psnr is not None
    who = "a defence-aware attacker" if cell.aware else "an attacker"
    method = cell.attack.partition(":")[0]
    if cell.decided == "labels" and cell.labels is not None:
        accuracy, chance = cell.labels.accuracy.mean, cell.labels.chance
        return f"{who} reads {accuracy:.0%} of the labels (guessing gives {chance:.0%})"
    if cell.decided == "worst victim" and cell.victims is not None:
        return (
            f"{who} using {method} rebuilds {cell.victims.count} of {cell.victims.n} {cell.scale.noun}s beyond chance, "
            f"the best at {cell.scale.said(cell.victims.best_psnr)}"
        )
    if cell.decided == "singled out":
        return (
            f"{picked_words(cell.picked)}, from what {who} using {method} rebuilds at {cell.scale.said(cell.psnr.mean)}"
        )
    text = f"{who} using {method} rebuilds its {cell.scale.noun}s at {cell.scale.said(cell.psnr.mean)}"
    guess = "" if cell.baseline_psnr is None else f" (guessing without the update gives {cell.baseline_psnr:.1f})"
    return text + guess + (f"; {picked_words(cell.picked)}" if cell.picked is not None else "")


def _nothing_held(cell: Cell) -> str:
    if cell.decided == "proven" and cell.proven is not None:
        return f"no attack can make any success likelier by more than {cell.proven.advantage:.1%}"
    assert cell.ideal is not None
    held = f"an ideal attacker reaches {cell.ideal.best_db:.1f} dB with the update"
    return f"no attack got through, and {held}, {cell.ideal.prior_db:.1f} without"


def _unsettled(row: Row, cell: Cell) -> str:
    if cell.state is State.TOO_FEW:
        seen = cell.victims
        said = STATE_WORDS[State.TOO_FEW]
        return (
            f"{said}, but {seen.count} of {seen.n} {cell.scale.noun}s came back"
            if seen and seen.level is not None
            else said
        )
    spent = f"no attack we ran got through in {_minutes(row.seconds)}"
    if cell.state is State.NO_POWER:
        spent = f"{spent}, nor can these attacks tell of defences" if row.defence == "none" else STATE_WORDS[cell.state]
    failed = ", and the best attack did far worse than a guess" if cell.attack_failed else ""
    return f"{held_words(cell)}; {spent}{failed}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
