"""The ideal (local, linear) reading of an upload, by whichever method fits, with where it leaks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.errors import CapabilityError, InputError
from fedseal.information.exact import ExactReader, bytes_needed
from fedseal.information.layers import layer_names, leading_layers
from fedseal.information.linear import LinearUpload
from fedseal.information.matrix_free import Effort, estimate
from fedseal.information.prior import ImagePrior
from fedseal.information.reading import IdealReading, decibels, squared_error, unknown
from fedseal.information.upload import Upload

_MEMORY = 3 << 30
EXACT_UNKNOWNS = 4096
_MANY_ENTRIES = 1_000_000
_SIGMAS = (1e-10, 1e6)
_SIGMA_PRECISION = 1e-2


@dataclass(frozen=True)
class Options:
    """How a reading is computed.

    Attributes:
        method: `auto` forms the Jacobian where it is small enough.
        memory: bytes that may be used.
        effort: of random probes.
        exact_unknowns: pixels of all images up to which `auto` forms the Jacobian.
        layers: whether each layer is read by itself.
        labels_known: whether the attacker has the labels; if not, a remark says that the reading supposes it.
    """

    method: Literal["auto", "exact", "matrix-free"] = "auto"
    memory: int = _MEMORY
    effort: Effort = field(default_factory=Effort)
    exact_unknowns: int = EXACT_UNKNOWNS
    layers: bool = True
    labels_known: bool = True


def ideal_reading(upload: Upload, prior: ImagePrior | None, options: Options | None = None) -> IdealReading:
    """Return what an upload holds of its private images; where nobody can say, the reading says why.

    Args:
        upload: what the server sees, with the truth behind it.
        prior: what is expected of an image; None without public data.
        options: how to compute it.
    """
    options = options or Options()
    start = time.perf_counter()
    if prior is None:
        return unknown("there are no public images, so nothing is known of what an image is expected to look like.")
    prior_db = decibels(prior.error)
    if upload.channel.unreadable:
        return unknown(upload.channel.unreadable, prior_db=prior_db)
    shape = list(upload.fed.images.shape[1:])
    if shape != list(prior.mean.shape):
        raise InputError(
            f"the prior is of images {list(prior.mean.shape)}, the upload of images {shape}.",
            hint="Fit it to public images of the same shape.",
        )
    try:
        readings = [read(upload, prior, options) for read in _ways(upload)]
    except CapabilityError as error:
        return unknown(str(error), prior_db=prior_db)
    best = max(readings, key=lambda reading: reading.psnr_db or 0.0)
    return replace(best, seconds=time.perf_counter() - start, remarks=_remarks(upload, options) + best.remarks)


Read = Callable[[Upload, ImagePrior, Options], IdealReading]


def _ways(upload: Upload) -> list[Read]:
    """Return the ways there are to read an upload: what was fed, or the private images it was moved back to."""
    ways: list[Read] = [_read_fed] if upload.channel.fed else []
    if upload.channel.deviation is not None:
        ways.append(_read_private)
    if not ways:
        raise CapabilityError(
            "the upload is no function of the images that were fed, nor near that of the private ones."
        )
    return ways


def _read_fed(upload: Upload, prior: ImagePrior, options: Options) -> IdealReading:
    """Read what was fed, and add the way from there to the private images."""
    reading, errors = _read(upload, prior, options, 0.0)
    private, fed = upload.private.images.double(), upload.fed.images.double()
    if private.shape == fed.shape and torch.equal(private, fed):
        return reading
    per_image = errors.reshape(len(fed), -1).mean(1)
    apart = (private.flatten(1).unsqueeze(1) - fed.flatten(1).unsqueeze(0)).square().mean(2).cpu()
    nearest = (apart + per_image).amin(1).clamp(max=prior.error)
    return replace(
        reading,
        psnr_db=decibels(float(nearest.mean())),
        fed_db=reading.psnr_db,
        remarks=(
            *reading.remarks,
            "the model was fed other images than the private ones: the error of those and the distance between the two "
            "add up, and an attacker who does worse than the mean image answers with that",
        ),
    )


def _read_private(upload: Upload, prior: ImagePrior, options: Options) -> IdealReading:
    """Read the private images themselves from an upload that lies at a known distance from theirs."""
    deviation = upload.channel.deviation or 0.0
    entries = sum(tensor.numel() for tensor in upload.observed.values())
    moved = replace(upload, fed=upload.private)
    reading, _ = _read(moved, prior, options, deviation**2 / entries)
    remark = f"the upload lies {deviation:.3g} from the update of the private images, read as noise of that size"
    return replace(reading, remarks=(*reading.remarks, remark))


def _read(upload: Upload, prior: ImagePrior, options: Options, variance: float) -> tuple[IdealReading, Tensor]:
    """Read what the upload is a function of; return the expected squared error of each pixel too."""
    unknowns = upload.fed.images.numel()
    if options.method == "matrix-free" or (options.method == "auto" and not can_be_formed(upload, options)):
        return _read_by_probes(upload, prior, options, variance)
    reader = ExactReader(LinearUpload(upload, prior, torch.float64, variance), options.memory)
    posterior = reader.posterior()
    errors = reader.pixel_errors(posterior)
    layers = (
        {name: layer.error for name, layer in reader.layers(layer_names(upload.model)).items()}
        if options.layers
        else {}
    )
    reading = IdealReading(
        decibels(posterior.error),
        decibels(prior.error),
        method="exact",
        dimensions=unknowns,
        effective=posterior.effective,
        per_layer={name: decibels(error) for name, error in layers.items()},
        pixel_map=errors.view(upload.fed.images.shape).float(),
    )
    return reading, errors


def _read_by_probes(
    upload: Upload, prior: ImagePrior, options: Options, variance: float
) -> tuple[IdealReading, Tensor]:
    """Read by products only; in single precision where the model is large, with the noise that precision resolves."""
    entries = sum(tensor.numel() for tensor in upload.observed.values())
    dtype = torch.float32 if entries > _MANY_ENTRIES else torch.float64
    linear = LinearUpload(upload, prior, dtype, variance)
    _check_memory(linear, options)
    found = estimate(linear, options.effort)
    remarks = []
    if found.inflation > 1:
        remarks.append(
            f"read as if its noise were {math.sqrt(found.inflation):.2g} times as large, which is what arithmetic and "
            "steps resolve: the upload holds at least this much"
        )
    if options.layers:
        remarks.append("layers are compared within the leading directions of the prior only")
    if not found.finished:
        remarks.append(f"solves were stopped after {found.iterations} steps: the upload holds at least this much")
    reading = IdealReading(
        decibels(found.error),
        decibels(prior.error),
        method="matrix-free",
        error_db=max(decibels(found.low) - decibels(found.error), decibels(found.error) - decibels(found.high))
        + 10 * math.log10(found.inflation),
        dimensions=linear.pixels,
        per_layer=leading_layers(linear, layer_names(upload.model)) if options.layers else {},
        pixel_map=found.pixel_errors.view(upload.fed.images.shape).float(),
        remarks=tuple(remarks),
    )
    return reading, found.pixel_errors


def can_be_formed(upload: Upload, options: Options) -> bool:
    """Return whether an upload's Jacobian is small enough to be formed."""
    unknowns = upload.fed.images.numel()
    entries = sum(tensor.numel() for tensor in upload.observed.values())
    return unknowns <= options.exact_unknowns and bytes_needed(entries, unknowns) <= options.memory


