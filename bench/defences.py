"""Client time under each defence, as a ratio to an undefended step.

    python bench/defences.py [--quick] [--models lenet,resnet18] [--defences topk,gaussian+topk] [--batch 128]

Each defence runs rounds of one local step on one batch of random 32x32 colour images, alternating with undefended
rounds, so that a machine that slows down slows both; the ratio is the median over pairs. Timed is the processor time of
everything a client does, which other programs do not change: hooks, forward and backward passes, and coding the upload.
What a model or an option does not allow is skipped with the reason. Defences that change the configuration (local
steps, batch, clients) get what they ask for, and their time is that of one client's round. Results go to
bench/out/defences.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, Defence, RoundShape
from fedseal.core.errors import FedsealError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode, train
from fedseal.federation.wire import encode
from fedseal.models.registry import MODELS, build_model

SHAPE = (3, 32, 32)
CLASSES = 10
DEFAULT_MODELS = ("lenet", "resnet18", "vit-tiny")
PRESETS = ("refiner:preset=paper", "refiner:preset=fast", "refiner:preset=fast,warm=0")
"""Measured beside every defence at its defaults; `warm=0` is a sample's first visit, the preset itself a later one."""
OUT = Path(__file__).parent / "out" / "defences.json"


@dataclass(frozen=True)
class Measured:
    """One defence on one model; `skipped` says why there are no figures.

    Attributes:
        ratio: median over pairs of defended to undefended time.
        spread: half the range of the middle half of those ratios.
        seconds: median of the defended rounds.
        plain_seconds: median of the undefended rounds.
        hook_seconds: median time in hooks.
        bytes_per_parameter: of the encoded upload.
    """

    model: str
    defence: str
    ratio: float | None = None
    spread: float | None = None
    seconds: float | None = None
    plain_seconds: float | None = None
    hook_seconds: float | None = None
    bytes_per_parameter: float | None = None
    repeats: int = 0
    skipped: str | None = None


def batch_of(size: int, seed: int) -> Batch:
    """Return random images; the time does not depend on what they show."""
    source = generator(seed, "bench")
    return Batch(torch.rand(size, *SHAPE, generator=source), torch.randint(CLASSES, (size,), generator=source))


def one_round(model: nn.Module, batches: list[Batch], defence: Defence, number: int) -> tuple[float, float, int]:
    """Run one client's round and code its upload; return its seconds, those of the hooks, and the bytes."""
    config = RoundConfig(local_steps=len(batches))
    start = time.process_time()
    trained = train(model, batches, config, defence, generator(number), round_number=number, client="client-0-0")
    length = len(encode(trained.update.tensors))
    return time.process_time() - start, trained.hook_seconds, length


def measure(model_name: str, spec: str, model: nn.Module, batch: int, repeats: int, budget: float) -> Measured:
    """Alternate defended and undefended rounds after a warm-up of both, within `budget` seconds or two pairs."""
    try:
        defence, plain = build_defence(spec), Defence()
        shape = defence.reshape(RoundShape(batch_size=batch))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            wrapped = set_mode(defence.wrap_model(copy.deepcopy(model)), RoundConfig())
        whole = defence.prepare(batch_of(shape.batch_size * shape.local_steps, 0), generator(0))
        parts = zip(whole.images.split(shape.batch_size), whole.labels.split(shape.batch_size), strict=True)
        fed = [Batch(images, labels) for images, labels in parts][: shape.local_steps]
        undefended = [batch_of(batch, 1)]
        one_round(wrapped, fed, defence, 0)
        one_round(model, undefended, plain, 0)
        pairs, start = [], time.perf_counter()
        for number in range(1, repeats + 1):
            before = one_round(model, undefended, plain, number) if number % 2 else None  # who goes first alternates
            defended = one_round(wrapped, fed, defence, number)
            pairs.append((defended, before or one_round(model, undefended, plain, number)))
            if len(pairs) >= 2 and time.perf_counter() - start > budget:
                break
    except (FedsealError, NotImplementedError) as error:
        return Measured(model_name, spec, skipped=str(error))
    except RuntimeError as error:  # what PyTorch cannot do with this model
        return Measured(model_name, spec, skipped=str(error).strip().splitlines()[0])
    ratios = sorted(timed[0] / base[0] for timed, base in pairs)
    quarter = len(ratios) // 4
    parameters = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    return Measured(
        model_name,
        spec,
        statistics.median(ratios),
        (ratios[-1 - quarter] - ratios[quarter]) / 2,
        statistics.median(timed[0] for timed, _ in pairs),
        statistics.median(base[0] for _, base in pairs),
        statistics.median(timed[1] for timed, _ in pairs),
        pairs[-1][0][2] / parameters,
        len(pairs),
    )


def show(console: Console, model: str, results: list[Measured]) -> None:
    """Print one model's table, cheapest defence first, then what was skipped."""
    table = Table(title=f"{model}: client time, defended / undefended")
    table.add_column("defence", no_wrap=True, min_width=20)
    for heading in ("ratio", "±", "ms", "plain", "hooks", "B/par.", "pairs"):
        table.add_column(heading, justify="right")
    for one in sorted((one for one in results if one.ratio is not None), key=lambda one: one.ratio or 0.0):
        table.add_row(
            one.defence,
            f"{one.ratio:.2f}x",
            f"{one.spread:.2f}",
            f"{1e3 * (one.seconds or 0):,.0f}",
            f"{1e3 * (one.plain_seconds or 0):,.0f}",
            f"{1e3 * (one.hook_seconds or 0):,.0f}",
            f"{one.bytes_per_parameter:.3f}",
            str(one.repeats),
        )
    console.print(table)
    for one in results:
        if one.skipped:
            console.print(f"[bold]{one.defence}[/bold] skipped: {one.skipped}", markup=True, highlight=False)


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="LeNet only unless --models is given, 3 pairs each")
    parser.add_argument(
        "--models", help="comma-separated; default: those of " + ", ".join(DEFAULT_MODELS) + " that exist"
    )
    parser.add_argument("--defences", help="specs separated by semicolons, or names by commas; default: all registered")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9, help="pairs per defence at most")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds per defence and model after the warm-up")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    known = MODELS.names()
    asked = options.models.split(",") if options.models else DEFAULT_MODELS[:1] if options.quick else DEFAULT_MODELS
    models = [name for name in asked if options.models or name in known]
    for name in set(asked) - set(models):
        console.print(f"{name} skipped: there is no such model yet.")
    text = options.defences
    specs = text.split(";" if ";" in text or "=" in text else ",") if text else [*DEFENCES.names(), *PRESETS]
    repeats, budget = (3, 10.0) if options.quick else (options.repeats, options.budget)
    results: list[Measured] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(models) * len(specs))
        for name in models:
            model = set_mode(build_model(name, input_shape=SHAPE, num_classes=CLASSES, seed=0), RoundConfig())
            for spec in specs:
                progress.update(task, description=f"{name}, {spec}")
                results.append(measure(name, spec, model, options.batch, repeats, budget))
                progress.advance(task)
    for name in models:
        show(console, name, [one for one in results if one.model == name])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    environment = {"torch": torch.__version__, "threads": options.threads, "batch": options.batch}
    document = {"environment": environment, "results": [asdict(one) for one in results]}
    options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
