"""Compare `auto` with its single members at equal iterations, on networks untrained and trained.

    python bench/auto.py [--quick] [--data-root DIR] [--networks lenet,lenet-relu] [--batches 1,4] [--iterations 600]

Each row is one network, batch size and stage; each column an attack: mean PSNR in dB over the targets, and in how many
the original is first among 200 (fewer where data are few) by correlation. Processor minutes are those of the whole
cell, shadows and learning included. The table goes to bench/out/auto.md; with `--write` to docs/results/auto.md. Rows
that bench/out/auto.json holds already are not run again, so that a long run can be cut into pieces.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import torch
from rich.console import Console
from torch import Tensor, nn

from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import FedsealError
from fedseal.core.seeds import derive_seed, generator
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian

HERE = Path(__file__).resolve().parent
NETWORKS = {
    "lenet": "lenet:init=wide-uniform",
    "lenet-relu": "lenet-relu",
    "convnet": "convnet",
    "resnet10": "resnet10:width=64",
    "vit-tiny": "vit-tiny",
}
SINGLE = ("retrieval", "learned", "rgap", "ig", "ig:tv=0.05,schedule=cosine", "fedleak:lr=0.05,tv=1.0")
_STRANGERS = 199


@dataclass(frozen=True)
class Options:
    """The command line."""

    networks: tuple[str, ...]
    batches: tuple[int, ...]
    stages: tuple[str, ...]
    iterations: int
    targets: int
    public: int
    steps: int
    data: str
    data_root: Path | None
    write: bool


@dataclass(frozen=True)
class Cell:
    """What one attack reached: mean PSNR with its standard error, the share found, processor minutes."""

    psnr: float
    error: float
    found: str
    minutes: float


def main() -> None:
    """Run all rows and write the table."""
    options = _options()
    kept = HERE / "out" / "auto.json"
    rows: dict[str, dict[str, dict[str, object]]] = json.loads(kept.read_text()) if kept.is_file() else {}
    console = Console()
    for network in options.networks:
        for batch in options.batches:
            for stage in options.stages:
                title = f"{network}, {stage}, b{batch}, {options.iterations} its"
                if title not in rows:
                    rows[title] = {name: vars(cell) for name, cell in _row(network, batch, stage, options).items()}
                    kept.parent.mkdir(exist_ok=True)
                    kept.write_text(json.dumps(rows, indent=1))
                console.print(title, {name: cell["psnr"] for name, cell in rows[title].items()})
    text = _table(rows, options)
    target = HERE.parent / "docs" / "results" / "auto.md" if options.write else HERE / "out" / "auto.md"
    target.write_text(text)
    console.print(f"written: {target}")


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small networks, few iterations")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--stages", default="untrained,trained")
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--public", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1500, help="SGD steps of the trained stage")
    parser.add_argument("--data", default="")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    quick = given.quick
    return Options(
        tuple(("lenet-relu", "lenet") if quick else given.networks.split(",")),
        (1,) if quick else tuple(map(int, given.batches.split(","))),
        tuple(given.stages.split(",")),
        100 if quick else given.iterations,
        4 if quick else given.targets,
        400 if quick else given.public,
        200 if quick else given.steps,
        given.data or ("cifar10" if given.data_root else "digits"),
        given.data_root,
        given.write,
    )


def _row(network: str, batch: int, stage: str, options: Options) -> dict[str, Cell]:
    scenario = Scenario.model_validate(
        {
            "data": options.data,
            "model": NETWORKS[network],
            "public_fraction": 0.5,
            "client": {"batch_size": batch},
            "attacker": {"public_images": options.public},
            "targets": options.targets,
        }
    )
    setup = build_setup(scenario, data_root=options.data_root)
    if stage == "trained":
        setup = replace(setup, model=_trained(setup, options.steps))
    seen = [setup.observe(build_defence("none"), target, model=setup.model) for target in range(options.targets)]
    found = {}
    for spec in (*SINGLE, "auto"):
        started = time.process_time()
        seeds = [derive_seed(0, "attack", target) for target in range(options.targets)]
        try:
            attack = ATTACKS.build(spec)
            attack.check(seen[0].observation)
            answers = attack.run_many([one.observation for one in seen], Budget(options.iterations), seeds)
        except FedsealError:
            continue
        minutes = (time.process_time() - started) / 60
        found[spec] = _cell(setup, [one.originals.images for one in seen], [one.images for one in answers], minutes)
    return found


def _trained(setup: Setup, steps: int) -> nn.Module:
    """Train the network on the public images by plain SGD, as a round late in a federation would find it."""
    model, public = setup.model.train(), setup.public
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    source = generator(0, "bench-auto")
    for _ in range(steps):
        chosen = torch.randint(len(public), (64,), generator=source)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(public.images[chosen]), public.labels[chosen]).backward()
        optimiser.step()
    return model.eval()


def _cell(setup: Setup, originals: list[Tensor], images: list[Tensor], minutes: float) -> Cell:
    matched = [one[hungarian(truth, one)] for truth, one in zip(originals, images, strict=True)]
    values = [float(psnr(a, b, data_range=1.0).mean()) for a, b in zip(originals, matched, strict=True)]
    truth, answers = torch.cat(originals), torch.cat(matched)
    last = torch.arange(max(0, len(setup.private) - 2 * _STRANGERS), len(setup.private))
    strangers = setup.private.batch(last).images
    first = 0
    for own, answer in zip(truth, answers, strict=True):
        others = strangers[(strangers != own).flatten(1).any(1)][:_STRANGERS]
        ranked = torch.corrcoef(torch.cat([answer[None], own[None], others]).flatten(1))[0, 1:]
        first += int(ranked.nan_to_num(-1).argmax()) == 0
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Cell(round(fmean(values), 2), round(error, 2), f"{first}/{len(truth)}", round(minutes, 2))


def _table(rows: dict[str, dict[str, dict[str, object]]], options: Options) -> str:
    columns = [*SINGLE, "auto"]
    lines = [
        "# `auto` and its members",
        "",
        f"By `python bench/auto.py`, {options.data}, {options.targets} targets a cell, {options.public} public images, "
        "one core. Mean PSNR in dB ± standard error, originals found among 200, processor minutes of the cell; `auto` "
        "includes its work on shadows. What is found says nothing of what the update holds: see the ideal reading.",
        "",
        "| network | " + " | ".join(f"`{name}`" for name in columns) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    for title, row in rows.items():
        cells = [
            f"{row[name]['psnr']} ± {row[name]['error']}, {row[name]['found']}, {row[name]['minutes']} min"
            if name in row
            else "–"
            for name in columns
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
