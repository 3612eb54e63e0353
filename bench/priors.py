"""Compare learned priors with total variation at equal processor time, under defences, on images like theirs and not.

    python bench/priors.py --data-root DIR [--rows lenet/gaussian:sigma=0.01/1,...] [--write]
    python bench/priors.py --quick                # as without --data-root: a small prior, and no attack

Each row is a network, a defence that the attacker knows, a batch size and a data set; each column a prior in `ig`, and
`denoised`, which post-processes `ig` with total variation. All columns get the same processor time for each target, the
iterations that fit are read off short runs on shadows. The weight of each prior is chosen on shadows, whose images no
prior was trained on; targets have no part in it. Found is the mean PSNR, with its paired difference to total variation;
singled out is how many originals are first among their strangers by correlation; ideal is what the update holds.
Priors are trained once on public CIFAR-10 images, beside the rows; training is not part of the time. Rows that
bench/out/priors.json holds already are not run again. With `--write` the page is docs/results/priors.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from fedseal.attacks.shadow.targets import Shadows, play_shadows
from fedseal.audit.readings import Reader, ReadingJob
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, Target, build_setup, make_aware
from fedseal.core.attack import ATTACKS, Attack, Budget
from fedseal.core.errors import FedsealError, InputError
from fedseal.core.files import write_atomically
from fedseal.core.observation import Observation
from fedseal.core.seeds import derive_seed
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.baselines import mean_image
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian
from fedseal.priors.plan import plan_for
from fedseal.priors.production import produce_prior
from priorbench.grid import COLUMNS, NETWORKS, PAIRS, PUBLIC, SECONDS, SHADOWS, STEPS, STRANGERS, TRIED, Row, every_row
from priorbench.page import ignores, page
from provenance import ROOT, made_from, of_one_state, state

HERE = Path(__file__).resolve().parent
PAGE = "docs/results/priors.md"
MEASURED_BY = ("bench/priors.py", "bench/priorbench/grid.py")
"""What decides figures, beside the package."""


def main() -> None:
    """Run the rows that are missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="network/defence/batch[/data], several by semicolons; default: all")
    parser.add_argument("--columns", default=",".join([*COLUMNS, "denoised"]), help="default: %(default)s")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "out", help="where rows are kept; default: %(default)s")
    parser.add_argument("--without-ideal", action="store_true", help="leave out what the update holds")
    parser.add_argument("--write", action="store_true", help="write docs/results/priors.md, and run nothing")
    parser.add_argument(
        "--quick", action="store_true", help="train the smallest prior on embedded faces, attack nothing"
    )
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    if given.quick or not (given.data_root or given.write):
        made = produce_prior(["faces:size=8"], plan_for("patch", 2), given.out / "quick.safetensors")
        Console().print(made.title, made.quality)
        return
    kept = given.out / "priors.json"
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.is_file() else {}
    wanted = [Row.parse(text) for text in given.rows.split(";")] if given.rows else every_row()
    for row in () if given.write else wanted:
        held = rows.setdefault(str(row), {"cells": {}})
        held["states"] = sorted({*held.get("states", []), state()})
        try:
            for _ in _run(row, held, given.columns.split(","), given.data_root, given.out, not given.without_ideal):
                write_atomically(kept, json.dumps(rows, indent=1).encode())
                Console().print(str(row), {name: cell["mean"] for name, cell in held["cells"].items()})
        except FedsealError as error:
            held["refused"] = str(error)
            write_atomically(kept, json.dumps(rows, indent=1).encode())
    write_atomically(given.out / "priors.md", page(rows).encode())
    if given.write:
        of_one_state([one for row in rows.values() for one in row["states"]], MEASURED_BY)
        write_atomically(ROOT / PAGE, page(rows, made_from()).encode())


def _prior_file(kind: str, data_root: Path | None, out: Path) -> Path:
    """Return the file of a prior, training it if it is not there."""
    path = out / f"prior-{kind}.safetensors"
    if not path.is_file():
        plan = plan_for(kind, STEPS[kind])
        produce_prior(["cifar10"], plan, path, images=PUBLIC, public_fraction=0.5, data_root=data_root)
    return path


