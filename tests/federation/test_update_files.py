"""Update files: a round trip, and a clear refusal of everything that is not one client's honest update."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from fedseal.core.errors import InputError, StorageError
from fedseal.core.observation import Update
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import (
    RecordedUpdate,
    UpdateFacts,
    read_update,
    read_updates,
    weight_change,
    write_update,
)

NAME = "round-0001-client-7.update.safetensors"


def recorded(round_number: int = 1, client: str = "7", seed: int = 0) -> RecordedUpdate:
    source = torch.Generator().manual_seed(seed)
    before = {"w": torch.randn(3, 2, generator=source), "b": torch.randn(3, generator=source), "n": torch.tensor(4)}
    update = Update({name: torch.randn(before[name].shape, generator=source) for name in ("w", "b")}, "delta")
    facts = UpdateFacts(kind="delta", round=round_number, client=client, learning_rate=0.1, input_shape=(1, 2, 3))
    return RecordedUpdate(update, before, facts)


def written(directory: Path, tensors: dict[str, torch.Tensor] | None = None, **facts: Any) -> Path:
    """Write a file past `write_update`'s own checks."""
    whole = recorded()
    content = {f"update/{n}": t for n, t in whole.update.tensors.items()}
    content |= {f"before/{n}": t for n, t in whole.before.items()} | (tensors or {})
    path = directory / NAME
    save_file(content, path, metadata={"fedseal": json.dumps(whole.facts.model_dump() | facts)})
    return path


