"""A source file as its meaning: statements without comments, layout and docstrings, and what they import and name.

Two texts with the same meaning have the same digest, on every Python this package runs on: the digest is taken over the
syntax tree's own fields, of which empty ones are left out, as those differ between versions.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

REGISTRIES = frozenset({"ATTACKS", "DEFENCES", "MODELS", "DATASETS"})
"""Registries whose entries are named in specs, so that an entry counts where a spec, or other code, names it."""

_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True)
class Statement:
    """One statement of a module.

    Attributes:
        digest: of its meaning.
        entry: the name under which it registers something with one of `REGISTRIES`; "" if it does not.
        binds: what it calls that.
        uses: every name in it.
    """

    digest: str
    entry: str
    binds: frozenset[str]
    uses: frozenset[str]


@dataclass(frozen=True)
class Import:
    """`from module import name`, or `import module` with no name; both are absolute."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class Syntax:
    """What a module's source means.

    Attributes:
        statements: at its top level, without docstrings.
        imports: at any depth, but for those that only type checkers see.
        looks_up: the registries it builds entries of by name.
        texts: strings in it, docstrings left out; among them are the names it looks up.
    """

    statements: tuple[Statement, ...]
    imports: tuple[Import, ...]
    looks_up: frozenset[str]
    texts: frozenset[str]

    def digest(self, entry: str, imported: frozenset[str] | None) -> str:
        """Return the digest of the module, of whose registered entries only those count that are named.

        Args:
            entry: the one that a spec names; "" for none.
            imported: what other modules import from here; None for everything. What this uses counts too.
        """
        if imported is None:
            return _hash("|".join(one.digest for one in self.statements))
        needed = {one for one in self.statements if not one.entry or one.entry == entry or one.binds & imported}
        while further := {
            one for one in self.statements if one not in needed and any(one.binds & other.uses for other in needed)
        }:
            needed |= further
        return _hash("|".join(one.digest for one in self.statements if one in needed))


def read_syntax(source: str | bytes, module: str, *, is_package: bool) -> Syntax:
    """Parse the source of a module of that dotted name; raises `SyntaxError` or `ValueError` if it is none."""
    tree = ast.parse(source)
    package = module if is_package else module.rpartition(".")[0]
    return Syntax(
        tuple(_statement(node) for node in tree.body if not _is_text(node)),
        tuple(dict.fromkeys(_imports(tree, package))),
        frozenset(_looked_up(tree)),
        frozenset(_texts(tree)),
    )


def _statement(node: ast.stmt) -> Statement:
    entry = _entry(node)
    binds: set[str] = set()
    if entry and isinstance(node, ast.FunctionDef | ast.ClassDef):
        binds = {node.name}
    elif entry and isinstance(node, ast.Assign):
        binds = {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    uses = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return Statement(_hash("".join(_meaning(node))), entry, frozenset(binds), frozenset(uses))


def _entry(node: ast.stmt) -> str:
    """Return `name` of a definition below `@REGISTRY.register(name, ...)`, or of `REGISTRY.register(name, ...)(f)`."""
    calls: list[ast.expr] = []
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        calls = node.decorator_list
    elif isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call):
        calls = [node.value.func]
    for call in calls:
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=registry), attr="register"),
                args=[ast.Constant(value=str(name)), *_],
            ) if registry in REGISTRIES:
                return name
    return ""


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string that stands for itself: a docstring, or the words below a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _meaning(value: object) -> Iterator[str]:
    """Write a tree down without places, texts and empty fields."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, field in ast.iter_fields(value):
            if field is not None and field != [] and name not in _IGNORED:
                yield f" {name}="
                yield from _meaning(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for item in value:
            if not _is_text(item):
                yield from _meaning(item)
                yield ","
        yield "]"
    else:
        yield repr(value)


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (Import(module, alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _looked_up(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=registry), attr="build" | "find" | "entry") if registry in REGISTRIES:
                yield registry


def _texts(tree: ast.Module) -> Iterator[str]:
    own = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
            yield node.value


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
