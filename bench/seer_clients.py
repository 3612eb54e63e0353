"""SEER through an aggregate: `thresh` mode isolates one image of all clients' by a threshold on its property.

    python bench/seer_clients.py bench/lids.yaml --data-root DIR --write bench/out/seer-clients.md

Trains one attacker per number of clients on the scenario's auxiliary images and attacks rounds of real images it never
saw, of which the server sees the clients' sum alone. The attacker that `bench/lids.py` trains for one client attacks
the same rounds for comparison. Attackers are kept in fedseal's cache; interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from rich.console import Console
from torch import Tensor

from fedseal.attacks.active.seer.attacker import SeerAttacker
from fedseal.attacks.active.seer.fitting import Trainee
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.attacks.active.seer.properties import Property, property_scores
from fedseal.core.batch import IDENTITY
from fedseal.core.files import write_atomically
from fedseal.core.seeds import generator
from fedseal.metrics.image import psnr
from fedseal.metrics.intervals import Interval, mean_interval
from fedseal.models.registry import build_model
from fedseal.preparation import library
from fedseal.report.progress import TerminalProgress
from lids import Experiment, Parts, cut

HEAD = (
    "| attacker | clients | training, s | rounds | one image passes % | hit | hit by guess | PSNR dB | guess dB | "
    "over guess dB | informed guess dB | over informed dB | hit, other rounds | over informed dB, other rounds |"
)
GUESSED = 2048
PAGE = """# SEER through an aggregate of several clients

Regenerate with (attackers are trained once, in minutes, and kept in the cache):

    python bench/seer_clients.py bench/lids.yaml --data-root DIR --write bench/out/seer-clients.md

The server sees the sum of all clients' gradients alone: FedSGD, batches of {batch}, each client with batch statistics
of its own, real images the attacker never saw, {steps} steps of training.
`thresh` is trained for so many clients with a threshold that is meant to be passed by one image of one client; `max`
is the attacker of a single client, on the same rounds. Brackets are 95 % bootstrap intervals over rounds.

Columns: `one image passes` is the share of rounds in which exactly one image of all clients is above the threshold,
which the threshold can at best bring to about 1/e; `hit`, `PSNR` and the next columns are over those rounds (over all
with one client). A hit is an output whose nearest image of the round is the target. `guess` is the mean auxiliary
image. `informed guess` is the mean of the auxiliary images that have the largest score of as many: what a server
knows of the target before any update. `hit by guess` is how often it is nearest to the target. The last columns are
the rounds in which none or several images pass, against the image with the largest score.

What leaks is what exceeds the informed guess.

"""


@dataclass(frozen=True)
class Rounds:
    """What several clients trained on: images [M, n, B, C, H, W] and labels [M, n, B]."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Outcome:
    """What an attacker made of each round.

    Attributes:
        single: whether exactly one image of all clients passed the threshold, [M].
        hit, lucky: whether the output, or the informed guess, is nearest to the image with the largest score, [M].
        decibels: PSNR of the output against that image, [M].
        guess, informed: of the mean auxiliary image, and of the mean of those with the largest score of a round, [M].
    """

    single: Tensor
    hit: Tensor
    lucky: Tensor
    decibels: Tensor
    guess: Tensor
    informed: Tensor


def draw_rounds(parts: Parts, clients: int, batch_size: int, rounds: int, seed: int) -> Rounds:
    """Draw rounds of distinct client images."""
    source = generator(seed, "seer-clients", clients)
    size = clients * batch_size
    places = torch.stack([torch.randperm(len(parts.client), generator=source)[:size] for _ in range(rounds)])
    shape = (rounds, clients, batch_size)
    images = parts.client.images[places]
    return Rounds(images.view(*shape, *images.shape[2:]), parts.client.labels[places].view(shape))


def attack(
    attacker: SeerAttacker, rounds: Rounds, kind: Property, threshold: float | None, guesses: tuple[Tensor, Tensor]
) -> Outcome:
    """Decode every round's sum over clients, each of whom normalises its own batch.

    Without a threshold every round has one image with the property: the largest. `guesses` need no update.
    """
    flat = rounds.images.flatten(1, 2)
    scores = property_scores(flat, kind)
    top = scores.argmax(1)
    wanted = flat[torch.arange(len(flat)), top]
    shown = decode_aggregates(attacker, rounds)
    return Outcome(
        torch.ones_like(top, dtype=torch.bool) if threshold is None else (scores > threshold).sum(1) == 1,
        *((_nearest(image, flat) == top).double() for image in (shown, guesses[1].expand_as(shown))),
        *(psnr(image.expand_as(wanted), wanted, data_range=1.0) for image in (shown, *guesses)),
    )


