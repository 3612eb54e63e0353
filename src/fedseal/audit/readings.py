"""What uploads hold, read once per scenario, defence and target by the ideal attacker (`fedseal.information`).

Attacks have no part in it: the honest model is sent, the truth is known, and what a perfect search near it would find
is computed. Readings are planned, run and stored beside trials. An audit reads small images exactly and larger ones by
probes, in seconds; `fedseal.information` reads those exactly too where it is asked to.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from safetensors.torch import save

from fedseal.audit.cells import NEAR_PRIOR_DB
from fedseal.audit.plan import base_identity, defence_identity
from fedseal.audit.setup import Setup, Target
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.identity import identity_of
from fedseal.core.modality import IMAGE
from fedseal.core.sources import code_digest
from fedseal.defences.pipeline import build_defence
from fedseal.information.declared import disagreement
from fedseal.information.ideal import Options, can_be_formed, ideal_reading, sigma_for_levels
from fedseal.information.matrix_free import Effort
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.reading import IdealReading, decibels, squared_error, unknown
from fedseal.information.undoing import undone_error
from fedseal.information.upload import Upload, upload_behind
from fedseal.store.readings import ReadingRecord

LEVELS_DB = (20.0, 15.0, 10.0)
"""FedLeak's levels, for which the noise is computed that brings an undefended upload down to them."""

EXACT_UNKNOWNS = 1024
"""Numbers sought up to which an audit reads exactly; above, without matrices."""
_MANY_ENTRIES = 1_000_000
_DRAWS = 8
"""How often an upload that seems to hold nothing is sent again."""
_OTHERS = 32
"""Targets whose uploads are held to what the defence declares, whether they are read or not, at most."""
_PLAYED = 240
"""Public images that clients are played with, to learn what a defence makes of images."""
_UNDECLARED = (
    "the defence changes uploads and declares nothing of how: it is read as if everything passed, and nobody attacks "
    "it as one who knows it; give it an attacker_view"
)
_NOT_NEAR = (
    "the ideal reading searches near the truth for numbers, and a {0} is made of choices, which have no neighbourhood"
)
_LIGHT = Effort(probes=8, rank=32, iterations=15)


@dataclass(frozen=True)
class ReadingJob:
    """One upload to be read, and the hash of everything that determines the result."""

    defence: str
    target: int
    key: str

    @property
    def title(self) -> str:
        """The reading in words."""
        return f"ideal reading of {self.defence}"


def plan_readings(setup: Setup) -> tuple[ReadingJob, ...]:
    """Return the readings of a scenario: every defence, and of the targets as many as asked for."""
    base = identity_of(base=base_identity(setup), code=code_digest(["fedseal.audit.readings"]))
    defences = {spec: defence_identity(setup, spec) for spec in dict.fromkeys(setup.scenario.with_control)}
    return tuple(
        ReadingJob(spec, target, identity_of(reading=base, defence=part, target=target))
        for spec, part in defences.items()
        for target in range(min(setup.scenario.readings, setup.scenario.targets))
    )


