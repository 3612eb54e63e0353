"""The function that runs a task of an audit: on a set-up that is built here, or on one that was sent here.

Processes of one machine build set-ups themselves. Other machines are sent them (`engines.parcels`): data, weights and
trained stages as they are, and what lies in the cache (LPIPS weights, prepared attackers) where theirs lacks it. Before
anything is opened there, the machine compares its code; before anything runs, it names the trials by its own code,
packages and files. If it comes to other names than those that were planned, it would run something else, and is refused
with what differs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from fedseal.audit.plan import CODE, Job, code_part, identity_parts, named_files
from fedseal.audit.preparation import prepared_files
from fedseal.audit.readings import Reader, ReadingJob
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Loaded, Setup, build_setup
from fedseal.audit.trials import Outcome, TrialRunner
from fedseal.core.errors import InputError
from fedseal.core.files import write_atomically
from fedseal.core.watcher import Report
from fedseal.data.places import cache_directory
from fedseal.engines.events import MakeWork, Work
from fedseal.engines.parcels import Parcel
from fedseal.metrics.lpips import NETS
from fedseal.metrics.lpips_choice import lpips_files
from fedseal.metrics.lpips_weights import weight_files
from fedseal.metrics.registry import METRICS
from fedseal.modalities.known import measures_of
from fedseal.store.readings import ReadingRecord

Task: TypeAlias = tuple[int, Job | ReadingJob]
"""The place of a scenario, and what to run on it."""
_KEPT = 4
"""Set-ups a process of a cluster holds open; a task of another scenario opens it again."""


def work_here(
    scenarios: Sequence[Scenario], weights: Sequence[str], data_root: Path | None, device: str, stages: Path
) -> MakeWork:
    """Return what builds the work in this process, or in others of this machine."""
    return partial(_built, tuple(scenarios), tuple(weights), data_root, device, stages)


def work_anywhere(setups: Sequence[Setup]) -> MakeWork:
    """Return what builds the work on any machine."""
    files = cache(lambda path: Parcel(path.read_bytes()))  # set-ups share what lies in the cache
    return partial(_opened, tuple(Parcel(_sent(setup, files)) for setup in setups))


def _sent(setup: Setup, read: Callable[[Path], Parcel[bytes]]) -> _Sent:
    cached = {name: read(path) for name, path in _cached_files(setup)}
    return _Sent(Parcel(setup), identity_parts(setup), named_files(setup), cached)


def _built(
    scenarios: tuple[Scenario, ...], weights: tuple[str, ...], data_root: Path | None, device: str, stages: Path
) -> Work:
    loaded = Loaded(data_root)
    setups: dict[int, Setup] = {}

    def find(index: int) -> Setup:
        if index not in setups:
            setup = build_setup(scenarios[index], data_root=data_root, device=device, stages=stages, loaded=loaded)
            if setup.weights_hash != weights[index]:
                raise InputError(
                    f"model {scenarios[index].model} has other weights each time it is built.",
                    hint="Draw them from PyTorch's generator, which the seed sets, or load a checkpoint.",
                )
            setups[index] = setup
        return setups[index]

    return _runs(find)


@dataclass(frozen=True)
class _Sent:
    """A set-up on its way.

    Attributes:
        setup: opened only where the code is the sender's, which alone knows what is in it.
        parts: what determines its trials, as hashes.
        named: files its specs name, which every machine needs.
        files: of the sender's cache, by their places there.
    """

    setup: Parcel[Setup]
    parts: dict[str, str]
    named: tuple[Path, ...]
    files: dict[str, Parcel[bytes]]

    def unpacked(self) -> Setup:
        """Put the files into this machine's cache, and return the set-up if trials have the same names here."""
        if self.parts[CODE] != code_part():
            raise _differing([CODE])
        if missing := [str(path) for path in self.named if not path.expanduser().is_file()]:
            raise InputError(
                f"this machine has no file {_listed(missing)}, which the scenario names",
                hint="Data and weights are sent; files that specs name must be at the same paths on every node.",
            )
        for name, file in self.files.items():
            if not (cache_directory() / name).exists():
                write_atomically(cache_directory() / name, file.open())
        setup = self.setup.open()
        here = identity_parts(setup)
        if differing := [name for name, value in self.parts.items() if here.get(name) != value]:
            raise _differing(differing)
        return setup


def _differing(parts: Sequence[str]) -> InputError:
    return InputError(
        f"this machine would run other trials than those planned: {_listed(parts)} differ{'s' * (len(parts) == 1)}",
        hint="Install the same fedseal, PyTorch and plug-ins on every node, and have the files that the scenario names "
        "at the same paths.",
    )


def _opened(parcels: tuple[Parcel[_Sent], ...]) -> Work:
    kept: OrderedDict[int, Setup] = OrderedDict()

    def find(index: int) -> Setup:
        if index not in kept:
            kept[index] = parcels[index].open().unpacked()
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        return kept[index]

    return _runs(find)


def _runs(find: Callable[[int], Setup]) -> Work:
    measures = cache(measures_of)
    readers: dict[int, tuple[Setup, Reader]] = {}

    def work(task: Task, report: Report) -> list[Outcome] | tuple[ReadingRecord, bytes | None]:
        index, job = task
        setup = find(index)
        if isinstance(job, ReadingJob):
            if index not in readers or readers[index][0] is not setup:
                readers[index] = setup, Reader(setup)
            return readers[index][1].run(job)
        return TrialRunner(setup, measures(setup.public.modality, setup.scenario.lpips)).run(job, report)

    return work


def _cached_files(setup: Setup) -> Iterator[tuple[str, Path]]:
    """Yield what trials read from the cache, with its place there."""
    home = cache_directory()
    nets = {METRICS.resolve(spec).get("net") for spec in setup.scenario.metrics}
    further = [path for net in NETS if net in nets for path in weight_files(home, net)]
    for path in dict.fromkeys((*lpips_files(setup.scenario.lpips), *further, *prepared_files(setup))):
        if path.is_relative_to(home):
            yield str(path.relative_to(home)), path


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
