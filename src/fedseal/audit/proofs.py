"""What is proven of a scenario's defences: those that release privately, for one round as the scenario plays it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fedseal.audit.setup import Setup
from fedseal.defences.pipeline import build_defence
from fedseal.information.proven import ProvenReading, prove

_FORM = TypeAdapter(ProvenReading)


def prove_defences(setup: Setup) -> dict[str, ProvenReading]:
    """Return what each defence's releases prove; nothing of those that claim nothing, or where nobody can say.

    A round is played for each, as what is released may depend on it.
    """
    found: dict[str, ProvenReading] = {}
    for spec in dict.fromkeys(setup.scenario.defences):
        defence = build_defence(spec)
        if not defence.traits.accounts_epsilon:
            continue
        try:
            releases = setup.observe(defence, 0, name=spec).defence.releases()
            proof = prove(releases, setup.public, labels_known=True, seed=setup.scenario.seed)
        except (Exception, SystemExit):  # noqa: BLE001 - a user's model may raise anything
            proof = None  # its trials say why the round cannot be played; with few public images nothing is proven
        if proof is not None:
            found[spec] = proof
    return found


def proof_data(proof: ProvenReading) -> Any:
    """Return a proof as plain data for the store."""
    return _FORM.dump_python(proof, mode="json")


def read_proof(data: Any) -> ProvenReading:
    """Return the proof that `proof_data` wrote."""
    return _FORM.validate_python(data)
