"""One registry mechanism for attacks, defences, models, data sets, partitions, label rules and metrics.

An entry is a factory with annotated keyword arguments and a frozen `Info` record, its only declaration. A *spec* is how
a person writes a configured entry: `name`, `name:key=value,key=value`, or `package.module:attribute`, with options
behind a second colon, for what is registered nowhere. Arguments are coerced to their annotations; an unknown name or
argument is answered with its near matches. A registry imports the modules of its package on first use, so adding an
entry is one new file with one decorator and nothing else to edit; installed packages add theirs by entry points.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import sys
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from fedseal.core.entries import Declared, Entry, Info, modules_of, parameters_of
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.plugins import Offer, blamed_on, is_reference, load_reference, offers
from fedseal.core.specs import Spec, near_matches, parse_spec, shortened

__all__ = ["Declared", "Entry", "FunctionRegistry", "Info", "Registry", "Spec", "near_matches", "parse_spec"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Named factories of one kind, filled by the modules of one package and by entry points of others.

    Args:
        kind: what an entry is, in the singular, for messages.
        package: dotted name of the package whose modules register entries when imported.
        group: of the entry points by which other packages add theirs; None for none.
        product: what factories must return; None for no check.
    """

    def __init__(self, kind: str, package: str, *, group: str | None = None, product: type | None = None) -> None:
        self.kind = kind
        self.group = group
        self._package = package
        self._more: tuple[str, ...] = ()
        self._product = product
        self._entries: dict[str, Entry[T]] = {}
        self._loaded = False
        self._offers: dict[str, list[Offer]] | None = None
        self._broken: dict[str, FedsealError] = {}

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
            self._entries[name] = self._declared(name, factory, info)
            if inspect.isclass(factory) and issubclass(factory, Declared):
                factory.info = self._entries[name].info
            return factory

        return decorate

    def names(self) -> list[str]:
        """Return all registered names, those of installed packages too, sorted."""
        self._load()
        for name in list(self._offered()):
            self._take(name)
        return sorted(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        self._load()
        if name in self._offered():
            self._take(name)
        return name in self._entries

    def problems(self) -> dict[str, str]:
        """Return what installed packages offer and cannot be used, by name, with the reason."""
        self.names()
        return {name: str(error) for name, error in self._broken.items()}

    def entry(self, name: str) -> Entry[T]:
        """Return the entry called `name`."""
        if name in self:
            return self._entries[name]
        self.names()  # a package may register more than its entry point names
        if name in self._entries:
            return self._entries[name]
        if name in self._broken:
            raise self._broken[name]
        raise UsageError(
            f"there is no {self.kind} called {shortened(name)}.",
            hint=near_matches(name, self._entries) + (f" {_OWN}" if self.group else ""),
        )

    def find(self, spec: Spec | str) -> Entry[T]:
        """Return the entry a spec names: a registered one, or what `module:attribute` refers to."""
        spec = parse_spec(spec) if isinstance(spec, str) else spec
        reference = spec.name if spec.argument is None else f"{spec.name}:{spec.argument}"
        if self.group is None or spec.name in self or not is_reference(reference):
            return self.entry(spec.name)
        value = load_reference(reference, hint=near_matches(spec.name, self.names()))
        found = self._foreign(reference, value)
        return replace(found, modules=tuple(dict.fromkeys((spec.name, *found.modules))))

    def build(self, spec: Spec | str, /, **extra: Any) -> T:
        """Build the entry that `spec` names, its options coerced to the factory's annotations.

        Args:
            spec: what to build, parsed or as text.
            extra: arguments the caller supplies itself (data root, shapes); options of the spec may override them.
        """
        spec = parse_spec(spec) if isinstance(spec, str) else spec
        entry = self.find(spec)
        given = {key: value for key, value in extra.items() if key in entry.parameters} | self._coerced(entry, spec)
        missing = [key for key, p in entry.parameters.items() if p.default is p.empty and key not in given]
        if missing:
            raise UsageError(
                f"the {self.kind} {entry.name!r} needs {' and '.join(map(repr, missing))}.",
                hint=f"Write {entry.name}:{','.join(f'{key}=VALUE' for key in missing)}.",
            )
        return self._make(entry, given)

    def resolve(self, spec: Spec | str) -> dict[str, Any]:
        """Return the options that determine what `spec` builds: as given, coerced, and the defaults of all others."""
        spec = parse_spec(spec) if isinstance(spec, str) else spec
        entry = self.find(spec)
        defaults = {key: one.default for key, one in entry.parameters.items() if one.default is not one.empty}
        return defaults | {
            key: entry.coerced(self.kind, key, value) for key, value in self._options(entry, spec).items()
        }

    def _coerced(self, entry: Entry[T], spec: Spec) -> dict[str, Any]:
        return {key: entry.coerced(self.kind, key, value) for key, value in self._options(entry, spec).items()}

    def _options(self, entry: Entry[T], spec: Spec) -> dict[str, Any]:
        if spec.argument is None or spec.name != entry.name:
            return dict(spec.options)
        first = next(iter(entry.parameters), None)
        if first is None:
            raise UsageError(f"the {self.kind} {spec.name!r} takes no argument, got {spec.argument!r}.")
        return {**spec.options, first: spec.argument}

    def _make(self, entry: Entry[T], options: dict[str, Any]) -> T:
        if entry.origin == "fedseal":
            made = entry.factory(**options)
        else:
            with blamed_on(f"building the {self.kind} {entry.name} failed"):
                made = entry.factory(**options)
        if self._product is not None and not isinstance(made, self._product):
            raise InputError(f"{entry.name} returned {type(made).__name__}, not {self._wanted()}.")
        if isinstance(made, Declared) and made.info != entry.info:
            object.__setattr__(made, "info", entry.info)  # of a function, or of a frozen class
        return made

    def _wanted(self) -> str:
        return f"a {_public_name(self._product)}" if self._product else "a function"

    def _declared(self, name: str, factory: Callable[..., T], info: Info) -> Entry[T]:
        origin = getattr(factory, "__module__", None) or "?"
        full = replace(info, name=name)
        return Entry(name, factory, full, parameters_of(factory), origin.partition(".")[0], modules_of(factory))

    def _foreign(self, name: str, value: Any) -> Entry[T]:
        """Return the entry of what other people's code holds: a factory, or a finished instance, which is copied."""
        known = next((entry for entry in self._entries.values() if entry.factory is value), None)
        if known is not None:
            return replace(known, name=name)
        if self._product is not None and isinstance(value, self._product) and not inspect.isclass(value):
            instance: Any = value
            return Entry(name, partial(copy.deepcopy, instance), self._info_of(value, name), {}, name.partition(".")[0])
        if not callable(value):
            raise InputError(f"{name} is {type(value).__name__}, not {self._wanted()} or a function that returns one.")
        try:
            return self._declared(name, value, self._info_of(value, name))
        except ValueError as error:
            raise InputError(f"{name} does not tell its arguments.", hint="Write a function around it.") from error

    def _info_of(self, value: Any, name: str) -> Info:
        """Return what other people's code declares in an `info`, or else the first line of its docstring."""
        declared = getattr(value, "info", None)
        if isinstance(declared, Info) and declared is not getattr(self._product, "info", None):
            return replace(declared, name=name)
        return Info(next(iter((inspect.getdoc(value) or "").splitlines()), "not described").rstrip("."), name=name)

    def _offered(self) -> dict[str, list[Offer]]:
        """Return the entry points that were not taken yet, by name."""
        if self._offers is None:
            self._offers = {}
            for offer in offers(self.group) if self.group else ():
                self._offers.setdefault(offer.name, []).append(offer)
        return self._offers

    def _take(self, name: str) -> None:
        """Register what entry points offer under a name; what cannot be used is kept as a problem, and warned of."""
        claims = self._offered().pop(name)
        offer = claims[0]
        try:
            if len(claims) > 1:
                packages = " and ".join(claim.package for claim in claims)
                raise UsageError(f"the {self.kind} {name!r} is offered by {packages}.", hint="Uninstall one of them.")
            module = offer.reference.partition(":")[0]
            if name in self._entries and self._entries[name].origin != module.partition(".")[0]:
                raise UsageError(
                    f"the {self.kind} {name!r} of {offer.package} has the name of one that is there already.",
                    hint="Its package must choose another name.",
                )
            value = load_reference(offer.reference)
            if name not in self._entries and inspect.ismodule(value):
                raise UsageError(f"{module!r} registers no {self.kind} called {name!r}.", hint="Its decorator must.")
            if name not in self._entries:
                found = self._foreign(name, value)
                self._entries[name] = replace(found, name=name, modules=tuple(dict.fromkeys((module, *found.modules))))
        except FedsealError as error:
            self._broken[name] = error
            warnings.warn(f"{offer.package} offers the {self.kind} {name!r}, refused: {error}", stacklevel=2)

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, prefix=self._package + "."):
            importlib.import_module(module.name)
        for name in self._more:
            importlib.import_module(name)
        self._loaded = True


