"""The prior that comes along: an auto-encoder of the embedded faces that the default split leaves public.

    python -m fedseal.priors.embedded

trains it anew and writes it. Audits of `faces` with the default seed and public fraction may use it, as
`ig:prior=embedded`; with another split some of its images may be targets, and it is refused.
"""

from __future__ import annotations

from pathlib import Path

from fedseal.data.dataset import split_public
from fedseal.data.faces import faces
from fedseal.preparation import Library
from fedseal.priors.files import save_prior
from fedseal.priors.fitting import PriorFit
from fedseal.priors.named import EMBEDDED
from fedseal.priors.plan import Plan

PLAN = Plan("ae", 200, 16, 1e-3, 12, 16)
FRACTION, SEED = 0.3, 0
SHA256 = "1a5f6097a38a7c66dc304ced351d7a70e638172361c32f4745c3d56edb64910d"
"""Of the file."""


def embedded_fit() -> PriorFit:
    """Return the training that made it."""
    public = split_public(faces(), FRACTION, SEED)[1].batch().images
    return PriorFit(public, PLAN, f"{len(public)} images of faces that the default split leaves public")


def write(path: Path) -> str:
    """Train it and write it; return the file's SHA-256."""
    return save_prior(Library(None).get(embedded_fit()), PLAN, path)


if __name__ == "__main__":
    print(write(EMBEDDED))  # noqa: T201
