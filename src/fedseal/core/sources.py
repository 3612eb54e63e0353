"""The code a result ran through, by content: a module, what it imports, and what that imports in turn.

The graph is read from the sources, nothing is imported for it, and registries, which import whole packages by name,
add no edge to it: what a spec names is a root of its own. Of a module in which several entries are registered, those
count that are named. Comments, docstrings and layout count for nothing (`syntax`).

Sources are followed as long as they belong to this package, to the package of a root, or to no installed distribution
at all (a user's file beside the scenario). An installed distribution counts by name and version, and where it provides
a root also by its record of installed files, so that a plug-in installed again under the same version is another one.
A file is read once for each time its module is loaded: it describes the code that runs. What cannot be read at all is
taken for new, so that nothing is ever found in its name.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import secrets
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from fedseal._version import VERSION
from fedseal.core.syntax import Syntax, read_syntax

_OWN = "fedseal"
_UNREAD = "unread"

SILENT = (
    "fedseal",
    "fedseal._version",
    "fedseal.audit.plan",
    "fedseal.audit.scenario",
    "fedseal.core.config_file",
    "fedseal.core.errors",
    "fedseal.core.files",
    "fedseal.core.hashing",
    "fedseal.core.identity",
    "fedseal.core.plugins",
    "fedseal.core.registry",
    "fedseal.core.sources",
    "fedseal.core.specs",
    "fedseal.core.syntax",
    "fedseal.core.trainable",
    "fedseal.core.watcher",
    "fedseal.preparation",
    "fedseal.store",
)
"""Modules that name, keep, refuse and say, and change no figure: what they pass on is part of an identity by value.
Those below a package that is listed are meant too, but for the first, which is the package's front page."""


def code_digest(roots: Iterable[str], *, entry: str = "") -> str:
    """Return the digest of the code behind some modules.

    Args:
        roots: dotted names of modules.
        entry: the one registered entry that is meant; without it all that the roots register counts.
    """
    code = _Code(entry)
    for root in roots:
        code.add_root(root)
    return code.digest()


def looked_up(roots: Iterable[str], registry: str) -> frozenset[str]:
    """Return what may name entries that the code behind some modules builds from a registry: strings in their packages.

    Code that builds nothing by name has none. `REGISTRY.build(text)` with a text from elsewhere is not seen; an option
    that holds such a text is part of an identity by itself.

    Args:
        roots: dotted names of modules.
        registry: as sources call it, `ATTACKS`.
    """
    code, packages = _Code(""), set()
    for root in roots:
        code.add_root(root)
        packages.add(root.rpartition(".")[0])
    if not any(registry in syntax.looks_up for syntax in code.sources.values()):
        return frozenset()
    near = [syntax.texts for name, syntax in code.sources.items() if name.rpartition(".")[0] in packages]
    return frozenset().union(*near)


def is_here(module: str) -> bool:
    """Return whether a module can be found from here; a script, whose module has no name of its own, cannot."""
    return module != "__main__" and _find(module) is not None


@dataclass
class _Code:
    """Modules found so far, and what others import of each: names, or None for all of it."""

    entry: str
    imported: dict[str, set[str] | None] = field(default_factory=dict)
    sources: dict[str, Syntax] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    families: set[str] = field(default_factory=lambda: {_OWN})

    def add_root(self, module: str) -> None:
        top = module.partition(".")[0]
        if top != _OWN and _is_installed(top):
            self.others[top] = _distribution(top, files=True)
            return
        self.families.add(top)
        self._add(module, [] if self.entry else None)

    def digest(self) -> str:
        parts = [f"{name}={value}" for name, value in self.others.items()]
        for name, syntax in self.sources.items():
            names = self.imported[name]
            parts.append(f"{name}={syntax.digest(self.entry, None if names is None else frozenset(names))}")
        return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()

    def _add(self, module: str, names: list[str] | None) -> None:
        """Want names of a module, or all of it, and follow its imports when it is met first."""
        if _is_silent(module):
            return
        wanted = self.imported.setdefault(module, set())
        self.imported[module] = None if names is None or wanted is None else wanted | set(names)
        if module in self.sources or module in self.others:
            return
        found = _find(module)
        if isinstance(found, Syntax):
            self.sources[module] = found
            self._follow(module, found)
        elif found is not None:
            self.others[module] = found

    def _follow(self, module: str, syntax: Syntax) -> None:
        if not module.startswith(f"{_OWN}.") and "." in module:
            self._add(module.rpartition(".")[0], None)  # a parent package runs first, and may do anything
        for one in syntax.imports:
            top = one.module.partition(".")[0]
            if top in sys.stdlib_module_names:
                continue
            if top not in self.families and _is_installed(top):
                self.others[top] = _distribution(top, files=False)
            elif one.name and _find(f"{one.module}.{one.name}") is not None:
                self._add(f"{one.module}.{one.name}", None)
            else:
                self._add(one.module, [one.name] if one.name not in ("", "*") else None)


