"""Where data sets and weights lie on a user's machine (`core.places`), for whoever reads or brings them."""

from fedseal.core.places import CACHE_VARIABLE, DATA_VARIABLE, cache_directory, find_file, search_places

__all__ = ["CACHE_VARIABLE", "DATA_VARIABLE", "cache_directory", "find_file", "search_places"]
