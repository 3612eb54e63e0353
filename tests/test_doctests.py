"""The examples in docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import time
from pathlib import Path

import pytest

import fedseal

PACKAGE = Path(fedseal.__file__).parent


def modules_with_examples() -> list[str]:
    found = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(("fedseal", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in found]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # what examples leave behind goes with the test
    failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 0
    assert failed == 0


def test_the_runner_of_examples_sees_a_wrong_one():
    def wrong() -> None:
        """Be wrong.

        >>> 1 + 1
        3
        """

    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    results = [runner.run(test, out=lambda text: None) for test in finder.find(wrong, "wrong", globs={})]
    assert [result.failed for result in results] == [1]


@pytest.mark.parametrize("name", [name for name in fedseal.__all__ if name != "__version__"])
def test_every_public_name_has_an_example(name: str):
    public = getattr(fedseal, name)
    if inspect.ismodule(public):  # a package that can be called: its function carries the example
        public = getattr(importlib.import_module(f"{public.__name__}.front"), name)
    assert "Example:" in (inspect.getdoc(public) or ""), f"fedseal.{name} has no example"


def test_an_example_takes_less_than_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The slowest kind, a whole trade-off, once everything is imported."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = importlib.import_module("fedseal.tradeoff.front")
    doctest.testmod(module)
    began = time.process_time()
    doctest.testmod(module)
    assert time.process_time() - began < 1.0
