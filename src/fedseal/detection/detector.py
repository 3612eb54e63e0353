"""`detect`: look at a received model, and at what one would answer, before answering."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import InputError
from fedseal.core.tensors import check_finite
from fedseal.detection import weights as signs
from fedseal.detection.adapters import body_norms, body_of_fresh
from fedseal.detection.death import died_at
from fedseal.detection.gradients import sample_norms
from fedseal.detection.passing import ungated
from fedseal.detection.readings import DIED, FRESH, MEANINGS, THRESHOLDS, Check, Reading
from fedseal.models.structure import ExecutedLayer, executed_layers

_SAMPLES = 64


@dataclass(frozen=True)
class Detection:
    """What a client found.

    Example:
        >>> import torch, fedseal
        >>> _ = torch.manual_seed(0)
        >>> found = fedseal.detect(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
        >>> found.describe().splitlines()[0]
        'nothing suspicious was found'

    Attributes:
        readings: the most suspicious value of every check that could be made.
        dsnr: signal-to-noise ratio per layer; empty without a batch of two or more. No alarm by itself: honest
            networks that have learnt all samples of a batch but one have any ratio.
        died_at: the layer at which the network died in training, if it did: then no gradient passes, and none leaks.
        fresh: whether what is trained are adapters that end in zeros, which let no gradient reach what is in front of
            them: honest in a first round, and a way to suppress a client in a later one.
    """

    readings: tuple[Reading, ...]
    dsnr: dict[str, float] = field(default_factory=dict)
    died_at: str | None = None
    fresh: bool = False

    @property
    def alarms(self) -> tuple[Reading, ...]:
        """The readings hardly any honest model has."""
        return tuple(reading for reading in self.readings if reading.alarming)

    @property
    def suspicious(self) -> bool:
        """Whether the model should not be answered."""
        return bool(self.alarms)

    def describe(self) -> str:
        """Return a verdict with one line per reading, alarms first and explained."""
        calm = [reading for reading in self.readings if not reading.alarming]
        lines = [f"ALARM  {reading}: {MEANINGS[reading.check]}" for reading in self.alarms]
        lines += [f"ok     {reading}" for reading in calm]
        if self.dsnr:
            layer, value = max(self.dsnr.items(), key=lambda item: item[1])
            lines.append(f"note   d-snr is largest in `{layer}`: {value:.3g}")
        if self.died_at is not None:
            lines.append(f"note   the network died at `{self.died_at}`: {DIED}")
        if self.fresh:
            lines.append(f"note   {FRESH}")
        verdict = "do not answer: this model looks like a weapon" if self.suspicious else "nothing suspicious was found"
        return "\n".join([verdict, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as plain data for JSON; an unbounded value is the string `inf`."""
        return {
            "suspicious": self.suspicious,
            "died_at": self.died_at,
            "fresh": self.fresh,
            "dsnr": {name: _plain(value) for name, value in self.dsnr.items()},
            "readings": [
                {
                    "check": reading.check,
                    "layer": reading.layer,
                    "value": _plain(reading.value),
                    "threshold": reading.threshold,
                    "alarm": reading.alarming,
                    "meaning": MEANINGS[reading.check],
                }
                for reading in self.readings
            ],
        }


def detect(
    model: nn.Module,
    batch: Batch | None = None,
    *,
    normalisation: Normalisation = IDENTITY,
    thresholds: dict[Check, float] | None = None,
) -> Detection:
    """Return what is suspicious about a received model.

    Args:
        model: as received, in the mode the client trains in; it is not changed.
        batch: what the client would train on; without it only the weights are looked at. At most 64 samples are used.
        normalisation: between images and model inputs.
        thresholds: other limits than the calibrated ones, by check.

    Example:
        >>> import torch, fedseal
        >>> _ = torch.manual_seed(0)
        >>> honest = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> fedseal.detect(honest).suspicious
        False
    """
    limits = THRESHOLDS | (thresholds or {})
    check_finite(dict(model.named_parameters()), "received model")
    if batch is not None and len(batch) == 0:
        raise InputError("the batch is empty.", hint="Give at least two samples, or none at all.")
    found: list[tuple[Check, str, float | None]] = list(_weight_readings(model))
    dsnr: dict[str, float] = {}
    died: str | None = None
    body: ExecutedLayer | None = None
    if batch is not None:
        like = next(model.parameters())
        used = batch.pick(slice(_SAMPLES)).to(like.device, like.dtype)
        layers = executed_layers(copy.deepcopy(model), normalisation(used.inputs))
        found += _head_readings(layers[-1])
        norms = sample_norms(model, used, normalisation)
        trained = [layer for layer in layers if layer.weight_name in norms.layers]
        body = body_of_fresh(model, layers, trained)
        if trained:
            first = trained[0 if body is None else 1].weight_name
            blocked = norms.blocked(first)
            if body is not None:
                blocked = max(blocked, body_norms(model, used, normalisation).blocked(body.weight_name))
            died = died_at(layers) if blocked > limits["blocked gradient"] else None
            found.append(("blocked gradient", first, blocked if died is None else None))
        found = _without_ungated(found, limits, model, used, normalisation)
        if len(used) > 1:
            dsnr = norms.dsnr()
            found += [("relative d-snr", name, value) for name, value in norms.relative_dsnr().items()]
    return Detection(_worst(found, limits), dsnr, died, body is not None)


def _weight_readings(model: nn.Module) -> list[tuple[Check, str, float | None]]:
    found: list[tuple[Check, str, float | None]] = []
    for name, module in model.named_modules():
        found.append(("identity products", name, signs.identity_products(signs.square_blocks(module))))
        rows = signs.as_rows(module)
        if rows is None:
            continue
        found.append(("outsized weights", name, signs.outsized(rows)))
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else module.bias.detach()
            found.append(("parallel rows", name, signs.parallel_rows(rows, bias)))
            found.append(("balanced rows", name, signs.balanced_rows(rows)))
            found.append(("even signs", name, signs.even_signs(rows)))
        else:
            found.append(("bare kernels", name, signs.bare_kernels(rows)))
    return found


def _without_ungated(
    found: list[tuple[Check, str, float | None]],
    limits: dict[Check, float],
    model: nn.Module,
    batch: Batch,
    normalisation: Normalisation,
) -> list[tuple[Check, str, float | None]]:
    """Return readings without those of parallel rows that sort no samples, since nothing gates behind them."""
    check: Check = "parallel rows"
    names = sorted(layer for one, layer, value in found if one == check and (value or 0) > limits[check])
    harmless = ungated(model, batch, normalisation, names) if names else set()
    return [reading for reading in found if reading[0] != check or reading[1] not in harmless]


def _head_readings(layer: ExecutedLayer) -> list[tuple[Check, str, float | None]]:
    if not isinstance(layer.module, nn.Linear) or layer.module.out_features < 2:
        return []
    found: list[tuple[Check, str, float | None]] = [
        ("silenced classes", layer.name, signs.silenced_classes(layer.module.weight.detach())),
        ("single direction", layer.name, signs.single_direction(layer.module.weight.detach(), layer.inputs)),
    ]
    bias: Tensor | None = layer.module.bias
    if bias is not None:
        found.append(("bias gap", layer.name, float(bias.detach().max() - bias.detach().min())))
    return found


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _worst(found: list[tuple[Check, str, float | None]], limits: dict[Check, float]) -> tuple[Reading, ...]:
    """Return the largest value of every check."""
    worst: dict[Check, Reading] = {}
    for check, layer, value in found:
        if value is not None and (check not in worst or value > worst[check].value):
            worst[check] = Reading(check, layer, value, limits[check])
    return tuple(worst.values())
