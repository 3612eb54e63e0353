"""Imports point downwards only, and what answers at once imports nothing heavy."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedseal

PACKAGE = Path(fedseal.__file__).parent
LEVELS = (
    {"__main__"},
    {"cli"},
    {"viewer"},
    {"report"},
    {"flower", "nvflare"},
    {"site"},
    {"watch"},
    {"claims", "advice"},
    {"tradeoff", "updates", "inference"},
    {"audit"},
    {"training"},
    {"store", "engines", "testing"},
    {"information"},
    {"attacks"},
    {"hooks", "ledger"},
    {"defences", "detection"},
    {"priors"},
    {"preparation"},
    {"federation"},
    {"modalities"},
    {"metrics"},
    {"models", "data"},
    {"core"},
    {"_version"},
)
"""From top to bottom, as in the design; parts on one level do not know each other."""
GENERIC = {
    "defences.pipeline": "builds any defence from its spec",
    "defences.accounting": "privacy accounting, which defences and proofs share",
    "attacks.labels": "the registry of label rules",
    "attacks.shadow": "tunes any attack by its spec",
    "attacks.spectrum": "the rank of a gradient, which exact attacks and the doctor read",
}
"""What other packages may import of attacks and defences; everything else there is somebody's method."""
ALLOWED = {
    (
        "attacks.active.seer",
        "defences.lids",
    ): "SEER adapted to LIDS rebuilds its mini-groups, as that paper evaluates it",
    ("claims.measures", "defences.refiner"): "claims of that paper are about its evaluation network",
    ("claims.variants", "defences.pruning"): "the defences that only claims ask about prune as ours do",
    ("cli.prepare", "defences.refiner"): "writes Refiner's evaluation network into a file",
}
"""Concrete methods that are imported from outside, and why."""
HEAVY = ("torch", "scipy", "matplotlib", "numpy", "skimage", "PIL")


def level_of(part: str) -> int:
    found = [index for index, level in enumerate(LEVELS) if part in level]
    assert found, f"{part!r} has no place in the order of packages: add it to LEVELS"
    return found[0]


def imported_names(source: str, module: tuple[str, ...]) -> set[str]:
    """Return what a module's source imports of fedseal anywhere, under TYPE_CHECKING and in functions too."""
    targets: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(("fedseal", *module)[: -node.level]) + "." if node.level else ""
            head = (base + (node.module or "")).rstrip(".")
            targets += [f"{head}.{alias.name}" for alias in node.names]
    return {target.removeprefix("fedseal.") for target in targets if target.startswith("fedseal.")}


def parts_of(names: set[str]) -> set[str]:
    """Return the parts of fedseal that names lie in."""
    return {name.split(".")[0] for name in names}


def lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def foreign_methods(module: str, imported: set[str]) -> list[str]:
    """Return the concrete attacks and defences that a module outside their package imports."""
    return sorted(
        name
        for name in imported
        for family in ("attacks", "defences")
        if lies_in(name, family) and not lies_in(module, family) and not any(lies_in(name, part) for part in GENERIC)
    )


@cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports of fedseal, by dotted names; every file is read once."""
    found = {}
    for path in modules():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = imported_names(path.read_text(encoding="utf-8"), parts)
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Return which module imports which; a name inside a module stands for the module."""
    known = set(imports())
    return {
        module: ({name if name in known else name.rpartition(".")[0] for name in found} & known) - {module}
        for module, found in imports().items()
    }


def cycle_in(edges: dict[str, set[str]]) -> list[str]:
    """Return a cycle, its first module again at the end, or nothing."""
    finished: set[str] = set()

    def follow(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module not in finished:
            for other in sorted(edges.get(module, ())):
                if found := follow(other, [*trail, module]):
                    return found
            finished.add(module)
        return []

    return next((found for module in sorted(edges) if (found := follow(module, []))), [])


@cache
def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def violations(part: str, imported: set[str]) -> list[str]:
    return [
        other for other in sorted(imported & set.union(*LEVELS)) if other != part and level_of(other) <= level_of(part)
    ]


def test_imports_point_downwards():
    upwards = {module: violations(module.split(".")[0], parts_of(names)) for module, names in imports().items()}
    wrong = {module: parts for module, parts in upwards.items() if parts}
    assert not wrong, "these modules import parts that do not lie below them"


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
    assert violations(part, parts_of(imported_names(source, (part, "module")))) == wrong


def test_no_attack_or_defence_is_imported_outside_its_package_and_the_registry():
    wrong = [
        (module, name)
        for module, names in imports().items()
        for name in foreign_methods(module, names)
        if not any(lies_in(module, importer) and lies_in(name, method) for importer, method in ALLOWED)
    ]
    assert not wrong, "build these by their names from the registry"


@pytest.mark.parametrize(("importer", "method"), list(ALLOWED))
def test_no_allowance_outlives_its_use(importer: str, method: str):
    uses = [name for module, names in graph().items() if lies_in(module, importer) for name in names]
    assert any(lies_in(name, method) for name in uses), f"remove ({importer!r}, {method!r}) from ALLOWED: it is unused"


@pytest.mark.parametrize(
    ("module", "imported", "wrong"),
    [
        ("audit.doctor", {"attacks.matching.lbfgs.LBFGS"}, ["attacks.matching.lbfgs.LBFGS"]),
        ("tradeoff.sweeps", {"defences.noise"}, ["defences.noise"]),
        ("attacks.dlg", {"attacks.matching.adam.Adam", "defences.pipeline.build_defence"}, []),
        ("attacks.dlg", {"defences.noise.GaussianNoise"}, ["defences.noise.GaussianNoise"]),
        ("audit.plan", {"attacks.labels.label_rule", "core.attack.ATTACKS", "attacks_of_mine"}, []),
    ],
)
def test_the_check_tells_methods_from_what_is_generic(module: str, imported: set[str], wrong: list[str]):
    assert foreign_methods(module, imported) == wrong


def test_no_module_imports_itself_by_a_detour():
    assert cycle_in(graph()) == []


def test_the_check_for_cycles_can_fail():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle_in({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


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
    bare, _ = best_of(3, "-c", "import typer.main, typer.rich_utils, rich.markdown, rich.traceback")
    seconds, output = best_of(3, "-m", "fedseal", "--help")
    assert "Exit codes" in output
    assert seconds < 2.5 * bare
    run = "import sys\nsys.argv = ['fedseal', '--help']\nfrom fedseal.cli import main\n"
    assert imported_by(run + "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code") == []


def test_the_check_for_heavy_imports_can_fail():
    assert "numpy" in imported_by("import fedseal, numpy")


def test_public_names_are_there_and_others_are_not():
    assert {name for name in fedseal.__all__ if getattr(fedseal, name) is not None} == set(fedseal.__all__)
    with pytest.raises(AttributeError, match="'nonsense'"):
        fedseal.nonsense  # noqa: B018
