"""Archives are read in memory; whatever tries to leave them, or to be huge, is refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedseal.core.errors import InputError
from fedseal.data import archives
from fedseal.data.archives import read_members


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


KINDS = [(tar, "x.tgz"), (tar, "x.tar.gz"), (wheel, "x.whl")]


@pytest.mark.parametrize(("pack", "name"), KINDS)
def test_wanted_members_are_read_in_order(tmp_path: Path, pack: object, name: str) -> None:
    path = pack(tmp_path / name, {"p/a": b"one", "p/b": b"two", "p/c": b"three"})  # type: ignore[operator]
    assert list(read_members(path, {"p/c": 10, "p/a": 10})) == [("p/a", b"one"), ("p/c", b"three")]
    assert list(tmp_path.iterdir()) == [path], "something was unpacked"


@pytest.mark.parametrize(("pack", "name"), KINDS)
@pytest.mark.parametrize("member", ["../evil", "p/../../evil", "/etc/evil", "p\\..\\evil", "C:/evil"])
def test_members_that_leave_are_refused(tmp_path: Path, pack: object, name: str, member: str) -> None:
    path = pack(tmp_path / name, {"p/a": b"one", member: b"evil"})  # type: ignore[operator]
    with pytest.raises(InputError, match="points outside the archive"):
        list(read_members(path, {"p/a": 10}))


@pytest.mark.parametrize(("pack", "name"), KINDS)
def test_large_members_and_totals_are_refused(
    tmp_path: Path, pack: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(tmp_path / name, {"p/a": bytes(1000), "p/b": bytes(1000)})  # type: ignore[operator]
    with pytest.raises(InputError, match=r"'p/a' is too large \(1,000 bytes\)"):
        list(read_members(path, {"p/a": 999}))
    monkeypatch.setattr(archives, "LARGEST_TOTAL", 1999)
    with pytest.raises(InputError, match="'p/b' is too large"):
        list(read_members(path, {"p/a": 1000}))


@pytest.mark.parametrize(("pack", "name"), KINDS)
def test_a_missing_member_is_named(tmp_path: Path, pack: object, name: str) -> None:
    path = pack(tmp_path / name, {"p/a": b""})  # type: ignore[operator]
    with pytest.raises(InputError, match=f"{name} lacks p/b, p/c"):
        list(read_members(path, {"p/a": 1, "p/c": 1, "p/b": 1}))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_text("private")
    path = tmp_path / "x.tgz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("p/a")
        info.type, info.linkname = kind, str(secret)
        archive.addfile(info)
    with pytest.raises(InputError, match="'p/a' is not a plain file"):
        list(read_members(path, {"p/a": 100}))


@pytest.mark.parametrize("name", ["x.tgz", "x.whl"])
@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00torn"])
def test_damage_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name} is not a readable archive"):
        list(read_members(tmp_path / name, {"p/a": 1}))


def test_a_torn_download_is_named(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tgz", {"p/a": bytes(range(256)) * 400})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="not a readable archive"):
        list(read_members(path, {"p/a": 1 << 20}))
