"""Privacy against accuracy over strengths of defences, and `fedseal.tradeoff(...)` itself: see its module `front`."""

from fedseal.core.callable_package import make_callable

make_callable(__name__)
