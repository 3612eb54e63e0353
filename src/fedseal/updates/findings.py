"""What a reader must know to judge an audit of a real update: what nobody said and was assumed."""

from __future__ import annotations

from fedseal.federation.update_file import RecordedUpdate, UpdateFacts
from fedseal.store.findings import Finding
from fedseal.updates.source import UpdateSource


def assumptions(source: UpdateSource, facts: UpdateFacts, recorded: RecordedUpdate | None) -> list[Finding]:
    """Return a finding for everything that was assumed for want of a word."""
    found = []
    if facts.batch_size is None and source.labels is None and not source.originals:
        found.append(
            Finding(
                severity="warning",
                topic="batch size",
                text="nobody said how many images are behind the update; one is assumed.",
                advice="Give --batch-size if there are more: too few are mixtures of all.",
            )
        )
    if facts.kind == "delta" and facts.local_steps is None:
        found.append(
            Finding(
                severity="warning",
                topic="local steps",
                text="nobody said how many local steps are behind the weight change; one is assumed.",
                advice="Give --local-steps if there were more.",
            )
        )
    steps = facts.local_steps or 1
    if facts.kind == "delta" and facts.optimiser is None:
        found.append(
            Finding(
                severity="note",
                topic="optimiser",
                text="nobody said how the client steps; plain SGD is assumed unless the change shows another.",
                advice="Give --optimiser, --momentum and --weight-decay as the client uses them.",
            )
        )
    if steps > 1 and (facts.momentum or facts.optimiser == "adam"):
        found.append(
            Finding(
                severity="warning",
                topic="optimiser",
                text=f"{steps} local steps with {'Adam' if facts.optimiser == 'adam' else 'momentum'} are attacked as "
                "plain steps: an attacker who unrolls them does better.",
                advice="That nothing was found says little here.",
            )
        )
    claimed = None if recorded is None else recorded.facts.defence
    if claimed not in (None, "none") and source.defence is None:
        found.append(
            Finding(
                severity="warning",
                topic="defence",
                text=f"the client says that it applied `{claimed}`, and this attacker does not use that.",
                advice=f"Add --defence '{claimed}' for an attacker who does; a defence must stand both.",
            )
        )
    if source.before is None and not source.model_is_file and recorded is None:
        found.append(
            Finding(
                severity="warning",
                topic="weights",
                text="no file says which weights the client was sent; the model is attacked as it is built.",
                advice="Give --before, unless the model brings its own weights.",
            )
        )
    return found