class Reader:
    """Reads uploads of one set-up.

    Args:
        setup: shared by all readings.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def run(self, job: ReadingJob) -> tuple[ReadingRecord, bytes | None]:
        """Read one upload; return the record and, where there is one, the map of its pixels as a safetensors file."""
        sigma: dict[str, float | None] = {}
        cost: dict[str, Any] = {}
        try:
            played = self._play(job)
            cost = _cost(played)
            if self._setup.private.modality != IMAGE:
                raise CapabilityError(_NOT_NEAR.format(self._setup.private.modality))
            upload = _upload(played)
            reading = self._confirmed(job, upload, self._read(upload))
            if self._says_nothing(job) and disagreement(upload):
                reading = replace(reading, remarks=(*reading.remarks, _UNDECLARED))
            if job.defence == "none" and job.target == 0 and reading.psnr_db is not None:
                sigma = self._sigma(upload, reading)
        except FedsealError as error:
            reading = unknown(str(error))
        except Exception as error:  # noqa: BLE001 - a user's model may raise anything; the record says what
            reading = unknown(f"{type(error).__name__}: {error}")
        found = {name: value for name, value in asdict(reading).items() if name != "pixel_map"}
        record = ReadingRecord(
            key=job.key,
            scenario=self._setup.scenario.name,
            defence=job.defence,
            target=job.target,
            weight_seed=self._setup.scenario.weight_seed,
            sigma_for=sigma,
            cost=cost,
            **found,
        )
        return record, None if reading.pixel_map is None else save({"pixel_map": reading.pixel_map.contiguous()})

    @cached_property
    def _prior(self) -> ImagePrior:
        return fit_prior(self._setup.public.images.cpu())

    def _confirmed(self, job: ReadingJob, upload: Upload, reading: IdealReading) -> IdealReading:
        """Return a reading that finds nothing only where what the defence declares of itself is borne out.

        The reading takes a defence at its word, so a low one is checked: against what was sent, several times over,
        and, where the model was fed other images, against who learns from public ones to go back.
        """
        if reading.gain_db is None or reading.gain_db + reading.error_db > NEAR_PRIOR_DB:
            return reading
        draws = range(1, 1 + _DRAWS) if self._setup.staging is None else ()
        unread = (
            range(self._setup.scenario.readings, min(self._setup.scenario.targets, _OTHERS)) if not job.target else ()
        )
        others = (_upload(self._play(replace(job, target=target))) for target in unread)
        if wrong := disagreement(upload, [_upload(self._play(job, draw)) for draw in draws], others):
            reason = f"the defence is not what it declares to be: {wrong}."
            return replace(unknown(reason, prior_db=reading.prior_db), refuted=True)
        if not draws or upload.fed.images.shape != upload.private.images.shape:
            return reading
        if torch.equal(upload.fed.images, upload.private.images):
            return reading
        error, prior_error = self._undone(job.defence), squared_error(reading.prior_db or 0.0)
        if error is None or decibels(error) - decibels(prior_error) <= NEAR_PRIOR_DB:
            return reading
        remark = "what the model was fed is turned back into private images as learned on public ones"
        return replace(reading, psnr_db=decibels(error), remarks=(*reading.remarks, remark))

    def _says_nothing(self, job: ReadingJob) -> bool:
        """Return whether a defence declares neither a view nor a channel."""
        view = build_defence(job.defence).attacker_view()
        return job.defence != "none" and view.is_plain and view.channel is None

    @cache  # noqa: B019 - a reader lives as long as its process
    def _undone(self, spec: str) -> float | None:
        pairs = list(self._setup.fed_with_public(spec, _PLAYED))
        if not pairs:
            return None
        fed, own = (torch.cat([part.images for part in parts]).cpu() for parts in zip(*pairs, strict=True))
        return undone_error(fed, own)

    def _play(self, job: ReadingJob, draw: int = 0) -> Target:
        return self._setup.observe(build_defence(job.defence), job.target, name=job.defence, draw=draw)

    def _read(self, upload: Upload) -> IdealReading:
        return ideal_reading(upload, self._prior, self._options(upload))

    def _options(self, upload: Upload) -> Options:
        entries = sum(tensor.numel() for tensor in upload.observed.values())
        return Options(
            exact_unknowns=EXACT_UNKNOWNS,
            effort=_LIGHT if entries > _MANY_ENTRIES else Effort(),
            labels_known=self._setup.scenario.attacker.labels == "true",
        )

    def _sigma(self, upload: Upload, reading: IdealReading) -> dict[str, float | None]:
        """Return the noise each level needs, and the lowest reading of all, where one Jacobian answers for them."""
        options = self._options(upload)
        if not can_be_formed(upload, options):
            return {}
        names = {level: f"{level:g}" for level in LEVELS_DB}
        if reading.prior_db is not None:
            names[reading.prior_db + NEAR_PRIOR_DB] = "low"
        found = sigma_for_levels(upload, self._prior, list(names), options)
        return {names[level]: sigma for level, sigma in found.items()}


def _upload(played: Target) -> Upload:
    return upload_behind(
        played.observation, played.defence, played.config, played.originals, played.fed, played.clients
    )


def _cost(played: Target) -> dict[str, Any]:
    sent = played.observation.update.tensors
    dense = sum(tensor.numel() * tensor.element_size() for tensor in sent.values())
    return asdict(played.cost) | {"dense_bytes": dense, "protocol_bytes": played.defence.protocol_bytes(sent)}
