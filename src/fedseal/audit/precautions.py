"""What must be known of a set-up before its scores can be believed: a weapon, duplicates, too few strangers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedseal.audit.setup import Setup
from fedseal.core.batch import Batch, joined
from fedseal.core.defence import Defence
from fedseal.core.errors import FedsealError
from fedseal.core.modality import IMAGE
from fedseal.detection.detector import detect
from fedseal.detection.readings import MEANINGS
from fedseal.metrics.baselines import public_duplicates
from fedseal.metrics.intervals import FEWEST
from fedseal.metrics.singling import FEWEST_STRANGERS, STRANGERS
from fedseal.store.findings import Finding

_SAMPLES = 16


def weapon(setup: Setup) -> Iterator[Finding]:
    """Run the client's detector on the model as it was given: one built to leak needs no attack to be a finding."""
    try:
        found = detect(
            setup.model, _with_classes(setup, _targeted(setup, _SAMPLES)), normalisation=setup.config.normalisation
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's model may raise anything; the finding says what
        reason = error.message if isinstance(error, FedsealError) else f"{type(error).__name__}: {error}"
        yield Finding(
            severity="warning",
            topic="detector",
            text=f"the model could not be examined: {reason}",
            advice="Run `fedseal detect` on it.",
        )
        return
    for reading in found.alarms:
        yield Finding(
            severity="problem",
            topic="weaponised model",
            text=f"the client's detector alarms on the model itself, before any attack: {reading}: "
            f"{MEANINGS[reading.check]}.",
            advice="A passive attack may score low on a model that was built to be read: audit it with the analytic "
            "and active attacks, and do not answer such a model.",
        )


def duplicates(setup: Setup) -> Iterator[Finding]:
    """Name private targets that are public too: a guess rebuilds them exactly, whatever the defence."""
    per_target = setup.shape(Defence()).images
    private = _targeted(setup, setup.scenario.targets * per_target).inputs
    twins = public_duplicates(private, setup.public.inputs)
    if twins:
        places = ", ".join(f"{i // per_target}/{i % per_target}" for i in twins[:8])
        yield Finding(
            severity="warning",
            topic="duplicates",
            text=f"{len(twins)} of {len(private)} private {_noun(setup)} are public as well "
            f"(target/{_noun(setup)[:-1]} {places}{', ...' if len(twins) > 8 else ''}).",
            advice="They leak without an update. Remove them from the public part, or read the results without them.",
        )


def strangers(setup: Setup) -> Iterator[Finding]:
    """Say how large the line-ups are where data are few, and that four targets are the least."""
    given = setup.by_class
    labels = setup.strangers.labels
    count = int(torch.bincount(labels).min()) if given and len(labels) else len(labels)
    if count < FEWEST_STRANGERS:
        kind = " of a class" if given else ""
        yield Finding(
            severity="warning",
            topic="strangers",
            text=f"{count} private {_noun(setup)}{kind} are left that are nobody's target, at least "
            f"{FEWEST_STRANGERS} are needed: whether originals are singled out is not read.",
            advice="Lower `targets` or `public_fraction`, or use a larger data set.",
        )
    elif count < STRANGERS:
        yield Finding(
            severity="note",
            topic="strangers",
            text=f"originals are ranked among {count} strangers, as the data set leaves no more: chance is 1 in "
            f"{count + 1}.",
            advice="A larger data set gives sharper line-ups.",
        )
    seeds = len(setup.scenario.weight_seeds)
    if 1 < seeds < FEWEST:
        yield Finding(
            severity="warning",
            topic="weight seeds",
            text=f"intervals are over weight seeds, and {seeds} are too few for one, or for a level.",
            advice=f"Set `weight_seeds` to at least {FEWEST} of them, or leave it out.",
        )
    elif seeds < 2 and setup.scenario.targets < FEWEST:
        yield Finding(
            severity="warning",
            topic="targets",
            text=f"{setup.scenario.targets} target(s) are too few for an interval or a level.",
            advice=f"Set `targets` to at least {FEWEST}; 8 or more tell small leaks from chance.",
        )


def _noun(setup: Setup) -> str:
    return "images" if setup.private.modality == IMAGE else "samples"


def _with_classes(setup: Setup, batch: Batch) -> Batch:
    """Return the batch with some class for each image where its labels are none: the detector reads gradients only."""
    if not batch.labels.is_floating_point():
        return batch
    return Batch(batch.inputs, torch.arange(len(batch), device=batch.labels.device) % setup.outputs, batch.modality)


def _targeted(setup: Setup, count: int) -> Batch:
    """Return up to `count` of the private images that targets are made of, as clients hold them."""
    shape = setup.shape(Defence())
    batches = [batch for target in range(setup.scenario.targets) for batch in setup.batches(target, shape)]
    return joined(batches).pick(slice(count))
