"""What of a record may leave its owner's hands: scores, never what attacks or models said about private data.

Scores tell how well images and labels were recovered, not what they are. Free text may tell: an attack notes the class
it fished for, a model raises an error with the values it choked on. So notes go, and of such an error only its kind
stays; what fedseal itself says of a set-up names no data and is kept.
"""

from __future__ import annotations

import re

from fedseal.store.findings import Finding
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

WITHHELD = "(withheld)"
"""Stands where something was."""

_RAISED = re.compile(r"^(.*?\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)): .+$", re.DOTALL)


def redacted_record(record: TrialRecord) -> TrialRecord:
    """Return a trial's record without pictures' place and without what was said of its data."""
    return record.model_copy(update={"notes": (), "artefact": None, "message": redacted_text(record.message)})


def redacted_reading(record: ReadingRecord) -> ReadingRecord:
    """Return an ideal reading without its map of pixels."""
    return record.model_copy(update={"artefact": None, "reason": redacted_text(record.reason)})


def redacted_finding(finding: Finding) -> Finding:
    """Return a remark of the doctor without what the user's own code raised."""
    return finding.model_copy(update={"text": redacted_text(finding.text)})


def redacted_text(text: str) -> str:
    """Return a message with what an exception of somebody else's code said taken out."""
    return _RAISED.sub(rf"\1: {WITHHELD}", text)
