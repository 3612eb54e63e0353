"""The names under which others file what an audit finds, and what of the report answers them.

Every name is as its publisher writes it. MITRE ATLAS and OWASP know no attack on the updates of federated learning, so
their entries are the nearest ones, and are called so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Fit: TypeAlias = Literal["exact", "nearest", "field"]
"""Whether an entry means this very finding, the nearest thing its publisher has, or is a field to be filled in."""


@dataclass(frozen=True)
class Identifier:
    """An entry of somebody's taxonomy, law or guidance.

    Attributes:
        framework: who publishes it, with edition.
        entry: its number and name there.
        about: which finding of the report it concerns.
        fit: see `Fit`.
        answer: where the report answers it, or what it cannot answer.
    """

    framework: str
    entry: str
    about: str
    fit: Fit
    answer: str


_NIST = "NIST AI 100-2e2025"
_ATLAS = "MITRE ATLAS"
_TESTING = "OWASP AI Testing Guide"
_TOP_TEN = "OWASP Machine Learning Security Top Ten (2023)"
_DP = "NIST SP 800-226 (2025)"
_DPIA = "GDPR, Article 35(7)"
_WP216 = "Article 29 Working Party, Opinion 05/2014 (WP216)"
_EDPB = "EDPB, Opinion 28/2024"

IDENTIFIERS: tuple[Identifier, ...] = (
    Identifier(_NIST, "NISTAML.032 Reconstruction", "inputs rebuilt", "exact", "Findings; Four readings"),
    Identifier(_NIST, "NISTAML.034 Property Inference", "labels read", "nearest", "Findings, labels"),
    Identifier(_NIST, "NISTAML.026 and .051 Model Poisoning", "a server that changes the model", "nearest", "Findings"),
    Identifier(_ATLAS, "AML.T0024.001 Invert AI Model", "inputs rebuilt", "nearest", "no technique names updates"),
    Identifier(_ATLAS, "AML.T0044 Full AI Model Access", "what the attacker has", "nearest", "What the attacker knew"),
    Identifier(
        _ATLAS,
        "AML.T0018.000 Poison AI Model, .001 Modify AI Model Architecture",
        "a server that changes the model",
        "nearest",
        "Findings",
    ),
    Identifier(_TESTING, "AITG-MOD-05 Testing for Inversion Attacks", "inputs rebuilt", "nearest", "Findings"),
    Identifier(_TOP_TEN, "ML03:2023 Model Inversion Attack", "inputs rebuilt", "nearest", "Findings"),
    Identifier(_DP, "ε, δ and the unit of privacy", "proven", "field", "Four readings, proven; Costs"),
    Identifier(
        _DP, "trust model and privacy hazards", "proven", "field", "What the attacker knew; Findings of the doctor"
    ),
    Identifier(
        _DPIA, "(a) description of the processing", "the audit", "field", "What was tested; purposes are yours to state"
    ),
    Identifier(_DPIA, "(b) necessity and proportionality", "the audit", "field", "not answered here: yours to state"),
    Identifier(_DPIA, "(c) risks to rights and freedoms", "all findings", "field", "Findings; How sure we are"),
    Identifier(_DPIA, "(d) measures envisaged", "the defences", "field", "What to do, and what it costs"),
    Identifier(_WP216, "singling out", "originals picked out of strangers", "exact", "Four readings, singled out"),
    Identifier(_WP216, "inference", "labels read", "exact", "Findings, labels"),
    Identifier(_WP216, "linkability", "the audit", "field", "not measured"),
    Identifier(
        _EDPB,
        "likelihood of direct (including probabilistic) extraction",
        "inputs rebuilt",
        "field",
        "evidence on updates; the trained model itself is not examined",
    ),
)
"""All of them, in the order the report prints."""

TAGS: dict[str, tuple[str, ...]] = {
    "found": ("NISTAML.032", "AML.T0024.001", "AITG-MOD-05", "ML03:2023"),
    "worst-victim": ("NISTAML.032", "AML.T0024.001", "AITG-MOD-05", "ML03:2023"),
    "singled-out": ("NISTAML.032", "WP216-singling-out"),
    "labels": ("NISTAML.034", "WP216-inference"),
}
"""Numbers a code scanning service may filter by, for each kind of leak."""
