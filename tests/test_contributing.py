"""The guides of CONTRIBUTING.md, done word by word: their files keep the contract and are as short as promised."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedseal
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "CONTRIBUTING.md"
pytestmark = pytest.mark.skipif(not GUIDE.is_file(), reason="the guide lies in the repository only")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every file the guide tells to write."""
    directory = tmp_path_factory.mktemp("newcomer")
    (directory / "my_methods").mkdir()
    (directory / "my_methods" / "__init__.py").touch()
    found = re.findall(r"`([\w/]+\.py)`[^`]*?:\n\n```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in found] == [
        "my_methods/sign_match.py",
        "test_sign_match.py",
        "my_methods/tensor_clip.py",
        "test_tensor_clip.py",
    ]
    for name, content in found:
        (directory / name).write_text(content, encoding="utf-8")
    return directory


def run(directory: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_attack_is_under_sixty_lines(written: Path):
    assert len((written / "my_methods" / "sign_match.py").read_text().splitlines()) < 60


@pytest.mark.slow
def test_what_the_guides_write_keeps_the_contracts(written: Path):
    run(written, "pytest", "-q", "-p", "no:cacheprovider", "test_sign_match.py", "test_tensor_clip.py")


def test_what_the_guides_write_can_be_audited(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for registry in (ATTACKS, DEFENCES):  # what the guide registers goes with the test
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.syspath_prepend(written)
    run = fedseal.audit(
        data="faces:size=8",
        attacks="my_methods.sign_match:SignMatch",
        defences=["none", "my_methods.tensor_clip:TensorClip"],
        targets=1,
        iterations=20,
        out=tmp_path,
    )
    assert [(record.status, record.message) for record in run.records] == [("ok", "")] * 3


def test_what_the_guides_write_has_our_style(written: Path):
    (written / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    files = ("my_methods/sign_match.py", "my_methods/tensor_clip.py")
    run(written, "ruff", "check", "--no-cache", "--config", 'lint.isort.known-first-party=["fedseal"]', *files)
    run(written, "ruff", "format", "--no-cache", "--check", *files)
