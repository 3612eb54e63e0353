"""A defence applied to an update that someone else's training loop produced.

Frameworks hand over what a client is about to upload, not its training loop. A defence that acts on the update alone
can be applied there and then; one that acts earlier (on data, model, samples or step gradients) cannot, and is refused
rather than left out in silence: its training has to run through a cohort (`fedseal.flower.train_round`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Classifier, CostReport, Defence, RoundContext, RoundShape
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors, check_finite, check_real
from fedseal.federation.client import HookClock, RoundConfig
from fedseal.federation.cohort import Answer, Assignment, Client, play_alone
from fedseal.federation.cohort.answers import Measure
from fedseal.federation.wire import payload_size

_TRAINING_HOOKS = (
    "prepare",
    "on_batch",
    "wrap_model",
    "extra_loss",
    "on_sample_grads",
    "on_gradient",
)
BATCH_NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""How batch normalisation calls what it keeps of its data."""


@dataclass(frozen=True)
class SealedUpdate:
    """What may leave the client.

    Attributes:
        update: after the defence.
        cost: of the defence in this round.
    """

    update: Update
    cost: CostReport


def members_of(defence: Defence) -> Sequence[Defence]:
    """Return the defences a pipeline runs, or the defence itself."""
    members: Sequence[Defence] = getattr(defence, "members", (defence,))
    return members


def needs_training(defence: Defence) -> tuple[str, ...]:
    """Return the names of members that act before there is an update, and so inside of training."""
    return tuple(member.name for member in members_of(defence) if _acts_in_training(member))


def _acts_in_training(member: Defence) -> bool:
    return (
        any(member.uses(hook) for hook in _TRAINING_HOOKS)
        or member.needs_sample_grads
        or member.traits.reads_batch
        or member.reshape(RoundShape()) != RoundShape()
    )


def refuse_joint(defence: Defence, instead: str) -> None:
    """Refuse defences in which several parties act together; a framework has its own, named by `instead`."""
    joint = [m.name for m in members_of(defence) if m.stage == "aggregate" or m.uses("broadcast") or m.uses("receive")]
    if joint:
        raise CapabilityError(
            f"{', '.join(joint)} is a protocol between several parties, which one client cannot apply by itself.",
            hint=f"Use {instead}.",
        )


def seal_update(
    update: Update,
    defence: Defence,
    generator: torch.Generator,
    *,
    before: Tensors,
    round_number: int,
    client: str,
    learning_rate: float,
    measure: Measure = payload_size,
) -> SealedUpdate:
    """Apply a defence to a finished update: the round of a cohort's one client, of which its training is over.

    Args:
        update: the client's own, trainable parameters only.
        defence: one that acts on the update, at the client's current state.
        generator: its randomness.
        before: the weights the client was sent.
        round_number: from 0.
        client: its name.
        learning_rate: of the client's steps.
        measure: counts the bytes of the sealed update.
    """
    check_real(update.tensors, "client update")
    early = needs_training(defence)
    if early:
        raise CapabilityError(
            f"{', '.join(early)} acts while the client trains and cannot be applied to a finished update.",
            hint="Train with fedseal.flower.train_round, or choose a defence of the update such as topk or gaussian.",
        )
    config = RoundConfig(learning_rate=learning_rate, upload=update.kind)
    done = play_alone(
        Client(client, _Elsewhere(), config, lambda data, number: ()),
        _Weights(before),
        defence,
        _Given(generator),
        round_number=round_number,
        train=_Finished(update, measure),
    )
    return SealedUpdate(done.update, done.cost)


@dataclass(frozen=True)
class _Finished:
    """A way to train a client that has trained already: of its hooks, only that of the update is left."""

    update: Update
    measure: Measure

    def __call__(
        self, assignments: Iterable[Assignment], round_number: int, *, statistics: bool = True
    ) -> Iterator[Answer]:
        for one in assignments:
            check_finite(self.update.tensors, "client update")
            rate, kind, clock = one.config.learning_rate, self.update.kind, HookClock()
            context = RoundContext(one.model, _no_loss, one.generator, round_number, 0, rate, one.name, kind=kind)
            sent = clock(one.defence.on_update, self.update.tensors, context)
            check_finite(sent, "sealed update")
            yield Answer(one, Update(sent, kind), bytes_up=self.measure(sent), hook_seconds=clock.seconds)


@dataclass(frozen=True)
class _Given:
    """A randomness that someone else has seeded."""

    source: torch.Generator

    def prepare(self, client: int) -> torch.Generator:
        return self.source

    def round(self, client: int, number: int) -> torch.Generator:
        return self.source

    def turns(self, number: int) -> torch.Generator:
        return self.source


class _Elsewhere:
    """The data of a client whose training loop is someone else's: they are not seen here."""

    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor | None = None) -> Batch:
        raise CapabilityError("a client's data are not seen after its training.", hint="Train with train_round.")


def travelling(state: Tensors) -> list[str]:
    """Return which entries of a state dict may travel as an update.

    Statistics of batch normalisation describe the private data and no defence covers them, so they stay where they
    are; counters and other integers likewise.
    """
    return [
        name
        for name, tensor in state.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in BATCH_NORM_BUFFERS
    ]


class _Weights(nn.Module):
    """Stands for the model where only its weights are known: parameters by their names, and no forward pass."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                continue
            owner: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, nn.Parameter(tensor.detach(), requires_grad=False))


def _no_loss(model: Classifier, batch: Batch) -> Tensor:
    raise CapabilityError(
        "this defence asks for the client's loss, which is not known after training.",
        hint="Train with fedseal.flower.train_round.",
    )
