"""What a run recommends, in pieces put to work: a line of a Flower app, filters of NVFlare, a build's check."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fedseal.advice.outcome import holds_advice, open_advice
from fedseal.audit.levels import State
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run
from fedseal.core.errors import UsageError
from fedseal.core.specs import near_matches
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import needs_training, refuse_joint
from fedseal.report.decision import decide
from fedseal.report.write import training_beside

HEAD = "# {defence}: {standing} in the audit of {directory}.\n"


def choose(run: Run, defence: str | None = None) -> tuple[str, str]:
    """Return the defence to apply and how it stands in a run: the recommended one, or one that was audited.

    One that leaks, or that nothing is shown of, is never taken unasked; asked for by name, its standing goes along.
    """
    verdict = run.verdict()
    standings = {row.defence: row for row in verdict.judged}
    if defence is None:
        advice = decide(run, verdict, training_beside(run)).advice
        if advice.defence is None:
            raise UsageError(
                f"this run recommends no defence. {advice.sentence}",
                hint="Name one with --defence: " + ", ".join(standings) + "." if standings else None,
            )
        defence = advice.defence
    if defence not in standings:
        raise UsageError(f"{defence} was not audited in this run.", hint=near_matches(defence, list(standings)))
    row = standings[defence]
    words = "not judged" if row.standing is None else row.standing.words
    return defence, words if row.state is State.LOW else f"{words}: NOT SHOWN TO PROTECT"


def flower_piece(defence: str, run: Run) -> str:
    """Return the line of a ClientApp, and of the server that reads what it sends."""
    built = build_defence(defence)
    inside = needs_training(built)
    if inside:
        option = ", inside=True"
        note = f"# {', '.join(inside)} acts inside of training: let fedseal.flower.train_round run the local steps."
    else:
        option, note = "", "# Your training loop stays as it is."
    refuse_joint(built, "Flower's SecAgg+ (examples/flower-secagg)")
    return textwrap.dedent(
        f"""\
        from flwr.clientapp import ClientApp
        from fedseal.flower import defend

        {note}
        app = ClientApp(mods=[defend({defence!r}{option})])

        # On the server, around the strategy you have: decodes, checks and bounds what clients send.
        from flwr.serverapp.strategy import FedAvg
        from fedseal.flower import guard

        strategy = guard(FedAvg())
        """
    )


def nvflare_piece(defence: str, run: Run) -> str:
    """Return the filters of a job."""
    built = build_defence(defence)
    inside = needs_training(built)
    if inside:
        raise UsageError(
            f"NVFlare's filters see finished updates, and {', '.join(inside)} acts inside of training.",
            hint="Use the hooks for your own training loop: docs/training-loops.md.",
        )
    refuse_joint(built, "NVFlare's own secure aggregation")
    return textwrap.dedent(
        f"""\
        from fedseal.nvflare import DefenceFilter, GuardFilter, SentModel, WireEncoder

        recipe.add_client_output_filter(DefenceFilter({defence!r}), tasks=["train"])
        recipe.add_client_output_filter(WireEncoder(), tasks=["train"])
        recipe.add_server_output_filter(SentModel(), tasks=["train"])
        recipe.add_server_input_filter(GuardFilter(), tasks=["train"])
        """
    )


def ci_piece(defence: str, run: Run) -> str:
    """Return the run's scenario with this defence alone beside the control, for `fedseal audit --fail-on`."""
    documents = []
    for scenario in run.scenarios:
        if defence in scenario.with_control:
            changed = scenario.model_dump(mode="json", exclude_defaults=True) | {"defences": ["none", defence]}
            changed.pop("levels", None)
            documents.append(_dumped(changed))
    first, *others = documents
    if others:
        raise UsageError(
            f"this run has {len(documents)} scenarios with {defence}: a build checks one.",
            hint="Audit the one that counts by itself, and apply that run.",
        )
    return "# fedseal audit fedseal.yaml --fail-on medium --strict\n" + first


PIECES: dict[str, Callable[[str, Run], str]] = {"flower": flower_piece, "nvflare": nvflare_piece, "ci": ci_piece}
"""By the word of `--to`."""


def piece(run: Run, to: str, defence: str | None = None) -> str:
    """Return what puts a run's recommendation to work.

    Args:
        run: an audit.
        to: see `PIECES`.
        defence: one of the audited; None for the recommended one.
    """
    if to not in PIECES:
        raise UsageError(f"nothing is known of {to!r}.", hint=f"Use one of: {', '.join(PIECES)}.")
    chosen, standing = choose(run, defence)
    if chosen == "none":
        raise UsageError("this run recommends no defence: none is needed for what was tested.")
    return HEAD.format(defence=chosen, standing=standing, directory=run.directory.name) + PIECES[to](chosen, run)


def piece_of(directory: Path, to: str, defence: str | None = None) -> str:
    """Return what puts the recommendation in a directory to work, be it an audit's or an advice's."""
    if not holds_advice(directory):
        return piece(open_run(directory), to, defence)
    advice = open_advice(directory)
    if defence is None and advice.recommended is None:
        raise UsageError(
            f"this advice recommends no defence. {advice.paragraph}",
            hint=f"Name one with --defence: {', '.join(advice.nearest)}." if advice.nearest else None,
        )
    return piece(open_run(directory / "audit"), to, defence or advice.recommended)


def _dumped(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, default_flow_style=False)
