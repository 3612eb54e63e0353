"""Runs without their private images: scores and verdicts stay, and reports are written anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedseal.audit.runner import load_run
from fedseal.core.errors import InputError
from fedseal.core.files import PathText, remove_temporaries
from fedseal.report.write import write_reports
from fedseal.store.database import Store, run_directories


def purge_runs(place: PathText) -> Iterator[tuple[Path, int]]:
    """Purge the run in a directory, or every run below it; yield each directory and how many files were removed.

    Reports that lie beside a store are replaced by redacted ones: the earlier ones may show what was removed.
    """
    directories = run_directories(Path(place))
    if not directories:
        raise InputError(f"{place} holds no fedseal run.", hint="Name the directory given to `fedseal audit --out`.")
    for directory in directories:
        with Store(directory, writable=True) as store:
            removed = store.purge() + remove_temporaries(directory)
            if (directory / "report.html").exists():
                write_reports(load_run(store), directory, redact=True)
        yield directory, removed
