"""One registry mechanism for attacks, defences, models and data sets.

An entry is a factory with annotated keyword arguments and a frozen `Info` record. A *spec* is how a person writes a
configured entry: `name` or `name:key=value,key=value`. Arguments are coerced to their annotations; an unknown name or
argument is answered with its near matches. A registry imports the modules of its package on first use, so adding an
entry is one new file with one decorator and nothing else to edit.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

from fedseal.core.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Info:
    """What a registry says about an entry without building it.

    Example:
        >>> import fedseal
        >>> fedseal.Info("Answers grey.", threat="passive", needs=("batch_size",)).needs
        ('batch_size',)

    Attributes:
        summary: one line in plain words.
        paper: author, venue and year of the method, or "" where there is none.
        threat: the threat model an attack needs or a defence answers ("passive", "active", ...).
        needs: named capabilities an attack must be granted (see `core.knowledge`).
    """

    summary: str
    paper: str = ""
    threat: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory with its record."""

    name: str
    factory: Callable[..., T]
    info: Info
    parameters: Mapping[str, inspect.Parameter] = field(repr=False)

    def describe(self) -> dict[str, Any]:
        """Return the record as plain data, as `fedseal list --json` prints it."""
        return {
            "name": self.name,
            "summary": self.info.summary,
            "paper": self.info.paper,
            "threat": self.info.threat,
            "needs": list(self.info.needs),
            "options": {
                key: None if parameter.default is inspect.Parameter.empty else parameter.default
                for key, parameter in self.parameters.items()
            },
        }


@dataclass(frozen=True)
class Spec:
    """A name with options: the parsed form of `name:key=value,...`.

    Everything after the first colon is kept whole in `argument` when it holds no `=`, so that `npz:PATH` and
    `folder:PATH` are specs too.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    argument: str | None = None

    def __str__(self) -> str:
        if self.argument is not None:
            return f"{self.name}:{self.argument}"
        if not self.options:
            return self.name
        return f"{self.name}:" + ",".join(f"{key}={value}" for key, value in self.options.items())


def parse_spec(text: str) -> Spec:
    """Parse `name`, `name:key=value,key=value` or `name:argument`."""
    name, colon, rest = text.strip().partition(":")
    if not name:
        raise UsageError(f"{text!r} names nothing.", hint="Write NAME or NAME:key=value,key=value.")
    if not colon:
        return Spec(name)
    if "=" not in rest:
        if not rest:
            raise UsageError(f"{text!r} ends in a colon.", hint="Write NAME:key=value,key=value.")
        return Spec(name, argument=rest)
    options: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value:
            raise UsageError(f"{part!r} in {text!r} is not key=value.", hint="Write NAME:key=value,key=value.")
        if key in options:
            raise UsageError(f"option {key!r} is given twice in {text!r}.", hint="Give it once.")
        options[key] = value.strip()
    return Spec(name, options)


def near_matches(name: str, known: Iterator[str] | list[str]) -> str:
    """Return a sentence with the names closest to `name`, or all of them when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "Known: " + ", ".join(names) + "." if names else "None are known."


def _annotated(factory: Callable[..., Any]) -> Any:
    """Return what carries a factory's annotations: a dataclass (each field's own module counts), or `__init__`."""
    if not inspect.isclass(factory):
        return factory
    return factory if is_dataclass(factory) else factory.__init__


class Registry(Generic[T]):
    """Named factories of one kind, filled by the modules of one package.

    Args:
        kind: what an entry is, in the singular, for messages.
        package: dotted name of the package whose modules register entries when imported.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, Entry[T]] = {}
        self._loaded = False

    def register(self, name: str, info: Info) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Return a decorator that registers a factory under `name`; a clash is an error, never an overwrite.

        Example:
            >>> import fedseal
            >>> from fedseal.core.registry import Registry
            >>> greetings = Registry("greeting", "fedseal.engines")
            >>> @greetings.register("hello", fedseal.Info("Says hello."))
            ... def hello(times: int = 1) -> str:
            ...     return " ".join(["hello"] * times)
            >>> greetings.build("hello:times=2")
            'hello hello'
        """

        def decorate(factory: Callable[..., T]) -> Callable[..., T]:
            if name in self._entries and self._entries[name].factory is not factory:
                raise UsageError(
                    f"the {self.kind} {name!r} is registered already, by {self._entries[name].factory!r}.",
                    hint="Choose another name.",
                )
            hints = typing.get_type_hints(_annotated(factory))
            parameters = {
                key: parameter.replace(annotation=hints.get(key, Any))
                for key, parameter in inspect.signature(factory).parameters.items()
            }
            self._entries[name] = Entry(name, factory, info, parameters)
            return factory

        return decorate

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        self._load()
        return sorted(self._entries)

    def entry(self, name: str) -> Entry[T]:
        """Return the entry called `name`."""
        self._load()
        if name not in self._entries:
            raise UsageError(f"there is no {self.kind} called {name!r}.", hint=near_matches(name, list(self._entries)))
        return self._entries[name]

    def build(self, spec: Spec | str, /, **extra: Any) -> T:
        """Build the entry that `spec` names, its options coerced to the factory's annotations.

        Args:
            spec: what to build, parsed or as text.
            extra: arguments the caller supplies itself (data root, shapes); options of the spec may override them.
        """
        spec = parse_spec(spec) if isinstance(spec, str) else spec
        entry = self.entry(spec.name)
        options = {key: value for key, value in extra.items() if key in entry.parameters} | dict(spec.options)
        if spec.argument is not None:
            first = next(iter(entry.parameters), None)
            if first is None:
                raise UsageError(f"the {self.kind} {spec.name!r} takes no argument, got {spec.argument!r}.")
            options[first] = spec.argument
        missing = [key for key, p in entry.parameters.items() if p.default is p.empty and key not in options]
        if missing:
            raise UsageError(
                f"the {self.kind} {spec.name!r} needs {' and '.join(map(repr, missing))}.",
                hint=f"Write {spec.name}:{','.join(f'{key}=VALUE' for key in missing)}.",
            )
        return entry.factory(**{key: self._coerce(entry, key, value) for key, value in options.items()})

    def _coerce(self, entry: Entry[T], key: str, value: Any) -> Any:
        from pydantic import ConfigDict, TypeAdapter, ValidationError

        if key not in entry.parameters:
            raise UsageError(
                f"the {self.kind} {entry.name!r} has no option {key!r}.",
                hint=near_matches(key, list(entry.parameters)) if entry.parameters else "It takes none.",
            )
        annotation = entry.parameters[key].annotation
        if annotation is Any or (inspect.isclass(annotation) and isinstance(value, annotation)):
            return value
        if isinstance(value, str) and value.lower() in {"none", "null"} and type(None) in typing.get_args(annotation):
            return None
        try:
            return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UsageError(
                f"option {key!r} of the {self.kind} {entry.name!r} cannot be {value!r}: {reason.lower()}.",
                hint=f"It is declared as {getattr(annotation, '__name__', annotation)}.",
            ) from error

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, prefix=self._package + "."):
            importlib.import_module(module.name)
        self._loaded = True
