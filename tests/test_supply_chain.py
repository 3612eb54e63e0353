"""What a release installs: floors without known holes, and a hash for every file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hashes(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(ROOT / ".ci" / "hashes.py")


def test_versions_with_known_holes_are_not_admitted(hashes: ModuleType) -> None:
    """Pillow's and Jinja's of 2024 and early 2025 have CVEs for what we do with them: read pictures, render pages."""
    floors = {Requirement(text).name: Requirement(text).specifier for text in hashes.required()}
    for name, bad in {"pillow": "11.2.1", "jinja2": "3.1.5", "pyyaml": "5.3", "torch": "2.5.1"}.items():
        assert not floors[name].contains(Version(bad)), name


def test_every_package_of_a_release_has_its_version_and_hashes(hashes: ModuleType) -> None:
    text = (ROOT / ".ci" / "release.txt").read_text(encoding="utf-8")
    rows = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    pins = hashes.pinned()
    assert {name: version for name, version, _ in rows} == {
        name: pins[name] for name in hashes.closure(hashes.required(["data"]))
    }


def test_hashes_are_those_of_the_version_alone(hashes: ModuleType) -> None:
    rows = (("a", "x-1.0-py3-none-any.whl"), ("b", "x-1.0.tar.gz"), ("c", "x-1.1.tar.gz"), ("d", "x-1.0.exe"))
    page = "".join(f'<a href="https://f/{name}#sha256={64 * digit}">{name}</a>' for digit, name in rows)
    assert hashes.hashes_of(page, "1.0") == [64 * "a", 64 * "b"]
