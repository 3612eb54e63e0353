"""Which commit figures are from: pages of results name it, and a test holds them to it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "src/fedseal"


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return what git answers in the repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def changed(paths: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return what of the package and of some files differs from the commit a page would name."""
    return git("status", "--porcelain", "--", SOURCES, *paths, root=root).splitlines()


def state() -> str:
    """Return the hash of the package's sources as the last commit holds them, marked where they were changed since."""
    return git("rev-parse", f"HEAD:{SOURCES}") + (" and changes" if changed(()) else "")


def made_from() -> str:
    """Return the line by which a page names its commit."""
    return f"Made from commit `{git('rev-parse', 'HEAD')}` (`{SOURCES}`: tree `{git('rev-parse', f'HEAD:{SOURCES}')}`)"


def of_one_state(states: Sequence[str], paths: Sequence[str]) -> None:
    """Stop where figures are not all of the commit that a page would name."""
    if found := changed(paths):
        raise SystemExit("commit first, so that the page can name a commit:\n" + "\n".join(found))
    if others := set(states) - {state()}:
        raise SystemExit(
            f"{len(others)} other states of {SOURCES} are behind some rows; remove these and run them again."
        )
