"""Does it help to average reconstructions of the same images over rounds? Refiner, with and without a warm start.

    python bench/refiner_rounds.py [--clients 12] [--rounds 8] [--iterations 200] [--seed 0]

Clients hold one embedded face each and train `lenet-relu` together, every round on the same image. Their uploads are
attacked one by one, knowing the label and not knowing Refiner; the reconstructions of one client are averaged over
rounds. PSNR is given for the first round, as the mean over single rounds, of the average, and as the paired difference
of the last two with its 95 % interval over clients.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import Tensors
from fedseal.core.threads import one_thread
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.defences.refiner.adaptive import average_over_rounds
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.image import psnr
from fedseal.metrics.intervals import Interval, mean_interval
from fedseal.models.registry import build_model

SHAPE = (1, 32, 32)
LEARNING_RATE = 0.1
DEFENCES = (
    "none",
    "refiner:epsilon=0.1",
    "refiner:epsilon=0.1,warm=100",
    "refiner:epsilon=0.2",
    "refiner:epsilon=0.2,warm=100",
    "refiner:epsilon=inf",
    "refiner:epsilon=inf,warm=100",
)
KNOWN = Knowledge(
    input_shape=SHAPE, num_classes=2, label_rule="identity", batch_size=1, local_steps=1, learning_rate=LEARNING_RATE
)


def play(spec: str, images: Batch, rounds: int, attack: str, seed: int) -> list[Tensor]:
    """Return the reconstructions of every round, [clients, C, H, W]."""
    model = build_model("lenet-relu", input_shape=SHAPE, num_classes=2, seed=seed)
    clients: list[Defence] = [build_defence(spec) for _ in images.labels]
    found = []
    for number in range(rounds):
        updates = []
        for place, defence in enumerate(clients):
            own = Batch(images.images[place : place + 1], images.labels[place : place + 1])
            source = generator(seed, "round", number, place)
            updates.append(client_round(model, [own], RoundConfig(), defence, source, round_number=number).update)
        seeds = [derive_seed(seed, "attack", number, place) for place in range(len(clients))]
        results = ATTACKS.build(attack).run_many([Observation(model, u, KNOWN) for u in updates], Budget(), seeds)
        found.append(torch.cat([one.images for one in results]).clamp(0, 1))
        step(model, [update.tensors for update in updates])
    return found


def step(model: nn.Module, updates: list[Tensors]) -> None:
    """Take the server's step along the mean gradient."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.sub_(LEARNING_RATE * torch.stack([tensors[name] for tensors in updates]).mean(0))


def over_rounds(found: list[Tensor], originals: Tensor) -> tuple[Interval, Interval, Interval, Interval]:
    """Return the PSNR of the first round, of single rounds, of their average, and what the average gains."""
    single = torch.stack([psnr(images, originals, data_range=1.0) for images in found])
    average = torch.cat([average_over_rounds([r[i : i + 1] for r in found]) for i in range(len(originals))])
    together = psnr(average, originals, data_range=1.0)
    first, alone, both = single[0].tolist(), single.mean(0).tolist(), together.tolist()
    gains = [b - a for a, b in zip(alone, both, strict=True)]
    return mean_interval(first), mean_interval(alone), mean_interval(both), mean_interval(gains)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defence", action="append", help="instead of the ones measured by default; repeatable")
    given = parser.parse_args()
    faces = DATASETS.build("faces")
    chosen = torch.randperm(len(faces), generator=generator(given.seed, "clients"))[: given.clients]
    images = faces.batch(chosen)
    flat = images.images.mean((1, 2, 3), keepdim=True).expand_as(images.images)
    print(f"A guess, each image's mean: {float(psnr(flat, images.images, data_range=1.0).mean()):.1f} dB.\n")
    print("| defence | first round, dB | single rounds, dB | average, dB | gain, dB |\n|---|---|---|---|---|")
    with one_thread():
        for spec in given.defence or DEFENCES:
            found = play(spec, images, given.rounds, f"ig:iterations={given.iterations},tv=0.02", given.seed)
            cells = [f"{v.mean:.1f} [{v.low:.1f}, {v.high:.1f}]" for v in over_rounds(found, images.images)]
            print(f"| `{spec}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
