"""The virtualenv breaching lives in: made on first use, apart from fedseal's own.

breaching asks for torchvision and lpips without saying which; left to itself pip would bring a torch with CUDA. So
torch comes first, pinned by the project's constraints, and breaching and torchvision follow without dependencies.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
CONSTRAINTS = BENCH.parent / "constraints.txt"
DEFAULT_ENVIRONMENT = BENCH / ".venv-breaching"

BREACHING = "breaching==0.1.2"
_WITH_DEPENDENCIES = (
    "torch==2.13.0",
    "numpy",
    "scipy",
    "pillow",
    "pyyaml",
    "safetensors",
    "pydantic",
    "hydra-core==1.3.8",
)
_ALONE = (BREACHING, "torchvision==0.28.0")


def ensure_environment(directory: Path) -> Path:
    """Return the interpreter of breaching's virtualenv, installing what it lacks."""
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    marker = directory / "installed.txt"
    wanted = "\n".join([*_WITH_DEPENDENCIES, *_ALONE])
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing breaching into {directory} (once, about a minute, 1.2 GB) ...", flush=True)
    venv.create(directory, with_pip=True)
    _pip(python, *_WITH_DEPENDENCIES)
    _pip(python, "--no-deps", *_ALONE)
    marker.write_text(wanted, encoding="utf-8")
    return python


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip could not install {' '.join(arguments)}:\n{done.stderr.strip()[-2000:]}")
