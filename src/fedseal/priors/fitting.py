"""Training a prior on public images: found again by content, resumed after a kill, stopped where it diverges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fedseal.core.errors import CapabilityError, InputError, TrialError
from fedseal.core.seeds import generator
from fedseal.core.tensors import check_finite, check_like
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report, Tick
from fedseal.priors.courses import COURSES, Course, engine_for
from fedseal.priors.plan import Plan
from fedseal.priors.prior import Origin, Prior, Quality, digests_of
from fedseal.priors.quality import measured

FEWEST = 16
"""Public images below which no prior is fitted."""
_HELD_OUT, _MOST_HELD_OUT = 0.1, 200
_TICKS = 40


@dataclass(frozen=True, eq=False)
class PriorFit(Trainable[Prior]):
    """A prior to be trained.

    Attributes:
        images: public, [N, C, H, W] in [0, 1].
        plan: how.
        words: what the images are, for the ledger.
    """

    images: Tensor
    plan: Plan
    words: str

    kind = "prior"

    def __post_init__(self) -> None:
        if len(self.images) < FEWEST:
            raise CapabilityError(
                f"a prior is learned from at least {FEWEST} public images, got {len(self.images)}.",
                hint="Raise `public_fraction` or `attacker.public_images`, or name a prior that is there already.",
            )
        if self.plan.kind == "patch" and min(self.images.shape[2:]) < self.plan.latent:
            raise CapabilityError(f"patches of {self.plan.latent} pixels do not fit into the images.")

    @property
    def title(self) -> str:
        """What is trained, in a few words."""
        return f"{self.plan.kind} prior from {len(self.images):,} images ({self.words}), {self.plan.steps} steps"

    @property
    def size(self) -> int:
        """Steps."""
        return self.plan.steps

    def recipe(self) -> Mapping[str, Any]:
        """Return images, plan and what they are called."""
        return {"images": self.images, "plan": self.plan, "words": self.words}

    def fit(self, report: Report, unfinished: Unfinished) -> Prior:
        """Train, going on from the last state, and measure."""
        trained_on, held_out = self._split()
        course = COURSES[self.plan.kind](trained_on, self.plan)
        if (state := unfinished.load()) is not None:
            course.restore(state)
        self._run(course, report, unfinished)
        course.engine.eval().requires_grad_(False)
        prior = Prior(self.plan.kind, course.shape, course.engine, self._origin())
        return Prior(prior.kind, prior.shape, prior.engine, prior.origin, measured(prior, trained_on, held_out))

    def _run(self, course: Course, report: Report, unfinished: Unfinished) -> None:
        every = max(1, self.plan.steps // _TICKS)
        losses: list[Tensor] = []
        while course.step < self.plan.steps:
            losses.append(course.advance())
            course.step += 1
            if course.step % every == 0 or course.step == self.plan.steps:
                loss = float(torch.stack(losses).mean())
                losses.clear()
                if not torch.isfinite(torch.tensor(loss)):
                    raise TrialError(
                        f"training the {self.plan.kind} prior diverged: its loss is {loss} at step {course.step}.",
                        hint=f"Lower the learning rate of {self.plan.lr:g} (`--lr {self.plan.lr / 4:g}`), and see that "
                        "the images are not all alike.",
                    )
                report(Tick(course.step, {"loss": loss}))
                unfinished.save(course.state())

    def save(self, trained: Prior) -> Saved:
        """Return the engine's tensors, what it was trained on and how good it is."""
        quality = None if trained.quality is None else asdict(trained.quality)
        return Saved(trained.engine.state_dict(), {"quality": json.dumps(quality)})

    def load(self, saved: Saved) -> Prior:
        """Return the prior with saved tensors."""
        shape = (self.images.shape[1], self.images.shape[2], self.images.shape[3])
        engine = engine_for(self.plan.kind, shape, self.plan.width, self.plan.latent)
        check_like(saved.tensors, engine.state_dict(), "the prior")
        check_finite({n: t for n, t in saved.tensors.items() if t.is_floating_point()}, "the prior")
        engine.load_state_dict(dict(saved.tensors))
        try:
            quality = json.loads(saved.values["quality"])
            known = None if quality is None else Quality(**quality)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the prior's quality cannot be read: {error}.", hint="Prepare it again.") from error
        return Prior(self.plan.kind, shape, engine.eval().requires_grad_(False), self._origin(), known)

    def _origin(self) -> Origin:
        return Origin(self.words, digests_of(self.images).sort().values)

    def _split(self) -> tuple[Tensor, Tensor]:
        """Return the images to train on, and those held out to measure by."""
        images = self.images.detach().cpu().float()
        order = torch.randperm(len(images), generator=generator(self.plan.seed, "prior", "held-out"))
        held = min(_MOST_HELD_OUT, max(4, round(_HELD_OUT * len(order))))
        return images[order[held:]], images[order[:held]]
