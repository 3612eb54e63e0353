"""Classifiers that are chains of linear maps and pointwise activations, which allows more than the general ones."""

from fedseal.attacks.chains.stages import Stage, read_chain

__all__ = ["Stage", "read_chain"]