def guess_without_update(images: Tensor, kind: Property, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the mean of an attacker's images, and the mean of those with the largest score among `size` drawn."""
    source = generator(seed, "seer-guess", size)
    drawn = torch.randint(len(images), (GUESSED, size), generator=source)
    top = property_scores(images, kind)[drawn].argmax(1)
    return images.mean(0), images[drawn[torch.arange(GUESSED), top]].mean(0)


def _nearest(shown: Tensor, images: Tensor) -> Tensor:
    """Return which of the images [M, N, C, H, W] is nearest to each output [M, C, H, W]."""
    return (shown[:, None] - images).square().mean((2, 3, 4)).argmin(1)


@torch.no_grad()
def decode_aggregates(attacker: SeerAttacker, rounds: Rounds) -> Tensor:
    """Return what is decoded of each round's sum gradient, [M, C, H, W] in [0, 1]."""
    parameters = dict(attacker.model.named_parameters())
    count, clients, size = rounds.labels.shape
    whole = rounds.images.new_ones(count, clients, 1, size)
    sums = torch.stack(
        [
            attacker.reader.sums(parameters, x, y, w)[:, 0].sum(0)
            for x, y, w in zip(rounds.images, rounds.labels, whole, strict=True)
        ]
    )
    return attacker.decoder(sums).clamp(0, 1)


def train(experiment: Experiment, parts: Parts, kind: Property, clients: int) -> SeerAttacker:
    """Return the attacker of so many clients: `max` for one, `thresh` for more."""
    mode = "thresh" if clients > 1 else "max"
    plan = SeerPlan(kind, mode, experiment.batch_size, clients, experiment.steps, seed=experiment.seed)
    model = build_model(experiment.model, input_shape=parts.shape, num_classes=parts.classes, seed=experiment.seed)
    trainee = Trainee(model, parts.auxiliary, parts.classes, IDENTITY, plan)
    with TerminalProgress(Console()) as progress:
        return library().get(trainee, progress)


def row(name: str, clients: int, seconds: float, outcome: Outcome) -> str:
    """Return a line of the table."""
    one, others = outcome.single, ~outcome.single
    cells = [
        name,
        str(clients),
        f"{seconds:.0f}",
        str(len(one)),
        _words(mean_interval(one.double().tolist()), 1, 100),
        _mean(outcome.hit[one], 2),
        _mean(outcome.lucky[one], 2),
        _mean(outcome.decibels[one], 1),
        _mean(outcome.guess[one], 1),
        _mean((outcome.decibels - outcome.guess)[one], 1),
        _mean(outcome.informed[one], 1),
        _mean((outcome.decibels - outcome.informed)[one], 1),
        _mean(outcome.hit[others], 2),
        _mean((outcome.decibels - outcome.informed)[others], 1),
    ]
    return "| " + " | ".join(cells) + " |"


def _mean(values: Tensor, digits: int) -> str:
    return _words(mean_interval(values.tolist()), digits) if len(values) else "–"


def _words(interval: Interval, digits: int, factor: float = 1.0) -> str:
    mean = f"{interval.mean * factor:.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{interval.low * factor:.{digits}f}, {interval.high * factor:.{digits}f}]"


def main() -> None:
    """Train, attack and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--clients", default="1,4,8", help="comma-separated numbers of clients")
    parser.add_argument("--property", default="bright", choices=("bright", "dark", "red"))
    parser.add_argument("--rounds", type=int, default=512, help="attacked, per number of clients")
    parser.add_argument("--write", type=Path, help="file for the page")
    given = parser.parse_args()
    torch.set_num_threads(1)
    experiment = Experiment.model_validate(yaml.safe_load(given.scenario.read_text()))
    parts = cut(experiment, given.data_root)
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for clients in map(int, given.clients.split(",")):
        rounds = draw_rounds(parts, clients, experiment.batch_size, given.rounds, experiment.seed)
        size = clients * experiment.batch_size
        guesses = guess_without_update(parts.auxiliary.images, given.property, size, experiment.seed)
        own = train(experiment, parts, given.property, clients)
        for attacker in (own,) if clients == 1 else (own, train(experiment, parts, given.property, 1)):
            outcome = attack(attacker, rounds, given.property, own.threshold, guesses)
            name = f"{given.property}, {attacker.plan.mode}"
            lines.append(row(name, clients, attacker.seconds, outcome))
    table = "\n".join(lines) + "\n"
    print(table)
    if given.write is not None:
        write_atomically(given.write, PAGE.format(batch=experiment.batch_size, steps=experiment.steps) + table)


if __name__ == "__main__":
    main()
