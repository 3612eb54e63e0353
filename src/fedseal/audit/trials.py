"""Running one job: observe its targets, attack them together, score what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from safetensors.torch import save
from torch import Tensor

from fedseal.attacks.labels.inference import check_rule
from fedseal.audit.film import Film
from fedseal.audit.plan import Job
from fedseal.audit.setup import Setup, Target, make_aware
from fedseal.core.attack import ATTACKS, Budget, Foreknowledge
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed
from fedseal.core.watcher import Report, Tick
from fedseal.defences.pipeline import build_defence
from fedseal.federation.loss import training_loss
from fedseal.metrics.labels import guessed_accuracy, guessed_flags
from fedseal.modalities.measures import Case, Measures
from fedseal.store.records import TrialRecord


@dataclass(frozen=True)
class Outcome:
    """A trial's record and, if it succeeded, its images as a safetensors file (`originals`, `reconstructions`)."""

    record: TrialRecord
    images: bytes | None = None


class TrialRunner:
    """Runs jobs of one set-up.

    Args:
        setup: shared by all jobs.
        measures: of the set-up's kind of data.
    """

    def __init__(self, setup: Setup, measures: Measures) -> None:
        self._setup = setup
        self._measures = measures

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
        attack.check_modality(self._setup.private.modality)
        attack.check_loss(self._setup.scenario.loss)
        check_rule(self._setup.scenario.attacker.labels, self._setup.scenario.loss)
        seeds = [derive_seed(self._setup.scenario.seed, "attack", trial.target) for trial in job.trials]
        targets = [
            self._setup.observe(
                defence, trial.target, model=model, name=job.defence, attack=attack, seed=seed, aware=job.aware
            )
            for defence, trial, seed in zip(defences, job.trials, seeds, strict=True)
        ]
        observations = [
            make_aware(target.observation, target.defence, job.defence) if job.aware else target.observation
            for target in targets
        ]
        attack.check(observations[0])
        truth = [target.originals for target in targets]
        brought = attack.brings()
        if brought is not None:
            _refuse_overlap(attack.name, brought, truth)

        film = Film()

        def listen(done: float, images: Tensor) -> None:
            film.take(done, images)
            report(Tick(done, self._measures.progress(truth, images)))

        reconstructions = attack.run_many(observations, self._budget, seeds, listen)
        ledgers = [observation.knowledge.ledger() for observation in observations]
        if brought is not None:
            ledgers = [{**ledger, "brought along": brought.words} for ledger in ledgers]
        return [
            self._score(job, index, targets[index], reconstructions[index], ledgers[index], film)
            for index in range(len(job.trials))
        ]

    def _score(
        self,
        job: Job,
        index: int,
        target: Target,
        reconstruction: Reconstruction,
        ledger: dict[str, str],
        film: Film,
    ) -> Outcome:
        scenario = self._setup.scenario
        case = Case(
            target.originals,
            target.fed,
            self._setup.public,
            self._setup.strangers,
            by_class=self._setup.by_class,
            metrics=scenario.metrics,
            seed=derive_seed(scenario.seed, "baseline", job.trials[index].target),
            encoding=self._setup.private.encoding,
        )
        measured = self._measures.measure(case, reconstruction)
        record = self._record(
            job,
            index,
            **measured.fields,
            label_chance=self._label_chance(len(target.originals)),
            weight_seed=scenario.weight_seed,
            objective=reconstruction.objective,
            trace=reconstruction.trace,
            seconds=reconstruction.seconds,
            cost={**asdict(target.cost), "gradient_cosine": target.cosine},
            knowledge=ledger,
            notes=reconstruction.notes,
        )
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in measured.kept.items()}
        if "reconstructions" in kept:
            kept |= film.of(index, reconstruction.images.detach().cpu(), kept["reconstructions"])
        return Outcome(record, save(kept))

    def _label_chance(self, count: int) -> float | None:
        """Return what guessing labels by public frequencies gives; None where the attacker was given them."""
        learns_inputs = training_loss(self._setup.scenario.loss).target == "inputs"
        if self._setup.scenario.attacker.labels == "true" or learns_inputs:
            return None
        labels = self._setup.public.labels.cpu()
        if labels.is_floating_point():
            return guessed_flags(labels)
        return guessed_accuracy(torch.bincount(labels, minlength=len(self._setup.private.classes)), count)

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


def _refuse_overlap(attack: str, brought: Foreknowledge, targets: Sequence[Batch]) -> None:
    """Refuse what was trained on a target: it would not rebuild the image but remember it."""
    known = sum(brought.holds(target.inputs) for target in targets)
    if known:
        raise CapabilityError(
            f"{attack} brings {brought.words}, and {known} of the attacked images are among these.",
            hint="Train it on other data, or fit it to the scenario's public images.",
        )
