"""Training under a defence inside a Flower client: for what acts on data, model, samples or step gradients.

`defend` opens a seal around the client's train function; `train_round` runs the round with the seal's defence and
leaves the sealed update there, where `defend` takes it. Called without `defend` around it, it trains undefended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.core.modality import IMAGE
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import ClientRound, RoundConfig
from fedseal.federation.cohort import federated_model, held_by, play_alone
from fedseal.federation.cohort.answers import Measure
from fedseal.federation.cohort.one_by_one import InTurn
from fedseal.federation.cohort.traffic import running_statistics
from fedseal.federation.posthoc import members_of
from fedseal.federation.wire import payload_size

_TOLERANCE = 0.01
_LOG = logging.getLogger("fedseal.flower")


@dataclass(frozen=True)
class SealedRound:
    """A round that ran under a seal.

    Attributes:
        done: the round; its update is sealed.
        learning_rate: it trained with.
        names: of the model's state, in order; the older API sends arrays without names.
        rescales: the sealed gradient is a step of its own size, which no learning rate multiplies.
    """

    done: ClientRound
    learning_rate: float
    names: tuple[str, ...]
    rescales: bool = False

    def change(self) -> dict[str, Tensor]:
        """Return the sealed update as the weight change it stands for; what is zero is plus zero, which packs."""
        update = self.done.update
        if update.kind == "delta":
            return dict(update.tensors)
        scale = -1.0 if self.rescales else -self.learning_rate
        return {name: tensor * scale + 0.0 for name, tensor in update.tensors.items()}


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


def open_seal() -> Seal | None:
    """Return the seal that is open around this client's train function, or None."""
    return _OPEN.get()


@dataclass(frozen=True)
class TrainedRound:
    """What a train function gets back.

    Attributes:
        weights: the state to reply with: as received, plus the sealed update; running statistics as they were trained,
            of which `defend` lets leave what its policy allows.
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
    seal = open_seal() or Seal(Defence(), generator(None), 0, "client")
    _check_shape(seal.defence, batches)
    _check_range(seal.defence, batches)
    client = held_by(seal.client, batches, config, seal.defence.name, dataset=dataset)
    shared = running_statistics(model) if config.bn_mode == "train-exact-stats" else []
    done = play_alone(
        client,
        model,
        seal.defence,
        SealStreams(seal),
        round_number=seal.round_number,
        train=InTurn(shared, seal.measure),
    )
    _check_rate(seal.defence, batches, dataset)
    seal.result = SealedRound(
        done, config.learning_rate, tuple(model.state_dict()), rescales=seal.defence.traits.rescales
    )
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()} | dict(done.buffers)
    for name, tensor in seal.result.change().items():
        state[name] = state[name] + tensor
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


def _check_range(defence: Defence, batches: Sequence[Batch]) -> None:
    """Refuse images beyond [0, 1] where a defence works on images, and say so where it does not."""
    images = [batch.inputs for batch in batches if batch.modality == IMAGE]
    low = min((float(part.min()) for part in images if part.numel()), default=0.0)
    high = max((float(part.max()) for part in images if part.numel()), default=1.0)
    if low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
        return
    said = f"the images lie in [{low:.3g}, {high:.3g}], not in [0, 1]."
    hint = "Give them as they are, and how the model takes them by RoundConfig(normalisation=Normalisation(mean, std))."
    if any(member.uses(hook) for member in members_of(defence) for hook in ("prepare", "on_batch")):
        raise InputError(said, hint=hint)
    _LOG.warning("%s %s", said, hint)


def _check_rate(defence: Defence, batches: Sequence[Batch], dataset: Batch | None) -> None:
    """Refuse a sampling rate that privacy was accounted with and that the batches contradict."""
    rates = [release.rate for release in defence.releases() if release.rate < 1]
    if not rates:
        return
    if dataset is None:
        raise UsageError(
            f"{defence.name} counts on a sample_rate of {min(rates):g}, and nobody can see whether it is true.",
            hint="Give train_round the client's whole data: dataset=...",
        )
    expected, drawn = min(rates) * len(dataset), sum(map(len, batches)) / len(batches)
    spread = math.sqrt(expected / len(batches))  # of the mean size of Poisson samples
    if drawn > expected + 4 * spread + 1e-9:
        raise UsageError(
            f"{defence.name} counts on a sample_rate of {min(rates):g}: {expected:.3g} of {len(dataset)} images in a "
            f"step, got {drawn:.3g}. The epsilon would be wrong, and nothing was sent.",
            hint=f"Set sample_rate={drawn / len(dataset):.3g}, and draw every image independently (Poisson sampling).",
        )
