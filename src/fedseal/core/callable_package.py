"""Packages that can be called: `fedseal.audit(...)` beside `fedseal.audit.runner`.

Importing a submodule binds its package to the parent's attribute of that name, so a function of the same name would be
there only until somebody imports the package. The package itself being the function, both readings hold at any time.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package whose call is that of the function of its own name in its module `front`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; its module is imported now, not with the package."""
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(
            importlib.import_module(f"{self.__name__}.front"), self.__name__.rpartition(".")[2]
        )
        return function


def make_callable(package: str) -> None:
    """Let a package, named as in `sys.modules`, be called; done by its `__init__`."""
    sys.modules[package].__class__ = CallablePackage
