"""What a registry holds: a factory with its declaration, and the options it takes."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

from fedseal.core.errors import UsageError
from fedseal.core.ranges import ranged
from fedseal.core.specs import near_matches, plain_value, shortened

T = TypeVar("T")


@dataclass(frozen=True)
class Info:
    """What an entry declares, once: a registry says it without building anything, and what is built knows it.

    Example:
        >>> import fedseal
        >>> fedseal.Info("Answers grey.", threat="passive", needs=("batch_size",)).needs
        ('batch_size',)

    Attributes:
        summary: one line in plain words.
        paper: author, venue and year of the method, or "" where there is none.
        threat: the threat model an attack needs or a defence answers ("passive", "active", ...).
        needs: named capabilities an attack must be granted (see `core.knowledge`).
        strengths: options of a defence at the strengths to sweep, the papers' own, thinned out for a CPU.
        name: what it is registered as; the registry fills it in.
    """

    summary: str
    paper: str = ""
    threat: str = ""
    needs: tuple[str, ...] = ()
    strengths: tuple[str, ...] = ()
    name: str = ""


class Declared:
    """What knows its own declaration; attacks and defences do, so that refusals call them by their names."""

    info: Info = Info("")

    @property
    def name(self) -> str:
        """The name it is registered as, or its class's."""
        return self.info.name or type(self).__name__


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A factory with its record.

    Attributes:
        name: what it is registered as, or `module:attribute`.
        factory: called with the options of a spec.
        info: its declaration, the name filled in.
        parameters: options by name, their annotations resolved.
        origin: the package that brings it.
        modules: where it is written and, if elsewhere, registered; its code is found from there (`core.sources`).
    """

    name: str
    factory: Callable[..., T]
    info: Info
    parameters: Mapping[str, inspect.Parameter] = field(repr=False)
    origin: str = "fedseal"
    modules: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the record as plain data, as `fedseal list --json` prints it."""
        return {
            "name": self.name,
            "summary": self.info.summary,
            "paper": self.info.paper,
            "threat": self.info.threat,
            "needs": list(self.info.needs),
            "strengths": list(self.info.strengths),
            "options": {
                key: None if parameter.default is inspect.Parameter.empty else parameter.default
                for key, parameter in self.parameters.items()
            },
            "origin": self.origin,
        }

    def coerced(self, kind: str, key: str, value: Any) -> Any:
        """Return an option's value as its annotation wants it; `kind` is what messages call this entry."""
        from pydantic import ConfigDict, TypeAdapter, ValidationError

        if key not in self.parameters:
            raise UsageError(
                f"the {kind} {self.name!r} has no option {shortened(key)}.",
                hint=near_matches(key, list(self.parameters)) if self.parameters else "It takes none.",
            )
        annotation = self.parameters[key].annotation
        if annotation is Any and isinstance(value, str):
            return plain_value(value)
        if annotation is Any or (inspect.isclass(annotation) and isinstance(value, annotation)):
            return value
        if isinstance(value, str) and value.lower() in {"none", "null"} and type(None) in typing.get_args(annotation):
            return None
        try:
            return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UsageError(
                f"option {key!r} of the {kind} {self.name!r} cannot be {shortened(value)}: {reason.lower()}.",
                hint=f"Its default is {self.parameters[key].default}."
                if self.parameters[key].default is not inspect.Parameter.empty
                else "It has no default.",
            ) from error


def _annotated(factory: Callable[..., Any]) -> Any:
    """Return what carries a factory's annotations: a dataclass (each field's own module counts), or `__init__`."""
    if not inspect.isclass(factory):
        return factory
    return factory if is_dataclass(factory) else factory.__init__


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a factory's named parameters, with annotations resolved; one that cannot be resolved allows anything."""
    try:
        hints = typing.get_type_hints(_annotated(factory), include_extras=True)
    except (NameError, TypeError, AttributeError):  # names that exist for a type checker only
        hints = {}
    own = (getattr(factory, "__module__", None) or "").partition(".")[0] == "fedseal"
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        key: parameter.replace(annotation=ranged(hints.get(key, Any)) if own else hints.get(key, Any))
        for key, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind in named
    }


def modules_of(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Return the module that defines a factory and, if that is another, the one that registers it on being imported."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    importing = str(frame.f_globals.get("__name__"))
    spec = getattr(sys.modules.get(importing), "__spec__", None)
    modules = [getattr(factory, "__module__", None), importing if getattr(spec, "_initializing", False) else None]
    return tuple(dict.fromkeys(module for module in modules if module))
