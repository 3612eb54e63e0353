"""The audit of a federation, and the function `fedseal.audit(...)` itself: see `fedseal.audit.front`."""

from fedseal.core.callable_package import make_callable

make_callable(__name__)