def _run(
    row: Row, held: dict[str, Any], columns: list[str], data_root: Path | None, out: Path, ideal: bool
) -> Iterator[dict[str, Any]]:
    """Fill in the cells that a row lacks, one after the other, after what they are compared with."""
    cells = held["cells"]
    lacking = [name for name in dict.fromkeys(["tv", *columns]) if name not in cells]
    if not lacking and ("ideal" in held or not ideal):
        return
    scenario = Scenario.model_validate(
        {
            "data": row.data,
            "model": NETWORKS[row.network],
            "public_fraction": 0.5,
            "client": {"batch_size": row.batch},
            "attacker": {"public_images": PUBLIC + 64 * row.batch, "labels": "true"},
            "defences": [row.defence],
            "targets": row.targets,
        }
    )
    setup = build_setup(scenario, data_root=data_root)
    seen, aware = _observed(setup, row)
    shadows = _shadows(setup, aware[0], row)
    each = SECONDS[row.network] * math.sqrt(row.batch)
    truths = [one.originals.images for one in seen]
    guesses = [float(psnr(own, mean_image(own, setup.public), data_range=1.0).mean()) for own in truths]
    held.update(guess=fmean(guesses), targets=len(seen), seconds=each)
    if ideal and "ideal" not in held:
        reading, _ = Reader(setup).run(ReadingJob(row.defence, 0, str(row)))
        held.update(ideal=reading.psnr_db, unread=reading.reason)
        yield held
    if not lacking:
        return
    aware, shadows, held["way"] = _better_way(aware, shadows, each, TRIED[row.network])
    observations = [_settled(one) for one in aware]
    for name in lacking:
        if name == "denoised":
            start = _prior_file("diffusion", data_root, out)
            cells[name] = _polished(setup, seen, aware, cells["tv"], start, PAIRS[row.network])
        else:
            spec, weights = COLUMNS[name]
            file = None if name == "tv" else _prior_file(name, data_root, out)
            specs = [spec.format(weight=weight, file=file) for weight in weights]
            _refuse_overlap(specs[0], truths)
            cells[name] = _column(setup, seen, observations, shadows, specs, each, TRIED[row.network])
        yield cells[name]


def _refuse_overlap(spec: str, truths: list[torch.Tensor]) -> None:
    """Refuse a prior that was trained on a target, as audits do."""
    brought = ATTACKS.build(spec).brings()
    if brought is not None and (known := sum(brought.holds(images) for images in truths)):
        raise InputError(f"{known} targets are among the images of {brought.words}.")


def _polished(
    setup: Setup, seen: list[Target], observations: list[Observation], plain: dict[str, Any], start: Path, shadows: int
) -> dict[str, Any]:
    """Post-process the best of total variation; what is learned on shadows is learned before the clock runs."""
    spec = f"denoised?inversion={plain['spec']}&shadows={shadows}&steps=60&prior={start}"
    budget = Budget(plain["iterations"])
    started = time.process_time()
    ATTACKS.build(spec).run_many(observations[:1], budget, [0])
    return {"prepared": time.process_time() - started, **_measured(setup, seen, observations, spec, budget)}


def _observed(setup: Setup, row: Row) -> tuple[list[Target], list[Observation]]:
    """Return the targets, and what an attacker who knows the defence sees of them."""
    model = setup.wrapped_model(build_defence(row.defence), row.defence)
    seen = [
        setup.observe(build_defence(row.defence), number, model=model, name=row.defence)
        for number in range(row.targets)
    ]
    return seen, [make_aware(one.observation, one.defence, row.defence) for one in seen]


def _better_way(
    aware: list[Observation], shadows: Shadows, each: float, tried: tuple[int, int]
) -> tuple[list[Observation], Shadows, dict[str, float]]:
    """Simulate the defence or ignore it, as does better on shadows; attacks would try it anew for every column.

    Returns the observations and shadows as they are then attacked, and what either way reached in dB.
    """
    view = aware[0].knowledge.defence
    knowing = replace(shadows, observations=tuple(_settled(one) for one in shadows.observations))
    if view is None or view.is_plain:
        return aware, knowing, {}
    ignoring = replace(knowing, observations=tuple(_naive(one) for one in knowing.observations))
    if view.personal:  # what is known of one client's defence is wrong of a shadow's
        return aware, ignoring, {}
    spec, weights = COLUMNS["tv"]
    attack = ATTACKS.build(spec.format(weight=weights[1]))
    budget = Budget(_affordable(list(knowing.observations), attack, each, tried))
    seeds = list(range(len(knowing.observations)))
    reached = {
        name: fmean(way.scores(attack.run_many(way.observations, budget, seeds)))
        for name, way in {"simulated": knowing, "ignored": ignoring}.items()
    }
    if ignores(reached):
        return [_naive(one) for one in aware], ignoring, reached
    return aware, knowing, reached