class FunctionRegistry(Registry[T]):
    """Named functions: an entry is not called when it is built, its options are bound to it.

    Args:
        supplied: how many leading arguments are given at every call; those behind them are options.
        kind, package, group: as for any registry.
        more: dotted names of modules elsewhere that register entries.
    """

    def __init__(
        self, kind: str, package: str, *, supplied: int, group: str | None = None, more: Sequence[str] = ()
    ) -> None:
        super().__init__(kind, package, group=group)
        self._more = tuple(more)
        self._supplied = supplied

    def register(self, name: str, info: Info) -> Callable[[F], F]:
        """Return a decorator that registers a function under `name`; its further arguments are options.

        Example:
            >>> import fedseal
            >>> from fedseal.core.registry import FunctionRegistry
            >>> scales = FunctionRegistry("scale", "fedseal.engines", supplied=1)
            >>> @scales.register("times", fedseal.Info("Multiplies."))
            ... def times(value: float, factor: float = 2.0) -> float:
            ...     return value * factor
            >>> scales.build("times:factor=3")(2.0)
            6.0
        """
        decorate = super().register(name, info)

        def keep(function: F) -> F:
            decorate(function)
            return function

        return keep

    def _declared(self, name: str, factory: Callable[..., T], info: Info) -> Entry[T]:
        entry = super()._declared(name, factory, info)
        options = dict(list(entry.parameters.items())[self._supplied :])
        if len(entry.parameters) < self._supplied:
            raise InputError(f"the {self.kind} {name} must take {self._supplied} arguments or more.")
        return replace(entry, parameters=options)

    def _make(self, entry: Entry[T], options: dict[str, Any]) -> T:
        return typing.cast(T, partial(entry.factory, **options) if options else entry.factory)


_OWN = "Your own is written package.module:attribute."


def _public_name(kind: type) -> str:
    """Return the shortest dotted name a class can be imported by: `torch.nn.Module`, not where it is written."""
    parts = kind.__module__.split(".")
    packages = (".".join(parts[:length]) for length in range(1, len(parts)))
    shown = (name for name in packages if getattr(sys.modules.get(name), kind.__name__, None) is kind)
    return f"{next(shown, kind.__module__)}.{kind.__qualname__}"
