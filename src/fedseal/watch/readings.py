"""What an update about to leave gives away, read by its own client, who knows the truth behind it.

- `ideal`: the reading of `fedseal.information`, in dB of PSNR: what a perfect search near the truth would find, by few
  probes: the update holds at least this much.
- `learned`: the PSNR of an attack that learned on rehearsed updates of public images, anew for every weights.
- `labels`: the share of labels that the update gives away to who does not know the defence, beyond what guessing by
  frequencies achieves.

The ideal reading is of a few images of those behind the update, as if the attacker knew all others: never less than an
attacker without that knowledge could find. Of a large model it is of one image in one step, by less effort: a second
step would cost many times as much, as every direction then has weights of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedseal.attacks.labels import infer_labels
from fedseal.audit.levels import RiskLevel, level_of
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch, joined
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.errors import FedsealError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.rehearsal import Rehearsal
from fedseal.information.ideal import Options, ideal_reading
from fedseal.information.matrix_free import Effort
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.upload import upload_behind
from fedseal.metrics.image import psnr
from fedseal.metrics.labels import guessed_accuracy, label_accuracy
from fedseal.metrics.matching import IMAGE_RANGE, hungarian
from fedseal.watch.rules import Kind

NEAR_PRIOR_DB = 0.5
"""An update that adds no more than this to what is known without it holds nothing to speak of, as in the verdict."""
LEAKED_LABELS = 0.25
"""From this share of labels on, beyond guessing, labels count as a medium risk; from twice it as a high one."""

_MANY_WEIGHTS = 1_000_000
_SMALL, _LARGE = (
    Options(method="matrix-free", effort=effort, layers=False)
    for effort in (Effort(probes=4, rank=16, iterations=8), Effort(probes=2, rank=3, iterations=2))
)
"""Effort for models up to so many weights and for larger ones: fewer iterations find less, never more than there is."""
_OPEN_DB = 3.0
"""Where a reading leaves more than this open, finding nothing says nothing."""
_MANY_LABELS = 64
_PUBLIC = 256
_PRIORS: dict[int, tuple[Batch, ImagePrior]] = {}
"""By identity; the images are kept beside, so that no others can take their place."""


@dataclass(frozen=True)
class Watched:
    """An update about to leave, with the truth behind it.

    Attributes:
        model: with the weights the client was sent, in the mode it trains in.
        update: as it would leave.
        batches: the private images it was made of, one batch per local step.
        config: how the client trained; its normalisation is the client's.
        defence: spec of what sealed it.
        public: images of the same kind that no client holds.
    """

    model: nn.Module
    update: Update
    batches: Sequence[Batch]
    config: RoundConfig
    defence: str
    public: Batch


@dataclass(frozen=True)
class Reading:
    """One reading.

    Attributes:
        kind: what was read.
        value: dB of PSNR, or the share of labels beyond guessing; None where it could not be read.
        level: the risk of it; LOW where nothing is gained over knowing no update.
        without: the same of an attacker without the update; None where it is not known.
        reason: why there is no value.
        seconds: it took.
        images: it is of; None where that is all of them.
    """

    kind: Kind
    value: float | None
    level: RiskLevel
    without: float | None = None
    reason: str = ""
    seconds: float = 0.0
    images: int | None = None


def read(watched: Watched, kinds: Sequence[Kind], *, images: int, seed: int = 0) -> list[Reading]:
    """Read an update; what cannot be read says why.

    Args:
        watched: the update and the truth behind it.
        kinds: what to read.
        images: at most so many are read; of a large model one.
        seed: of probes and guesses.
    """
    return [_timed(kind, watched, images, seed) for kind in kinds]


def _timed(kind: Kind, watched: Watched, images: int, seed: int) -> Reading:
    readers: dict[Kind, Callable[[], Reading]] = {
        "ideal": lambda: _ideal(watched, images),
        "learned": lambda: _learned(watched, seed),
        "labels": lambda: _labels(watched, seed),
    }
    start = time.perf_counter()
    try:
        found = readers[kind]()
    except FedsealError as error:
        found = Reading(kind, None, RiskLevel.LOW, reason=str(error))
    return replace(found, seconds=time.perf_counter() - start)


def _few(watched: Watched, images: int) -> Watched:
    """Return the update with some images of each step, moving the weights as much as they do among all of theirs."""
    steps = list(watched.batches)[:images]
    size = max(1, min(images // len(steps), *(len(step) for step in steps)))
    share = size / max(len(step) for step in steps) if watched.config.loss_reduction == "mean" else 1.0
    config = replace(
        watched.config, local_steps=len(steps), upload="delta", learning_rate=watched.config.learning_rate * share
    )
    return replace(watched, batches=[step.pick(slice(size)) for step in steps], config=config)


def _observation(watched: Watched, defence: Defence) -> Observation:
    set_mode(watched.model, watched.config)
    size = len(watched.batches[0])
    shape = tuple(watched.batches[0].images.shape[1:])
    classes = _classes(watched)
    view = defence.attacker_view()
    knowledge = Knowledge(
        input_shape=(shape[0], shape[1], shape[2]),
        num_classes=classes,
        bn_mode=watched.config.bn_mode,
        batch_size=size,
        clients=1,
        local_steps=len(watched.batches),
        learning_rate=watched.config.learning_rate,
        normalisation=watched.config.normalisation,
        auxiliary=watched.public,
        defence=view,
        rehearse=Rehearsal(
            watched.config,
            RoundShape(size, len(watched.batches)),
            lambda: build_defence(watched.defence),
            watched.defence,
        ),
    )
    return Observation(watched.model, watched.update, knowledge)


def _classes(watched: Watched) -> int:
    with torch.no_grad():
        output = watched.model(watched.config.normalisation(watched.batches[0].images[:1]))
    return int(getattr(output, "logits", output).shape[-1])


def _ideal(whole: Watched, images: int) -> Reading:
    large = sum(tensor.numel() for tensor in whole.update.tensors.values()) > _MANY_WEIGHTS
    watched, defence = _few(whole, 1 if large else images), build_defence(whole.defence)
    private = joined(list(watched.batches))
    upload = upload_behind(_observation(watched, defence), defence, watched.config, private, private)
    found = ideal_reading(upload, _prior(watched.public), _LARGE if large else _SMALL)
    near = (found.gain_db or 0.0) <= NEAR_PRIOR_DB
    if found.psnr_db is None or (near and (found.error_db or 0.0) > _OPEN_DB):
        reason = found.reason or "so few steps find nothing, and leave open what more of them would."
        return Reading("ideal", None, RiskLevel.LOW, found.prior_db, reason)
    level = RiskLevel.LOW if near else level_of(found.psnr_db)
    return Reading("ideal", found.psnr_db, level, found.prior_db, images=len(private))


def _prior(public: Batch) -> ImagePrior:
    """Return what is expected of an image, fitted once for the same public images."""
    key = id(public)
    if key not in _PRIORS:
        _PRIORS.clear()  # one federation, one set of public images
        _PRIORS[key] = public, fit_prior(public.images[:_PUBLIC])
    return _PRIORS[key][1]


def _learned(watched: Watched, seed: int) -> Reading:
    observation = _observation(watched, build_defence(watched.defence))
    attack = ATTACKS.build("learned")
    attack.check(observation)
    rebuilt = attack.run_many([observation], Budget(None, 1), [seed])[0].images
    private = joined(list(watched.batches)).images
    mean = watched.public.images.mean(0, keepdim=True).expand_as(private)
    found, without = (
        float(psnr(private, one[hungarian(private, one)], data_range=IMAGE_RANGE).mean()) for one in (rebuilt, mean)
    )
    level = RiskLevel.LOW if found - without <= NEAR_PRIOR_DB else level_of(found)
    return Reading("learned", found, level, without)


def _labels(watched: Watched, seed: int) -> Reading:
    truth = joined(list(watched.batches)).labels
    if len(truth) > _MANY_LABELS:
        reason = f"the update is of {len(truth)} images; labels are read of {_MANY_LABELS} at most."
        return Reading("labels", None, RiskLevel.LOW, reason=reason)
    seen = _observation(watched, build_defence(watched.defence))
    observation = replace(seen, knowledge=replace(seen.knowledge, defence=None))  # who knows it has to rehearse first
    guess = infer_labels(observation, seed).labels
    counts = torch.bincount(watched.public.labels, minlength=observation.knowledge.num_classes)
    without = guessed_accuracy(counts, len(truth))
    beyond = (label_accuracy(truth.cpu(), guess.cpu()) - without) / max(1 - without, 1e-9)
    places = (beyond >= LEAKED_LABELS) + (beyond >= 2 * LEAKED_LABELS)
    return Reading("labels", max(beyond, 0.0), (RiskLevel.LOW, RiskLevel.MEDIUM, RiskLevel.HIGH)[places], without)
