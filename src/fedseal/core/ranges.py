"""The ranges of options: declared in an annotation, enforced where a spec is read, and tested for all at once.

A number among the options of what fedseal brings is not negative and not NaN, unless its annotation says otherwise:
`Rate` and the like below, or any `Annotated[float, Ge(-1)]`. Options of other people's code are taken as they are.
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Union

from annotated_types import Ge, Gt, Le, Lt

LARGEST = 1 << 40

Count = Annotated[int, Ge(1), Le(LARGEST)]
"""How many; at least one."""
Amount = Annotated[int, Ge(0), Le(LARGEST)]
"""How many, or which one, from 0."""
Layers = Annotated[int, Ge(1), Le(256)]
"""How deep a network is; each layer is an object of its own."""
Hidden = Annotated[int, Ge(0), Le(256)]
"""How many of them are hidden; none is a linear model."""
Width = Annotated[int, Ge(1), Le(16384)]
"""How wide one is."""
Place = Annotated[int, Ge(-1), Le(LARGEST)]
"""Which one, from 0; -1 for any."""
Rate = Annotated[float, Gt(0), Le(1e6)]
"""A learning rate and the like: positive."""
Share = Annotated[float, Ge(0), Le(1)]
"""A part of a whole."""
Weight = Annotated[float, Ge(0), Le(1e12)]
"""What a term counts: 0 leaves it out."""
Seed = Annotated[int, Ge(-(1 << 63)), Lt(1 << 63)]
"""What a generator of random numbers starts from."""


def ranged(annotation: Any) -> Any:
    """Return an annotation with the range that numbers have which declare none."""
    if annotation is float:
        return Annotated[float, Ge(0)]
    if annotation is int:
        return Amount
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(ranged(part) for part in typing.get_args(annotation))]  # noqa: UP007 - built of parts
    return annotation


def bounds(annotation: Any) -> tuple[Gt | Ge | None, Le | None] | None:
    """Return the declared bounds of a number, below and above; None if the annotation is of no number."""
    for part in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(part) is Annotated and typing.get_args(part)[0] in (int, float):
            marks = typing.get_args(part)[1:]
            low = next((mark for mark in marks if isinstance(mark, Gt | Ge)), None)
            return low, next((mark for mark in marks if isinstance(mark, Le)), None)
    return None
