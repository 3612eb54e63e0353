"""`lids`, Deceive-to-Defend (Lin et al. 2025): feed mini-groups of one real image and similar ones.

Against a malicious server that isolates one image of a batch by a property (SEER): of each image S - 1 synthetic ones
are made once (`synthesis`), batches of k = B / S groups are formed once, and each step feeds one of these batches drawn
at random (Algorithm 2). Threat model: active server. Departures: where the class has too few neighbours they are
re-used; a client whose data was never prepared makes the groups out of the batch at hand. S = 1 is the identity.

Cost: an autoencoder trained once per client and S - 1 synthetic images for each real one, stored; every step feeds S
times the images.

Known breaks: SEER trained on batches of such groups; properties that the edits keep (dark images); a synthetic image
shows its neighbours. It claims nothing against passive inversion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedseal.core.batch import Batch, joined
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.trainable import Trainable
from fedseal.core.traits import Traits
from fedseal.defences.lids.construction import EPOCHS, QUICK, Construction, Recipe, Synthesis, construct, seed_from
from fedseal.defences.lids.groups import Groups, form_batches
from fedseal.preparation import Library, library
from fedseal.preparation.logged import LoggedProgress


@DEFENCES.register(
    "lids",
    Info(
        "train on mini-groups of a real image and similar synthetic ones",
        paper="Lin et al., Deceive-to-Defend",
        threat="active: SEER",
    ),
)
class Lids(Defence):
    """LIDS.

    Args:
        samples: S, images per mini-group.
        tau: PSNR in dB that a synthetic image must have to its base before it is edited.
        augment: whether synthetic images are edited; LIDS-A is without.
        epochs: of the client's autoencoder; the paper's 3000 are for a GPU.
        cache: whether a client's construction is kept on its disk and resumed.
    """

    stage = "data"
    holdings = 64

    def __init__(
        self, samples: int = 4, tau: float = 18.0, augment: bool = True, epochs: int = EPOCHS, cache: bool = True
    ) -> None:
        if samples < 1 or epochs < 1:
            raise UsageError(f"lids needs samples >= 1 and epochs >= 1, got {samples} and {epochs}.")
        self.samples, self.tau, self.augment, self.epochs, self.cache = samples, tau, augment, epochs, cache
        self.traits = Traits(mixes_samples=samples > 1)
        self._built: Construction | None = None
        self._formed: dict[int, Tensor] = {}
        self._seed = 0
        self._remarks: tuple[str, ...] = ()
        self._origins: list[Batch] = []

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Build the mini-groups of a client's data, which is returned as it is: what is fed is chosen by step."""
        if self.samples > 1:
            self._seed, self._formed = seed_from(generator), {}
            self._built = self._construct(dataset, self._seed, keep=self.cache)
            built = self._built
            self._remarks = (
                f"lids keeps {built.stored_bytes / 1e6:.1f} MB of synthetic images and autoencoder, built once in "
                f"{built.seconds:.1f} s, and feeds {self.samples} images per real one",
                f"{100 * built.groups.reaching(self.tau):.0f} % of the synthetic images reach tau = {self.tau:g} dB, "
                f"{float(built.groups.psnr.mean()):.1f} dB on average",
            )
        return dataset

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Return one of the batches of k = B / S groups, of about the size of `batch`."""
        if self.samples == 1:
            return batch
        per_batch = max(1, len(batch) // self.samples)
        if context.step == 0:
            self._origins = []
        if self._built is None:
            groups = self._construct(batch, seed_from(context.generator), keep=False).groups
            return self._fed(groups, torch.arange(per_batch), batch)
        groups = self._built.groups
        if per_batch not in self._formed:
            source = generator(self._seed, "lids-batches", per_batch)
            self._formed[per_batch] = form_batches(len(groups.real), per_batch, source)
        formed = self._formed[per_batch]
        source = context.generator
        chosen = int(torch.randint(len(formed), (), generator=source, device=source.device))
        return self._fed(groups, formed[chosen], batch)

    def origins(self) -> Batch | None:
        """Return the real images of the groups that the last round fed."""
        return joined(self._origins) if self._origins else None

    def report(self) -> CostReport:
        """Say what was built and what it takes to keep."""
        return CostReport(remarks=self._remarks)

    def attacker_view(self) -> AttackerView:
        """Publish the parameters; the adaptive attacker trains SEER on batches built the same way (`lids=S`)."""
        values = {"samples": self.samples, "tau": self.tau, "augment": self.augment, "epochs": self.epochs}
        return AttackerView(self.name, values)

    def trainables(self, dataset: Batch, generator: torch.Generator) -> Iterator[Trainable[Any]]:
        """Yield the mini-groups that `prepare` builds with the same arguments."""
        if self.samples > 1 and self.cache:
            yield self._synthesis(dataset, seed_from(generator), keep=True)

    def _synthesis(self, data: Batch, seed: int, *, keep: bool) -> Synthesis:
        single = Batch(data.images.float(), data.labels)
        recipe = Recipe(self.samples, self.tau, self.augment, self.epochs, seed)
        return Synthesis(single, recipe, library() if keep else Library(None))

    def _construct(self, data: Batch, seed: int, *, keep: bool) -> Construction:
        made = self._synthesis(data, seed, keep=keep)
        progress = LoggedProgress(f" A shorter one: lids:epochs={QUICK}." if self.epochs > QUICK else "")
        return construct(made.data, made.settings, made.books, progress)

    def _fed(self, groups: Groups, bases: Tensor, batch: Batch) -> Batch:
        """Return the groups of some real images, which are noted, in the precision of `batch`."""
        device, dtype = batch.images.device, batch.images.dtype
        self._origins.append(groups.real.pick(bases.to(groups.real.labels.device)).to(device, dtype))
        return groups.batch(bases).to(device, dtype)
