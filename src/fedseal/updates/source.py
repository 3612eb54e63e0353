"""Where a real update comes from: recorded files, plain tensors or weights around a round, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, read_update, read_updates


@dataclass(frozen=True)
class UpdateSource:
    """Where an update comes from, and what is said of it.

    Attributes:
        model: a spec of the registry, `package.module:attribute`, or a file of weights.
        update: a recorded file, a directory of them, or plain tensors.
        before, after: weights around a client's round; `before` also serves a plain update.
        round, client: which of a directory.
        labels: true labels, or None where they are to be inferred.
        originals: the private images, to score against.
        defence: spec the attacker is taken to know; None for a naive attacker.
        facts: of `UpdateFacts`, where they are stated by options.
    """

    model: str
    update: Path | None = None
    before: Path | None = None
    after: Path | None = None
    round: int | None = None
    client: str | None = None
    labels: tuple[int, ...] | None = None
    originals: tuple[Path, ...] = ()
    defence: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_is_file(self) -> bool:
        """Whether the model is a file of weights that must tell which model they belong to."""
        return self.model.endswith(".safetensors")


def recorded_in(source: UpdateSource) -> tuple[RecordedUpdate | None, str]:
    """Return the recorded update, if it is one, and what to call it."""
    if source.update is None:
        return None, f"{source.after} minus {source.before}"
    if source.update.is_dir():
        found = matching(source)
        others = "" if len(found) == 1 else f", the first of {len(found)}"
        return found[0], title_of(found[0]) + others
    if "fedseal" not in read_tensors(source.update, "update").metadata:
        return None, str(source.update)
    recorded = read_update(source.update)
    return recorded, title_of(recorded)


def title_of(recorded: RecordedUpdate) -> str:
    """Return what to call a recorded update."""
    return f"round {recorded.facts.round} of client {recorded.facts.client}"


def matching(source: UpdateSource) -> list[RecordedUpdate]:
    """Return the updates of a directory that are of the round and client asked for."""
    assert source.update is not None
    everything = read_updates(source.update)
    found = [
        recorded
        for recorded in everything
        if (source.round is None or recorded.facts.round == source.round)
        and (source.client is None or recorded.facts.client == source.client)
    ]
    if not found:
        rounds = sorted({recorded.facts.round for recorded in everything})
        clients = sorted({recorded.facts.client for recorded in everything})
        raise UsageError(
            f"{source.update} holds no such update.",
            hint=f"Rounds: {', '.join(map(str, rounds))}; clients: {', '.join(clients)}.",
        )
    return found


def facts_of(source: UpdateSource, recorded: RecordedUpdate | None) -> UpdateFacts:
    """Return what is known: the file's facts, overridden by options."""
    known = {"kind": "delta", "round": 0, "client": "0"} if recorded is None else recorded.facts.model_dump()
    stated = {key: value for key, value in source.facts.items() if value is not None}
    if source.after is not None and stated.get("kind", "delta") != "delta":
        raise UsageError("weights before and after give a weight change, not a gradient.", hint="Leave --kind out.")
    if recorded is not None and stated.get("kind", recorded.facts.kind) != recorded.facts.kind:
        raise UsageError(f"the file says that it holds a {recorded.facts.kind}.", hint="Leave --kind out.")
    if recorded is None and source.update is not None and "kind" not in stated:
        raise UsageError("is the update a gradient or a weight change?", hint="Give --kind gradient or --kind delta.")
    try:
        return UpdateFacts.model_validate(known | stated)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + ".".join(map(str, first["loc"][:1])).replace("_", "-")
        raise UsageError(f"{option} cannot be {first['input']!r}: {first['msg'].lower()}.") from error


def weights_of(source: UpdateSource, recorded: RecordedUpdate | None) -> Tensors | None:
    """Return the weights the client was sent, where a file has them."""
    if source.before is not None:
        return read_tensors(source.before, "weights").tensors
    if source.model_is_file:
        return read_tensors(Path(source.model), "weights").tensors
    return None if recorded is None else recorded.before
