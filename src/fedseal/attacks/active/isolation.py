"""What remains once an active server has isolated some images: ordinary inversion of the tensors that hold only them.

The server matches on a copy of its model in which every other parameter is frozen, so that any matching attack sees
the isolated tensors and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedseal.attacks.active.server import ActiveAttack, filled, recall
from fedseal.attacks.reading import image_count
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.tensors import Tensors


@dataclass(frozen=True)
class Isolated:
    """What the server has of the isolated images.

    Attributes:
        model: at whose weights the tensors are a gradient of the isolated images alone.
        names: of the tensors that hold nothing else.
        factor: by which they must be multiplied to be the update of the isolated images alone.
        images: how many there are.
        labels: theirs where known, [images]; None to have them optimised with the images.
        subtract: what the tensors hold besides, known from another round; None for nothing.
        places: where in the aggregate's batch the isolated images are, if that is known; empty if anywhere.
        notes: for the reader.
    """

    model: nn.Module
    names: frozenset[str]
    factor: float
    images: int
    labels: Tensor | None = None
    subtract: Tensors | None = None
    places: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class IsolatingAttack(ActiveAttack):
    """An active attack that isolates some images, and then inverts what it has of them.

    Args:
        inversion: attack on the isolated update, with its own defaults.
        iterations: of it; 0 for its own default.
    """

    remembers = Isolated

    def __init__(self, inversion: str, iterations: int) -> None:
        self._inversion = ATTACKS.build(inversion)
        self._iterations = iterations

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Invert the isolated update of each observation."""
        spent = Budget(self._iterations or budget.iterations, budget.restarts)
        memories = [recall(observation, Isolated, self.name) for observation in observations]
        return invert(self._inversion, observations, memories, spent, seeds, listener)


def isolated_observation(observation: Observation, isolated: Isolated) -> Observation:
    """Return the observation of the isolated images alone, as a passive attacker sees it."""
    model = frozen_except(isolated.model, isolated.names)
    knowledge = observation.knowledge
    view = knowledge.defence
    seen = observation.update.tensors if view is None else view.read(observation.update.tensors)
    tensors = {name: isolated.factor * _less(name, seen, isolated.subtract) for name in seen if name in isolated.names}
    steps = knowledge.local_steps or 1
    return Observation(
        model,
        Update(tensors, observation.update.kind),
        replace(
            knowledge,
            batch_size=isolated.images // steps,
            clients=1,
            labels=isolated.labels,
            label_rule="unknown" if isolated.labels is None else "true",
            bn_statistics=None,
            defence=None,  # what of it can be undone is undone above; the rest acted on other images too
        ),
    )


def frozen_except(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a copy of the model in which only the named parameters count as trainable."""
    copied = copy.deepcopy(model)
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(name in names)
    return copied


def invert(
    attack: Attack,
    observations: Sequence[Observation],
    memories: Sequence[Isolated],
    budget: Budget,
    seeds: Sequence[int],
    listener: Listener | None,
) -> list[Reconstruction]:
    """Invert each observation's isolated images; what was not isolated is the attacker's best guess."""
    like = next(iter(observations[0].parameters.values()))
    empty = like.new_zeros(0, *observations[0].knowledge.input_shape)
    shown = torch.stack(
        [filled(empty, image_count(observation), observation.knowledge) for observation in observations]
    )
    found = []
    for target, (observation, isolated, seed) in enumerate(zip(observations, memories, seeds, strict=True)):

        def show(done: float, images: Tensor, target: int = target, size: int = isolated.images) -> None:
            shown[target, :size] = images[0]
            if listener is not None:
                listener((target + done) / len(observations), shown)

        alone = isolated_observation(observation, isolated)
        attack.check(alone)
        count = image_count(observation)
        if not any(bool(tensor.any()) for tensor in alone.update.tensors.values()):
            found.append(_nothing(observation, isolated, shown[target]))
            if listener is not None:
                listener((target + 1) / len(observations), shown)
            continue
        result = attack.run(alone, budget, seed, show)
        labels = torch.cat([result.labels, result.labels[:1].expand(count - len(result.labels))])
        note = f"{isolated.images} of {count} images were isolated, and are scored alone"
        notes = (*result.notes, *isolated.notes, note)
        images = filled(result.images, count, observation.knowledge)
        found.append(
            replace(
                result,
                images=images,
                labels=labels,
                notes=notes,
                isolated=isolated.images,
                places=isolated.places,
            )
        )
    return found


def _nothing(observation: Observation, isolated: Isolated, guess: Tensor) -> Reconstruction:
    labels = torch.zeros(len(guess), dtype=torch.long, device=guess.device)
    if isolated.labels is not None:
        labels[: isolated.images] = isolated.labels
    notes = (*isolated.notes, "nothing was left of the isolated update: all images are guesses without it")
    return Reconstruction(
        guess.clone(), labels, float("inf"), notes=notes, isolated=isolated.images, places=isolated.places
    )


def _less(name: str, seen: Tensors, subtract: Tensors | None) -> Tensor:
    return seen[name] if subtract is None else seen[name] - subtract[name]
