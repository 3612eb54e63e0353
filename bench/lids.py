"""SEER against clients without a defence, with LIDS and with LIDS-A, and SEER that expects LIDS.

    python bench/lids.py bench/lids.yaml [--data-root DIR] [--properties bright,red]

Trains one attacker per property, and one that is trained on LIDS's batches; attacks the same batches of real images
under each defence; measures what LIDS costs in accuracy. Interrupted at any time, the same command goes on: trained
attackers and mini-groups are in fedseal's cache, finished rows in --out. Ends with the table, --out/table.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedseal.attacks.active.seer.attacker import SeerAttacker
from fedseal.attacks.active.seer.fitting import Trainee
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.attacks.active.seer.properties import PROPERTIES, Property, property_scores
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.files import write_atomically
from fedseal.core.hashing import hash_json
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.lids.construction import Construction, Recipe, construct
from fedseal.defences.lids.defence import Lids
from fedseal.defences.lids.groups import Groups, form_batches
from fedseal.federation.cohort import Held
from fedseal.federation.simulation import FederationConfig, simulate
from fedseal.metrics.image import psnr, ssim
from fedseal.metrics.intervals import mean_interval
from fedseal.metrics.judge import train_judge
from fedseal.metrics.lpips import load_lpips
from fedseal.metrics.recovery import label_recognition, recovery
from fedseal.models.registry import build_model
from fedseal.preparation import library
from fedseal.report.progress import TerminalProgress

Case = Literal["none", "lids", "lids-a", "lids, adaptive"]
CASES: tuple[Case, ...] = ("none", "lids", "lids-a", "lids, adaptive")
LEAST_GAIN_DB, LEAST_HITS = 4.0, 0.7
CURVE_STEPS = (100, 300, 600, 1000, 2000)
CONSOLE = Console(stderr=True)


class Accuracy(BaseModel):
    """How test accuracy with and without LIDS is measured: FedAvg with batch statistics."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    clients: int
    rounds: int
    local_steps: int
    learning_rate: float
    batch_size: int
    epochs: int


class Experiment(BaseModel):
    """The scenario's fields, explained in bench/lids.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    data: str
    auxiliary: int
    clients: int
    judge: int
    model: str
    batch_size: int
    steps: int
    batches: int
    samples: int
    tau: float
    epochs: int
    properties: tuple[Property, ...] = PROPERTIES
    accuracy: Accuracy
    seed: int = 0

    def key(self, *names: str) -> str:
        """Return the name of a result: a hash of what determines it."""
        without = {"properties"}
        if names[0] != "accuracy":
            without |= {"accuracy"}
        if "judge" in names:
            without |= {"steps", "batches", "samples", "tau", "epochs", "model", "batch_size"}
        return hash_json([self.model_dump(mode="json", exclude=without), *names])[:16]


@dataclass(frozen=True)
class Parts:
    """The data, cut so that nobody holds another's images."""

    auxiliary: Batch
    client: Batch
    judge: Batch
    test: Batch
    shape: tuple[int, int, int]
    classes: int


def cut(experiment: Experiment, data_root: Path | None) -> Parts:
    """Load and divide the data."""
    train = DATASETS.build(experiment.data, data_root=data_root)
    test = DATASETS.build(f"{experiment.data}:split=test", data_root=data_root).batch()
    order = torch.randperm(len(train), generator=generator(experiment.seed, "lids-parts"))
    sizes = [experiment.auxiliary, experiment.clients, experiment.judge]
    first, second, third = (train.batch(part) for part in torch.split(order[: sum(sizes)], sizes))
    judged = Batch(torch.cat([third.images, test.images]), torch.cat([third.labels, test.labels]))
    return Parts(first, second, judged, test, train.shape, len(train.classes))


