"""Running one job: observe its targets, attack them together, score what came back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean

import torch
from safetensors.torch import save
from torch import Tensor

from fedseal.audit.plan import Job
from fedseal.audit.setup import Setup, Target, make_aware
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed
from fedseal.core.watcher import Report, Tick
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.baselines import chance_baselines
from fedseal.metrics.image import psnr
from fedseal.metrics.labels import guessed_accuracy
from fedseal.metrics.lpips import Lpips
from fedseal.metrics.registry import measure
from fedseal.metrics.score import score
from fedseal.metrics.singling import line_up
from fedseal.store.records import TrialRecord

PICTURED = 8
"""Images of a trial whose line-ups are kept as pictures."""


@dataclass(frozen=True)
class Outcome:
    """A trial's record and, if it succeeded, its images as a safetensors file (`originals`, `reconstructions`)."""

    record: TrialRecord
    images: bytes | None = None


class TrialRunner:
    """Runs jobs of one set-up.

    Args:
        setup: shared by all jobs.
        lpips: the perceptual metric, or None where its weights are absent.
    """

    def __init__(self, setup: Setup, lpips: Lpips | None) -> None:
        self._setup = setup
        self._lpips = lpips
        self._baselines: dict[tuple[int, int], dict[str, tuple[float, ...]]] = {}

    @cached_property
    def _budget(self) -> Budget:
        return Budget(self._setup.scenario.iterations, self._setup.scenario.restarts)

    def run(self, job: Job, report: Report) -> list[Outcome]:
        """Run a job; what the set-up does not allow is `refused`, what breaks is `failed`, neither is lost."""
        try:
            return self._attack(job, report)
        except CapabilityError as error:
            return self._without_result(job, "refused", str(error))
        except FedsealError as error:
            return self._without_result(job, "failed", str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's model may raise anything, or leave
            return self._without_result(job, "failed", f"{type(error).__name__}: {error}")

    def _attack(self, job: Job, report: Report) -> list[Outcome]:
        defences = [build_defence(job.defence) for _ in job.trials]
        model = self._setup.wrapped_model(defences[0], job.defence)
        attack = ATTACKS.build(job.attack)
        seeds = [derive_seed(self._setup.scenario.seed, "attack", trial.target) for trial in job.trials]
        targets = [
            self._setup.observe(defence, trial.target, model=model, name=job.defence, attack=attack, seed=seed)
            for defence, trial, seed in zip(defences, job.trials, seeds, strict=True)
        ]
        observations = [
            make_aware(target.observation, target.defence, job.defence) if job.aware else target.observation
            for target in targets
        ]
        attack.check(observations[0])
        truth = torch.stack([target.originals.images for target in targets])

        def listen(done: float, images: Tensor) -> None:
            reached = fmean(psnr(truth.flatten(0, 1), images.flatten(0, 1), data_range=1.0).tolist())
            report(Tick(done, {"psnr_db": reached}))

        reconstructions = attack.run_many(observations, self._budget, seeds, listen)
        ledgers = [observation.knowledge.ledger() for observation in observations]
        return [
            self._score(job, index, targets[index], reconstructions[index], ledgers[index])
            for index in range(len(job.trials))
        ]

    def _score(
        self, job: Job, index: int, target: Target, reconstruction: Reconstruction, ledger: dict[str, str]
    ) -> Outcome:
        scores = score(target.originals, reconstruction.images, reconstruction.labels, self._lpips)
        matched = reconstruction.images[list(scores.pairing)].clamp(0, 1)
        record = self._record(
            job,
            index,
            psnr=scores.psnr,
            ssim=scores.ssim,
            mse=scores.mse,
            lpips=scores.lpips,
            psnr_best=scores.psnr_best,
            psnr_fed=self._against_fed(target, reconstruction),
            label_accuracy=scores.label_accuracy,
            label_chance=self._label_chance(len(target.originals)),
            weight_seed=self._setup.scenario.seed,
            **self._line_up(target, reconstruction),
            baselines=self._chance(job.trials[index].target, target),
            objective=reconstruction.objective,
            trace=reconstruction.trace,
            seconds=reconstruction.seconds,
            cost=asdict(target.cost),
            knowledge=ledger,
            notes=reconstruction.notes,
            metrics={spec: measure(spec, target.originals.images, matched) for spec in self._setup.scenario.metrics},
        )
        images = {"originals": target.originals.images.float(), "reconstructions": matched.float()}
        for place, chosen in enumerate(record.top[:PICTURED]):
            images[f"line_up.{place}"] = self._candidates(target.originals.images[place], chosen)
        return Outcome(record, save({name: tensor.detach().cpu().contiguous() for name, tensor in images.items()}))

    def _candidates(self, original: Tensor, chosen: tuple[int, ...]) -> Tensor:
        """Return the pictures of a line-up's front, [K, C, H, W]."""
        strangers = self._setup.strangers.images
        return torch.stack([original if index < 0 else strangers[index] for index in chosen]).float()

    def _against_fed(self, target: Target, reconstruction: Reconstruction) -> tuple[float, ...] | None:
        """Score against what the model was fed, where a defence changed it."""
        if torch.equal(target.fed.images, target.originals.images):
            return None
        fed = Batch(target.fed.images, target.originals.labels)  # mixed labels are shares, and are not scored here
        return score(fed, reconstruction.images, reconstruction.labels, None).psnr

    def _line_up(self, target: Target, reconstruction: Reconstruction) -> dict[str, object]:
        """Rank the originals among strangers; nothing, where these are too few."""
        found = line_up(
            target.originals,
            reconstruction.images,
            self._setup.strangers,
            self._lpips,
            by_class=self._setup.scenario.attacker.labels == "true",
        )
        if found is None:
            return {}
        return {
            "ranks": found.ranks,
            "line_up": found.sizes,
            "twins": found.twins,
            "stranger_psnr": found.stranger_psnr,
            "top": found.top,
        }

    def _label_chance(self, count: int) -> float | None:
        """Return what guessing labels by public frequencies gives; None where the attacker was given them."""
        if self._setup.scenario.attacker.labels == "true":
            return None
        classes = len(self._setup.private.classes)
        return guessed_accuracy(torch.bincount(self._setup.public.labels.cpu(), minlength=classes), count)

    def _chance(self, number: int, target: Target) -> dict[str, tuple[float, ...]]:
        key = (number, len(target.originals))
        if key not in self._baselines:
            seed = derive_seed(self._setup.scenario.seed, "baseline", number)
            found = chance_baselines(target.originals.images, target.originals.labels, self._setup.public, seed)
            self._baselines[key] = {name: tuple(values.tolist()) for name, values in found.items()}
        return self._baselines[key]

    def _without_result(self, job: Job, status: str, message: str) -> list[Outcome]:
        return [Outcome(self._record(job, i, status=status, message=message)) for i in range(len(job.trials))]

    def _record(self, job: Job, index: int, **values: object) -> TrialRecord:
        trial = job.trials[index]
        return TrialRecord.model_validate(
            {
                "key": trial.key,
                "scenario": self._setup.scenario.name,
                "defence": job.defence,
                "attack": job.attack,
                "aware": job.aware,
                "target": trial.target,
                **values,
            }
        )
