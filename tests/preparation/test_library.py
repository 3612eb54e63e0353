"""The library of prepared things: found by what determines them, whole or not at all, resumed after a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedseal.audit.preparation import prepare
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import FedsealError, InputError
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report, Tick
from fedseal.defences.pipeline import build_defence
from fedseal.preparation import Library, items, library, prune

STEPS = """
import sys, time
from pathlib import Path
import torch
from fedseal.core.trainable import Saved, Trainable
from fedseal.core.watcher import Tick
from fedseal.preparation import Library

class Walk(Trainable):
    kind = "walk"
    title = "a walk"
    size = 40
    def recipe(self): return {"seed": 3}
    def fit(self, report, unfinished):
        held = unfinished.load()
        value, step = (held.tensors["value"], held.values["step"]) if held else (torch.zeros(3), 0)
        print("from", step, flush=True)
        while step < self.size:
            value = value * 0.9 + torch.rand(3, generator=torch.Generator().manual_seed(step))
            step += 1
            report(Tick(step))
            unfinished.save(Saved({"value": value}, {"step": step}))
            print("step", step, flush=True)
            time.sleep(float(sys.argv[2]))
        return value
    def save(self, trained): return Saved({"value": trained})
    def load(self, saved): return saved.tensors["value"]

if __name__ == "__main__":
    print("result", Library(Path(sys.argv[1]), save_seconds=0).get(Walk()).tolist(), flush=True)
"""


@dataclass(frozen=True)
class Count(Trainable[Tensor]):
    """Counts to a number."""

    end: int
    kind = "count"
    title = "a count"

    @property
    def size(self) -> int:
        return self.end

    def recipe(self) -> Mapping[str, Any]:
        return {"end": self.end}

    def fit(self, report: Report, unfinished: Unfinished) -> Tensor:
        report(Tick(self.end))
        return torch.tensor(self.end)

    def save(self, trained: Tensor) -> Saved:
        return Saved({"count": trained})

    def load(self, saved: Saved) -> Tensor:
        if "count" not in saved.tensors:
            raise InputError("a count is damaged.")
        return saved.tensors["count"]


class Secret(Count):
    private = True


@pytest.mark.slow
def test_a_training_killed_at_any_moment_goes_on_and_ends_alike(tmp_path: Path) -> None:
    script = tmp_path / "walk.py"
    script.write_text(STEPS)

    def start(directory: str, pause: float) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), str(tmp_path / directory), str(pause)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    undisturbed = start("one", 0).communicate()[0].splitlines()
    killed = start("two", 0.02)
    assert killed.stdout is not None
    for line in killed.stdout:
        if line == "step 12\n":
            killed.send_signal(signal.SIGKILL)
    killed.wait()
    resumed = start("two", 0).communicate()[0].splitlines()
    assert int(resumed[0].split()[1]) >= 12
    assert resumed[-1] == undisturbed[-1]
    states = {item.state for item in items(tmp_path / "two")}
    assert states <= {"foreign", "leftover"}  # a script's code cannot be found from here
    assert "foreign" in states


def test_what_was_trained_is_found_by_its_recipe(tmp_path: Path) -> None:
    books = Library(tmp_path)
    assert books.find(Count(3)) is None
    assert int(books.get(Count(3))) == 3
    assert books.has(Count(3))
    assert not books.has(Count(4))
    found = books.find(Count(3))
    assert found is not None
    assert int(found) == 3
    assert Library(None).find(Count(3)) is None


def test_private_things_are_for_their_owner_alone(tmp_path: Path) -> None:
    books = Library(tmp_path)
    books.get(Count(3))
    books.get(Secret(3))
    modes = sorted(stat.S_IMODE(item.path.stat().st_mode) for item in items(tmp_path))
    assert modes == [0o600, 0o644]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04K\x01.", b"PK\x03\x04", "cut", "foreign"])
def test_a_damaged_file_is_refused_listed_and_pruned(tmp_path: Path, content: bytes | str) -> None:
    from safetensors.torch import save

    books = Library(tmp_path)
    books.get(Count(3))
    path = books.path(Count(3))
    assert path is not None
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif content == "foreign":
        path.write_bytes(
            save({"count": torch.ones(1)}, {"fedseal.prepared": '{"format": 1, "header": {}, "values": 3}'})
        )
    else:
        assert isinstance(content, bytes)
        path.write_bytes(content)
    with pytest.raises(FedsealError):
        books.find(Count(3))
    assert [item.state for item in items(tmp_path)] == ["damaged"]
    assert len(prune(tmp_path)) == 1
    assert int(books.get(Count(3))) == 3


@dataclass(frozen=True)
class Decoder(Count):
    """A count with weights that may be no numbers."""

    weights: tuple[float, ...] = ()

    def save(self, trained: Tensor) -> Saved:
        return Saved({"count": trained, "weights": torch.tensor(self.weights)})


@pytest.mark.parametrize("weight", [0.5, float("nan"), float("inf"), float("-inf")])
def test_a_decoder_whose_weights_are_no_numbers_is_refused(tmp_path: Path, weight: float) -> None:
    books, decoder = Library(tmp_path), Decoder(3, (1.0, weight))
    books.get(decoder)
    if weight == 0.5:
        assert books.find(decoder) is not None
        return
    with pytest.raises(InputError, match=r"tensor 'weights' holds 1 value.*NaN or infinite") as caught:
        books.find(decoder)
    assert str(books.path(decoder)) in str(caught.value)
    assert "--prune" in str(caught.value)
    assert [item.state for item in items(tmp_path)] == ["damaged"]


def test_a_file_under_anothers_name_is_not_taken_for_it(tmp_path: Path) -> None:
    books = Library(tmp_path)
    books.get(Count(3))
    one, other = books.path(Count(3)), books.path(Count(4))
    assert one is not None
    assert other is not None
    one.rename(other)
    with pytest.raises(InputError, match="holds something else: a count"):
        books.find(Count(4))


def test_what_other_code_made_is_outdated_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = Library(tmp_path)
    books.get(Count(3))
    assert [item.state for item in items(tmp_path)] == ["ready"]
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert books.find(Count(3)) is None
    assert [item.state for item in items(tmp_path)] == ["outdated"]
    assert [item.title for item in prune(tmp_path)] == ["a count"]
    assert items(tmp_path) == []


def test_leftovers_are_pruned_once_nobody_can_be_writing_them(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    leftover = tmp_path / "count" / ".abc.safetensors.x1"
    leftover.write_bytes(b"half")
    assert prune(tmp_path) == []
    os.utime(leftover, (time.time() - 7200,) * 2)
    assert [item.state for item in prune(tmp_path)] == ["leftover"]
    assert not leftover.exists()


def test_what_a_defence_prepares_is_found_by_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    spec = "lids:samples=2,epochs=2+topk"
    scenario = Scenario(
        data="digits:size=8", model="mlp:width=4", attacks=("ig",), defences=(spec,), targets=2
    ).model_copy(update={"client": Scenario().client.model_copy(update={"batch_size": 4})})
    done = prepare(scenario)
    assert [one.found for one in done] == [False, False]  # one client in each target
    before = {item.path for item in items(tmp_path / "prepared")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in before} == {0o600}  # made of private images
    setup = build_setup(scenario)
    for target in range(2):
        setup.observe(build_defence(spec), target, name=spec)
    assert {item.path for item in items(tmp_path / "prepared")} == before
    assert library().directory == tmp_path / "prepared"
