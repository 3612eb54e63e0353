"""Part 3: how long until a reconstruction of one image has 20 dB, LeNet, with every solver each side has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from attackbench import ours
from attackbench.cases import VICTIMS, Case, make_case, make_setup
from attackbench.theirs import Breaching, Contender

_MODEL = VICTIMS[0].model

_ITERATIONS, _DECAY, _TV = "optim.max_iterations", "optim.step_size_decay", "regularization.total_variation.scale"
_LABELS_GIVEN = {"attack_type": "optimization"}

QUICK_CONTENDERS = (
    Contender("ig, as shipped: 24,000 iterations, TV 0.2", "invertinggradients"),
    Contender(
        "ig, 1,000 iterations, TV 0.01, cosine decay",
        "invertinggradients",
        {_ITERATIONS: 1000, _DECAY: "cosine-decay", _TV: 0.01},
    ),
    Contender(
        "deepleakage (L-BFGS), label given, 30 x 20 steps",
        "deepleakage",
        {**_LABELS_GIVEN, _ITERATIONS: 30},
        score_every=1,
    ),
)
CONTENDERS = (
    *QUICK_CONTENDERS,
    Contender(
        "ig, 1,000 iterations, TV 0.05, cosine decay",
        "invertinggradients",
        {_ITERATIONS: 1000, _DECAY: "cosine-decay", _TV: 0.05},
    ),
    Contender("deepleakage (L-BFGS), as shipped: label optimised", "deepleakage", labels=False, score_every=1),
    Contender(
        "deepleakage (L-BFGS), label given, double precision",
        "deepleakage",
        {**_LABELS_GIVEN, _ITERATIONS: 100, "impl.dtype": "double"},
        score_every=1,
    ),
    Contender(
        "deepleakage (L-BFGS), label given, step 0.5",
        "deepleakage",
        {**_LABELS_GIVEN, _ITERATIONS: 100, "optim.step_size": 0.5},
        score_every=1,
    ),
    Contender(
        "adam 0.1 on the L2 distance, boxed, 2,000 iterations, cosine decay",
        "deepleakage",
        {
            **_LABELS_GIVEN,
            _ITERATIONS: 2000,
            _DECAY: "cosine-decay",
            "optim.optimizer": "adam",
            "optim.step_size": 0.1,
            "optim.boxed": True,
        },
    ),
)
"""What breaching is tried with; its best is chosen per data set by the outcome, in its favour."""


_BOUNDS = {(True, True): "exact", (True, False): "at least", (False, True): "at most", (False, False): "unknown"}
"""What the ratio of times is if (fedseal, breaching) reached the goal on most images; a failure counts as the cap."""


@dataclass(frozen=True)
class Plan:
    """What is attacked, and for how long.

    Attributes:
        sets: data sets.
        images: per set.
        goal: in dB.
        cap: seconds per image after which an attack has failed.
        attacks: fedseal's, as specs.
        contenders: breaching's configurations.
        threads: fedseal's and breaching's.
        seed: of weights, targets and starts.
        together: images fedseal also attacks as one batch, which breaching cannot do.
        data_root: where data lies, if not in the usual places.
    """

    sets: tuple[str, ...]
    images: int
    goal: float
    cap: float
    attacks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    threads: tuple[int, int]
    seed: int
    data_root: Path | None
    together: int = 16


def measure_quality(plan: Plan, breaching: Breaching, directory: Path) -> dict[str, Any]:
    """Measure every contender on every image of every data set."""
    sets = [_measure_set(plan, data, breaching, directory) for data in plan.sets]
    return {
        "model": _MODEL,
        "goal_db": plan.goal,
        "cap_seconds": plan.cap,
        "images": plan.images,
        "seed": plan.seed,
        "threads": {"fedseal": plan.threads[0], "breaching": plan.threads[1]},
        "tried_with_breaching": [{"name": one.name, **one.as_request()} for one in plan.contenders],
        "sets": sets,
    }


def _measure_set(plan: Plan, data: str, breaching: Breaching, directory: Path) -> dict[str, Any]:
    setup = make_setup(
        _MODEL,
        data,
        batch_size=1,
        targets=max(plan.images, plan.together),
        normalise=False,
        seed=plan.seed,
        data_root=plan.data_root,
    )
    every = [make_case(f"quality-{data}-{index}", setup, index) for index in range(max(plan.images, plan.together))]
    cases = every[: plan.images]
    places = [case.save(directory) for case in cases]
    rows = [_our_row(plan, attack, cases) for attack in plan.attacks]
    rows += [_together_row(plan, attack, every[: plan.together]) for attack in plan.attacks if plan.together > 1]
    rows += [_their_row(plan, contender, places, breaching) for contender in plan.contenders]
    our_best = min((row for row in rows if row["side"] == "fedseal"), key=_order)
    theirs = [row for row in rows if row["side"] == "breaching"]
    their_best = min(theirs, key=_order)
    their_ig = min((row for row in theirs if row["name"].startswith("ig,")), key=_order)
    return {
        "data": data,
        "rows": rows,
        "fedseal_best": our_best["name"],
        "breaching_best": their_best["name"],
        "ratio": their_best["median_seconds"] / our_best["median_seconds"],
        "ratio_is": _BOUNDS[our_best["median_reached"], their_best["median_reached"]],
        "breaching_ig": their_ig["name"],
        "ratio_ig": their_ig["median_seconds"] / our_best["median_seconds"],
        "ratio_ig_is": _BOUNDS[our_best["median_reached"], their_ig["median_reached"]],
    }


def _our_row(plan: Plan, attack: str, cases: Sequence[Case]) -> dict[str, Any]:
    ours.reach(cases[0], attack, goal=200.0, cap=0.2, threads=plan.threads[0])
    results = [ours.reach(case, attack, goal=plan.goal, cap=plan.cap, threads=plan.threads[0]) for case in cases]
    return _row("fedseal", attack, results, plan.cap)


def _together_row(plan: Plan, attack: str, cases: Sequence[Case]) -> dict[str, Any]:
    results = ours.reach_together(cases, attack, goal=plan.goal, cap=plan.cap, threads=plan.threads[0])
    return _row(f"fedseal, {len(cases)} together", f"{attack}: share of each", results, plan.cap)


def _their_row(plan: Plan, contender: Contender, places: Sequence[Path], breaching: Breaching) -> dict[str, Any]:
    request = {
        "do": "reach",
        "threads": plan.threads[1],
        "every": contender.score_every,
        **contender.as_request(),
    }
    breaching.ask(**request, case=str(places[0]), goal=200.0, cap=0.2)
    results = [breaching.ask(**request, case=str(place), goal=plan.goal, cap=plan.cap) for place in places]
    return _row("breaching", contender.name, results, plan.cap)


def _row(side: str, name: str, results: Sequence[dict[str, Any]], cap: float) -> dict[str, Any]:
    seconds = [float(result["seconds"]) if result["reached"] else max(cap, 0.0) for result in results]
    reached = sum(bool(result["reached"]) for result in results)
    return {
        "side": side,
        "name": name,
        "reached": reached,
        "of": len(results),
        "median_seconds": median(seconds),
        "median_reached": 2 * reached > len(results),
        "median_best_db": median(float(result["best_db"]) for result in results),
        "results": list(results),
    }


def _order(row: dict[str, Any]) -> tuple[float, float]:
    return (row["median_seconds"], -row["median_best_db"])
