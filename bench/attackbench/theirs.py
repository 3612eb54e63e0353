"""breaching as seen from the benchmark: a process that is asked and answers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import fedseal
from attackbench.environment import BENCH

_SOURCES = Path(fedseal.__file__).resolve().parent.parent


@dataclass(frozen=True)
class Contender:
    """A configuration of breaching.

    Attributes:
        name: for tables.
        config: name of the attack configuration that breaching ships.
        overrides: what is changed of it, by dotted key.
        labels: whether it is given the labels; otherwise it optimises them with the images.
        borderless: whether its total variation is replaced by the original one, which does not pad with zeros.
        score_every: iterations between scores where time to a quality is measured; L-BFGS has twenty steps in one.
    """

    name: str
    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    labels: bool = True
    borderless: bool = False
    score_every: int = 10

    def as_request(self) -> dict[str, Any]:
        """Return the part of a request that describes it."""
        return {
            "config": self.config,
            "overrides": dict(self.overrides),
            "labels": self.labels,
            "borderless": self.borderless,
        }


@dataclass(frozen=True)
class Timed:
    """A reconstruction and its cost.

    Attributes:
        seconds: wall time of the attack.
        iterations: taken.
        images: reconstructed, [B, C, H, W] in [0, 1].
    """

    seconds: float
    iterations: int
    images: Tensor


class Breaching:
    """The process; a context manager that ends it.

    Args:
        python: interpreter of breaching's virtualenv.
    """

    def __init__(self, python: Path) -> None:
        path = os.pathsep.join([str(_SOURCES), str(BENCH)])
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [str(python), "-m", "attackbench.breaching_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __enter__(self) -> Breaching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"breaching's process ended:\n{self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def reconstruct(self, case: Path, contender: Contender, *, iterations: int, threads: int) -> Timed:
        """Attack a saved case from its first start."""
        out = case / "reconstruction.st"
        request = {"case": str(case), "out": str(out), "iterations": iterations, "threads": threads}
        answer = self.ask(do="reconstruct", **request, **contender.as_request())
        return Timed(answer["seconds"], answer["iterations"], load_file(out)["images"])
