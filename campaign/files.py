"""Hostile files: sound ones of every kind fedseal reads, damaged at random, and some that were made to hurt."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

from campaign.outcomes import Tally, attempt
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.config_file import parse_config
from fedseal.core.observation import Update
from fedseal.data.folder import folder
from fedseal.data.npz import npz
from fedseal.data.numpy_pickle import read_arrays
from fedseal.data.partition.core import partition
from fedseal.data.registry import DATASETS
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, read_update, write_update
from fedseal.models.checkpoint import load_checkpoint
from fedseal.preparation.files import read as read_prepared
from fedseal.report.markdown import render_markdown
from fedseal.updates.case import build_case
from fedseal.updates.source import UpdateSource

_WORDS = [
    b"", b"-1", b"0", b"1e999", b"nan", b".inf", b"99999999999999999999", b"null", b"true", b"[]", b"{}", b"\x00",
    b"\xff",
    b"2001-02-30", b"!!int ''", b"&a [*a]", b"../../etc/passwd", b"<script>", b"'", b'"', b"|", b"\n", b"9" * 5000,
    b"[" * 2000, b"9223372036854775808", "💥".encode(), b"!!python/object/apply:os.system ['true']",
]  # fmt: skip


class _Canary:
    """Unpickled by anybody, it leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ('touch "$FEDSEAL_CANARY"',)


def mutated(content: bytes, source: random.Random) -> bytes:
    """Return content damaged in one to four ways."""
    data = bytearray(content)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(data) + 1)
        way = source.randrange(7)
        if way == 0 and data:
            data[place % len(data)] = source.randrange(256)
        elif way == 1:
            del data[place:]
        elif way == 2:
            del data[place : place + source.randint(1, 64)]
        elif way == 3:
            data[place:place] = source.choice(_WORDS)
        elif way == 4:
            data[place:place] = data[: source.randint(0, 256)]
        elif way == 5 and len(data) > 8:
            struct.pack_into("<Q", data, place % (len(data) - 7), source.choice([0, 1 << 31, 1 << 40, (1 << 64) - 1]))
        else:
            words = bytes(data).split()
            if words:
                old = source.choice(words)
                data = bytearray(bytes(data).replace(old, source.choice(_WORDS), 1))
    return bytes(data)


def hostile_files(count: int, place: Path, seed: int) -> Tally:
    """Try so many damaged files, spread over all kinds."""
    tally, source = Tally("hostile files"), random.Random(seed)
    kinds = _kinds(place)
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        sound, read = kinds[name]
        content = source.choice(_MADE_TO_HURT) if number % 23 == 0 else mutated(sound, source)
        attempt(tally, name, lambda read=read, content=content: read(content))  # type: ignore[misc]
    return tally


