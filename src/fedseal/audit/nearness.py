"""Defences that hardly change what is sent: a reading under one of them is a reading of the gradient itself.

Of every attacked target the record holds the relative change |sent - true| / |true| and the cosine between the two
(`cost.gradient_distance`, `cost.gradient_cosine`): between what the first client uploaded and what it would have
uploaded undefended, from the images it holds and for the same model. Where only the length is changed, as by clipping,
the cosine tells: attackers undo a factor, or match directions. Nothing is said of what does not act on the upload: a
model of another shape, more data behind an update, entries that the server cannot read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import fmean

from fedseal.audit.cells import Cell, Row
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import FedsealError
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import members_of
from fedseal.store.findings import Finding
from fedseal.store.records import TrialRecord

NEARLY_TRUE = 0.05
"""Relative change below which what is sent is nearly the true update."""


def row_findings(row: Row) -> tuple[Finding, ...]:
    """Return what is remarkable about how a defence acted in a scenario's trials; nothing where there is none."""
    return tuple(_hardly_changed(row)) if acts_on_uploads(row.defence) else ()


def change(record: TrialRecord) -> float | None:
    """Return |sent - true| / |true| of a trial; None where its record does not say."""
    return _figure(record, "gradient_distance")


def turn(record: TrialRecord) -> float | None:
    """Return |c sent - true| / |true| of a trial at the best factor c: what the defence changed beside the length."""
    cosine = _figure(record, "gradient_cosine")
    return None if cosine is None else math.sqrt(max(0.0, 1 - cosine**2)) if cosine > 0 else 1.0


def acts_on_uploads(spec: str) -> bool:
    """Return whether the change of the upload says what a defence does; not of one that cannot be built here."""
    try:
        members = [one for one in members_of(build_defence(spec)) if one.name != "none"]
    except FedsealError:
        return False
    return bool(members) and not any(_acts_elsewhere(one) for one in members)


def _acts_elsewhere(one: Defence) -> bool:
    plain = RoundShape()
    return one.uses("wrap_model") or one.uses("server_view") or one.reshape(plain) != plain


def _hardly_changed(row: Row) -> Iterator[Finding]:
    for measure, what, so in (
        (change, "changes the update{} by {} of its norm only", "what is sent is nearly the gradient itself"),
        (
            turn,
            "changes the length of the update{} and little else, its direction by {}",
            "up to a factor, what is sent is nearly the gradient itself",
        ),
    ):
        means = {cell.attack: mean for cell in row.cells if (mean := _mean(cell, measure)) is not None}
        near = {attack: mean for attack, mean in means.items() if mean < NEARLY_TRUE}
        if not near:
            continue
        where = "" if len(near) == len(means) else f" of the model that {' and '.join(near)} sent"
        yield Finding(
            severity="warning",
            topic="hardly changed",
            text=f"{row.defence} {what.format(where, _per_cent(max(near.values())))}: {so}.",
            advice="Take a stronger setting before you judge the defence by this, or another defence where none helps.",
        )
        return


def _mean(cell: Cell, measure: Callable[[TrialRecord], float | None]) -> float | None:
    values = [value for record in cell.succeeded if (value := measure(record)) is not None]
    return fmean(values) if values else None


def _figure(record: TrialRecord, field: str) -> float | None:
    value = record.cost.get(field)
    return float(value) if isinstance(value, int | float) else None


def _per_cent(share: float) -> str:
    return "less than 0.01 %" if 0 < share < 1e-4 else f"{100 * share:.2g} %"