def _naive(observation: Observation) -> Observation:
    """Return the observation of an attacker who does not know the defence."""
    return replace(observation, knowledge=replace(observation.knowledge, defence=None))


def _settled(observation: Observation) -> Observation:
    """Return the observation of one who need not rehearse any more whether to simulate the defence."""
    return replace(observation, knowledge=replace(observation.knowledge, rehearse=None))


def _shadows(setup: Setup, observation: Observation, row: Row) -> Shadows:
    """Play clients with public images behind those the priors were trained on."""
    public = setup.public
    count = min(SHADOWS[row.network], max(2, len(public) // (4 * row.batch)))
    first = max(0, len(public) - count * row.batch)
    return play_shadows(observation, public.pick(slice(first, None)), public.pick(slice(first)), 0)


def _column(
    setup: Setup,
    seen: list[Target],
    observations: list[Observation],
    shadows: Shadows,
    specs: list[str],
    each: float,
    tried: tuple[int, int],
) -> dict[str, Any]:
    """Choose a weight on shadows, at the iterations that fit into the time, and attack the targets with it."""
    iterations = _affordable(observations, ATTACKS.build(specs[0]), each, tried)
    seeds = [derive_seed(0, "shadow", number) for number in range(len(shadows.observations))]
    scores = []
    for spec in specs:
        answers = ATTACKS.build(spec).run_many(shadows.observations, Budget(max(2, iterations // 2)), seeds)
        scores.append(fmean(shadows.scores(answers)))
    best = specs[max(range(len(specs)), key=scores.__getitem__)]
    return _measured(setup, seen, observations, best, Budget(iterations))


def _affordable(observations: list[Observation], attack: Attack, each: float, tried: tuple[int, int]) -> int:
    """Return the iterations that fit into the time for each target, by two short runs after one that warms up.

    Targets that are attacked together take less each, so as many are; what comes out is not looked at.
    """
    taken = []
    fewer, more = tried
    for count in (fewer, fewer, more):
        started = time.process_time()
        attack.run_many(observations, Budget(count), [0] * len(observations))
        taken.append(time.process_time() - started)
    slope = max(taken[2] - taken[1], 0.1 * taken[2], 1e-3) / (more - fewer) / len(observations)
    return max(4, math.floor(each / slope))


def _measured(
    setup: Setup, seen: list[Target], observations: list[Observation], spec: str, budget: Budget
) -> dict[str, Any]:
    started = time.process_time()
    answers = ATTACKS.build(spec).run_many(observations, budget, [derive_seed(0, "a", n) for n in range(len(seen))])
    seconds = (time.process_time() - started) / len(seen)
    values, first, ranked = [], 0, 0
    for one, answer in zip(seen, answers, strict=True):
        truth = one.originals.images
        values.append(float(psnr(truth, answer.images[hungarian(truth, answer.images)], data_range=1.0).mean()))
        first += _firsts(one, answer.images, setup)
        ranked += len(truth)
    return {
        "spec": spec.replace(str(HERE) + "/", ""),
        "iterations": budget.iterations,
        "psnr": values,
        "mean": round(fmean(values), 2),
        "first": first,
        "ranked": ranked,
        "seconds": round(seconds, 2),
    }


def _firsts(target: Target, answers: torch.Tensor, setup: Setup) -> int:
    """Return how many originals correlate with an answer more than any stranger of their class does."""
    first = 0
    for own, label in zip(target.originals.images, target.originals.labels, strict=True):
        others = setup.strangers.images[setup.strangers.labels == label][:STRANGERS]
        candidates = torch.cat([own[None], others]).flatten(1)
        both = torch.corrcoef(torch.cat([candidates, answers.flatten(1)]))
        best = both[: len(candidates), len(candidates) :].nan_to_num(-1).amax(1)
        first += int(best.argmax()) == 0
    return first


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
