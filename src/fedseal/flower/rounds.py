"""Training under a defence inside a Flower client: for what acts on data, model, samples or step gradients.

`defend` opens a seal around the client's train function; `train_round` runs the round with the seal's defence and
leaves the sealed update there, where `defend` takes it. Called without `defend` around it, it trains undefended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import ClientRound, RoundConfig
from fedseal.federation.cohort import federated_model, held_by, play_alone
from fedseal.federation.cohort.answers import Measure
from fedseal.federation.cohort.one_by_one import InTurn
from fedseal.federation.wire import payload_size


@dataclass(frozen=True)
class SealedRound:
    """A round that ran under a seal.

    Attributes:
        done: the round; its update is sealed.
        learning_rate: it trained with.
        names: of the model's state, in order; the older API sends arrays without names.
    """

    done: ClientRound
    learning_rate: float
    names: tuple[str, ...]


@dataclass
class Seal:
    """What a client's round is sealed with; `result` is set by the training that ran under it.

    Attributes:
        defence: at the client's current state.
        generator: its randomness.
        round_number: from 0.
        client: its name.
        preparing: what its data are prepared with: the same draw in every round; of the system's, if left out.
        measure: counts the bytes of the sealed update.
        result: of the training that ran under it, if any did.
    """

    defence: Defence
    generator: torch.Generator
    round_number: int
    client: str
    preparing: torch.Generator = field(default_factory=lambda: generator(None))
    measure: Measure = payload_size
    result: SealedRound | None = None


@dataclass(frozen=True)
class SealStreams:
    """The randomness of the one client under a seal."""

    seal: Seal

    def prepare(self, client: int) -> torch.Generator:
        """Return what the client's defence prepares its data with."""
        return self.seal.preparing

    def round(self, client: int, number: int) -> torch.Generator:
        """Return what the client's defence draws from in this round."""
        return self.seal.generator

    def turns(self, number: int) -> torch.Generator:
        """Return nothing of use: a single client is always first."""
        return self.seal.generator


_OPEN: ContextVar[Seal | None] = ContextVar("fedseal_seal", default=None)


@contextmanager
def opened(seal: Seal) -> Iterator[Seal]:
    """Make `seal` the one that `train_round` trains under."""
    token = _OPEN.set(seal)
    try:
        yield seal
    finally:
        _OPEN.reset(token)


@dataclass(frozen=True)
class TrainedRound:
    """What a train function gets back.

    Attributes:
        weights: the state to reply with: as received, plus the sealed update; buffers unchanged.
        round: everything else, which stays on the client.
    """

    weights: dict[str, Tensor]
    round: ClientRound


def train_round(
    model: nn.Module, batches: Sequence[Batch], config: RoundConfig, *, dataset: Batch | None = None
) -> TrainedRound:
    """Run a client's round under the defence of the `defend` mod around it, and return what to reply with.

    Args:
        model: with the received weights; wrapped by `wrap_model` if the defence changes the model.
        batches: one per local step.
        config: how the client trains.
        dataset: all of the client's data, which the batches are of, for defences that draw from it or put other images
            in its place; the batches if it is left out.
    """
    seal = _OPEN.get() or Seal(Defence(), generator(None), 0, "client")
    _check_shape(seal.defence, batches)
    client = held_by(seal.client, batches, config, seal.defence.name, dataset=dataset)
    done = play_alone(
        client, model, seal.defence, SealStreams(seal), round_number=seal.round_number, train=InTurn((), seal.measure)
    )
    seal.result = SealedRound(done, config.learning_rate, tuple(model.state_dict()))
    scale = 1.0 if done.update.kind == "delta" else -config.learning_rate
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name, tensor in done.update.tensors.items():
        state[name] = state[name] + scale * tensor
    return TrainedRound(state, done)


def wrap_model(model: nn.Module, defence: str, *, seed: int = 0) -> nn.Module:
    """Return the model a federation trains under a defence; server and clients call it alike, with one seed."""
    return federated_model(build_defence(defence), model, seed)


def _check_shape(defence: Defence, batches: Sequence[Batch]) -> None:
    shape = RoundShape(min(map(len, batches), default=0), len(batches))
    wanted = defence.reshape(shape)
    if wanted != shape:
        raise UsageError(
            f"{defence.name} needs {wanted.local_steps} local step(s) of {wanted.batch_size} images, got "
            f"{shape.local_steps} of {shape.batch_size}.",
            hint="Give train_round as many batches of that size.",
        )
