"""How inputs of a modality are made of what people know; public, as whoever designs the model designs it too."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Encoding(ABC):
    """What a tokeniser and the columns of a table have in common: inputs can be shown, and named by their content."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The hash of all that determines it."""

    @abstractmethod
    def describe(self) -> str:
        """Return it in words, for the ledger of what an attacker knows."""

    @abstractmethod
    def show(self, inputs: Tensor) -> list[str]:
        """Return one line per sample that a person can read."""
