"""Code counts by what it means and for those who run through it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedseal.core.sources import code_digest, looked_up
from fedseal.core.syntax import read_syntax

Tree = Callable[[dict[str, str]], Path]

ATTACKS = {
    "plain/__init__.py": "",
    "plain/engine.py": "SPEED = 3\ndef drive(x):\n    return x * SPEED\n",
    "plain/two.py": (
        "from fedseal.core.attack import ATTACKS\nfrom plain.engine import drive\n"
        "def shared(x):\n    return drive(x)\n"
        "@ATTACKS.register('first', None)\ndef first(lr=0.1):\n    return shared(lr)\n"
        "second = ATTACKS.register('second', None)(lambda lr=0.2: shared(lr))\n"
    ),
    "plain/three.py": "from plain.two import shared\ndef third():\n    return shared(1)\n",
    "plain/unrelated.py": "X = 1\n",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Write modules into a directory that is searched for imports; they are never imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        importlib.invalidate_caches()
        return tmp_path

    return write


def digests() -> dict[str, str]:
    return {
        "first": code_digest(["plain.two"], entry="first"),
        "second": code_digest(["plain.two"], entry="second"),
        "third": code_digest(["plain.three"]),
    }


def changed(tree: Tree, file: str, old: str, new: str) -> set[str]:
    tree(ATTACKS)
    before = digests()
    assert old in ATTACKS[file]
    tree({file: ATTACKS[file].replace(old, new)})
    after = digests()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("file", "old", "new", "affected"),
    [
        ("plain/two.py", "lr=0.1", "lr=0.15", {"first"}),
        ("plain/two.py", "lr=0.2", "lr=0.25", {"second"}),
        ("plain/two.py", "return drive(x)", "return -drive(x)", {"first", "second", "third"}),
        ("plain/engine.py", "SPEED = 3", "SPEED = 44", {"first", "second", "third"}),
        ("plain/three.py", "shared(1)", "shared(22)", {"third"}),
        ("plain/unrelated.py", "X = 1", "X = 22", set()),
        ("plain/engine.py", "SPEED = 3", 'SPEED  =  (3)  # fast\n"""How fast."""', set()),
        ("plain/engine.py", "    return x", '    """Drive."""\n    return x', set()),
        ("plain/__init__.py", "", "import random\nrandom.seed(0)\n", {"first", "second", "third"}),
    ],
)
def test_a_change_reaches_those_who_run_through_it_and_nobody_else(
    tree: Tree, file: str, old: str, new: str, affected: set[str]
) -> None:
    assert changed(tree, file, old, new) == affected


def test_an_entry_that_another_module_imports_counts_there(tree: Tree) -> None:
    tree({**ATTACKS, "plain/three.py": "from plain.two import first\n"})
    before = digests()["third"]
    tree({"plain/two.py": ATTACKS["plain/two.py"].replace("lr=0.2", "lr=0.25")})
    assert digests()["third"] == before
    tree({"plain/two.py": ATTACKS["plain/two.py"].replace("lr=0.1", "lr=0.15")})
    assert digests()["third"] != before


def test_imports_are_seen_wherever_they_stand_and_relative_ones_too(tree: Tree) -> None:
    for text in (
        "def f():\n    from . import engine",
        "from .engine import drive",
        "import plain.engine",
        "try:\n    from plain.engine import *\nexcept ImportError:\n    pass",
    ):
        tree({**ATTACKS, "plain/three.py": text})
        before = code_digest(["plain.three"])
        tree({"plain/engine.py": "SPEED = 12345\n"})
        assert code_digest(["plain.three"]) != before, text
    tree({**ATTACKS, "plain/three.py": "if TYPE_CHECKING:\n    from plain import engine"})
    before = code_digest(["plain.three"])
    tree({"plain/engine.py": "SPEED = 12345\n"})
    assert code_digest(["plain.three"]) == before


def test_names_that_code_looks_up_are_seen_in_its_own_package(tree: Tree) -> None:
    tree(
        {
            **ATTACKS,
            "plain/members.py": '"""Not `dlg`."""\nMEMBERS = ("ig:lr=0.5", "first-layer")\n',
            "plain/race.py": "from fedseal.core.attack import ATTACKS\ndef run(x):\n    return ATTACKS.build(x)\n",
            "plain/both.py": "from plain.members import MEMBERS\nfrom plain.race import run\n",
        }
    )
    assert looked_up(["plain.both"], "ATTACKS") >= {"ig:lr=0.5", "first-layer"}
    assert "Not `dlg`." not in looked_up(["plain.both"], "ATTACKS")
    assert looked_up(["plain.both"], "DEFENCES") == looked_up(["plain.members"], "ATTACKS") == frozenset()


def test_a_loaded_module_is_what_was_loaded_until_it_is_reloaded(tree: Tree) -> None:
    tree({"loaded_net.py": "DEPTH = 1\n"})
    module = importlib.import_module("loaded_net")
    before = code_digest(["loaded_net"])
    tree({"loaded_net.py": "DEPTH = 22\n"})
    assert code_digest(["loaded_net"]) == before
    importlib.reload(module)
    assert code_digest(["loaded_net"]) != before
    del sys.modules["loaded_net"]


def test_code_that_cannot_be_read_is_always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    monkeypatch.setitem(sys.modules, "typed_in", types.ModuleType("typed_in"))
    assert code_digest(["typed_in"]) != code_digest(["typed_in"])


def test_what_is_no_python_counts_by_its_bytes(tree: Tree) -> None:
    tree({"broken_net.py": "def (:\n"})
    before = code_digest(["broken_net"])
    assert code_digest(["broken_net"]) == before
    tree({"broken_net.py": "def ((:\n"})
    assert code_digest(["broken_net"]) != before


def test_an_installed_package_counts_by_its_version_and_reads_no_source() -> None:
    look = "from fedseal.core.sources import code_digest\nprint(code_digest(['scipy.stats']))"
    code = f"import sys\n{look}\nprint('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"
    assert done.stdout.split()[0] == code_digest(["scipy.optimize"])  # one distribution, one version
    assert done.stdout.split()[0] != code_digest(["numpy"])


def test_reports_and_commands_are_behind_no_result() -> None:
    from fedseal.core import sources

    for root in ("fedseal.audit.trials", "fedseal.federation.simulation.loop", "fedseal.attacks.inverting"):
        code = sources._Code("")
        code.add_root(root)
        assert code.sources
        assert not [name for name in code.sources if name.split(".")[1] in {"report", "cli", "store"}]


def test_the_meaning_of_a_text_is_the_same_however_it_is_written() -> None:
    one = read_syntax("def f(a, b=1):\n    '''Doc.'''\n    return a + b\n", "m", is_package=False)
    two = read_syntax(b"# -*- coding: utf-8 -*-\ndef f(a,b = 1): return (a +\n  b)\n", "m", is_package=False)
    other = read_syntax("def f(a, b=1):\n    return b + a\n", "m", is_package=False)
    assert one.digest("", None) == two.digest("", None) != other.digest("", None)
