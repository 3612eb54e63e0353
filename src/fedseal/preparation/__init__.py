"""What is trained beforehand: found by what determines it, kept in the cache, resumed (`core.trainable`)."""

from fedseal.preparation.library import Library, library
from fedseal.preparation.recent import forget, remembered
from fedseal.preparation.shelf import Item, items, prune

__all__ = ["Item", "Library", "forget", "items", "library", "prune", "remembered"]
