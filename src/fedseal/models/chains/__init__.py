"""Classifiers that are chains of linear maps and pointwise activations, which allows more than the general ones."""

from fedseal.models.chains.stages import Link, read_chain

__all__ = ["Link", "read_chain"]
