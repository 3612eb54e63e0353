"""Priors by the names attacks take them by: fitted to the attacker's public images, brought along, or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.fetched import DCGAN_FACES_FILE, fetched
from fedseal.core.identity import identity_of
from fedseal.core.watcher import Watcher
from fedseal.preparation import library, remembered
from fedseal.priors.files import load_prior
from fedseal.priors.fitting import PriorFit
from fedseal.priors.plan import plan_for
from fedseal.priors.prior import KINDS, Prior

PriorName: TypeAlias = Literal["tv", "patch", "ae", "gan", "diffusion", "embedded", "dcgan-faces"] | Path
"""`tv`: nothing but what an attack believes anyway; `embedded` came with fedseal, `dcgan-faces` by `data get`."""

EMBEDDED = Path(__file__).parent / "weights" / "faces-ae.safetensors"
_IN_MEMORY = 6


def is_brought(name: str | Path) -> bool:
    """Return whether a prior comes from outside of the audit, rather than from its public images."""
    return name not in KINDS and name != "tv"


def fit_of(name: str | Path, public: Batch | None, steps: int, wanted_by: str) -> PriorFit:
    """Return the training of a prior of one of the kinds on public images, or refuse where there are none."""
    if public is None:
        raise CapabilityError(
            f"{wanted_by} learns its {name} prior from public images (auxiliary), and the threat model grants none.",
            hint="Set `attacker.public_data: true`, or name a prior in a file: `fedseal prepare prior` makes one.",
        )
    words = f"{len(public):,} public images no client holds"
    return PriorFit(public.images.detach().cpu().float(), plan_for(str(name), steps), words)


def brought_prior(name: str | Path) -> Prior:
    """Return a prior that is there already: the embedded one, a fetched one, or that of a file."""
    if name == "embedded":
        path = EMBEDDED
    elif name == "dcgan-faces":
        path = fetched("dcgan-faces", DCGAN_FACES_FILE)
    else:
        path = Path(name)
        if not path.is_file():
            raise InputError(
                f"there is no prior called {str(name)!r}, and no such file.",
                hint=f"Name one of {', '.join(KINDS)}, embedded, dcgan-faces, or a file of `fedseal prepare prior`.",
            )
    return remembered("prior", identity_of(path=path), lambda: load_prior(path), most=_IN_MEMORY)


def find_prior(name: str | Path, public: Batch | None, steps: int, wanted_by: str) -> Prior:
    """Return a prior by its name: brought, or from memory, from the library, or fitted now."""
    if is_brought(name):
        return brought_prior(name)
    fit = fit_of(name, public, steps, wanted_by)
    return remembered("prior", fit.identity, lambda: library().get(fit, Watcher()), most=_IN_MEMORY)
