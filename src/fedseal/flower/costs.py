"""What sealing cost a round's clients, as the server reports it: means, but for privacy, of which the worst counts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from flwr.app import MetricRecord, RecordDict

from fedseal.flower.envelope import Envelope

PREFIX = "fedseal-"
_WORST = ("epsilon-accounted", "epsilon-nominal", "releases")


def without_costs(content: RecordDict) -> None:
    """Take the figures of older clients out of a reply's own metrics, which others then need not have."""
    for record in content.metric_records.values():
        for name in [name for name in record if name.startswith(PREFIX)]:
            del record[name]


def summed_up(envelopes: Sequence[Envelope | None]) -> dict[str, float]:
    """Return a round's figures: means over sealed clients; for epsilon and releases the maximum, by unit of privacy.

    `fedseal-epsilon-per-update` and `-per-sample` say whose presence the largest epsilon hides;
    `fedseal-clients-without-epsilon` counts sealed clients that can state none, and `fedseal-clients-unsealed` those
    without any seal.
    """
    sealed = [envelope for envelope in envelopes if envelope is not None]
    figures: dict[str, float] = {f"{PREFIX}clients-unsealed": float(len(envelopes) - len(sealed))}
    for name in sorted({name for envelope in sealed for name in envelope.costs}):
        values = [envelope.costs[name] for envelope in sealed if name in envelope.costs]
        figures[PREFIX + name] = max(values) if name in _WORST else fmean(values)
    for unit in ("update", "sample"):
        spent = [e.costs["epsilon-accounted"] for e in sealed if e.unit == unit and "epsilon-accounted" in e.costs]
        if spent:
            figures[f"{PREFIX}epsilon-per-{unit}"] = max(spent)
    if any("epsilon-accounted" in envelope.costs for envelope in sealed):
        without = sum("epsilon-accounted" not in envelope.costs for envelope in sealed)
        figures[f"{PREFIX}clients-without-epsilon"] = float(without)
    return figures


def with_costs(metrics: MetricRecord | None, envelopes: Sequence[Envelope | None]) -> MetricRecord | None:
    """Return a round's metrics with what sealing cost, if anything was sealed."""
    if all(envelope is None for envelope in envelopes):
        return metrics
    whole = MetricRecord() if metrics is None else metrics
    for name, value in summed_up(envelopes).items():
        whole[name] = value
    return whole
