"""Imports point downwards only, and what answers at once imports nothing heavy."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import fedseal

PACKAGE = Path(fedseal.__file__).parent
LEVELS = (
    {"__main__"},
    {"cli"},
    {"report"},
    {"tradeoff", "updates"},
    {"audit"},
    {"training"},
    {"store", "engines", "testing"},
    {"information"},
    {"attacks", "flower", "nvflare"},
    {"defences", "detection"},
    {"federation"},
    {"metrics"},
    {"models", "data"},
    {"core"},
    {"_version"},
)
"""From top to bottom, as in the design; parts on one level do not know each other."""
HEAVY = ("torch", "scipy", "matplotlib", "numpy", "skimage", "PIL")


def level_of(part: str) -> int:
    found = [index for index, level in enumerate(LEVELS) if part in level]
    assert found, f"{part!r} has no place in the order of packages: add it to LEVELS"
    return found[0]


def imported_parts(source: str, module: tuple[str, ...]) -> set[str]:
    """Return the parts of fedseal that a module's source imports anywhere, under TYPE_CHECKING and in functions too."""
    targets: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(("fedseal", *module)[: -node.level]) + "." if node.level else ""
            head = (base + (node.module or "")).rstrip(".")
            targets += [f"{head}.{alias.name}" for alias in node.names]
    return {target.split(".")[1] for target in targets if target.startswith("fedseal.")}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def violations(part: str, imported: set[str]) -> list[str]:
    return [
        other for other in sorted(imported & set.union(*LEVELS)) if other != part and level_of(other) <= level_of(part)
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path):
    module = path.relative_to(PACKAGE).with_suffix("").parts
    imported = imported_parts(path.read_text(encoding="utf-8"), module)
    wrong = violations(module[0], imported)
    assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}, which do not lie below it"


def test_every_part_has_its_place():
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in modules()}
    assert {part: level_of(part) for part in parts}


@pytest.mark.parametrize(
    ("part", "source", "wrong"),
    [
        ("core", "from fedseal.audit.run import Run", ["audit"]),
        ("core", "from fedseal import audit", ["audit"]),
        ("models", "import fedseal.data.faces", ["data"]),
        ("metrics", "if TYPE_CHECKING:\n    from fedseal.attacks import labels", ["attacks"]),
        ("defences", "def f():\n    import fedseal.cli", ["cli"]),
        ("defences", "from ..report import html", ["report"]),
        ("audit", "from fedseal.core import errors", []),
        ("audit", "from fedseal import __version__", []),
    ],
)
def test_the_check_sees_every_kind_of_import(part: str, source: str, wrong: list[str]):
    assert violations(part, imported_parts(source, (part, "module"))) == wrong


def best_of(times: int, *command: str) -> tuple[float, str]:
    """Return the least processor time of several runs, which is what they take on an idle machine, and the output."""
    taken, output = [], ""
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        output = done.stdout
    return min(taken), output


def imported_by(code: str) -> list[str]:
    report = f"{code}\nimport sys\nprint('\\n' + ' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    return best_of(1, "-c", report)[1].splitlines()[-1].split()


def test_the_package_imports_at_once_and_without_torch():
    bare, _ = best_of(5, "-c", "pass")
    seconds, _ = best_of(5, "-c", "import fedseal")
    assert seconds - bare < 0.2
    assert imported_by("import fedseal") == []


def test_help_answers_at_once_and_without_torch():
    seconds, output = best_of(3, "-m", "fedseal", "--help")
    assert "Exit codes" in output
    assert seconds < 0.5
    run = "import sys\nsys.argv = ['fedseal', '--help']\nfrom fedseal.cli import main\n"
    assert imported_by(run + "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code") == []


def test_the_check_for_heavy_imports_can_fail():
    assert "torch" in imported_by("import fedseal\nfedseal.run_audit")


def test_public_names_are_there_and_others_are_not():
    assert {name for name in fedseal.__all__ if getattr(fedseal, name) is not None} == set(fedseal.__all__)
    with pytest.raises(AttributeError, match="'nonsense'"):
        fedseal.nonsense  # noqa: B018
