"""What several commands share: options, presets with overrides, progress, and the words they were called with."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from fedseal.core.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedseal.core.watcher import Watcher

Attacks: TypeAlias = Annotated[
    list[str] | None, typer.Option("--attack", help="Attack to run, e.g. ig:tv=0.01; repeatable.")
]
Baseline: TypeAlias = Annotated[
    Path | None, typer.Option(help="Directory of an earlier run: say what changed since, and exit with 1 if worse.")
]
Control: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Defence that never fails a build: none by default, where others are; off judges all."),
]
Data: TypeAlias = Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")]
DataRoot: TypeAlias = Annotated[
    Path | None, typer.Option("--data-root", help="Directory with local data sets.", envvar="FEDSEAL_DATA")
]
Defences: TypeAlias = Annotated[
    list[str] | None, typer.Option("--defence", help="Defence, e.g. topk:ratio=0.9 or gaussian+topk; repeatable.")
]
Device: TypeAlias = Annotated[str, typer.Option(help="Where the work is done: cpu, cuda, cuda:1.")]
Engine: TypeAlias = Annotated[str, typer.Option(help="Where trials run: local, or ray for a Ray cluster.")]
Address: TypeAlias = Annotated[
    str | None, typer.Option(help="The Ray cluster: auto, HOST:PORT or ray://HOST:PORT; this machine without it.")
]
FailOn: TypeAlias = Annotated[
    str | None, typer.Option(help="Exit with 1 at this risk or above: low, medium, high, very-high.")
]
Strict: TypeAlias = Annotated[
    bool,
    typer.Option("--strict", help="With --fail-on: fail as well on what is not shown, unless the update holds less."),
]
Iterations: TypeAlias = Annotated[int | None, typer.Option(help="Attack iterations, instead of each attack's own.")]
Model: TypeAlias = Annotated[
    str | None, typer.Option(help="Model, e.g. lenet-relu, resnet18, package.module:attribute.")
]
Out: TypeAlias = Annotated[Path, typer.Option(help="Directory for all the run leaves; the same one resumes.")]
Redact: TypeAlias = Annotated[bool, typer.Option("--redact", help="Leave private images out of the report.")]
Rounds: TypeAlias = Annotated[int | None, typer.Option(help="Rounds of training.")]
RunDirectory: TypeAlias = Annotated[Path, typer.Argument(help="Directory of a run.")]
Targets: TypeAlias = Annotated[int | None, typer.Option(help="Independent batches attacked per cell.")]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="FEDSEAL_WORKERS", help="Trials or clients run at once; one per core by default on a CPU."
    ),
]

Config = TypeVar("Config", bound="BaseModel")


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["fedseal", *sys.argv[1:]])


def look_here_for_models() -> None:
    """Let a user's own `module:attribute` be found in the working directory, after everything installed."""
    sys.path.append(str(Path.cwd()))


@contextmanager
def watching() -> Iterator[Watcher]:
    """Show progress on stderr; after Ctrl-C, say how to go on and end with 130."""
    from rich.console import Console

    from fedseal.report.progress import TerminalProgress

    try:
        with TerminalProgress(Console(stderr=True)) as progress:
            yield progress
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None


def chosen_scenario(path: Path | None, model: type[Config], command: str, options: Mapping[str, Any]) -> Config:
    """Return a scenario from a file, or from the preset without one, with the command line's options on top.

    Args:
        path: the file, if one was given; else `presets/quick.yaml` beside the model's module.
        model: of the scenario.
        command: of fedseal, named in hints.
        options: what was given, by key; None is left out, in parts of the scenario too.
    """
    from fedseal.core.config_file import configure

    return configure(path or preset(model.__module__), model, _given(options), command=command)


def chosen_scenarios(paths: list[Path] | None, options: Mapping[str, Any], *, command: str) -> tuple[Any, ...]:
    """Return the audits' scenarios from files, several where keys have lists of values; else the preset's."""
    from fedseal.audit.factors import scenarios_of

    sources: list[Any] = [*paths] if paths else [preset("fedseal.audit.scenario")]
    return tuple(one for source in sources for one in scenarios_of(source, _given(options), command=command))


def preset(module: str, name: str = "quick") -> str:
    """Return the text of a scenario that is shipped beside a module."""
    from importlib.resources import files

    return (files(module.rpartition(".")[0]) / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given: None is left out, in parts too, and so is a part of which nothing is left."""
    inner = {key: _given(value) if isinstance(value, Mapping) else value for key, value in options.items()}
    return {key: value for key, value in inner.items() if value is not None and value != {}}


def numbers(text: str, kind: Any, option: str) -> list[Any]:
    """Read numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} cannot be {text!r}.", hint="Write numbers with commas between them.") from None


def image_shape(text: str | None) -> tuple[int, int, int] | None:
    """Read C,H,W of --input-shape."""
    if text is None:
        return None
    shape = numbers(text, int, "--input-shape")
    if len(shape) != 3:
        raise UsageError(f"--input-shape cannot be {text!r}.", hint="Write C,H,W, for example 3,32,32.")
    return shape[0], shape[1], shape[2]


def run_options(data_root: Path | None, device: str, workers: int | None) -> dict[str, Any]:
    """Return what every run is told beside its scenario: where data lies, where it works, and how it was called."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_once = workers or (cores if device == "cpu" else 1)
    return {"data_root": data_root, "device": device, "workers": at_once, "command": command_line()}
