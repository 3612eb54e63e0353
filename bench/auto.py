"""Compare `auto` with single attacks at equal processor time, on networks untrained and trained.

    python bench/auto.py --data-root DIR [--networks lenet,vit-tiny] [--batches 1,4] [--stages untrained,trained]
    python bench/auto.py --data-root DIR --control
    python bench/auto.py --quick

Each row is one network, batch size and stage; each column an attack: mean PSNR in dB over the targets, and in how many
the original is first among 200 (fewer where data are few) by correlation. `auto` runs first, its work on shadows and
its learning included; a search then gets as many iterations as fit into the same processor time, closed forms take what
they take. The best single attack is the one with the best mean on these very targets, which favours it; the difference
is paired, target by target, with its interval. The table goes to bench/out/auto.md; with `--write` to
docs/results/auto.md. Rows that bench/out/auto.json holds already are not run again, so that a long run can be cut into
pieces. `--control` asks whether anything breaks an undefended ResNet at all: the learned inversion on a narrow one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from autobench.networks import CLOSED, CONTROL, CONTROL_ROW, NETWORKS, SEARCHES, Network
from autobench.page import page
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, Target, build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import FedsealError
from fedseal.core.files import write_atomically
from fedseal.core.seeds import derive_seed, generator
from fedseal.data.dataset import ImageDataset, split_public
from fedseal.data.places import CACHE_VARIABLE
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.baselines import mean_image
from fedseal.metrics.image import psnr
from fedseal.metrics.intervals import mean_interval
from fedseal.metrics.matching import hungarian
from fedseal.metrics.singling import pointed
from fedseal.preparation import forget
from provenance import ROOT, made_from, of_one_state, state

HERE = Path(__file__).resolve().parent
PAGE = "docs/results/auto.md"
MEASURED_BY = ("bench/auto.py", "bench/autobench/networks.py")
"""What decides figures, beside the package."""
_PUBLIC_FRACTION = 0.5
_STRANGERS = 199
_TOGETHER = 50
"""Iterations above which a network is small, and its targets are attacked together."""


@dataclass(frozen=True)
class Options:
    """The command line."""

    networks: dict[str, Network]
    batches: tuple[int, ...]
    stages: tuple[str, ...]
    data: str
    data_root: Path | None
    out: Path
    write: bool
    control: bool


def main() -> None:
    """Run the rows that are missing and write the table."""
    options = _options()
    options.out.mkdir(exist_ok=True, parents=True)
    kept = options.out / "auto.json"
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.is_file() else {}
    console = Console()
    if options.control and CONTROL_ROW not in rows:
        rows[CONTROL_ROW] = _control(options) | {"state": state()}
        write_atomically(kept, json.dumps(rows, indent=1).encode())
    for batch in () if options.control else options.batches:
        for name, network in options.networks.items():
            for stage in options.stages:
                title = f"{name}, {stage}, b{batch}"
                if title not in rows:
                    rows[title] = _row(network, batch, stage, options) | {"state": state()}
                    write_atomically(kept, json.dumps(rows, indent=1).encode())
                console.print(title, {spec: cell["mean"] for spec, cell in rows[title]["cells"].items()})
    write_atomically(options.out / "auto.md", page(rows, options.data).encode())
    if options.write:
        of_one_state([row["state"] for row in rows.values()], MEASURED_BY)
        write_atomically(ROOT / PAGE, page(rows, options.data, made_from()).encode())


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network on embedded digits")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--stages", default="untrained,trained")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "out", help="where rows are kept; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write docs/results/auto.md")
    parser.add_argument("--control", action="store_true", help="the undefended ResNet, and nothing else")
    given = parser.parse_args()
    networks = {name: NETWORKS[name] for name in given.networks.split(",")}
    if given.quick:
        networks = {"lenet-relu": Network("lenet-relu", {1: 40}, 100, 50)}
    return Options(
        networks,
        (1,) if given.quick else tuple(map(int, given.batches.split(","))),
        tuple(given.stages.split(",")),
        "cifar10" if given.data_root else "digits",
        given.data_root,
        given.out,
        given.write,
        given.control,
    )


def _control(options: Options) -> dict[str, Any]:
    """Attack an undefended ResNet by what is learned from public images."""
    setup = _set_up(CONTROL, 1, options)
    seen = [setup.observe(build_defence("none"), target, model=setup.model) for target in range(CONTROL.targets[1])]
    cell = _attacked(setup, seen, "learned", 1)
    assert cell is not None
    return {"cell": cell, "guess": _guessed(setup, seen)}


def _set_up(network: Network, batch: int, options: Options) -> Setup:
    scenario = Scenario.model_validate(
        {
            "data": options.data,
            "model": network.model,
            "public_fraction": _PUBLIC_FRACTION,
            "client": {"batch_size": batch},
            "attacker": {"public_images": network.public},
            "targets": network.targets[batch],
        }
    )
    return build_setup(scenario, data_root=options.data_root)


def _row(network: Network, batch: int, stage: str, options: Options) -> dict[str, Any]:
    setup = _set_up(network, batch, options)
    accuracy = None
    if stage == "trained":
        model, accuracy = _trained(setup, network, options)
        setup = replace(setup, model=model)
    seen = [setup.observe(build_defence("none"), target, model=setup.model) for target in range(network.targets[batch])]
    iterations = network.iterations[batch]
    cells = {"auto": _attacked(setup, seen, "auto", iterations)}
    assert cells["auto"] is not None
    for spec in CLOSED:
        cells[spec] = _attacked(setup, seen, spec, iterations)
    for spec in SEARCHES:
        cells[spec] = _attacked(setup, seen, spec, max(iterations, _affordable(setup, seen, spec, iterations, cells)))
    found = {spec: cell for spec, cell in cells.items() if cell is not None}
    best = max((spec for spec in found if spec != "auto"), key=lambda spec: found[spec]["mean"])
    pairs = zip(found["auto"]["psnr"], found[best]["psnr"], strict=True)
    return {
        "cells": found,
        "best": best,
        "difference": mean_interval([ours - theirs for ours, theirs in pairs]).as_dict(),
        "guess": _guessed(setup, seen),
        "accuracy": accuracy,
        "targets": network.targets[batch],
        "public": network.public,
    }


def _affordable(setup: Setup, seen: list[Target], spec: str, iterations: int, cells: dict[str, Any]) -> int:
    """Return the iterations of a search that fit into the time `auto` took, by two short runs: start and slope.

    They attack one target, as searches take targets in turn; but small networks' together, so there all are attacked.
    """
    pilot, times = (seen, 1) if iterations > _TOGETHER else (seen[:1], len(seen))
    short, longer = 2, 2 + max(2, iterations // 5)
    pilots = [_attacked(setup, pilot, spec, count) for count in (short, longer)]
    assert pilots[0] is not None
    assert pilots[1] is not None
    each = times * max(pilots[1]["seconds"] - pilots[0]["seconds"], 1e-3) / (longer - short)
    return short + round(max(0.0, cells["auto"]["seconds"] - times * pilots[0]["seconds"]) / each)


def _guessed(setup: Setup, seen: list[Target]) -> float:
    """Return what the mean public image scores."""
    images = [one.originals.images for one in seen]
    return round(fmean(float(psnr(own, mean_image(own, setup.public), data_range=1.0).mean()) for own in images), 2)


def _attacked(setup: Setup, seen: list[Target], spec: str, iterations: int) -> dict[str, Any] | None:
    """Attack all targets, with nothing prepared by another attack; None where the attack is refused."""
    with _nothing_prepared():
        observations = [one.observation for one in seen]
        seeds = [derive_seed(0, "attack", target) for target in range(len(seen))]
        started = time.process_time()
        try:
            attack = ATTACKS.build(spec)
            attack.check(observations[0])
            answers = attack.run_many(observations, Budget(iterations), seeds)
        except FedsealError:
            return None
        seconds = time.process_time() - started
    pairs = [(one.originals.images, answer.images) for one, answer in zip(seen, answers, strict=True)]
    matched = [(truth, images[hungarian(truth, images)]) for truth, images in pairs]
    held = [answer.images if answer.likenesses is None else answer.likenesses for answer in answers]
    values = [float(psnr(truth, images, data_range=1.0).mean()) for truth, images in matched]
    return {
        "psnr": values,
        "mean": round(fmean(values), 2),
        "first": _firsts(setup, [(one.originals.images, images) for one, images in zip(seen, held, strict=True)]),
        "images": sum(len(truth) for truth, _ in matched),
        "seconds": seconds,
        "iterations": iterations if spec in {*SEARCHES, "auto"} else None,
        "notes": sorted({answer.notes[0] for answer in answers if answer.notes}) if spec == "auto" else [],
    }


def _firsts(setup: Setup, held: list[tuple[Tensor, Tensor]]) -> int:
    """Return how many originals correlate with what the attacker holds more than every stranger does."""
    last = torch.arange(max(0, len(setup.private) - 2 * _STRANGERS), len(setup.private))
    strangers = setup.private.batch(last).images
    first = 0
    for truth, images in held:
        for own in truth:
            others = strangers[(strangers != own).flatten(1).any(1)][:_STRANGERS]
            first += int(pointed(own[None], images, others) > 0)
    return first


def _trained(setup: Setup, network: Network, options: Options) -> tuple[nn.Module, float]:
    """Train on images that are neither private nor the attacker's; return the model and its accuracy on others."""
    whole = DATASETS.build(options.data, data_root=options.data_root)
    _, rest = split_public(whole, _PUBLIC_FRACTION, setup.scenario.seed)
    others = torch.arange(network.public, len(rest))
    own, held = rest.subset(others[:-1000]), rest.subset(others[-1000:])
    model = setup.model.train()
    optimiser = torch.optim.Adam(model.parameters(), network.rate)
    source = generator(0, "bench-auto")
    for _ in range(network.steps):
        batch = own.batch(torch.randint(len(own), (64,), generator=source))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()
    return model.eval(), _accuracy(model, held)


@torch.no_grad()
def _accuracy(model: nn.Module, held: ImageDataset) -> float:
    batch = held.batch(torch.arange(len(held)))
    right = [
        (model(x).argmax(1) == y).sum() for x, y in zip(batch.images.split(100), batch.labels.split(100), strict=True)
    ]
    return round(float(torch.stack(right).sum()) / len(held), 3)


@contextmanager
def _nothing_prepared() -> Iterator[None]:
    """Let nothing that another attack has prepared be found."""
    before = os.environ.get(CACHE_VARIABLE)
    forget()
    with tempfile.TemporaryDirectory() as empty:
        os.environ[CACHE_VARIABLE] = empty
        try:
            yield
        finally:
            if before is None:
                del os.environ[CACHE_VARIABLE]
            else:
                os.environ[CACHE_VARIABLE] = before


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
