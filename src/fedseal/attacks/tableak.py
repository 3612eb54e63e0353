"""TabLeak: tables from gradients, by many descents at once whose agreement says which cells are right.

Categories are relaxed: the entries of a column are a softmax of free numbers, numbers a sigmoid. Members of an
ensemble start anywhere and follow the sign of the derivative of one minus the cosine between gradients. Each member's
records are matched to those of the best member, and every cell is the median over members. Where they agree they are
right, which an attacker can tell without the truth: the entropy of a cell over the ensemble is told with the result.

Equations: max_x <g(x), g> / |g(x)||g| over x = (softmax, sigmoid)(z); pooled by median; entropy per cell (Vero et al.
2023, Sec. 4 and 5).

Threat model: passive server that knows the columns, their categories and ranges.

Departures: none; labels are given or inferred by the scenario's rule, as in the paper's two settings. Clients' local
steps are read as one gradient.

Cost: 1,500 steps of 30 members; those of all updates are lanes of one vectorised pass.

Known breaks: noise that hides the direction of the gradient; batches of many alike records, whose cells are exchanged
among them. Behind ReLU and for few records `spear` is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedseal.attacks.labels import infer_labels
from fedseal.attacks.reading import attack_model, attack_parameters, estimated_gradient, image_count
from fedseal.attacks.turns import in_groups
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import TABLE
from fedseal.core.observation import Observation
from fedseal.core.ranges import Count, Rate
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.data.columns import Columns
from fedseal.federation.loss import training_loss

_TRACED = 20


@ATTACKS.register(
    "tableak",
    Info(
        "records of a table by an ensemble of descents",
        paper="Vero et al., ICML 2023",
        threat="passive",
        needs=("batch_size", "encoding"),
    ),
)
class TabLeak(Attack):
    """Follows the sign of the derivative from many starts and pools what they find.

    Args:
        members: of the ensemble.
        iterations: steps of each; a budget overrides it.
        rate: of Adam.
    """

    any_loss: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = (TABLE,)

    def __init__(self, members: Count = 30, iterations: Count = 1500, rate: Rate = 0.06) -> None:
        self.members, self.iterations, self.rate = members, iterations, rate

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack the observations at once: all members of all ensembles are lanes of one pass."""
        return in_groups(lambda seen, own: self._attack(seen, budget, own), observations, seeds, listener)

    def _attack(self, seen: Sequence[Observation], budget: Budget, seeds: Sequence[int]) -> list[Reconstruction]:
        start = time.perf_counter()
        columns = seen[0].knowledge.encoding
        if not isinstance(columns, Columns):
            raise CapabilityError(
                "tableak needs the columns of the table.", hint="Use data of tables, such as csv:PATH."
            )
        guesses = [infer_labels(one, seed) for one, seed in zip(seen, seeds, strict=True)]
        members = budget.restarts or self.members
        distance = _distances(seen, torch.stack([guess.labels for guess in guesses]), members)
        shape = (members, image_count(seen[0]), columns.width)
        like = next(iter(attack_parameters(seen[0]).values()))
        free = torch.cat([torch.rand(shape, generator=generator(seed, "tableak")) for seed in seeds]).to(like)
        free, trace = self._descend(columns, distance, free, budget.iterations or self.iterations)
        rows = relaxed(columns, free)
        losses = torch.nan_to_num(distance(rows), torch.inf).reshape(len(seen), members)
        seconds = (time.perf_counter() - start) / len(seen)
        found = []
        for place, (guess, own) in enumerate(zip(guesses, rows.reshape(len(seen), *shape), strict=True)):
            aligned = _aligned(own, int(losses[place].argmin()))
            doubt = cell_entropy(columns, aligned)
            sure = f"members agree on {float((doubt < 0.1).double().mean()):.0%} of the cells (entropy below a tenth)"
            steps = tuple((step, float(value.reshape(len(seen), members)[place].min())) for step, value in trace)
            pooled = _pooled(columns, aligned).clamp(0, 1)
            least = float(losses[place].min())
            found.append(Reconstruction(pooled, guess.labels, least, steps, seconds, (*guess.notes, sure)))
        return found

    def _descend(
        self, columns: Columns, distance: Callable[[Tensor], Tensor], free: Tensor, iterations: int
    ) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """Follow the sign of the derivative by Adam; return where all lanes end, and their distances on the way."""
        slope = grad(lambda z: distance(relaxed(columns, z)).sum())
        first, second = torch.zeros_like(free), torch.zeros_like(free)
        trace = []
        for step in range(1, iterations + 1):
            sign = torch.nan_to_num(slope(free)).sign()
            first = 0.9 * first + 0.1 * sign
            second = 0.999 * second + 0.001 * sign.square()
            size = self.rate / (1 - 0.9**step)
            free = free - size * first / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            if step % max(1, iterations // _TRACED) == 0:
                trace.append((step, distance(relaxed(columns, free))))
        return free, trace


def relaxed(columns: Columns, free: Tensor) -> Tensor:
    """Return rows [..., D] of free numbers: a softmax within categories, a sigmoid for numbers."""
    parts = []
    for column, place in columns.blocks():
        part = free[..., place]
        parts.append(part.softmax(-1) if column.categories else part.sigmoid())
    return torch.cat(parts, dim=-1)


def _distances(seen: Sequence[Observation], labels: Tensor, members: int) -> Callable[[Tensor], Tensor]:
    """Return a function of rows [L, B, D]: one minus the cosine between each lane's gradient and its update.

    Args:
        seen: updates of one model and of one threat model.
        labels: of each, [K, B].
        members: lanes of each, one behind the other.
    """
    model, known = attack_model(seen[0]), seen[0].knowledge
    weights = dict(attack_parameters(seen[0]))
    updates = [estimated_gradient(one) for one in seen]
    wanted = {name: torch.stack([one[name] for one in updates]).repeat_interleave(members, 0) for name in updates[0]}
    fed = labels.to(next(iter(weights.values())).device).repeat_interleave(members, 0)
    compare = training_loss(known.loss)

    def loss(at: dict[str, Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        return compare(functional_call(model, at, (rows,)), labels, known.loss_reduction)

    def distance(rows: Tensor, labels: Tensor, wanted: Tensors) -> Tensor:
        got = grad(loss)(weights, rows, labels)
        sent = got if known.defence is None else known.defence.simulate(got, wanted)
        inner = torch.stack([(sent[name] * wanted[name]).sum() for name in wanted]).sum()
        norm = torch.stack([sent[name].square().sum() for name in wanted]).sum().clamp(min=1e-30).sqrt()
        size = torch.stack([one.square().sum() for one in wanted.values()]).sum().sqrt().clamp(min=1e-30)
        return 1 - inner / (norm * size)

    return lambda rows: vmap(distance)(rows, fed, wanted)


def _aligned(rows: Tensor, best: int) -> Tensor:
    """Return members' records [M, B, D], each in the order of those of the best member they are closest to."""
    ordered = []
    for member in rows:
        cost = torch.cdist(rows[best], member).square().cpu().numpy()
        ordered.append(member[torch.as_tensor(linear_sum_assignment(cost)[1])])
    return torch.stack(ordered)


def _pooled(columns: Columns, rows: Tensor) -> Tensor:
    """Return the median over members [M, B, D]; what is left of categories adds up to one."""
    median = rows.median(0).values
    for column, place in columns.blocks():
        if column.categories:
            median[:, place] = median[:, place] / median[:, place].sum(1, keepdim=True).clamp(min=1e-12)
    return median


def cell_entropy(columns: Columns, rows: Tensor) -> Tensor:
    """Return how far members [M, B, D] disagree on each cell [B, columns]: 0 not at all, about 1 altogether.

    Of categories, the entropy of the mean over members by that of all categories alike; of numbers, the deviation
    over members by that of a uniform number.
    """
    parts = []
    for column, place in columns.blocks():
        part = rows[:, :, place].double()
        if column.categories:
            mean = part.mean(0)
            entropy = -(mean * mean.clamp(min=1e-12).log()).sum(1)
            parts.append(entropy / max(torch.log(torch.tensor(float(column.width))).item(), 1e-12))
        else:
            parts.append((part.std(0, unbiased=False).squeeze(1) * 12**0.5).clamp(max=1))
    return torch.stack(parts, dim=1)