def _check_memory(linear: LinearUpload, options: Options) -> None:
    width = linear.map.point.element_size()
    lanes = max(options.effort.probes, options.effort.rank)
    needed = width * lanes * (linear.entries + 4 * linear.unknowns)
    if needed > options.memory:
        raise CapabilityError(
            f"a reading of {linear.entries:,} entries by {lanes} vectors at once needs {needed / 2**30:.1f} GiB, the "
            f"bound is {options.memory / 2**30:.1f} GiB.",
            hint="Raise the bound, or ask for fewer probes and a smaller rank.",
        )


def _remarks(upload: Upload, options: Options) -> tuple[str, ...]:
    remarks = list(upload.channel.remarks)
    if not options.labels_known:
        remarks.append("labels are supposed to be known; an attacker has to infer them first")
    if upload.clients > 1:
        remarks.append(f"of the mean of {upload.clients} clients, all their images together")
    return tuple(remarks)


def sigma_for_level(upload: Upload, prior: ImagePrior, level_db: float, options: Options | None = None) -> float | None:
    """Return the deviation of Gaussian noise in every entry that brings the reading down to a level, without attack.

    None if no noise does, as the prior alone is above it; 0 if none is needed. The noise is added to what the upload's
    own channel lets through.
    """
    return sigma_for_levels(upload, prior, (level_db,), options)[level_db]


def sigma_for_levels(
    upload: Upload, prior: ImagePrior, levels_db: Sequence[float], options: Options | None = None
) -> dict[float, float | None]:
    """Return `sigma_for_level` of several levels, on one Jacobian where it can be formed."""
    left = _error_by_noise(upload, prior, replace(options or Options(), layers=False))
    return {level: _noise_for(left, squared_error(level), prior.error) for level in levels_db}


def _noise_for(left: Callable[[float], float], wanted: float, without: float) -> float | None:
    """Solve for the noise that leaves an error, by bisection over its logarithm; `without` is the prior's error."""
    if without <= wanted:
        return None
    if left(0.0) >= wanted:
        return 0.0
    low, high = _SIGMAS
    while high / low > 1 + _SIGMA_PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if left(middle) < wanted else (low, middle)
    return math.sqrt(low * high)


def _error_by_noise(upload: Upload, prior: ImagePrior, options: Options) -> Callable[[float], float]:
    """Return the expected squared error per pixel of what was fed, as a function of further noise."""
    if options.method != "matrix-free" and can_be_formed(upload, options):
        reader = ExactReader(LinearUpload(upload, prior, torch.float64), options.memory)
        return reader.error_with_noise()

    def by_probes(sigma: float) -> float:
        reading, _ = _read_by_probes(upload, prior, options, sigma**2)
        return squared_error(reading.psnr_db or 0.0)

    return by_probes
