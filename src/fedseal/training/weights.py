"""A trained model as a file of weights: `fedseal prepare model`.

One client that holds all the data, one pass over it a round: that is training in one place, by the machinery of every
other training, so that it resumes, and is found again, like them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedseal.core.errors import TrialError, UsageError
from fedseal.core.identity import identity_of
from fedseal.core.watcher import Watcher
from fedseal.data.places import cache_directory
from fedseal.federation.simulation.config import FederationConfig
from fedseal.models.checkpoint import load_checkpoint, save_checkpoint
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import build_federation


@dataclass(frozen=True)
class TrainedWeights:
    """A file with a trained model's weights.

    Attributes:
        path: the file.
        sha256: of it.
        spec: the model, to be written into a scenario.
        accuracy: on the test set, in per cent, after the last pass.
        chance: of always giving the most frequent answer.
        learnt: whether it is more than that.
    """

    path: Path
    sha256: str
    spec: str
    accuracy: float
    chance: float
    learnt: bool

    @property
    def sentence(self) -> str:
        """How good it is."""
        beyond = "" if self.learnt else "; it has learnt nothing: train longer, or change the learning rate"
        return f"{self.accuracy:.1f} % right on the test set (chance {self.chance:.1f} %){beyond}"


def recipe(
    data: str,
    model: str,
    *,
    images: int = 0,
    epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 0.03,
    normalise: bool = True,
    seed: int = 0,
) -> TrainingScenario:
    """Return the training of one model in one place: SGD with momentum 0.9.

    Args:
        data: spec of the data set.
        model: spec of the model.
        images: drawn at random from its training part; 0 for all.
        epochs: passes.
        batch_size: images per step.
        learning_rate: of every step.
        normalise: whether images are normalised by the data set's statistics.
        seed: of weights and batches.
    """
    if not 0 < learning_rate < float("inf"):
        raise UsageError(f"a learning rate of {learning_rate:g} trains nothing.", hint="Give --lr above 0.")
    return TrainingScenario(
        name="model",
        data=data,
        images=images or None,
        normalise=normalise,
        model=model,
        clients=1,
        federation=FederationConfig(
            algorithm="fedavg",
            rounds=epochs,
            local_epochs=1,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=0.9,
            evaluate_every=1,
        ),
        seeds=(seed,),
    )


def train_weights(
    scenario: TrainingScenario,
    out: Path,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
    watcher: Watcher | None = None,
) -> TrainedWeights:
    """Train a model, or find it in the cache, and write its weights to `out`.

    Args:
        scenario: of `recipe`.
        out: the file, in safetensors.
        data_root: directory with local data sets.
        device: to train on.
        watcher: told of the passes.
    """
    directory = cache_directory() / "models" / identity_of(training=scenario.model_dump(mode="json"))[:16]
    run = run_training(scenario, directory, data_root=data_root, device=device, watcher=watcher)
    utility = run.utilities[0]
    if utility.refused or utility.accuracy is None:
        raise TrialError(
            f"{scenario.model} could not be trained on {scenario.data}: {utility.refused or 'it was not measured'}.",
            hint="Lower the learning rate.",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    federation = build_federation(scenario, scenario.seeds[0], data_root=data_root, device=device)
    load_checkpoint(federation.model, directory / "checkpoints" / f"{run.trainings[0].key}.safetensors")
    save_checkpoint(federation.model, out)
    sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
    joint = "," if ":" in scenario.model else ":"
    spec = f"{scenario.model}{joint}checkpoint={out}"
    return TrainedWeights(out, sha256, spec, utility.accuracy.mean * 100, run.chance * 100, utility.learnt)
