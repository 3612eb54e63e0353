"""Models that answer with more than logits: a dictionary, a tuple, or one of Hugging Face's records.

Which part is meant is found by itself where only one can be, and is said by the option `output` otherwise. The part is
taken by a hook on the model, so that its parameters keep their names, in updates and in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from fedseal.core.errors import InputError, UsageError
from fedseal.core.specs import near_matches

LOGITS = "logits"


class TakeOutput:
    """A forward hook that replaces a model's answer by one part of it.

    Args:
        part: name of the part, or its place in a tuple.
    """

    def __init__(self, part: str) -> None:
        self.part = part

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], answer: Any) -> Any:
        """Return the part; a tensor is taken as it is."""
        return answer if isinstance(answer, Tensor) else parts_of(answer).get(self.part)


def parts_of(answer: Any) -> dict[str, Any]:
    """Return the named parts of a model's answer: keys, fields, or places in a tuple."""
    if isinstance(answer, Mapping):
        return {str(name): part for name, part in answer.items()}
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: getattr(answer, field.name) for field in fields(answer)}
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        return dict(zip(answer._fields, answer, strict=True))
    if isinstance(answer, tuple | list):
        return {str(place): part for place, part in enumerate(answer)}
    return {}


def choose_output(answer: Any, wanted: str | None, name: str) -> str | None:
    """Return which part of a model's answer are its logits; None if the answer is a tensor already.

    Args:
        answer: to some images.
        wanted: the part that was asked for, if one was.
        name: of the model, for messages.
    """
    if isinstance(answer, Tensor):
        if wanted is not None:
            raise UsageError(f"model {name} answers with a tensor and has no output {wanted!r}.", hint="Leave it out.")
        return None
    parts = {key: part for key, part in parts_of(answer).items() if isinstance(part, Tensor)}
    if not parts:
        raise InputError(
            f"model {name} answers with {type(answer).__name__}, not with a tensor.",
            hint="The output must be a tensor of logits [B, classes], or hold one.",
        )
    if wanted is not None:
        if wanted not in parts:
            raise UsageError(f"model {name} has no output {wanted!r}.", hint=near_matches(wanted, parts))
        return wanted
    flat = [key for key, part in parts.items() if part.ndim == 2]
    if LOGITS in flat:
        return LOGITS
    if len(flat) != 1:
        spec = f"{name.partition('?')[0]}?output={(flat or list(parts))[0]}"
        shapes = ", ".join(f"{key} {list(part.shape)}" for key, part in parts.items())
        raise UsageError(
            f"model {name} answers with {shapes}: which of these are its logits?",
            hint=f"Say it by the model's option `output`, as in `{spec}`.",
        )
    return flat[0]
