"""A prior in a file of its own: safetensors, with a header that says what it is and what it was trained on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors

from fedseal.core.errors import FedsealError, InputError
from fedseal.core.files import write_atomically
from fedseal.core.tensors import check_finite, check_like
from fedseal.federation.tensor_file import read_tensors
from fedseal.priors.courses import engine_for
from fedseal.priors.plan import Plan
from fedseal.priors.prior import KINDS, Origin, Prior, Quality

_KEY = "fedseal.prior"
_FORMAT = 1
_DIGESTS = "digests"
_LARGEST = 1024


def save_prior(prior: Prior, plan: Plan, path: Path) -> str:
    """Write a prior into a file; return the file's SHA-256."""
    about = {
        "format": _FORMAT,
        "kind": prior.kind,
        "shape": list(prior.shape),
        "width": plan.width,
        "latent": plan.latent,
        "origin": prior.origin.words,
        "quality": None if prior.quality is None else asdict(prior.quality),
    }
    tensors = {f"engine.{name}": value.contiguous().clone() for name, value in prior.engine.state_dict().items()}
    content = to_safetensors({**tensors, _DIGESTS: prior.origin.digests.clone()}, {_KEY: json.dumps(about)})
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_prior(path: Path) -> Prior:
    """Read a prior, or refuse the file with what is wrong with it."""
    held = read_tensors(path, "prior")
    try:
        about: Any = json.loads(held.metadata[_KEY])
        if about["format"] != _FORMAT or about["kind"] not in KINDS:
            raise ValueError(f"format {about['format']!r}, kind {about['kind']!r}")
        channels, height, width = (int(one) for one in about["shape"])
        sizes = int(about["width"]), int(about["latent"])
        if not all(0 < one <= _LARGEST for one in (channels, height, width, sizes[0])) or not 0 <= sizes[1] <= 4096:
            raise ValueError("sizes out of range")
        quality = None if about["quality"] is None else Quality(**about["quality"])
        words = str(about["origin"])
        digests = held.tensors[_DIGESTS]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no prior: {error}.", hint="Make one with `fedseal prepare prior --data NAME --out FILE`."
        ) from error
    shape = (channels, height, width)
    with torch.random.fork_rng(devices=[]):
        engine = engine_for(about["kind"], shape, *sizes)
    tensors = {name.removeprefix("engine."): value for name, value in held.tensors.items() if name != _DIGESTS}
    try:
        check_like(tensors, engine.state_dict(), f"the prior {path}")
        check_finite({n: t for n, t in tensors.items() if t.is_floating_point()}, f"the prior {path}")
        engine.load_state_dict(tensors)
    except (FedsealError, RuntimeError) as error:
        raise InputError(f"{path} does not hold what it says: {error}", hint="Make it again.") from error
    return Prior(about["kind"], shape, engine.eval().requires_grad_(False), Origin(words, digests), quality)