def _is_silent(module: str) -> bool:
    return module == _OWN or any(module == one or module.startswith(f"{one}.") for one in SILENT[1:])


_known: dict[str, tuple[object, ModuleSpec | None, Syntax | str | None]] = {}
"""What was read of a module: the version that was, the spec it was loaded by, kept so that its id stays its own (a
module that is reloaded has another), and what was found."""


def _find(module: str) -> Syntax | str | None:
    """Return a module's syntax; for one without source a word that names its content; None if there is no module."""
    live = getattr(sys.modules.get(module), "__spec__", None)
    spec = live or _locate(module)
    version = id(live) if live is not None else _state(spec)
    if module in _known and _known[module][0] == version:
        return _known[module][2]
    found = _read(module, spec)
    if found is None or isinstance(found, Syntax) or not found.startswith(_UNREAD):
        _known[module] = (version, live, found)
    return found


def _state(spec: ModuleSpec | None) -> object:
    """Return what changes when the file of a module that is not loaded does."""
    try:
        about = Path(spec.origin).stat() if spec is not None and spec.origin is not None else None
    except OSError:
        return None
    return None if about is None else (about.st_mtime_ns, about.st_size)


def _read(module: str, spec: ModuleSpec | None) -> Syntax | str | None:
    origin = getattr(sys.modules.get(module), "__file__", None) if spec is None else spec.origin  # of a script
    is_package = spec is not None and spec.submodule_search_locations is not None
    if origin is None or origin in {"built-in", "frozen"}:
        if module not in sys.modules and spec is None:
            return None
        return f"namespace {module}" if is_package else _never_the_same()
    try:
        content = Path(origin).read_bytes()
    except OSError:
        return f"version {VERSION}" if module.startswith(f"{_OWN}.") else _never_the_same()
    if origin.endswith((*EXTENSION_SUFFIXES, ".pyc")):
        return f"binary {hashlib.sha256(content).hexdigest()}"
    try:
        return read_syntax(content, module, is_package=is_package)
    except (SyntaxError, ValueError):
        return f"text {hashlib.sha256(content).hexdigest()}"


def _never_the_same() -> str:
    return f"{_UNREAD} {secrets.token_hex(16)}"


def _locate(module: str) -> ModuleSpec | None:
    """Find a module without importing it or its parents."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        live = getattr(sys.modules.get(name), "__spec__", None)
        spec = live or PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


@cache
def _is_installed(top: str) -> bool:
    """Return whether a top-level package was installed, and not merely linked to, as an editable one is."""
    spec = _locate(top)
    if spec is None or top not in _providers():
        return False
    place = Path(spec.origin or next(iter(spec.submodule_search_locations or []), ""))
    homes = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_homes(top)}
    return any(place.is_relative_to(home) for home in homes)


def _homes(top: str) -> Iterable[str]:
    """Yield where a package's distributions were unpacked, which an environment on top of another finds elsewhere."""
    for name in set(_providers()[top]):
        one = importlib.metadata.distribution(name)
        if one.read_text("RECORD") is not None:
            yield str(one.locate_file(""))


@cache
def _providers() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@cache
def _distribution(top: str, *, files: bool) -> str:
    """Return name and version of what provides a package, and on demand a digest of its installed code."""
    words = []
    for name in sorted(set(_providers()[top])):
        one = importlib.metadata.distribution(name)
        record = [line for line in (one.read_text("RECORD") or "").splitlines() if not _is_by_product(line)]
        installed = hashlib.sha256("\n".join(sorted(record)).encode()).hexdigest() if files else ""
        words.append(f"{name} {one.version} {installed}".strip())
    return ", ".join(words)


def _is_by_product(line: str) -> bool:
    """Return whether a line of a RECORD is about a file that differs between installations of the same code."""
    path = line.partition(",")[0]
    return path.endswith(".pyc") or (".dist-info/" in path and not path.endswith("METADATA"))