class Bench:
    """One experiment with its parts, models and results."""

    def __init__(self, experiment: Experiment, out: Path, data_root: Path | None, weights: Path | None) -> None:
        self.experiment, self.out = experiment, out
        self.parts = cut(experiment, data_root)
        self.lpips = load_lpips(weights)
        self._judge: nn.Module | None = None

    def stored(self, *names: str) -> dict[str, Any] | None:
        """Return a finished result."""
        path = self.out / f"{self.experiment.key(*names)}.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def store(self, result: dict[str, Any], *names: str) -> dict[str, Any]:
        """Keep a finished result."""
        write_atomically(self.out / f"{self.experiment.key(*names)}.json", json.dumps(result, indent=1))
        return result

    def judge(self) -> nn.Module:
        """Return the judge, trained on data of its own."""
        if self._judge is None:
            model = self.model("convbn:width=64", seed=1)
            kept = self.out / f"{self.experiment.key('judge')}.safetensors"
            if kept.is_file():
                model.load_state_dict(load_file(kept))
                self._judge = model.eval().requires_grad_(False)
            else:
                CONSOLE.print("training the judge")
                self._judge = train_judge(model, self.parts.judge, seed=self.experiment.seed)
                write_atomically(kept, save(self._judge.state_dict()))
        return self._judge

    def model(self, spec: str, seed: int) -> nn.Module:
        """Build a classifier of the data."""
        return build_model(spec, input_shape=self.parts.shape, num_classes=self.parts.classes, seed=seed)

    def groups(self, augmented: bool, of: Literal["client", "auxiliary"] = "client") -> Construction:
        """Return LIDS's mini-groups of the client's images, or of the attacker's."""
        e = self.experiment
        data = self.parts.client if of == "client" else self.parts.auxiliary
        recipe = Recipe(e.samples, e.tau, augmented, e.epochs, e.seed)
        CONSOLE.print(f"groups of the {of}", highlight=False)
        with TerminalProgress(CONSOLE) as progress:
            return construct(data, recipe, library(), progress)

    def attacker(self, kind: Property, adaptive: bool) -> SeerAttacker:
        """Return the trained attacker of a property."""
        e = self.experiment
        plan = SeerPlan(
            property=kind, batch_size=e.batch_size, steps=e.steps, lids=e.samples if adaptive else 1, seed=e.seed
        )
        groups = self.groups(True, "auxiliary").groups if adaptive else None
        trainee = Trainee(self.model(e.model, e.seed), self.parts.auxiliary, self.parts.classes, IDENTITY, plan, groups)
        with TerminalProgress(CONSOLE) as progress:
            return library().get(trainee, progress)

    def row(self, kind: Property, case: Case) -> dict[str, Any]:
        """Attack the batches of one property under one defence."""
        found = self.stored(kind, case)
        if found is not None:
            return found
        attacker = self.attacker(kind, case == "lids, adaptive")
        attacked = self.attacked(kind, case)
        shown = attacker.decode_batches(attacked.images, attacked.labels)
        decibels = psnr(shown, attacked.real, data_range=1.0).tolist()
        summary = recovery(decibels)
        guess = self.parts.auxiliary.images.mean(0).expand_as(shown)
        hits = (_distances(shown, attacked.images).argmin(1) == attacked.top).float()
        best = torch.stack([psnr(shown, other, data_range=1.0) for other in attacked.reals.unbind(1)]).amax(0)
        result = {
            "property": kind,
            "case": case,
            "n": summary.n,
            "rec": summary.rec.as_dict(),
            "psnr_all": summary.psnr_all.as_dict(),
            "psnr_top": summary.psnr_top,
            "least": summary.least,
            "most": summary.most,
            "best_real": mean_interval(best.tolist()).as_dict(),
            "fed": mean_interval(psnr(shown, attacked.target, data_range=1.0).tolist()).as_dict(),
            "guess": float(psnr(guess, attacked.real, data_range=1.0).mean()),
            "hit": mean_interval(hits.tolist()).as_dict(),
            "ssim": mean_interval(ssim(shown, attacked.real, data_range=1.0).tolist()).as_dict(),
            "lpips": None if self.lpips is None else mean_interval(self.lpips(shown, attacked.real).tolist()).as_dict(),
            "rla": mean_interval(label_recognition(self.judge(), shown, attacked.label)).as_dict(),
            "rla_originals": sum(label_recognition(self.judge(), attacked.real, attacked.label)) / summary.n,
            "seconds": attacker.seconds,
            "curve": attacker.curve,
        }
        return self.store(result, kind, case)

    def attacked(self, kind: Property, case: Case) -> Attacked:
        """Return the batches the clients feed, and what the attacker is after in each."""
        e = self.experiment
        source = generator(e.seed, "lids-attacked")
        if case == "none":
            places = torch.stack(
                [torch.randperm(e.clients, generator=source)[: e.batch_size] for _ in range(e.batches)]
            )
            return Attacked.of(
                self.parts.client.images[places], self.parts.client.labels[places], places, 1, self, kind
            )
        groups: Groups = self.groups(case != "lids-a").groups
        formed = form_batches(e.clients, e.batch_size // e.samples, source)
        chosen = formed[torch.randint(len(formed), (e.batches,), generator=source)]
        images, labels = groups.assembled(chosen)
        return Attacked.of(images, labels, chosen, e.samples, self, kind)

    def accuracy(self, case: Literal["none", "lids", "lids-a"]) -> dict[str, Any]:
        """Train a federation with or without LIDS and return its test accuracy."""
        found = self.stored("accuracy", case)
        if found is not None:
            return found
        e = self.experiment
        how = e.accuracy
        config = FederationConfig(
            rounds=how.rounds,
            local_steps=how.local_steps,
            batch_size=how.batch_size,
            learning_rate=how.learning_rate,
            evaluate_every=how.rounds,
            seed=e.seed,
        )
        client = self.parts.client
        shares = [Held(Batch(*part)) for part in _shares(client, how.clients)]
        defence = None if case == "none" else Lids(e.samples, e.tau, augment=case == "lids", epochs=how.epochs)
        started = time.perf_counter()
        done = simulate(config, self.model(e.model, e.seed), shares, self.parts.test, defence)
        value = done.history.rounds[-1].accuracy
        return self.store({"case": case, "accuracy": value, "seconds": time.perf_counter() - started}, "accuracy", case)


@dataclass(frozen=True)
class Attacked:
    """Batches that are attacked.

    Attributes:
        images, labels: as fed, [M, B, ...].
        top: the place of the image with the property, [M].
        real: that image, or the real one it was made of, [M, C, H, W]; label: its label, [M].
        reals: all real images of the batch, [M, k, C, H, W].
    """

    images: Tensor
    labels: Tensor
    top: Tensor
    real: Tensor
    label: Tensor
    reals: Tensor

    @property
    def target(self) -> Tensor:
        """The fed images with the property, [M, C, H, W]."""
        return self.images[torch.arange(len(self.top)), self.top]

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, places: Tensor, size: int, bench: Bench, kind: Property) -> Attacked:
        """Find what the attacker is after in batches of groups of `size` images, the first of each being real."""
        top = property_scores(images, kind).argmax(1)
        rows = torch.arange(len(images))
        base = places[rows, top // size]
        client = bench.parts.client
        return cls(images, labels, top, client.images[base], client.labels[base], client.images[places])


def _distances(shown: Tensor, images: Tensor) -> Tensor:
    return (shown[:, None] - images).square().mean((2, 3, 4))


def _shares(data: Batch, clients: int) -> list[tuple[Tensor, Tensor]]:
    size = len(data) // clients
    return list(zip(torch.split(data.images, size), torch.split(data.labels, size), strict=True))[:clients]


def _interval(value: dict[str, float] | None, digits: int, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    low, high = value["low"] * factor, value["high"] * factor
    return f"{value['mean'] * factor:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def isolates(row: dict[str, Any]) -> bool:
    """Return whether an attacker is good enough for a defence to be judged by it."""
    return bool(row["psnr_all"]["mean"] - row["guess"] >= LEAST_GAIN_DB and row["hit"]["mean"] >= LEAST_HITS)


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "property": lambda row: row["property"],
    "client, attacker": lambda row: row["case"],
    "REC %": lambda row: _interval(row["rec"], 1, 100),
    "PSNR-All dB": lambda row: _interval(row["psnr_all"], 1),
    "PSNR-Top": lambda row: f"{row['psnr_top']:.1f}",
    "min, max": lambda row: f"{row['least']:.1f}, {row['most']:.1f}",
    "best real dB": lambda row: _interval(row["best_real"], 1),
    "fed dB": lambda row: _interval(row["fed"], 1),
    "guess dB": lambda row: f"{row['guess']:.1f}",
    "hit": lambda row: _interval(row["hit"], 2),
    "SSIM": lambda row: _interval(row["ssim"], 2),
    "LPIPS": lambda row: _interval(row["lpips"], 3),
    "RLA % (originals)": lambda row: f"{_interval(row['rla'], 1, 100)} ({100 * row['rla_originals']:.1f})",
}


def table(rows: list[dict[str, Any]], accuracies: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(cell(row) for cell in COLUMNS.values()) + " |" for row in rows]
    weak = [row["property"] for row in rows if row["case"] == "none" and not isolates(row)]
    if weak:
        lines += [
            "",
            f"Not isolated well enough to judge LIDS by (4 dB above the guess, hit rate 0.7): {', '.join(weak)}.",
        ]
    lines += ["", "| attacker | training, s | loss at steps |", "|---|---|---|"]
    for row in rows:
        if row["case"] in ("none", "lids, adaptive"):
            shown = {step: loss for step, loss in row["curve"] if step in CURVE_STEPS or step == row["curve"][-1][0]}
            losses = ", ".join(f"{step}: {loss:.4f}" for step, loss in shown.items())
            who = row["property"] + (", adaptive" if row["case"] != "none" else "")
            lines.append(f"| {who} | {row['seconds']:.0f} | {losses} |")
    if accuracies:
        lines += ["", "| client | test accuracy % |", "|---|---|"]
        lines += [f"| {one['case']} | {100 * one['accuracy']:.1f} |" for one in accuracies]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bench/out/lids"))
    parser.add_argument("--weights", type=Path, help="directory with LPIPS's weights")
    parser.add_argument("--properties", help="only these, comma-separated")
    parser.add_argument("--cases", help="only these, separated by semicolons: " + "; ".join(CASES))
    parser.add_argument("--no-accuracy", action="store_true", help="do not train federations")
    given = parser.parse_args()
    torch.set_num_threads(1)
    experiment = Experiment.model_validate(yaml.safe_load(given.scenario.read_text()))
    bench = Bench(experiment, given.out, given.data_root, given.weights)
    kinds = [kind for kind in experiment.properties if not given.properties or kind in given.properties.split(",")]
    cases = [case for case in CASES if not given.cases or case in [part.strip() for part in given.cases.split(";")]]
    rows = [bench.row(kind, case) for kind in kinds for case in cases]
    accuracies = [] if given.no_accuracy else [bench.accuracy(case) for case in ("none", "lids", "lids-a")]
    text = table(rows, accuracies)
    write_atomically(given.out / "table.md", text)
    print(text)


if __name__ == "__main__":
    main()
