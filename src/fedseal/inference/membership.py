"""Membership: whether a record was in a client's data.

Of a model that was trained on the records their losses and gradients are small; of an update, the gradients of those in
the batch point along it. Both differ from record to record for other reasons, so each is set against what it would be
had the record no part in it (offline LiRA, Carlini et al. 2022): the odds of the right answer against those of
reference models trained on public records, the cosine with the update against those with rehearsed ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedseal.audit.setup import Setup
from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.federation.client import set_mode
from fedseal.federation.loss import client_loss
from fedseal.inference.outcome import Outcome, judged
from fedseal.inference.rounds import Rounds

SCORES = ("loss", "norm", "reference", "alignment", "calibrated")
"""By what records are ranked: minus their loss; minus their gradient's norm; the logarithm of the odds of their label
above its mean under reference models; the cosine between gradient and update; that cosine in deviations of its cosines
with rehearsed updates."""
REFERENCES = 4


def membership(
    setup: Setup, defence: str, *, rounds: int = 32, epochs: int = 0, shadows: int = 32
) -> tuple[Outcome, ...]:
    """Ask of the records of clients, and of as many others, whether they took part.

    Args:
        setup: data and model.
        defence: its spec.
        rounds: clients, each with a batch of its own.
        epochs: of training on the members before; 0 sends the model as it is.
        shadows: rehearsed updates of public batches, for the calibrated score.
    """
    size = setup.scenario.client.batch_size
    needed = 2 * rounds * size
    if needed > len(setup.private):
        raise UsageError(
            f"{rounds} rounds of {size} records and as many others need {needed}, and {len(setup.private)} are there.",
            hint="Ask for fewer rounds, or use a smaller batch.",
        )
    if len(setup.public) < size:
        raise UsageError("there are fewer public records than a batch has.", hint="Raise `public_fraction`.")
    order = torch.randperm(len(setup.private), generator=generator(setup.scenario.seed, "membership"))
    records = setup.private.batch(order[:needed])
    members = records.pick(slice(needed // 2))
    model = trained(setup, members, epochs)
    client = Rounds(setup, defence, model)
    rehearsed = torch.stack(
        [_unit(client.update(_drawn(setup, "shadow", k, size), "shadow", k)) for k in range(shadows)]
    )
    references = [
        Rounds(setup, defence, trained(setup, _drawn(setup, "reference", k, len(members)), epochs))
        for k in range(REFERENCES)
    ]
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    truth: list[bool] = []
    for number in range(rounds):
        own = records.pick(slice(number * size, (number + 1) * size))
        others = records.pick(slice(needed // 2 + number * size, needed // 2 + (number + 1) * size))
        update = _unit(client.update(own, "round", number))
        for asked, yes in ((own, True), (others, False)):
            for name, values in _scored(client, asked, update, rehearsed, references).items():
                found[name] += values.tolist()
            truth += [yes] * size
    question = (
        f"membership, {'untouched model' if epochs == 0 else f'model trained on the members for {epochs} epochs'}"
    )
    return tuple(judged(question, defence, name, values, truth) for name, values in found.items())


def trained(setup: Setup, members: Batch, epochs: int) -> nn.Module:
    """Return a copy of the model after `epochs` full passes over records, by Adam in batches of 32."""
    model = copy.deepcopy(setup.model)
    like = next(model.parameters())
    members = members.to(like.device, like.dtype)
    config = setup.config
    loss = client_loss(config.normalisation, config.loss_reduction, config.loss)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=3e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(members), generator=generator(setup.scenario.seed, "overfit", epoch))
        for part in torch.split(order, 32):
            for weight, slope in zip(
                weights, torch.autograd.grad(loss(model, members.pick(part)), weights), strict=True
            ):
                weight.grad = slope
            optimiser.step()
    for weight in weights:
        weight.grad = None
    return set_mode(model, config)


def _drawn(setup: Setup, what: str, number: int, count: int) -> Batch:
    """Return up to `count` public records."""
    source = generator(setup.scenario.seed, what, number)
    return setup.public.pick(torch.randperm(len(setup.public), generator=source)[:count])


def _unit(vector: Tensor) -> Tensor:
    return torch.div(vector, vector.norm().clamp(min=1e-300))


def _scored(
    client: Rounds, records: Batch, update: Tensor, rehearsed: Tensor, references: Sequence[Rounds]
) -> dict[str, Tensor]:
    """Return each record's scores."""
    slopes, losses = client.gradients(records)
    norms = slopes.norm(dim=1)
    units = slopes / norms.clamp(min=1e-300).unsqueeze(1)
    along, usual = units @ update, units @ rehearsed.T
    spread = usual.std(1).clamp(min=1e-12)
    elsewhere = torch.stack([_log_odds(one.losses(records)) for one in references]).mean(0)
    return {
        "loss": -losses,
        "norm": -norms,
        "reference": _log_odds(losses) - elsewhere,
        "alignment": along,
        "calibrated": (along - usual.mean(1)) / spread,
    }


def _log_odds(losses: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the probability p that a cross-entropy stands for."""
    return -torch.log(torch.expm1(losses.clamp(1e-12, 500.0)))
