"""Write what a release installs, with the hashes of its files: `python .ci/hashes.py [--extra NAME] [--wheel FILE]`.

The closure of fedseal's requirements is taken from this environment, the versions from constraints.txt, the hashes from
the package index; `--wheel` adds a file of another origin, such as PyTorch's build for the CPU. To install from it:

    pip install --no-deps --require-hashes -r .ci/release.txt && pip install --no-deps fedseal
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import urllib.request
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
RELEASE = ROOT / ".ci" / "release.txt"
_LINK = re.compile(r'href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*<')


def pinned() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pins}


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of everything these requirements need on this machine."""
    found: set[str] = set()
    seen: set[str] = set()
    open_ = [Requirement(text) for text in requirements]
    while open_:
        one = open_.pop()
        extras = one.extras or {""}
        if str(one) in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(one))
        found.add(canonicalize_name(one.name))
        for text in distribution(one.name).requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                open_.append(inner)
    return found


def hashes_of(page: str, version: str) -> list[str]:
    """Return the hashes of a version's files that the page of an index lists."""
    return sorted({digest for digest, name in _LINK.findall(page) if _version(name) == version})


def _version(name: str) -> str:
    try:
        return str(parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1])
    except ValueError:  # an installer of old, which pip does not take either
        return ""


def main() -> None:
    """Ask the index, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--wheel", action="append", type=Path, default=[])
    options = parser.parse_args()
    pins = pinned()
    own = {parse_wheel_filename(path.name)[0]: hashlib.sha256(path.read_bytes()).hexdigest() for path in options.wheel}
    lines = [f"# Written by {' '.join(['python .ci/hashes.py', *(f'--extra {one}' for one in options.extra)])}"]
    for name in sorted(closure(required(options.extra))):
        with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
            found = hashes_of(answer.read().decode(), pins[name]) + ([own[name]] if name in own else [])
        if not found:
            sys.exit(f"error: the index has no file of {name} {pins[name]}.")
        lines.append(" \\\n    ".join([f"{name}=={pins[name]}", *(f"--hash=sha256:{digest}" for digest in found)]))
    RELEASE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def required(extras: Iterable[str] = ()) -> list[str]:
    """Return the requirements pyproject.toml states, with those of some extras."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(text for one in extras for text in project["optional-dependencies"][one])]


if __name__ == "__main__":
    main()
