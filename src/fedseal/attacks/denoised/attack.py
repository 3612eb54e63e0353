"""`denoised`: any attack, and then a network that takes away what this attack adds to images (after GUIDE, 2025).

The attacker plays clients with its public images, attacks these shadow targets as it will attack the real ones, and
teaches a network to turn answers into truths. It begins with a denoiser of public images, so that few shadows do. Where
an update decides little, the network answers what is probable: the mean of what the answer leaves possible.
Threat model: passive server with public images. Departures: GUIDE samples from a conditional diffusion model; this is
the mean such samples have, which is nearer to the truth in PSNR and less sharp.

Cost: the attack on as many shadows as are asked for and the training, once per model, defence, budget and public data;
then one pass of a network per target.

Known breaks: public images unlike the private ones; what an attack finds exactly can only get worse, so that the raw
answer is given where shadows say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fedseal.attacks.denoised.lesson import Polish, PolishLesson
from fedseal.attacks.learned.library import learned
from fedseal.attacks.learned.pairs import check_enough, public_of
from fedseal.attacks.prepared import PreparedAttack
from fedseal.attacks.shadow.targets import play_shadows, split_public
from fedseal.core.attack import ATTACKS, Budget, Foreknowledge, Listener
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.ranges import Amount, Count
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.sources import code_digest
from fedseal.core.specs import parse_spec
from fedseal.core.trainable import Trainable
from fedseal.priors.named import brought_prior, find_prior, fit_of, is_brought
from fedseal.priors.networks import Denoiser

_SEED = 1


@ATTACKS.register(
    "denoised",
    Info(
        "any attack, post-processed by a network that learned from shadow targets",
        paper="after GUIDE, arXiv 2510.17621",
        threat="passive, with public images",
        needs=("batch_size", "auxiliary", "rehearse"),
    ),
)
class Denoised(PreparedAttack):
    """Post-processes another attack.

    Args:
        inversion: the attack, by its spec; one with several options is written denoised?inversion=ig:tv=0.05,lr=0.1.
        shadows: clients to play, at most a quarter of the public images.
        steps: of the network's training.
        prior: the denoiser the network begins with: `diffusion`, fitted to the public images, or a file that holds one.
        prior_steps: of its training, where it is fitted; 0 for that kind's own.
    """

    def __init__(
        self,
        inversion: str = "ig",
        shadows: Count = 64,
        steps: Count = 300,
        prior: Literal["diffusion"] | Path = "diffusion",
        prior_steps: Amount = 0,
    ) -> None:
        self._prior: str | Path = prior
        self._spec = inversion
        self._inversion = ATTACKS.build(inversion)
        self._shadows, self._steps, self._prior_steps = shadows, steps, prior_steps

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterator[Trainable[Any]]:
        """Yield the denoiser to begin with; the rest depends on the budget, and is learned when targets are there."""
        self.check_knowledge(knowledge)
        if not is_brought(self._prior):
            yield fit_of(self._prior, knowledge.auxiliary, self._prior_steps, self.name)

    def brings(self) -> Foreknowledge | None:
        """Say what the attack that is post-processed brings along, or else the denoiser."""
        own = self._inversion.brings()
        if own is not None or not is_brought(self._prior):
            return own
        found = brought_prior(self._prior)
        return Foreknowledge(f"a prior of the kind {found.kind}, trained on {found.origin.words}", found.origin.holds)

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Refuse what cannot be learned from, and what the attack itself cannot attack."""
        public, _ = public_of(knowledge, self.name)
        super().check_knowledge(knowledge)
        check_enough(public, (knowledge.batch_size or 1) * (knowledge.local_steps or 1), self.name)
        self._inversion.check_knowledge(knowledge)

    def check_loss(self, loss: str) -> None:
        """Take what the attack takes."""
        self._inversion.check_loss(loss)

    def answers(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Learn on shadows, unless that was done before, attack, and post-process."""
        first = observations[0]
        polish = self._polish(first, budget)
        raw = self._inversion.run_many(observations, budget, seeds, listener)
        if polish.after <= polish.before:
            said = f"not post-processed: on shadows {polish.before:.1f} dB raw, {polish.after:.1f} dB post-processed"
            return [replace(one, notes=(*one.notes, said)) for one in raw]
        gained = f"{polish.before:.1f} to {polish.after:.1f} dB there"
        said = f"post-processed as learned from {polish.pairs} images of shadows: {gained}"
        return [replace(one, images=polish(one.images), notes=(*one.notes, said)) for one in raw]

    def _polish(self, observation: Observation, budget: Budget) -> Polish:
        knowledge = observation.knowledge
        public, rehearse = public_of(knowledge, self.name)
        parted = split_public(observation, self._shadows, _SEED)
        if parted is None or (knowledge.defence is not None and knowledge.defence.personal):
            raise CapabilityError(
                "denoised plays shadow targets: public images are too few, or what is known serves one client only.",
                hint="Raise `attacker.public_images`, or attack without post-processing.",
            )
        shadows = play_shadows(observation, *parted, _SEED)
        start = find_prior(self._prior, parted[1], self._prior_steps, self.name)
        if not isinstance(start.engine, Denoiser) or start.shape[0] != knowledge.image_shape[0]:
            raise CapabilityError(
                f"denoised begins with a network that denoises such images, and the prior is of the kind {start.kind}.",
                hint="Make one with `fedseal prepare prior --kind diffusion`.",
            )
        entry = ATTACKS.find(parse_spec(self._spec))
        options = {
            "inversion": self._spec,
            "code": code_digest(entry.modules, entry=entry.name),
            "spent": budget,
            "shadows": self._shadows,
            "steps": self._steps,
            "prior": self._prior,
            "prior_steps": self._prior_steps,
            "labels": "given" if knowledge.labels is not None else knowledge.label_rule,
            "aware": knowledge.defence is not None,
        }
        return learned(PolishLesson(self._inversion, shadows, budget, start.engine, public, rehearse, options))