def test_a_round_trip_keeps_every_bit_and_every_fact(tmp_path: Path):
    path = write_update(tmp_path, recorded())
    assert path == tmp_path / NAME
    loaded = read_update(path, within=tmp_path)
    assert loaded.facts == recorded().facts
    assert loaded.update.kind == "delta"
    for kept, original in ((loaded.update.tensors, recorded().update.tensors), (loaded.before, recorded().before)):
        assert kept.keys() == original.keys()
        assert all(torch.equal(kept[name], original[name]) for name in original)
    assert [file.name for file in tmp_path.iterdir()] == [NAME]  # nothing temporary is left


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float):
    bad = torch.zeros(3, 2)
    bad[1, 1] = value
    with pytest.raises(InputError, match=r"'w' holds 1 value\(s\) that are NaN or infinite"):
        read_update(written(tmp_path, {"update/w": bad}))
    with pytest.raises(InputError, match="NaN or infinite"):
        write_update(tmp_path, replace(recorded(), update=Update({"w": bad, "b": torch.zeros(3)}, "delta")))
    with pytest.raises(InputError, match="model: tensor 'w' holds"):
        read_update(written(tmp_path, {"before/w": bad}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"update/v": torch.zeros(3)}, "'v' is not a parameter"),
        ({"update/w": torch.zeros(2, 3)}, r"'w' has shape \[2, 3\], the model's is \[3, 2\]"),
        ({"update/w": torch.zeros(3, 2, dtype=torch.float64)}, "'w' is torch.float64, the model's is torch.float32"),
        ({"update/n": torch.tensor(1)}, "'n' is torch.int64, not a float"),
        ({"w": torch.zeros(1)}, "'w' is neither part of the update nor of the model"),
    ],
)
def test_wrong_names_shapes_and_dtypes_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], message: str):
    with pytest.raises(InputError, match=message):
        read_update(written(tmp_path, tensors))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "weights"}, "wrong at kind"),
        ({"round": -1}, "wrong at round"),
        ({"learning_rate": 0.0}, "wrong at learning_rate"),
        ({"surprise": 1}, "wrong at surprise"),
        ({"client": "../../etc/passwd"}, "cannot be part of a file's name"),
    ],
)
def test_wrong_facts_are_refused(tmp_path: Path, facts: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        read_update(written(tmp_path, **facts))


@pytest.mark.parametrize("client", ["../7", "/tmp/x", "a/b", "a\\b", "", ".hidden", "a..b", "x" * 65, "a\n", "a\0"])
def test_a_client_cannot_choose_where_it_is_written(tmp_path: Path, client: str):
    whole = recorded()
    with pytest.raises(InputError, match="cannot be part of a file's name"):
        write_update(tmp_path / "in", replace(whole, facts=whole.facts.model_copy(update={"client": client})))
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_the_directory_is_refused(tmp_path: Path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    os.symlink(write_update(outside, recorded()), inside / NAME)
    with pytest.raises(InputError, match="leads out of"):
        read_updates(inside)
    with pytest.raises(InputError, match="leads out of"):
        read_update(inside / ".." / "outside" / NAME, within=inside)


def test_duplicated_and_replayed_rounds_are_refused(tmp_path: Path):
    for number in (1, 2):
        write_update(tmp_path, recorded(number, seed=number))
    assert [update.facts.round for update in read_updates(tmp_path)] == [1, 2]
    again = tmp_path / "copy.update.safetensors"
    again.write_bytes((tmp_path / NAME).read_bytes())
    with pytest.raises(InputError, match="client 7 sent round 1 twice"):
        read_updates(tmp_path)
    again.unlink()
    write_update(tmp_path, recorded(3, seed=1))
    with pytest.raises(InputError, match="client 7 replayed the update of round 1 in round 3"):
        read_updates(tmp_path)


def test_clients_may_be_alike_and_idle(tmp_path: Path):
    idle = Update({"w": torch.zeros(3, 2), "b": torch.zeros(3)}, "delta")
    for number in (1, 2):
        for client in ("7", "8"):
            write_update(tmp_path, replace(recorded(number, client), update=idle))
    assert len(read_updates(tmp_path)) == 4


@pytest.mark.parametrize("kept", [0, 4, 8, 60, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int):
    path = write_update(tmp_path, recorded())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"truncated|lies about sizes"):
        read_update(path)


class Bomb:
    """A pickle that would tell that it was loaded."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.evidence,)


def test_pickles_and_archives_under_a_false_name_are_never_opened(tmp_path: Path):
    path, evidence = tmp_path / NAME, tmp_path / "loaded"
    path.write_bytes(pickle.dumps(Bomb(evidence)))
    with pytest.raises(InputError, match="is a Python pickle"):
        read_update(path)
    torch.save(Bomb(evidence), path)
    with pytest.raises(InputError, match="is a zip archive, as torch"):
        read_update(path)
    path.write_bytes(pickle.dumps(Bomb(evidence), protocol=0))
    with pytest.raises(InputError, match="truncated or no safetensors"):
        read_update(path)
    assert not evidence.exists()


def test_a_zip_bomb_is_refused_unopened(tmp_path: Path):
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(50_000_000))
    with pytest.raises(InputError, match="is a zip archive"):
        read_update(path)
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(InputError, match="is a gzip archive"):
        read_update(path)


def with_header(path: Path, header: Any, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def row(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        ({"a": row([1 << 40], 0, 4)}, 4, "lies about sizes"),
        ({"a": row([1 << 62, 1 << 62, 16], 0, 0)}, 0, "impossible shape"),
        ({"a": row([1], 0, 4)}, 8, "tensors take 4 bytes, the file holds 8"),
        ({"a": row([1], 0, 4), "b": row([1], 0, 4)}, 4, "overlap or leave a gap"),
        ({"a": row([1], 4, 8)}, 8, "overlap or leave a gap"),
        ({"a": row([-1], 0, 4)}, 4, "impossible shape"),
        ({"a": row([1.0], 0, 4)}, 4, "impossible shape"),
        ({"a": row([True], 0, 4)}, 4, "impossible shape"),
        ({"a": row([1], 8, 4)}, 4, "lies about sizes"),
        ({"a": row([1], 0, 4, "F99")}, 4, "unknown dtype 'F99'"),
        ({"a": row([1], 0, 4, [])}, 4, "unknown dtype"),
        ({"a": {"dtype": "F32"}}, 4, "not described by"),
        ({"a": []}, 4, "not described by"),
        ([1, 2], 0, "not a table"),
        ({"__metadata__": {"a": 1}}, 0, "metadata are not strings"),
        (b'{"a":1,"a":2}', 0, "a name occurs twice"),
        (b"{", 0, "not valid JSON"),
        (b"\xff\xfe", 0, "not valid JSON"),
        (b"[" * 100_000, 0, "not valid JSON"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, body: int, message: str):
    path = with_header(tmp_path / NAME, header, bytes(body))
    with pytest.raises(InputError, match=message):
        read_tensors(path, "file")


def test_a_header_longer_than_the_file_is_refused_without_reading_it(tmp_path: Path):
    path = tmp_path / NAME
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(InputError, match="its header is said to take 1152921504606846976 of the 2 bytes"):
        read_tensors(path, "file")


def test_files_that_are_not_there_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="there is no update"):
        read_update(tmp_path / NAME)
    with pytest.raises(InputError, match="regular file"):
        read_update(tmp_path)
    with pytest.raises(InputError, match="holds no"):
        read_updates(tmp_path)
    with pytest.raises(StorageError, match="cannot list"):
        read_updates(tmp_path / "nowhere")


def test_a_plain_safetensors_file_is_told_from_a_recorded_update(tmp_path: Path):
    save_file({"w": torch.zeros(2)}, tmp_path / NAME)
    with pytest.raises(InputError, match="was not written by fedseal"):
        read_update(tmp_path / NAME)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(tmp_path: Path, place: int, value: int):
    """Whatever one byte becomes: a refusal in words, or tensors of the model's shapes and finite values."""
    whole = recorded()
    content = bytearray(
        save(
            {f"update/{n}": t for n, t in whole.update.tensors.items()}
            | {f"before/{n}": t for n, t in whole.before.items()},
            metadata={"fedseal": whole.facts.model_dump_json()},
        )
    )
    content[place % len(content)] = value
    path = tmp_path / NAME
    path.write_bytes(content)
    try:
        loaded = read_update(path)
    except InputError:
        return
    assert all(torch.isfinite(tensor).all() for tensor in loaded.update.tensors.values())
    assert all(tensor.shape == loaded.before[name].shape for name, tensor in loaded.update.tensors.items())


def test_a_weight_change_is_new_minus_old_of_trainable_parameters():
    before = {"w": torch.tensor([1.0, 2.0]), "running_mean": torch.zeros(1)}
    after = {"w": torch.tensor([1.5, 1.0]), "running_mean": torch.ones(1)}
    change = weight_change(before, after, {"w": before["w"]}, "files")
    assert change.kind == "delta"
    assert change.tensors.keys() == {"w"}
    assert torch.equal(change.tensors["w"], torch.tensor([0.5, -1.0]))
    with pytest.raises(InputError, match="files, after: tensor 'w' is missing"):
        weight_change(before, {}, {"w": before["w"]}, "files")
