"""Checks of what people bring themselves: a model that answers with probabilities, pictures that were resized."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedseal.audit.setup import Setup
from fedseal.federation.loss import training_loss
from fedseal.store.findings import Finding

_PROBES = 16


def squashed_outputs(setup: Setup) -> Iterator[Finding]:
    """Notice a softmax or a sigmoid inside of the model where the loss brings its own."""
    kind = training_loss(setup.scenario.loss).target
    if kind in ("values", "inputs"):
        return
    modes = [(module, module.training) for module in setup.model.modules()]
    setup.model.eval()
    try:
        with torch.no_grad():
            outputs = setup.model(setup.config.normalisation(setup.public.inputs[:_PROBES])).double()
    except (Exception, SystemExit):  # noqa: BLE001 - a model that fails is another check's finding
        return
    finally:
        for module, training in modes:
            module.training = training
    inside = bool(((outputs >= 0) & (outputs <= 1)).all()) and outputs.numel() > 1
    sums_to_one = outputs.shape[1] > 1 and bool((outputs.sum(1) - 1).abs().max() < 1e-4)
    varies = bool(outputs.std() > 0)
    if inside and kind == "class" and sums_to_one:
        yield _squashed("softmax", "cross-entropy", "every gradient is flattened and attacks look weaker than they are")
    elif inside and varies and not sums_to_one and (kind == "flags" or outputs.shape[1] == 1):
        yield _squashed("sigmoid", setup.scenario.loss, "no output is ever sure, and attacks look weaker than they are")


def _squashed(function: str, loss: str, consequence: str) -> Finding:
    return Finding(
        severity="problem",
        topic=f"{function} inside",
        text=f"the model seems to answer with probabilities, and {loss} applies a {function} once more: {consequence}.",
        advice=f"Return logits: leave the model's last {function} out, or name a loss of your own that takes "
        "probabilities (`loss: module:attribute`).",
    )


def data_notes(setup: Setup) -> Iterator[Finding]:
    """Say what was done to the data that their owner should know."""
    for note in setup.private.notes:
        text, _, advice = note.partition(". ")
        yield Finding(severity="warning", topic="data", text=f"{text}.", advice=f"{advice}." if advice else "")
