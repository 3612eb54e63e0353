"""Measure how far Refiner's images move a gradient, as a share of its norm: what a ball round it has to leave room for.

    python bench/refiner_ball.py --data-root DIR [--write]
    python bench/refiner_ball.py                  # embedded photographs

Two LeNets, untrained, batches of 1, 8 and 32, steps of both rules, no ball at all. Beside it stands what the paper's
radius of 0.1 is a share of. With `--write` the page is docs/results/refiner-ball.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console

from fedseal.core.files import write_atomically
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.defences.refiner.presets import DEFAULT_SHARE
from fedseal.federation.client import RoundConfig, client_round
from fedseal.models.registry import build_model
from provenance import ROOT, made_from, of_one_state, state

PAGE = "docs/results/refiner-ball.md"
MEASURED_BY = ("bench/refiner_ball.py",)
NETWORKS = {"lenet-relu": "ReLU", "lenet-sigmoid": "sigmoid", "lenet:init=wide-uniform": "sigmoid, DLG's wide weights"}
BATCHES = (1, 8, 32)
RULES = {"normalised": "refiner:epsilon=inf", "plain": "refiner:preset=paper,epsilon=inf"}
DRAWS = 8
PUBLISHED = 0.1


def main() -> None:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}, of CIFAR-10")
    parser.add_argument("--quick", action="store_true", help="two draws")
    given = parser.parse_args()
    if given.write and (given.quick or not given.data_root):
        parser.error("the page is of CIFAR-10 and all draws: give --data-root, and not --quick")
    before = state()
    data = "cifar10" if given.data_root else "photos:size=32"
    rows, beyond = table(data, given.data_root, 2 if given.quick else DRAWS)
    Console().print(rows)
    if given.write:
        of_one_state([before], MEASURED_BY)
        write_atomically(ROOT / PAGE, page(rows, beyond).encode())


def table(data: str, root: Path | None, draws: int) -> tuple[str, int]:
    """Return a row for each network and batch size, and how many draws the default's ball would hold back."""
    source = DATASETS.build(data, **({"data_root": root} if root else {}))
    lines = [
        f"| network | batch | norm | the paper's {PUBLISHED:g} | moved, `normalised` | moved, `plain` |",
        "|---|---|---|---|---|---|",
    ]
    beyond = 0
    for network, name in NETWORKS.items():
        for batch in BATCHES:
            moved: dict[str, list[float]] = {rule: [] for rule in RULES}
            norms: list[float] = []
            for draw in range(draws):
                norms.append(_shares(source, network, batch, draw, moved))
            beyond += sum(share > DEFAULT_SHARE for share in moved["normalised"])
            cells = [name, str(batch), f"{fmean(norms):.2f}", _spread([PUBLISHED / norm for norm in norms])]
            lines.append("| " + " | ".join(cells + [_spread(moved[rule]) for rule in RULES]) + " |")
    return "\n".join(lines), beyond


def _shares(source, network: str, batch: int, draw: int, moved: dict[str, list[float]]) -> float:
    """Add by rule how far one batch's gradient is moved, as a share of its norm, and return that norm."""
    places = torch.randperm(len(source), generator=generator(draw, "batch"))[:batch]
    model = build_model(network, input_shape=source.shape, num_classes=len(source.classes), seed=draw)
    sent = {
        spec: client_round(model, [source.batch(places)], RoundConfig(), build_defence(spec), generator(draw, "noise"))
        for spec in ("none", *RULES.values())
    }
    true = flatten(sent["none"].update.tensors)
    for rule, spec in RULES.items():
        moved[rule].append(float((flatten(sent[spec].update.tensors) - true).norm() / true.norm()))
    return float(true.norm())


def _spread(shares: list[float]) -> str:
    return f"{100 * fmean(shares):.3g} % ({100 * min(shares):.2g} to {100 * max(shares):.2g})"


def page(rows: str, beyond: int) -> str:
    """Return the page."""
    draws = DRAWS * len(NETWORKS) * len(BATCHES)
    return "\n".join(
        [
            "# How far Refiner moves a gradient, and what its ball leaves of that",
            "",
            made_from(),
            "by `python bench/refiner_ball.py --data-root DIR --write`: CIFAR-10, untrained networks, "
            f"{DRAWS} draws of weights and",
            "batch, no ball. *Moved* is |g\\* - g| / |g|, the mean with the least and the most, under the default's",
            "steps (`normalised`) and the paper's (`plain`); *norm* is |g|, and beside it what a radius of "
            f"{PUBLISHED:g} is a share of.",
            "",
            rows,
            "",
            f"The default's ball, {100 * DEFAULT_SHARE:.0f} % of the norm, is chosen by this table: {beyond} of "
            f"{draws} draws go further than that,",
            "and the refinement is left alone in the others. A radius in the gradient's own units is another strength",
            "in every row. On the sigmoid network with PyTorch's weights no ball matters: refined images have nearly",
            "the gradient of the true ones, and an audit says so (`hardly refined`).",
            "",
        ]
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
