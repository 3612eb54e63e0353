"""Where readings go: JSON lines, Prometheus, TensorBoard, MLflow; the last three through their own libraries.

Prometheus is the choice of the extra `metrics`, not OpenTelemetry: its client has no dependencies (OpenTelemetry's
exporters bring their own protobuf and gRPC beside Flower's), and it can write the text file that a node's exporter
collects, which outlives a client: Flower starts a process for every message, in which nothing can be scraped.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedseal.core.errors import CapabilityError
from fedseal.core.files import PathText, storage_error

_LABELS = ("federation", "client")


class Sink(Protocol):
    """Takes the figures of a round."""

    def __call__(self, figures: Mapping[str, float], *, round_number: int, federation: str, client: str) -> None:
        """Take figures by name."""


class JsonLines:
    """Appends one line of JSON per reading to a file that only its owner can read; processes may share it.

    Args:
        path: of the file.
    """

    def __init__(self, path: PathText) -> None:
        self._path = Path(path)

    def __call__(self, figures: Mapping[str, float], *, round_number: int, federation: str, client: str) -> None:
        """Append a line."""
        values = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = {"time": round(time.time(), 3), "federation": federation, "client": client, "round": round_number}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write((json.dumps(line | values, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise storage_error(self._path, error) from error


class Prometheus:
    """Gauges for Prometheus: in a registry that is scraped, and in a text file for a node's exporter.

    Args:
        textfile: a `.prom` file in the directory that the exporter collects; None for none.
        registry: of prometheus_client; its default one if left out.
    """

    def __init__(self, textfile: PathText | None = None, registry: Any = None) -> None:
        self._library = _library("prometheus_client", "metrics")
        own = registry is None and textfile is not None
        self._registry = self._library.CollectorRegistry() if own else registry or self._library.REGISTRY
        self._textfile = textfile
        self._gauges: dict[str, Any] = {}

    def __call__(self, figures: Mapping[str, float], *, round_number: int, federation: str, client: str) -> None:
        """Set the gauges."""
        for name, value in {**figures, "fedseal-round": float(round_number)}.items():
            key = name.replace("-", "_")
            if key not in self._gauges:
                words = f"{name} of the last update that was read"
                self._gauges[key] = self._library.Gauge(key, words, _LABELS, registry=self._registry)
            self._gauges[key].labels(federation, client).set(value)
        if self._textfile is not None:
            Path(self._textfile).parent.mkdir(parents=True, exist_ok=True)
            self._library.write_to_textfile(str(self._textfile), self._registry)


class TensorBoard:
    """Scalars for TensorBoard, by the rounds.

    Args:
        directory: of the event files.
    """

    def __init__(self, directory: PathText) -> None:
        _library("tensorboard", "tensorboard")
        self._writer: Any = _library("torch.utils.tensorboard", None).SummaryWriter(str(directory))

    def __call__(self, figures: Mapping[str, float], *, round_number: int, federation: str, client: str) -> None:
        """Add a point to every curve."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{federation}/{client}/{name}", value, round_number)
        self._writer.flush()


class MLflow:
    """Metrics of MLflow's active run, by the rounds; where it is tracked is MLflow's own setting."""

    def __init__(self) -> None:
        self._library = _library("mlflow", None)

    def __call__(self, figures: Mapping[str, float], *, round_number: int, federation: str, client: str) -> None:
        """Log the figures, named by federation and client."""
        named = {f"{federation}/{client}/{name}": value for name, value in figures.items()}
        self._library.log_metrics(named, step=round_number)


def _library(name: str, extra: str | None) -> Any:
    """Import a library that fedseal does not bring along, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = f"'fedseal[{extra}]'" if extra else name.partition(".")[0]
        raise CapabilityError(f"{name} is not installed.", hint=f"Run `pip install {package}`.") from error
