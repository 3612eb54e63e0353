"""`learned`: learning to invert (Wu et al., UAI 2023). A map from updates to images, learned on rehearsed updates.

Threat model: passive server with public images. The defence is a black box, so the same mechanism is aware of every
defence, also of those that no formula inverts. Updates are sketched to at most 16,384 numbers. Departures: besides the
paper's network a kernel regression in closed form; batches are told apart by their sorted labels.

Cost: one rehearsed round per training batch and the fit, once per model, defence and shape; a matrix product or a
forward pass per target.

Known breaks: public images unlike the private ones, since it can only answer with what it has seen the like of; noise
that swamps the sketch brings it to the mean image; batches whose labels repeat cannot be told apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.labels import infer_labels
from fedseal.attacks.learned.kernel import KernelDecoder, fit_kernel
from fedseal.attacks.learned.library import State, kept, lesson_identity
from fedseal.attacks.learned.pairs import Stage, check_enough, public_of
from fedseal.attacks.learned.sketch import Sketch
from fedseal.attacks.reading import image_count
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info

_FEWEST_FEATURES = 64


@ATTACKS.register(
    "learned",
    Info(
        "answer as learned from rehearsed updates of public images",
        paper="Wu et al., UAI 2023",
        threat="passive",
        needs=("batch_size", "auxiliary", "rehearse"),
    ),
)
class LearnedAttack(Attack):
    """Answers every update by one map, learned once per model, defence and public data.

    Args:
        features: numbers an update is sketched to, at most.
        seed: of what is drawn in learning; targets have no part in it.
    """

    def __init__(self, features: int = 16384, seed: int = 0) -> None:
        if features < _FEWEST_FEATURES:
            raise UsageError(f"learned needs at least {_FEWEST_FEATURES} features, got {features}.")
        self._features = features
        self._seed = seed

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Refuse what cannot be learned: no public images, too few, or no way to rehearse."""
        public, _ = public_of(knowledge, "learned")
        super().check_knowledge(knowledge)
        check_enough(public, (knowledge.batch_size or 1) * (knowledge.local_steps or 1), "learned")

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Learn, unless it was learned before, and answer."""
        started = time.perf_counter()
        first = observations[0]
        for observation in observations:
            self.check(observation)
        stage = self._stage(first)
        decoder = self._decoder(stage, first.knowledge.num_classes)
        stacked = {name: torch.stack([o.update.tensors[name] for o in observations]) for name in first.update.tensors}
        answers = decoder.predict(stage.sketch(stacked))
        shape = (len(observations), stage.count, *first.knowledge.input_shape)
        pixels = answers.shape[1] - stage.count * first.knowledge.num_classes
        images = answers[:, :pixels].reshape(shape).to(next(iter(first.parameters.values())).dtype)
        if listener is not None:
            listener(1.0, images)
        note = (
            f"learned from {len(stage.public):,} public images, {decoder.choice}: {decoder.held_back_db:.1f} dB there"
        )
        shares = answers[:, pixels:].reshape(len(observations), stage.count, -1)
        seconds = (time.perf_counter() - started) / len(observations)
        return [_answer(*one, seconds, note) for one in zip(observations, images, shares, seeds, strict=True)]

    def _stage(self, observation: Observation) -> Stage:
        public, rehearse = public_of(observation.knowledge, "learned")
        sketch = Sketch(observation.update.tensors, self._features, self._seed)
        return Stage(observation.model, public, rehearse, image_count(observation), sketch, self._seed)

    def _decoder(self, stage: Stage, classes: int) -> KernelDecoder:
        options = {"attack": "learned", "features": self._features, "seed": self._seed, "images": stage.count}
        identity = lesson_identity(stage.model, stage.public, stage.rehearse, options)

        def learn() -> State:
            learned_from, held_back = stage.split()
            learn, held = stage.play(learned_from, "learn"), stage.play(held_back, "held back")
            return fit_kernel(learn, held, stage.sketch.lengths, classes).state()

        return KernelDecoder.restore(*kept("learned", identity, learn))


def _answer(
    observation: Observation, images: Tensor, shares: Tensor, seed: int, seconds: float, note: str
) -> Reconstruction:
    """Return one target's answer, its labels as given, or else inferred or learned, whichever explains it better."""
    knowledge = observation.knowledge
    mismatch = Mismatch(observation)
    candidates: list[tuple[Tensor, tuple[str, ...]]] = []
    if knowledge.labels is None:
        candidates.append((shares.argmax(1).sort().values, (note,)))
    if knowledge.labels is not None or knowledge.label_rule != "unknown":
        guess = infer_labels(observation, seed)
        candidates.append((guess.labels.sort().values, (note, *guess.notes)))
    objectives = [mismatch(images, labels) for labels, _ in candidates]
    best = min(range(len(candidates)), key=objectives.__getitem__)
    labels, said = candidates[best]
    return Reconstruction(images, labels, objectives[best], seconds=seconds, notes=said)
