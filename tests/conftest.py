"""Shared fixtures. Real data and weights lie in the directory FEDSEAL_SHARED names (default: ../shared)."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # one core each; two threads on a busy core are far slower than one
    os.environ["OMP_NUM_THREADS"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background job; the tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fedseal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedseal")  # a busy machine is no failure

SHARED = Path(os.environ.get("FEDSEAL_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (SHARED / "data").is_dir():
        return
    skip = pytest.mark.skip(reason=f"real data is not at {SHARED}: set FEDSEAL_SHARED to run this test")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory with `data/` and `weights/`."""
    return SHARED


@pytest.fixture(scope="session")
def script() -> Callable[[Path], ModuleType]:
    """Imports a file that is part of no package."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"script_{path.parent.name}_{path.stem}".replace(".", "_"), path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module

    return load
