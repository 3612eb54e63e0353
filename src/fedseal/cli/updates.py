"""`audit-update`: one update a real client sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Attacks,
    DataRoot,
    FailOn,
    Redact,
    command_line,
    image_shape,
    look_here_for_models,
    numbers,
)
from fedseal.core.errors import UsageError


@app.command("audit-update")
def audit_update_command(
    model: Annotated[
        str, typer.Option(help="Model: a name of `fedseal list models`, package.module:attribute, or a weights file.")
    ],
    update: Annotated[
        Path | None, typer.Option(help="Recorded .update.safetensors, a directory of them, or plain tensors.")
    ] = None,
    before: Annotated[Path | None, typer.Option(help="Weights the client was sent (safetensors).")] = None,
    after: Annotated[Path | None, typer.Option(help="Weights it returned; instead of --update.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="C,H,W of an image, e.g. 1,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Outputs of the model; read off its weights.")] = None,
    kind: Annotated[str | None, typer.Option(help="What plain tensors are: gradient or delta.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the client's steps.")] = None,
    local_steps: Annotated[int | None, typer.Option(min=1, help="Of the client in this round.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images per local step.")] = None,
    optimiser: Annotated[str | None, typer.Option(help="Of the client's steps: sgd or adam.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of the client's SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of the client's steps.")] = None,
    bn_mode: Annotated[
        str | None, typer.Option(help="eval, train-nostats or train-exact-stats; searched if absent.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Normalisation per channel, e.g. 0.49,0.48,0.45; searched if absent.")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Normalisation per channel.")] = None,
    search: Annotated[bool, typer.Option(help="Search what nobody said of the client.")] = True,
    labels: Annotated[
        str | None, typer.Option(help="True labels, e.g. 3,1; inferred from the update if absent.")
    ] = None,
    original: Annotated[
        list[Path] | None, typer.Option(help="Private images (PNG, ..., or safetensors `images`) to score against.")
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(help="Data set for chance baselines beside originals; text:... for clients who train on text."),
    ] = None,
    attack: Attacks = None,
    defence: Annotated[str | None, typer.Option(help="Defence the attacker knows was applied.")] = None,
    round_number: Annotated[int | None, typer.Option("--round", help="Which round of a directory.")] = None,
    client: Annotated[str | None, typer.Option(help="Which client of a directory.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit all updates of the directory.")] = False,
    iterations: Annotated[int | None, typer.Option(min=1, help="Attack iterations per start.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Independent starts, whose agreement is reported.")] = 3,
    seed: Annotated[int, typer.Option(help="Determines all starts.")] = 0,
    fail_on: FailOn = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the report.")] = Path("fedseal-update"),
    data_root: DataRoot = None,
    redact: Redact = False,
) -> None:
    """Attack updates that real clients sent, and report what came back.

    With the originals the result is scored; without, it comes with the
    attacker's own confidence: how much of the update the rebuilt images explain,
    and how well independent starts agree. --fail-on judges the score, or that
    confidence: high counts as very-high. The attack is auto unless others are named.
    """
    from rich.console import Console

    from fedseal.audit.levels import RiskLevel
    from fedseal.metrics.lpips import load_lpips
    from fedseal.report.update import render_update_terminal, write_update_reports
    from fedseal.updates.audit import audit_update
    from fedseal.updates.case import build_case, build_cases
    from fedseal.updates.estimate import estimated_seconds, in_words
    from fedseal.updates.source import UpdateSource

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    if every and (original or labels):
        raise UsageError("originals and labels belong to one update.", hint="Leave --all out, or --original, --labels.")
    look_here_for_models()
    source = UpdateSource(
        model=model,
        update=update,
        before=before,
        after=after,
        round=round_number,
        client=client,
        labels=None if labels is None else tuple(numbers(labels, int, "--labels")),
        originals=tuple(original or ()),
        defence=defence,
        facts={
            "kind": kind,
            "input_shape": image_shape(input_shape),
            "num_classes": classes,
            "learning_rate": learning_rate,
            "local_steps": local_steps,
            "batch_size": batch_size,
            "optimiser": optimiser,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "bn_mode": bn_mode,
            "mean": None if mean is None else numbers(mean, float, "--mean"),
            "std": None if std is None else numbers(std, float, "--std"),
        },
    )
    texts = _public_texts(public, data_root)
    if texts is not None:
        _audit_texts(source, texts, attack, out, limit, seed=seed, redact=redact, every=every)
        return
    cases = build_cases(source) if every else [build_case(source)]
    attacks, console, reached = attack or ["auto"], Console(stderr=True), False
    expected = estimated_seconds(cases[0], attacks, iterations=iterations, restarts=restarts, search=search)
    console.print(f"{len(cases)} update(s), {in_words(expected * len(cases))}", highlight=False)
    for case in cases:
        with console.status("attacking") as status:
            audit = audit_update(
                case,
                attacks,
                iterations=iterations,
                restarts=restarts,
                seed=seed,
                public=_public_batch(public, data_root),
                lpips=load_lpips() if original else None,
                command=command_line(),
                listener=_shown_by(status),
                search=search,
            )
        place = out / "".join(c if c.isalnum() else "-" for c in case.title) if every else out
        written = write_update_reports(audit, place, redact=redact)
        Console().print(render_update_terminal(audit))
        typer.echo(f"report: {written['html']}")
        reached = reached or (limit is not None and audit.reaches(limit))
    if reached:
        raise typer.Exit(1)


def _public_texts(spec: str | None, data_root: Path | None) -> Any:
    """Return the data set that brings the tokeniser of text; None where clients hold something else."""
    from fedseal.core.modality import TEXT
    from fedseal.data.registry import DATASETS

    found = None if spec is None else DATASETS.build(spec, data_root=data_root)
    return found if found is not None and found.modality == TEXT else None


def _audit_texts(
    source: Any, data: Any, attacks: list[str] | None, out: Path, limit: Any, *, seed: int, redact: bool, every: bool
) -> None:
    from rich.console import Console

    from fedseal.report.update_text import render_text_update_terminal, write_text_update_reports
    from fedseal.updates.texts import audit_text_update

    if every:
        raise UsageError("updates of text are audited one by one.", hint="Leave --all out; give --round and --client.")
    audit = audit_text_update(source, data, attacks, seed=seed, command=command_line())
    written = write_text_update_reports(audit, out, redact=redact)
    Console().print(render_text_update_terminal(audit, redact=redact))
    typer.echo(f"report: {written['markdown']}")
    if limit is not None and audit.reaches(limit):
        raise typer.Exit(1)


def _shown_by(status: Any) -> Any:
    return lambda done, images: status.update(f"attacking {done:.0%}")


def _public_batch(spec: str | None, data_root: Path | None) -> Any:
    from fedseal.data.registry import DATASETS

    return None if spec is None else DATASETS.build(spec, data_root=data_root).batch()
