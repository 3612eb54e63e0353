"""Joint training of the model a SEER server sends and of the decoder it keeps (docs/methods/seer.md).

From each batch come three gradients: g_pos of the sample with the property, g_a a random unit combination of the
others' and g_b their sum / sqrt(count). The loss is MSE(r(g_pos), x_pos) / (1 + alpha) + alpha / (1 + alpha) times
MSE(r(g_a), r(g_b); r(0) held fixed), alpha rising over the first half. Every step's draws are a function of the seed
and the step, so that training resumes exactly where its last checkpoint was.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.attacks.active.seer.attacker import (
    SeerAttacker,
    attacker_loaded,
    attacker_saved,
    build_reader,
    part_of,
)
from fedseal.attacks.active.seer.batches import Auxiliary, Drawn
from fedseal.attacks.active.seer.decoder import Decoder
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.core.batch import Batch, Normalisation
from fedseal.core.errors import InputError, TrialError
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report, Tick
from fedseal.defences.lids.groups import Groups

CURVE_EVERY = 100
"""Steps between two points of the training curve."""

_SHRINK = 0.3
_SCALE_BATCHES = 16


@dataclass(frozen=True)
class Trainee(Trainable[SeerAttacker]):
    """What is trained, on what.

    Attributes:
        model: the architecture to be sent, at its first weights.
        data: the attacker's auxiliary images.
        num_classes: of the model.
        normalisation: between images and model.
        plan: how.
        groups: LIDS's mini-groups of the data, for a plan that expects them.
    """

    model: nn.Module
    data: Batch
    num_classes: int
    normalisation: Normalisation
    plan: SeerPlan
    groups: Groups | None = None

    kind = "seer"

    @property
    def title(self) -> str:
        """What is trained, in a few words."""
        plan = self.plan
        groups = f", LIDS groups of {plan.lids}" if plan.lids > 1 else ""
        return f"seer {plan.property}, {plan.clients} x {plan.batch_size} images{groups}, {plan.steps} steps"

    @property
    def size(self) -> int:
        """Steps of Adam."""
        return self.plan.steps

    def recipe(self) -> Mapping[str, Any]:
        """Return everything that determines the attacker but code."""
        return {
            "plan": self.plan,
            "model": self.model,
            "data": self.data,
            "synthetic": None if self.groups is None else self.groups.synthetic,
            "normalisation": self.normalisation,
            "classes": self.num_classes,
        }

    def fit(self, report: Report, unfinished: Unfinished) -> SeerAttacker:
        """Train, going on from the last state."""
        run = _Run(self)
        if (state := unfinished.load()) is not None:
            run.restore(state)
        started, before = time.perf_counter(), run.seconds
        while run.step < self.plan.steps:
            run.advance()
            if run.step % CURVE_EVERY == 0 or run.step == self.plan.steps:
                loss = run.note_loss()
                run.seconds = before + time.perf_counter() - started
                report(Tick(run.step, {"loss": loss}))
                unfinished.save(run.state())
        return run.attacker()

    def save(self, trained: SeerAttacker) -> Saved:
        """Return the attacker as tensors and values."""
        return attacker_saved(trained)

    def load(self, saved: Saved) -> SeerAttacker:
        """Return the attacker that was saved."""
        images = self.data.images
        shape = images.shape[1], images.shape[2], images.shape[3]
        return attacker_loaded(saved, self.model, self.normalisation, shape, self.num_classes, self.plan)


class _Run:
    """Training between two steps."""

    def __init__(self, trainee: Trainee) -> None:
        plan, data = trainee.plan, trainee.data
        self._trainee, self._plan = trainee, plan
        self._auxiliary = Auxiliary(data, plan, trainee.groups)
        self._parameters = {
            name: p.detach().clone().requires_grad_(True) for name, p in trainee.model.named_parameters()
        }
        self._reader = build_reader(trainee.model, trainee.normalisation, data.images[:2], trainee.num_classes, plan)
        _check_normalised(trainee.model)
        self._decoder = self._fresh_decoder()
        tensors = [*self._parameters.values(), *self._decoder.parameters()]
        self._adam = torch.optim.Adam(tensors, lr=plan.learning_rate, fused=True)
        self._loss = torch.zeros((), device=data.images.device)
        self._counted = 0
        self.step = 0
        self.seconds = 0.0
        self.curve: list[tuple[int, float]] = []

    def _fresh_decoder(self) -> Decoder:
        plan, data = self._plan, self._trainee.data
        drawn = self._auxiliary.draw(_SCALE_BATCHES, generator(plan.seed, "seer-scale"))
        with torch.no_grad():
            first = self._signals(drawn, generator(plan.seed, "seer-scale", "weights"))[:, 0]
        size = float(first.square().mean().sqrt())
        if not (math.isfinite(size) and size > 0):
            raise InputError("the model to be sent has no gradient on auxiliary images.", hint="Check its weights.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(plan.seed, "seer-decoder"))
            shape = data.images.shape[1], data.images.shape[2], data.images.shape[3]
            decoder = Decoder(self._reader.size, shape, plan.rank, 1 / size).to(data.images)
        decoder.start(data.images.mean(0), _SHRINK)
        return decoder

    def _signals(self, drawn: Drawn, source: torch.Generator) -> Tensor:
        """Return g_pos, g_a and g_b of each batch, [M, 3, n]."""
        count, clients = drawn.images.shape[:2]
        weights = combinations(drawn, source).flatten(0, 1)
        sums = self._reader.sums(self._parameters, drawn.images.flatten(0, 1), drawn.labels.flatten(0, 1), weights)
        return sums.view(count, clients, *sums.shape[1:]).sum(1)

    def advance(self) -> None:
        """Take one step of Adam."""
        source = generator(self._plan.seed, "seer", self.step)
        drawn = self._auxiliary.draw(self._plan.accumulate, source)
        decoded = self._decoder(self._signals(drawn, source))
        alpha = self._plan.suppression(self.step)
        wanted = (decoded[:, 0] - drawn.target).square().mean()
        unwanted = (decoded[:, 1:] - self._decoder.empty.detach()).square().mean()
        loss = (wanted + alpha * unwanted) / (1 + alpha)
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        self._loss += loss.detach()
        self._counted += 1
        self.step += 1

    def note_loss(self) -> float:
        """Add the mean loss since the last point to the curve, and return it."""
        loss = float(self._loss) / max(1, self._counted)
        if not math.isfinite(loss):
            raise TrialError(
                f"SEER's training diverged before step {self.step}.", hint="Lower the learning rate of its plan."
            )
        self.curve.append((self.step, loss))
        self._loss, self._counted = torch.zeros_like(self._loss), 0
        return loss

    def state(self) -> Saved:
        """Return the state between two points of the curve."""
        moments = {
            f"adam|{index}.{name}": value
            for index, state in self._adam.state_dict()["state"].items()
            for name, value in state.items()
        }
        parameters = {f"parameters|{name}": value for name, value in self._parameters.items()}
        decoder = {f"decoder|{name}": value for name, value in self._decoder.state_dict().items()}
        history = {"step": self.step, "seconds": self.seconds, "curve": self.curve}
        return Saved({**parameters, **decoder, **moments}, history)

    def restore(self, saved: Saved) -> None:
        """Go on from a state."""
        parameters = part_of(saved.tensors, "parameters|")
        with torch.no_grad():
            for name, value in self._parameters.items():
                value.copy_(parameters[name])
        self._decoder.load_state_dict(part_of(saved.tensors, "decoder|"))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in part_of(saved.tensors, "adam|").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": state})
        self.step, self.seconds = int(saved.values["step"]), float(saved.values["seconds"])
        self.curve = [(int(step), float(loss)) for step, loss in saved.values["curve"]]

    def attacker(self) -> SeerAttacker:
        """Return what was trained; the model's running statistics are those of the auxiliary data."""
        model = copy.deepcopy(self._trainee.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._parameters[name])
            model.train()
            for part in torch.split(self._trainee.data.images, self._plan.batch_size)[:200]:
                if len(part) > 1:
                    model(self._trainee.normalisation(part))
        return SeerAttacker(
            model.eval(),
            self._decoder.eval().requires_grad_(False),
            self._reader,
            self._plan,
            self._auxiliary.threshold,
            tuple(self.curve),
            self.seconds,
        )


def combinations(drawn: Drawn, source: torch.Generator) -> Tensor:
    """Return the weights of the three sums over all samples of all clients, [M, G, 3, B]: g_pos, g_a and g_b."""
    count, clients, size = drawn.labels.shape
    alone = torch.zeros(count, clients * size)
    alone.scatter_(1, drawn.top.cpu()[:, None], 1.0)
    others = 1 - alone
    random = torch.randn(count, clients * size, generator=source) * others
    random = random / random.norm(dim=1, keepdim=True)
    weights = torch.stack([alone, random, others / math.sqrt(clients * size - 1)], 1)
    return weights.view(count, 3, clients, size).transpose(1, 2).to(drawn.images)


def _check_normalised(model: nn.Module) -> None:
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise InputError(
            "SEER's model compares a sample with its batch by batch normalisation, and this model has none.",
            hint="Use a model with batch normalisation: convbn, resnet10, resnet18 or convnet.",
        )
