"""`glaus`, against unbiased gradient sampling (GLAUS): how often an entry was sent shows its size.

MinMax sampling sends a random few entries, large ones likelier. The server sees the places and signs of `draws` uploads
of one gradient: it ranks entries by how often they came, gives them the sorted magnitudes of its own gradient on public
images of the same class, the sign they were sent with, and runs DLG on the result. Threat model: a server that has the
client answer `draws` times at the same weights and on the same data, with public data and the labels; the authors' 1000
draws are unrealistic, hence an axis. Departures: entries never sent take the sign of the gradient of public images, in
the place of the aggregate of ten clients; `use=mean` averages what was sent instead, which an unbiased draw allows.

Cost: `draws` rounds at the same weights and data, then one inversion.

Known breaks: a client that never answers twice on the same batch; few draws leave most small entries unseen; another
sampler than MinMax's has other frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedseal.attacks.active.server import ActiveAttack, altered, recall
from fedseal.attacks.labels import infer_labels
from fedseal.attacks.reading import attack_model, attack_parameters, image_count, input_normalisation
from fedseal.core.attack import ATTACKS, Ask, Budget, Listener
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.federation.loss import cross_entropy_loss

Use: TypeAlias = Literal["ranks", "mean"]
"""`ranks`: places and signs only, as GLAUS; `mean`: the mean of what was sent."""

_OTHERS = 10
MOST_DRAWS = 100_000


@dataclass(frozen=True)
class Draws:
    """What the server saw of several uploads of one gradient, each vector [N] over all parameters.

    Attributes:
        number: of uploads.
        counts: how often each entry was sent.
        total: the sum of what was sent.
    """

    number: int
    counts: Tensor
    total: Tensor


def count_draws(uploads: Sequence[Tensors]) -> Draws:
    """Return what several uploads show together."""
    vectors = torch.stack([flatten(upload) for upload in uploads])
    return Draws(len(uploads), (vectors != 0).sum(0), vectors.sum(0))


def estimate_gradient(draws: Draws, own: Tensor, others: Tensor) -> Tensor:
    """Return GLAUS's estimate [N] of the gradient behind the draws.

    Args:
        draws: places and signs.
        own: a gradient of the same class, [N], whose sorted magnitudes are dealt by rank.
        others: a gradient that gives the sign of entries never sent, [N].
    """
    order = draws.counts.argsort(descending=True, stable=True)
    sizes = torch.empty_like(own)
    sizes[order] = own.abs().sort(descending=True).values
    return sizes * torch.where(draws.counts > 0, draws.total.sign(), others.sign())


@ATTACKS.register(
    "glaus",
    Info(
        "rebuild a sampled gradient from how often each entry was sent, then DLG",
        paper="GLAUS, against MinMax sampling",
        threat="active: asks for the same round many times",
        needs=("batch_size", "auxiliary"),
    ),
)
class Glaus(ActiveAttack):
    """GLAUS.

    Args:
        draws: uploads of the same gradient the server sees, 1 to 1000 or so.
        use: what of them it uses.
        inversion: attack on the rebuilt gradient.
        iterations: of it; 0 for its own default.
    """

    remembers = Draws

    def __init__(self, draws: int = 1000, use: Use = "ranks", inversion: str = "dlg", iterations: int = 0) -> None:
        if not 1 <= draws <= MOST_DRAWS:
            raise UsageError(f"glaus needs 1 to {MOST_DRAWS} draws, got {draws}.")
        self._draws = draws
        self._use = use
        self._inversion = ATTACKS.build(inversion)
        self._iterations = iterations

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Have the client answer with the same data as often as there are draws."""
        self.check_knowledge(knowledge)
        if (knowledge.clients or 1) > 1:
            raise CapabilityError(
                "glaus counts what one client sends, and here the server sees only a mean of clients.",
                hint="Set `client.aggregate: 1`.",
            )
        observation = ask([model])
        if observation.update.kind != "gradient":
            raise CapabilityError("glaus rebuilds a gradient, not a weight change.", hint="Set `local_steps: 1`.")
        seen = count_draws([observation.update.tensors])
        for _ in range(self._draws - 1):
            again = flatten(ask([model]).update.tensors)
            seen = Draws(seen.number + 1, seen.counts + (again != 0), seen.total + again)
        return altered(observation, seen, f"not at all, but sent it {self._draws} times for the same data")

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Rebuild each gradient, and invert them as one batch."""
        spent = Budget(self._iterations or budget.iterations, budget.restarts)
        draws = [recall(observation, Draws, self.name) for observation in observations]
        rebuilt = [
            self.rebuilt(observation, one, seed)
            for observation, one, seed in zip(observations, draws, seeds, strict=True)
        ]
        found = self._inversion.run_many(rebuilt, spent, seeds, listener)
        return [
            replace(result, notes=(*result.notes, _describe(one))) for result, one in zip(found, draws, strict=True)
        ]

    def rebuilt(self, observation: Observation, draws: Draws, seed: int) -> Observation:
        """Return the observation of the rebuilt gradient, as a passive attacker sees it."""
        like = observation.update.tensors
        mean = draws.total / draws.number
        averaged = replace(
            observation,
            update=Update(unflatten(mean, like)),
            knowledge=replace(observation.knowledge, defence=None, altered=None),
            memory=None,
        )
        if self._use == "mean":
            return averaged
        labels = infer_labels(averaged, seed).labels
        own, others = self._public_gradients(averaged, labels, seed)
        estimate = estimate_gradient(draws, own.to(mean), others.to(mean))
        return replace(averaged, update=Update(unflatten(estimate, like)))

    def _public_gradients(self, observation: Observation, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the gradients of public images with these labels, and of others, [N] each."""
        public = observation.knowledge.auxiliary
        assert public is not None
        source = generator(seed, "glaus")
        places = []
        for label in labels.tolist():
            members = (public.labels == label).nonzero().flatten().cpu()
            if len(members) == 0:
                raise CapabilityError(
                    f"glaus needs a public image of class {label}, and there is none.",
                    hint="Give the attacker more public data (`public_fraction`).",
                )
            places.append(members[torch.randint(len(members), (), generator=source)])
        same = torch.stack(places)
        rest = torch.randperm(len(public), generator=source)[: _OTHERS * image_count(observation)]
        return self._gradient(observation, public, same), self._gradient(observation, public, rest)

    @staticmethod
    def _gradient(observation: Observation, public: Batch, places: Tensor) -> Tensor:
        model = attack_model(observation)
        parameters = {name: p.clone().requires_grad_(True) for name, p in attack_parameters(observation).items()}
        loss = cross_entropy_loss(input_normalisation(observation), observation.knowledge.loss_reduction)
        like = next(iter(parameters.values()))
        batch = Batch(public.images[places].to(like), public.labels[places].to(like.device))

        def bound(images: Tensor) -> Tensor:
            output: Tensor = functional_call(model, parameters, (images,))
            return output

        values = torch.autograd.grad(loss(bound, batch), list(parameters.values()), allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if value is None else value).reshape(-1)
                for p, value in zip(parameters.values(), values, strict=True)
            ]
        )


def _describe(draws: Draws) -> str:
    unseen = float((draws.counts == 0).double().mean())
    return f"{draws.number} draws; {unseen:.0%} of the entries were never sent"