def _kinds(place: Path) -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    """Return for each kind of file a sound one, and the reader that is given damaged ones."""
    data = DATASETS.build("faces:size=8")

    def through(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def run(content: bytes) -> Any:
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return read(path)

        return run

    def scenario(content: bytes) -> Any:
        text = content.decode("utf-8", "replace")
        return parse_config(text, Scenario, source="hostile.yaml", command="audit")

    def checkpoint(path: Path) -> None:
        load_checkpoint(_model(), path)

    def original(path: Path) -> Any:
        return build_case(UpdateSource(update=update, model=f"{__name__}:tiny", originals=(path,)))

    update = _update_file(place / "updates")
    return {
        "scenario (YAML)": (_SCENARIO, scenario),
        "data (npz)": (_npz(), through("data.npz", npz)),
        "pictures": (_png(), through("pictures/cats/a.png", lambda path: folder(path.parent.parent))),
        "partition (JSON)": (
            json.dumps([list(range(30)), list(range(30, 60))]).encode(),
            through("parts.json", lambda path: partition(data, f"file:{path}", 2, 0)),
        ),
        "partition (npz)": (
            _arrays(a=np.arange(30), b=np.arange(30, 60)),
            through("parts.npz", lambda path: partition(data, f"file:{path}", 2, 0)),
        ),
        "tensors": (save({"a": torch.randn(3, 4)}), through("a.safetensors", lambda p: read_tensors(p, "tensors"))),
        "update": (update.read_bytes(), through("b.update.safetensors", read_update)),
        "weights": (save(dict(_model().state_dict())), through("c.safetensors", checkpoint)),
        "original": (_grey(), through("original.png", original)),
        "prepared": (_prepared(), through("d.safetensors", read_prepared)),
        "fetched pickle": (pickle.dumps({"net": {"kernel": np.ones(3, np.float32)}}), lambda c: read_arrays(c, "it")),
        "store (bytes)": _store(place / "run", whole=True),
        "store (values)": _store(place / "run2", whole=False),
    }


def _store(directory: Path, *, whole: bool) -> tuple[bytes, Callable[[bytes], Any]]:
    """Return a finished run's database, or one of its values, and how a run with a damaged one is read."""
    run_audit([Scenario(data="faces:size=8", attacks=("ig:iterations=1",), targets=1, readings=0)], directory)
    path = directory / "store.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows = database.execute("SELECT name, value FROM meta").fetchall()
        records = database.execute("SELECT key, record FROM trials").fetchall()
    database.close()
    sound = path.read_bytes()

    def read() -> Any:
        return render_markdown(open_run(directory))

    def damaged_bytes(content: bytes) -> Any:
        for leftover in directory.glob("store.sqlite-*"):
            leftover.unlink()
        path.write_bytes(content)
        return read()

    turn = iter(range(1 << 30))

    def damaged_value(content: bytes) -> Any:
        path.write_bytes(sound)
        number, text = next(turn), content.decode("utf-8", "replace")
        database = sqlite3.connect(path)
        if number % 2:
            database.execute("UPDATE trials SET record = ? WHERE key = ?", (text, records[0][0]))
        else:
            name = rows[number // 2 % len(rows)][0]
            database.execute("UPDATE meta SET value = ? WHERE name = ?", (text, name))
        database.commit()
        database.close()
        return read()

    return (sound, damaged_bytes) if whole else (records[0][1].encode(), damaged_value)


def _update_file(directory: Path) -> Path:
    model = tiny()
    zeros = {name: torch.zeros_like(p) + 0.1 for name, p in model.named_parameters()}
    facts = UpdateFacts(kind="gradient", round=1, client="a", input_shape=(1, 2, 4), num_classes=2, batch_size=1)
    return write_update(directory, RecordedUpdate(Update(zeros), dict(model.state_dict()), facts))


def tiny() -> nn.Module:
    """Return the model that the update belongs to."""
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 2))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2))


def _png(side: int = 12) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(side * side * 3, dtype=np.uint8).reshape(side, side, 3)).save(file, "PNG")
    return file.getvalue()


def _grey() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(8, dtype=np.uint8).reshape(2, 4)).save(file, "PNG")
    return file.getvalue()


def _arrays(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npz() -> bytes:
    return _arrays(images=np.zeros((6, 5, 5), np.uint8), labels=np.arange(6) % 2)


def _prepared() -> bytes:
    header = {
        "identity": "x",
        "title": "t",
        "modules": [],
        "code": "",
        "torch": "",
        "seconds": 1.0,
        "done": 1,
        "size": 1,
    }
    text = json.dumps({"format": 1, "header": header, "values": {}})
    return save({"a": torch.ones(2)}, {"fedseal.prepared": text})


def _huge_npz() -> bytes:
    """Return an archive of a few bytes whose header asks for 8 TiB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("images", "labels"):
            head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (8796093022208,), }"
            head = head.ljust(117) + b"\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    return file.getvalue()


_SCENARIO = b"""name: mine
data: faces:size=8
public_fraction: 0.3
model: {name: lenet, init: wide-uniform}
client: {batch_size: 4, learning_rate: 0.1, bn_mode: eval}
attacker: {labels: identity, aware: both}
defences: [none, "topk:ratio=0.9"]
attacks: [ig]
targets: 4
seed: 0
"""
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (new, new, b",".join([b"*%c" % old] * 9))
    for old, new in zip(b"abcdefghi", b"bcdefghij", strict=True)
)
_EMPTY = b'{"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
_MADE_TO_HURT = [
    pickle.dumps(_Canary()),
    b"\x80\x05" + pickle.dumps({"net": _Canary()})[2:],
    _arrays(images=np.array([_Canary()], dtype=object), labels=np.arange(1)),
    _huge_npz(),
    _BOMB,
    struct.pack("<Q", len(_EMPTY)) + _EMPTY,
    struct.pack("<Q", (1 << 63) - 1) + b"{",
    b"P6\n99999 99999\n255\n",
    b"[" * 100_000,
    b"{}",
    b"[[0, 99999999999999999999999]]",
    b"",
    b"\x00" * 4096,
]
